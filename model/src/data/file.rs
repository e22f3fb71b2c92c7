//! Reading files within bounds, plain or gzip.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::DataError;

/// Most bytes of one data set that are read into memory, uncompressed: 4 GiB.
pub const MAX_DATA_BYTES: u64 = 4 << 30;

/// Deflate never expands by more than 1032; a file that claims more is not worth starting to read.
const MAX_EXPANSION: u64 = 1032;

/// A file that is read from front to back, uncompressed on the way if it is gzip.
pub(crate) struct Input {
    path: PathBuf,
    reader: Box<dyn Read>,
    /// Bytes read so far, uncompressed.
    position: u64,
    /// No more than this can come out of the file.
    limit: u64,
}

impl Input {
    /// Opens a file and looks whether it is gzip (by its first bytes, not its name).
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let read = |error| DataError::read(path, error);
        // Before it is opened: opening a named pipe would wait for a writer.
        let metadata = std::fs::metadata(path).map_err(read)?;
        if !metadata.is_file() {
            return Err(read(std::io::Error::other("not a file")));
        }
        let bytes = metadata.len();
        if bytes > MAX_DATA_BYTES {
            return Err(DataError::TooLarge {
                path: path.to_owned(),
                bytes,
                limit: MAX_DATA_BYTES,
            });
        }
        let file = File::open(path).map_err(read)?;
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let is_gzip = std::io::BufRead::fill_buf(&mut reader)
            .map_err(read)?
            .starts_with(&[0x1f, 0x8b]);
        let limit = if is_gzip {
            (bytes * MAX_EXPANSION).min(MAX_DATA_BYTES)
        } else {
            bytes
        };
        let reader: Box<dyn Read> = if is_gzip {
            Box::new(MultiGzDecoder::new(reader))
        } else {
            Box::new(reader)
        };
        Ok(Self {
            path: path.to_owned(),
            reader,
            position: 0,
            limit,
        })
    }

    /// Exactly `count` bytes, called `what` in the error. Memory grows with what is read, never by what is claimed.
    pub(crate) fn take(&mut self, count: u64, what: &str) -> Result<Vec<u8>, DataError> {
        let left = self.limit.saturating_sub(self.position);
        if count > left {
            let text = format!(
                "{count} bytes of {what} are announced, the file can hold {left} more: it is cut short or corrupt"
            );
            return Err(DataError::corrupt(&self.path, self.position, text));
        }
        let mut bytes = Vec::new();
        let result = self.reader.by_ref().take(count).read_to_end(&mut bytes);
        let at = self.position + bytes.len() as u64;
        if let Err(error) = result {
            return Err(DataError::corrupt(
                &self.path,
                at,
                format!("{what} cannot be read: {error}"),
            ));
        }
        if (bytes.len() as u64) < count {
            let text = format!(
                "the file ends inside {what}: {} of {count} bytes are there",
                bytes.len()
            );
            return Err(DataError::corrupt(&self.path, at, text));
        }
        self.position = at;
        Ok(bytes)
    }

    /// Refuses anything after what was taken.
    pub(crate) fn finish(mut self) -> Result<(), DataError> {
        let mut byte = [0];
        match self.reader.read(&mut byte) {
            Ok(0) => Ok(()),
            Ok(_) => Err(DataError::corrupt(
                &self.path,
                self.position,
                "data goes on after the last sample",
            )),
            Err(error) => Err(DataError::corrupt(
                &self.path,
                self.position,
                format!("the end is damaged: {error}"),
            )),
        }
    }

    /// The rest of the file, at most `limit` bytes of it.
    pub(crate) fn rest(mut self, limit: u64) -> Result<Vec<u8>, DataError> {
        let limit = limit.min(MAX_DATA_BYTES);
        let mut bytes = Vec::new();
        self.reader
            .by_ref()
            .take(limit + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| {
                DataError::corrupt(
                    &self.path,
                    self.position + bytes.len() as u64,
                    format!("cannot be read: {error}"),
                )
            })?;
        if bytes.len() as u64 > limit {
            return Err(DataError::TooLarge {
                path: self.path,
                bytes: bytes.len() as u64,
                limit,
            });
        }
        Ok(bytes)
    }
}

/// The first of `names` (or the same with `.gz`) that is a file in `folder`.
pub(crate) fn find(folder: &Path, names: &[&str]) -> Result<PathBuf, DataError> {
    let candidates = names
        .iter()
        .flat_map(|name| [folder.join(name), folder.join(format!("{name}.gz"))]);
    candidates
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| DataError::Missing {
            folder: folder.to_owned(),
            names: names.join(", "),
        })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn gzip_and_plain_files_read_the_same() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in [("plain", b"hello".to_vec()), ("packed", gzip(b"hello"))] {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let mut input = Input::open(&path).unwrap();
            assert_eq!(input.take(2, "text").unwrap(), b"he");
            assert_eq!(input.take(3, "text").unwrap(), b"llo");
            input.finish().unwrap();
        }
    }

    #[test]
    fn a_short_or_long_file_names_the_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cut.gz");
        let whole = gzip(&(0..=255).cycle().take(5000).collect::<Vec<u8>>());
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let error = Input::open(&path)
            .unwrap()
            .take(5000, "pixels")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("cut.gz: byte ") && error.contains("pixels"),
            "{error}"
        );
        std::fs::write(&path, &whole).unwrap();
        let mut input = Input::open(&path).unwrap();
        input.take(4999, "pixels").unwrap();
        assert!(
            input
                .finish()
                .unwrap_err()
                .to_string()
                .contains("byte 4999: data goes on")
        );
    }

    #[test]
    fn a_bomb_is_stopped_at_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bomb.gz");
        std::fs::write(&path, gzip(&vec![0; 1 << 20])).unwrap();
        assert!(matches!(
            Input::open(&path).unwrap().rest(1000),
            Err(DataError::TooLarge { limit: 1000, .. })
        ));
        assert!(matches!(
            Input::open(&path).unwrap().take(1 << 40, "pixels"),
            Err(DataError::Corrupt { byte: 0, .. })
        ));
    }
}

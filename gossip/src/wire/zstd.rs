//! zstd with contexts and buffers that live as long as a link: nothing is allocated per call once they are warm, and
//! nothing is ever unpacked beyond a size known beforehand.

use std::{fmt, io::Cursor};

use zstd::zstd_safe;

/// Compresses at one level.
pub struct Compressor {
    context: zstd::bulk::Compressor<'static>,
    level: i32,
}

/// Decompresses up to a stated size.
pub struct Decompressor {
    context: zstd::bulk::Decompressor<'static>,
}

/// Why bytes were not compressed or decompressed.
#[derive(Debug, thiserror::Error)]
pub enum ZstdError {
    /// zstd refused: level out of range, no memory for its context, or bytes that are no zstd data.
    #[error("zstd failed on {n_bytes} bytes: {source}")]
    Zstd {
        /// Bytes given to it.
        n_bytes: usize,
        /// What it said.
        source: std::io::Error,
    },
    /// The data unpacks to more than its cap. At most the cap was allocated.
    #[error("{n_bytes} bytes of zstd data unpack to more than {cap} bytes")]
    OverCap {
        /// Bytes given.
        n_bytes: usize,
        /// The most allowed.
        cap: usize,
    },
}

/// The most bytes that compressing `n_bytes` can yield: what [`Compressor::append`] needs as spare capacity.
pub fn compressed_bound(n_bytes: usize) -> usize {
    zstd_safe::compress_bound(n_bytes)
}

impl Compressor {
    /// A compressor at `level`: 1 (fast) to 22 (small), or below zero (faster still).
    ///
    /// # Errors
    /// [`ZstdError::Zstd`]: no such level.
    pub fn new(level: i32) -> Result<Self, ZstdError> {
        let range = zstd::compression_level_range();
        if !range.contains(&level) {
            let reason = format!(
                "level {level} is not in {} to {}",
                range.start(),
                range.end()
            );
            return Err(ZstdError::Zstd {
                n_bytes: 0,
                source: std::io::Error::other(reason),
            });
        }
        let context = zstd::bulk::Compressor::new(level)
            .map_err(|source| ZstdError::Zstd { n_bytes: 0, source })?;
        Ok(Self { context, level })
    }

    /// Appends the compressed `bytes` to `out` and returns how many bytes that took. Allocates only if `out` has less spare
    /// capacity than [`compressed_bound`].
    ///
    /// # Errors
    /// [`ZstdError::Zstd`]: no memory for zstd's context; `out` is unchanged.
    pub fn append(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, ZstdError> {
        let start = out.len();
        out.reserve(compressed_bound(bytes.len()));
        let mut end = Cursor::new(&mut *out);
        end.set_position(start as u64);
        match self.context.compress_to_buffer(bytes, &mut end) {
            Ok(n_bytes) => Ok(n_bytes),
            Err(source) => {
                out.truncate(start);
                Err(ZstdError::Zstd {
                    n_bytes: bytes.len(),
                    source,
                })
            }
        }
    }
}

impl Decompressor {
    /// A decompressor.
    ///
    /// # Errors
    /// [`ZstdError::Zstd`]: no memory for zstd's context.
    pub fn new() -> Result<Self, ZstdError> {
        let context = zstd::bulk::Decompressor::new()
            .map_err(|source| ZstdError::Zstd { n_bytes: 0, source })?;
        Ok(Self { context })
    }

    /// Replaces `out` by what `bytes` unpack to, at most `cap` bytes; `out` grows to `cap` at most, and not at all if its
    /// capacity suffices.
    ///
    /// # Errors
    /// [`ZstdError::OverCap`] for more than `cap` bytes, [`ZstdError::Zstd`] for bytes that are no zstd data; `out` is empty.
    pub fn decompress(
        &mut self,
        bytes: &[u8],
        cap: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), ZstdError> {
        let n_bytes = bytes.len();
        out.clear();
        // An honest frame states its content's size, a dishonest one is stopped by the buffer's end.
        if let Ok(Some(stated)) = zstd_safe::get_frame_content_size(bytes)
            && stated > cap as u64
        {
            return Err(ZstdError::OverCap { n_bytes, cap });
        }
        out.reserve_exact(cap);
        let result = self.context.decompress_to_buffer(bytes, out);
        let error = match result {
            Ok(_) if out.len() <= cap => return Ok(()),
            Ok(_) => ZstdError::OverCap { n_bytes, cap },
            // The one-shot call fails for lack of room only when the data is longer than the buffer.
            Err(source)
                if source
                    .to_string()
                    .contains("Destination buffer is too small") =>
            {
                ZstdError::OverCap { n_bytes, cap }
            }
            Err(source) => ZstdError::Zstd { n_bytes, source },
        };
        out.clear();
        Err(error)
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressor")
            .field("level", &self.level)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decompressor").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bomb_is_refused_at_its_cap() {
        let mut bomb = vec![];
        Compressor::new(19)
            .unwrap()
            .append(&vec![0; 8 << 20], &mut bomb)
            .unwrap();
        assert!(bomb.len() < 2000);
        let (mut decompressor, mut out) = (Decompressor::new().unwrap(), vec![]);
        let error = decompressor.decompress(&bomb, 1000, &mut out).unwrap_err();
        assert!(
            matches!(error, ZstdError::OverCap { cap: 1000, .. }),
            "{error}"
        );
        assert!(out.capacity() <= 1000);
    }

    #[test]
    fn a_bomb_that_hides_its_size_is_refused_at_its_cap() {
        let mut encoder = zstd::stream::Encoder::new(vec![], 1).unwrap();
        std::io::copy(&mut std::io::repeat(0).take(1 << 20), &mut encoder).unwrap();
        let bomb = encoder.finish().unwrap();
        assert!(matches!(zstd_safe::get_frame_content_size(&bomb), Ok(None)));
        let (mut decompressor, mut out) = (Decompressor::new().unwrap(), vec![]);
        let error = decompressor.decompress(&bomb, 1000, &mut out).unwrap_err();
        assert!(
            matches!(error, ZstdError::OverCap { cap: 1000, .. }),
            "{error}"
        );
        assert!(out.is_empty() && out.capacity() <= 1000);
        decompressor.decompress(&bomb, 1 << 20, &mut out).unwrap();
        assert_eq!(out.len(), 1 << 20);
    }

    #[test]
    fn a_level_out_of_range_is_named() {
        let error = Compressor::new(23).unwrap_err();
        assert!(error.to_string().contains("level 23"), "{error}");
    }

    proptest! {
        #[test]
        fn bytes_come_back_behind_what_was_there(bytes: Vec<u8>, before: Vec<u8>, level in -5..6) {
            let mut out = before.clone();
            let n = Compressor::new(level).unwrap().append(&bytes, &mut out).unwrap();
            prop_assert_eq!(&out[..before.len()], &before[..]);
            prop_assert_eq!(out.len(), before.len() + n);
            let mut back = vec![];
            Decompressor::new().unwrap().decompress(&out[before.len()..], bytes.len(), &mut back).unwrap();
            prop_assert_eq!(back, bytes);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let mut out = vec![];
            let _ = Decompressor::new().unwrap().decompress(&bytes, 5000, &mut out);
            prop_assert!(out.len() <= 5000);
        }
    }
}

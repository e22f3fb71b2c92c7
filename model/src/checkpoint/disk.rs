//! Files that survive a crash: written, flushed to the disk, and only then given their name.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::CheckpointError;

/// Marks what is being written; anything with it in the name is left over from a crash.
pub(crate) const TEMPORARY: &str = ".tmp-";

/// Writes a new file and flushes it to the disk.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let written = File::create(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(CheckpointError::write(path))
}

/// Writes `bytes` to `path`: afterwards it holds them all, or (on an error or a crash) what it held before.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let temporary = beside(path);
    let written = write(&temporary, bytes).and_then(|()| rename(&temporary, path));
    if written.is_err() {
        // Best effort: the error is what counts.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Gives a file that was written and flushed its name.
pub(crate) fn rename(temporary: &Path, path: &Path) -> Result<(), CheckpointError> {
    fs::rename(temporary, path).map_err(CheckpointError::write(path))?;
    flush_folder(parent(path))
}

/// Flushes the names in a folder to the disk, so that a rename in it survives a crash.
pub(crate) fn flush_folder(folder: &Path) -> Result<(), CheckpointError> {
    // Windows cannot open folders; its renames are in the journal.
    if cfg!(windows) {
        return Ok(());
    }
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(CheckpointError::write(folder))
}

/// Reads a file of at most `limit` bytes.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, CheckpointError> {
    let file = File::open(path).map_err(CheckpointError::read(path))?;
    let length = file.metadata().map_err(CheckpointError::read(path))?.len();
    if length > limit {
        return Err(CheckpointError::corrupt(
            path,
            format!("{length} bytes, more than the {limit} it can have"),
        ));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(CheckpointError::read(path))?;
    if bytes.len() as u64 > limit {
        return Err(CheckpointError::corrupt(
            path,
            format!("more than the {limit} bytes it can have"),
        ));
    }
    Ok(bytes)
}

/// A temporary name beside `path`, on the same file system.
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!("{TEMPORARY}{}", std::process::id()));
    path.with_file_name(name)
}

fn parent(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_replace_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        replace(&path, b"old").unwrap();
        // A folder in the way of the temporary file stands for a full disk.
        fs::create_dir(beside(&path)).unwrap();
        let error = replace(&path, b"new").unwrap_err();
        assert!(matches!(&error, CheckpointError::Write { .. }), "{error}");
        assert_eq!(read(&path, 10).unwrap(), b"old");
        fs::remove_dir(beside(&path)).unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(read(&path, 10).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_full_disk_is_named() {
        let full = Path::new("/dev/full");
        if full.exists() {
            let error = write(full, b"bytes").unwrap_err().to_string();
            assert!(
                error.starts_with("cannot write /dev/full: No space left"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_above_the_limit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write(&path, b"12345").unwrap();
        assert!(matches!(
            read(&path, 4),
            Err(CheckpointError::Corrupt { .. })
        ));
        assert_eq!(read(&path, 5).unwrap(), b"12345");
    }
}

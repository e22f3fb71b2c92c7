//! Lines of copies on disk, one file per block: what a mesh that was switched off goes on from, whole lines, and what does not fit
//! into memory.
//!
//! ```text
//! copies/<step>/<block>     one encoded state and its digest, written to a temporary name and renamed
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use skein_model::stage::{BlockLayout, digest};

/// An encoded state of one block.
pub(super) type State = Arc<Vec<u8>>;

/// A copy, wherever it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kept {
    Memory(State),
    Disk(PathBuf),
}

impl Kept {
    /// The state itself. Blocks on the disk.
    ///
    /// # Errors
    /// In words: it cannot be read any more, or is damaged.
    pub(super) fn load(&self, layout: &BlockLayout) -> Result<State, String> {
        match self {
            Self::Memory(state) => Ok(Arc::clone(state)),
            Self::Disk(path) => {
                let read = read(path, layout).map(Arc::new);
                read.map_err(|reason| format!("{}: {reason}", path.display()))
            }
        }
    }
}

/// Copies begun to be written, so that two of a block do not meet.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// The folder with all lines.
#[derive(Clone, Debug)]
pub(super) struct Lines(pub(super) PathBuf);

impl Lines {
    /// Writes one copy, and flushes it to the disk.
    pub(super) fn write(&self, step: u64, block: u16, state: &[u8]) -> io::Result<PathBuf> {
        let line = self.0.join(step.to_string());
        fs::create_dir_all(&line)?;
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let temporary = line.join(format!(".{block}-{number}"));
        let written = || {
            let file = fs::File::create(&temporary)?;
            io::Write::write_all(&mut &file, state)?;
            io::Write::write_all(&mut &file, &digest(state))?;
            file.sync_all()?;
            let path = line.join(block.to_string());
            fs::rename(&temporary, &path)?;
            Ok(path)
        };
        let path = written();
        if path.is_err() {
            // Best effort: a full disk needs the room.
            let _ = fs::remove_file(&temporary);
        }
        path
    }

    /// Writes what of a line is not on disk yet.
    pub(super) fn save(&self, step: u64, copies: &[(u16, Kept)]) -> io::Result<()> {
        for (block, kept) in copies {
            if let Kept::Memory(state) = kept {
                self.write(step, *block, state)?;
            }
        }
        match fs::File::open(self.0.join(step.to_string())) {
            Ok(line) => line.sync_all(),
            Err(_) if copies.is_empty() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes lines older than `step`, but for those `kept`.
    pub(super) fn prune(&self, step: u64, kept: &[u64]) -> io::Result<()> {
        self.remove(|line| line < step && !kept.contains(&line))
    }

    /// Removes lines newer than `step`, but for those `kept`: they are of work that was undone.
    pub(super) fn undo(&self, step: u64, kept: &[u64]) -> io::Result<()> {
        self.remove(|line| line > step && !kept.contains(&line))
    }

    fn remove(&self, which: impl Fn(u64) -> bool) -> io::Result<()> {
        for (line, path) in self.all()? {
            if which(line) {
                fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    }

    fn all(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        if !self.0.exists() {
            return Ok(Vec::new());
        }
        let entries = fs::read_dir(&self.0)?.collect::<io::Result<Vec<_>>>()?;
        let line =
            |entry: &fs::DirEntry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path()));
        Ok(entries.iter().filter_map(line).collect())
    }

    /// All copies that are whole, one in memory at a time. Damaged ones are left out, and named.
    pub(super) fn load(&self, layouts: &[BlockLayout]) -> (Vec<(u64, u16, PathBuf)>, Vec<String>) {
        let (mut copies, mut skipped) = (Vec::new(), Vec::new());
        let lines = self.all().unwrap_or_else(|error| {
            skipped.push(format!("{}: {error}", self.0.display()));
            Vec::new()
        });
        for (step, line) in lines {
            for layout in layouts {
                let path = line.join(layout.index.to_string());
                if !path.exists() {
                    continue;
                }
                match read(&path, layout) {
                    Ok(_) => copies.push((step, layout.index as u16, path)),
                    Err(reason) => skipped.push(format!("{}: {reason}", path.display())),
                }
            }
        }
        (copies, skipped)
    }
}

fn read(path: &Path, layout: &BlockLayout) -> Result<Vec<u8>, String> {
    let expected = (layout.encoded_len() + 32) as u64;
    let got = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if got != expected {
        return Err(format!("{got} bytes where a copy has {expected}"));
    }
    let mut bytes = fs::read(path).map_err(|error| error.to_string())?;
    let given = bytes.split_off(layout.encoded_len());
    if digest(&bytes)[..] != given {
        return Err("it is damaged".into());
    }
    Ok(bytes)
}

//! What can be wrong with data. Every error about a file names it, and the byte or row where it goes wrong.

use std::path::{Path, PathBuf};

use crate::config::ConfigError;

/// Why data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A setting cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file or folder cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file that belongs to the data set is not there.
    #[error("{} has none of {names}: give the folder that holds them as data.path", folder.display())]
    Missing {
        /// The folder that was searched.
        folder: PathBuf,
        /// The file names that were looked for.
        names: String,
    },
    /// This peer holds no private data of that name.
    #[error("this peer has no private data named {name:?}: start it with --data {name}=PATH")]
    NoPrivateData {
        /// The name in the job.
        name: String,
    },
    /// The content is not what it should be at one byte.
    #[error("{}: byte {byte}: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Offset in the file, uncompressed.
        byte: u64,
        /// What is wrong there.
        what: String,
    },
    /// One sample is wrong.
    #[error("{}: row {row}: {what}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// The sample, from 0.
        row: usize,
        /// What is wrong with it.
        what: String,
    },
    /// Two parts that belong together differ.
    #[error("{}: {what}", path.display())]
    Mismatch {
        /// The file or folder.
        path: PathBuf,
        /// What differs from what.
        what: String,
    },
    /// More than is ever read.
    #[error("{}: {bytes} bytes, more than the {limit} that are read", path.display())]
    TooLarge {
        /// The file or folder.
        path: PathBuf,
        /// Size it has or claims.
        bytes: u64,
        /// The bound.
        limit: u64,
    },
}

impl DataError {
    pub(crate) fn read(path: &Path, source: std::io::Error) -> Self {
        Self::Read {
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn corrupt(path: &Path, byte: u64, what: impl Into<String>) -> Self {
        Self::Corrupt {
            path: path.to_owned(),
            byte,
            what: what.into(),
        }
    }

    pub(crate) fn row(path: &Path, row: usize, what: impl Into<String>) -> Self {
        Self::Row {
            path: path.to_owned(),
            row,
            what: what.into(),
        }
    }

    pub(crate) fn mismatch(path: &Path, what: impl Into<String>) -> Self {
        Self::Mismatch {
            path: path.to_owned(),
            what: what.into(),
        }
    }
}

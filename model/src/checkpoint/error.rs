//! Why a checkpoint or an export cannot be written or read. Every error names the file.

use std::path::{Path, PathBuf};

use crate::model::ModelError;
use crate::snapshot::SnapshotError;
use crate::stage::StateError;

/// Why writing or reading failed.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The system refused to write (disk full, no permission). What was there before is intact.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The system refused to read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is torn, changed, or was never one of ours.
    #[error("{}: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file's tensors are not those of the model.
    #[error("{}: {what}", path.display())]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// The first tensor that differs, and how.
        what: String,
    },
    /// The file describes a model that cannot be built.
    #[error("{}: {source}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: ModelError,
    },
    /// A block's state is not what belongs into the file.
    #[error("{}: {source}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: StateError,
    },
    /// A block's state cannot be had.
    #[error("block {block} of the model cannot be had: {reason}")]
    Block {
        /// Number of the block.
        block: usize,
        /// Why not.
        reason: String,
    },
    /// The values are not those of a sound model of this layout.
    #[error("{}: {source}", path.display())]
    Snapshot {
        /// The file.
        path: PathBuf,
        /// What is wrong with them.
        source: SnapshotError,
    },
}

impl CheckpointError {
    pub(crate) fn write(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        |source| Self::Write {
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        |source| Self::Read {
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn corrupt(path: &Path, what: impl Into<String>) -> Self {
        Self::Corrupt {
            path: path.to_owned(),
            what: what.into(),
        }
    }

    pub(crate) fn other_model(path: &Path, what: impl Into<String>) -> Self {
        Self::OtherModel {
            path: path.to_owned(),
            what: what.into(),
        }
    }
}

//! `manifest.json`: what a checkpoint is of, how far training was, and the size and hash of its files.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::CheckpointError;
use super::tensors::Description;

/// Most bytes a manifest can have.
pub(crate) const MAX_BYTES: u64 = 1 << 20;

/// How far training was. All numbers count from the start of the job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The job, as its owner names it.
    pub job: String,
    /// Optimiser updates.
    pub step: u64,
    /// Samples behind these steps, of all peers.
    pub samples: u64,
    /// Samples this peer drew: where its sampler goes on.
    pub sampler_position: u64,
    /// This peer's shard of the data.
    pub shard: u32,
    /// Whatever else the caller wants to find again.
    #[serde(default)]
    pub extra: BTreeMap<String, serde_json::Value>,
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileEntry {
    pub(crate) bytes: u64,
    pub(crate) blake3: String,
}

impl FileEntry {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.len() as u64,
            blake3: blake3::hash(bytes).to_hex().to_string(),
        }
    }
}

/// The manifest itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) description: Description,
    pub(crate) progress: Progress,
    pub(crate) optimiser: Vec<String>,
    pub(crate) optimiser_steps: u64,
    pub(crate) batches_tracked: i64,
    pub(crate) model_file: FileEntry,
    pub(crate) optimiser_file: FileEntry,
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    pub(crate) fn decode(path: &Path, bytes: &[u8]) -> Result<Self, CheckpointError> {
        let manifest: Self = serde_json::from_slice(bytes)
            .map_err(|error| CheckpointError::corrupt(path, error.to_string()))?;
        // No optimiser here keeps more than two; the names become tensor names and a bound of the file.
        if manifest.optimiser.len() > 2 {
            return Err(CheckpointError::corrupt(
                path,
                format!("{} optimiser state vectors", manifest.optimiser.len()),
            ));
        }
        Ok(manifest)
    }
}

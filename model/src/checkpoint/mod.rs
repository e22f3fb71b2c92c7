//! Training state on disk: checkpoints that are whole or absent, and exports that PyTorch users load.
//!
//! ```text
//! checkpoints/step-000000000120/model.safetensors      weights, with the names of an export
//!                               optimiser.safetensors  the optimiser's state vectors, one tensor per variable
//!                               manifest.json          written last: progress, and size and hash of the two above
//! ```
//!
//! A checkpoint is written in a folder with another name, every file and the folder are flushed to the disk, and the
//! folder is renamed: a crash at any moment leaves the checkpoints before it as they were.

mod error;
mod disk;
mod tensors;
mod export;
mod manifest;
mod store;
mod blocks;

pub use blocks::{WeightsFile, export_blocks};
pub use error::CheckpointError;
pub use export::{Import, MAX_MODEL_BYTES, adopt, export, import, import_weights};
pub use manifest::Progress;
pub use store::{Newest, Skipped, Store};

//! Data: sources on disk become a [`Dataset`] in memory, and a [`Sampler`] says which samples come next.
//!
//! [`load`] is the only entrance. Every decoder bounds what it allocates by the file's size and [`MAX_DATA_BYTES`], and
//! names the file and the byte or row of what it refuses.

mod dataset;
mod raw;
mod error;
mod file;
mod digits;
mod idx;
mod cifar;
mod npy;
mod images;
mod frame;
mod tokenizer;
mod text;
mod source;
mod exact;
mod split;
mod sampler;

pub use dataset::{Batch, Dataset, Normalisation};
pub use error::DataError;
pub use file::MAX_DATA_BYTES;
pub use raw::RawError;
pub use sampler::Sampler;
pub use source::{Splits, known_shape, load};
pub use split::{SplitError, shard_rows};

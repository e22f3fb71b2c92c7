//! Copying a blob (a replica's state, a finished model) from peers that hold it: chunked, hashed, resumable.
//!
//! The manifest lists a hash per chunk, so a wrong chunk is refused alone and asked for again, and a transfer goes on
//! with another holder of the same blob where the first one broke off.

pub mod depth;
pub mod probe;
pub mod capacity;
pub mod window;

use serde::{Deserialize, Serialize};

use crate::ids::Digest;

/// Size of every chunk but the last: what is hashed and asked for at once. On the wire it goes in pieces, see [`window`]. The
/// multiplexer lets 256 KiB of a fresh stream go before it hears from the other end; a chunk stays below, and the manifest
/// of the largest blob, of 2 MiB, below the bound of a response.
pub const CHUNK_BYTES: usize = 128 * 1024;
/// Largest blob: bounds what a hostile manifest can make a peer allocate.
pub const MAX_BLOB_BYTES: u64 = 8 << 30;
/// Chunks allowed before a blob grows beyond what the receiver expects; see [`Fetch::new`].
const MAX_CHUNKS: u64 = MAX_BLOB_BYTES / CHUNK_BYTES as u64;

/// Describes a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Hash over the chunk hashes: names the blob.
    pub blob: Digest,
    /// Its size.
    pub bytes: u64,
    /// One hash per chunk.
    pub chunks: Vec<Digest>,
    /// Step of the replica at the copy; 0 for a finished model.
    pub step: u64,
    /// Samples that the mesh had trained on by then.
    pub samples: u64,
}

/// Why a manifest or chunk was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The manifest contradicts itself or is too large.
    #[error("manifest of a blob of {bytes} bytes is refused: {what}")]
    Manifest {
        /// The size it claims.
        bytes: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The chunk's bytes do not have the hash that the manifest gives.
    #[error("chunk {index} does not have the hash that its manifest gives")]
    Chunk {
        /// Which one.
        index: u32,
    },
}

impl Manifest {
    /// Describes `bytes`.
    pub fn of(bytes: &[u8], step: u64, samples: u64) -> Self {
        let chunks: Vec<Digest> = bytes.chunks(CHUNK_BYTES).map(Digest::of).collect();
        Self {
            blob: blob_digest(&chunks),
            bytes: bytes.len() as u64,
            chunks,
            step,
            samples,
        }
    }

    /// The byte range of a chunk, `None` beyond the last.
    pub fn range(&self, index: u32) -> Option<std::ops::Range<usize>> {
        let start = (index as usize).checked_mul(CHUNK_BYTES)?;
        let end = (start.checked_add(CHUNK_BYTES)?).min(self.bytes as usize);
        (start < end).then_some(start..end)
    }
}

fn blob_digest(chunks: &[Digest]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for chunk in chunks {
        hasher.update(&chunk.0);
    }
    Digest(*hasher.finalize().as_bytes())
}

/// A transfer in progress at the receiver.
#[derive(Debug)]
pub struct Fetch {
    manifest: Manifest,
    bytes: Vec<u8>,
    have: Vec<bool>,
    n_missing: usize,
}

impl Fetch {
    /// Begins a transfer of at most `cap_bytes`, which the receiver knows from its own model.
    ///
    /// # Errors
    /// [`TransferError::Manifest`]: nothing was allocated.
    pub fn new(manifest: Manifest, cap_bytes: u64) -> Result<Self, TransferError> {
        let bytes = manifest.bytes;
        let refuse = |what| Err(TransferError::Manifest { bytes, what });
        if bytes > cap_bytes.min(MAX_BLOB_BYTES) {
            return refuse("it is larger than a state of this model can be");
        }
        let n_chunks = bytes.div_ceil(CHUNK_BYTES as u64);
        if n_chunks > MAX_CHUNKS || manifest.chunks.len() as u64 != n_chunks {
            return refuse("its number of chunks does not match its size");
        }
        if blob_digest(&manifest.chunks) != manifest.blob {
            return refuse("its name does not match its chunks");
        }
        let n_missing = manifest.chunks.len();
        Ok(Self {
            bytes: vec![0; bytes as usize],
            have: vec![false; n_missing],
            n_missing,
            manifest,
        })
    }

    /// What is being fetched.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The next chunks to ask for, at most `n`.
    pub fn missing(&self, n: usize) -> Vec<u32> {
        let missing = self.have.iter().enumerate().filter(|(_, have)| !**have);
        missing.map(|(index, _)| index as u32).take(n).collect()
    }

    /// Takes a chunk that arrived.
    ///
    /// # Errors
    /// [`TransferError::Chunk`]: it is still missing; ask for it again, elsewhere if need be.
    pub fn chunk(&mut self, index: u32, bytes: &[u8]) -> Result<(), TransferError> {
        let refused = TransferError::Chunk { index };
        let range = self.manifest.range(index).ok_or(refused.clone())?;
        if bytes.len() != range.len() || Digest::of(bytes) != self.manifest.chunks[index as usize] {
            return Err(refused);
        }
        if !std::mem::replace(&mut self.have[index as usize], true) {
            self.bytes[range].copy_from_slice(bytes);
            self.n_missing -= 1;
        }
        Ok(())
    }

    /// Whether every chunk is here.
    pub fn is_complete(&self) -> bool {
        self.n_missing == 0
    }

    /// The blob, once complete.
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        (self.n_missing == 0).then_some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 % 251) as u8).collect()
    }

    #[test]
    fn a_blob_arrives_whole_in_any_order_with_repeats() {
        for len in [0, 1, CHUNK_BYTES, CHUNK_BYTES * 2 + 17] {
            let bytes = blob(len);
            let manifest = Manifest::of(&bytes, 3, 9);
            let mut fetch = Fetch::new(manifest.clone(), 1 << 20).unwrap();
            let mut order = fetch.missing(usize::MAX);
            order.reverse();
            for index in order.iter().chain(&order) {
                fetch
                    .chunk(*index, &bytes[manifest.range(*index).unwrap()])
                    .unwrap();
            }
            assert!(fetch.is_complete());
            assert_eq!(fetch.into_bytes(), Some(bytes));
        }
    }

    #[test]
    fn a_wrong_chunk_is_refused_and_stays_missing() {
        let bytes = blob(CHUNK_BYTES + 5);
        let mut fetch = Fetch::new(Manifest::of(&bytes, 0, 0), 1 << 20).unwrap();
        assert_eq!(
            fetch.chunk(1, b"wrong"),
            Err(TransferError::Chunk { index: 1 })
        );
        assert_eq!(fetch.chunk(7, b""), Err(TransferError::Chunk { index: 7 }));
        assert_eq!(fetch.missing(9), [0, 1]);
        assert_eq!(fetch.into_bytes(), None);
    }

    #[test]
    fn a_manifest_that_lies_about_its_size_allocates_nothing() {
        let mut manifest = Manifest::of(&blob(10), 0, 0);
        manifest.bytes = u64::MAX;
        assert!(Fetch::new(manifest.clone(), 1 << 20).is_err());
        manifest.bytes = CHUNK_BYTES as u64 * 2;
        assert!(Fetch::new(manifest.clone(), 1 << 20).is_err());
        manifest.bytes = 10;
        manifest.chunks[0] = Digest([0; 32]);
        assert!(Fetch::new(manifest, 1 << 20).is_err());
    }
}

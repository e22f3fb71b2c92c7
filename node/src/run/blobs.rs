//! Blobs that this peer serves: replicas copied for joiners, candidates and finished models.
//!
//! Bounded by number; a blob that nobody asks for is dropped after `KEEP`, so a copy does not sit in memory for long.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use skein_gossip::ids::Digest;
use skein_gossip::message::StateResponse;
use skein_gossip::transfer::Manifest;

/// Blobs kept at once; the least recently used makes room.
const MAX_BLOBS: usize = 4;
/// How long a blob is kept after it was last asked for.
const KEEP: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct Blob {
    manifest: Manifest,
    bytes: Vec<u8>,
    used: Instant,
}

/// The blobs, shared by the driver of the mesh and those of the jobs. The lock is held for one look-up.
#[derive(Clone, Debug, Default)]
pub struct Blobs(Arc<Mutex<VecDeque<Blob>>>);

impl Blobs {
    /// Offers `bytes` and describes them.
    pub fn offer(&self, bytes: Vec<u8>, step: u64, samples: u64) -> Manifest {
        let manifest = Manifest::of(&bytes, step, samples);
        let mut blobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        blobs.retain(|blob| blob.manifest.blob != manifest.blob);
        if blobs.len() >= MAX_BLOBS {
            blobs.pop_front();
        }
        blobs.push_back(Blob {
            manifest: manifest.clone(),
            bytes,
            used: Instant::now(),
        });
        manifest
    }

    /// The answer to a request for a chunk.
    pub fn chunk(&self, digest: Digest, index: u32) -> StateResponse {
        let mut blobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = blobs.iter().position(|blob| blob.manifest.blob == digest) else {
            return StateResponse::Unavailable("this copy is no longer kept here".into());
        };
        let Some(mut blob) = blobs.remove(at) else {
            return StateResponse::Unavailable("this copy is no longer kept here".into());
        };
        blob.used = Instant::now();
        let response = match blob.manifest.range(index) {
            Some(range) => StateResponse::Chunk(blob.bytes[range].to_vec()),
            None => StateResponse::Unavailable(format!("the blob has no chunk {index}")),
        };
        blobs.push_back(blob);
        response
    }

    /// Drops what nobody asks for any more.
    pub fn expire(&self) {
        let mut blobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        blobs.retain(|blob| blob.used.elapsed() < KEEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_served_and_the_least_recently_used_blob_makes_room() {
        let blobs = Blobs::default();
        let first = blobs.offer(vec![1; 10], 1, 1);
        assert_eq!(
            blobs.chunk(first.blob, 0),
            StateResponse::Chunk(vec![1; 10])
        );
        assert!(matches!(
            blobs.chunk(first.blob, 1),
            StateResponse::Unavailable(_)
        ));
        for n in 2..=MAX_BLOBS as u8 {
            blobs.offer(vec![n; 10], 1, 1);
        }
        blobs.chunk(first.blob, 0);
        blobs.offer(vec![99; 10], 1, 1);
        assert!(
            matches!(blobs.chunk(first.blob, 0), StateResponse::Chunk(_)),
            "it was used last"
        );
        let second = Manifest::of(&[2; 10], 1, 1);
        assert!(matches!(
            blobs.chunk(second.blob, 0),
            StateResponse::Unavailable(_)
        ));
    }
}

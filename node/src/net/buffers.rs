//! Memory of large frames, filled again and again: allocating megabytes per frame costs page faults, and clearing them a pass over
//! memory.
//!
//! Whoever has read a frame that it received, and the lane that has sent one, gives the memory back; frames to come are received into
//! it, or built in it. What is not given back is only allocated anew.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Less is not worth keeping.
const LEAST_BYTES: usize = 4 << 10;
/// Idle memory beyond this is given back to the system, what was idle longest first.
const MOST_IDLE_BYTES: usize = 32 << 20;
/// A buffer is not used for less than this part of it: small frames would hold large buffers.
const USED_PART: usize = 4;

/// The idle buffers of a network; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Buffers(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    idle: Mutex<Idle>,
    allocated: AtomicU64,
}

/// Oldest first.
#[derive(Debug, Default)]
struct Idle {
    buffers: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Buffers {
    /// A buffer with room for `bytes`. What is in it does not matter: clear it or write over it.
    pub fn take(&self, bytes: usize) -> Vec<u8> {
        self.find(bytes).unwrap_or_else(|| {
            self.count_allocated(bytes);
            Vec::with_capacity(bytes)
        })
    }

    /// As [`Self::take`], where one was given back that fits.
    pub(super) fn find(&self, bytes: usize) -> Option<Vec<u8>> {
        let mut idle = self.idle();
        let fits =
            |buffer: &Vec<u8>| buffer.capacity() >= bytes && buffer.capacity() / USED_PART <= bytes;
        let fitting = idle
            .buffers
            .iter()
            .enumerate()
            .filter(|(_, buffer)| fits(buffer));
        let (at, _) = fitting.min_by_key(|(_, buffer)| buffer.capacity())?;
        let buffer = idle.buffers.remove(at)?;
        idle.bytes -= buffer.capacity();
        Some(buffer)
    }

    /// A buffer for a frame had to be allocated.
    pub(super) fn count_allocated(&self, bytes: usize) {
        if bytes >= LEAST_BYTES {
            self.0.allocated.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes memory that is no longer needed.
    pub fn give(&self, buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        if !(LEAST_BYTES..=MOST_IDLE_BYTES).contains(&bytes) {
            return;
        }
        let mut idle = self.idle();
        idle.bytes += bytes;
        idle.buffers.push_back(buffer);
        while idle.bytes > MOST_IDLE_BYTES {
            let oldest = idle.buffers.pop_front();
            idle.bytes -= oldest.map_or(idle.bytes, |oldest| oldest.capacity());
        }
    }

    /// Buffers of large frames that had to be allocated so far.
    pub fn n_allocated(&self) -> u64 {
        self.0.allocated.load(Ordering::Relaxed)
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_given_back_is_used_again_where_it_fits() {
        let buffers = Buffers::default();
        let first = buffers.take(100_000);
        buffers.give(first);
        assert_eq!(
            buffers.take(20_000).capacity(),
            20_000,
            "far too large for it"
        );
        assert!(buffers.take(60_000).capacity() >= 100_000);
        assert_eq!(buffers.n_allocated(), 2);
        assert!(buffers.take(60_000).capacity() < 100_000, "it is in use");
        assert_eq!(buffers.n_allocated(), 3);
    }

    proptest! {
        #[test]
        fn idle_memory_is_bounded(sizes in proptest::collection::vec(0usize..40 << 20, 1..60)) {
            let buffers = Buffers::default();
            for bytes in sizes {
                let taken = buffers.take(bytes);
                prop_assert!(taken.capacity() >= bytes);
                buffers.give(taken);
                buffers.give(Vec::with_capacity(bytes / 3));
                let idle = buffers.idle();
                prop_assert!(idle.bytes <= MOST_IDLE_BYTES);
                prop_assert_eq!(idle.bytes, idle.buffers.iter().map(Vec::capacity).sum::<usize>());
            }
        }
    }
}

//! How many chunks to ask a holder for at once: so many that it always has one to send, and no more, since what was asked for
//! and not sent is lost when the holder goes, and waits for those before it.
//!
//! In: how long each chunk took from question to answer. Out: the number. A holder answers in turn, so a chunk that took
//! longer than the quickest one waited there for those before it; while it waits for as long as the quickest takes in all,
//! the holder is never idle.

use std::time::Duration;

/// Chunks asked for before the first has come, and the least.
const FIRST: usize = 4;
/// The most: 2 MiB of a blob, what 100 Mbit/s carry in 160 ms.
const MOST: usize = 16;
/// A chunk takes at least this many times as long as the quickest; less, and the holder may have been idle.
const AT_LEAST: u32 = 2;
/// It takes at most so many times as long; more is of no use.
const AT_MOST: u32 = 4;

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Depth {
    n_chunks: usize,
    quickest: Option<Duration>,
    /// Answers until the number may change again: those to questions of before the last change.
    settles: usize,
}

impl Default for Depth {
    fn default() -> Self {
        Self {
            n_chunks: FIRST,
            quickest: None,
            settles: FIRST,
        }
    }
}

impl Depth {
    /// Chunks that may be asked for at once.
    pub fn chunks(&self) -> usize {
        self.n_chunks
    }

    /// A chunk came, so long after it was asked for.
    pub fn answered(&mut self, took: Duration) {
        let quickest = self.quickest.map_or(took, |quickest| quickest.min(took));
        self.quickest = Some(quickest);
        self.settles = self.settles.saturating_sub(1);
        if self.settles > 0 {
            return;
        }
        let before = self.n_chunks;
        if took < quickest * AT_LEAST {
            self.n_chunks = (before + before / 2).min(MOST);
        } else if took > quickest * AT_MOST {
            self.n_chunks = (before - 1).max(FIRST);
        }
        if self.n_chunks != before {
            self.settles = self.n_chunks;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Pulls `n` chunks from a holder that answers in turn; how many at once in the end, and the share of time that it sent.
    fn pull(n: usize, round_trip_ms: u64, chunk_ms: u64) -> (usize, f64) {
        let mut depth = Depth::default();
        let (mut now, mut free_at, mut asked) = (0, 0, 0);
        let mut answers = VecDeque::new();
        while asked < n || !answers.is_empty() {
            while asked < n && answers.len() < depth.chunks() {
                free_at = free_at.max(now + round_trip_ms / 2) + chunk_ms;
                answers.push_back((now, free_at + round_trip_ms / 2));
                asked += 1;
            }
            let (from, at) = answers.pop_front().unwrap();
            now = at;
            depth.answered(Duration::from_millis(at - from));
        }
        (depth.chunks(), (n as u64 * chunk_ms) as f64 / now as f64)
    }

    #[test]
    fn the_holder_is_never_idle_and_few_chunks_wait_there() {
        for (round_trip, chunk) in [(160, 52), (8, 52), (1, 2), (160, 21), (40, 4000)] {
            let (chunks, used) = pull(400, round_trip, chunk);
            assert!(used > 0.94, "{round_trip} {chunk}: {used}");
            let needed = (round_trip / chunk + 2) as usize;
            assert!(
                chunks <= (2 * needed + 2).max(FIRST + 2),
                "{round_trip} {chunk}: {chunks}"
            );
        }
        assert_eq!(pull(400, 10_000, 1).0, MOST);
    }
}

//! Copies of blocks: who holds which blocks as they were after which step, and what can be recovered from that.
//!
//! A *line* is a step at which every block has a holder: training can go on from there. Synchronous training is
//! deterministic, so a block at a step is the same whoever computed it, in whatever cut and in whatever view: the step
//! alone names a line, also after a partition. Everybody holds the blocks at step 0 where they are drawn from the job's seed; where a job
//! starts from given weights, step 0 is a line like any other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::plan::{Blocks, MAX_BLOCKS};
use crate::ids::PeerId;

/// Most entries of one peer's list; a longer list is refused.
pub const MAX_HELD: usize = 256;

/// Blocks that are held as they were after `step` steps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Held {
    /// Steps made.
    pub step: u64,
    /// First block.
    pub first: u16,
    /// One past the last.
    pub end: u16,
}

impl Held {
    /// The blocks.
    pub fn blocks(&self) -> Blocks {
        self.first..self.end
    }

    /// Whether it can be said of a model of `n_blocks` blocks.
    pub fn is_of(&self, n_blocks: u16) -> bool {
        self.first < self.end && self.end <= n_blocks.min(MAX_BLOCKS)
    }
}

/// What one peer holds, as a set; what is sent are its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Per step, whether each block is held.
    steps: BTreeMap<u64, Vec<bool>>,
    /// Whether the blocks at step 0 are drawn from the job's seed, and so held by everybody.
    is_seeded: bool,
}

impl Default for Holding {
    fn default() -> Self {
        Self {
            steps: BTreeMap::new(),
            is_seeded: true,
        }
    }
}

impl Holding {
    /// What `held` says; parts that no model of `n_blocks` blocks has are left out.
    pub fn from_runs(held: &[Held], n_blocks: u16) -> Self {
        let mut holding = Self::default();
        for held in held.iter().filter(|held| held.is_of(n_blocks)) {
            holding.add(held.step, held.blocks(), n_blocks);
        }
        holding
    }

    /// The same of a job whose blocks at step 0 are drawn from its seed, or are not.
    #[must_use]
    pub fn seeded(self, is_seeded: bool) -> Self {
        Self { is_seeded, ..self }
    }

    /// `blocks` are held at `step` now.
    pub fn add(&mut self, step: u64, blocks: Blocks, n_blocks: u16) {
        let row = self
            .steps
            .entry(step)
            .or_insert_with(|| vec![false; usize::from(n_blocks)]);
        let range = usize::from(blocks.start)..usize::from(blocks.end.min(n_blocks));
        if let Some(row) = row.get_mut(range) {
            row.fill(true);
        }
    }

    /// Drops what `keep` refuses: called with step and block.
    pub fn retain(&mut self, keep: impl Fn(u64, u16) -> bool) {
        for (step, row) in &mut self.steps {
            for (block, held) in row.iter_mut().enumerate() {
                *held &= keep(*step, block as u16);
            }
        }
        self.steps.retain(|_, row| row.iter().any(|held| *held));
    }

    /// Whether `block` is held at `step`.
    pub fn has(&self, step: u64, block: u16) -> bool {
        (step == 0 && self.is_seeded)
            || self
                .steps
                .get(&step)
                .is_some_and(|row| row.get(usize::from(block)).copied().unwrap_or(false))
    }

    /// Whether all of `blocks` are held at `step`.
    pub fn has_all(&self, step: u64, mut blocks: Blocks) -> bool {
        blocks.all(|block| self.has(step, block))
    }

    /// The newest step at which `block` is held.
    pub fn newest(&self, block: u16) -> u64 {
        self.newest_until(block, u64::MAX)
    }

    /// The newest step up to `most` at which `block` is held.
    pub fn newest_until(&self, block: u16, most: u64) -> u64 {
        let mut steps = self.steps.range(..=most).rev();
        let newest = steps.find(|(_, row)| row.get(usize::from(block)) == Some(&true));
        newest.map_or(0, |(step, _)| *step)
    }

    /// The steps at which anything is held, oldest first.
    pub fn steps(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.steps.keys().copied()
    }

    /// As runs, to be sent: newest step first, at most [`MAX_HELD`].
    pub fn runs(&self) -> Vec<Held> {
        let mut runs = Vec::new();
        for (step, row) in self.steps.iter().rev() {
            let mut first = 0;
            while first < row.len() {
                if !row[first] {
                    first += 1;
                    continue;
                }
                let len = row[first..].iter().take_while(|held| **held).count();
                runs.push(Held {
                    step: *step,
                    first: first as u16,
                    end: (first + len) as u16,
                });
                first += len;
            }
        }
        runs.truncate(MAX_HELD);
        runs
    }
}

/// What all peers hold that are alive.
#[derive(Debug)]
pub struct Copies<'a> {
    n_blocks: u16,
    holdings: Vec<(PeerId, &'a Holding)>,
}

impl<'a> Copies<'a> {
    /// Of these peers.
    pub fn new(n_blocks: u16, holdings: impl IntoIterator<Item = (PeerId, &'a Holding)>) -> Self {
        Self {
            n_blocks,
            holdings: holdings.into_iter().collect(),
        }
    }

    /// Holders of `block` at `step`.
    pub fn holders(&self, step: u64, block: u16) -> impl Iterator<Item = PeerId> + '_ {
        let holds = move |(_, holding): &&(PeerId, &Holding)| holding.has(step, block);
        self.holdings.iter().filter(holds).map(|(peer, _)| *peer)
    }

    /// How many peers hold the block that fewest hold at `step`.
    pub fn fewest(&self, step: u64) -> usize {
        let counts = (0..self.n_blocks).map(|block| self.holders(step, block).count());
        counts.min().unwrap_or(0)
    }

    /// The newest step at which every block is held by at least `n` peers; 0 where there is no other.
    pub fn newest_line(&self, n: usize) -> u64 {
        let mut steps: Vec<u64> = self
            .holdings
            .iter()
            .flat_map(|(_, holding)| holding.steps())
            .collect();
        steps.sort_unstable();
        steps.dedup();
        let mut newest_first = steps.into_iter().rev();
        newest_first
            .find(|step| self.fewest(*step) >= n)
            .unwrap_or(0)
    }

    /// The newest step up to `most` at which anybody holds `block`.
    pub fn newest_until(&self, block: u16, most: u64) -> u64 {
        let all = self
            .holdings
            .iter()
            .map(|(_, holding)| holding.newest_until(block, most));
        all.max().unwrap_or(0)
    }

    /// Blocks of which nobody holds a newer copy than `step`, though some blocks are held newer.
    pub fn behind(&self, step: u64) -> Vec<u16> {
        let newest = |block: &u16| {
            let all = self
                .holdings
                .iter()
                .map(|(_, holding)| holding.newest(*block));
            all.max().unwrap_or(0) <= step
        };
        (0..self.n_blocks).filter(newest).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    #[test]
    fn a_line_is_where_every_block_has_a_holder() {
        let mut a = Holding::default();
        let mut b = Holding::default();
        a.add(10, 0..2, 4);
        a.add(20, 0..2, 4);
        b.add(10, 2..4, 4);
        b.add(20, 3..4, 4);
        let copies = Copies::new(4, [(peer(1), &a), (peer(2), &b)]);
        assert_eq!(copies.newest_line(1), 10);
        assert_eq!(copies.newest_line(2), 0, "step 0 is with everybody");
        assert_eq!(copies.behind(10), [2]);
        assert_eq!(copies.holders(20, 3).collect::<Vec<_>>(), [peer(2)]);
        let without = Copies::new(4, [(peer(2), &b)]);
        assert_eq!(without.newest_line(1), 0);
    }

    #[test]
    fn what_is_dropped_is_no_longer_held() {
        let mut a = Holding::default();
        a.add(10, 0..4, 4);
        a.add(20, 1..3, 4);
        a.retain(|step, block| step > 10 || block == 0);
        assert!(a.has_all(20, 1..3) && a.has(10, 0) && !a.has(10, 1));
        assert_eq!(a.newest(0), 10);
        assert_eq!(a.newest(3), 0);
        assert_eq!(a.newest_until(1, 19), 0);
        assert_eq!(a.newest_until(1, 20), 20);
    }

    proptest! {
        #[test]
        fn runs_say_what_is_held(held in proptest::collection::vec((1u64..5, 0u16..12, 0u16..14), 0..20)) {
            let runs: Vec<Held> = held.iter().map(|(step, first, end)| Held { step: *step, first: *first, end: *end }).collect();
            let holding = Holding::from_runs(&runs, 12);
            let again = Holding::from_runs(&holding.runs(), 12);
            prop_assert_eq!(&again, &holding);
            for run in runs.iter().filter(|run| run.is_of(12)) {
                prop_assert!(holding.has_all(run.step, run.blocks()));
            }
        }
    }
}

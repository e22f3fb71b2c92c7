//! A member of a view: which process it is, which data are its, and how many samples it trains on at which step.
//!
//! Batches change at a step, and in lockstep all must weigh each step alike, whichever view they hold when they pass it: so an entry
//! remembers the change before as well.

use serde::{Deserialize, Serialize};

use crate::ids::PeerId;

/// Most samples per step of one member.
pub const MAX_BATCH: u32 = 65_536;

/// One member of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Who.
    pub peer: PeerId,
    /// The process it runs as: a restarted peer has another instance and must be admitted anew.
    pub instance: u64,
    /// Number of the view that admitted this instance.
    pub since: u64,
    /// Which shard of the data it trains on: the lowest that was free.
    pub slot: u32,
    /// Samples it trains on per step, from `batch_from` on where exchange is synchronous.
    pub batch: u32,
    /// First step with that batch.
    pub batch_from: u64,
    /// Number of the view that set it.
    pub batch_since: u64,
    /// Samples per step until then.
    pub batch_before: u32,
    /// First step with those.
    pub batch_before_from: u64,
    /// Number of the view that set them.
    pub batch_before_since: u64,
    /// Samples per step before that: two changes may be close together, and members a step apart.
    pub batch_earlier: u32,
    /// First step whose packet the others wait for, in synchronous exchange.
    pub from_step: u64,
}

impl Member {
    /// Samples of its step `step`.
    pub fn batch_at(&self, step: u64) -> u32 {
        if step >= self.batch_from {
            self.batch
        } else if step >= self.batch_before_from {
            self.batch_before
        } else {
            self.batch_earlier
        }
    }

    /// The latest view of which all must be known to hold it before its step `step` is passed.
    pub fn needed_for(&self, step: u64) -> u64 {
        let changes = [
            (self.from_step, self.since),
            (self.batch_before_from, self.batch_before_since),
            (self.batch_from, self.batch_since),
        ];
        let reached = changes.into_iter().filter(|(from, _)| *from <= step);
        reached.map(|(_, since)| since).max().unwrap_or(0)
    }

    /// A view sets its samples per step. Where a change is to come that is no earlier, this one takes its place.
    pub(crate) fn set_batch(&mut self, batch: u32, from: u64, since: u64) {
        if self.since == since {
            // It is admitted now: it has made no step with another.
            (self.batch_before, self.batch_earlier) = (batch, batch);
        } else if from > self.batch_from {
            self.batch_earlier = self.batch_before;
            self.batch_before = self.batch;
            self.batch_before_from = self.batch_from;
            self.batch_before_since = self.batch_since;
            self.batch_from = from;
        }
        (self.batch, self.batch_since) = (batch, since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member() -> Member {
        Member {
            peer: PeerId([1; 32]),
            instance: 1,
            since: 1,
            slot: 0,
            batch: 32,
            batch_from: 0,
            batch_since: 1,
            batch_before: 32,
            batch_before_from: 0,
            batch_before_since: 1,
            batch_earlier: 32,
            from_step: 0,
        }
    }

    fn batches(member: &Member) -> Vec<u32> {
        (0..12).map(|step| member.batch_at(step)).collect()
    }

    #[test]
    fn two_changes_are_remembered_and_what_must_be_agreed_for_each_step() {
        let mut member = member();
        member.set_batch(10, 4, 2);
        member.set_batch(20, 8, 3);
        assert_eq!(
            batches(&member),
            [32, 32, 32, 32, 10, 10, 10, 10, 20, 20, 20, 20]
        );
        let needed: Vec<u64> = [0, 3, 4, 7, 8].map(|step| member.needed_for(step)).into();
        assert_eq!(needed, [1, 1, 2, 2, 3]);
    }

    #[test]
    fn a_change_that_is_not_reached_yet_is_replaced() {
        let mut member = member();
        member.set_batch(10, 6, 2);
        member.set_batch(20, 6, 3);
        assert_eq!(
            batches(&member),
            [32, 32, 32, 32, 32, 32, 20, 20, 20, 20, 20, 20]
        );
        assert_eq!((member.needed_for(5), member.needed_for(6)), (1, 3));
    }

    #[test]
    fn one_that_is_admitted_has_made_no_step_with_another_batch() {
        let mut member = Member {
            since: 5,
            batch_since: 5,
            batch_before_since: 5,
            from_step: 9,
            batch_from: 9,
            batch_before_from: 9,
            ..member()
        };
        member.set_batch(7, 11, 5);
        assert_eq!(batches(&member), [7; 12]);
        assert_eq!((member.needed_for(8), member.needed_for(9)), (0, 5));
    }
}

//! The connections of a simulated world: delays, what is late, lost or held back, and what breaks.

use std::collections::{BTreeMap, BTreeSet};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use skein_gossip::ids::PeerId;

pub(crate) const MS: u64 = 1000;
pub(crate) const SECOND: u64 = 1_000_000;

/// What goes over a connection in an order of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    Control,
    Frames,
}

#[derive(Debug, Default)]
pub(crate) struct Network {
    /// Of a thousand control messages, how many are lost for good.
    pub(crate) lost_of_1000: u64,
    /// Of a thousand control messages, how many are lost and sent again: after 200 ms, twice that if lost again, and so on.
    pub(crate) resent_of_1000: u64,
    /// The peers on the one side of a partition, and when it heals.
    apart: BTreeSet<PeerId>,
    heals: u64,
    /// Number of the open connection between two peers, the lower one first.
    open: BTreeMap<(PeerId, PeerId), u64>,
    opened: u64,
    /// When the last message of a lane arrives: lanes keep their order.
    last: BTreeMap<(PeerId, PeerId, Lane), u64>,
    /// Times that a message was lost three times or more in a row.
    pub(crate) lost_thrice: u64,
}

fn pair(a: PeerId, b: PeerId) -> (PeerId, PeerId) {
    (a.min(b), a.max(b))
}

impl Network {
    /// Opens a connection, and gives its number.
    pub(crate) fn open(&mut self, a: PeerId, b: PeerId) -> u64 {
        self.opened += 1;
        self.open.insert(pair(a, b), self.opened);
        for (from, to) in [(a, b), (b, a)] {
            self.last.remove(&(from, to, Lane::Control));
            self.last.remove(&(from, to, Lane::Frames));
        }
        self.opened
    }

    pub(crate) fn close(&mut self, a: PeerId, b: PeerId) {
        self.open.remove(&pair(a, b));
    }

    pub(crate) fn connection(&self, a: PeerId, b: PeerId) -> Option<u64> {
        self.open.get(&pair(a, b)).copied()
    }

    /// Whether both are on one side.
    pub(crate) fn reaches(&self, a: PeerId, b: PeerId) -> bool {
        self.apart.contains(&a) == self.apart.contains(&b)
    }

    pub(crate) fn split(&mut self, apart: BTreeSet<PeerId>, heals: u64) {
        (self.apart, self.heals) = (apart, heals);
    }

    pub(crate) fn heal(&mut self) {
        self.apart.clear();
    }

    /// When a message sent now arrives, if its connection lives that long; none where it is lost.
    pub(crate) fn arrival(
        &mut self,
        rng: &mut ChaCha8Rng,
        now: u64,
        (from, to): (PeerId, PeerId),
        lane: Lane,
    ) -> Option<u64> {
        let mut at = now + between(rng, 500, 4000);
        if !self.reaches(from, to) {
            at = at.max(self.heals);
        }
        if lane == Lane::Control {
            if self.lost_of_1000 > 0 && between(rng, 0, 999) < self.lost_of_1000 {
                return None;
            }
            let mut wait = 200 * MS;
            let mut times = 0;
            while self.resent_of_1000 > 0 && between(rng, 0, 999) < self.resent_of_1000 {
                at += wait;
                wait *= 2;
                times += 1;
            }
            self.lost_thrice += u64::from(times >= 3);
        }
        let last = self.last.entry((from, to, lane)).or_insert(0);
        *last = at.max(*last + 1);
        Some(*last)
    }
}

pub(crate) fn between(rng: &mut ChaCha8Rng, low: u64, high: u64) -> u64 {
    low + rng.next_u64() % (high - low + 1)
}

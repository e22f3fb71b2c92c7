//! The links of a simulated world: delays, what is late, what is lost, and how many bytes all of it is.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use skein_gossip::agreement::Output;
use skein_gossip::ids::{JobId, PeerId};
use skein_gossip::message::Message;
use skein_gossip::wire::codec;
use skein_gossip::wire::frame::HEADER_BYTES;

pub(crate) const MS: u64 = 1000;

/// Messages and their bytes on the wire, frame headers included.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Count {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

/// What was sent.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Traffic {
    pub(crate) beats: Count,
    pub(crate) views: Count,
    pub(crate) changes: Count,
}

#[derive(Debug, Default)]
pub(crate) struct Network {
    /// Of a thousand messages, how many arrive 200 to 1,000 ms late, as after a loss that the stream mends.
    pub(crate) late_of_1000: u64,
    /// Of a thousand messages, how many never arrive.
    pub(crate) lost_of_1000: u64,
    /// Messages of a link arrive in their order, as on a stream; else each has a delay of its own.
    pub(crate) in_order: bool,
    /// The peers on the one side of a partition.
    pub(crate) apart: BTreeSet<PeerId>,
    /// The peers on the one side of a cut, which connections outlive.
    pub(crate) cut: BTreeSet<PeerId>,
    pub(crate) traffic: Traffic,
    /// Links that hold messages back until then: a stream keeps its order.
    pub(crate) stalled: HashMap<(PeerId, PeerId), u64>,
    /// The message weighed last, by its address.
    weighed: (usize, u64),
}

impl Network {
    pub(crate) fn linked(&self, a: PeerId, b: PeerId) -> bool {
        self.apart.is_empty() || self.apart.contains(&a) == self.apart.contains(&b)
    }

    pub(crate) fn is_cut(&self, a: PeerId, b: PeerId) -> bool {
        self.cut.contains(&a) != self.cut.contains(&b)
    }

    /// When a message sent now arrives; `None` if it is lost.
    pub(crate) fn arrival(
        &mut self,
        rng: &mut ChaCha8Rng,
        now: u64,
        from: PeerId,
        to: PeerId,
    ) -> Option<u64> {
        let link = (from, to);
        let delay = match self.in_order {
            true => 1 + link_number(from, to) % 30,
            false => between(rng, 1, 30),
        };
        let mut at = now + delay * MS;
        if self.lost_of_1000 > 0 && between(rng, 0, 999) < self.lost_of_1000 {
            return None;
        }
        if let Some(until) = self.stalled.get(&link).copied() {
            at = at.max(until);
            if until < now {
                self.stalled.remove(&link);
            }
        }
        if self.late_of_1000 > 0 && between(rng, 0, 999) < self.late_of_1000 {
            at += between(rng, 200, 1000) * MS;
            self.stalled.insert(link, at);
        }
        Some(at)
    }

    /// Counts a message that is sent.
    pub(crate) fn weigh(&mut self, output: &Output) {
        let job = JobId([0; 32]);
        let (address, message) = match output {
            Output::SendBeat(_, beat) => {
                (Arc::as_ptr(beat) as usize, Message::Beat(job, beat.clone()))
            }
            Output::SendView(_, view) => {
                (Arc::as_ptr(view) as usize, Message::View(job, view.clone()))
            }
            Output::SendChange(_, change) => (
                Arc::as_ptr(change) as usize,
                Message::Change(job, change.clone()),
            ),
            _ => return,
        };
        if self.weighed.0 != address {
            let bytes = codec::encode(&message).len() + HEADER_BYTES;
            self.weighed = (address, bytes as u64);
        }
        let count = match message {
            Message::View(..) => &mut self.traffic.views,
            Message::Change(..) => &mut self.traffic.changes,
            _ => &mut self.traffic.beats,
        };
        count.messages += 1;
        count.bytes += self.weighed.1;
    }

    /// To be called where the outputs of another peer begin: an address is one message only among those that live.
    pub(crate) fn weigh_anew(&mut self) {
        self.weighed = (0, 0);
    }
}

pub(crate) fn between(rng: &mut ChaCha8Rng, low: u64, high: u64) -> u64 {
    low + rng.next_u64() % (high - low + 1)
}

/// A number that is the same for each message from the one to the other.
fn link_number(from: PeerId, to: PeerId) -> u64 {
    let number = |peer: PeerId| u64::from(peer.0[0]) << 8 | u64::from(peer.0[1]);
    (number(from) * 65_521 + number(to) * 31_337) >> 4
}

//! One link's packets that are under way: kept until they are acknowledged, so that none is lost that the lane refuses, or that was in
//! flight when a connection broke.
//!
//! Bounds: [`CREDIT`] packets.

use std::time::Duration;

use super::CREDIT;
use crate::time::Tick;

/// A packet without an answer for this long is taken as applied, so that one lost answer does not silence a link for good.
const CREDIT_LOST_AFTER: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
pub(super) struct Way {
    /// Ascending by number.
    packets: Vec<Kept>,
    /// A buffer to keep the next packet in.
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Kept {
    seq: u64,
    bytes: Vec<u8>,
    /// None: it waits to be sent (again).
    sent: Option<Tick>,
}

impl Way {
    /// Whether one more packet may be made.
    pub(super) fn has_room(&self) -> bool {
        self.packets.len() < CREDIT
    }

    /// A packet is handed to the lane.
    pub(super) fn sent(&mut self, now: Tick, seq: u64, packet: &[u8]) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(packet);
        let sent = Some(now);
        self.packets.push(Kept { seq, bytes, sent });
    }

    /// It was applied.
    pub(super) fn applied(&mut self, seq: u64) {
        self.drop_where(|kept| kept.seq == seq);
    }

    /// The lane would not take it. Whether it was under way.
    pub(super) fn returned(&mut self, seq: u64) -> bool {
        let kept = self.packets.iter_mut().find(|kept| kept.seq == seq);
        kept.and_then(|kept| kept.sent.take()).is_some()
    }

    /// The connection is another one: all goes again.
    pub(super) fn reconnected(&mut self) {
        self.packets.iter_mut().for_each(|kept| kept.sent = None);
    }

    /// Gives up on answers that are long overdue; `forgotten` is told which.
    pub(super) fn expire(&mut self, now: Tick, mut forgotten: impl FnMut(u64)) {
        self.drop_where(|kept| {
            let is_lost = |sent| now.since(sent) >= CREDIT_LOST_AFTER;
            let lost = kept.sent.is_some_and(is_lost);
            if lost {
                forgotten(kept.seq);
            }
            lost
        });
    }

    /// Sends what waits, in the order of its making.
    pub(super) fn offer(&mut self, now: Tick, mut send: impl FnMut(u64, &[u8])) {
        for kept in self.packets.iter_mut().filter(|kept| kept.sent.is_none()) {
            kept.sent = Some(now);
            send(kept.seq, &kept.bytes);
        }
    }

    fn drop_where(&mut self, mut is_done: impl FnMut(&Kept) -> bool) {
        let mut at = 0;
        while let Some(kept) = self.packets.get(at) {
            if is_done(kept) {
                self.spare.push(self.packets.remove(at).bytes);
            } else {
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(way: &mut Way, now: u64) -> Vec<u64> {
        let mut seqs = Vec::new();
        way.offer(Tick(now), |seq, bytes| {
            assert_eq!(bytes, [seq as u8]);
            seqs.push(seq);
        });
        seqs
    }

    #[test]
    fn what_the_lane_refuses_waits_however_long_and_goes_in_its_order() {
        let mut way = Way::default();
        way.sent(Tick(0), 3, &[3]);
        way.sent(Tick(0), 4, &[4]);
        assert!(way.returned(4) && way.returned(3));
        assert!(!way.returned(4) && !way.returned(9));
        way.expire(Tick(60_000_000), |_| panic!("it was never sent"));
        assert!(!way.has_room());
        assert_eq!(offered(&mut way, 60_000_000), [3, 4]);
        assert!(offered(&mut way, 60_000_000).is_empty());
    }

    #[test]
    fn a_new_connection_carries_all_that_was_not_acknowledged() {
        let mut way = Way::default();
        way.sent(Tick(0), 0, &[0]);
        way.applied(0);
        way.sent(Tick(1), 1, &[1]);
        way.reconnected();
        assert_eq!(offered(&mut way, 2), [1]);
        let mut lost = Vec::new();
        way.expire(Tick(15_000_001), |seq| lost.push(seq));
        assert!(lost.is_empty(), "it was sent a moment later");
        way.expire(Tick(15_000_002), |seq| lost.push(seq));
        assert!(lost == [1] && way.has_room());
    }
}

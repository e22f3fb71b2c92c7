//! When bulk transfers are over: a device sends, and receives, one at a time, in the order of asking, as fast as the link between the two.

use std::collections::BTreeMap;

use skein_model::plan::Links;
use skein_netem::link::NodeIndex;

/// Transfers that begin at one moment, which is 0.
#[derive(Debug)]
pub(super) struct Carrying<'l> {
    links: &'l Links,
    sends: Vec<f64>,
    receives: Vec<f64>,
    /// Seconds until the last one is there.
    pub(super) seconds: f64,
    /// Bytes by sender and receiver.
    pub(super) bytes: BTreeMap<(NodeIndex, NodeIndex), u64>,
}

impl<'l> Carrying<'l> {
    pub(super) fn new(links: &'l Links) -> Self {
        Self {
            links,
            sends: vec![0.0; links.rate.len()],
            receives: vec![0.0; links.rate.len()],
            seconds: 0.0,
            bytes: BTreeMap::new(),
        }
    }

    /// When the link would be free after these bytes.
    fn free_after(&self, from: NodeIndex, to: NodeIndex, bytes: u64) -> f64 {
        let begin = self.sends[from].max(self.receives[to]);
        begin + bytes as f64 / self.links.rate[from][to]
    }

    /// One more transfer.
    pub(super) fn carry(&mut self, from: NodeIndex, to: NodeIndex, bytes: u64) {
        if from == to {
            return;
        }
        let free = self.free_after(from, to, bytes);
        (self.sends[from], self.receives[to]) = (free, free);
        self.seconds = self.seconds.max(free + self.links.latency[from][to]);
        *self.bytes.entry((from, to)).or_default() += bytes;
    }

    /// The same from whoever of `holders` has it there first. Whether there is one.
    pub(super) fn fetch(
        &mut self,
        holders: impl IntoIterator<Item = NodeIndex>,
        to: NodeIndex,
        bytes: u64,
    ) -> bool {
        let at = |from: &NodeIndex| self.free_after(*from, to, bytes);
        let holders = holders.into_iter();
        let first = holders.min_by(|a, b| at(a).total_cmp(&at(b)));
        if let Some(from) = first {
            self.carry(from, to, bytes);
        }
        first.is_some()
    }

    /// All that was carried.
    pub(super) fn all_bytes(&self) -> u64 {
        self.bytes.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sends_or_receives_two_needs_the_time_of_both() {
        let links = Links::uniform(4, 10.0, 0.5);
        let mut carrying = Carrying::new(&links);
        carrying.carry(0, 1, 20);
        carrying.carry(2, 3, 20);
        assert_eq!(carrying.seconds, 2.5);
        carrying.carry(0, 3, 10);
        assert_eq!(carrying.seconds, 3.5);
        // Both 0 and 2 have it; 2 is free a second earlier.
        assert!(carrying.fetch([0, 2], 1, 10));
        assert_eq!((carrying.seconds, carrying.all_bytes()), (3.5, 60));
        assert_eq!(carrying.bytes.get(&(2, 1)), Some(&10));
        assert!(!carrying.fetch([], 1, 10));
        carrying.carry(1, 1, 1000);
        assert_eq!(carrying.all_bytes(), 60);
    }
}

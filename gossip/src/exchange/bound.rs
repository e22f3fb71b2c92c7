//! How far a peer may run ahead (stale synchronous parallel, Ho et al. 2013; with backup workers, Hop, Luo et al. 2019): the limit that
//! follows from the steps of the members.

use std::collections::BTreeMap;

use super::Waiting;
use crate::ids::PeerId;

/// The steps of the others, and the limit they set.
#[derive(Debug, Default)]
pub(super) struct Bound {
    steps: BTreeMap<PeerId, u64>,
    limit: Option<u64>,
}

impl Bound {
    /// The members other than this peer, that has made `own_step` steps; a new one starts where this peer is.
    pub(super) fn members(&mut self, others: impl Iterator<Item = PeerId>, own_step: u64) {
        let before = std::mem::take(&mut self.steps);
        self.steps = others
            .map(|peer| (peer, before.get(&peer).copied().unwrap_or(own_step)))
            .collect();
        self.limit = None;
    }

    /// This peer goes on from `step`, and nobody can be waited for to get there: the others may be waiting for this one.
    pub(super) fn start_at(&mut self, step: u64) {
        self.steps
            .values_mut()
            .for_each(|known| *known = step.max(*known));
    }

    /// A member is known to have made `step` steps.
    pub(super) fn heard(&mut self, peer: PeerId, step: u64) {
        if let Some(known) = self.steps.get_mut(&peer) {
            *known = step.max(*known);
        }
    }

    /// The first step that has to wait, if that is news.
    pub(super) fn news(&mut self, waiting: Waiting) -> Option<u64> {
        let Waiting::Bounded { staleness, backup } = waiting else {
            return None;
        };
        let mut steps: Vec<u64> = self.steps.values().copied().collect();
        steps.sort_unstable();
        let slowest = steps.get(backup).copied();
        let limit = slowest.map_or(u64::MAX, |step| {
            step.saturating_add(staleness).saturating_add(1)
        });
        (self.limit.replace(limit) != Some(limit)).then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    #[test]
    fn nobody_runs_further_ahead_than_the_bound_and_backups_are_not_waited_for() {
        let waiting = |staleness, backup| Waiting::Bounded { staleness, backup };
        let mut bound = Bound::default();
        bound.members([peer(1), peer(2), peer(3)].into_iter(), 0);
        assert_eq!(bound.news(waiting(5, 0)), Some(6));
        assert_eq!(bound.news(waiting(5, 0)), None, "it is no news twice");
        bound.heard(peer(1), 10);
        bound.heard(peer(2), 4);
        assert_eq!(bound.news(waiting(5, 0)), None, "the third has made none");
        assert_eq!(bound.news(waiting(5, 1)), Some(10));
        bound.members([peer(1), peer(2)].into_iter(), 12);
        assert_eq!(bound.news(waiting(5, 0)), Some(10), "the slowest is gone");
        bound.members(std::iter::empty(), 12);
        assert_eq!(bound.news(waiting(5, 0)), Some(u64::MAX), "nobody is left");
        assert_eq!(bound.news(Waiting::Never), None);
        bound.members([peer(1)].into_iter(), 0);
        bound.start_at(1000);
        assert_eq!(bound.news(waiting(5, 0)), Some(1006), "a state was loaded");
    }
}

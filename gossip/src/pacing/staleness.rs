//! Who must wait, in the baselines that bound how far members are apart: SSP and Hop. Pure functions over members' steps.
//!
//! * SSP(s) (Ho et al., NIPS 2013): a peer may be at most s steps ahead of the slowest live member.
//! * Hop (Luo et al., ASPLOS 2019): a synchronous step goes on although up to b members' packets are missing (backup workers),
//!   as long as none of those is more than s steps behind (bounded staleness).

use crate::ids::PeerId;

/// The member that a peer which has made `own` steps waits for before its next one: the slowest (of equals the first given), if
/// that step would put the peer more than `bound` ahead of it. `live`: the other live members and the steps they have made. A
/// bound of 0 acts as 1, which is already one step at a time for all.
pub fn waits_for(own: u64, live: &[(PeerId, u64)], bound: u64) -> Option<PeerId> {
    let (slowest, steps) = live.iter().min_by_key(|(_, steps)| *steps)?;
    (own.saturating_sub(*steps) >= bound.max(1)).then_some(*slowest)
}

/// All live members that must wait under that rule, in the order given.
pub fn waiting(live: &[(PeerId, u64)], bound: u64) -> Vec<PeerId> {
    let waits = |(peer, own): &(PeerId, u64)| waits_for(*own, live, bound).map(|_| *peer);
    live.iter().filter_map(waits).collect()
}

/// Hop's bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Members whose packet of a step may be missing (b). With all members or more, staleness alone is bounded.
    pub backup: usize,
    /// Steps that a missing member's newest packet may be behind (s).
    pub bound: u64,
}

impl Default for Hop {
    /// One backup worker and five steps, as in DLion's comparison.
    fn default() -> Self {
        Self {
            backup: 1,
            bound: 5,
        }
    }
}

/// Whether step `step` may go on. `newest`: of each other live member the newest step whose packet has arrived, `None` if none has.
pub fn may_go_on(hop: Hop, step: u64, newest: &[Option<u64>]) -> bool {
    let missing = newest
        .iter()
        .filter(|arrived| arrived.is_none_or(|arrived| arrived < step));
    let mut n_missing = 0;
    for arrived in missing {
        n_missing += 1;
        // A member that has sent nothing yet is as far behind as the first step is.
        let behind = arrived.map_or(step.saturating_add(1), |arrived| step - arrived);
        if behind > hop.bound {
            return false;
        }
    }
    n_missing <= hop.backup
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer(id: u8) -> PeerId {
        PeerId([id; 32])
    }

    #[test]
    fn a_peer_waits_once_the_next_step_would_put_it_too_far_ahead() {
        let live = [(peer(1), 12), (peer(2), 10), (peer(3), 14)];
        assert_eq!(waits_for(14, &live, 5), None);
        assert_eq!(waits_for(15, &live, 5), Some(peer(2)));
        assert_eq!(waiting(&live, 4), [peer(3)]);
        assert_eq!(waiting(&live, 0), [peer(1), peer(3)], "one step at a time");
        assert_eq!(waits_for(99, &[], 1), None, "alone");
    }

    #[test]
    fn backup_workers_let_a_step_go_on_unless_one_is_too_stale() {
        let hop = Hop::default();
        assert!(may_go_on(hop, 9, &[Some(9), Some(10), Some(4)]));
        assert!(
            !may_go_on(hop, 9, &[Some(9), Some(8), Some(8)]),
            "two are missing"
        );
        assert!(
            !may_go_on(hop, 10, &[Some(10), Some(10), Some(4)]),
            "six steps behind"
        );
        assert!(
            may_go_on(hop, 2, &[Some(2), None]),
            "nothing yet, but it is early"
        );
        assert!(!may_go_on(hop, 5, &[Some(5), None]));
        let stale_only = Hop {
            backup: usize::MAX,
            bound: 3,
        };
        assert!(may_go_on(stale_only, 9, &[Some(6), Some(7)]));
        assert!(
            may_go_on(
                Hop {
                    backup: 0,
                    bound: 0
                },
                3,
                &[Some(3), Some(3)]
            ),
            "all have arrived"
        );
        assert!(!may_go_on(
            Hop {
                backup: 0,
                bound: 9
            },
            3,
            &[Some(3), Some(2)]
        ));
    }

    proptest! {
        #[test]
        fn the_slowest_never_waits(steps in proptest::collection::vec(any::<u64>(), 1..9), bound: u64) {
            let live: Vec<_> = (0..).zip(&steps).map(|(id, steps)| (peer(id), *steps)).collect();
            let slowest = live.iter().min_by_key(|(_, steps)| *steps).unwrap().0;
            prop_assert!(!waiting(&live, bound).contains(&slowest));
        }
    }
}

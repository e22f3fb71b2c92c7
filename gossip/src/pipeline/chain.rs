//! The replica chain: which peers keep copies of a stage beside its host (FTPipeHD, section on weight replication; there
//! stage i's weights go to stage i + 1 and the last stage's to the central node).
//!
//! Stage i is kept by the next peers after it: first the hosts of the stages behind it, round to the front, so that the
//! peer that takes over most often already has what it needs; members without a stage come before the host is met again,
//! at the head of the line: they have nothing else to do.

use super::plan::{Blocks, Plan};
use crate::ids::PeerId;

/// Who keeps copies of stage `number`, in order, at most `copies` of them. `members` beyond the hosts are standbys.
pub fn keepers(plan: &Plan, members: &[PeerId], number: usize, copies: usize) -> Vec<PeerId> {
    let hosts: Vec<PeerId> = plan.hosts().collect();
    let n = hosts.len();
    let behind = (1..n).map(|i| hosts[(number + i) % n]);
    let standbys = members
        .iter()
        .copied()
        .filter(|member| !hosts.contains(member));
    // The first keeper is the neighbour that would take over; the second a peer that computes nothing, if there is one.
    let mut behind = behind.collect::<Vec<_>>().into_iter();
    let first = behind.next();
    first
        .into_iter()
        .chain(standbys)
        .chain(behind)
        .take(copies)
        .collect()
}

/// The blocks that `peer` keeps copies of.
pub fn duties(plan: &Plan, members: &[PeerId], peer: PeerId, copies: usize) -> Vec<Blocks> {
    let kept = |(number, _): &(usize, _)| keepers(plan, members, *number, copies).contains(&peer);
    let stages = plan.stages.iter().enumerate().filter(kept);
    stages.map(|(_, stage)| stage.blocks.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::Stage;
    use super::*;

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    fn plan(n: u8) -> Plan {
        let stage = |i: u8| Stage {
            host: peer(i),
            blocks: u16::from(i)..u16::from(i) + 1,
        };
        Plan {
            stages: (0..n).map(stage).collect(),
        }
    }

    #[test]
    fn the_next_stages_keep_copies_and_the_last_goes_to_the_first() {
        let members = [peer(0), peer(1), peer(2)];
        assert_eq!(keepers(&plan(3), &members, 0, 1), [peer(1)]);
        assert_eq!(keepers(&plan(3), &members, 2, 2), [peer(0), peer(1)]);
        let kept = duties(&plan(3), &members, peer(0), 1);
        assert!(kept.len() == 1 && kept[0] == (2..3));
        assert!(keepers(&plan(1), &members[..1], 0, 2).is_empty());
    }

    #[test]
    fn a_standby_is_the_second_keeper_and_nobody_keeps_twice() {
        let members = [peer(0), peer(1), peer(2), peer(7)];
        assert_eq!(keepers(&plan(3), &members, 0, 2), [peer(1), peer(7)]);
        assert_eq!(
            keepers(&plan(3), &members, 0, 9),
            [peer(1), peer(7), peer(2)]
        );
        assert_eq!(duties(&plan(3), &members, peer(7), 2), [0..1, 1..2, 2..3]);
        assert_eq!(keepers(&plan(1), &[peer(0), peer(7)], 0, 2), [peer(7)]);
    }
}

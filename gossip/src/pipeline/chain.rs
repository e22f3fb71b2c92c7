//! The replica chain: which peers keep copies of a stage beside its host (FTPipeHD, section on weight replication; there
//! stage i's weights go to stage i + 1 and the last stage's to the central node).
//!
//! Stage i is kept by the next peers after it: first the hosts of the stages behind it, round to the front, so that the
//! peer that takes over most often already has what it needs; members without a stage come before the host is met again,
//! at the head of the line: they have nothing else to do. The hosts of a shared stage hold it themselves, so it takes as many keepers
//! fewer.

use super::plan::{Blocks, Plan, Stage};
use crate::ids::PeerId;

/// Who keeps copies of stage `number`, in order, at most `copies` of them with its own hosts beyond one. `members` beyond the hosts
/// are standbys.
pub fn keepers(plan: &Plan, members: &[PeerId], number: usize, copies: usize) -> Vec<PeerId> {
    let n = plan.stages.len();
    let own = plan
        .stages
        .get(number)
        .map_or(1, |stage| stage.members.len());
    // Neighbours of a shared stage take turns, so that no one of them keeps all.
    let hosts = |stage: usize| {
        let hosts: Vec<PeerId> = plan.stages[stage].hosts().collect();
        let first = number % hosts.len().max(1);
        hosts
            .into_iter()
            .cycle()
            .skip(first)
            .take(plan.stages[stage].members.len())
    };
    // Who hosts several stages keeps none of its own, and no other one twice.
    let mut known: Vec<PeerId> = plan
        .stages
        .get(number)
        .into_iter()
        .flat_map(Stage::hosts)
        .collect();
    let behind = (1..n).flat_map(|i| hosts((number + i) % n));
    let mut behind = behind.filter(move |host| {
        let is_new = !known.contains(host);
        known.push(*host);
        is_new
    });
    let all: Vec<PeerId> = plan.hosts().collect();
    let standbys = members
        .iter()
        .copied()
        .filter(|member| !all.contains(member));
    // The first keeper is the neighbour that would take over; the second a peer that computes nothing, if there is one.
    let first = behind.next();
    first
        .into_iter()
        .chain(standbys)
        .chain(behind)
        .take((copies + 1).saturating_sub(own))
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
    use super::super::plan::Member;
    use super::*;

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    fn plan(n: u8) -> Plan {
        let stage = |i: u8| Stage::alone(peer(i), u16::from(i)..u16::from(i) + 1);
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

    #[test]
    fn a_host_of_several_stages_keeps_copies_of_others_alone_and_once() {
        let mut plan = plan(3);
        plan.stages[1].members[0].peer = peer(0);
        let members = [peer(0), peer(2), peer(7)];
        assert_eq!(keepers(&plan, &members, 0, 2), [peer(2), peer(7)]);
        assert_eq!(keepers(&plan, &members, 1, 1), [peer(2)]);
        assert_eq!(keepers(&plan, &members, 2, 3), [peer(0), peer(7)]);
        let kept = duties(&plan, &members, peer(0), 2);
        assert!(kept.len() == 1 && kept[0] == (2..3));
    }

    #[test]
    fn the_hosts_of_a_shared_stage_are_copies_themselves() {
        let mut plan = plan(2);
        plan.stages[0].members.push(Member {
            peer: peer(8),
            samples: 1,
        });
        let members = [peer(0), peer(1), peer(7), peer(8)];
        assert_eq!(keepers(&plan, &members, 0, 2), [peer(1)]);
        assert!(keepers(&plan, &members, 0, 1).is_empty());
        // Stage 1 is kept by the second host of stage 0, and then by the standby.
        assert_eq!(keepers(&plan, &members, 1, 2), [peer(8), peer(7)]);
    }
}

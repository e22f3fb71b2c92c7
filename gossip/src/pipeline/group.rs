//! Where a host stands in a plan, once for each stage that it hosts: which samples of each micro-batch it computes, and whom it
//! exchanges which of them with. Of neighbouring stages of one peer that may be itself.
//!
//! ```text
//! stage i      host a: samples 0..5     host b: 5..8
//!                 │      └─ 3..5 ─┐        │ 5..8
//!              0..3               ▼        ▼
//! stage i + 1  host c: 0..3      host d: 3..8        directly from peer to peer, forward and back (Asteroid, "runtime")
//! ```

use std::ops::Range;

use super::frame::Kind;
use super::plan::{Plan, Stage};
use crate::ids::PeerId;

/// Samples that pass between two hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The other one.
    pub peer: PeerId,
    /// Numbers of the samples in their micro-batch; beyond its end there are none.
    pub rows: Range<u32>,
}

/// See the module's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the stage, from 0.
    pub stage: usize,
    /// Number of stages.
    pub n_stages: usize,
    /// Number in its group, from 0; the first one leads.
    pub member: usize,
    /// All hosts of the stage, in the order of their samples.
    pub group: Vec<PeerId>,
    /// Samples of each micro-batch that it computes; with one host up to the end, wherever that is.
    pub rows: Range<u32>,
    /// Hosts of the stage before with the samples that come from them; empty for the first stage.
    pub before: Vec<Piece>,
    /// Hosts of the stage behind with the samples that go to them; empty for the last stage.
    pub behind: Vec<Piece>,
    /// The last stage: who sends which labels. The first one: to whom which go. Empty where that is the same stage, and between.
    pub labels: Vec<Piece>,
}

/// Hosts of `stage` that compute samples of `rows` too.
fn pieces(stage: &Stage, rows: &Range<u32>) -> Vec<Piece> {
    let piece = |(member, peer): (usize, PeerId)| {
        let theirs = stage.rows(member);
        let rows = theirs.start.max(rows.start)..theirs.end.min(rows.end);
        (!rows.is_empty()).then_some(Piece { peer, rows })
    };
    stage.hosts().enumerate().filter_map(piece).collect()
}

impl Place {
    /// Where `peer` stands in stage `number`; none if it does not host that.
    pub fn of(plan: &Plan, number: usize, peer: PeerId) -> Option<Self> {
        let stage = plan.stages.get(number)?;
        let member = stage.hosts().position(|host| host == peer)?;
        let rows = stage.rows(member);
        let last = plan.stages.len() - 1;
        let with = |other: Option<usize>| {
            let other = other.and_then(|other| plan.stages.get(other));
            other.map_or_else(Vec::new, |other| pieces(other, &rows))
        };
        Some(Self {
            stage: number,
            n_stages: plan.stages.len(),
            member,
            group: stage.hosts().collect(),
            before: with(number.checked_sub(1)),
            behind: with(Some(number + 1)),
            labels: with(match number {
                _ if last == 0 => None,
                0 => Some(last),
                _ => (number == last).then_some(0),
            }),
            rows,
        })
    }

    /// Where `peer` stands in each of its stages, first to last.
    pub fn all(plan: &Plan, peer: PeerId) -> Vec<Self> {
        let stages = plan.stages_of(peer);
        let places = stages.filter_map(|(number, _)| Self::of(plan, number, peer));
        places.collect()
    }

    /// Whether it leads its stage.
    pub fn leads(&self) -> bool {
        self.member == 0
    }

    /// Whether other peers host the same stage.
    pub fn is_shared(&self) -> bool {
        self.group.len() > 1
    }

    /// The other hosts of the stage, with their numbers.
    pub fn fellows(&self) -> impl Iterator<Item = (usize, PeerId)> + '_ {
        let all = self.group.iter().copied().enumerate();
        all.filter(|(member, _)| *member != self.member)
    }

    /// Who sends frames of this kind, each with the samples in them. Held-out samples go from lead to lead.
    pub fn senders(&self, kind: Kind) -> &[Piece] {
        match kind {
            Kind::Forward => &self.before,
            Kind::Backward => &self.behind,
            Kind::Labels if self.stage > 0 => &self.labels,
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::plan::tests::{of_groups, peer, shares};
    use super::*;

    #[test]
    fn samples_go_to_whoever_computes_them_next() {
        let plan = of_groups(&[vec![5, 3], vec![3, 5], vec![8]]);
        let piece = |n, rows| Piece {
            peer: peer(n),
            rows,
        };
        let a = Place::of(&plan, 0, peer(1)).unwrap();
        assert_eq!((a.stage, a.member, a.rows.clone()), (0, 0, 0..5));
        assert_eq!(a.behind, [piece(3, 0..3), piece(4, 3..5)]);
        assert_eq!(a.labels, [piece(5, 0..5)]);
        assert!(a.before.is_empty() && a.leads() && a.senders(Kind::Labels).is_empty());
        assert_eq!(a.fellows().collect::<Vec<_>>(), [(1, peer(2))]);
        let d = Place::of(&plan, 1, peer(4)).unwrap();
        assert_eq!(d.before, [piece(1, 3..5), piece(2, 5..8)]);
        assert!(d.labels.is_empty() && !d.leads());
        let e = Place::of(&plan, 2, peer(5)).unwrap();
        assert_eq!(e.senders(Kind::Labels), [piece(1, 0..5), piece(2, 5..8)]);
        assert_eq!(Place::of(&plan, 0, peer(9)), None);
        assert_eq!(Place::of(&plan, 0, peer(5)), None);
        assert_eq!(Place::of(&plan, 3, peer(5)), None);
    }

    #[test]
    fn a_chain_of_lone_hosts_passes_whole_micro_batches() {
        let plan = of_groups(&[vec![1], vec![1], vec![1]]);
        let middle = Place::of(&plan, 1, peer(2)).unwrap();
        assert_eq!(middle.before[0].rows, 0..u32::MAX);
        assert_eq!(middle.behind.len(), 1);
        assert!(!middle.is_shared() && middle.labels.is_empty());
    }

    proptest! {
        #[test]
        fn what_one_sends_is_what_the_other_takes(groups in proptest::collection::vec(shares(24), 1..5)) {
            let plan = of_groups(&groups);
            let stages = plan.stages.iter().enumerate();
            let hosts = stages.flat_map(|(number, stage)| stage.hosts().map(move |host| (number, host)));
            for (number, host) in hosts {
                let place = Place::of(&plan, number, host).unwrap();
                for (kind, back) in [(Kind::Forward, Kind::Backward), (Kind::Backward, Kind::Forward)] {
                    let beside = if kind == Kind::Forward { number.wrapping_sub(1) } else { number + 1 };
                    let pieces = place.senders(kind);
                    // Without gaps, in order, and nothing twice.
                    let mut next = place.rows.start;
                    for piece in pieces {
                        prop_assert_eq!(piece.rows.start, next);
                        next = piece.rows.end;
                        let other = Place::of(&plan, beside, piece.peer).unwrap();
                        let mine = Piece { peer: host, rows: piece.rows.clone() };
                        prop_assert!(other.senders(back).contains(&mine));
                    }
                    prop_assert!(pieces.is_empty() || next.min(24) == place.rows.end.min(24));
                }
            }
        }
    }

    #[test]
    fn samples_stay_with_a_peer_that_hosts_the_next_stage_too() {
        let mut plan = of_groups(&[vec![3, 5], vec![8]]);
        plan.stages[1].members[0].peer = peer(2);
        let [first, second] = Place::all(&plan, peer(2)).try_into().unwrap();
        let own = Piece {
            peer: peer(2),
            rows: 3..8,
        };
        assert_eq!(first.behind, std::slice::from_ref(&own));
        assert_eq!(second.before[1], own);
        assert_eq!((first.stage, second.stage), (0, 1));
        assert_eq!(Place::all(&plan, peer(1)).len(), 1);
        assert!(Place::all(&plan, peer(9)).is_empty());
    }
}

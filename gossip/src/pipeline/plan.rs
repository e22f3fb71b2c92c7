//! A plan: which peers host which blocks of the model, in the order of the chain.
//!
//! What travels is checked here once; everything else may rely on a plan that covers the model without gaps.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ids::PeerId;

/// Most blocks a model may have for a pipeline; bounds every list of blocks on the wire.
pub const MAX_BLOCKS: u16 = 1024;
/// Most stages of one pipeline.
pub const MAX_STAGES: usize = 64;

/// A run of neighbouring blocks, first to one past the last.
pub type Blocks = Range<u16>;

/// One host of a stage, and what it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Who.
    pub peer: PeerId,
    /// Its samples of each micro-batch; of a stage with one host it is all, whatever this says.
    pub samples: u32,
}

/// How the hosts of a stage add their gradients up. Both ways add in the order of the members, so both give the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reduction {
    /// Everybody sends all others its whole gradient, and adds all up: one delay, n - 1 gradients sent.
    #[default]
    Direct,
    /// Each adds up its share of the pieces and sends the sums to the others: two delays, 2 (n - 1) / n gradients sent.
    Shards,
}

/// One stage and its hosts: one, or a group that works data-parallel inside (Asteroid: Ye et al., MobiCom 2024).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Who computes it, in the order of their samples; the first one leads. Never empty in a checked plan.
    pub members: Vec<Member>,
    /// Its blocks; in a checked plan none only of a source.
    pub blocks: Blocks,
    /// Micro-batches between its forward and backward at most, where memory asks for fewer than the schedule takes.
    pub in_flight: u32,
    /// How its gradients are added up.
    pub reduction: Reduction,
}

impl Stage {
    /// A stage of one host, with as many micro-batches in flight as the schedule takes.
    pub fn alone(host: PeerId, blocks: Blocks) -> Self {
        Self {
            members: vec![Member {
                peer: host,
                samples: 1,
            }],
            blocks,
            in_flight: u32::MAX,
            reduction: Reduction::Direct,
        }
    }

    /// Its hosts.
    pub fn hosts(&self) -> impl Iterator<Item = PeerId> + Clone + '_ {
        self.members.iter().map(|member| member.peer)
    }

    /// The host that decides for all: the first one.
    pub fn lead(&self) -> Option<PeerId> {
        self.hosts().next()
    }

    /// Whether it has no blocks: a first stage that passes on the raw samples that it draws, to stages elsewhere (HierTrain).
    pub fn is_source(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether it has several hosts.
    pub fn is_shared(&self) -> bool {
        self.members.len() > 1
    }

    /// The samples of a micro-batch that the member of this number computes; of a stage with one host that is all of them.
    pub fn rows(&self, member: usize) -> Range<u32> {
        if !self.is_shared() {
            return 0..u32::MAX;
        }
        let before = self.members.iter().take(member);
        let first = before.fold(0u32, |sum, member| sum.saturating_add(member.samples));
        let own = self.members.get(member).map_or(0, |member| member.samples);
        first..first.saturating_add(own)
    }
}

/// The stages, first to last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The stages; they follow each other without gaps.
    pub stages: Vec<Stage>,
}

/// Why a plan is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// None, or more than [`MAX_STAGES`].
    #[error("a pipeline has 1 to {MAX_STAGES} stages, this plan {got}")]
    Stages {
        /// Number of stages.
        got: usize,
    },
    /// A block is in no stage, or in two, or beyond the model.
    #[error(
        "the stages of this plan do not cover the model's {n_blocks} blocks one after the other"
    )]
    Blocks {
        /// Blocks of the model.
        n_blocks: u16,
    },
    /// A peer hosts stages that do not follow each other, or one twice, or a stage has no host.
    #[error(
        "a peer hosts stages of this plan that do not follow each other, or a stage has no host"
    )]
    Host,
    /// The hosts of a stage do not share out a micro-batch.
    #[error(
        "the hosts of a stage of this plan do not take the {rows} samples of a micro-batch between them"
    )]
    Samples {
        /// Samples of a micro-batch; 0 where they have not all as many, and no stage can be shared.
        rows: u32,
    },
}

impl Plan {
    /// Refuses a plan that is none for a model of `n_blocks` blocks and micro-batches of `rows` samples, 0 if they differ.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn check(&self, n_blocks: u16, rows: u32) -> Result<(), PlanError> {
        let got = self.stages.len();
        if !(1..=MAX_STAGES).contains(&got) {
            return Err(PlanError::Stages { got });
        }
        let mut next = 0;
        for (number, stage) in self.stages.iter().enumerate() {
            // A source comes first, and others do the work.
            let is_empty = stage.is_source() && (number > 0 || got == 1);
            if stage.blocks.start != next || stage.blocks.end < next || is_empty {
                return Err(PlanError::Blocks { n_blocks });
            }
            next = stage.blocks.end;
            let samples = stage.members.iter().map(|member| u64::from(member.samples));
            let takes_all = samples.clone().all(|samples| samples > 0)
                && samples.sum::<u64>() == u64::from(rows);
            if stage.is_shared() && !takes_all {
                return Err(PlanError::Samples { rows });
            }
            if stage.members.is_empty() || stage.in_flight == 0 {
                return Err(PlanError::Host);
            }
        }
        if next != n_blocks {
            return Err(PlanError::Blocks { n_blocks });
        }
        // The last stage of each host so far.
        let mut last_of: BTreeMap<PeerId, usize> = BTreeMap::new();
        for (number, stage) in self.stages.iter().enumerate() {
            for host in stage.hosts() {
                let before = last_of.insert(host, number);
                if before.is_some_and(|before| before + 1 != number) {
                    return Err(PlanError::Host);
                }
            }
        }
        Ok(())
    }

    /// All hosts, each once, first stage to last.
    pub fn hosts(&self) -> impl Iterator<Item = PeerId> + '_ {
        let stages = self.stages.iter().enumerate();
        stages.flat_map(|(number, stage)| {
            let before = number.checked_sub(1).and_then(|at| self.stages.get(at));
            let is_new = move |host: &PeerId| {
                before.is_none_or(|before| before.hosts().all(|other| other != *host))
            };
            stage.hosts().filter(is_new)
        })
    }

    /// The host that decides what is done when: the first one of the first stage.
    pub fn lead(&self) -> Option<PeerId> {
        self.stages.first().and_then(Stage::lead)
    }

    /// The stages that `peer` hosts, with their numbers; they follow each other.
    pub fn stages_of(&self, peer: PeerId) -> impl Iterator<Item = (usize, &Stage)> {
        let stages = self.stages.iter().enumerate();
        stages.filter(move |(_, stage)| stage.hosts().any(|host| host == peer))
    }

    /// The blocks of these; none where it hosts no stage.
    pub fn blocks_of(&self, peer: PeerId) -> Option<Blocks> {
        let mut stages = self.stages_of(peer).map(|(_, stage)| &stage.blocks);
        let first = stages.next()?;
        let end = stages.last().map_or(first.end, |last| last.end);
        Some(first.start..end)
    }

    /// Whether `peer` hosts a stage.
    pub fn is_host(&self, peer: PeerId) -> bool {
        self.stages_of(peer).next().is_some()
    }

    /// Who hosts `block`.
    pub fn hosts_of(&self, block: u16) -> impl Iterator<Item = PeerId> + '_ {
        let mut stages = self.stages.iter();
        let stage = stages.find(|stage| stage.blocks.contains(&block));
        stage.into_iter().flat_map(Stage::hosts)
    }

    /// Whether `peer` hosts `block`.
    pub fn hosts_block(&self, peer: PeerId, block: u16) -> bool {
        self.hosts_of(block).any(|host| host == peer)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    /// Stages of one block, with peers 1, 2, 3, … as their hosts, who compute so many samples.
    pub(crate) fn of_groups(groups: &[Vec<u32>]) -> Plan {
        let mut next = 0;
        let stage = |(at, samples): (usize, &Vec<u32>)| {
            let member = |samples: &u32| {
                next += 1;
                (next, *samples)
            };
            let members: Vec<(u8, u32)> = samples.iter().map(member).collect();
            shared(at as u16..at as u16 + 1, &members)
        };
        Plan {
            stages: groups.iter().enumerate().map(stage).collect(),
        }
    }

    /// One to four hosts that share out `rows` samples.
    pub(crate) fn shares(rows: u32) -> impl Strategy<Value = Vec<u32>> {
        proptest::collection::btree_set(1..rows, 0..4).prop_map(move |cuts| {
            let ends: Vec<u32> = cuts.into_iter().chain([rows]).collect();
            let starts = std::iter::once(0).chain(ends.iter().copied());
            starts.zip(&ends).map(|(start, end)| end - start).collect()
        })
    }

    fn plan(cuts: &[(u8, Blocks)]) -> Plan {
        let stage = |(host, blocks): &(u8, Blocks)| Stage::alone(peer(*host), blocks.clone());
        Plan {
            stages: cuts.iter().map(stage).collect(),
        }
    }

    fn shared(blocks: Blocks, samples: &[(u8, u32)]) -> Stage {
        let member = |(n, samples): &(u8, u32)| Member {
            peer: peer(*n),
            samples: *samples,
        };
        Stage {
            members: samples.iter().map(member).collect(),
            ..Stage::alone(peer(0), blocks)
        }
    }

    #[test]
    fn a_plan_covers_the_model_once() {
        assert_eq!(plan(&[(1, 0..3), (2, 3..4)]).check(4, 0), Ok(()));
        assert_eq!(plan(&[]).check(4, 8), Err(PlanError::Stages { got: 0 }));
        let gap = Err(PlanError::Blocks { n_blocks: 4 });
        assert_eq!(plan(&[(1, 0..2), (2, 3..4)]).check(4, 8), gap);
        assert_eq!(plan(&[(1, 0..3), (2, 2..4)]).check(4, 8), gap);
        assert_eq!(plan(&[(1, 0..3), (2, 3..3)]).check(4, 8), gap);
        assert_eq!(plan(&[(1, 0..5)]).check(4, 8), gap);
    }

    #[test]
    fn a_peer_may_host_stages_that_follow_each_other() {
        let both = plan(&[(1, 0..3), (1, 3..4)]);
        assert_eq!(both.check(4, 8), Ok(()));
        let around = plan(&[(1, 0..1), (2, 1..3), (1, 3..4)]);
        assert_eq!(around.check(4, 8), Err(PlanError::Host));
        let tiers = Plan {
            stages: vec![
                shared(0..1, &[(2, 2), (1, 4), (3, 2)]),
                shared(1..3, &[(2, 2), (3, 6)]),
                Stage::alone(peer(3), 3..4),
            ],
        };
        assert_eq!(tiers.check(4, 8), Ok(()));
        let hosts: Vec<PeerId> = tiers.hosts().collect();
        assert_eq!(hosts, [peer(2), peer(1), peer(3)], "each once");
        let blocks = [1, 2, 3, 4].map(|n| tiers.blocks_of(peer(n)));
        assert_eq!(blocks, [Some(0..1), Some(0..3), Some(0..4), None]);
        let numbers: Vec<usize> = tiers.stages_of(peer(2)).map(|(number, _)| number).collect();
        assert_eq!(numbers, [0, 1]);
        assert!(tiers.is_host(peer(1)) && !tiers.is_host(peer(4)));
    }

    #[test]
    fn a_source_has_no_blocks_and_comes_before_those_that_work() {
        assert_eq!(plan(&[(1, 0..0), (2, 0..4)]).check(4, 8), Ok(()));
        assert_eq!(plan(&[(1, 0..0), (1, 0..4)]).check(4, 8), Ok(()));
        let no_work = Err(PlanError::Blocks { n_blocks: 0 });
        assert_eq!(plan(&[(1, 0..0)]).check(0, 8), no_work);
        let gap = Err(PlanError::Blocks { n_blocks: 4 });
        assert_eq!(plan(&[(1, 0..4), (2, 4..4)]).check(4, 8), gap);
        assert_eq!(plan(&[(1, 0..0), (2, 0..0), (3, 0..4)]).check(4, 8), gap);
        let source = plan(&[(1, 0..0), (2, 0..4)]);
        assert_eq!(source.blocks_of(peer(1)), Some(0..0));
        assert_eq!(source.hosts_of(0).collect::<Vec<_>>(), [peer(2)]);
    }

    #[test]
    fn the_hosts_of_a_stage_take_a_micro_batch_between_them() {
        let check = |samples: &[(u8, u32)], rows| {
            let stages = vec![shared(0..4, samples)];
            Plan { stages }.check(4, rows)
        };
        assert_eq!(check(&[(1, 5), (2, 3)], 8), Ok(()));
        let refused = |rows| Err(PlanError::Samples { rows });
        assert_eq!(check(&[(1, 5), (2, 3)], 7), refused(7));
        assert_eq!(check(&[(1, 5), (2, 3)], 0), refused(0));
        assert_eq!(check(&[(1, 8), (2, 0)], 8), refused(8));
        assert_eq!(check(&[(1, u32::MAX), (2, 9)], 8), refused(8));
        assert_eq!(check(&[(1, 4), (1, 4)], 8), Err(PlanError::Host));
        assert_eq!(check(&[], 8), Err(PlanError::Host));
    }

    #[test]
    fn samples_lie_in_a_stage_in_the_order_of_its_hosts() {
        let stage = shared(0..1, &[(4, 5), (2, 3)]);
        assert_eq!((stage.rows(0), stage.rows(1)), (0..5, 5..8));
        assert_eq!(stage.lead(), Some(peer(4)));
        assert_eq!(Stage::alone(peer(1), 0..1).rows(0), 0..u32::MAX);
    }

    #[test]
    fn a_block_has_the_hosts_of_its_stage() {
        let plan = Plan {
            stages: vec![shared(0..3, &[(1, 2), (4, 2)]), Stage::alone(peer(2), 3..4)],
        };
        assert_eq!(plan.hosts_of(0).collect::<Vec<_>>(), [peer(1), peer(4)]);
        assert!(plan.hosts_block(peer(2), 3) && !plan.hosts_block(peer(2), 2));
        assert_eq!(plan.hosts_of(4).count(), 0);
        assert_eq!(plan.stages_of(peer(2)).next().map(|(n, _)| n), Some(1));
        assert_eq!(plan.stages_of(peer(3)).count(), 0);
        assert_eq!(plan.lead(), Some(peer(1)));
    }
}

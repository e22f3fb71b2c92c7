//! A plan: which peer hosts which blocks of the model, in the order of the chain.
//!
//! What travels is checked here once; everything else may rely on a plan that covers the model without gaps.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ids::PeerId;

/// Most blocks a model may have for a pipeline; bounds every list of blocks on the wire.
pub const MAX_BLOCKS: u16 = 1024;
/// Most stages of one pipeline.
pub const MAX_STAGES: usize = 64;

/// A run of neighbouring blocks, first to one past the last.
pub type Blocks = Range<u16>;

/// One stage and its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Who computes it.
    pub host: PeerId,
    /// Its blocks; never empty in a checked plan.
    pub blocks: Blocks,
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
    /// A peer hosts two stages.
    #[error("a peer hosts two stages in this plan")]
    Host,
}

impl Plan {
    /// Refuses a plan that is none for a model of `n_blocks` blocks.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn check(&self, n_blocks: u16) -> Result<(), PlanError> {
        let got = self.stages.len();
        if !(1..=MAX_STAGES).contains(&got) {
            return Err(PlanError::Stages { got });
        }
        let mut next = 0;
        for stage in &self.stages {
            if stage.blocks.start != next || stage.blocks.end <= next {
                return Err(PlanError::Blocks { n_blocks });
            }
            next = stage.blocks.end;
        }
        if next != n_blocks {
            return Err(PlanError::Blocks { n_blocks });
        }
        let mut hosts: Vec<PeerId> = self.hosts().collect();
        hosts.sort_unstable();
        hosts.dedup();
        if hosts.len() == got {
            Ok(())
        } else {
            Err(PlanError::Host)
        }
    }

    /// The hosts, first stage to last.
    pub fn hosts(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.stages.iter().map(|stage| stage.host)
    }

    /// The stage that `peer` hosts: its number and blocks.
    pub fn stage_of(&self, peer: PeerId) -> Option<(usize, &Stage)> {
        let mut stages = self.stages.iter().enumerate();
        stages.find(|(_, stage)| stage.host == peer)
    }

    /// Who hosts `block`.
    pub fn host_of(&self, block: u16) -> Option<PeerId> {
        let mut stages = self.stages.iter();
        let stage = stages.find(|stage| stage.blocks.contains(&block))?;
        Some(stage.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(cuts: &[(u8, Blocks)]) -> Plan {
        let stage = |(host, blocks): &(u8, Blocks)| Stage {
            host: PeerId([*host; 32]),
            blocks: blocks.clone(),
        };
        Plan {
            stages: cuts.iter().map(stage).collect(),
        }
    }

    #[test]
    fn a_plan_covers_the_model_once_and_names_each_host_once() {
        assert_eq!(plan(&[(1, 0..3), (2, 3..4)]).check(4), Ok(()));
        assert_eq!(plan(&[]).check(4), Err(PlanError::Stages { got: 0 }));
        let gap = Err(PlanError::Blocks { n_blocks: 4 });
        assert_eq!(plan(&[(1, 0..2), (2, 3..4)]).check(4), gap);
        assert_eq!(plan(&[(1, 0..3), (2, 2..4)]).check(4), gap);
        assert_eq!(plan(&[(1, 0..3), (2, 3..3)]).check(4), gap);
        assert_eq!(plan(&[(1, 0..5)]).check(4), gap);
        assert_eq!(plan(&[(1, 0..3), (1, 3..4)]).check(4), Err(PlanError::Host));
    }

    #[test]
    fn a_block_has_one_host() {
        let plan = plan(&[(1, 0..3), (2, 3..4)]);
        assert_eq!(plan.host_of(3), Some(PeerId([2; 32])));
        assert_eq!(plan.host_of(4), None);
        assert_eq!(plan.stage_of(PeerId([2; 32])).map(|(n, _)| n), Some(1));
        assert_eq!(plan.stage_of(PeerId([3; 32])), None);
    }
}

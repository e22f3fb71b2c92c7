//! What a family offers: who does what, what that promises, and the objective; or why it cannot be had.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::plan::costs::Costs;
use crate::plan::group::{Group, Share};
use crate::plan::schedule::run;
use crate::plan::tiers::Tiered;
use crate::plan::work::PlanError;

/// A way to train together. In this order where two are equally good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// One device trains, the others stand by.
    Single,
    /// One pipeline, each stage on a device of its own.
    Pipeline,
    /// One pipeline whose stages may be hosted by groups.
    Hybrid,
    /// Every device a replica of the whole model; updates are exchanged, compressed, and nobody waits.
    Exchange,
    /// One tier has the whole model, the others its first blocks.
    Tiers,
    /// Several pipelines, each on devices with fast links between them, that exchange like replicas.
    Islands,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Single,
        Self::Pipeline,
        Self::Hybrid,
        Self::Exchange,
        Self::Tiers,
        Self::Islands,
    ];

    /// Its name in files and on screens.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Pipeline => "pipeline",
            Self::Hybrid => "hybrid",
            Self::Exchange => "exchange",
            Self::Tiers => "tiers",
            Self::Islands => "islands",
        }
    }
}

/// A pipeline beside others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Island {
    /// Its stages.
    pub groups: Vec<Group>,
    /// Its micro-batches of a step.
    pub n_micro: usize,
}

/// Who does what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrangement {
    /// Stages of one pipeline.
    Stages(Vec<Group>),
    /// Replicas, with their samples of a step.
    Replicas(Vec<Share>),
    /// Over tiers.
    Tiers(Tiered),
    /// Pipelines side by side.
    Islands(Vec<Island>),
}

/// What one device does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Role {
    /// Its number.
    pub device: usize,
    /// Its blocks.
    pub blocks: Range<usize>,
    /// Samples of a step that it computes.
    pub samples: usize,
    /// Share of a step that it computes, 0 to 1.
    pub busy: f64,
    /// Bytes that it takes at most.
    pub memory_bytes: u64,
    /// Bytes that it sends in a step.
    pub sent_bytes: u64,
}

/// A family's best plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Who does what.
    pub arrangement: Arrangement,
    /// The same device by device; who is not there stands by.
    pub roles: Vec<Role>,
    /// Seconds for all samples of a step.
    pub step_seconds: f64,
    /// Samples per second; 0 where a step takes no time.
    pub samples_per_second: f64,
    /// How much of a synchronous sample's progress one sample makes.
    pub efficiency: f64,
    /// The objective: seconds for a synchronous sample's progress.
    pub seconds_per_sample: f64,
}

/// Why a family cannot be had.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// Its planner finds nothing.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Nobody can hold the whole model.
    #[error(
        "no device that may have the samples has room for all that it would hold: {needs} bytes"
    )]
    NoRoom {
        /// Bytes that it takes with the fewest samples.
        needs: u64,
    },
    /// Replicas need samples of their own.
    #[error("the data is on device {device} alone, and every replica draws its own samples")]
    DataElsewhere {
        /// Who has it.
        device: usize,
    },
    /// Nobody to exchange with.
    #[error(
        "fewer than two devices have room for a replica, and links to each other, and make it faster"
    )]
    NoPartner,
    /// Raw samples would leave the device that has them.
    #[error("the best plan would send private samples away from device {device}")]
    Private {
        /// Who has them.
        device: usize,
    },
    /// Nothing says where the devices stand.
    #[error("not every device has a tier: write tier = \"device\", \"edge\" or \"cloud\"")]
    NoTiers,
    /// All stand at one place.
    #[error("all devices are of one tier")]
    OneTier,
    /// The links do not fall apart into fast and slow ones.
    #[error("the devices do not fall into groups with slower links between them than inside")]
    NoIslands,
    /// There are more samples of a step than can be divided at once.
    #[error("a step of {samples} samples is not computed at once: at most 65536 are")]
    LargeStep {
        /// Samples of a step.
        samples: usize,
    },
}

/// Samples of a step: of one micro-batch where steps overlap.
pub(super) fn samples_of(costs: &Costs<'_>) -> usize {
    let n = if costs.work.overlaps() {
        1
    } else {
        costs.work.n_micro
    };
    n * costs.work.micro_batch
}

impl Offer {
    /// What a step of `samples` in `step_seconds` comes to. `None` where it never ends.
    pub(super) fn new(
        arrangement: Arrangement,
        roles: Vec<Role>,
        (step_seconds, samples): (f64, usize),
        efficiency: f64,
    ) -> Option<Self> {
        if !step_seconds.is_finite() {
            return None;
        }
        let per_second = if step_seconds > 0.0 {
            samples as f64 / step_seconds
        } else {
            0.0
        };
        Some(Self {
            arrangement,
            roles,
            step_seconds,
            samples_per_second: per_second,
            efficiency,
            seconds_per_sample: step_seconds / samples.max(1) as f64 / efficiency,
        })
    }

    /// The stages of one pipeline, priced by the schedule. `None` where a link is missing.
    pub(super) fn of_stages(costs: &Costs<'_>, groups: Vec<Group>) -> Option<Self> {
        let prediction = run(costs, &groups);
        let roles = roles(costs, &groups, &prediction);
        let step = (prediction.step_seconds, samples_of(costs));
        Self::new(Arrangement::Stages(groups), roles, step, 1.0)
    }
}

/// The devices of groups.
pub(super) fn roles(
    costs: &Costs<'_>,
    groups: &[Group],
    prediction: &crate::plan::Prediction,
) -> Vec<Role> {
    let n_micro = samples_of(costs) / costs.work.micro_batch.max(1);
    let hosts = groups
        .iter()
        .flat_map(|group| group.shares.iter().map(move |share| (group, share)));
    let role = |(at, (group, share)): (usize, (&Group, &Share))| Role {
        device: share.device,
        blocks: group.blocks.clone(),
        samples: share.samples * n_micro,
        busy: prediction.busy[at],
        memory_bytes: prediction.memory_bytes[at],
        sent_bytes: prediction.sent_bytes[at],
    };
    hosts.enumerate().map(role).collect()
}

//! `[strategy.pipeline]`: how a model is cut into stages, and what is kept against the loss of one.

use serde::{Deserialize, Serialize};
use skein_gossip::pipeline::agreement::{self, Cutting};
use skein_gossip::pipeline::group::Place;
use skein_gossip::pipeline::{flow, values};
use skein_model::plan::{Baseline, Tier, TierBaseline};

use super::Kind;

/// Least steps between two copies by default.
const LEAST_STEPS: u64 = 10;
/// Micro-batches of a step by default.
const MICRO_BATCHES: u32 = 8;

/// `[strategy.pipeline]`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pipeline {
    /// Micro-batches that a step's `train.batch` samples are cut into, 1 to 256 and at most `train.batch`. Default 8: the
    /// stages then idle for some (stages - 1) / 8 of a step at its ends. It decides the result to the bit, so it stays as it is.
    /// Not with `schedule = "async"` and `kind = "tiers"`, where all samples of a step go through the stages at once.
    pub micro_batches: Option<u32>,
    /// In which order micro-batches go forward and backward. Default `1f1b`.
    pub schedule: Schedule,
    /// With `schedule = "async"`: whether all stages use the weights of one and the same step for a step's samples. Default false:
    /// each uses its newest, and gradients are less old. Where true, all stages keep as many versions as the first one.
    pub vertical_sync: Option<bool>,
    /// With `schedule = "async"`: steps between two times at which each stage goes on from the mean of the versions of its weights
    /// that it keeps, 1 or more (FTPipeHD's aggregation; 5 for VGG there). Default never, as there for MobileNetV2. It
    /// steadies optimisers with much momentum.
    pub aggregate_every: Option<u64>,
    /// With `schedule = "async"`: whether stage i of n has up to 2 (n - i) - 1 steps' samples on their way, which hides the time of
    /// transfers, and not just n - i. Default false: gradients are then nearly twice as old.
    pub hide_transfers: Option<bool>,
    /// With `schedule = "async"`: whether each stage divides the learning rate by the number of versions of its weights that it
    /// keeps, which is one more than a gradient may be updates old (staleness-aware SGD, Zhang et al. 2016). Default true; FTPipeHD
    /// takes the rate as it is.
    pub scale_rate: Option<bool>,
    /// How the first cut is found. Default `measured`.
    pub cut: Cut,
    /// When it changes. Default `adaptive`: when a peer falls out, and when another cut is so much faster that moving pays.
    pub recut: Cutting,
    /// Copies of each stage on other peers, 0 to 16. Default 2: two peers may be lost at once.
    pub copies: u32,
    /// Steps between two copies, 1 or more; more where the links do not carry them that fast. Default: as often as costs a twentieth of
    /// the time, which is measured, and not more often than every ten steps.
    pub copy_every: Option<u64>,
    /// Steps between two lines of which peers with room on their disk get the whole model, so that training goes on even where a stage is
    /// lost with all its copies; more where the links do not carry them that fast. Default: as often as takes a sixteenth of the time. 0: never.
    pub global_every: Option<u64>,
    /// Number format of activations and gradients between stages. Default `f32`, which is exact; for slow links `f16`, `bf16`, and
    /// `int8` with a scale per 256 values, each off by at most 0.4 % of the largest of them.
    pub values: Precision,
    /// Whether activations are computed again on the way back instead of being kept: less memory, a third more work.
    pub recompute: bool,
}

/// The order of micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Schedule {
    /// One forward, one backward; the weights change when all micro-batches of a step are back. Exact.
    #[default]
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// All forward, then all backward (a baseline: more memory for activations).
    #[serde(rename = "gpipe")]
    Gpipe,
    /// Nobody waits: each step's samples go through the stages at once, and the next follow before they are back (PipeDream,
    /// FTPipeHD). Not exact: stage i of n is trained with gradients of weights that are at most n - i - 1 updates old, with
    /// `vertical_sync` n - 1.
    #[serde(rename = "async")]
    Asynchronous,
}

/// How cuts are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cut {
    /// By measured times of the blocks, memory and links (FTPipeHD).
    #[default]
    Measured,
    /// Stages of equally many blocks; with `kind = "tiers"` equal parts of the samples, too (a baseline).
    Equal,
    /// By the times on one device, as if all were like it (PipeDream; a baseline).
    Pipedream,
    /// With `kind = "hybrid"`: all peers are hosts of one stage, the whole model (dense data parallelism; a baseline).
    DataParallel,
    /// With `kind = "hybrid"`: GPipe's stages of one host each; to be run with `schedule = "gpipe"` (a baseline).
    Gpipe,
    /// With `kind = "hybrid"`: DAPPLE's stages and groups, as if all peers were alike (a baseline).
    Dapple,
    /// With `kind = "hybrid"`: HetPipe's pipelines side by side (a baseline).
    Hetpipe,
    /// With `kind = "tiers"`: all samples at the device tier (a baseline).
    AllDevice,
    /// With `kind = "tiers"`: all samples go to the edge, which trains alone (a baseline).
    AllEdge,
    /// With `kind = "tiers"`: all samples go to the cloud, which trains alone (a baseline).
    AllCloud,
    /// With `kind = "tiers"`: first blocks where the data is, the others in the cloud (JointDNN; a baseline).
    Jointdnn,
    /// With `kind = "tiers"`: first blocks at the edge, the others in the cloud, `values = "int8"` between them (JALAD; a baseline).
    Jalad,
}

impl Cut {
    /// As which other planner stages with several hosts are planned; none for our own.
    pub fn baseline(self) -> Option<Baseline> {
        match self {
            Self::Measured
            | Self::AllDevice
            | Self::AllEdge
            | Self::AllCloud
            | Self::Jointdnn
            | Self::Jalad => None,
            Self::Equal => Some(Baseline::Equal),
            Self::Pipedream => Some(Baseline::PipeDream),
            Self::DataParallel => Some(Baseline::DataParallel),
            Self::Gpipe => Some(Baseline::GPipe),
            Self::Dapple => Some(Baseline::Dapple),
            Self::Hetpipe => Some(Baseline::HetPipe),
        }
    }

    /// As which other planner work is divided over tiers; none for our own, and for those of other kinds.
    pub fn tier_baseline(self) -> Option<TierBaseline> {
        match self {
            Self::Equal => Some(TierBaseline::Equal),
            Self::AllDevice => Some(TierBaseline::AllAt(Tier::Device)),
            Self::AllEdge => Some(TierBaseline::AllAt(Tier::Edge)),
            Self::AllCloud => Some(TierBaseline::AllAt(Tier::Cloud)),
            Self::Jointdnn => Some(TierBaseline::JointDnn),
            Self::Jalad => Some(TierBaseline::Jalad),
            _ => None,
        }
    }

    /// Whether plans of this kind can be cut so.
    pub fn is_of(self, kind: Kind) -> bool {
        let is_simple = matches!(self, Self::Measured | Self::Equal | Self::Pipedream);
        match kind {
            Kind::Hybrid => self == Self::Measured || self.baseline().is_some(),
            Kind::Tiers => self == Self::Measured || self.tier_baseline().is_some(),
            Kind::Exchange | Kind::Pipeline | Kind::Auto => is_simple,
        }
    }
}

/// Number format between stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 4 bytes, exact.
    #[default]
    F32,
    /// 2 bytes, 11 bits of precision.
    F16,
    /// 2 bytes, 8 bits of precision.
    Bf16,
    /// A byte, and a scale per 256 values.
    Int8,
}

impl Precision {
    /// Bytes on the wire of values that have `bytes` as f32.
    pub fn wire_bytes(self, bytes: u64) -> u64 {
        let n = usize::try_from(bytes / 4).ok();
        let shorter = n.and_then(|n| self.on_the_wire().n_bytes(n));
        shorter.map_or(bytes, |shorter| shorter as u64)
    }

    /// As frames carry it.
    pub fn on_the_wire(self) -> values::Precision {
        match self {
            Self::F32 => values::Precision::F32,
            Self::F16 => values::Precision::F16,
            Self::Bf16 => values::Precision::Bf16,
            Self::Int8 => values::Precision::Int8,
        }
    }
}

impl Default for Pipeline {
    fn default() -> Self {
        Self {
            micro_batches: None,
            schedule: Schedule::default(),
            vertical_sync: None,
            aggregate_every: None,
            hide_transfers: None,
            scale_rate: None,
            cut: Cut::default(),
            recut: Cutting::default(),
            copies: 2,
            copy_every: None,
            global_every: None,
            values: Precision::default(),
            recompute: false,
        }
    }
}

impl Pipeline {
    /// Micro-batches of a step.
    pub fn n_micro(&self) -> u32 {
        match self.schedule {
            Schedule::Asynchronous => 1,
            _ => self.micro_batches.unwrap_or(MICRO_BATCHES).max(1),
        }
    }

    /// Whether steps overlap.
    pub fn is_asynchronous(&self) -> bool {
        self.schedule == Schedule::Asynchronous
    }

    /// Whether the asynchronous schedule uses weights of one step on all stages.
    pub fn syncs_versions(&self) -> bool {
        self.vertical_sync.unwrap_or(false)
    }

    /// Whether more micro-batches are on their way than there are stages, while others are transferred.
    pub fn hides_transfers(&self) -> bool {
        match self.schedule {
            Schedule::OneForwardOneBackward => true,
            Schedule::Gpipe => false,
            Schedule::Asynchronous => self.hide_transfers.unwrap_or(false),
        }
    }

    /// Samples of micro-batch `micro` of a step of `batch` samples.
    pub fn samples(&self, batch: u32, micro: u32) -> u32 {
        let n = self.n_micro();
        batch / n + u32::from(micro < batch % n)
    }

    /// What the agreement takes from it; stages with several hosts share out micro-batches of `rows` samples, 0 where there are none.
    pub fn agreement(
        &self,
        (n_blocks, rows): (u16, u32),
        start_peers: u32,
        last_step: Option<u64>,
    ) -> agreement::Config {
        agreement::Config {
            start_peers: start_peers as usize,
            copies: self.copies as usize,
            global_every: self.global_every,
            last_step,
            cutting: self.recut,
            rows,
            is_exact: !self.is_asynchronous() && rows == 0,
            overlaps: self.is_asynchronous(),
            ..agreement::Config::new(n_blocks)
        }
    }

    /// What the flow through a host's place takes from it; a look takes `looks` micro-batches. `in_flight` is the plan's word on
    /// micro-batches between forward and backward, [`u32::MAX`] where it has none; only 1F1B goes deeper than its rule for it.
    pub fn shape(&self, place: &Place, in_flight: u32, looks: u32) -> flow::Shape {
        let (stage, n_stages) = (place.stage, place.n_stages);
        let depth = match self.schedule {
            Schedule::OneForwardOneBackward if in_flight == u32::MAX => {
                flow::depth(stage, n_stages, self.n_micro())
            }
            Schedule::OneForwardOneBackward => self.n_micro(),
            Schedule::Gpipe => self.n_micro(),
            Schedule::Asynchronous => {
                flow::asynchronous_depth(stage, n_stages, self.hides_transfers())
            }
        };
        flow::Shape {
            stage,
            n_stages,
            micro: self.n_micro(),
            depth: depth.min(in_flight.max(1)),
            asynchronous: self.is_asynchronous(),
            looks,
            line_every: self.copy_every.unwrap_or(LEAST_STEPS),
            member: place.member,
            n_members: place.group.len(),
            pieces: flow::Pieces::of(place),
        }
    }
}

#[cfg(test)]
mod tests {
    use skein_gossip::ids::PeerId;
    use skein_gossip::pipeline::plan::{Plan, Stage};

    use super::*;

    #[test]
    fn micro_batches_share_out_all_samples() {
        let pipeline = Pipeline {
            micro_batches: Some(3),
            ..Pipeline::default()
        };
        let samples: Vec<u32> = (0..3).map(|micro| pipeline.samples(8, micro)).collect();
        assert_eq!(samples, [3, 3, 2]);
    }

    #[test]
    fn the_samples_of_an_asynchronous_step_stay_together() {
        let pipeline = Pipeline {
            schedule: Schedule::Asynchronous,
            ..Pipeline::default()
        };
        assert_eq!((pipeline.n_micro(), pipeline.samples(128, 0)), (1, 128));
        let plan = Plan {
            stages: (0..3)
                .map(|i| Stage::alone(PeerId([i; 32]), i.into()..u16::from(i) + 1))
                .collect(),
        };
        let place = |i: u8| Place::of(&plan, i.into(), PeerId([i; 32])).unwrap();
        let depths =
            |pipeline: Pipeline| [0, 1, 2].map(|i| pipeline.shape(&place(i), u32::MAX, 0).depth);
        assert_eq!(depths(pipeline), [3, 2, 1]);
        let hides = Pipeline {
            hide_transfers: Some(true),
            ..pipeline
        };
        assert_eq!(depths(hides), [5, 3, 1]);
        assert_eq!(
            pipeline.shape(&place(0), 2, 0).depth,
            2,
            "memory asks for fewer"
        );
        let planned = |in_flight| Pipeline::default().shape(&place(1), in_flight, 0).depth;
        assert_eq!(
            [planned(u32::MAX), planned(2), planned(6), planned(99)],
            [3, 2, 6, 8]
        );
        let is_exact = |pipeline: Pipeline, rows| pipeline.agreement((4, rows), 1, None).is_exact;
        assert!(pipeline.shape(&place(0), 9, 0).asynchronous && !is_exact(pipeline, 0));
        assert!(is_exact(Pipeline::default(), 0));
        assert!(
            !is_exact(Pipeline::default(), 16),
            "sums of groups depend on the groups"
        );
    }
}

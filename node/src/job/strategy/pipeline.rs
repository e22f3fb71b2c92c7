//! `[strategy.pipeline]`: how a model is cut into stages, and what is kept against the loss of one.

use serde::{Deserialize, Serialize};
use skein_gossip::pipeline::agreement::{self, Cutting};
use skein_gossip::pipeline::{flow, values};

/// Least steps between two copies by default.
const LEAST_STEPS: u64 = 10;

/// `[strategy.pipeline]`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pipeline {
    /// Micro-batches that a step's `train.batch` samples are cut into, 1 to 256 and at most `train.batch`. Default 8: the
    /// stages then idle for some (stages - 1) / 8 of a step at its ends. It decides the result to the bit, so it stays as it is.
    pub micro_batches: u32,
    /// In which order micro-batches go forward and backward. Default `1f1b`.
    pub schedule: Schedule,
    /// How the first cut is found. Default `measured`.
    pub cut: Cut,
    /// When it changes. Default `adaptive`: when a peer falls out, and when another cut is so much faster that moving pays.
    pub recut: Cutting,
    /// Copies of each stage on other peers, 0 to 16. Default 2: two peers may be lost at once.
    pub copies: u32,
    /// Steps between two copies, 1 or more; more where the links do not carry them that fast. Default: as often as takes an eighth of
    /// the time, and not more often than every ten steps; stages are slower while they copy, by a third in `netem/scenarios/`.
    pub copy_every: Option<u64>,
    /// Steps between two lines of which peers with room on their disk get the whole model, so that training goes on even where a stage is
    /// lost with all its copies; more where the links do not carry them that fast. Default: as often as takes a sixteenth of the time. 0: never.
    pub global_every: Option<u64>,
    /// Number format of activations and gradients between stages. Default `f32`, which is exact.
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
}

/// How cuts are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cut {
    /// By measured times of the blocks, memory and links (FTPipeHD).
    #[default]
    Measured,
    /// Stages of equally many blocks (a baseline).
    Equal,
    /// By the times on one device, as if all were like it (PipeDream; a baseline).
    Pipedream,
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
}

impl Precision {
    /// Bytes of a value.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// As frames carry it.
    pub fn on_the_wire(self) -> values::Precision {
        match self {
            Self::F32 => values::Precision::F32,
            Self::F16 => values::Precision::F16,
            Self::Bf16 => values::Precision::Bf16,
        }
    }
}

impl Default for Pipeline {
    fn default() -> Self {
        Self {
            micro_batches: 8,
            schedule: Schedule::default(),
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
    /// Samples of micro-batch `micro` of a step of `batch` samples.
    pub fn samples(&self, batch: u32, micro: u32) -> u32 {
        let n = self.micro_batches.max(1);
        batch / n + u32::from(micro < batch % n)
    }

    /// What the agreement takes from it.
    pub fn agreement(
        &self,
        n_blocks: u16,
        start_peers: u32,
        last_step: Option<u64>,
    ) -> agreement::Config {
        agreement::Config {
            start_peers: start_peers as usize,
            copies: self.copies as usize,
            global_every: self.global_every,
            last_step,
            cutting: self.recut,
            ..agreement::Config::new(n_blocks)
        }
    }

    /// What the flow through stage `stage` of `n_stages` takes from it; a look takes `looks` micro-batches.
    pub fn shape(&self, stage: usize, n_stages: usize, looks: u32) -> flow::Shape {
        let depth = match self.schedule {
            Schedule::OneForwardOneBackward => flow::depth(stage, n_stages, self.micro_batches),
            Schedule::Gpipe => self.micro_batches,
        };
        flow::Shape {
            stage,
            n_stages,
            micro: self.micro_batches,
            depth,
            asynchronous: false,
            looks,
            line_every: self.copy_every.unwrap_or(LEAST_STEPS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_batches_share_out_all_samples() {
        let pipeline = Pipeline {
            micro_batches: 3,
            ..Pipeline::default()
        };
        let samples: Vec<u32> = (0..3).map(|micro| pipeline.samples(8, micro)).collect();
        assert_eq!(samples, [3, 3, 2]);
    }
}

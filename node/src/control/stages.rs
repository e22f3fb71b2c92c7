//! What a node tells of a pipeline: its stages, what the loss of a peer would cost, what a cut promises.

use serde::{Deserialize, Serialize};
use skein_gossip::ids::PeerId;
use skein_model::plan::Problem;

use super::hex::Hex;

/// How the reason of a job begins where the peers that are here cannot train its model.
pub const NO_CUT: &str = "there is no cut";

/// What a cut promises.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanStatus {
    /// Seconds of a step.
    pub step_s: f64,
    /// Samples per second.
    pub samples_per_s: f64,
    /// First stage to last.
    pub stages: Vec<PlannedStage>,
    /// Between neighbouring stages, there and back: what the plan reckons with.
    pub links: Vec<PlannedLink>,
    /// Peers that are ready and get no stage: they would slow the others down, and keep copies.
    pub standby: Vec<Hex<PeerId>>,
    /// Peers connected to the one that planned.
    pub n_connected: usize,
}

/// What the peers of a job have measured before it began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Everything a plan depends on; the names of devices are the ids of peers.
    pub problem: Problem,
    /// Peers connected to the one that tells.
    pub n_connected: usize,
}

/// One stage of a cut.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedStage {
    /// Its host.
    pub host: Hex<PeerId>,
    /// Its first block.
    pub first_block: u16,
    /// Number of its blocks.
    pub n_blocks: u16,
    /// Share of a step that it computes, 0 to 1; the rest are bubbles.
    pub busy_frac: f64,
    /// Bytes that it needs at most, the copies of neighbours included.
    pub memory_bytes: u64,
    /// Samples of each micro-batch that it computes, where it shares the stage.
    #[serde(default)]
    pub samples: Option<u32>,
    /// The other hosts, where it shares the stage.
    #[serde(default)]
    pub fellows: Vec<PlannedFellow>,
}

/// Another host of a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedFellow {
    /// Who.
    pub host: Hex<PeerId>,
    /// Its samples of each micro-batch.
    pub samples: u32,
    /// Share of a step that it computes.
    pub busy_frac: f64,
    /// Bytes that it needs at most.
    pub memory_bytes: u64,
}

/// A link between two stages of a cut, one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedLink {
    /// From this peer.
    pub from: Hex<PeerId>,
    /// To this one.
    pub to: Hex<PeerId>,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Seconds of a message beside its bytes.
    pub latency_s: f64,
    /// How that is known.
    pub known: LinkKnown,
}

/// How it is known what a link carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKnown {
    /// By transfers that it limited.
    Measured,
    /// Transfers reached that much without being limited by it.
    AtLeast,
    /// From the other direction.
    OtherWay,
    /// Nothing is known: 100 Mbit/s.
    Assumed,
}

/// One stage of a pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageStatus {
    /// Who hosts it.
    pub host: Hex<PeerId>,
    /// Its first block.
    pub first_block: u16,
    /// Number of its blocks.
    pub n_blocks: u16,
    /// Whether its host works in the newest view.
    pub in_place: bool,
    /// Whether its host is alive.
    pub alive: bool,
    /// Steps it has made.
    pub step: u64,
    /// What a step takes beside what its host's profile says.
    pub slowdown: Option<f64>,
    /// Who keeps copies of it beside its hosts, first the one that is asked first.
    pub keepers: Vec<Hex<PeerId>>,
    /// The other hosts, where it has several; the others' figures above are those of the slowest and of the last.
    #[serde(default)]
    pub fellows: Vec<Hex<PeerId>>,
}

/// What would be lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// The newest line with all its copies.
    pub step: u64,
    /// Steps that would be made again.
    pub redone: u64,
    /// Copies of the block of which there are fewest, at the newest line that is whole.
    pub fewest_copies: u32,
    /// The newest line that a peer holds whole, 0 if none: what is gone on from where a stage is lost with all its copies.
    #[serde(default)]
    pub whole: u64,
    /// Peers that hold it whole.
    #[serde(default)]
    pub whole_peers: u32,
    /// Bytes in memory of the copies that this peer holds.
    pub bytes: u64,
}

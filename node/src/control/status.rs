//! What a node tells about itself, its peers and its jobs: the typed bodies of responses. `--json` prints exactly these.
//!
//! Numbers that may be unknown or not finite are optional, because JSON has no NaN.

use std::fmt;

use serde::{Deserialize, Serialize};
use skein_gossip::ids::{Digest, JobId, PeerId};

pub use super::hex::Hex;
use super::stages::{Measured, PlanStatus, Recovery, StageStatus};

/// The node itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// This peer.
    pub peer: Hex<PeerId>,
    /// Short name of the mesh, derived from its key without giving the key away.
    pub mesh: String,
    /// Version of the program.
    pub version: String,
    /// Addresses it listens on, as multiaddrs.
    pub listening: Vec<String>,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Its jobs, newest first.
    pub jobs: Vec<JobStatus>,
    /// The line that others type to join. Holds the mesh key.
    pub join_line: String,
}

/// How this node stands with one peer, or with an address whose owner is not known yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// The peer; none for an address that was never reached.
    pub id: Option<Hex<PeerId>>,
    /// Addresses known, ip:port.
    pub addresses: Vec<String>,
    /// Whether it can be talked to.
    pub state: PeerState,
    /// How it was found, such as `mdns` or `given`; several joined by `+`.
    pub via: String,
    /// Last round-trip time in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Why it is not connected, with what was tried.
    pub reason: Option<String>,
    /// Bytes received from it.
    pub bytes_in: u64,
    /// Bytes sent to it.
    pub bytes_out: u64,
    /// Version of the program it runs, once it said so.
    pub version: Option<String>,
    /// Its clock minus ours in milliseconds, where known.
    #[serde(default)]
    pub clock_offset_ms: Option<i64>,
}

impl PeerStatus {
    /// The peer's short id, else its first address.
    pub fn label(&self) -> String {
        let address = || {
            self.addresses
                .first()
                .cloned()
                .unwrap_or_else(|| "?".into())
        };
        self.id.map_or_else(address, |id| id.0.short())
    }
}

/// Whether a peer can be talked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerState {
    /// Messages can be exchanged.
    Connected,
    /// Being dialled, or between two tries.
    Dialling,
    /// Heard in the local network, but dialling it fails.
    OneWay,
    /// Connected, but of another wire version.
    Unusable,
    /// Connected, but silent for a while.
    Suspected,
    /// It left or fell out, and no address of it is known.
    Lost,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Not enough peers are ready.
    Waiting,
    /// This peer is fetching the state of the others.
    Syncing,
    /// Steps are made.
    Running,
    /// A stop condition held; the peers agree on the best model.
    Ending,
    /// Closed with an agreed model.
    Done,
    /// Stopped by a user.
    Stopped,
    /// Cannot go on; the reason says why.
    Failed,
}

impl Phase {
    /// Whether nothing will change any more.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Stopped | Self::Failed)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Waiting => "waiting",
            Self::Syncing => "syncing",
            Self::Running => "running",
            Self::Ending => "ending",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        })
    }
}

impl fmt::Display for PeerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Connected => "connected",
            Self::Dialling => "dialling",
            Self::OneWay => "one-way",
            Self::Unusable => "unusable",
            Self::Suspected => "suspected",
            Self::Lost => "lost",
        })
    }
}

/// A job as this node sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The job.
    pub id: Hex<JobId>,
    /// Its label.
    pub name: String,
    /// Where it stands.
    pub phase: Phase,
    /// Why it stands there, in words: what it waits for, which condition ended it, what failed.
    pub reason: Option<String>,
    /// Steps made by this peer's replica.
    pub step: u64,
    /// Passes over the data by all peers together.
    pub epoch: f64,
    /// Samples that this peer computed.
    pub samples_own: u64,
    /// Samples that all peers computed, as far as known here.
    pub samples_mesh: u64,
    /// Training loss of the last step, nats per sample.
    pub train_loss: Option<f64>,
    /// Validation loss at the last look.
    pub val_loss: Option<f64>,
    /// Validation accuracy at the last look, 0 to 1.
    pub val_accuracy: Option<f64>,
    /// Samples per second over the whole mesh.
    pub samples_per_s_mesh: Option<f64>,
    /// Members of the view.
    pub peers: Vec<Hex<PeerId>>,
    /// Number of the view.
    pub view: u64,
    /// Bytes received for this job.
    pub bytes_in: u64,
    /// Bytes sent for this job.
    pub bytes_out: u64,
    /// Seconds spent in training steps.
    pub seconds_computing: f64,
    /// Seconds spent waiting for others.
    pub seconds_waiting: f64,
    /// Seconds spent packing, sending, unpacking.
    pub seconds_communicating: f64,
    /// Seconds until the nearest stop condition that can be foreseen.
    pub eta_s: Option<f64>,
    /// Progress towards that condition, 0 to 1.
    #[serde(default)]
    pub progress_frac: Option<f64>,
    /// When it started, milliseconds since 1970.
    pub started_ms: u64,
    /// The agreed best model, once there is one.
    pub best: Option<Best>,
    /// Hash of this peer's weights: the agreed model's once the job is done.
    pub model_hash: Option<Hex<Digest>>,
    /// Who contributed what.
    pub contributions: Vec<Contribution>,
    /// Updates refused because they held NaN, infinities or nonsense.
    pub refused_updates: u64,
    /// The links over which this peer sends updates.
    #[serde(default)]
    pub links: Vec<LinkStatus>,
    /// Median distance of a replica to the others over the norm of the parameters; none before it is known.
    #[serde(default)]
    pub drift_frac: Option<f64>,
    /// What this peer learnt from the replicas of others.
    #[serde(default)]
    pub lessons: Vec<Lessons>,
    /// The stages of a pipeline, first to last.
    #[serde(default)]
    pub stages: Vec<StageStatus>,
    /// What a pipeline would lose with a peer.
    #[serde(default)]
    pub recovery: Option<Recovery>,
    /// What the cut of a pipeline promises: the one in work, else the one that would be.
    #[serde(default)]
    pub plan: Option<PlanStatus>,
    /// What the peers of a pipeline have measured, until it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Box<Measured>>,
}

/// One link of a job, as the peer that sends on it sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The peer at the other end.
    pub peer: Hex<PeerId>,
    /// What the link carries, bytes per second.
    pub bytes_per_s: Option<f64>,
    /// From sending an update to hearing that it was applied, milliseconds.
    pub round_trip_ms: Option<f64>,
    /// How long the last updates stood in a queue, milliseconds.
    pub queueing_ms: f64,
    /// Share of the gradient's values in the last update, in percent; with Max N the paper's N.
    pub n_percent: f64,
    /// Bits per value in it, indices left out.
    pub bits: u8,
    /// Bytes of it over the steps in it.
    pub bytes_per_step: f64,
    /// Steps of this peer that the other has not been told of.
    pub steps_untold: u32,
    /// Steps that this peer is ahead of what it heard of the other; below 0 behind.
    pub steps_ahead: i64,
    /// Updates that were due and that the link could not take.
    pub held_back: u64,
    /// Updates of the other that were refused.
    pub refused: u64,
}

/// What came of the replicas of one other peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lessons {
    /// The peer.
    pub peer: Hex<PeerId>,
    /// Replicas that this peer moved towards.
    pub merged: u64,
    /// Replicas that were no better than its own.
    pub rejected: u64,
    /// Replicas that could not be fetched.
    pub failed: u64,
}

/// The best model of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Whose replica it was.
    pub peer: Hex<PeerId>,
    /// Its accuracy on the whole validation set, 0 to 1.
    pub accuracy: Option<f64>,
    /// Its loss on the whole validation set.
    pub loss: Option<f64>,
    /// Hash of its weights.
    pub hash: Hex<Digest>,
}

/// What one peer contributed to a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contribution {
    /// The peer.
    pub peer: Hex<PeerId>,
    /// Steps it made.
    pub steps: u64,
    /// Samples it computed.
    pub samples: u64,
    /// Bytes it sent for the job.
    pub bytes_out: u64,
    /// Bytes of the gradients as plain f32 divided by the bytes sent.
    pub compression: Option<f64>,
    /// Seconds it waited for others.
    pub seconds_waiting: f64,
    /// Its samples per step.
    pub batch: u32,
    /// Times that it handed its updates on.
    #[serde(default)]
    pub commits: u64,
}

/// What a running node knows that `doctor` cannot see from outside.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NodeFacts {
    /// The peers, with what keeps them from being connected.
    pub peers: Vec<PeerStatus>,
    /// Why multicast discovery does not work in the node; none if it works or was switched off.
    pub mdns_error: Option<String>,
    /// Announcements of this mesh by others that are heard.
    pub announcements: u64,
    /// Announcements of other meshes that are heard.
    pub foreign_announcements: u64,
    /// Threads that training uses.
    pub training_threads: u32,
    /// Addresses the node listens on.
    pub listening: Vec<String>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A job in the middle of its run.
    pub(crate) fn job_status() -> JobStatus {
        let best = Best {
            peer: PeerId([2; 32]).into(),
            accuracy: Some(0.97),
            loss: None,
            hash: Digest([3; 32]).into(),
        };
        JobStatus {
            id: JobId([1; 32]).into(),
            name: "digits".into(),
            phase: Phase::Running,
            reason: None,
            step: 5,
            epoch: 1.5,
            samples_own: 160,
            samples_mesh: 320,
            train_loss: Some(0.25),
            val_loss: Some(0.1),
            val_accuracy: None,
            samples_per_s_mesh: Some(1000.0),
            peers: vec![PeerId([2; 32]).into()],
            view: 3,
            bytes_in: 1,
            bytes_out: 2,
            seconds_computing: 1.0,
            seconds_waiting: 0.5,
            seconds_communicating: 0.25,
            eta_s: None,
            progress_frac: Some(0.5),
            started_ms: 1_700_000_000_000,
            best: Some(best),
            model_hash: None,
            contributions: vec![Contribution {
                peer: PeerId([2; 32]).into(),
                steps: 5,
                samples: 160,
                bytes_out: 2,
                compression: Some(80.0),
                seconds_waiting: 0.5,
                batch: 32,
                commits: 2,
            }],
            refused_updates: 0,
            links: vec![LinkStatus {
                peer: PeerId([2; 32]).into(),
                bytes_per_s: Some(2.5e6),
                round_trip_ms: Some(12.0),
                queueing_ms: 1.0,
                n_percent: 1.0,
                bits: 16,
                bytes_per_step: 900.0,
                steps_untold: 3,
                steps_ahead: -2,
                held_back: 1,
                refused: 0,
            }],
            drift_frac: None,
            lessons: Vec::new(),
            stages: Vec::new(),
            recovery: None,
            plan: None,
            measured: None,
        }
    }
}

//! What a node tells about itself, its peers and its jobs: the typed bodies of responses. `--json` prints exactly these.
//!
//! Numbers that may be unknown or not finite are optional, because JSON has no NaN.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use skein_gossip::ids::{Digest, JobId, PeerId};

/// An id that is written as hex digits, as everywhere else a person meets it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hex<T>(pub T);

impl<T> From<T> for Hex<T> {
    fn from(id: T) -> Self {
        Self(id)
    }
}

impl<T: fmt::Display> fmt::Display for Hex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for Hex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: fmt::Display> Serialize for Hex<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Hex<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(de::Error::custom)
    }
}

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

/// How this node stands with one peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// The peer.
    pub id: Hex<PeerId>,
    /// Addresses known, as multiaddrs.
    pub addresses: Vec<String>,
    /// Whether it can be talked to.
    pub state: PeerState,
    /// How it was found: `mdns`, `remembered`, `given`, `learnt` or `incoming`.
    pub via: String,
    /// Last round-trip time in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Why it is not connected, with what was tried.
    pub reason: Option<String>,
    /// Bytes received from it.
    pub bytes_in: u64,
    /// Bytes sent to it.
    pub bytes_out: u64,
    /// Its version of the program, once it said so.
    pub version: Option<String>,
    /// Its clock minus ours in milliseconds, where known.
    #[serde(default)]
    pub clock_offset_ms: Option<i64>,
}

/// Whether a peer can be talked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerState {
    /// A connection is up.
    Connected,
    /// It reached us, but we cannot reach it.
    OneWay,
    /// Heard of, being dialled.
    Dialling,
    /// Heard of, but dialling failed; tried again later.
    Unreachable,
    /// Connected, but silent for a while.
    Suspected,
    /// It left or fell out.
    Gone,
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
            Self::OneWay => "one-way",
            Self::Dialling => "dialling",
            Self::Unreachable => "unreachable",
            Self::Suspected => "suspected",
            Self::Gone => "gone",
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
}

/// What a running node knows that `doctor` cannot see from outside.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NodeFacts {
    /// The peers, with what keeps them from being connected.
    pub peers: Vec<PeerStatus>,
    /// Whether mDNS runs, and why not.
    pub mdns: Option<String>,
    /// Threads that training uses.
    pub training_threads: u32,
    /// Address the node listens on.
    pub listening: Vec<String>,
}

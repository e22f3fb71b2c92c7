//! What peers say to each other on the control lane, and the header of an update packet.
//!
//! Everything about one job's agreement is in its beats: small statements of the sender's whole standing, repeated, so that a
//! lost or reordered message is mended by the next one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::batching::power::Fit;
use crate::ids::{Digest, JobId, PeerId};
use crate::knowledge::sketch::Sketch;
use crate::pacing::search::state::SearchState;
use crate::pipeline;
use crate::view::{Change, Contribution, Holding, Stamp, View};

/// Longest reason text carried in a message; longer ones are cut by the sender and refused by the receiver.
pub const MAX_REASON: usize = 300;

/// One message on the control lane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// A signed job file, encoded: told to every newly connected peer and published to the mesh.
    Job(Vec<u8>),
    /// A beat of one job.
    Beat(JobId, Arc<Beat>),
    /// A view of one job.
    View(JobId, Arc<View>),
    /// The sender leaves the job (or the mesh) on purpose.
    Leaving(JobId),
    /// An update packet of a link was applied, or dropped: returns its credit.
    Applied(JobId, Receipt),
    /// A user of the sender asks for the end of the job, and why.
    Stop(JobId, String),
    /// The next view of one job, for those that hold the one before.
    Change(JobId, Arc<Change>),
    /// Of a job that trains as a pipeline.
    Pipeline(JobId, pipeline::message::Message),
}

/// Where a peer stands in a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Standing {
    /// Loads data and builds the model.
    Preparing,
    /// Cannot take part, and why.
    Unable(String),
    /// Wants to be admitted.
    Ready(Holding),
    /// A member that fetches the state.
    Syncing,
    /// A member that trains.
    Training,
    /// Training is over for it; see [`Beat::ending`].
    Ending,
    /// Was a member, is in no view now, and wants to be admitted.
    Again(Holding),
}

impl Standing {
    /// What it holds, of a peer that wants to be admitted.
    pub fn holding(&self) -> Option<Holding> {
        match self {
            Self::Ready(holding) | Self::Again(holding) => Some(*holding),
            _ => None,
        }
    }
}

/// The whole standing of the sender in one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// The process that speaks: a restarted peer has another one.
    pub instance: u64,
    /// Where it stands.
    pub standing: Standing,
    /// Samples it trains on per step.
    pub batch: u32,
    /// The view it holds.
    pub view: Option<Stamp>,
    /// Its own work so far.
    pub contribution: Contribution,
    /// The step its replica is at: that of the state it started from plus its own since.
    pub step: u64,
    /// Mean training loss of late.
    pub train_loss: f32,
    /// How far the agreement on the end is, once it has begun.
    pub ending: Option<EndingState>,
    /// What the others plan with.
    pub pace: Pace,
}

/// Which packet of a link was dealt with, and when it had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The packet's number.
    pub seq: u64,
    /// When it arrived, microseconds of the receiver's clock.
    pub arrived_us: u64,
}

/// What a peer tells of its training for the others to plan with. Nothing of it is trusted beyond what it can cost: see
/// [`batching`](crate::batching), [`knowledge`](crate::knowledge) and [`pacing`](crate::pacing).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// How long its steps take.
    pub fit: Option<Fit>,
    /// Commits made.
    pub commits: u64,
    /// Loss on held-out samples at its last look, nats per sample.
    pub held_out: Option<f32>,
    /// Its parameters, sketched.
    pub sketch: Option<Sketch>,
    /// Where the search for a commit rate is; only the steward's counts.
    pub search: Option<SearchState>,
}

/// What one peer knows about the end of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndingState {
    /// Why the job ends.
    pub reason: String,
    /// The model it offers; none until it is evaluated.
    pub candidate: Option<Candidate>,
    /// It has no model to offer (it was still fetching one).
    pub abstains: bool,
    /// The decision it knows.
    pub decision: Option<Decision>,
    /// It holds the decided weights.
    pub holds: bool,
    /// All that were alive held them: the job is over.
    pub closed: bool,
}

impl EndingState {
    /// Whether the peer has the weights named `digest`: it offered them, or holds the decided ones.
    pub fn has(&self, digest: Digest) -> bool {
        let decided = |decision: Decision| self.holds && decision.candidate.digest == digest;
        self.candidate
            .is_some_and(|candidate| candidate.digest == digest)
            || self.decision.is_some_and(decided)
    }
}

/// A model offered as the job's result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Share of the validation set that it labels right, 0 to 1.
    pub accuracy: f32,
    /// Mean validation loss, nats per sample.
    pub loss: f32,
    /// Hash of its weights.
    pub digest: Digest,
    /// The step it was taken at.
    pub step: u64,
}

impl Candidate {
    /// A score that orders candidates from worst to best; anything not finite is worst.
    pub fn rank(&self) -> (f32, f32) {
        let finite = |value: f32| if value.is_finite() { value } else { f32::MIN };
        (finite(self.accuracy), finite(-self.loss))
    }
}

/// Which candidate the job ends with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Counts up when a decision had to be replaced because nobody alive held its weights.
    pub round: u64,
    /// Who decided.
    pub steward: PeerId,
    /// Whose candidate it is.
    pub winner: PeerId,
    /// The candidate.
    pub candidate: Candidate,
}

/// Stands before the packed gradient in each update packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateHeader {
    /// The job it belongs to.
    pub job: JobId,
    /// Number of the view it was sent in.
    pub view: u64,
    /// Ascends along a link, of one process.
    pub seq: u64,
    /// The sender's step.
    pub step: u64,
    /// Samples behind the gradient.
    pub samples: u64,
}

/// Asks a peer for state, one question per request stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateRequest {
    /// A copy of the replica, taken at a step boundary not before `from_step`.
    Replica {
        /// The job.
        job: JobId,
        /// Earliest step.
        from_step: u64,
    },
    /// The weights with this hash: a decided candidate or a finished job's model.
    Weights {
        /// The job.
        job: JobId,
        /// Their hash.
        digest: Digest,
    },
    /// A chunk of a blob that a manifest described.
    Chunk {
        /// The blob.
        blob: Digest,
        /// Which chunk.
        index: u32,
    },
    /// Copies of a pipeline's blocks.
    Blocks {
        /// The job.
        job: JobId,
        /// First block.
        first: u16,
        /// One past the last.
        end: u16,
        /// As they were after so many steps.
        step: u64,
        /// The asker holds them at this step: what has changed since is enough.
        have: Option<u64>,
    },
}

/// The answer to a [`StateRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StateResponse {
    /// What there is to fetch.
    Manifest(crate::transfer::Manifest),
    /// One chunk.
    Chunk(Vec<u8>),
    /// Not (or no longer) held here, and why.
    Unavailable(String),
}

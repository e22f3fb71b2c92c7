//! What a job's driver is told, and what it remembers of work under way.

use std::time::Duration;

use skein_gossip::ids::PeerId;
use skein_gossip::message::{Decision, Message, StateRequest};
use skein_gossip::transfer::Fetch;
use skein_model::snapshot::Snapshot;
use skein_model::train::Evaluation;
use tokio::sync::oneshot;

use super::super::prepare::Prepared;
use super::super::serve::Question;
use super::super::trainer::Lesson;
use super::super::{coder, fetch};

/// What the mesh tells the job.
#[derive(Debug)]
pub enum Event {
    /// A peer is connected.
    Connected(PeerId),
    /// A peer is gone.
    Disconnected(PeerId),
    /// A control message of this job.
    Message(PeerId, Message),
    /// A peer asks for state.
    State(StateRequest, oneshot::Sender<Vec<u8>>),
    /// A user of this node asks for something.
    Ask(Question),
    /// End the job everywhere.
    Stop(String),
    /// This node leaves: say so, save, and stop.
    Leave(oneshot::Sender<()>),
}

/// Slow work that has come back.
#[derive(Debug)]
pub(in crate::run) enum Done {
    Prepared(Result<Box<Prepared>, String>),
    Fetched(fetch::Try, Duration),
    Restored {
        step: u64,
        donors: Vec<PeerId>,
        bytes: u64,
        took: Duration,
        /// How much the own side of a healed partition counts in it; none: there was none.
        outcome: Result<Option<f32>, String>,
    },
    Candidate(Result<(u64, Evaluation, Box<Snapshot>), String>),
    Taught(PeerId, fetch::Try),
    Learnt(PeerId, Result<Lesson, String>),
    Saved(Result<u64, String>),
}

/// What is to be told, in this order. At most a few views and two credits per peer wait.
pub(super) enum Order {
    Coder(coder::Input),
    /// The trainer may begin: the coder knows where.
    Train,
}

/// What is being fetched.
pub(super) enum Fetching {
    Nothing,
    Replica {
        from_step: u64,
        partial: Option<Fetch>,
    },
    Weights {
        decision: Decision,
        partial: Option<Fetch>,
    },
}

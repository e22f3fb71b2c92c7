//! What goes into an [`Agreement`](super::Agreement) and what comes out of it.

use std::sync::Arc;

use crate::ids::{Digest, PeerId};
use crate::message::{Beat, Candidate, Decision, Pace};
use crate::view::{Change, Contribution, Holding, View};

/// What the driver reports.
#[derive(Clone, Debug)]
pub enum Input {
    /// A connection to this peer opened.
    Connected(PeerId),
    /// The last connection to it closed.
    Disconnected(PeerId),
    /// A beat arrived.
    Beat(PeerId, Arc<Beat>),
    /// A view arrived.
    View(PeerId, Arc<View>),
    /// A change of a view arrived.
    Change(PeerId, Arc<Change>),
    /// The peer said that it leaves.
    Leaving(PeerId),
    /// Data and model are there; this is the state held.
    Prepared(Holding),
    /// This peer cannot take part.
    Unable(String),
    /// The state asked for by [`Output::Sync`] is loaded.
    Synced {
        /// Step of the replica now.
        step: u64,
    },
    /// Training went on.
    Progress {
        /// Step of the replica.
        step: u64,
        /// Recent mean training loss.
        train_loss: f32,
        /// Own work so far.
        contribution: Contribution,
    },
    /// What the others plan with changed.
    Pace(Box<Pace>),
    /// A stop condition holds, or somebody asked for the end.
    StopHolds(String),
    /// The own candidate is evaluated and kept.
    Evaluated(Candidate),
    /// There is nothing that could be a candidate after all.
    NoCandidate,
    /// The weights asked for by [`Output::Fetch`] are held.
    Fetched(Digest),
    /// Nothing but time passed.
    Tick,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send this peer a beat.
    SendBeat(PeerId, Arc<Beat>),
    /// Send this peer a view.
    SendView(PeerId, Arc<View>),
    /// Send this peer a change of the view that it holds.
    SendChange(PeerId, Arc<Change>),
    /// The view changed: links to its members are to be open, others closed.
    Adopted(Arc<View>),
    /// Every member alive holds the current view (synchronous exchange goes on past an admission only now).
    Agreed,
    /// Fetch a replica's state from a member that trains (see [`Agreement::donors`](super::Agreement::donors)), then report `Synced`.
    Sync {
        /// The donor's replica must not be older than this step.
        from_step: u64,
    },
    /// Train (again), from the state held.
    Train,
    /// Pause: this peer is no longer in the view, or its side lost. It joins again by itself.
    Pause {
        /// Samples that this side of a partition had trained on since the sides parted, 0 for a plain eviction.
        lost_samples: u64,
    },
    /// Training is over: evaluate what is held and report `Evaluated`, unless `abstain`.
    End {
        /// Why.
        reason: String,
        /// There is nothing to evaluate.
        abstain: bool,
    },
    /// Fetch these weights from one of [`Agreement::holders`](super::Agreement::holders), then report `Fetched`.
    Fetch(Decision),
    /// The job is over with this decision, or without a model.
    Closed(Option<Decision>),
}

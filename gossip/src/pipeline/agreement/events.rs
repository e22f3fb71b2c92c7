//! What goes into an [`Agreement`](super::Agreement), what comes out of it, and what it asks about cuts.

use std::sync::Arc;

use super::super::copies::Held;
use super::super::links::LinkRate;
use super::super::message::{Beat, Judged, Profile, View};
use super::super::plan::{Blocks, Plan};
use crate::ids::{Digest, PeerId};
use crate::view::{Contribution, Stamp};

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
    /// A profile arrived.
    Profile(PeerId, Arc<Profile>),
    /// The peer said that it leaves.
    Leaving(PeerId),
    /// Data and profile are there.
    Prepared {
        /// Whether this peer can host the first stage.
        has_data: bool,
        /// How fast it is.
        profile: Profile,
        /// Copies that it kept on disk.
        held: Vec<Held>,
    },
    /// Whether there is room on this peer's disk for the whole model beside what it needs: then it keeps whole lines. Until it is said
    /// there is none.
    Room(bool),
    /// This peer cannot take part.
    Unable(String),
    /// The blocks were timed again: what they take by what was profiled; see [`Beat::slowdown`].
    Slowdown(f32),
    /// What the links to other peers carry, as measured by now.
    Rates(Vec<LinkRate>),
    /// The own stages made a step.
    Stepped {
        /// Steps made.
        step: u64,
        /// What it takes by what was profiled; see [`Beat::slowdown`].
        slowdown: f32,
        /// Own work so far.
        contribution: Contribution,
    },
    /// Copies of `blocks` at `step` are held now: of the own stages at a line, once all of them have made it, or fetched.
    Copied {
        /// Steps made.
        step: u64,
        /// Which.
        blocks: Blocks,
    },
    /// What [`Output::Fetch`] asked for could not be had.
    FetchFailed(Want),
    /// The stage works in this view now.
    InPlace(Stamp),
    /// Frames of this view were lost, or the line it begins at cannot be made: it cannot be finished.
    Broken(Stamp),
    /// The last stage judged the model.
    Judged(Judged),
    /// A stop condition holds, or somebody asked for the end.
    StopHolds(String),
    /// The first stage answers [`Output::ChooseLastStep`].
    LastStep(u64),
    /// The finished model is held, with this hash.
    Finished(Digest),
    /// Nothing but time passed.
    Tick,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send these peers a beat.
    SendBeat(Vec<PeerId>, Arc<Beat>),
    /// Send this peer a view.
    SendView(PeerId, Arc<View>),
    /// Send this peer the own profile.
    SendProfile(PeerId, Arc<Profile>),
    /// There is a new view. Work in the one before is of no use: stop it. Where training is not exact (see
    /// [`Config::is_exact`](super::Config::is_exact)), drop copies of steps beyond the view's line and let
    /// fetches under way fail, unless its `after` is set.
    Halt(Arc<View>),
    /// Stop what is under way, forget all copies in memory, measure the device again and read the copies on disk; then report
    /// `Prepared`.
    Restart,
    /// There is a new view, which begins at a line to come: the one before goes on until then.
    Until(Arc<View>),
    /// All blocks of the own stage are held at the view's line, and all hosts beside it are connected: load them, then report
    /// `InPlace`.
    Switch(Arc<View>),
    /// All hosts are in place: the first stage, hosted here, may draw micro-batches of this view, up to `until`.
    Feed {
        /// The view.
        stamp: Stamp,
        /// The job's last step, if it is known.
        until: Option<u64>,
    },
    /// The newest line with enough copies.
    Safe(u64),
    /// Copies older than this step are of no use any more, but for those named. These are seldom needed: they may lie on disk.
    Forget {
        /// The oldest step of use.
        before: u64,
        /// What is held all the same.
        but: Vec<Held>,
    },
    /// Fetch copies, then report `Copied` or `FetchFailed`. The same are asked for again where the first holder has died.
    Fetch(Want),
    /// The job is to end: the first stage, hosted here, says after which step (`LastStep`).
    ChooseLastStep,
    /// All blocks are held at the last step: make the model of them, then report `Finished`.
    Finish(u64),
    /// All that are alive hold the model: the job is over.
    Closed,
}

/// Copies that this peer needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// At which step.
    pub step: u64,
    /// Which blocks.
    pub blocks: Blocks,
    /// Who has them, the best first; never empty.
    pub holders: Vec<PeerId>,
    /// Whether training waits for it.
    pub is_urgent: bool,
    /// Whether it is a part of a line that is kept whole: it comes when nothing else does, and may lie on disk.
    pub is_global: bool,
}

/// A peer that a plan may use.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Who.
    pub peer: PeerId,
    /// Whether it can host the first stage.
    pub has_data: bool,
    /// How fast it is; one that has not said so yet hosts nothing.
    pub profile: Option<Arc<Profile>>,
    /// By how much it is slower than that; 1.0 is as profiled.
    pub slowdown: f32,
}

/// A plan with its price.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Who hosts what.
    pub plan: Plan,
    /// Predicted time of a step, microseconds.
    pub step_us: f64,
}

/// Makes cuts; pure, so that equal candidates give equal plans.
pub trait Planner: std::fmt::Debug + Send {
    /// The best plan for these candidates.
    ///
    /// # Errors
    /// In words for the user: why none of them can train the model.
    fn plan(&self, candidates: &[Candidate]) -> Result<Planned, String>;

    /// A plan near `lost`, some of whose hosts are not among the candidates, found within milliseconds: the best one is looked for
    /// afterwards. None where [`Planner::plan`] is as quick, or nothing near it will do.
    fn replan(&self, _lost: &Plan, _candidates: &[Candidate]) -> Option<Planned> {
        None
    }

    /// What a step of `plan` takes these candidates, microseconds; none where one of its hosts is not among them.
    fn step_us(&self, plan: &Plan, candidates: &[Candidate]) -> Option<f64>;

    /// Bytes of a copy of `blocks`.
    fn bytes(&self, blocks: Blocks) -> u64;
}

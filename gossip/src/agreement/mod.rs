//! One peer's side of the agreement on one job: who trains together, from which state, and with which model it ends.
//!
//! Composes [`membership`], [`view`](crate::view) and [`ending`]; the only place where the
//! output of one feeds another. In: [`Input`]s and the time. Out: [`Output`]s, drained with [`Agreement::poll`].
//!
//! | phase | leaves it when | to |
//! |---|---|---|
//! | Preparing | the driver has built the model | Ready |
//! | Ready | a view with this instance arrives in which there is a state to be had, or it proposes a start | Syncing or Training |
//! | Syncing | the driver has loaded the state | Training |
//! | Syncing | nobody in the view trains any more | Ready |
//! | Training | evicted, or its side of a partition lost | Ready |
//! | Ending | it cannot go on, and does not hold what was decided | Unable |
//! | Training, Syncing | its own stop condition holds or a member's beat says so | Ending |
//! | Ending | the steward closed and it holds the weights | Closed |
//! | any | a beat of a peer that closed, and the weights are fetched | Closed |
//!
//! Cost with n members: a beat that changes nothing costs O(log n). What has to look at all members (`decisions`) runs when
//! something that it looks at changed, or when time alone will change it; both are one number, `due`. In groups of more than
//! [`membership::FEW`] it then waits a moment for more of the same, and what is new about a peer is told at once only to the steward,
//! to all with the next beat.

mod batches;
mod beats;
mod closing;
mod decisions;
mod events;
mod start;
mod views;
mod works;

pub use batches::Batching;
pub use events::{Input, Output};

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::ending;
use crate::ids::{Digest, PeerId};
use crate::membership::{self, Membership};
use crate::message::{Beat, Decision, EndingState, MAX_REASON, Pace, Standing};
use crate::time::Tick;
use crate::view::{Contribution, Holding, Member, Stamp, View};
use start::Start;

/// Settings of one job's agreement.
#[derive(Clone, Debug)]
pub struct Config {
    /// Failure detection.
    pub membership: membership::Config,
    /// Peers that must be ready before the first view. 1 or more.
    pub start_peers: usize,
    /// Samples this peer trains on per step, where nothing else is agreed.
    pub batch: u32,
    /// How samples are shared out.
    pub batching: Batching,
    /// How long the set of ready peers must have been the same before the first view: lets those that are about to be
    /// heard be part of it.
    pub settle: Duration,
    /// How long peers that still prepare are waited for once enough are ready.
    pub prepare_patience: Duration,
}

impl Config {
    /// The defaults for a job that starts with `start_peers`.
    pub fn new(start_peers: usize, batch: u32) -> Self {
        Self {
            membership: membership::Config::default(),
            start_peers: start_peers.max(1),
            batch,
            batching: Batching::default(),
            settle: Duration::from_millis(800),
            prepare_patience: Duration::from_secs(20),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Preparing,
    Unable(String),
    Ready(Holding),
    Syncing(Holding),
    Training,
    Ending(EndingState),
    /// A closed decision was heard of; its weights are being fetched.
    Closing(EndingState),
    Closed(EndingState),
}

/// One peer's agreement on one job.
#[derive(Debug)]
pub struct Agreement {
    config: Config,
    me: PeerId,
    instance: u64,
    membership: Membership,
    phase: Phase,
    view: Option<Arc<View>>,
    /// The view that was held last, where none is.
    left: Option<Arc<View>>,
    /// Highest number of any view held.
    highest: u64,
    /// Why the job is to end, heard while in no view.
    enough: Option<String>,
    adopted_at: Tick,
    agreed: bool,
    /// Other members whose last beat does not name the view held.
    n_behind: usize,
    /// Peers whose last beats all named the same other view: which, and how many beats.
    lagging: BTreeMap<PeerId, (Option<Stamp>, u32)>,
    heard: BTreeMap<PeerId, Arc<Beat>>,
    /// The work of processes that is not (or no longer) in `heard`: the most that was heard.
    instances: BTreeMap<(PeerId, u64), Contribution>,
    start: Start,
    /// The lowest member alive at the last decision; in no view, the lowest peer alive, who would propose the first.
    steward: PeerId,
    /// When to decide next: at once if what decisions look at changed, else when time changes something.
    due: Tick,
    decided_at: Tick,
    /// When the end began here, and when this peer gives up judging its replica because others were done long before.
    ended_at: Tick,
    abstain_at: Option<Tick>,
    /// Since when nobody that is alive has the weights to close with; and whether there is a replica to offer instead.
    lost_since: Option<Tick>,
    has_replica: bool,
    progress: (u64, f32, Contribution),
    /// What the others plan with.
    pace: Pace,
    train_samples: u64,
    /// Samples of the mesh when a member last fell out: from there on a healed partition had two sides.
    parted_at: u64,
    /// When the fits were last looked at, and when batches last changed.
    looked_at_fits: Tick,
    reshared_at: Tick,
    /// Steps between the last two beats, and the step at the last.
    steps_per_beat: u64,
    step_at_beat: u64,
    told_end: bool,
    /// The beat that was sent last, shared by all who were sent the same.
    said: Option<Arc<Beat>>,
    /// When all were last sent a beat.
    last_beat: Option<Tick>,
    /// Something about this peer is new since.
    news: bool,
    outputs: VecDeque<Output>,
}

impl Agreement {
    /// `instance` is a number that this process drew at random.
    pub fn new(config: Config, me: PeerId, instance: u64, now: Tick) -> Self {
        Self {
            membership: Membership::new(config.membership),
            config,
            me,
            instance,
            phase: Phase::Preparing,
            view: None,
            left: None,
            highest: 0,
            enough: None,
            adopted_at: now,
            agreed: false,
            n_behind: 0,
            lagging: BTreeMap::new(),
            heard: BTreeMap::new(),
            instances: BTreeMap::new(),
            start: Start::new(now),
            steward: me,
            due: now,
            decided_at: now,
            ended_at: now,
            abstain_at: None,
            lost_since: None,
            has_replica: false,
            progress: (0, 0.0, Contribution::default()),
            pace: Pace::default(),
            train_samples: 0,
            parted_at: 0,
            looked_at_fits: now,
            reshared_at: now,
            steps_per_beat: 0,
            step_at_beat: 0,
            told_end: false,
            said: None,
            last_beat: None,
            news: false,
            outputs: VecDeque::new(),
        }
    }

    /// The agreement on a job that this peer closed in an earlier run: it only tells latecomers.
    pub fn closed_before(mut self, reason: String, decision: Option<Decision>) -> Self {
        let holds = decision.is_some();
        self.phase = Phase::Closed(EndingState {
            reason,
            candidate: None,
            abstains: true,
            decision,
            holds,
            closed: true,
        });
        self
    }

    /// Applies one event. Any input is legal in any phase; what makes no sense there is ignored.
    pub fn handle(&mut self, now: Tick, input: Input) {
        let jumped = self.membership.tick(now);
        let matters = self.apply(now, input);
        if jumped || matters {
            self.changed(now);
        }
        if now >= self.due {
            self.decide(now);
        }
        if matches!(self.phase, Phase::Training)
            && let Some(reason) = self.enough.take()
        {
            self.begin_end(now, reason);
        }
        self.beat(now);
    }

    /// Whether the input changed anything that decisions look at.
    fn apply(&mut self, now: Tick, input: Input) -> bool {
        match input {
            Input::Connected(peer) => {
                self.membership.connected(now, peer);
                self.greet(now, peer);
            }
            Input::Disconnected(peer) | Input::Leaving(peer) => {
                self.membership.disconnected(peer);
                self.start.lost(now, peer);
            }
            Input::Beat(peer, beat) => return self.on_beat(now, peer, beat),
            Input::View(peer, view) => {
                self.membership.heard(now, peer);
                if view.validate().is_ok() && self.is_held_by(peer, &view) {
                    self.on_view(now, view);
                }
            }
            Input::Change(peer, change) => {
                self.membership.heard(now, peer);
                // Whoever holds another view shows it in its next beat, and is told the whole.
                let held = self.view.as_ref();
                if let Some(view) = held.and_then(|held| held.changed_by(&change))
                    && view.validate().is_ok()
                {
                    self.on_view(now, Arc::new(view));
                }
            }
            Input::Prepared(holding) => {
                if matches!(self.phase, Phase::Preparing) {
                    self.progress.0 = holding.step;
                    self.set_phase(now, Phase::Ready(holding));
                }
            }
            Input::Unable(mut reason) => {
                truncate(&mut reason);
                // One that already holds what was decided has nothing left to do that it could not.
                let must_go_on = match &self.phase {
                    Phase::Ending(state) => !state.holds,
                    _ => !self.is_over(),
                };
                if must_go_on {
                    self.set_view(None);
                    self.set_phase(now, Phase::Unable(reason));
                }
            }
            Input::Synced { step } => {
                if matches!(self.phase, Phase::Syncing(_)) {
                    self.progress.0 = step;
                    self.set_phase(now, Phase::Training);
                    self.outputs.push_back(Output::Train);
                }
            }
            Input::Progress {
                step,
                train_loss,
                contribution,
            } => {
                self.progress = (step, train_loss, contribution);
                return false;
            }
            Input::Pace(pace) => {
                self.pace = *pace;
                return false;
            }
            Input::StopHolds(reason) => self.begin_end(now, reason),
            Input::Evaluated(candidate) => {
                if let Phase::Ending(state) = &mut self.phase {
                    state.candidate = Some(candidate);
                    self.news = true;
                }
            }
            Input::NoCandidate => {
                if let Phase::Ending(state) = &mut self.phase {
                    state.abstains = true;
                    self.news = true;
                }
            }
            Input::Fetched(digest) => self.on_fetched(now, digest),
            Input::Tick => return false,
        }
        true
    }

    /// The next effect, until `None`.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Tick`] is next due.
    pub fn next_wakeup(&self) -> Tick {
        self.next_beat().min(self.due)
    }

    /// The view held.
    pub fn view(&self) -> Option<&Arc<View>> {
        self.view.as_ref()
    }

    /// This peer.
    pub fn me(&self) -> PeerId {
        self.me
    }

    /// The lowest member alive, who acts for all.
    pub fn steward(&self) -> PeerId {
        self.steward
    }

    /// What every peer of the job last said.
    pub fn heard(&self) -> &BTreeMap<PeerId, Arc<Beat>> {
        &self.heard
    }

    /// Members that train and are alive, the furthest first: who to fetch a replica from.
    pub fn donors(&self, now: Tick) -> Vec<PeerId> {
        let trains = |peer: &PeerId| {
            self.heard
                .get(peer)
                .is_some_and(|beat| beat.standing == Standing::Training)
        };
        let mut donors: Vec<PeerId> = self.alive_members(now).filter(trains).collect();
        donors.sort_by_key(|peer| {
            std::cmp::Reverse(self.heard.get(peer).map_or(0, |beat| beat.step))
        });
        donors
    }

    /// Peers alive that can serve the decided weights: they said so, or the decision names them.
    pub fn holders(&self, now: Tick, digest: Digest) -> Vec<PeerId> {
        let alive = |peer: &PeerId| self.membership.is_alive(now, *peer);
        let states = self.heard.iter().filter(|(peer, _)| alive(peer));
        let mut holders = ending::holders(
            digest,
            states.filter_map(|(peer, beat)| Some((*peer, beat.ending.as_ref()?))),
        );
        let decided = match &self.phase {
            Phase::Ending(state) | Phase::Closing(state) => state.decision,
            _ => None,
        };
        let winner = decided
            .filter(|decision| decision.candidate.digest == digest)
            .map(|decision| decision.winner);
        holders.extend(winner.filter(|peer| alive(peer) && !holders.contains(peer)));
        holders
    }

    /// Samples of the mesh when a member last fell out.
    pub fn parted_at(&self) -> u64 {
        self.parted_at
    }

    fn is_over(&self) -> bool {
        matches!(
            self.phase,
            Phase::Ending(_) | Phase::Closing(_) | Phase::Closed(_)
        )
    }

    fn set_phase(&mut self, now: Tick, phase: Phase) {
        if matches!(phase, Phase::Ready(_)) {
            self.start.changed(now);
        }
        self.phase = phase;
        self.news = true;
        self.changed(now);
    }

    fn set_view(&mut self, view: Option<Arc<View>>) {
        self.agreed = false;
        self.lagging.clear();
        let n_members = view.as_ref().map_or(0, |view| view.members.len());
        self.membership.set_members(n_members);
        self.n_behind = view.as_ref().map_or(0, |view| {
            let holds = |(peer, beat): &(&PeerId, &Arc<Beat>)| {
                beat.view == Some(view.stamp) && **peer != self.me && view.contains(**peer)
            };
            let others = n_members - usize::from(view.contains(self.me));
            others - self.heard.iter().filter(holds).count()
        });
        self.view = view;
    }

    /// A peer that restarted or gave up is connected, but the member it was is gone.
    fn is_member_alive(&self, now: Tick, member: &Member) -> bool {
        let is_same = |beat: &Arc<Beat>| {
            beat.instance == member.instance && !matches!(beat.standing, Standing::Unable(_))
        };
        member.peer == self.me
            || (self.membership.is_alive(now, member.peer)
                && self.heard.get(&member.peer).is_none_or(is_same))
    }

    fn alive_members(&self, now: Tick) -> impl Iterator<Item = PeerId> + '_ {
        let members = self.view.iter().flat_map(|view| &view.members);
        members
            .filter(move |member| self.is_member_alive(now, member))
            .map(|member| member.peer)
    }
}

fn truncate(reason: &mut String) {
    reason.truncate(reason.floor_char_boundary(MAX_REASON));
}

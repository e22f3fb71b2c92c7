//! One peer's side of the agreement on one job: who trains together, from which state, and with which model it ends.
//!
//! Composes [`membership`], [`view`](crate::view) and [`ending`]; the only place where the
//! output of one feeds another. In: [`Input`]s and the time. Out: [`Output`]s, drained with [`Agreement::poll`].
//!
//! | phase | leaves it when | to |
//! |---|---|---|
//! | Preparing | the driver has built the model | Ready |
//! | Ready | a view with this instance arrives, or it proposes the first | Syncing or Training |
//! | Syncing | the driver has loaded the state | Training |
//! | Training | evicted, or its side of a partition lost | Ready |
//! | Training, Syncing | its own stop condition holds or a member's beat says so | Ending |
//! | Ending | the steward closed and it holds the weights | Closed |
//! | any | a beat of a peer that closed, and the weights are fetched | Closed |

mod closing;
mod events;
mod views;

pub use events::{Input, Output};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::ending;
use crate::ids::{Digest, PeerId};
use crate::membership::{self, Membership};
use crate::message::{Beat, Decision, EndingState, MAX_REASON, Standing};
use crate::time::Tick;
use crate::view::{Contribution, Holding, Member, View};

/// Settings of one job's agreement.
#[derive(Clone, Debug)]
pub struct Config {
    /// Failure detection.
    pub membership: membership::Config,
    /// Peers that must be ready before the first view. 1 or more.
    pub start_peers: usize,
    /// Samples this peer trains on per step.
    pub batch: u32,
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
    view: Option<View>,
    adopted_at: Tick,
    agreed: bool,
    heard: BTreeMap<PeerId, Beat>,
    /// The most that was heard of the work of each process of each peer.
    instances: BTreeMap<(PeerId, u64), Contribution>,
    ready_set: (BTreeSet<PeerId>, Tick),
    enough_since: Option<Tick>,
    progress: (u64, f32, Contribution),
    /// Steps between the last two beats, and the step at the last.
    steps_per_beat: u64,
    step_at_beat: u64,
    told_end: bool,
    next_beat: Tick,
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
            adopted_at: now,
            agreed: false,
            heard: BTreeMap::new(),
            instances: BTreeMap::new(),
            ready_set: (BTreeSet::new(), now),
            enough_since: None,
            progress: (0, 0.0, Contribution::default()),
            steps_per_beat: 0,
            step_at_beat: 0,
            told_end: false,
            next_beat: now,
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
        self.membership.tick(now);
        match input {
            Input::Connected(peer) => {
                self.membership.connected(now, peer);
                self.next_beat = now;
            }
            Input::Disconnected(peer) | Input::Leaving(peer) => {
                self.membership.disconnected(peer);
            }
            Input::Beat(peer, beat) => self.on_beat(now, peer, *beat),
            Input::View(peer, view) => {
                self.membership.heard(now, peer);
                if view.validate().is_ok() {
                    self.on_view(now, *view);
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
                if !self.is_over() {
                    self.view = None;
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
            } => self.progress = (step, train_loss, contribution),
            Input::StopHolds(reason) => self.begin_end(now, reason),
            Input::Evaluated(candidate) => {
                if let Phase::Ending(state) = &mut self.phase {
                    state.candidate = Some(candidate);
                    self.next_beat = now;
                }
            }
            Input::NoCandidate => {
                if let Phase::Ending(state) = &mut self.phase {
                    state.abstains = true;
                    self.next_beat = now;
                }
            }
            Input::Fetched(digest) => self.on_fetched(now, digest),
            Input::Tick => {}
        }
        self.decide(now);
        self.beat(now);
    }

    /// The next effect, until `None`.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Tick`] is next due.
    pub fn next_wakeup(&self) -> Tick {
        self.next_beat
    }

    /// The view held.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// What every peer of the job last said.
    pub fn heard(&self) -> &BTreeMap<PeerId, Beat> {
        &self.heard
    }

    /// What this peer says of itself.
    pub fn own_beat(&self) -> Beat {
        let (standing, ending) = match &self.phase {
            Phase::Preparing => (Standing::Preparing, None),
            Phase::Unable(reason) => (Standing::Unable(reason.clone()), None),
            Phase::Ready(holding) => (Standing::Ready(*holding), None),
            Phase::Syncing(_) => (Standing::Syncing, None),
            Phase::Training => (Standing::Training, None),
            Phase::Ending(state) | Phase::Closing(state) | Phase::Closed(state) => {
                (Standing::Ending, Some(state.clone()))
            }
        };
        Beat {
            instance: self.instance,
            standing,
            batch: self.config.batch,
            view: self.view.as_ref().map(|view| view.stamp),
            contribution: self.progress.2,
            step: self.progress.0,
            train_loss: self.progress.1,
            ending,
        }
    }

    /// Members that train and are alive, the furthest first: who to fetch a replica from.
    pub fn donors(&self, now: Tick) -> Vec<PeerId> {
        let trains = |peer: &PeerId| {
            self.heard
                .get(peer)
                .is_some_and(|beat| beat.standing == Standing::Training)
        };
        let mut donors: Vec<PeerId> = self.alive_members(now).into_iter().filter(trains).collect();
        donors.sort_by_key(|peer| {
            std::cmp::Reverse(self.heard.get(peer).map_or(0, |beat| beat.step))
        });
        donors
    }

    /// Peers alive that can serve the decided weights.
    pub fn holders(&self, now: Tick, digest: Digest) -> Vec<PeerId> {
        let alive = self.membership.alive(now);
        let states = self.heard.iter().filter(|(peer, _)| alive.contains(peer));
        ending::holders(
            digest,
            states.filter_map(|(peer, beat)| Some((*peer, beat.ending.as_ref()?))),
        )
    }

    /// Who contributed what, those that are gone included.
    pub fn contributions(&self) -> BTreeMap<PeerId, Contribution> {
        let mut instances = self.instances.clone();
        let retired = self.view.iter().flat_map(|view| &view.retired);
        for gone in retired {
            count(&mut instances, (gone.peer, gone.instance), gone.work);
        }
        count(&mut instances, (self.me, self.instance), self.progress.2);
        let mut all: BTreeMap<PeerId, Contribution> = BTreeMap::new();
        for ((peer, _), work) in instances {
            all.entry(peer).or_default().add(&work);
        }
        all.retain(|_, contribution| contribution.samples > 0);
        all
    }

    /// Samples that the whole mesh has trained on, those behind the state it started from included.
    pub fn mesh_samples(&self) -> u64 {
        let started_from = self.view.as_ref().map_or(0, |view| view.origin.1.samples);
        self.contributions()
            .values()
            .fold(started_from, |sum, work| sum.saturating_add(work.samples))
    }

    fn is_over(&self) -> bool {
        matches!(
            self.phase,
            Phase::Ending(_) | Phase::Closing(_) | Phase::Closed(_)
        )
    }

    fn set_phase(&mut self, now: Tick, phase: Phase) {
        self.phase = phase;
        self.next_beat = now;
    }

    fn alive_members(&self, now: Tick) -> BTreeSet<PeerId> {
        let Some(view) = &self.view else {
            return BTreeSet::new();
        };
        // A peer that restarted or gave up is connected, but the member it was is gone.
        let is_same = |member: &&Member| {
            let beat = self.heard.get(&member.peer);
            beat.is_none_or(|beat| {
                beat.instance == member.instance && !matches!(beat.standing, Standing::Unable(_))
            })
        };
        let alive = |member: &&Member| {
            member.peer == self.me
                || (self.membership.is_alive(now, member.peer) && is_same(member))
        };
        view.members
            .iter()
            .filter(alive)
            .map(|member| member.peer)
            .collect()
    }

    fn on_beat(&mut self, now: Tick, from: PeerId, mut beat: Beat) {
        self.membership.heard(now, from);
        let known = self.instances.contains_key(&(from, beat.instance));
        if known || self.instances.len() < membership::MAX_PEERS {
            count(
                &mut self.instances,
                (from, beat.instance),
                beat.contribution,
            );
        }
        if let Some(ending) = &mut beat.ending {
            truncate(&mut ending.reason);
        }
        let member = self
            .view
            .as_ref()
            .and_then(|view| view.member(from))
            .copied();
        let ending = beat.ending.clone();
        let lags = match (&self.view, beat.view) {
            // Views of two lines are compared by both sides, so each tells its own.
            (Some(mine), Some(theirs)) => mine.stamp != theirs,
            (Some(_), None) => member.is_some_and(|member| member.instance == beat.instance),
            (None, _) => false,
        };
        if self.heard.len() < membership::MAX_PEERS || self.heard.contains_key(&from) {
            self.heard.insert(from, beat);
        }
        if let (true, Some(view)) = (lags, &self.view) {
            self.outputs
                .push_back(Output::SendView(from, Box::new(view.clone())));
        }
        if let Some(state) = ending {
            self.on_ending(now, member.is_some(), state);
        }
    }

    fn beat(&mut self, now: Tick) {
        if now < self.next_beat {
            return;
        }
        let beat = self.own_beat();
        // When the job is over only those that do not know it yet are told.
        let over = matches!(self.phase, Phase::Closed(_));
        let knows = |peer: &PeerId| {
            self.heard
                .get(peer)
                .is_none_or(|beat| beat.ending.as_ref().is_some_and(|ending| ending.closed))
        };
        let peers = self
            .membership
            .connected_peers()
            .filter(|peer| !(over && self.told_end && knows(peer)));
        self.outputs
            .extend(peers.map(|peer| Output::SendBeat(peer, Box::new(beat.clone()))));
        self.told_end = over;
        self.steps_per_beat = self.progress.0.saturating_sub(self.step_at_beat);
        self.step_at_beat = self.progress.0;
        self.next_beat = now + self.config.membership.beat_every;
    }
}

fn truncate(reason: &mut String) {
    if reason.len() > MAX_REASON {
        let cut = (0..=MAX_REASON)
            .rev()
            .find(|at| reason.is_char_boundary(*at))
            .unwrap_or(0);
        reason.truncate(cut);
    }
}

/// Keeps the larger of two reports of one process.
fn count(
    instances: &mut BTreeMap<(PeerId, u64), Contribution>,
    who: (PeerId, u64),
    work: Contribution,
) {
    let known = instances.entry(who).or_default();
    if work.samples >= known.samples {
        *known = work;
    }
}

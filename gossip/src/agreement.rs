//! One peer's side of the agreement on one job: who trains together, from which state, and with which model it ends.
//!
//! Composes [`membership`](crate::membership), [`view`](crate::view) and [`ending`](crate::ending); the only place where the
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

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::ending::{self, Move};
use crate::ids::{Digest, PeerId};
use crate::membership::{self, Membership};
use crate::message::{Beat, Candidate, Decision, EndingState, MAX_REASON, Standing};
use crate::time::Tick;
use crate::view::{Contribution, Holding, Joiner, Member, View};

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

/// What the driver reports.
#[derive(Clone, Debug)]
pub enum Input {
    /// A connection to this peer opened.
    Connected(PeerId),
    /// The last connection to it closed.
    Disconnected(PeerId),
    /// A beat arrived.
    Beat(PeerId, Box<Beat>),
    /// A view arrived.
    View(PeerId, Box<View>),
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
        /// Samples of the mesh behind it.
        samples: u64,
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
    /// A stop condition holds, or somebody asked for the end.
    StopHolds(String),
    /// The own candidate is evaluated and kept.
    Evaluated(Candidate),
    /// The weights asked for by [`Output::Fetch`] are held.
    Fetched(Digest),
    /// Nothing but time passed.
    Tick,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send this peer a beat.
    SendBeat(PeerId, Box<Beat>),
    /// Send this peer a view.
    SendView(PeerId, Box<View>),
    /// The view changed: links to its members are to be open, others closed.
    Adopted(Box<View>),
    /// Every member alive holds the current view (synchronous exchange goes on past an admission only now).
    Agreed,
    /// Fetch a replica's state from a member that trains (see [`Agreement::donors`]), then report `Synced`.
    Sync {
        /// The donor's replica must not be older than this step.
        from_step: u64,
    },
    /// Train (again), from the state held.
    Train,
    /// Pause: this peer is no longer in the view, or its side lost. It joins again by itself.
    Pause {
        /// Samples that this side had trained on and that do not go into the model, 0 for a plain eviction.
        lost_samples: u64,
    },
    /// Training is over: evaluate what is held and report `Evaluated`, unless `abstain`.
    End {
        /// Why.
        reason: String,
        /// There is nothing to evaluate.
        abstain: bool,
    },
    /// Fetch these weights from one of [`Agreement::holders`], then report `Fetched`.
    Fetch(Decision),
    /// The job is over with this decision, or without a model.
    Closed(Option<Decision>),
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
            Input::Synced { step, samples: _ } => {
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
        let retired = self
            .view
            .iter()
            .flat_map(|view| view.retired.iter().copied());
        let heard = self
            .heard
            .iter()
            .map(|(peer, beat)| (*peer, beat.contribution));
        let mut all: BTreeMap<PeerId, Contribution> = BTreeMap::new();
        for (peer, contribution) in retired.chain(heard).chain([(self.me, self.progress.2)]) {
            let known = all.entry(peer).or_default();
            if contribution.samples >= known.samples {
                *known = contribution;
            }
        }
        all.retain(|_, contribution| contribution.samples > 0);
        all
    }

    /// Samples that the whole mesh has trained on, those behind the state it started from included.
    pub fn mesh_samples(&self) -> u64 {
        let started_from = self.view.as_ref().map_or(0, |view| view.origin.1.samples);
        started_from
            + self
                .contributions()
                .values()
                .map(|contribution| contribution.samples)
                .sum::<u64>()
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

    /// Learns of the end from another peer's beat.
    fn on_ending(&mut self, now: Tick, is_member: bool, theirs: EndingState) {
        if theirs.closed && !matches!(self.phase, Phase::Closed(_)) {
            return self.on_closed(now, theirs);
        }
        if is_member {
            self.begin_end(now, theirs.reason.clone());
        }
        let Phase::Ending(mine) = &mut self.phase else {
            return;
        };
        let Some(decision) = theirs.decision else {
            return;
        };
        let stands = mine
            .decision
            .map_or(decision, |known| ending::newer(known, decision));
        if mine.decision != Some(stands) {
            self.adopt_decision(now, stands);
        }
    }

    fn adopt_decision(&mut self, now: Tick, decision: Decision) {
        let Phase::Ending(mine) = &mut self.phase else {
            return;
        };
        let digest = decision.candidate.digest;
        let held = mine.holds
            && mine
                .decision
                .is_some_and(|known| known.candidate.digest == digest);
        mine.holds = held
            || mine
                .candidate
                .is_some_and(|candidate| candidate.digest == digest);
        mine.decision = Some(decision);
        if !mine.holds {
            self.outputs.push_back(Output::Fetch(decision));
        }
        self.next_beat = now;
    }

    fn on_closed(&mut self, now: Tick, theirs: EndingState) {
        let mine = match &self.phase {
            Phase::Ending(state) | Phase::Closing(state) => Some(state.clone()),
            _ => None,
        };
        let holds = |digest| {
            mine.as_ref().is_some_and(|state| {
                state
                    .candidate
                    .is_some_and(|candidate| candidate.digest == digest)
                    || (state.holds
                        && state
                            .decision
                            .is_some_and(|decision| decision.candidate.digest == digest))
            })
        };
        match theirs.decision {
            Some(decision) if !holds(decision.candidate.digest) => {
                let known = mine.is_some_and(|state| state.decision == Some(decision));
                if !(known && matches!(self.phase, Phase::Closing(_))) {
                    if !self.is_over() {
                        self.outputs.push_back(Output::End {
                            reason: theirs.reason.clone(),
                            abstain: true,
                        });
                    }
                    self.outputs.push_back(Output::Fetch(decision));
                    let state = EndingState {
                        candidate: None,
                        abstains: true,
                        holds: false,
                        closed: false,
                        ..theirs
                    };
                    self.set_phase(now, Phase::Closing(state));
                }
            }
            decision => self.close(now, theirs.reason, decision),
        }
    }

    fn on_fetched(&mut self, now: Tick, digest: Digest) {
        match &mut self.phase {
            Phase::Ending(state)
                if state
                    .decision
                    .is_some_and(|decision| decision.candidate.digest == digest) =>
            {
                state.holds = true;
                self.next_beat = now;
            }
            Phase::Closing(state)
                if state
                    .decision
                    .is_some_and(|decision| decision.candidate.digest == digest) =>
            {
                let (reason, decision) = (state.reason.clone(), state.decision);
                self.close(now, reason, decision);
            }
            _ => {}
        }
    }

    fn close(&mut self, now: Tick, reason: String, decision: Option<Decision>) {
        let state = EndingState {
            reason,
            candidate: None,
            abstains: true,
            decision,
            holds: decision.is_some(),
            closed: true,
        };
        self.set_phase(now, Phase::Closed(state));
        self.outputs.push_back(Output::Closed(decision));
    }

    fn begin_end(&mut self, now: Tick, mut reason: String) {
        truncate(&mut reason);
        let abstain = match self.phase {
            Phase::Training => false,
            Phase::Syncing(_) => true,
            // Nothing was trained and no view exists: there is nobody to agree with and nothing to keep.
            Phase::Preparing | Phase::Unable(_) | Phase::Ready(_) => {
                return self.close_before_start(now, reason);
            }
            Phase::Ending(_) | Phase::Closing(_) | Phase::Closed(_) => return,
        };
        self.outputs.push_back(Output::End {
            reason: reason.clone(),
            abstain,
        });
        let state = EndingState {
            reason,
            candidate: None,
            abstains: abstain,
            decision: None,
            holds: false,
            closed: false,
        };
        self.set_phase(now, Phase::Ending(state));
    }

    fn close_before_start(&mut self, now: Tick, reason: String) {
        let anybody_trains = self.heard.values().any(|beat| beat.view.is_some());
        if self.view.is_none() && !anybody_trains {
            self.outputs.push_back(Output::End {
                reason: reason.clone(),
                abstain: true,
            });
            self.close(now, reason, None);
        }
    }

    fn on_view(&mut self, now: Tick, view: View) {
        if self.is_over() && !matches!(self.phase, Phase::Ending(_)) {
            return;
        }
        let mine = view
            .member(self.me)
            .filter(|member| member.instance == self.instance)
            .copied();
        match (&self.view, mine) {
            (None, Some(_)) if matches!(self.phase, Phase::Ready(_)) => self.adopt(now, view),
            (Some(held), _) if held.stamp == view.stamp || !view.wins_over(held) => {}
            (Some(_), Some(_)) => self.adopt(now, view),
            (Some(held), None) => {
                let lost = !view.descends_from(held.stamp);
                self.fall_out(now, lost);
            }
            (None, _) => {}
        }
    }

    /// This peer is not in the view that goes on: it joins again with a state that counts for nothing.
    fn fall_out(&mut self, now: Tick, lost_side: bool) {
        if self.is_over() {
            return;
        }
        let lost_samples = if lost_side {
            self.progress.2.samples
        } else {
            0
        };
        self.view = None;
        self.agreed = false;
        self.outputs.push_back(Output::Pause { lost_samples });
        let holds = self.unique_holding();
        self.set_phase(now, Phase::Ready(holds));
    }

    /// A replica in mid-run equals no other one: a digest that nobody else can claim.
    fn unique_holding(&self) -> Holding {
        let mut name = self.me.0.to_vec();
        name.extend(self.instance.to_le_bytes());
        name.extend(self.progress.0.to_le_bytes());
        Holding {
            samples: self.mesh_samples(),
            step: self.progress.0,
            digest: Digest::of(&name),
        }
    }

    fn adopt(&mut self, now: Tick, view: View) {
        let Some(mine) = view.member(self.me).copied() else {
            return;
        };
        let continues = self.view.as_ref().is_some_and(|held| {
            view.descends_from(held.stamp)
                && held
                    .member(self.me)
                    .is_some_and(|before| before.since == mine.since)
        });
        let origin = view.origin;
        let number = view.stamp.number;
        self.outputs
            .push_back(Output::Adopted(Box::new(view.clone())));
        self.view = Some(view);
        self.adopted_at = now;
        self.agreed = false;
        self.next_beat = now;
        if continues || self.is_over() {
            return;
        }
        match self.phase.clone() {
            Phase::Ready(holds)
                if number == 1 && (holds.digest == origin.1.digest || origin.0 == self.me) =>
            {
                self.set_phase(now, Phase::Training);
                self.outputs.push_back(Output::Train);
            }
            phase => {
                let holds = match phase {
                    Phase::Ready(holds) | Phase::Syncing(holds) => holds,
                    _ => self.unique_holding(),
                };
                self.set_phase(now, Phase::Syncing(holds));
                self.outputs.push_back(Output::Sync {
                    from_step: mine.from_step,
                });
            }
        }
    }

    /// Lets the steward of this moment act, and everybody notice what changed.
    fn decide(&mut self, now: Tick) {
        if matches!(self.phase, Phase::Ready(_)) && self.view.is_none() {
            return self.decide_first_view(now);
        }
        let Some(view) = &self.view else { return };
        let alive = self.alive_members(now);
        let steward = alive.first() == Some(&self.me);
        if !self.agreed {
            let holds = |peer: &PeerId| {
                *peer == self.me
                    || self
                        .heard
                        .get(peer)
                        .is_some_and(|beat| beat.view == Some(view.stamp))
            };
            if alive.len() == view.members.len() && alive.iter().all(holds) {
                self.agreed = true;
                self.outputs.push_back(Output::Agreed);
            }
        }
        if matches!(self.phase, Phase::Syncing(_))
            && now.since(self.adopted_at) > self.config.membership.silence_min
        {
            let anybody_trains = |peer: &PeerId| {
                self.heard.get(peer).is_some_and(|beat| {
                    matches!(beat.standing, Standing::Training | Standing::Ending)
                })
            };
            if !alive.iter().any(anybody_trains) {
                // Whoever held the state is gone: start anew from the best that is left.
                if let Phase::Syncing(holds) = self.phase.clone() {
                    self.view = None;
                    self.set_phase(now, Phase::Ready(holds));
                    self.outputs.push_back(Output::Pause { lost_samples: 0 });
                }
                return;
            }
        }
        if steward {
            self.steward(now, &alive);
        }
    }

    fn decide_first_view(&mut self, now: Tick) {
        let Phase::Ready(mine) = self.phase else {
            return;
        };
        let alive = self.membership.alive(now);
        let others = || self.heard.iter().filter(|(peer, _)| alive.contains(peer));
        if others().any(|(_, beat)| beat.view.is_some()) {
            self.enough_since = None;
            return;
        }
        let mut joiners: Vec<Joiner> = others()
            .filter_map(|(peer, beat)| ready(*peer, beat))
            .collect();
        joiners.push(Joiner {
            peer: self.me,
            instance: self.instance,
            batch: self.config.batch,
            holds: mine,
        });
        let set: BTreeSet<PeerId> = joiners.iter().map(|joiner| joiner.peer).collect();
        if set != self.ready_set.0 {
            self.ready_set = (set, now);
        }
        if self.ready_set.0.len() < self.config.start_peers {
            self.enough_since = None;
            return;
        }
        let enough_since = *self.enough_since.get_or_insert(now);
        let preparing = others().any(|(_, beat)| beat.standing == Standing::Preparing);
        let settled = now.since(self.ready_set.1) >= self.config.settle;
        let patient = preparing && now.since(enough_since) < self.config.prepare_patience;
        if settled && !patient && self.ready_set.0.first() == Some(&self.me) {
            joiners.sort_by_key(|joiner| joiner.peer);
            if let Some(view) = View::first(self.me, &joiners) {
                self.propose(now, view);
            }
        }
    }

    fn steward(&mut self, now: Tick, alive: &BTreeSet<PeerId>) {
        let Some(view) = &self.view else { return };
        let mut gone: BTreeMap<PeerId, Contribution> = BTreeMap::new();
        let mut joiners = Vec::new();
        for member in &view.members {
            if !alive.contains(&member.peer) {
                let work = self
                    .heard
                    .get(&member.peer)
                    .map_or(Contribution::default(), |beat| beat.contribution);
                gone.insert(member.peer, work);
            }
        }
        // An end that has begun is for those who trained: whoever comes now is given the finished model.
        if !self.is_over() {
            let recent = now.since(self.adopted_at) < self.config.membership.silence_min;
            for (peer, beat) in self
                .heard
                .iter()
                .filter(|(peer, _)| self.membership.is_alive(now, **peer))
            {
                let same = view
                    .member(*peer)
                    .is_some_and(|member| member.instance == beat.instance);
                // A member that has not heard of its admission yet still says that it is ready.
                if !(same && (recent || beat.view == Some(view.stamp))) {
                    joiners.extend(ready(*peer, beat));
                }
            }
        }
        if !gone.is_empty() || !joiners.is_empty() {
            let next = view.successor(self.me, &gone, &joiners, self.admission_step());
            return self.propose(now, next);
        }
        let Phase::Ending(mine) = &self.phase else {
            return;
        };
        let of = |peer: &PeerId| {
            let state = if *peer == self.me {
                Some(mine)
            } else {
                self.heard.get(peer)?.ending.as_ref()
            };
            state.cloned()
        };
        let states = alive.iter().map(|peer| (*peer, of(peer))).collect();
        match ending::steward_move(self.me, &states) {
            Move::Wait => {}
            Move::Decide(decision) if mine.decision == Some(decision) => {}
            Move::Decide(decision) => self.adopt_decision(now, decision),
            Move::Close => self.close(now, mine.reason.clone(), mine.decision),
            Move::CloseEmpty => self.close(now, mine.reason.clone(), None),
        }
    }

    /// A step that no member can have reached before it hears of the admission: twice as far as a beat's time carries.
    fn admission_step(&self) -> u64 {
        self.progress.0 + 2 + 2 * self.steps_per_beat
    }

    fn propose(&mut self, now: Tick, view: View) {
        let mut to: BTreeSet<PeerId> = view.members.iter().map(|member| member.peer).collect();
        to.extend(
            self.view
                .iter()
                .flat_map(|held| held.members.iter().map(|member| member.peer)),
        );
        to.remove(&self.me);
        self.outputs.extend(
            to.into_iter()
                .map(|peer| Output::SendView(peer, Box::new(view.clone()))),
        );
        self.adopt(now, view);
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

fn ready(peer: PeerId, beat: &Beat) -> Option<Joiner> {
    match beat.standing {
        Standing::Ready(holds) => Some(Joiner {
            peer,
            instance: beat.instance,
            batch: beat.batch,
            holds,
        }),
        _ => None,
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

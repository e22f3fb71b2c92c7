//! The agreement of a pipeline's peers: who is alive, which view holds, who has which copies, and when the job is over.
//!
//! No peer is special. Everybody beats; the *steward*, the lowest peer alive that can take part, proposes a view when a host
//! falls out, when frames were lost, when a better cut pays, and at the start. Everybody adopts a view with a higher stamp than
//! its own and passes it on to whoever beats with a lower one, so proposals that cross, or whose proposer dies, converge. A
//! view names the line it goes on from; each host fetches what it lacks, says that it is in place, and the first stage feeds as
//! soon as all hosts have said so. (FTPipeHD, sections 2.3 to 2.5 of the plan's reading, has a central node in this role.)

mod beats;
mod closing;
mod events;
mod global;
mod lead;
mod lines;
mod place;
mod restart;
mod wants;

pub use events::{Candidate, Input, Output, Planned, Planner, Want};

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::copies::{Held, Holding};
use super::message::{Beat, Judged, Profile, Standing, View};
use crate::ids::PeerId;
use crate::membership::{self, Membership};
use crate::time::Tick;
use crate::view::{Contribution, Stamp};
use global::Global;
use lead::Lead;
use wants::Wants;

/// What all peers of a job set alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Blocks of the model.
    pub n_blocks: u16,
    /// Samples of each micro-batch where all have as many, so that stages can be shared; else 0.
    pub rows: u32,
    /// Peers that must be ready before the first step.
    pub start_peers: usize,
    /// Copies of each stage beside its host's own.
    pub copies: usize,
    /// Steps between two lines that peers with room get whole; more where the links do not carry them that fast. None: as often as
    /// takes a sixteenth of the time. 0: never.
    pub global_every: Option<u64>,
    /// The job's last step, if it has one.
    pub last_step: Option<u64>,
    /// What follows on the loss of a host, and whether cuts change while all live.
    pub cutting: Cutting,
    /// Whether step 0 is drawn from the job's seed. If not, the job starts from weights that some peers hold, as copies of step 0.
    pub is_seeded: bool,
    /// Whether a block at a step is the same whoever made it, as where training is synchronous. If not, copies of steps beyond
    /// the line that a view goes back to are dropped, by the agreement and by its driver ([`Output::Halt`]).
    pub is_exact: bool,
    /// Whether the first stage is ahead of the others by steps, as where training is asynchronous.
    pub overlaps: bool,
    /// How often peers beat, and how long silence is tolerated.
    pub membership: membership::Config,
}

/// When the model is cut anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cutting {
    /// Whenever it pays, and when a host falls out.
    #[default]
    Adaptive,
    /// When a host falls out, and not else.
    Static,
    /// Never: the neighbour of a host that falls out takes its blocks (ResPipe, a baseline).
    Absorb,
    /// When a host falls out all restart: they measure themselves anew, and go on from the checkpoint on disk (a baseline).
    Restart,
}

/// Beats of a pipeline: a host that dies without closing its connection is missed within a second. Two lost segments in a row
/// are tolerated (a retransmission timer of 200 ms, doubled once, after a beat), on a link that loses many four.
pub const MEMBERSHIP: membership::Config = membership::Config {
    beat_every: Duration::from_millis(200),
    silence_min: Duration::from_millis(900),
    silence_lossy: Duration::from_millis(3300),
    silence_max: Duration::from_secs(5),
};

impl Config {
    /// With the defaults.
    pub fn new(n_blocks: u16) -> Self {
        Self {
            n_blocks,
            rows: 0,
            start_peers: 1,
            copies: 2,
            global_every: None,
            last_step: None,
            cutting: Cutting::default(),
            is_seeded: true,
            is_exact: true,
            overlaps: false,
            membership: MEMBERSHIP,
        }
    }
}

/// What a view that goes back cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setback {
    /// Steps that had been made before it, as far as this peer knew.
    pub reached: u64,
    /// The recovery point until then: a view that goes back further has lost more copies of a block than there are to be.
    pub safe: u64,
    /// The line that it goes on from.
    pub from: u64,
    /// Blocks of which no newer copy was known; empty where nothing was lost.
    pub lacking: Vec<u16>,
}

/// What was heard of another peer.
#[derive(Debug)]
struct Heard {
    beat: Arc<Beat>,
    holding: Holding,
    profile: Option<Arc<Profile>>,
    /// When it was last sent the view.
    told_view: Option<Tick>,
    /// The connection closed since: should it be back, it may be another process.
    is_old: bool,
}

/// What this peer says of itself.
#[derive(Debug)]
struct Own {
    standing: Standing,
    has_data: bool,
    has_room: bool,
    holding: Holding,
    profile: Option<Arc<Profile>>,
    in_place: bool,
    is_broken: bool,
    step: u64,
    slowdown: f32,
    stop: Option<String>,
    last_step: Option<u64>,
    judged: Option<Judged>,
    contribution: Contribution,
}

/// See the module's header.
#[derive(Debug)]
pub struct Agreement {
    config: Config,
    me: PeerId,
    instance: u64,
    now: Tick,
    membership: Membership,
    heard: BTreeMap<PeerId, Heard>,
    /// Profiles that came before the first beat; as many as a job has members.
    early: BTreeMap<PeerId, Arc<Profile>>,
    own: Own,
    view: Option<Arc<View>>,
    /// The view before, where it goes on until the line at which `view` begins.
    previous: Option<Arc<View>>,
    /// Views before, with the last step of theirs that was not undone since; the newest last.
    undone: VecDeque<(Stamp, u64)>,
    /// The view that was given up for a restart.
    restarted: Option<Stamp>,
    switching: Option<Stamp>,
    fed: Option<Stamp>,
    lead: Lead,
    /// When new cuts turned out to be slower than they had promised.
    broken_promises: Vec<Tick>,
    wants: Wants,
    safe: u64,
    safe_before: u64,
    forgotten: u64,
    /// Copies older than that which are held all the same.
    held_longer: Vec<Held>,
    global: Global,
    chose_last: bool,
    finishing: bool,
    closed: bool,
    paused: Option<String>,
    setback: Option<Setback>,
    outputs: VecDeque<Output>,
    next_beat: Tick,
    next_profile: Tick,
    /// When rates of links may be told again.
    next_rates: Tick,
    is_news: bool,
    planner: Box<dyn Planner>,
}

impl Agreement {
    /// A peer that prepares itself.
    pub fn new(
        config: Config,
        me: PeerId,
        instance: u64,
        now: Tick,
        planner: Box<dyn Planner>,
    ) -> Self {
        let own = Own {
            standing: Standing::Preparing,
            has_data: false,
            has_room: false,
            holding: Holding::default().seeded(config.is_seeded),
            profile: None,
            in_place: false,
            is_broken: false,
            step: 0,
            slowdown: 1.0,
            stop: None,
            last_step: config.last_step,
            judged: None,
            contribution: Contribution::default(),
        };
        Self {
            config,
            me,
            instance,
            now,
            membership: Membership::new(config.membership),
            heard: BTreeMap::new(),
            early: BTreeMap::new(),
            own,
            view: None,
            previous: None,
            undone: VecDeque::new(),
            restarted: None,
            switching: None,
            fed: None,
            lead: Lead::default(),
            broken_promises: Vec::new(),
            wants: Wants::default(),
            safe: 0,
            safe_before: 0,
            forgotten: 0,
            held_longer: Vec::new(),
            global: Global::default(),
            chose_last: false,
            finishing: false,
            closed: false,
            paused: None,
            setback: None,
            outputs: VecDeque::new(),
            next_beat: now,
            next_profile: now,
            next_rates: now,
            is_news: true,
            planner,
        }
    }

    /// Takes an input and does all that follows from it.
    pub fn handle(&mut self, now: Tick, input: Input) {
        self.now = now;
        if self.membership.tick(now) {
            self.lead.was_away(now);
        }
        match input {
            Input::Connected(peer) => self.on_connected(peer),
            Input::Disconnected(peer) => self.on_gone(peer),
            Input::Leaving(peer) => self.on_gone(peer),
            Input::Beat(peer, beat) => self.on_beat(peer, beat),
            Input::View(peer, view) => {
                self.membership.heard(now, peer);
                if view.is_of(self.config.n_blocks, self.config.rows) {
                    self.adopt(view);
                }
            }
            Input::Profile(peer, profile) => self.on_profile(peer, profile),
            Input::Prepared {
                has_data,
                profile,
                held,
            } => {
                self.own.has_data = has_data;
                let held = Holding::from_runs(&held, self.config.n_blocks);
                self.own.holding = held.seeded(self.config.is_seeded);
                if let Some(view) = self.view.clone() {
                    self.forget_undone(&view);
                }
                self.own.standing = Standing::Ready;
                self.set_profile(profile);
                self.is_news = true;
            }
            Input::Room(has_room) => {
                self.own.has_room = has_room;
                self.is_news = true;
            }
            Input::Unable(reason) => {
                self.own.standing = Standing::Unable(cut(reason));
                self.is_news = true;
            }
            Input::Slowdown(slowdown) => self.own.slowdown = believed(slowdown),
            Input::Rates(rates) => self.set_rates(rates),
            Input::Stepped {
                step,
                slowdown,
                contribution,
            } => {
                self.own.step = step;
                self.own.slowdown = believed(slowdown);
                self.own.contribution = contribution;
            }
            // Made or fetched before a restart.
            Input::Copied { .. } if self.own.standing == Standing::Preparing => {}
            Input::Copied { step, blocks } => {
                self.own
                    .holding
                    .add(step, blocks.clone(), self.config.n_blocks);
                self.wants.came(step, &blocks);
                self.is_news = true;
            }
            Input::FetchFailed(want) => self.wants.failed(now, &want),
            Input::InPlace(stamp) => self.on_in_place(stamp),
            Input::Broken(stamp) => self.on_broken(stamp),
            Input::Judged(judged) => {
                self.own.judged = Some(judged);
                self.is_news = true;
            }
            Input::StopHolds(reason) => {
                self.own.stop.get_or_insert_with(|| cut(reason));
                self.is_news = true;
            }
            Input::LastStep(step) => {
                self.own.last_step = Some(step);
                self.is_news = true;
            }
            Input::Finished(digest) => {
                self.own.standing = Standing::Finished(digest);
                self.is_news = true;
            }
            Input::Tick => {}
        }
        self.settle();
    }

    /// The next thing to do, if any.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to send in a `Tick` at the latest.
    pub fn next_wakeup(&self) -> Tick {
        let silences = self
            .membership
            .connected_peers()
            .filter_map(|peer| self.membership.down_at(peer));
        let silences = silences.filter(|at| *at > self.now);
        silences
            .chain([self.next_beat])
            .min()
            .unwrap_or(self.next_beat)
    }

    /// Everything that follows from what is known now.
    fn settle(&mut self) {
        self.miss_hosts();
        self.restart();
        self.lead();
        self.replicate();
        self.count_copies();
        self.take_place();
        self.close();
        self.want();
        self.beat();
    }

    /// Peers alive that take part, this one included, ascending.
    fn crew(&self) -> Vec<PeerId> {
        let takes_part =
            |standing: &Standing| matches!(standing, Standing::Ready | Standing::Finished(_));
        let others = self
            .heard
            .iter()
            .filter(|(peer, heard)| takes_part(&heard.beat.standing) && self.is_alive(**peer));
        let mut crew: Vec<PeerId> = others.map(|(peer, _)| *peer).collect();
        if takes_part(&self.own.standing) {
            crew.push(self.me);
        }
        crew.sort_unstable();
        crew
    }

    /// The newest view, if there is one.
    pub fn view(&self) -> Option<&Arc<View>> {
        self.view.as_ref()
    }

    /// Whether every host works in the newest view.
    pub fn is_running(&self) -> bool {
        self.view
            .as_ref()
            .is_some_and(|view| self.is_in_effect(view))
            && self.paused.is_none()
    }

    /// Why nothing is trained, where the steward found no plan.
    pub fn paused(&self) -> Option<&str> {
        self.paused.as_deref()
    }

    /// What the newest view cost that went back.
    pub fn setback(&self) -> Option<&Setback> {
        self.setback.as_ref()
    }

    /// Whether `peer` is alive, as far as this one knows.
    pub fn is_alive(&self, peer: PeerId) -> bool {
        let has_beaten = |heard: &Heard| !heard.is_old;
        peer == self.me
            || (self.membership.is_alive(self.now, peer)
                && self.heard.get(&peer).is_none_or(has_beaten))
    }

    /// Steps made, as far as is known.
    pub fn step(&self) -> u64 {
        let alive = self.heard.iter().filter(|(peer, _)| self.is_alive(**peer));
        let heard = alive.map(|(_, heard)| heard.beat.step).max();
        self.own.step.max(heard.unwrap_or(0))
    }

    /// The newest judgement known.
    pub fn judged(&self) -> Option<Judged> {
        self.own.judged
    }
}

/// A slowdown, or none where it cannot be.
fn believed(slowdown: f32) -> f32 {
    if slowdown.is_finite() {
        slowdown.clamp(1e-3, 1e6)
    } else {
        1.0
    }
}

/// A reason, as long as may be sent.
fn cut(mut reason: String) -> String {
    if let Some((at, _)) = reason
        .char_indices()
        .find(|(at, c)| at + c.len_utf8() > super::message::MAX_REASON)
    {
        reason.truncate(at);
    }
    reason
}

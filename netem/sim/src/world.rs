//! One simulated run: the queue of events, the peers, the network between them, and the record of it all.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use skein_gossip::ids::{Digest, JobId, PeerId};
use skein_model::data::{self, Splits};
use skein_node::job::JobFile;

use super::SimError;
use super::checks::Checks;
use super::event::{Device, Event, Place, traces};
use super::peer::{Effect, Job, Message, Peer};
use super::queue::Queue;
use super::stream::LANE_BOUNDS;
use super::transport::{Delivery, Transport};
use skein_netem::link::{Fabric, Nanos, NodeIndex, Profile, Trace, sub_seed};
use skein_netem::record::{Mark, Metric, Progress, Record, Traffic, Usage};
use skein_netem::scenario::{Problem, Scenario};

pub(super) const SECOND: Nanos = 1_000_000_000;

/// Real time between two lines of progress.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// A run.
#[derive(Debug)]
pub(super) struct World<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) job: Arc<Job>,
    pub(super) data: Option<Arc<Splits>>,
    pub(super) ids: Vec<PeerId>,
    /// Looked up for every message; never walked, so its order does not matter.
    pub(super) ranks: HashMap<PeerId, NodeIndex>,
    pub(super) now: Nanos,
    pub(super) queue: Queue<Event>,
    pub(super) transport: Transport<Message>,
    pub(super) devices: Vec<Device>,
    pub(super) rng: ChaCha8Rng,
    pub(super) checks: Checks,
    pub(super) hash: blake3::Hasher,
    pub(super) starts: u64,
    pub(super) marks: Vec<Mark>,
    pub(super) traffic: Vec<Traffic>,
    pub(super) usage: Vec<Vec<Usage>>,
    pub(super) last_fault: Nanos,
    pub(super) pending: Vec<usize>,
    /// Lines that change over time: which, as they are at first, and how.
    pub(super) traces: Vec<(Place, &'a Profile, &'a Trace)>,
    /// Starts that are on their way.
    starts_to_come: usize,
    is_over: bool,
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Result<Self, SimError> {
        super::only_peers(scenario)?;
        let text = scenario.job.as_ref().ok_or(SimError::NoJob)?;
        let fault = |reason: String| SimError::Job { reason };
        let mut file = JobFile::parse(text).map_err(|error| fault(error.to_string()))?;
        if file.strategy.kind != skein_node::job::strategy::Kind::Exchange {
            return Err(fault(
                "the simulator does not choose a family: write strategy.kind = \"exchange\", \"pipeline\" or \"hybrid\""
                    .into(),
            ));
        }
        let table: toml::Table = text
            .parse()
            .map_err(|error: toml::de::Error| fault(error.to_string()))?;
        if !table.contains_key("seed") {
            file.seed = scenario.seed;
        }
        let data = match scenario.sim.problem {
            Problem::Job => {
                from_folder(&mut file, scenario);
                let loaded = data::load(&file.data, &BTreeMap::new());
                Some(Arc::new(loaded.map_err(|error| fault(error.to_string()))?))
            }
            Problem::Toy { .. } => None,
        };
        // One thread: sums of floats must have one order, and the record must not depend on the machine's cores.
        skein_model::runtime::set_threads(1);
        let ids: Vec<PeerId> = (0..scenario.nodes.len())
            .map(|rank| peer_id(scenario.seed, rank))
            .collect();
        let ranks = ids.iter().copied().zip(0..).collect();
        let mut fabric = Fabric::new(ids.len(), sub_seed(scenario.seed, 0, 10));
        for (rank, node) in scenario.nodes.iter().enumerate() {
            fabric.set_up(rank, node.up.profile);
            fabric.set_down(rank, node.down.profile);
        }
        for pair in &scenario.pairs {
            fabric.set_pair(pair.from, pair.to, pair.line.profile);
        }
        let devices = scenario.nodes.iter().map(|node| Device {
            share: node.cpu,
            ..Device::default()
        });
        Ok(Self {
            job: Arc::new(Job {
                id: JobId(*blake3::hash(text.as_bytes()).as_bytes()),
                file,
                costs: scenario.sim.clone(),
            }),
            data,
            ranks,
            now: 0,
            queue: Queue::new(),
            transport: Transport::new(fabric),
            devices: devices.collect(),
            rng: ChaCha8Rng::seed_from_u64(sub_seed(scenario.seed, 0, 11)),
            checks: Checks::default(),
            hash: blake3::Hasher::new(),
            starts: 0,
            marks: Vec::new(),
            traffic: Vec::new(),
            usage: vec![Vec::new(); ids.len()],
            last_fault: 0,
            pending: Vec::new(),
            traces: traces(scenario),
            starts_to_come: 0,
            is_over: false,
            ids,
            scenario,
        })
    }

    pub(super) fn run(mut self, progress: Progress<'_>) -> Result<Record, SimError> {
        let began = Instant::now();
        let (mut told, mut said) = (began, began);
        let end = self.scenario.end.after.as_nanos() as Nanos;
        self.plan();
        while let Some((at, event)) = self.queue.pop() {
            if at > end || self.is_over {
                break;
            }
            self.now = at;
            self.take_in(&event);
            let outcome = self.happen(event);
            outcome.map_err(|what| self.broken(what))?;
            if told.elapsed().as_millis() > 500 {
                told = Instant::now();
                let is_due = said.elapsed() >= SAY_EVERY;
                if is_due {
                    said = told;
                }
                let line = is_due.then(|| self.standing());
                progress(self.seconds(), &line.unwrap_or_default());
            }
        }
        if !self.is_over {
            self.now = end;
            if self.scenario.end.job || self.scenario.end.exit {
                self.marks.push(Mark {
                    t: self.seconds(),
                    nodes: Vec::new(),
                    what: "deadline".into(),
                    detail: String::new(),
                });
            }
        }
        if self.now > self.last_fault + self.settled_after() {
            let standing = self.devices.iter().filter(|device| !device.is_stopped);
            let agreed = Checks::agreed(standing.filter_map(|device| device.peer.as_ref()));
            agreed.map_err(|what| self.broken(what))?;
        }
        let speed = self.seconds() / began.elapsed().as_secs_f64().max(1e-9);
        Ok(self.record(speed))
    }

    /// When everybody must have found each other again: longest silence, longest pause of a connection, and a few beats.
    fn settled_after(&self) -> Nanos {
        40 * SECOND * (1 + self.devices.len() as u64 / 64)
    }

    fn plan(&mut self) {
        for (rank, node) in self.scenario.nodes.iter().enumerate() {
            if let Some(start) = node.start {
                self.start_at(start.as_nanos() as Nanos, rank);
            }
        }
        self.plan_faults();
        self.queue.push(0, Event::Sample);
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        let touched = match event {
            Event::Net(event) => {
                self.transport.handle(self.now, event);
                None
            }
            Event::Work(rank, life, work) => {
                let device = &mut self.devices[rank];
                if device.life != life {
                    return Ok(());
                }
                if device.is_stopped {
                    device.held.push(Event::Work(rank, life, work));
                    return Ok(());
                }
                if let Some(peer) = &mut device.peer {
                    peer.done(self.now, work);
                }
                Some(rank)
            }
            Event::Connected(ends) => {
                self.on_connected(ends)?;
                None
            }
            Event::Lost((rank, life), peer) => {
                let device = &mut self.devices[rank];
                if device.life != life {
                    return Ok(());
                }
                if device.is_stopped {
                    device.held.push(Event::Lost((rank, life), peer));
                    return Ok(());
                }
                let is_back = self.transport.is_connected(rank, self.ranks[&peer]);
                if let Some(of) = device.peer.as_mut().filter(|_| !is_back) {
                    of.disconnected(self.now, peer);
                }
                Some(rank)
            }
            Event::Start(rank) => {
                self.starts_to_come -= 1;
                self.start(rank)?;
                Some(rank)
            }
            Event::Gone(rank, life) => {
                if self.devices[rank].life == life {
                    self.gone(rank);
                }
                None
            }
            Event::Fault(number) => {
                self.fault(number)?;
                None
            }
            Event::Trace(line, point) => {
                self.follow_trace(line, point);
                None
            }
            Event::Sample => {
                self.sample();
                None
            }
        };
        if let Some(rank) = touched {
            self.after(rank)?;
        }
        self.settle_network()
    }

    /// Hands over what came out of the network until nothing more comes out now.
    fn settle_network(&mut self) -> Result<(), String> {
        loop {
            for (at, event) in self.transport.asked() {
                self.queue.push(at, Event::Net(event));
            }
            let delivered = self.transport.delivered();
            if delivered.is_empty() {
                return Ok(());
            }
            for delivery in delivered {
                self.hand_over(delivery)?;
            }
        }
    }

    pub(super) fn hand_over(&mut self, delivery: Delivery<Message>) -> Result<(), String> {
        let Delivery { from, to, message } = delivery;
        let sender = self.ids[from];
        let device = &mut self.devices[to];
        if device.is_stopped {
            device.inbox.push((from, message));
            return Ok(());
        }
        let Some(peer) = &mut device.peer else {
            return Ok(());
        };
        let incoming = match &message {
            Message::Update { packet, .. } => Some(Checks::incoming(peer, sender, packet)),
            _ => None,
        };
        peer.received(self.now, sender, message);
        if let Some(before) = incoming {
            Checks::handed_over(peer, &before)?;
        }
        self.after(to)
    }

    /// Everything that follows from an event at one device.
    pub(super) fn after(&mut self, rank: NodeIndex) -> Result<(), String> {
        let n = self.devices.len();
        let device = &mut self.devices[rank];
        let Some(peer) = &mut device.peer else {
            return Ok(());
        };
        let life = device.life;
        for effect in peer.effects() {
            match effect {
                Effect::Later { after, work } => {
                    let at = self.now.saturating_add(after);
                    self.queue.push(at, Event::Work(rank, life, work));
                }
                Effect::Send {
                    to,
                    lane,
                    bytes,
                    message,
                } => {
                    let Some(to) = self.ranks.get(&to).copied() else {
                        continue;
                    };
                    let sent = self
                        .transport
                        .send(self.now, (rank, to), lane, bytes, message);
                    if let Err(Message::Update { seq, .. }) = sent {
                        peer.returned(self.ids[to], seq);
                    }
                    Checks::lanes(self.transport.waiting(rank, to), LANE_BOUNDS)?;
                }
            }
        }
        let wrote = std::mem::take(&mut peer.metrics);
        if !wrote.is_empty() {
            self.checks.trained(peer, false);
        }
        self.checks.after(peer, n)?;
        if !wrote.is_empty() {
            self.wrote(rank, wrote);
        }
        Ok(())
    }

    fn wrote(&mut self, rank: NodeIndex, metrics: Vec<Metric>) {
        for metric in &metrics {
            self.on_metric(rank, metric);
        }
        let closed = metrics.iter().any(|metric| metric.event == "closed");
        self.devices[rank].metrics.extend(metrics);
        if closed {
            self.look_for_end();
        }
    }

    pub(super) fn start_at(&mut self, at: Nanos, rank: NodeIndex) {
        self.starts_to_come += 1;
        self.queue.push(at, Event::Start(rank));
    }

    /// A node closed the job, or is gone: that may be the end.
    pub(super) fn look_for_end(&mut self) {
        let end = &self.scenario.end;
        let peers = || {
            self.devices
                .iter()
                .filter_map(|device| device.peer.as_ref())
        };
        let all_closed = peers().next().is_some() && peers().all(|peer| peer.closed.is_some());
        let nobody = peers().next().is_none() && self.starts_to_come == 0 && !self.may_start();
        self.is_over |= (end.job && all_closed) || (end.exit && nobody);
    }

    pub(super) fn end_now(&mut self) {
        self.is_over = true;
    }

    pub(super) fn between(&mut self, (low, high): (Nanos, Nanos)) -> Nanos {
        low + self.rng.next_u64() % (high - low + 1)
    }

    pub(super) fn seconds(&self) -> f64 {
        self.now as f64 / 1e9
    }

    /// Every event goes into the run's hash: when, what kind, and where.
    fn take_in(&mut self, event: &Event) {
        let (kind, place): (u8, u64) = match event {
            Event::Net(event) => (1, event.place()),
            Event::Work(rank, life, _) => (2, (*rank as u64) << 32 | u64::from(*life)),
            Event::Connected([(a, _), (b, _)]) => (3, (*a as u64) << 32 | *b as u64),
            Event::Lost((rank, _), _) => (4, *rank as u64),
            Event::Start(rank) => (5, *rank as u64),
            Event::Gone(rank, _) => (9, *rank as u64),
            Event::Fault(number) => (6, *number as u64),
            Event::Trace(line, point) => (7, (*line as u64) << 32 | *point as u64),
            Event::Sample => (8, 0),
        };
        let mut bytes = [0; 17];
        bytes[0] = kind;
        bytes[1..9].copy_from_slice(&self.now.to_le_bytes());
        bytes[9..].copy_from_slice(&place.to_le_bytes());
        self.hash.update(&bytes);
    }

    fn broken(&self, what: String) -> SimError {
        SimError::Broken {
            what,
            seconds: self.seconds(),
            scenario: self.scenario.name.clone(),
            file: self.file(),
            seed: self.scenario.seed,
        }
    }

    /// How the command line names the scenario.
    fn file(&self) -> String {
        let name = format!("{}.toml", self.scenario.name);
        let path = self.scenario.folder.join(name).display().to_string();
        match self.scenario.variant.as_str() {
            "" => path,
            variant => format!("{path}#{variant}"),
        }
    }

    fn standing(&self) -> String {
        let peers = || {
            self.devices
                .iter()
                .filter_map(|device| device.peer.as_ref())
        };
        let steps = peers().map(Peer::step).max().unwrap_or(0);
        format!("{} peers, step {steps}", peers().count())
    }
}

pub(super) fn peer_id(seed: u64, rank: usize) -> PeerId {
    let mut name = seed.to_le_bytes().to_vec();
    name.extend((rank as u64).to_le_bytes());
    PeerId(Digest::of(&name).0)
}

/// Paths in a job are from the scenario's folder, where programs run.
fn from_folder(file: &mut JobFile, scenario: &Scenario) {
    let data = &mut file.data;
    let paths = [&mut data.path, &mut data.validation_path];
    for path in paths.into_iter().flatten() {
        *path = scenario.folder.join(&path);
    }
}

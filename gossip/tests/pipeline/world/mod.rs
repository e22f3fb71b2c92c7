//! Peers in virtual time: a queue of events, and what happens to peers and connections.

mod connections;
mod driver;
mod stage;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::agreement::{Agreement, Config, Cutting, Input, Want};
use skein_gossip::pipeline::copies::Held;
use skein_gossip::pipeline::flow::Op;
use skein_gossip::pipeline::message::{BlockTime, Profile, View};
use skein_gossip::time::Tick;

use crate::maths;
use crate::network::{MS, Network, SECOND, between};
use crate::planner::Even;
pub(crate) use stage::Working;
use stage::{Frame, Rows};

pub(crate) fn id(n: u8) -> PeerId {
    PeerId([n; 32])
}

/// One process of a peer.
pub(crate) type Process = (PeerId, u64);
/// Copies of blocks by block and step.
pub(crate) type Store = BTreeMap<(u16, u64), u64>;

/// What a peer can be killed right after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Point {
    Halt,
    Until,
    Switch,
    InPlace,
    Feed,
    SendView,
    Fetch,
    Fetched,
    Safe,
    Forget,
    ChooseLastStep,
    Finish,
    Finished,
    Forward,
    Loss,
    Backward,
    Add,
    Apply,
    Copy,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Input(Process, Input),
    /// Arrives if the connection of this number is still open.
    Message(PeerId, Process, u64, Input),
    Frame(PeerId, Process, u64, Frame),
    /// The connection of this number between two peers breaks.
    Break(PeerId, PeerId, u64),
    Connect(PeerId, PeerId),
    Tick(PeerId),
    /// The operation that the stage of this number in the view of this key does is done.
    Done(Process, (u64, usize), Op<Rows>),
    /// A fetch that was asked for then is through, from this holder over the connection of this number.
    Fetched(Process, Want, u64, PeerId, Option<u64>),
    Kill(PeerId),
    Freeze(PeerId, u64),
    /// Starts a peer, with the copies it kept on disk or without any.
    Start(PeerId, bool),
    Split(BTreeSet<PeerId>, u64),
    Heal,
    Slow(PeerId, f64),
    Stop(PeerId),
}

pub(crate) struct Peer {
    pub(crate) agreement: Agreement,
    process: u64,
    /// Its stages, first to last.
    pub(crate) working: Vec<Working>,
    is_busy: bool,
    /// How many of its stages have made a copy at a line.
    copied: BTreeMap<u64, usize>,
    pub(crate) store: Store,
    /// The newest checkpoint on its disk.
    saved: Store,
    frozen_until: u64,
    tick_at: u64,
    /// When copies were dropped that are no part of the work any more.
    undone: u64,
    /// The last step and the blocks of the finished model.
    pub(crate) finished: Option<(u64, Vec<u64>)>,
    pub(crate) closed: bool,
}

/// How a peer is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    pub(crate) has_data: bool,
    /// Whether its disk takes the whole model.
    pub(crate) has_room: bool,
    /// Microseconds that a block and micro-batch takes, forward and backward together, as profiled.
    pub(crate) block_us: u64,
    /// By how much it is slower than that.
    pub(crate) slowdown: f64,
}

/// What happened when in the life of a view.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Life {
    pub(crate) adopted: u64,
    pub(crate) fed: u64,
    pub(crate) stepped: u64,
    pub(crate) from: u64,
}

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) now: u64,
    queue: BTreeMap<u64, VecDeque<Event>>,
    pub(crate) peers: BTreeMap<PeerId, Peer>,
    pub(crate) devices: BTreeMap<PeerId, Device>,
    disks: BTreeMap<PeerId, Store>,
    pub(crate) network: Network,
    rng: ChaCha8Rng,
    starts: u64,
    pub(crate) config: Config,
    pub(crate) micro: u32,
    /// Samples of a micro-batch; where there are several, two peers host each stage.
    pub(crate) rows: u32,
    /// Whether peers divide blocks and samples as tiers do.
    pub(crate) tiers: bool,
    pub(crate) line_every: u64,
    /// Steps between two checkpoints on disk, at least.
    pub(crate) checkpoint_every: u64,
    pub(crate) asynchronous: bool,
    pub(crate) block_bytes: u64,
    /// Bytes per second of a fetch.
    pub(crate) link_rate: u64,
    /// In percent, how much the times of operations vary.
    pub(crate) jitter: u64,
    /// Kill this peer right after it has passed this point so often.
    pub(crate) kill_points: Vec<(PeerId, Point, u64)>,
    /// How often each peer has passed each point.
    pub(crate) passed: BTreeMap<(PeerId, Point), u64>,
    pub(crate) kills: Vec<u64>,
    pub(crate) views: BTreeMap<(u64, PeerId), Life>,
    /// Fetched: when, by whom, which, and whether training waited.
    pub(crate) fetched: Vec<(u64, PeerId, Want)>,
    pub(crate) refused: u64,
    /// Steps at which copies were made.
    pub(crate) lines: BTreeSet<u64>,
    pub(crate) steps_made: u64,
    pub(crate) stalest: u64,
    is_traced: bool,
}

impl World {
    /// Peers 1 to `n` start within half a second; the first `n_data` of them hold the data. The job has `steps` steps.
    pub(crate) fn started(seed: u64, n: u8, n_data: u8, steps: u64) -> Self {
        let mut world = Self::new(seed, n, steps);
        for peer in 1..=n {
            world.add(peer, peer <= n_data, 3000);
            let at = world.between(0, 500) * MS;
            world.at(at, Event::Start(id(peer), false));
        }
        world
    }

    pub(crate) fn new(seed: u64, start_peers: u8, steps: u64) -> Self {
        let mut config = Config::new(8);
        config.start_peers = start_peers.into();
        config.last_step = Some(steps);
        config.cutting = Cutting::Adaptive;
        Self {
            seed,
            now: 0,
            queue: BTreeMap::new(),
            peers: BTreeMap::new(),
            devices: BTreeMap::new(),
            disks: BTreeMap::new(),
            network: Network::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            starts: 0,
            config,
            micro: 4,
            rows: 1,
            tiers: false,
            line_every: 1,
            checkpoint_every: 20,
            asynchronous: false,
            block_bytes: 100_000,
            link_rate: 12_000_000,
            jitter: 5,
            kill_points: Vec::new(),
            passed: BTreeMap::new(),
            kills: Vec::new(),
            views: BTreeMap::new(),
            fetched: Vec::new(),
            refused: 0,
            lines: BTreeSet::new(),
            steps_made: 0,
            stalest: 0,
            is_traced: std::env::var("SKEIN_TEST_TRACE").is_ok(),
        }
    }

    pub(crate) fn add(&mut self, peer: u8, has_data: bool, block_us: u64) {
        let device = Device {
            has_data,
            has_room: false,
            block_us,
            slowdown: 1.0,
        };
        self.devices.insert(id(peer), device);
    }

    /// The disk of `peer` has the weights that the job starts from.
    pub(crate) fn give_weights(&mut self, peer: u8) {
        let block = |block| ((block, 0), maths::initial(self.seed, block));
        let blocks = (0..self.config.n_blocks).map(block).collect();
        self.disks.insert(id(peer), blocks);
    }

    /// The disk of `peer` takes the whole model.
    pub(crate) fn roomy(&mut self, peer: u8) {
        self.devices.get_mut(&id(peer)).unwrap().has_room = true;
    }

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        let at = at.max(self.now);
        self.queue.entry(at).or_default().push_back(event);
    }

    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        between(&mut self.rng, low, high)
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            let what: String = what().chars().take(400).collect();
            eprintln!("{:>9.3} {what}", self.now as f64 / 1e3);
        }
    }

    fn start(&mut self, peer: PeerId, from_disk: bool) {
        if self.peers.contains_key(&peer) {
            return;
        }
        self.starts += 1;
        let planner = Even {
            n_blocks: self.config.n_blocks,
            // Where steps overlap there is no end of a step to wait for.
            micro: if self.asynchronous { 100 } else { self.micro },
            rows: self.rows,
            tiers: self.tiers,
            block_bytes: self.block_bytes,
        };
        let agreement = Agreement::new(
            self.config,
            peer,
            self.starts,
            Tick(self.now),
            Box::new(planner),
        );
        let disk = self.disks.remove(&peer).filter(|_| from_disk);
        let state = Peer {
            agreement,
            process: self.starts,
            working: Vec::new(),
            is_busy: false,
            copied: BTreeMap::new(),
            store: disk.unwrap_or_default(),
            saved: Store::new(),
            frozen_until: 0,
            tick_at: self.now,
            undone: 0,
            finished: None,
            closed: false,
        };
        let others: Vec<PeerId> = self.peers.keys().copied().collect();
        self.peers.insert(peer, state);
        let prepared = self.prepared(peer);
        for other in others {
            let at = self.now + self.between(1, 20) * MS;
            self.at(at, Event::Connect(peer, other));
        }
        let ready = self.now + self.between(1, 300) * MS;
        self.at(ready, Event::Input((peer, self.starts), prepared));
        let room = Input::Room(self.devices[&peer].has_room);
        self.at(ready, Event::Input((peer, self.starts), room));
        self.at(self.now, Event::Tick(peer));
        self.trace(|| format!("{} starts", peer.0[0]));
    }

    /// What a peer says that has measured its device and read its disk.
    fn prepared(&self, peer: PeerId) -> Input {
        let state = &self.peers[&peer];
        let held = state.store.keys().map(|(block, step)| Held {
            step: *step,
            first: *block,
            end: block + 1,
        });
        let held = held.collect();
        let device = self.devices[&peer];
        let third = device.block_us as f32 / 3.0;
        let time = BlockTime {
            forward_us: third,
            backward_us: 2.0 * third,
        };
        let profile = Profile {
            blocks: vec![time; self.config.n_blocks.into()],
            fewer: Vec::new(),
            memory: 0,
            rates: Vec::new(),
            data: None,
            weights: None,
            tier: None,
        };
        Input::Prepared {
            has_data: device.has_data,
            profile,
            held,
        }
    }

    /// A safe line goes to the disk now and then.
    fn save(&mut self, peer: PeerId, step: u64) {
        let state = self.peers.get_mut(&peer).unwrap();
        let last = state.saved.keys().map(|(_, step)| *step).max();
        if step >= last.unwrap_or(0) + self.checkpoint_every {
            let of_line = state.store.iter().filter(|((_, held), _)| *held == step);
            state.saved = of_line.map(|(key, state)| (*key, *state)).collect();
        }
    }

    fn process(&self, peer: PeerId) -> Option<Process> {
        self.peers.get(&peer).map(|state| (peer, state.process))
    }

    fn is_up(&self, process: Process) -> bool {
        self.process(process.0) == Some(process)
    }

    pub(crate) fn kill(&mut self, peer: PeerId) {
        let Some(state) = self.peers.remove(&peer) else {
            return;
        };
        self.trace(|| format!("{} is killed", peer.0[0]));
        self.kills.push(self.now);
        self.disks.insert(peer, state.store);
        // A job waits for all before it begins.
        if self
            .peers
            .values()
            .all(|state| state.agreement.view().is_none())
        {
            self.at(self.now + SECOND, Event::Start(peer, false));
        }
        let others: Vec<PeerId> = self.peers.keys().copied().collect();
        for other in others {
            if let Some(connection) = self.network.connection(peer, other)
                && self.network.reaches(peer, other)
            {
                let at = self.now + self.between(1, 6) * MS;
                self.at(at, Event::Break(peer, other, connection));
            }
        }
    }

    pub(crate) fn run(&mut self, until: u64) {
        while let Some(mut entry) = self.queue.first_entry() {
            let at = *entry.key();
            if at > until {
                break;
            }
            self.now = at;
            match entry.get_mut().pop_front() {
                Some(event) => self.happen(event),
                None => {
                    entry.remove();
                }
            }
        }
        self.now = until;
    }

    /// Runs until every peer that is up has closed; panics where that takes longer than `within` microseconds.
    pub(crate) fn run_to_the_end(&mut self, within: u64) {
        let deadline = self.now + within;
        while self.now < deadline && !self.all_closed() {
            self.run(self.now + 100 * MS);
        }
        assert!(self.all_closed(), "stuck: {}", self.standing());
        assert!(self.n_views() < 60, "views without end: {:?}", self.views);
    }

    pub(crate) fn all_closed(&self) -> bool {
        !self.peers.is_empty() && self.peers.values().all(|peer| peer.closed)
    }

    /// What every peer says of itself, for the message of a failure.
    pub(crate) fn standing(&self) -> String {
        let says = |(peer, state): (&PeerId, &Peer)| {
            let agreement = &state.agreement;
            let flows = state.working.iter();
            let flow: Vec<u64> = flows.map(|working| working.flow.applied()).collect();
            let mut beat = agreement.own_beat();
            beat.held.truncate(4);
            format!(
                "\n{}: steward {:?} view {:?} flow at {flow:?} paused {:?} beat {beat:?}",
                peer.0[0],
                agreement.steward().map(|peer| peer.0[0]),
                agreement.view(),
                agreement.paused()
            )
        };
        self.peers.iter().map(says).collect()
    }

    /// Every peer that is up holds the model that a computation in one place gives, after the same last step.
    pub(crate) fn check_exact(&self) {
        let mut steps = BTreeSet::new();
        for (peer, state) in &self.peers {
            let (step, blocks) = state.finished.as_ref().unwrap();
            let alone = maths::alone(
                self.seed,
                self.config.n_blocks,
                (self.micro, self.rows),
                *step,
            );
            assert!(*blocks == alone, "peer {} at step {step}", peer.0[0]);
            steps.insert(*step);
        }
        assert_eq!(steps.len(), 1, "{steps:?}");
        if let Some(last) = self.config.last_step {
            assert!(steps.contains(&last));
        }
    }

    pub(crate) fn n_views(&self) -> usize {
        self.views.len()
    }

    pub(crate) fn view_of(&self, peer: u8) -> Option<Arc<View>> {
        self.peers.get(&id(peer))?.agreement.view().cloned()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "seed {} at {:.3} s, kill points {:?}",
                self.seed,
                self.now as f64 / 1e6,
                self.kill_points
            );
        }
    }
}

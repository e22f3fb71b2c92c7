//! Peers in virtual time: a queue of events, and what the driver of each peer would do.

mod driver;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use skein_gossip::agreement::{Agreement, Batching, Config, Input};
use skein_gossip::batching::power::{Fit, Power};
use skein_gossip::ids::{Digest, PeerId};
use skein_gossip::message::Decision;
use skein_gossip::time::Tick;
use skein_gossip::view::{Holding, Stamp, View};

use crate::network::{MS, Network, between};

pub(crate) fn id(n: u16) -> PeerId {
    let [high, low] = n.to_be_bytes();
    PeerId(std::array::from_fn(|i| if i % 2 == 0 { high } else { low }))
}

/// One process of a peer.
type Process = (PeerId, u64);

#[derive(Debug, Clone)]
pub(crate) enum Event {
    Input(PeerId, Input),
    /// Arrives if the connection that it was sent on is still open.
    Message(Process, Process, Input),
    Tick(PeerId),
    /// The driver's slow work is done.
    Work(Process, Work),
    Kill(PeerId),
    Pause(PeerId, u64),
    Start(PeerId),
    Split(BTreeSet<PeerId>),
    Heal,
    /// As `Split`, but shorter than connections live: what is sent meanwhile arrives after `Mend`, as on a stream.
    Cut(BTreeSet<PeerId>),
    Mend,
    Stop(PeerId),
}

#[derive(Debug, Clone)]
pub(crate) enum Work {
    Sync,
    Evaluate,
    Fetch(Decision),
    Step,
}

pub(crate) struct Peer {
    pub(crate) agreement: Agreement,
    process: u64,
    pub(crate) training: bool,
    pub(crate) step: u64,
    pub(crate) samples: u64,
    weights: BTreeSet<Digest>,
    pub(crate) closed: Option<Option<Decision>>,
    paused_until: u64,
    tick_at: u64,
    power: Power,
}

/// How far a view has spread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) proposed: u64,
    pub(crate) last_adopted: u64,
    pub(crate) agreed_last: u64,
    pub(crate) n_agreed: usize,
}

pub(crate) struct World {
    pub(crate) now: u64,
    /// Events handled.
    pub(crate) n_events: u64,
    /// By time, and in order of their making.
    queue: BTreeMap<u64, VecDeque<Event>>,
    pub(crate) peers: BTreeMap<PeerId, Peer>,
    pub(crate) network: Network,
    rng: ChaCha8Rng,
    starts: u64,
    start_peers: usize,
    pub(crate) lost_samples: u64,
    /// Milliseconds that a connection may take to be made.
    pub(crate) slowest_connection: u64,
    /// Milliseconds that a step takes.
    pub(crate) step_every: u64,
    /// The fewest members of any view adopted so far.
    pub(crate) smallest_view: usize,
    /// Peers whose training has come to nothing.
    pub(crate) diverged: BTreeSet<PeerId>,
    /// Peers that judge their replica for a minute.
    pub(crate) slow: BTreeSet<PeerId>,
    /// How samples are shared out.
    pub(crate) batching: Batching,
    /// Microseconds per sample of each peer; where none is known a step takes `step_every`.
    pub(crate) speeds: BTreeMap<PeerId, u64>,
    /// Fits that some claim, whatever their steps take.
    pub(crate) lies: BTreeMap<PeerId, Fit>,
    /// The global batch of each view adopted, and the smallest batch of a member.
    pub(crate) shared_out: Vec<(u64, u32)>,
    /// The views so far, by number.
    pub(crate) spread: BTreeMap<u64, Spread>,
    /// The members of each view by its name, which no other may have.
    named: BTreeMap<Stamp, Vec<PeerId>>,
    /// What the first to close closed with.
    closed_with: Option<Option<Digest>>,
    /// Each side of a network partition may have come to its own end.
    pub(crate) may_end_apart: bool,
    /// What a cut holds back, in order: messages, and ends of connections.
    held: Vec<(Process, Process, Input)>,
    ended: Vec<(PeerId, PeerId)>,
    /// Pairs that could not meet because of it.
    unmet: Vec<(PeerId, PeerId)>,
}

impl World {
    pub(crate) fn new(seed: u64, start_peers: usize) -> Self {
        Self {
            now: 0,
            n_events: 0,
            queue: BTreeMap::new(),
            peers: BTreeMap::new(),
            network: Network::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            starts: 0,
            start_peers,
            lost_samples: 0,
            slowest_connection: 20,
            step_every: 100,
            smallest_view: usize::MAX,
            diverged: BTreeSet::new(),
            slow: BTreeSet::new(),
            batching: Batching::default(),
            speeds: BTreeMap::new(),
            lies: BTreeMap::new(),
            shared_out: Vec::new(),
            spread: BTreeMap::new(),
            named: BTreeMap::new(),
            closed_with: None,
            may_end_apart: false,
            held: Vec::new(),
            ended: Vec::new(),
            unmet: Vec::new(),
        }
    }

    /// Peers 1 to `n` start within a second.
    pub(crate) fn started(seed: u64, n: u16) -> Self {
        let mut world = Self::new(seed, n.into());
        for peer in 1..=n {
            let at = world.between(0, 900) * MS;
            world.at(at, Event::Start(id(peer)));
        }
        world
    }

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        let at = at.max(self.now);
        self.queue.entry(at).or_default().push_back(event);
    }

    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        between(&mut self.rng, low, high)
    }

    fn later(&mut self, low: u64, high: u64) -> u64 {
        self.now + self.between(low, high) * MS
    }

    fn start(&mut self, peer: PeerId) {
        self.starts += 1;
        let mut config = Config::new(self.start_peers, 32);
        config.batching = self.batching;
        let agreement = Agreement::new(config, peer, self.starts, Tick(self.now));
        let others: Vec<PeerId> = self.peers.keys().copied().collect();
        self.peers.insert(
            peer,
            Peer {
                agreement,
                process: self.starts,
                training: false,
                step: 0,
                samples: 0,
                weights: BTreeSet::new(),
                closed: None,
                paused_until: 0,
                tick_at: self.now,
                power: Power::new(),
            },
        );
        for other in others {
            if other != peer && self.network.linked(peer, other) {
                self.connect(peer, other);
            }
        }
        let ready = self.later(1, 500);
        let holds = Holding {
            samples: 0,
            step: 0,
            digest: Digest([7; 32]),
        };
        self.at(ready, Event::Input(peer, Input::Prepared(holds)));
        self.at(self.now, Event::Tick(peer));
    }

    fn connect(&mut self, a: PeerId, b: PeerId) {
        if self.network.is_cut(a, b) {
            return self.unmet.push((a, b));
        }
        let at = self.later(1, self.slowest_connection);
        self.at(at, Event::Input(a, Input::Connected(b)));
        self.at(at, Event::Input(b, Input::Connected(a)));
    }

    fn disconnect(&mut self, a: PeerId, b: PeerId) {
        if self.network.is_cut(a, b) {
            return self.ended.push((a, b));
        }
        let at = self.now + MS;
        self.at(at, Event::Input(a, Input::Disconnected(b)));
        self.at(at, Event::Input(b, Input::Disconnected(a)));
    }

    fn handle(&mut self, peer: PeerId, input: Input) {
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        state.agreement.handle(Tick(self.now), input);
        self.n_events += 1;
        let mut outputs = Vec::new();
        while let Some(output) = state.agreement.poll() {
            outputs.push(output);
        }
        let process = (peer, state.process);
        self.network.weigh_anew();
        for output in outputs {
            self.carry_out(process, output);
        }
        self.plan_tick(peer);
    }

    fn plan_tick(&mut self, peer: PeerId) {
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        let wakeup = state.agreement.next_wakeup().0.max(state.paused_until);
        if wakeup < state.tick_at {
            state.tick_at = wakeup;
            self.at(wakeup, Event::Tick(peer));
        }
    }

    fn send(&mut self, from: Process, to: PeerId, input: Input) {
        let Some(state) = self.peers.get(&to) else {
            return;
        };
        let process = (to, state.process);
        if self.network.linked(from.0, to)
            && let Some(at) = self.network.arrival(&mut self.rng, self.now, from.0, to)
        {
            self.at(at, Event::Message(from, process, input));
        }
    }

    fn trains(&mut self, peer: PeerId, training: bool) {
        self.peers.get_mut(&peer).unwrap().training = training;
    }

    fn adopted(&mut self, view: &Arc<View>) {
        let members: Vec<PeerId> = view.members.iter().map(|member| member.peer).collect();
        let first = self.named.entry(view.stamp).or_insert(members.clone());
        assert_eq!(*first, members, "two views named {:?}", view.stamp);
        self.smallest_view = self.smallest_view.min(view.members.len());
        let least = view.members.iter().map(|member| member.batch).min();
        self.shared_out.push((view.global_batch(), least.unwrap()));
        let spread = self.spread.entry(view.stamp.number).or_insert(Spread {
            proposed: self.now,
            last_adopted: 0,
            agreed_last: 0,
            n_agreed: 0,
        });
        spread.last_adopted = self.now;
    }

    /// Safety: nobody closes with another model than the rest, or with one that it does not hold.
    fn closed(&mut self, peer: PeerId, decision: Option<Decision>) {
        let state = self.peers.get_mut(&peer).unwrap();
        state.closed = Some(decision);
        let digest = decision.map(|decision| decision.candidate.digest);
        if let Some(digest) = &digest {
            assert!(state.weights.contains(digest), "closed without the weights");
        }
        // Whoever met nobody has none; that is no other model.
        let first = self.closed_with.flatten().or(digest);
        self.closed_with = Some(first);
        assert!(
            first == digest || digest.is_none() || self.may_end_apart,
            "two different models: {first:?}, {digest:?}"
        );
    }

    fn is_up(&self, process: Process) -> bool {
        self.peers
            .get(&process.0)
            .is_some_and(|peer| peer.process == process.1)
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

    fn happen(&mut self, event: Event) {
        let at = self.now;
        match event {
            Event::Input(peer, _)
            | Event::Message(_, (peer, _), _)
            | Event::Work((peer, _), _)
            | Event::Tick(peer)
                if self.peers.get(&peer).is_some_and(|p| p.paused_until > at) =>
            {
                let state = self.peers.get_mut(&peer).unwrap();
                let resume = state.paused_until;
                if matches!(event, Event::Tick(_)) {
                    state.tick_at = resume;
                }
                self.at(resume, event);
            }
            Event::Input(peer, input) => self.handle(peer, input),
            Event::Message(from, to, input) if self.network.is_cut(from.0, to.0) => {
                self.held.push((from, to, input));
            }
            Event::Message(from, to, input) => {
                if self.is_up(from) && self.is_up(to) && self.network.linked(from.0, to.0) {
                    self.handle(to.0, input);
                }
            }
            Event::Tick(peer) => {
                // One that was planned anew comes at another time.
                let Some(state) = self.peers.get_mut(&peer).filter(|p| p.tick_at == at) else {
                    return;
                };
                state.tick_at = u64::MAX;
                match state.agreement.next_wakeup().0 <= at {
                    true => self.handle(peer, Input::Tick),
                    false => self.plan_tick(peer),
                }
            }
            Event::Work(process, work) => self.work(process, work),
            Event::Start(peer) => self.start(peer),
            Event::Kill(peer) => {
                self.peers.remove(&peer);
                let rest: Vec<PeerId> = self.peers.keys().copied().collect();
                for other in rest {
                    self.disconnect(other, peer);
                }
            }
            Event::Pause(peer, until) => {
                if let Some(state) = self.peers.get_mut(&peer) {
                    state.paused_until = until;
                }
            }
            Event::Split(apart) => {
                self.network.apart = apart;
                self.for_all_pairs(|world, a, b| {
                    if !world.network.linked(a, b) {
                        world.disconnect(a, b);
                    }
                });
            }
            Event::Heal => {
                let apart = std::mem::take(&mut self.network.apart);
                self.for_all_pairs(|world, a, b| {
                    if apart.contains(&a) != apart.contains(&b) {
                        world.connect(a, b);
                    }
                });
            }
            Event::Cut(apart) => self.network.cut = apart,
            Event::Mend => self.mend(),
            Event::Stop(peer) => self.handle(peer, Input::StopHolds("enough".into())),
        }
    }

    /// Each link goes on at its next try to send.
    fn mend(&mut self) {
        self.network.cut.clear();
        for (a, b) in std::mem::take(&mut self.ended) {
            self.disconnect(a, b);
        }
        for (a, b) in std::mem::take(&mut self.unmet) {
            if self.peers.contains_key(&a) && self.peers.contains_key(&b) {
                self.connect(a, b);
            }
        }
        for (from, to, input) in std::mem::take(&mut self.held) {
            let link = (from.0, to.0);
            let at = match self.network.stalled.get(&link) {
                Some(at) if *at > self.now => *at,
                _ => self.later(1, 1500),
            };
            self.network.stalled.insert(link, at);
            self.at(at, Event::Message(from, to, input));
        }
    }

    fn for_all_pairs(&mut self, mut f: impl FnMut(&mut Self, PeerId, PeerId)) {
        let all: Vec<PeerId> = self.peers.keys().copied().collect();
        for (i, a) in all.iter().enumerate() {
            for b in &all[i + 1..] {
                f(self, *a, *b);
            }
        }
    }

    pub(crate) fn members(&self, peer: u16) -> Vec<PeerId> {
        self.peers[&id(peer)]
            .agreement
            .view()
            .map_or(Vec::new(), |v| v.members.iter().map(|m| m.peer).collect())
    }

    /// Samples per step of `of`, as `peer` has it.
    pub(crate) fn batch(&self, peer: u16, of: u16) -> u32 {
        let view = self.peers[&id(peer)].agreement.view().unwrap();
        view.member(id(of)).unwrap().batch
    }

    pub(crate) fn all_closed(&self) -> bool {
        self.peers
            .values()
            .all(|peer| matches!(peer.closed, Some(Some(_))))
    }
}

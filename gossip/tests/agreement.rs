//! Simulated peers agree on a job under delays, kills, pauses and partitions; every case prints its seed on failure.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use skein_gossip::agreement::{Agreement, Config, Input, Output};
use skein_gossip::ids::{Digest, PeerId};
use skein_gossip::message::{Candidate, Decision};
use skein_gossip::time::Tick;
use skein_gossip::view::{Contribution, Holding};

const MS: u64 = 1000;

fn id(n: u8) -> PeerId {
    PeerId([n; 32])
}

#[derive(Debug, Clone)]
enum Event {
    Input(PeerId, Input),
    /// The driver's slow work is done.
    Work(PeerId, Work),
    Kill(PeerId),
    Pause(PeerId, u64),
    Start(PeerId),
    Split(BTreeSet<PeerId>),
    Heal,
    Stop(PeerId),
}

#[derive(Debug, Clone)]
enum Work {
    Sync,
    Evaluate,
    Fetch(Decision),
    Step,
}

struct Peer {
    agreement: Agreement,
    training: bool,
    step: u64,
    samples: u64,
    weights: BTreeSet<Digest>,
    closed: Option<Option<Decision>>,
    paused_until: u64,
}

struct World {
    now: u64,
    seq: u64,
    queue: BTreeMap<(u64, u64), Event>,
    peers: BTreeMap<PeerId, Peer>,
    apart: BTreeSet<PeerId>,
    rng: ChaCha8Rng,
    starts: u64,
    start_peers: usize,
    lost_samples: u64,
    /// Milliseconds that a connection may take to be made.
    slowest_connection: u64,
    /// The fewest members of any view adopted so far.
    smallest_view: usize,
    /// Peers whose training has come to nothing.
    diverged: BTreeSet<PeerId>,
}

impl World {
    fn new(seed: u64, start_peers: usize) -> Self {
        Self {
            now: 0,
            seq: 0,
            queue: BTreeMap::new(),
            peers: BTreeMap::new(),
            apart: BTreeSet::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            starts: 0,
            start_peers,
            lost_samples: 0,
            slowest_connection: 20,
            smallest_view: usize::MAX,
            diverged: BTreeSet::new(),
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        self.seq += 1;
        self.queue.insert((at.max(self.now), self.seq), event);
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.rng.next_u64() % (high - low + 1)
    }

    fn linked(&self, a: PeerId, b: PeerId) -> bool {
        self.apart.contains(&a) == self.apart.contains(&b)
    }

    fn start(&mut self, peer: PeerId) {
        self.starts += 1;
        let agreement = Agreement::new(
            Config::new(self.start_peers, 32),
            peer,
            self.starts,
            Tick(self.now),
        );
        let others: Vec<PeerId> = self
            .peers
            .keys()
            .copied()
            .filter(|other| self.linked(peer, *other))
            .collect();
        self.peers.insert(
            peer,
            Peer {
                agreement,
                training: false,
                step: 0,
                samples: 0,
                weights: BTreeSet::new(),
                closed: None,
                paused_until: 0,
            },
        );
        for other in others {
            self.connect(peer, other);
        }
        let ready = self.now + self.between(1, 500) * MS;
        let holds = Holding {
            samples: 0,
            step: 0,
            digest: Digest([7; 32]),
        };
        self.at(ready, Event::Input(peer, Input::Prepared(holds)));
        self.at(self.now, Event::Input(peer, Input::Tick));
    }

    fn connect(&mut self, a: PeerId, b: PeerId) {
        let at = self.now + self.between(1, self.slowest_connection) * MS;
        self.at(at, Event::Input(a, Input::Connected(b)));
        self.at(at, Event::Input(b, Input::Connected(a)));
    }

    fn disconnect(&mut self, a: PeerId, b: PeerId) {
        let at = self.now + MS;
        self.at(at, Event::Input(a, Input::Disconnected(b)));
        self.at(at, Event::Input(b, Input::Disconnected(a)));
    }

    fn drain(&mut self, peer: PeerId) {
        let mut outputs = Vec::new();
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        while let Some(output) = state.agreement.poll() {
            outputs.push(output);
        }
        let wakeup = state.agreement.next_wakeup().0;
        for output in outputs {
            let delay = self.between(1, 30) * MS;
            let later = self.now + delay;
            let apart = self.apart.clone();
            let linked = |to: PeerId| apart.contains(&peer) == apart.contains(&to);
            let state = self.peers.get_mut(&peer).unwrap();
            match output {
                Output::SendBeat(to, beat) => {
                    if linked(to) {
                        self.at(later, Event::Input(to, Input::Beat(peer, beat)));
                    }
                }
                Output::SendView(to, view) => {
                    if linked(to) {
                        self.at(later, Event::Input(to, Input::View(peer, view)));
                    }
                }
                Output::Adopted(view) => {
                    self.smallest_view = self.smallest_view.min(view.members.len());
                }
                Output::Agreed => {}
                Output::Sync { .. } => {
                    state.training = false;
                    let done = self.now + self.between(50, 1500) * MS;
                    self.at(done, Event::Work(peer, Work::Sync));
                }
                Output::Train => {
                    state.training = true;
                    self.at(later, Event::Work(peer, Work::Step));
                }
                Output::Pause { lost_samples } => {
                    state.training = false;
                    self.lost_samples += lost_samples;
                }
                Output::End { abstain, .. } => {
                    state.training = false;
                    if !abstain {
                        let done = self.now + self.between(10, 800) * MS;
                        self.at(done, Event::Work(peer, Work::Evaluate));
                    }
                }
                Output::Fetch(decision) => {
                    let done = self.now + self.between(10, 1000) * MS;
                    self.at(done, Event::Work(peer, Work::Fetch(decision)));
                }
                Output::Closed(decision) => state.closed = Some(decision),
            }
        }
        self.at(wakeup, Event::Input(peer, Input::Tick));
    }

    fn work(&mut self, peer: PeerId, work: Work) {
        let now = Tick(self.now);
        let alive: BTreeSet<PeerId> = self
            .peers
            .keys()
            .copied()
            .filter(|other| self.linked(peer, *other))
            .collect();
        let retry = self.now + 300 * MS;
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        let input = match work.clone() {
            Work::Sync => {
                if state.training || state.closed.is_some() {
                    return;
                }
                let donor = state
                    .agreement
                    .donors(now)
                    .into_iter()
                    .find(|donor| alive.contains(donor));
                let Some(donor) = donor else {
                    return self.at(retry, Event::Work(peer, work));
                };
                let step = self.peers[&donor].step;
                let state = self.peers.get_mut(&peer).unwrap();
                state.step = step;
                Input::Synced { step }
            }
            Work::Evaluate if self.diverged.contains(&peer) => Input::NoCandidate,
            Work::Evaluate => {
                let candidate = Candidate {
                    accuracy: (state.step % 97) as f32 / 97.0,
                    loss: 1.0,
                    digest: Digest::of(&[&peer.0[..], &state.step.to_le_bytes()].concat()),
                    step: state.step,
                };
                state.weights.insert(candidate.digest);
                Input::Evaluated(candidate)
            }
            Work::Fetch(decision) => {
                let digest = decision.candidate.digest;
                let holders = state.agreement.holders(now, digest);
                let served = holders
                    .iter()
                    .any(|h| alive.contains(h) && self.peers[h].weights.contains(&digest));
                if !served {
                    return self.at(retry, Event::Work(peer, work));
                }
                self.peers.get_mut(&peer).unwrap().weights.insert(digest);
                Input::Fetched(digest)
            }
            Work::Step => {
                if !state.training {
                    return;
                }
                state.step += 1;
                state.samples += 32;
                let contribution = Contribution {
                    steps: state.samples / 32,
                    samples: state.samples,
                    ..Default::default()
                };
                let step = state.step;
                let next = self.now + 100 * MS;
                self.at(next, Event::Work(peer, Work::Step));
                Input::Progress {
                    step,
                    train_loss: 1.0,
                    contribution,
                }
            }
        };
        self.at(self.now, Event::Input(peer, input));
    }

    fn run(&mut self, until: u64) {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            if at > until {
                break;
            }
            self.now = at;
            match event {
                Event::Input(peer, _) | Event::Work(peer, _)
                    if self.peers.get(&peer).is_some_and(|p| p.paused_until > at) =>
                {
                    let resume = self.peers[&peer].paused_until;
                    self.at(resume, event);
                }
                Event::Input(peer, input) => {
                    if let Some(state) = self.peers.get_mut(&peer) {
                        let is_tick = matches!(input, Input::Tick);
                        if is_tick && state.agreement.next_wakeup().0 > at {
                            continue;
                        }
                        state.agreement.handle(Tick(at), input);
                        self.drain(peer);
                    }
                }
                Event::Work(peer, work) => self.work(peer, work),
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
                    self.apart = apart;
                    self.for_all_pairs(|world, a, b| {
                        if !world.linked(a, b) {
                            world.disconnect(a, b);
                        }
                    });
                }
                Event::Heal => {
                    let apart = std::mem::take(&mut self.apart);
                    self.for_all_pairs(|world, a, b| {
                        if apart.contains(&a) != apart.contains(&b) {
                            world.connect(a, b);
                        }
                    });
                }
                Event::Stop(peer) => {
                    self.at(at, Event::Input(peer, Input::StopHolds("enough".into())))
                }
            }
            self.check();
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

    /// Safety, after every event: nobody closes with another model than the rest, or with one that it does not hold.
    fn check(&self) {
        let closed: BTreeSet<Option<Digest>> = self
            .peers
            .values()
            .filter_map(|peer| {
                peer.closed
                    .map(|decision| decision.map(|d| d.candidate.digest))
            })
            .collect();
        assert!(closed.len() <= 1, "two different models: {closed:?}");
        for peer in self.peers.values() {
            if let Some(Some(decision)) = peer.closed {
                assert!(
                    peer.weights.contains(&decision.candidate.digest),
                    "closed without the weights"
                );
            }
        }
    }

    fn members(&self, peer: u8) -> Vec<PeerId> {
        self.peers[&id(peer)]
            .agreement
            .view()
            .map_or(Vec::new(), |v| v.members.iter().map(|m| m.peer).collect())
    }

    fn all_closed(&self) -> bool {
        self.peers
            .values()
            .all(|peer| matches!(peer.closed, Some(Some(_))))
    }
}

fn seconds(s: f64) -> u64 {
    Duration::from_secs_f64(s).as_micros() as u64
}

fn started(seed: u64, n: u8) -> World {
    let mut world = World::new(seed, n as usize);
    for peer in 1..=n {
        let at = world.between(0, 900) * MS;
        world.at(at, Event::Start(id(peer)));
    }
    world
}

#[test]
fn peers_start_together_and_close_with_one_model() {
    for seed in 0..20 {
        let mut world = started(seed, 4);
        world.run(seconds(5.0));
        for peer in 1..=4 {
            assert_eq!(world.members(peer).len(), 4, "seed {seed}, peer {peer}");
            assert!(world.peers[&id(peer)].training, "seed {seed}, peer {peer}");
        }
        world.at(seconds(6.0), Event::Stop(id(3)));
        world.run(seconds(15.0));
        assert!(world.all_closed(), "seed {seed}");
        // They are silent from now on, which is no reason to drop each other.
        world.run(seconds(40.0));
        for peer in 1..=4 {
            assert_eq!(world.members(peer).len(), 4, "seed {seed}, peer {peer}");
        }
    }
}

#[test]
fn a_kill_at_any_moment_never_keeps_the_rest_from_closing() {
    for seed in 0..150 {
        let mut world = started(seed, 4);
        let victim = id(1 + (seed % 4) as u8);
        let at = world.between(500, 16_000) * MS;
        world.at(at, Event::Kill(victim));
        // A second one later, often in the middle of the end.
        let second = id(1 + ((seed / 4 + 1) % 4) as u8);
        let at = world.between(9_500, 14_000) * MS;
        world.at(at, Event::Kill(second));
        world.at(seconds(4.0), Event::Start(id(9)));
        world.at(seconds(10.0), Event::Stop(id(9)));
        world.run(seconds(60.0));
        assert!(world.all_closed(), "seed {seed}: {:?}", world.peers.keys());
    }
}

#[test]
fn a_joiner_is_fed_and_trains() {
    for seed in 0..20 {
        let mut world = started(seed, 3);
        world.at(seconds(5.0), Event::Start(id(0)));
        world.run(seconds(10.0));
        assert_eq!(world.members(0).len(), 4, "seed {seed}");
        assert!(
            world.peers[&id(0)].training && world.peers[&id(0)].step > 0,
            "seed {seed}"
        );
    }
}

/// A newcomer with the lowest name is the steward at once: it must not drop members that it has not met yet.
#[test]
fn a_joiner_that_becomes_the_steward_drops_nobody_that_it_has_not_met() {
    for seed in 0..40 {
        let mut world = started(seed, 4);
        world.run(seconds(4.9));
        world.slowest_connection = 2500;
        world.smallest_view = usize::MAX;
        world.at(seconds(5.0), Event::Start(id(0)));
        world.run(seconds(15.0));
        assert_eq!(world.smallest_view, 5, "seed {seed}");
        for peer in 0..=4 {
            assert_eq!(world.members(peer).len(), 5, "seed {seed}, peer {peer}");
        }
    }
}

#[test]
fn the_work_of_a_peer_that_was_restarted_counts_twice_over() {
    for seed in 0..10 {
        let mut world = started(seed, 3);
        world.run(seconds(5.0));
        let before = world.peers[&id(2)].samples;
        world.at(seconds(5.0), Event::Kill(id(2)));
        world.at(seconds(5.0 + seed as f64 / 5.0), Event::Start(id(2)));
        world.run(seconds(12.0));
        let after = world.peers[&id(2)].samples;
        assert!(before > 0 && after > 0, "seed {seed}");
        let late = Tick(world.now);
        // A beat may be on its way: what was trained within one and a half beats is not known to others yet.
        let unknown = 32 * 6;
        for witness in [1, 3] {
            let counted = world.peers[&id(witness)].agreement.contributions()[&id(2)].samples;
            assert!(
                counted + 2 * unknown >= before + after && counted <= before + after,
                "seed {seed}, witness {witness} at {late:?}: {counted} of {before} + {after}"
            );
        }
    }
}

#[test]
fn a_paused_peer_is_dropped_and_comes_back() {
    for seed in 0..20 {
        let mut world = started(seed, 4);
        let victim = id(1 + (seed % 4) as u8);
        world.at(seconds(5.0), Event::Pause(victim, seconds(15.0)));
        world.run(seconds(12.0));
        let witness = 1 + ((seed + 1) % 4) as u8;
        assert_eq!(world.members(witness).len(), 3, "seed {seed}");
        world.run(seconds(25.0));
        for peer in 1..=4 {
            assert_eq!(world.members(peer).len(), 4, "seed {seed}, peer {peer}");
            assert!(world.peers[&id(peer)].training, "seed {seed}, peer {peer}");
        }
    }
}

#[test]
fn a_healed_partition_ends_in_one_view_and_says_what_was_lost() {
    for seed in 0..40 {
        let mut world = started(seed, 5);
        let apart = BTreeSet::from([id(1 + (seed % 5) as u8), id(1 + ((seed + 2) % 5) as u8)]);
        world.at(seconds(5.0), Event::Split(apart));
        world.at(seconds(12.0), Event::Heal);
        world.run(seconds(11.0));
        let sides: BTreeSet<usize> = (1..=5).map(|peer| world.members(peer).len()).collect();
        assert_eq!(
            sides,
            BTreeSet::from([2, 3]),
            "seed {seed}: both sides go on"
        );
        world.run(seconds(25.0));
        for peer in 1..=5 {
            assert_eq!(world.members(peer).len(), 5, "seed {seed}, peer {peer}");
            assert!(world.peers[&id(peer)].training, "seed {seed}, peer {peer}");
        }
        assert!(world.lost_samples > 0, "seed {seed}: the loss is told");
    }
}

#[test]
fn a_job_closes_without_a_model_only_where_nobody_has_one() {
    for seed in 0..20 {
        let n_diverged = 1 + (seed % 3) as u8;
        let mut world = started(seed, 3);
        world.diverged = (1..=n_diverged).map(id).collect();
        world.at(seconds(6.0), Event::Stop(id(3)));
        world.run(seconds(15.0));
        let closed: BTreeSet<Option<bool>> = world
            .peers
            .values()
            .map(|peer| peer.closed.map(|decision| decision.is_some()))
            .collect();
        let expected = BTreeSet::from([Some(n_diverged < 3)]);
        assert_eq!(closed, expected, "seed {seed}, {n_diverged} diverged");
    }
}

#[test]
fn a_latecomer_to_a_finished_job_is_given_its_model() {
    for seed in 0..10 {
        let mut world = started(seed, 2);
        world.at(seconds(5.0), Event::Stop(id(2)));
        world.run(seconds(10.0));
        assert!(world.all_closed(), "seed {seed}");
        world.at(seconds(11.0), Event::Start(id(3)));
        world.run(seconds(20.0));
        assert!(world.all_closed(), "seed {seed}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let trace = |seed| {
        let mut world = started(seed, 4);
        world.at(seconds(6.0), Event::Kill(id(1)));
        world.at(seconds(8.0), Event::Stop(id(2)));
        world.run(seconds(20.0));
        (world.seq, format!("{:?}", world.peers[&id(2)].agreement))
    };
    assert_eq!(trace(3), trace(3));
}

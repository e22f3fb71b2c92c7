//! Exchanges wired by links of a rate and a delay, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use skein_gossip::exchange::{
    Amount, Config, Exchange, Gradient, Output, ValueChoice, Waiting, split,
};
use skein_gossip::gradient::layout::Layout;
use skein_gossip::gradient::values::Values;
use skein_gossip::ids::{Digest, JobId, PeerId};
use skein_gossip::time::Tick;
use skein_gossip::view::{Holding, Joiner, View};

pub(crate) const JOB: JobId = JobId([9; 32]);
pub(crate) const BATCH: u32 = 8;
pub(crate) const MS: u64 = 1000;

pub(crate) fn id(n: u8) -> PeerId {
    PeerId([n; 32])
}

pub(crate) fn joiner(n: u8, instance: u64) -> Joiner {
    let holds = Holding {
        samples: 0,
        step: 0,
        digest: Digest([1; 32]),
    };
    Joiner {
        peer: id(n),
        instance,
        batch: BATCH,
        holds,
    }
}

pub(crate) fn config(amount: Amount) -> Config {
    Config {
        waiting: Waiting::Never,
        amount,
        values: ValueChoice::Fixed(Values::F32),
        full: false,
        level: 1,
    }
}

/// Values with heavy tails, of about 1; the same for the same seed.
pub(crate) fn gradient(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let uniform = (state >> 40) as f32 / (1 << 24) as f32 - 0.5;
        8.0 * uniform.powi(3)
    };
    (0..n).map(|_| next()).collect()
}

#[derive(Debug)]
enum Event {
    Packet {
        from: PeerId,
        to: PeerId,
        packet: Vec<u8>,
    },
    Applied {
        from: PeerId,
        to: PeerId,
        seq: u64,
        arrived_us: u64,
    },
}

pub(crate) struct Wired {
    pub(crate) now: u64,
    pub(crate) view: View,
    pub(crate) peers: BTreeMap<PeerId, Exchange>,
    n_values: usize,
    queue: BTreeMap<(u64, u64), Event>,
    n_events: u64,
    /// Bytes per second of each link that has a bound.
    pub(crate) rates: BTreeMap<(PeerId, PeerId), f64>,
    free_at: BTreeMap<(PeerId, PeerId), u64>,
    /// One way, microseconds.
    pub(crate) delay: u64,
    /// Links whose lanes refuse whatever comes.
    pub(crate) refusing: BTreeSet<(PeerId, PeerId)>,
    /// Links on which answers are lost.
    pub(crate) unanswered: BTreeSet<(PeerId, PeerId)>,
    /// Sum over samples of what each peer handed in, and of what it heard of others.
    pub(crate) handed_in: BTreeMap<PeerId, Vec<f64>>,
    pub(crate) heard: BTreeMap<PeerId, Vec<f64>>,
    pub(crate) refused: Vec<(PeerId, String)>,
    pub(crate) limits: BTreeMap<PeerId, u64>,
    pub(crate) n_sent: BTreeMap<(PeerId, PeerId), u64>,
    pub(crate) bytes: u64,
}

impl Wired {
    pub(crate) fn new(n_peers: u8, lengths: &[usize], config: Config) -> Self {
        let joiners: Vec<Joiner> = (1..=n_peers).map(|n| joiner(n, 1)).collect();
        let view = View::first(id(1), &joiners).unwrap();
        let mut wired = Self {
            now: 0,
            view,
            peers: BTreeMap::new(),
            n_values: lengths.iter().sum(),
            queue: BTreeMap::new(),
            n_events: 0,
            rates: BTreeMap::new(),
            free_at: BTreeMap::new(),
            delay: 5 * MS,
            refusing: BTreeSet::new(),
            unanswered: BTreeSet::new(),
            handed_in: BTreeMap::new(),
            heard: BTreeMap::new(),
            refused: Vec::new(),
            limits: BTreeMap::new(),
            n_sent: BTreeMap::new(),
            bytes: 0,
        };
        for n in 1..=n_peers {
            wired.add(n, lengths, config);
        }
        wired
    }

    pub(crate) fn add(&mut self, n: u8, lengths: &[usize], config: Config) {
        let layout = Layout::new(lengths).unwrap();
        let mut exchange = Exchange::new(JOB, id(n), config, &layout).unwrap();
        exchange.set_view(Tick(self.now), Some(Arc::new(self.view.clone())), true);
        exchange.start_at(Tick(self.now), 0);
        self.peers.insert(id(n), exchange);
        let nothing = vec![0.0; self.n_values];
        self.handed_in.insert(id(n), nothing.clone());
        self.heard.insert(id(n), nothing);
        self.drain(id(n));
    }

    /// All, or those of `who`, adopt a view.
    pub(crate) fn adopt(&mut self, view: &View, who: impl Fn(u8) -> bool) {
        self.view = view.clone();
        let view = Arc::new(view.clone());
        let now = Tick(self.now);
        let peers: Vec<PeerId> = self.peers.keys().copied().collect();
        for peer in peers.into_iter().filter(|peer| who(peer.0[0])) {
            let exchange = self.peers.get_mut(&peer).unwrap();
            exchange.set_view(now, Some(view.clone()), true);
            self.drain(peer);
        }
    }

    /// The peer is gone, and all others know at once.
    pub(crate) fn leave(&mut self, n: u8) {
        self.peers.remove(&id(n));
        let next = self
            .view
            .successor(id(1), &[(id(n), Default::default())].into(), &[], 0);
        self.adopt(&next, |_| true);
    }

    pub(crate) fn of(&mut self, n: u8) -> &mut Exchange {
        self.peers.get_mut(&id(n)).unwrap()
    }

    /// Hands in a gradient: the sum over the samples of a batch.
    pub(crate) fn commit(&mut self, n: u8, step: u64, values: &[f32], weights: &[f32]) {
        let gradient = Gradient {
            step,
            n_steps: 1,
            samples: u64::from(BATCH),
            values,
            weights,
        };
        let now = Tick(self.now);
        self.of(n).gradient(now, gradient).unwrap();
        let sum = self.handed_in.get_mut(&id(n)).unwrap();
        let pairs = sum.iter_mut().zip(values);
        pairs.for_each(|(sum, value)| *sum += f64::from(*value));
        self.drain(id(n));
    }

    fn at(&mut self, at: u64, event: Event) {
        self.n_events += 1;
        self.queue.insert((at, self.n_events), event);
    }

    pub(crate) fn drain(&mut self, peer: PeerId) {
        while let Some(output) = self.peers.get_mut(&peer).and_then(Exchange::poll) {
            match output {
                Output::Send { to, seq, packet } => {
                    if self.refusing.contains(&(peer, to)) {
                        self.peers.get_mut(&peer).unwrap().returned(to, seq);
                        continue;
                    }
                    *self.n_sent.entry((peer, to)).or_default() += 1;
                    self.bytes += packet.len() as u64;
                    let rate = self.rates.get(&(peer, to));
                    let takes = rate.map_or(0.0, |rate| packet.len() as f64 / rate * 1e6) as u64;
                    let free_at = self.free_at.entry((peer, to)).or_default();
                    *free_at = self.now.max(*free_at) + takes;
                    let at = *free_at + self.delay;
                    let from = peer;
                    self.at(at, Event::Packet { from, to, packet });
                }
                Output::Applied {
                    to,
                    seq,
                    arrived_us,
                } if !self.unanswered.contains(&(to, peer)) => {
                    let (at, from) = (self.now + self.delay, peer);
                    self.at(
                        at,
                        Event::Applied {
                            from,
                            to,
                            seq,
                            arrived_us,
                        },
                    );
                }
                Output::Applied { .. } | Output::Ready { .. } => {}
                Output::Refused { from, reason } => self.refused.push((from, reason)),
                Output::Limit { step } => {
                    self.limits.insert(peer, step);
                }
            }
        }
        self.take(peer);
    }

    fn take(&mut self, peer: PeerId) {
        let mut inbox = Vec::new();
        let global = self.view.global_batch() as f64;
        if let Some(exchange) = self.peers.get_mut(&peer)
            && exchange.take(&mut inbox)
        {
            let heard = self.heard.get_mut(&peer).unwrap();
            let pairs = heard.iter_mut().zip(&inbox);
            pairs.for_each(|(sum, value)| *sum += f64::from(*value) * global);
        }
    }

    /// Lets time pass.
    pub(crate) fn run(&mut self, until: u64) {
        while let Some((&(at, key), _)) = self.queue.first_key_value() {
            if at > until {
                break;
            }
            self.now = at;
            let event = self.queue.remove(&(at, key)).unwrap();
            let now = Tick(at);
            let peer = match event {
                Event::Packet { from, to, packet } => {
                    if let Some(exchange) = self.peers.get_mut(&to) {
                        exchange.packet(now, now, from, &packet);
                    }
                    to
                }
                Event::Applied {
                    from,
                    to,
                    seq,
                    arrived_us,
                } => {
                    if let Some(exchange) = self.peers.get_mut(&to) {
                        exchange.applied(now, from, seq, arrived_us);
                    }
                    to
                }
            };
            self.drain(peer);
        }
        self.now = until;
    }

    pub(crate) fn tick(&mut self) {
        let now = Tick(self.now);
        let peers: Vec<PeerId> = self.peers.keys().copied().collect();
        for peer in peers {
            self.peers.get_mut(&peer).unwrap().tick(now);
            self.drain(peer);
        }
    }

    /// The connection between two breaks, what is under way on it is lost (`answers` lost: only answers), and it is made anew.
    pub(crate) fn reconnect(&mut self, a: u8, b: u8, only_answers: bool) {
        let is_between =
            |from: PeerId, to: PeerId| (from, to) == (id(a), id(b)) || (from, to) == (id(b), id(a));
        self.queue.retain(|_, event| match event {
            Event::Packet { from, to, .. } => only_answers || !is_between(*from, *to),
            Event::Applied { from, to, .. } => !is_between(*from, *to),
        });
        if only_answers {
            // What was under way arrives on the old connection.
            self.unanswered.extend([(id(a), id(b)), (id(b), id(a))]);
            self.run(self.now + 1000 * MS);
            self.unanswered.clear();
        }
        let now = Tick(self.now);
        for (one, other) in [(a, b), (b, a)] {
            self.free_at.remove(&(id(one), id(other)));
            self.of(one).reconnected(now, id(other));
            self.drain(id(one));
        }
    }

    /// Every peer commits nothing until all is told, at steps from `step` on.
    pub(crate) fn settle(&mut self, step: u64, n_commits: u64) {
        let nothing = vec![0.0; self.n_values];
        for step in step..step + n_commits {
            self.commit_all(step, |_| nothing.clone());
            self.run(self.now + 100 * MS);
        }
        self.run(self.now + 60_000 * MS);
    }

    pub(crate) fn commit_all(&mut self, step: u64, values: impl Fn(u8) -> Vec<f32>) {
        let peers: Vec<PeerId> = self.peers.keys().copied().collect();
        let weights = vec![1.0; self.n_values];
        for peer in peers {
            self.commit(peer.0[0], step, &values(peer.0[0]), &weights);
        }
    }

    /// How far what `n` heard is from what the others handed in, at most.
    pub(crate) fn off(&self, n: u8) -> f64 {
        let mut expected = vec![0.0; self.n_values];
        for (_, sum) in self.handed_in.iter().filter(|(peer, _)| **peer != id(n)) {
            expected
                .iter_mut()
                .zip(sum)
                .for_each(|(all, one)| *all += one);
        }
        let pairs = expected.iter().zip(&self.heard[&id(n)]);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    }

    pub(crate) fn worst_off(&self) -> f64 {
        let peers = self.peers.keys().map(|peer| self.off(peer.0[0]));
        peers.fold(0.0, f64::max)
    }

    /// A packet of `from` for the wire, with its header as `change` makes it.
    pub(crate) fn forged(
        packet: &[u8],
        change: impl FnOnce(&mut skein_gossip::message::UpdateHeader),
    ) -> Vec<u8> {
        let (mut header, packed) = split(packet).unwrap();
        change(&mut header);
        let encoded = skein_gossip::wire::codec::encode(&header);
        let mut forged = vec![encoded.len() as u8];
        forged.extend(encoded);
        forged.extend(packed);
        forged
    }
}

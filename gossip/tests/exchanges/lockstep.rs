//! The synchronous rule while batches change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use skein_gossip::exchange::{Amount, Config, Exchange, Gradient, Output, Waiting};
use skein_gossip::gradient::layout::Layout;
use skein_gossip::ids::PeerId;
use skein_gossip::time::Tick;
use skein_gossip::view::{Stamp, View};

use crate::wired::{JOB, config, gradient, id, joiner};

const LENGTHS: [usize; 2] = [20, 12];
const N_VALUES: usize = 32;
const N: u8 = 4;

/// What each peer holds, and the sums that it got by step.
struct Lockstep {
    peers: BTreeMap<u8, Exchange>,
    steps: BTreeMap<u8, u64>,
    views: BTreeMap<u8, Arc<View>>,
    sums: BTreeMap<u8, Vec<Vec<f32>>>,
    queue: Vec<(u8, u8, Vec<u8>)>,
    /// Turns that packets from the one to the other wait.
    random: u64,
}

impl Lockstep {
    fn new(view: &View, seed: u64) -> Self {
        let lockstep = Config {
            waiting: Waiting::All,
            ..config(Amount::TopK {
                least: 0.3,
                most: 0.3,
            })
        };
        let layout = Layout::new(&LENGTHS).unwrap();
        let mut peers = BTreeMap::new();
        for n in 1..=N {
            let mut exchange = Exchange::new(JOB, id(n), lockstep, &layout).unwrap();
            exchange.set_view(Tick(0), Some(Arc::new(view.clone())), true);
            exchange.start_at(Tick(0), 0);
            peers.insert(n, exchange);
        }
        let view = Arc::new(view.clone());
        Self {
            peers,
            steps: (1..=N).map(|n| (n, 0)).collect(),
            views: (1..=N).map(|n| (n, view.clone())).collect(),
            sums: (1..=N).map(|n| (n, Vec::new())).collect(),
            queue: Vec::new(),
            random: seed | 1,
        }
    }

    fn random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) as usize % below
    }

    fn hand_in(&mut self, n: u8) {
        let step = self.steps[&n];
        let values = gradient(N_VALUES, step * 100 + u64::from(n));
        let batch = self.views[&n].member(id(n)).unwrap().batch_at(step);
        let own = Gradient {
            step,
            n_steps: 1,
            samples: u64::from(batch),
            values: &values,
            weights: &[],
        };
        self.peers
            .get_mut(&n)
            .unwrap()
            .gradient(Tick(0), own)
            .unwrap();
        self.drain(n);
    }

    fn drain(&mut self, n: u8) {
        let exchange = self.peers.get_mut(&n).unwrap();
        let mut ready = false;
        while let Some(output) = exchange.poll() {
            match output {
                Output::Send { to, packet, .. } => self.queue.push((n, to.0[0], packet)),
                Output::Ready { .. } => ready = true,
                Output::Refused { reason, .. } => panic!("{reason}"),
                _ => {}
            }
        }
        if ready {
            let mut sum = Vec::new();
            assert!(exchange.take(&mut sum));
            self.sums.get_mut(&n).unwrap().push(sum);
            *self.steps.get_mut(&n).unwrap() += 1;
            self.hand_in(n);
        }
    }

    /// Some packet arrives.
    fn deliver_one(&mut self) -> bool {
        if self.queue.is_empty() {
            return false;
        }
        let at = self.random(self.queue.len());
        // Packets of a link keep their order.
        let (from, to, _) = self.queue[at];
        let first = self
            .queue
            .iter()
            .position(|(a, b, _)| (*a, *b) == (from, to));
        let (from, to, packet) = self.queue.remove(first.unwrap());
        let exchange = self.peers.get_mut(&to).unwrap();
        exchange.packet(Tick(0), Tick(0), id(from), &packet);
        self.drain(to);
        true
    }

    fn adopt(&mut self, n: u8, view: &Arc<View>, agreed: bool) {
        self.views.insert(n, view.clone());
        let exchange = self.peers.get_mut(&n).unwrap();
        exchange.set_view(Tick(0), Some(view.clone()), agreed);
        self.drain(n);
    }

    /// The first proposes the view, and each other hears of it at a moment of its own; that all hold it is known some time after
    /// they do.
    fn hear(&mut self, view: &Arc<View>) {
        let mut held: BTreeSet<u8> = BTreeSet::from([1]);
        self.adopt(1, view, false);
        let (mut told, mut turns) = (BTreeSet::new(), 0);
        while told.len() < usize::from(N) {
            turns += 1;
            assert!(turns < 10_000, "all wait: {:?}", self.steps);
            let n = 1 + self.random(usize::from(N)) as u8;
            match self.random(6) {
                0 if held.insert(n) => self.adopt(n, view, false),
                1 if held.len() == usize::from(N) => {
                    told.insert(n);
                    self.adopt(n, view, true);
                }
                _ => {
                    self.deliver_one();
                }
            }
        }
    }

    fn check(&self, at_least: u64) {
        let shortest = self.sums.values().map(Vec::len).min().unwrap();
        assert!(shortest as u64 >= at_least, "{:?}", self.steps);
        for step in 0..shortest {
            for n in 2..=N {
                assert_eq!(self.sums[&n][step], self.sums[&1][step], "step {step}");
            }
        }
    }
}

fn first_view() -> View {
    let joiners: Vec<_> = (1..=N).map(|n| joiner(n, 1)).collect();
    View::first(id(1), &joiners).unwrap()
}

/// `view` with other batches from `from` on.
fn reshared(view: &View, from: u64, batches: &[(u8, u32)]) -> View {
    let number = view.stamp.number + 1;
    let next = Stamp {
        number,
        ..view.stamp
    };
    let mut change = view.change(next, &BTreeMap::new(), &[], from);
    change.batches = batches
        .iter()
        .map(|(n, batch)| (id(*n), *batch))
        .collect::<Vec<(PeerId, u32)>>();
    view.changed_by(&change).unwrap()
}

#[test]
fn all_weigh_by_the_same_batches_at_every_step_whenever_they_hear_of_new_ones() {
    for seed in 0..200u64 {
        let first = first_view();
        let mut lockstep = Lockstep::new(&first, seed * 7919 + 1);
        (1..=N).for_each(|n| lockstep.hand_in(n));
        for _ in 0..seed % 40 {
            lockstep.deliver_one();
        }
        let ahead = lockstep.steps.values().max().unwrap() + 2;
        let second = reshared(&first, ahead, &[(1, 2), (3, 20), (4, 9)]);
        lockstep.hear(&Arc::new(second));
        for _ in 0..400 {
            lockstep.deliver_one();
        }
        lockstep.check(ahead + 3);
        // They matter: the same steps by the batches of before end elsewhere.
        let sums = &lockstep.sums[&1];
        let mut other = Lockstep::new(&first, 1);
        (1..=N).for_each(|n| other.hand_in(n));
        for _ in 0..400 {
            other.deliver_one();
        }
        let at = ahead as usize;
        assert_eq!(sums[at - 1], other.sums[&1][at - 1]);
        assert_ne!(sums[at], other.sums[&1][at]);
    }
}

/// The second change comes before all hold the view of the first: some never see that.
#[test]
fn a_change_that_some_never_heard_of_is_weighed_alike_by_all() {
    for seed in 0..300u64 {
        let first = first_view();
        let mut lockstep = Lockstep::new(&first, seed * 31_337 + 5);
        (1..=N).for_each(|n| lockstep.hand_in(n));
        for _ in 0..seed % 40 {
            lockstep.deliver_one();
        }
        let ahead = lockstep.steps.values().max().unwrap() + 2 + seed % 9;
        let second = Arc::new(reshared(&first, ahead, &[(1, 2), (3, 20), (4, 9)]));
        for n in (1..=N).filter(|n| *n == 1 || (seed >> n) % 2 == 0) {
            lockstep.adopt(n, &second, false);
            for _ in 0..(seed / 7) % 30 {
                lockstep.deliver_one();
            }
        }
        let step = match lockstep.steps[&1] + 4 <= ahead {
            true => ahead,
            false => (lockstep.steps[&1] + 2).max(ahead + 4),
        };
        let third = Arc::new(reshared(&second, step, &[(1, 30), (2, 5), (3, 7)]));
        lockstep.hear(&third);
        for _ in 0..400 {
            lockstep.deliver_one();
        }
        lockstep.check(step + 3);
    }
}

/// The second change comes before the step of the first is reached, or right then.
#[test]
fn two_changes_close_together_are_weighed_alike_by_all() {
    for seed in 0..300u64 {
        let first = first_view();
        let mut lockstep = Lockstep::new(&first, seed * 104_729 + 3);
        (1..=N).for_each(|n| lockstep.hand_in(n));
        for _ in 0..seed % 40 {
            lockstep.deliver_one();
        }
        let ahead = lockstep.steps.values().max().unwrap() + 2 + seed % 9;
        let second = Arc::new(reshared(&first, ahead, &[(1, 2), (3, 20), (4, 9)]));
        lockstep.hear(&second);
        for _ in 0..(seed / 3) % 60 {
            lockstep.deliver_one();
        }
        // As the steward, the first, proposes it.
        let step = match lockstep.steps[&1] + 4 <= ahead {
            true => ahead,
            false => (lockstep.steps[&1] + 2).max(ahead + 4),
        };
        let third = Arc::new(reshared(&second, step, &[(1, 30), (2, 5), (3, 7)]));
        lockstep.hear(&third);
        for _ in 0..400 {
            lockstep.deliver_one();
        }
        lockstep.check(step + 3);
    }
}

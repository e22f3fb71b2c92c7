//! The whole network of a run: every node's line up and down, every directed pair, cuts, and what was carried.
//!
//! A frame takes two hops: [`Fabric::send`] takes it through the sender's uplink and the pair, [`Fabric::arrive`] through the
//! receiver's downlink. The driver calls the second at the moment that the first gave, so that frames of several senders
//! come to a downlink in the order of their arrival.

use std::collections::BTreeMap;

use super::shaper::{Loss, Shaper, Verdict};
use super::{Nanos, Profile};

/// A node's place in the scenario, from 0.
pub type NodeIndex = usize;

/// Where a frame goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// At this moment call [`Fabric::arrive`] (after [`Fabric::send`]), or hand it over and call [`Fabric::delivered`] (after
    /// `arrive`).
    At(Nanos),
    /// It is lost.
    Dropped(Loss),
}

/// What one directed pair carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames offered.
    pub frames: u64,
    /// Bytes offered.
    pub bytes: u64,
    /// Frames delivered.
    pub delivered_frames: u64,
    /// Bytes delivered.
    pub delivered_bytes: u64,
    /// Frames dropped by full queues.
    pub dropped_queue: u64,
    /// Frames lost on the line.
    pub dropped_line: u64,
    /// Frames dropped by a cut.
    pub dropped_cut: u64,
}

/// The network.
#[derive(Debug)]
pub struct Fabric {
    seed: u64,
    up: Vec<Shaper>,
    down: Vec<Shaper>,
    /// Pairs that have numbers of their own; all others are wires.
    pairs: BTreeMap<(NodeIndex, NodeIndex), Shaper>,
    /// Nodes of different groups do not reach each other. All are in group 0 at first.
    group: Vec<u32>,
    /// Directed pairs that are cut.
    cut: std::collections::BTreeSet<(NodeIndex, NodeIndex)>,
    /// By sender, then receiver: looked up for every frame.
    counters: Vec<Counters>,
}

impl Fabric {
    /// `nodes` nodes on wires.
    pub fn new(nodes: usize, seed: u64) -> Self {
        let line =
            |n: usize, part: u64| Shaper::new(Profile::default(), sub_seed(seed, n as u64, part));
        Self {
            seed,
            up: (0..nodes).map(|n| line(n, 1)).collect(),
            down: (0..nodes).map(|n| line(n, 2)).collect(),
            pairs: BTreeMap::new(),
            group: vec![0; nodes],
            cut: std::collections::BTreeSet::new(),
            counters: vec![Counters::default(); nodes * nodes],
        }
    }

    /// Nodes.
    pub fn len(&self) -> usize {
        self.up.len()
    }

    /// Whether it has no nodes.
    pub fn is_empty(&self) -> bool {
        self.up.is_empty()
    }

    /// The line from `node`. Panics where there is no such node, as all methods here.
    pub fn set_up(&mut self, node: NodeIndex, profile: Profile) {
        self.up[node].set_profile(profile);
    }

    /// The line to `node`.
    pub fn set_down(&mut self, node: NodeIndex, profile: Profile) {
        self.down[node].set_profile(profile);
    }

    /// Bytes that wait for the line from `node`.
    pub fn waiting_up(&self, now: Nanos, node: NodeIndex) -> u64 {
        self.up[node].waiting(now)
    }

    /// What is between two nodes, one direction, beside their lines.
    pub fn set_pair(&mut self, from: NodeIndex, to: NodeIndex, profile: Profile) {
        let seed = sub_seed(self.seed, (from * self.up.len() + to) as u64, 3);
        self.pairs
            .entry((from, to))
            .or_insert_with(|| Shaper::new(profile, seed))
            .set_profile(profile);
    }

    /// The numbers in force: up, down.
    pub fn lines(&self, node: NodeIndex) -> (&Profile, &Profile) {
        (self.up[node].profile(), self.down[node].profile())
    }

    /// The numbers in force between two nodes beside their lines.
    pub fn pair(&self, from: NodeIndex, to: NodeIndex) -> Profile {
        self.pairs
            .get(&(from, to))
            .map_or(Profile::default(), |pair| *pair.profile())
    }

    /// Cuts the network into groups; nodes that are in none stay together.
    pub fn partition(&mut self, groups: &[Vec<NodeIndex>]) {
        self.group.fill(0);
        for (number, nodes) in (1..).zip(groups) {
            for node in nodes {
                self.group[*node] = number;
            }
        }
    }

    /// Cuts or mends one direction between two nodes.
    pub fn set_cut(&mut self, from: NodeIndex, to: NodeIndex, is_cut: bool) {
        if is_cut {
            self.cut.insert((from, to));
        } else {
            self.cut.remove(&(from, to));
        }
    }

    /// Undoes every partition and cut.
    pub fn heal(&mut self) {
        self.group.fill(0);
        self.cut.clear();
    }

    /// Whether frames pass.
    pub fn reaches(&self, from: NodeIndex, to: NodeIndex) -> bool {
        self.group[from] == self.group[to] && !self.cut.contains(&(from, to))
    }

    /// First hop: the sender's uplink and the pair.
    pub fn send(&mut self, now: Nanos, from: NodeIndex, to: NodeIndex, bytes: usize) -> Hop {
        let counters = self.counted(from, to);
        counters.frames += 1;
        counters.bytes += bytes as u64;
        if !self.reaches(from, to) {
            return self.dropped(from, to, Loss::Cut);
        }
        let verdict = match (
            self.up[from].offer(now, bytes),
            self.pairs.get_mut(&(from, to)),
        ) {
            (Verdict::Arrives(at), Some(pair)) => pair.offer(at, bytes),
            (verdict, _) => verdict,
        };
        match verdict {
            Verdict::Arrives(at) => Hop::At(at),
            Verdict::Dropped(loss) => self.dropped(from, to, loss),
        }
    }

    /// Second hop, at the moment that the first gave: the receiver's downlink.
    pub fn arrive(&mut self, now: Nanos, from: NodeIndex, to: NodeIndex, bytes: usize) -> Hop {
        if !self.reaches(from, to) {
            return self.dropped(from, to, Loss::Cut);
        }
        match self.down[to].offer(now, bytes) {
            Verdict::Arrives(at) => Hop::At(at),
            Verdict::Dropped(loss) => self.dropped(from, to, loss),
        }
    }

    /// A frame was handed over, at the moment that the second hop gave.
    pub fn delivered(&mut self, from: NodeIndex, to: NodeIndex, bytes: usize) {
        let counters = self.counted(from, to);
        counters.delivered_frames += 1;
        counters.delivered_bytes += bytes as u64;
    }

    /// What each directed pair (sender, receiver) carried so far; those that carried nothing are left out.
    pub fn counters(&self) -> impl Iterator<Item = ((NodeIndex, NodeIndex), &Counters)> {
        let n = self.len().max(1);
        let all = self.counters.iter().enumerate();
        all.filter(|(_, counters)| counters.frames > 0)
            .map(move |(at, counters)| ((at / n, at % n), counters))
    }

    fn counted(&mut self, from: NodeIndex, to: NodeIndex) -> &mut Counters {
        let n = self.up.len();
        &mut self.counters[from * n + to]
    }

    fn dropped(&mut self, from: NodeIndex, to: NodeIndex, loss: Loss) -> Hop {
        let counters = self.counted(from, to);
        match loss {
            Loss::Queue => counters.dropped_queue += 1,
            Loss::Line => counters.dropped_line += 1,
            Loss::Cut => counters.dropped_cut += 1,
        }
        Hop::Dropped(loss)
    }
}

/// A seed of its own for each part of a network (SplitMix64's finisher).
pub fn sub_seed(seed: u64, n: u64, part: u64) -> u64 {
    let mut z =
        seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ part.wrapping_mul(0xd1b5_4a32_d192_ed03);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_frame_takes_the_line_up_the_pair_and_the_line_down() {
        let mut fabric = Fabric::new(3, 1);
        fabric.set_up(0, Profile::rate(8_000_000));
        fabric.set_pair(
            0,
            1,
            Profile {
                delay: Duration::from_millis(5),
                ..Profile::default()
            },
        );
        fabric.set_down(1, Profile::rate(4_000_000));
        assert_eq!(fabric.send(0, 0, 1, 1000), Hop::At(6 * MS));
        assert_eq!(fabric.arrive(6 * MS, 0, 1, 1000), Hop::At(8 * MS));
        fabric.delivered(0, 1, 1000);
        // The uplink is shared by all pairs; the pair 0 to 2 has no delay.
        assert_eq!(fabric.send(0, 0, 2, 1000), Hop::At(2 * MS));
        let counters = *fabric.counted(0, 1);
        assert_eq!((counters.frames, counters.delivered_bytes), (1, 1000));
    }

    #[test]
    fn a_partition_drops_frames_on_the_way_too_and_heals() {
        let mut fabric = Fabric::new(4, 1);
        assert_eq!(fabric.send(0, 0, 2, 100), Hop::At(0));
        fabric.partition(&[vec![2, 3]]);
        assert_eq!(fabric.arrive(0, 0, 2, 100), Hop::Dropped(Loss::Cut));
        assert!(fabric.reaches(0, 1) && fabric.reaches(2, 3) && !fabric.reaches(1, 3));
        fabric.set_cut(0, 1, true);
        assert!(!fabric.reaches(0, 1) && fabric.reaches(1, 0));
        fabric.heal();
        assert!((0..4).all(|a| (0..4).all(|b| fabric.reaches(a, b))));
        assert_eq!(fabric.counted(0, 2).dropped_cut, 1);
        let carried: Vec<_> = fabric.counters().map(|(pair, _)| pair).collect();
        assert_eq!(carried, [(0, 2)]);
    }
}

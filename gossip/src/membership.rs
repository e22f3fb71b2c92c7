//! Who is alive: a failure detector over heartbeats and connections.
//!
//! In: beats heard, connections opened and closed, members named by others, the passing of time. Out: which peers are alive now.
//! A closed connection means down at once. A peer that was never met is not judged before it had time to appear. A silent peer is down after a timeout that adapts to the gaps this
//! peer has shown (after the accrual idea of Hayashibara et al. 2004): a loaded device with irregular beats gets more
//! patience, up to a bound. When the own clock jumped (suspend, SIGSTOP), every peer gets a fresh start instead of a
//! verdict: it was this peer that was away.
//!
//! Every call costs O(log n) in the number of peers, but [`Membership::alive`] and a jump of the clock.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::PeerId;
use crate::time::Tick;

/// How often a peer beats and how patient the detector is, in a group of up to [`FEW`] peers.
///
/// In a larger group all three times grow in proportion to the number of peers, see [`Config::stretched`]: a peer then sends
/// and hears as many beats a second as among [`FEW`] (160 by default). Of 1,024 peers each beats every 6.4 s, and is down
/// after 48 s of silence. A closed connection is down at once in any group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Time between two beats of a healthy peer. Default 400 ms: cheap beside any training traffic.
    pub beat_every: Duration,
    /// Least silence that counts as down. Default 3 s: several beats lost in a row.
    pub silence_min: Duration,
    /// Least silence that counts as down where beats are late again and again, as on a link that loses packets: a beat that is
    /// lost several times in a row comes seconds later. Default as `silence_min`.
    pub silence_lossy: Duration,
    /// Most silence that is ever tolerated. Default 10 s, so that a wait has a bound whatever a peer has shown.
    pub silence_max: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            beat_every: Duration::from_millis(400),
            silence_min: Duration::from_secs(3),
            silence_lossy: Duration::from_secs(3),
            silence_max: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// The times that hold among `n_peers`.
    pub fn stretched(&self, n_peers: usize) -> Self {
        let n_peers = n_peers.clamp(FEW, MAX_PEERS) as u32;
        let stretch = |time: Duration| time.saturating_mul(n_peers) / FEW as u32;
        Self {
            beat_every: stretch(self.beat_every),
            silence_min: stretch(self.silence_min),
            silence_lossy: stretch(self.silence_lossy),
            silence_max: stretch(self.silence_max),
        }
    }
}

/// Up to this many peers, beats are not thinned out and every change is told to all at once.
pub const FEW: usize = 64;
/// Largest number of peers watched: the members of the largest job, and as many that wait. The connection of a further one
/// is ignored.
pub const MAX_PEERS: usize = 2048;

#[derive(Debug)]
struct Watch {
    last_heard: Tick,
    /// Longest gap between beats, decaying by an eighth per beat.
    gap: Duration,
    /// Late beats among the last [`MANY`], about.
    late: f32,
}

/// So many beats are looked back on to tell whether a link loses packets.
const MANY: f32 = 512.0;
/// More late ones among them are no chance: a second one has come while the first still counts.
const LATE: f32 = 1.5;

impl Watch {
    fn patience(&self, times: &Config) -> Duration {
        let least = match self.late > LATE {
            true => times.silence_lossy,
            false => times.silence_min,
        };
        (self.gap * 3).clamp(least, times.silence_max.max(least))
    }

    /// A beat came after this gap.
    fn heard_after(&mut self, gap: Duration, times: &Config) {
        self.gap = gap.max(self.gap * 7 / 8);
        self.late *= 1.0 - 1.0 / MANY;
        if gap * 2 >= times.beat_every * 3 {
            self.late += 1.0;
        }
    }
}

/// The failure detector of one peer.
#[derive(Debug)]
pub struct Membership {
    config: Config,
    /// `config` stretched to the size of the group.
    times: Config,
    n_members: usize,
    watched: BTreeMap<PeerId, Watch>,
    /// Peers that must exist though no connection led to them yet, and since when.
    expected: BTreeMap<PeerId, Tick>,
    last_tick: Option<Tick>,
}

impl Membership {
    /// Watches nobody yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            times: config,
            n_members: 0,
            watched: BTreeMap::new(),
            expected: BTreeMap::new(),
            last_tick: None,
        }
    }

    /// The job has this many members, connected or not: a group is as large as the larger of the two numbers, so that all
    /// who share a view expect about as many beats of each other.
    pub fn set_members(&mut self, n_members: usize) {
        self.n_members = n_members;
        self.stretch();
    }

    /// The times that hold in the group as it is.
    pub fn times(&self) -> &Config {
        &self.times
    }

    /// Whether the group is small enough to tell everything to everybody at once.
    pub fn are_few(&self) -> bool {
        self.group() <= FEW
    }

    /// A connection to `peer` opened: it counts as heard now.
    pub fn connected(&mut self, now: Tick, peer: PeerId) {
        self.expected.remove(&peer);
        if self.watched.len() < MAX_PEERS || self.watched.contains_key(&peer) {
            self.watched
                .entry(peer)
                .or_insert(Watch {
                    last_heard: now,
                    gap: Duration::ZERO,
                    late: 0.0,
                })
                .last_heard = now;
        }
        self.stretch();
    }

    /// The last connection to `peer` closed: it is down at once.
    pub fn disconnected(&mut self, peer: PeerId) {
        self.watched.remove(&peer);
        self.expected.remove(&peer);
        self.stretch();
    }

    /// Others work with `peer`, and no connection leads to it yet: it has the least silence to appear before it is down.
    pub fn expect(&mut self, now: Tick, peer: PeerId) {
        if self.watched.contains_key(&peer) || self.is_alive(now, peer) {
            return;
        }
        if self.expected.len() >= MAX_PEERS {
            let patience = self.times.silence_min;
            self.expected
                .retain(|_, since| now.since(*since) <= patience);
        }
        if self.expected.len() < MAX_PEERS {
            self.expected.insert(peer, now);
        }
    }

    /// Anything was heard from `peer`, so a connection to it is open. Returns whether it was alive before.
    pub fn heard(&mut self, now: Tick, peer: PeerId) -> bool {
        let times = &self.times;
        match self.watched.get_mut(&peer) {
            Some(watch) => {
                let gap = now.since(watch.last_heard);
                let was_alive = gap <= watch.patience(times);
                watch.heard_after(gap, times);
                watch.last_heard = now;
                was_alive
            }
            None => {
                let was_alive = self.is_alive(now, peer);
                self.connected(now, peer);
                was_alive
            }
        }
    }

    /// Time passed. Returns true when the own clock jumped by more than half the silence bound, in which case all
    /// peers get a fresh start.
    pub fn tick(&mut self, now: Tick) -> bool {
        let jumped = self
            .last_tick
            .is_some_and(|last| now.since(last) > self.times.silence_min / 2);
        if jumped {
            for watch in self.watched.values_mut() {
                watch.last_heard = now;
            }
            let patience = self.times.silence_min;
            let last = self.last_tick.unwrap_or(now);
            self.expected
                .retain(|_, since| last.since(*since) <= patience);
            self.expected.values_mut().for_each(|since| *since = now);
        }
        self.last_tick = Some(now);
        jumped
    }

    /// Whether `peer` is connected and was heard recently enough, or is expected and may still appear.
    pub fn is_alive(&self, now: Tick, peer: PeerId) -> bool {
        self.down_at(peer).is_some_and(|at| now < at)
    }

    /// When `peer` will be down if nothing more is heard of it; `None` if it is neither connected nor expected.
    pub fn down_at(&self, peer: PeerId) -> Option<Tick> {
        let (since, patience) = match self.watched.get(&peer) {
            Some(watch) => (watch.last_heard, watch.patience(&self.times)),
            None => (*self.expected.get(&peer)?, self.times.silence_min),
        };
        // Silence of exactly the bound is still tolerated.
        Some(since + patience + Duration::from_micros(1))
    }

    /// All connected peers that are alive now, ascending.
    pub fn alive(&self, now: Tick) -> impl Iterator<Item = PeerId> + '_ {
        self.connected_peers()
            .filter(move |peer| self.is_alive(now, *peer))
    }

    /// All peers with a connection, alive or silent, ascending.
    pub fn connected_peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.watched.keys().copied()
    }

    /// Whether a connection to `peer` is open.
    pub fn is_connected(&self, peer: PeerId) -> bool {
        self.watched.contains_key(&peer)
    }

    fn group(&self) -> usize {
        self.watched.len().max(self.n_members)
    }

    fn stretch(&mut self) {
        self.times = self.config.stretched(self.group());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PeerId = PeerId([1; 32]);

    fn at(seconds: f64) -> Tick {
        Tick((seconds * 1e6) as u64)
    }

    #[test]
    fn a_silent_peer_is_down_after_the_timeout_and_up_when_heard_again() {
        let mut membership = Membership::new(Config::default());
        membership.connected(at(0.0), A);
        membership.heard(at(0.5), A);
        assert!(membership.is_alive(at(3.0), A));
        assert!(!membership.is_alive(at(4.0), A));
        membership.heard(at(5.0), A);
        assert!(membership.is_alive(at(5.1), A));
    }

    #[test]
    fn a_closed_connection_is_down_at_once() {
        let mut membership = Membership::new(Config::default());
        membership.connected(at(0.0), A);
        membership.disconnected(A);
        assert!(!membership.is_alive(at(0.0), A));
        assert!(membership.alive(at(0.0)).next().is_none());
    }

    #[test]
    fn a_peer_that_was_never_met_has_time_to_appear() {
        let mut membership = Membership::new(Config::default());
        membership.expect(at(0.0), A);
        assert!(membership.is_alive(at(2.9), A));
        assert!(membership.connected_peers().next().is_none());
        membership.tick(at(3.1));
        assert!(!membership.is_alive(at(3.1), A));

        membership.expect(at(4.0), A);
        membership.connected(at(4.5), A);
        membership.disconnected(A);
        assert!(!membership.is_alive(at(4.6), A), "met and lost");
    }

    #[test]
    fn irregular_beats_earn_patience_up_to_the_bound() {
        let mut membership = Membership::new(Config::default());
        membership.connected(at(0.0), A);
        membership.heard(at(2.5), A);
        assert!(
            membership.is_alive(at(9.0), A),
            "three times the longest gap"
        );
        membership.heard(at(10.0), A);
        assert!(!membership.is_alive(at(20.5), A), "never beyond the bound");
    }

    #[test]
    fn a_link_that_loses_beats_now_and_then_is_given_time_for_several_losses_in_a_row() {
        let config = Config {
            beat_every: Duration::from_millis(100),
            silence_min: Duration::from_millis(900),
            silence_lossy: Duration::from_millis(3300),
            silence_max: Duration::from_secs(5),
        };
        let mut membership = Membership::new(config);
        membership.connected(at(0.0), A);
        let mut now = 0.0;
        let mut beat = |membership: &mut Membership, gap: f64| {
            now += gap;
            membership.heard(at(now), A);
            let patience = membership.down_at(A).unwrap().since(at(now));
            patience.as_secs_f64()
        };
        assert!(beat(&mut membership, 0.3) < 1.0);
        for n in 1..500 {
            let is_lost = n % 50 == 0;
            beat(&mut membership, if is_lost { 0.3 } else { 0.1 });
        }
        assert!(beat(&mut membership, 0.1) > 3.2);
        for _ in 0..1500 {
            beat(&mut membership, 0.1);
        }
        assert!(beat(&mut membership, 0.1) < 1.0, "none was lost since");
    }

    #[test]
    fn a_jump_of_the_own_clock_condemns_nobody() {
        let mut membership = Membership::new(Config::default());
        membership.connected(at(0.0), A);
        assert!(!membership.tick(at(0.4)));
        assert!(membership.tick(at(11.0)), "stopped for ten seconds");
        assert!(membership.is_alive(at(11.0), A));
        assert!(!membership.is_alive(at(14.5), A));
    }

    #[test]
    fn of_many_peers_each_beats_less_often_and_is_given_more_time() {
        let mut membership = Membership::new(Config::default());
        for n in 0..1000u16 {
            let [high, low] = n.to_be_bytes();
            membership.connected(at(0.0), PeerId([high, low].repeat(16).try_into().unwrap()));
            let beats_per_s =
                membership.watched.len() as f64 / membership.times().beat_every.as_secs_f64();
            assert!(beats_per_s <= 160.01, "{n}: {beats_per_s}");
            assert_eq!(membership.are_few(), usize::from(n) < FEW);
        }
        assert_eq!(membership.times().beat_every, Duration::from_millis(6250));
        let first = PeerId([0; 32]);
        assert!(membership.is_alive(at(46.0), first));
        assert!(!membership.is_alive(at(47.0), first));
        membership.disconnected(first);
        assert!(!membership.is_alive(at(0.1), first), "closed");

        let mut lonely = Membership::new(Config::default());
        lonely.set_members(1000);
        assert_eq!(lonely.times(), &Config::default().stretched(1000));
    }
}

//! Who is alive: a failure detector over heartbeats and connections.
//!
//! In: beats heard, connections opened and closed, members named by others, the passing of time. Out: which peers are alive now.
//! A closed connection means down at once. A peer that was never met is not judged before it had time to appear. A silent peer is down after a timeout that adapts to the gaps this
//! peer has shown (after the accrual idea of Hayashibara et al. 2004): a loaded device with irregular beats gets more
//! patience, up to a bound. When the own clock jumped (suspend, SIGSTOP), every peer gets a fresh start instead of a
//! verdict: it was this peer that was away.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ids::PeerId;
use crate::time::Tick;

/// How patient the detector is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Time between two beats of a healthy peer. Default 400 ms: cheap beside any training traffic.
    pub beat_every: Duration,
    /// Least silence that counts as down. Default 3 s: several beats lost in a row.
    pub silence_min: Duration,
    /// Most silence that is ever tolerated. Default 10 s, so that a wait has a bound whatever a peer has shown.
    pub silence_max: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            beat_every: Duration::from_millis(400),
            silence_min: Duration::from_secs(3),
            silence_max: Duration::from_secs(10),
        }
    }
}

/// Largest number of peers watched; the connection of a further one is ignored.
pub const MAX_PEERS: usize = 1024;

#[derive(Debug)]
struct Watch {
    last_heard: Tick,
    /// Longest gap between beats, decaying by an eighth per beat.
    gap: Duration,
}

/// The failure detector of one peer.
#[derive(Debug)]
pub struct Membership {
    config: Config,
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
            watched: BTreeMap::new(),
            expected: BTreeMap::new(),
            last_tick: None,
        }
    }

    /// A connection to `peer` opened: it counts as heard now.
    pub fn connected(&mut self, now: Tick, peer: PeerId) {
        self.expected.remove(&peer);
        if self.watched.len() < MAX_PEERS {
            self.watched
                .entry(peer)
                .or_insert(Watch {
                    last_heard: now,
                    gap: Duration::ZERO,
                })
                .last_heard = now;
        }
    }

    /// The last connection to `peer` closed: it is down at once.
    pub fn disconnected(&mut self, peer: PeerId) {
        self.watched.remove(&peer);
        self.expected.remove(&peer);
    }

    /// Others work with `peer`, and no connection leads to it yet: it has the least silence to appear before it is down.
    pub fn expect(&mut self, now: Tick, peer: PeerId) {
        if !self.watched.contains_key(&peer) && self.expected.len() < MAX_PEERS {
            self.expected.entry(peer).or_insert(now);
        }
    }

    /// Anything was heard from `peer`, so a connection to it is open.
    pub fn heard(&mut self, now: Tick, peer: PeerId) {
        match self.watched.get_mut(&peer) {
            Some(watch) => {
                let gap = now.since(watch.last_heard);
                watch.gap = gap.max(watch.gap * 7 / 8);
                watch.last_heard = now;
            }
            None => self.connected(now, peer),
        }
    }

    /// Time passed. Returns true when the own clock jumped by more than half the silence bound, in which case all
    /// peers get a fresh start.
    pub fn tick(&mut self, now: Tick) -> bool {
        let jumped = self
            .last_tick
            .is_some_and(|last| now.since(last) > self.config.silence_min / 2);
        if jumped {
            for watch in self.watched.values_mut() {
                watch.last_heard = now;
            }
            self.expected.values_mut().for_each(|since| *since = now);
        }
        let patience = self.config.silence_min;
        self.expected
            .retain(|_, since| now.since(*since) <= patience);
        self.last_tick = Some(now);
        jumped
    }

    /// Whether `peer` is connected and was heard recently enough, or is expected and may still appear.
    pub fn is_alive(&self, now: Tick, peer: PeerId) -> bool {
        match self.watched.get(&peer) {
            Some(watch) => now.since(watch.last_heard) <= self.patience(watch),
            None => self
                .expected
                .get(&peer)
                .is_some_and(|since| now.since(*since) <= self.config.silence_min),
        }
    }

    /// All connected peers that are alive now, ascending.
    pub fn alive(&self, now: Tick) -> BTreeSet<PeerId> {
        self.watched
            .keys()
            .copied()
            .filter(|peer| self.is_alive(now, *peer))
            .collect()
    }

    /// All peers with a connection, alive or silent.
    pub fn connected_peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.watched.keys().copied()
    }

    fn patience(&self, watch: &Watch) -> Duration {
        (watch.gap * 3).clamp(self.config.silence_min, self.config.silence_max)
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
        assert!(membership.alive(at(0.0)).is_empty());
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
    fn a_jump_of_the_own_clock_condemns_nobody() {
        let mut membership = Membership::new(Config::default());
        membership.connected(at(0.0), A);
        assert!(!membership.tick(at(0.4)));
        assert!(membership.tick(at(11.0)), "stopped for ten seconds");
        assert!(membership.is_alive(at(11.0), A));
        assert!(!membership.is_alive(at(14.5), A));
    }
}

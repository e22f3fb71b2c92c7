//! Which address to dial next. A pure state machine: time and seed are passed in, dials are carried out elsewhere.
//!
//! Addresses come from `--peer`, from last time, from mDNS (then without a name: who answers is learnt by dialling) and
//! from other peers. Per peer at most one dial runs; a failure doubles that address's pause; a connection ends all
//! dialling of that peer, and its loss starts it again at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use skein_gossip::ids::PeerId;
use skein_gossip::time::Tick;

use super::interfaces::Rank;

/// The first pause after a failed dial; doubles from there.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Dials at the same time, over all peers.
const MAX_IN_FLIGHT: usize = 16;
/// Addresses kept in all; beyond that the worst is forgotten.
const MAX_ADDRESSES: usize = 1024;
/// Addresses kept per peer.
pub(super) const MAX_PER_PEER: usize = 16;
/// Hearsay that failed this often in a row is forgotten (about eight minutes).
const MAX_HEARSAY_FAILURES: u32 = 12;
/// A renewed announcement of an address cuts its pause short, but not more often than this.
const RENEWAL: Duration = Duration::from_secs(5);

/// How an address became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Via {
    /// Given by the user.
    Flag,
    /// Known from last time.
    Remembered,
    /// Announced in the local network.
    Mdns,
    /// Told by a peer.
    Learnt,
}

/// What is dialled: an address, and who must answer there, if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Target {
    pub(super) peer: Option<PeerId>,
    pub(super) address: SocketAddr,
}

/// What is known of one address.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) via: BTreeSet<Via>,
    pub(super) rank: Rank,
    /// Addresses without a name that were announced together, so belong to one peer.
    pub(super) group: Option<u64>,
    /// Since when it is being tried without success.
    pub(super) since: Tick,
    /// Failures since the last success.
    pub(super) failures: u32,
    pub(super) next_try: Tick,
    /// Whether it ever led to a connection.
    pub(super) good: bool,
    /// What the last failure was.
    pub(super) reason: Option<String>,
    renewed: Tick,
}

impl Entry {
    fn is_hearsay(&self) -> bool {
        !self.via.contains(&Via::Flag) && !self.via.contains(&Via::Remembered)
    }
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Dialer {
    entries: BTreeMap<Target, Entry>,
    in_flight: BTreeSet<Target>,
    connected: BTreeSet<PeerId>,
    /// Addresses of this process, never dialled.
    own: BTreeSet<SocketAddr>,
    rng: ChaCha8Rng,
}

impl Dialer {
    /// A dialer that knows nothing; `seed` is for the jitter of its pauses.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            entries: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            connected: BTreeSet::new(),
            own: BTreeSet::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// Never dial `address`: it is this process.
    pub(super) fn own(&mut self, address: SocketAddr) {
        // Bounded, since a router may show us under any number of addresses.
        if self.own.len() < MAX_ADDRESSES {
            self.own.insert(address);
        }
        self.entries.retain(|target, _| target.address != address);
    }

    /// An address was heard of. `group` joins addresses that were announced together.
    pub(super) fn heard(
        &mut self,
        now: Tick,
        target: Target,
        via: Via,
        rank: Rank,
        group: Option<u64>,
    ) {
        if self.own.contains(&target.address) {
            return;
        }
        if target.peer.is_none() && via == Via::Mdns && self.renew_named(now, target.address) {
            return;
        }
        if let Some(peer) = target.peer {
            // Now it is known who is there; if it is not true, dialling tells.
            self.adopt(peer, |bare, _| bare.address == target.address);
        }
        if let Some(entry) = self.entries.get_mut(&target) {
            entry.via.insert(via);
            entry.rank = rank;
            entry.group = group.or(entry.group);
            if via != Via::Learnt {
                renew(entry, now);
            }
            return;
        }
        if !self.make_room(target.peer) {
            return;
        }
        let entry = Entry {
            via: BTreeSet::from([via]),
            rank,
            group,
            since: now,
            failures: 0,
            next_try: now,
            good: false,
            reason: None,
            renewed: now,
        };
        self.entries.insert(target, entry);
    }

    /// The next dial to start now, if any. The caller reports its end with `failed`, `wrong_peer` or `connected`.
    pub(super) fn poll(&mut self, now: Tick) -> Option<Target> {
        if self.in_flight.len() >= MAX_IN_FLIGHT {
            return None;
        }
        let (target, _) = self
            .entries
            .iter()
            .filter(|(target, entry)| entry.next_try <= now && self.may_dial(target, entry))
            .min_by_key(|(_, entry)| (entry.failures, entry.rank, entry.next_try))?;
        let target = *target;
        self.in_flight.insert(target);
        Some(target)
    }

    /// When `poll` may have something new, if nothing else happens before.
    pub(super) fn next_wakeup(&self) -> Option<Tick> {
        if self.in_flight.len() >= MAX_IN_FLIGHT {
            return None;
        }
        self.entries
            .iter()
            .filter(|(target, entry)| self.may_dial(target, entry))
            .map(|(_, entry)| entry.next_try)
            .min()
    }

    /// A dial came to nothing.
    pub(super) fn failed(&mut self, now: Tick, target: Target, reason: String) {
        self.in_flight.remove(&target);
        let Some(entry) = self.entries.get_mut(&target) else {
            return;
        };
        entry.failures = entry.failures.saturating_add(1);
        entry.reason = Some(reason);
        let doublings = (entry.failures - 1).min(16);
        let pause = FIRST_PAUSE
            .saturating_mul(1 << doublings)
            .min(LONGEST_PAUSE);
        entry.next_try =
            now + pause.mul_f64(self.rng.next_u32() as f64 / u32::MAX as f64 * 0.5 + 0.75);
        if entry.is_hearsay() && entry.failures >= MAX_HEARSAY_FAILURES {
            self.entries.remove(&target);
        }
    }

    /// A dial ended at another peer than expected: the address is that peer's now.
    pub(super) fn wrong_peer(&mut self, now: Tick, target: Target, obtained: PeerId) {
        self.in_flight.remove(&target);
        let Some(mut entry) = self.entries.remove(&target) else {
            return;
        };
        entry.next_try = now;
        entry.reason = None;
        self.entries
            .entry(Target {
                peer: Some(obtained),
                address: target.address,
            })
            .or_insert(entry);
    }

    /// `peer` is connected; `dialled` is what led to it, if it was a dial of ours.
    pub(super) fn connected(&mut self, now: Tick, peer: PeerId, dialled: Option<Target>) {
        self.connected.insert(peer);
        let Some(target) = dialled else { return };
        self.in_flight.remove(&target);
        let group = self.entries.get(&target).and_then(|entry| entry.group);
        self.adopt(peer, |bare, entry| {
            bare.address == target.address || (group.is_some() && entry.group == group)
        });
        if let Some(entry) = self.entries.get_mut(&Target {
            peer: Some(peer),
            address: target.address,
        }) {
            entry.failures = 0;
            entry.good = true;
            entry.reason = None;
            entry.next_try = now;
        }
    }

    /// The last connection to `peer` is gone: all its addresses are tried again, soon.
    pub(super) fn disconnected(&mut self, now: Tick, peer: PeerId) {
        if !self.connected.remove(&peer) {
            return;
        }
        for (_, entry) in self
            .entries
            .iter_mut()
            .filter(|(target, _)| target.peer == Some(peer))
        {
            entry.since = now;
            entry.failures = 0;
            // Both sides redial: spread them a little, so that one comes first.
            entry.next_try =
                now + FIRST_PAUSE.mul_f64(self.rng.next_u32() as f64 / u32::MAX as f64 * 0.5);
        }
    }

    /// The local network says that these addresses are no longer offered.
    pub(super) fn withdrawn(&mut self, group: u64) {
        self.entries.retain(|target, entry| {
            let gone =
                entry.group == Some(group) && entry.via.remove(&Via::Mdns) && entry.via.is_empty();
            !gone
                || target
                    .peer
                    .is_some_and(|peer| self.connected.contains(&peer))
        });
    }

    /// All that is known, for display.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&Target, &Entry)> {
        self.entries.iter()
    }

    /// Ranks every address anew: the machine's interfaces changed.
    pub(super) fn rerank(&mut self, rank: impl Fn(SocketAddr) -> Rank) {
        for (target, entry) in &mut self.entries {
            entry.rank = rank(target.address);
        }
    }

    fn may_dial(&self, target: &Target, entry: &Entry) -> bool {
        let same = |other: &Target| {
            other.address == target.address
                || (target.peer.is_some() && other.peer == target.peer)
                || (entry.group.is_some()
                    && self
                        .entries
                        .get(other)
                        .is_some_and(|e| e.group == entry.group))
        };
        let reached = match target.peer {
            Some(peer) => self.connected.contains(&peer),
            None => self.connected.iter().any(|&peer| {
                self.entries.contains_key(&Target {
                    peer: Some(peer),
                    address: target.address,
                })
            }),
        };
        !reached && !self.in_flight.iter().any(same)
    }

    /// Gives the nameless addresses that `belongs` picks to `peer`.
    fn adopt(&mut self, peer: PeerId, belongs: impl Fn(&Target, &Entry) -> bool) {
        let bare: Vec<Target> = self
            .entries
            .iter()
            .filter(|(target, entry)| target.peer.is_none() && belongs(target, entry))
            .map(|(target, _)| *target)
            .collect();
        for target in bare {
            let Some(entry) = self.entries.remove(&target) else {
                continue;
            };
            let named = self.entries.entry(Target {
                peer: Some(peer),
                address: target.address,
            });
            named
                .and_modify(|known| known.via.extend(&entry.via))
                .or_insert(entry);
        }
    }

    /// mDNS does not say whose an address is; if a peer is known to be there, that is whose. True if so.
    fn renew_named(&mut self, now: Tick, address: SocketAddr) -> bool {
        let mut known = false;
        for (_, entry) in self
            .entries
            .iter_mut()
            .filter(|(target, _)| target.peer.is_some() && target.address == address)
        {
            entry.via.insert(Via::Mdns);
            renew(entry, now);
            known = true;
        }
        known
    }

    /// Makes room for one address more; false if all that is there is worth more than it.
    fn make_room(&mut self, peer: Option<PeerId>) -> bool {
        let of_peer = |target: &&Target| peer.is_some() && target.peer == peer;
        let crowded = self.entries.keys().filter(of_peer).count() >= MAX_PER_PEER;
        if !crowded && self.entries.len() < MAX_ADDRESSES {
            return true;
        }
        let worst = self
            .entries
            .iter()
            .filter(|(target, entry)| {
                (!crowded || target.peer == peer)
                    && entry.is_hearsay()
                    && entry.failures > 0
                    && !self.in_flight.contains(target)
            })
            .max_by_key(|(_, entry)| entry.failures)
            .map(|(target, _)| *target);
        worst.is_some_and(|target| self.entries.remove(&target).is_some())
    }
}

/// An address was announced again: whoever is there may just have come up.
fn renew(entry: &mut Entry, now: Tick) {
    if now.since(entry.renewed) >= RENEWAL {
        entry.renewed = now;
        entry.next_try = entry.next_try.min(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_announced_address_becomes_that_of_the_peer_that_is_said_to_be_there() {
        let mut dialer = Dialer::new(1);
        dialer.heard(at(0.0), bare(1), Via::Mdns, Rank::Neighbour, Some(7));
        assert_eq!(dialer.poll(at(0.0)), Some(bare(1)));
        dialer.failed(at(5.0), bare(1), "no answer".to_owned());
        dialer.heard(at(5.0), named(9, 1), Via::Learnt, Rank::Neighbour, None);
        let entries: Vec<_> = dialer.entries().collect();
        let [(target, entry)] = entries[..] else {
            panic!("{entries:?}")
        };
        assert_eq!((*target, entry.failures), (named(9, 1), 1));
        assert_eq!(entry.via, BTreeSet::from([Via::Mdns, Via::Learnt]));
        // Somebody else was there.
        assert_eq!(dialer.poll(at(9.0)), Some(named(9, 1)));
        dialer.wrong_peer(at(9.0), named(9, 1), peer(8));
        assert_eq!(dialer.poll(at(9.0)), Some(named(8, 1)));
    }

    fn at(seconds: f64) -> Tick {
        Tick((seconds * 1e6) as u64)
    }

    fn address(n: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 1000 + n))
    }

    fn bare(n: u16) -> Target {
        Target {
            peer: None,
            address: address(n),
        }
    }

    fn named(peer: u8, n: u16) -> Target {
        Target {
            peer: Some(PeerId([peer; 32])),
            address: address(n),
        }
    }

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    #[test]
    fn real_neighbours_are_dialled_before_virtual_ones_and_one_at_a_time() {
        let mut dialer = Dialer::new(1);
        dialer.heard(at(0.0), named(1, 1), Via::Learnt, Rank::Virtual, None);
        dialer.heard(at(0.0), named(1, 2), Via::Learnt, Rank::Neighbour, None);
        assert_eq!(dialer.poll(at(0.0)), Some(named(1, 2)));
        assert_eq!(dialer.poll(at(0.0)), None);
        dialer.failed(at(0.1), named(1, 2), "refused".to_owned());
        assert_eq!(dialer.poll(at(0.1)), Some(named(1, 1)));
    }

    #[test]
    fn pauses_double_up_to_a_minute() {
        let mut dialer = Dialer::new(7);
        dialer.heard(at(0.0), bare(1), Via::Flag, Rank::Routed, None);
        let mut now = at(0.0);
        for n in 0..20 {
            assert_eq!(dialer.poll(now), Some(bare(1)));
            dialer.failed(now, bare(1), String::new());
            let next = dialer.next_wakeup().unwrap();
            let nominal = (0.5 * f64::from(1 << n.min(10))).min(60.0);
            let pause = next.since(now).as_secs_f64();
            assert!(
                (0.74 * nominal..=1.26 * nominal).contains(&pause),
                "failure {n}: {pause}"
            );
            assert_eq!(dialer.poll(Tick(next.0 - 1)), None);
            now = next;
        }
    }

    #[test]
    fn a_connection_ends_dialling_and_its_loss_resumes_it_quickly() {
        let mut dialer = Dialer::new(1);
        dialer.heard(at(0.0), named(1, 1), Via::Remembered, Rank::Neighbour, None);
        dialer.heard(at(0.0), named(1, 2), Via::Learnt, Rank::Neighbour, None);
        let target = dialer.poll(at(0.0)).unwrap();
        dialer.connected(at(0.1), peer(1), Some(target));
        assert_eq!((dialer.poll(at(99.0)), dialer.next_wakeup()), (None, None));
        dialer.disconnected(at(100.0), peer(1));
        assert!(dialer.next_wakeup().unwrap() <= at(100.5));
        assert!(dialer.poll(at(100.5)).is_some());
    }

    #[test]
    fn addresses_announced_together_are_one_peer() {
        let mut dialer = Dialer::new(1);
        dialer.heard(at(0.0), bare(1), Via::Mdns, Rank::Neighbour, Some(5));
        dialer.heard(at(0.0), bare(2), Via::Mdns, Rank::Virtual, Some(5));
        assert_eq!(dialer.poll(at(0.0)), Some(bare(1)));
        assert_eq!(dialer.poll(at(0.0)), None);
        dialer.connected(at(0.1), peer(1), Some(bare(1)));
        assert_eq!(dialer.poll(at(9.0)), None);
        assert!(
            dialer
                .entries()
                .all(|(target, _)| target.peer == Some(peer(1)))
        );
    }

    #[test]
    fn the_announced_address_of_a_connected_peer_is_not_dialled() {
        let mut dialer = Dialer::new(1);
        dialer.heard(at(0.0), bare(1), Via::Mdns, Rank::Neighbour, None);
        dialer.connected(at(0.0), peer(1), None);
        dialer.heard(at(0.0), named(1, 1), Via::Learnt, Rank::Neighbour, None);
        assert_eq!(dialer.poll(at(0.0)), None);
        dialer.heard(at(6.0), bare(1), Via::Mdns, Rank::Neighbour, None);
        assert_eq!(dialer.entries().count(), 1);
        assert_eq!(dialer.poll(at(6.0)), None);
    }

    #[test]
    fn an_address_goes_to_whoever_answers_there() {
        let mut dialer = Dialer::new(1);
        dialer.heard(at(0.0), named(1, 1), Via::Remembered, Rank::Neighbour, None);
        let target = dialer.poll(at(0.0)).unwrap();
        dialer.wrong_peer(at(0.1), target, peer(2));
        assert_eq!(dialer.poll(at(0.1)), Some(named(2, 1)));
    }

    #[test]
    fn an_announcement_cuts_the_pause_short() {
        let mut dialer = Dialer::new(1);
        dialer.heard(at(0.0), named(1, 1), Via::Remembered, Rank::Neighbour, None);
        for n in 0..8 {
            let now = at(100.0 * f64::from(n));
            assert!(dialer.poll(now).is_some());
            dialer.failed(now, named(1, 1), String::new());
        }
        assert_eq!(dialer.poll(at(710.0)), None);
        dialer.heard(at(710.0), bare(1), Via::Mdns, Rank::Neighbour, None);
        assert_eq!(dialer.poll(at(710.0)), Some(named(1, 1)));
    }

    #[test]
    fn own_and_withdrawn_addresses_are_not_dialled() {
        let mut dialer = Dialer::new(1);
        dialer.own(address(1));
        dialer.heard(at(0.0), bare(1), Via::Flag, Rank::Neighbour, None);
        dialer.heard(at(0.0), bare(2), Via::Flag, Rank::Neighbour, None);
        dialer.own(address(2));
        dialer.heard(at(0.0), bare(3), Via::Mdns, Rank::Neighbour, Some(1));
        dialer.withdrawn(1);
        assert_eq!(dialer.poll(at(0.0)), None);
    }

    proptest! {
        #[test]
        fn whatever_happens_the_bounds_hold(seed: u64, steps in prop::collection::vec((0u8..7, 0u8..4, 0u16..40, 0u64..3_000_000), 0..300)) {
            let mut dialer = Dialer::new(seed);
            let mut now = Tick(0);
            let mut running: Vec<Target> = Vec::new();
            for (what, who, n, pause) in steps {
                now = Tick(now.0 + pause);
                let target = Target { peer: (who > 0).then(|| peer(who)), address: address(n) };
                match what {
                    0 | 1 => dialer.heard(now, target, if n % 2 == 0 { Via::Mdns } else { Via::Learnt }, Rank::Routed, (who == 0 && n % 3 == 0).then_some(1)),
                    2 => if let Some(target) = running.pop() { dialer.failed(now, target, String::new()) },
                    3 => if let Some(target) = running.pop() { dialer.connected(now, target.peer.unwrap_or(peer(who.max(1))), Some(target)) },
                    4 => if let Some(target) = running.pop() { dialer.wrong_peer(now, target, peer(who.max(1))) },
                    5 => dialer.disconnected(now, peer(who)),
                    _ => dialer.withdrawn(1),
                }
                while let Some(target) = dialer.poll(now) {
                    prop_assert!(!running.iter().any(|r| r.address == target.address || (r.peer.is_some() && r.peer == target.peer)));
                    prop_assert!(!target.peer.is_some_and(|p| dialer.connected.contains(&p)));
                    running.push(target);
                }
                prop_assert_eq!(running.len(), dialer.in_flight.len());
                for who in 1..4 {
                    prop_assert!(dialer.entries().filter(|(t, _)| t.peer == Some(peer(who))).count() <= 2 * MAX_PER_PEER);
                }
                if let Some(wakeup) = dialer.next_wakeup() {
                    prop_assert!(wakeup > now);
                }
            }
        }
    }
}

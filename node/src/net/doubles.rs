//! Copied identities. Two processes with one key cannot connect to each other, but they meet: a dial that ends at our own
//! identity is either ourselves by a detour (a router that loops back) or a double. A detour shows at both ends of this
//! process at about the same time; a double at one only.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use skein_gossip::time::Tick;

/// The two ends of a detour are seen within this time of each other.
const TOGETHER: Duration = Duration::from_secs(1);
/// The same double is not reported again within this time.
const QUIET: Duration = Duration::from_secs(60);
/// Meetings and reports remembered.
const MAX_REMEMBERED: usize = 64;

/// Which end of a connection met our own identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Dialled,
    Accepted,
}

/// What to make of a meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// This address is ourselves.
    Ourselves(SocketAddr),
    /// Another process with our identity is there.
    Double(SocketAddr),
}

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Doubles {
    /// Meetings not yet judged.
    open: Vec<(Tick, End, SocketAddr)>,
    reported: BTreeMap<String, Tick>,
}

impl Doubles {
    /// One end of a connection met our own identity.
    pub(super) fn met(&mut self, now: Tick, end: End, address: SocketAddr) -> Option<Verdict> {
        let other = self.open.iter().position(|(_, other, _)| *other != end);
        if let Some(other) = other {
            let (_, _, there) = self.open.remove(other);
            return Some(Verdict::Ourselves(if end == End::Dialled {
                address
            } else {
                there
            }));
        }
        if self.open.len() < MAX_REMEMBERED {
            self.open.push((now, end, address));
        }
        None
    }

    /// The next meeting that turned out to be with a double.
    pub(super) fn poll(&mut self, now: Tick) -> Option<Verdict> {
        let due = self
            .open
            .iter()
            .position(|(since, _, _)| now.since(*since) >= TOGETHER)?;
        Some(Verdict::Double(self.open.remove(due).2))
    }

    /// When `poll` may have something new.
    pub(super) fn next_wakeup(&self) -> Option<Tick> {
        self.open
            .iter()
            .map(|(since, _, _)| *since + TOGETHER)
            .min()
    }

    /// Whether a double at `address` is news; the port may change with every connection, so only the ip counts.
    pub(super) fn is_news(&mut self, now: Tick, address: &str) -> bool {
        let ip = address
            .parse::<SocketAddr>()
            .map_or_else(|_| address.to_owned(), |address| address.ip().to_string());
        self.reported.retain(|_, since| now.since(*since) < QUIET);
        if self.reported.len() >= MAX_REMEMBERED || self.reported.contains_key(&ip) {
            return false;
        }
        self.reported.insert(ip, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Tick {
        Tick(seconds * 1_000_000)
    }

    fn there() -> SocketAddr {
        "203.0.113.9:4001".parse().unwrap()
    }

    #[test]
    fn a_connection_that_shows_at_both_ends_is_our_own() {
        for ends in [[End::Dialled, End::Accepted], [End::Accepted, End::Dialled]] {
            let mut doubles = Doubles::default();
            let addresses = ends.map(|end| {
                if end == End::Dialled {
                    there()
                } else {
                    "10.0.0.1:9".parse().unwrap()
                }
            });
            assert_eq!(doubles.met(at(0), ends[0], addresses[0]), None);
            assert_eq!(
                doubles.met(at(0), ends[1], addresses[1]),
                Some(Verdict::Ourselves(there()))
            );
            assert_eq!((doubles.poll(at(9)), doubles.next_wakeup()), (None, None));
        }
    }

    #[test]
    fn a_connection_that_shows_at_one_end_is_a_double() {
        for end in [End::Dialled, End::Accepted] {
            let mut doubles = Doubles::default();
            assert_eq!(doubles.met(at(0), end, there()), None);
            assert_eq!(
                (doubles.poll(at(0)), doubles.next_wakeup()),
                (None, Some(at(1)))
            );
            assert_eq!(doubles.poll(at(1)), Some(Verdict::Double(there())));
        }
    }

    #[test]
    fn a_double_is_news_once_a_minute() {
        let mut doubles = Doubles::default();
        assert!(doubles.is_news(at(0), "203.0.113.9:4001"));
        assert!(!doubles.is_news(at(59), "203.0.113.9:52222"));
        assert!(doubles.is_news(at(59), "203.0.113.10:1"));
        assert!(doubles.is_news(at(60), "203.0.113.9:1"));
    }
}

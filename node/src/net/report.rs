//! What contacts and dialer know, in the words of the interface: peers, what to remember, and why a dial failed.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::net::SocketAddr;

use libp2p::swarm::DialError;
use skein_gossip::ids::PeerId;
use skein_gossip::time::Tick;

use super::address;
use super::contacts::Contacts;
use super::dialer::{Dialer, Entry, Via};
use super::peers::{PeerInfo, PeerState};

/// Addresses to remember.
pub(super) const MAX_BOOK: usize = 256;

/// Every peer, and every address without an owner.
pub(super) fn peers(now: Tick, contacts: &Contacts, dialer: &Dialer) -> Vec<PeerInfo> {
    let mut by_peer: BTreeMap<PeerId, Vec<(SocketAddr, &Entry)>> = contacts
        .known()
        .keys()
        .map(|peer| (*peer, Vec::new()))
        .collect();
    let mut nameless: BTreeMap<Result<u64, SocketAddr>, Vec<(SocketAddr, &Entry)>> =
        BTreeMap::new();
    for (target, entry) in dialer.entries() {
        let place = (target.address, entry);
        match target.peer {
            Some(peer) => by_peer.entry(peer).or_default().push(place),
            None => nameless
                .entry(entry.group.ok_or(target.address))
                .or_default()
                .push(place),
        }
    }
    let named = by_peer.into_iter().map(|(peer, places)| {
        let known = contacts.known().get(&peer);
        let state = contacts
            .state(peer)
            .unwrap_or_else(|| dialling(now, &places));
        PeerInfo {
            software: known.and_then(|known| known.software.clone()),
            traffic: known.map(|known| known.traffic.info()).unwrap_or_default(),
            ..info(Some(peer), state, &places)
        }
    });
    let nameless = nameless
        .values()
        .map(|places| info(None, dialling(now, places), places));
    named.chain(nameless).collect()
}

fn info(peer: Option<PeerId>, state: PeerState, places: &[(SocketAddr, &Entry)]) -> PeerInfo {
    let mut places = places.to_vec();
    places.sort_by_key(|(address, entry)| (entry.rank, *address));
    let mut via: Vec<Via> = places
        .iter()
        .flat_map(|(_, entry)| entry.via.iter().copied())
        .collect();
    via.sort_unstable();
    via.dedup();
    let addresses = places
        .iter()
        .map(|(address, _)| address.to_string())
        .collect();
    PeerInfo {
        peer,
        addresses,
        via,
        state,
        software: None,
        traffic: Default::default(),
    }
}

/// The state of a peer that is not connected.
fn dialling(now: Tick, places: &[(SocketAddr, &Entry)]) -> PeerState {
    let heard = places
        .iter()
        .find(|(_, entry)| entry.via.contains(&Via::Mdns) && entry.failures > 0);
    if let Some((
        address,
        Entry {
            reason: Some(reason),
            ..
        },
    )) = heard
    {
        return PeerState::OneWay {
            reason: format!("heard at {address}, but: {reason}"),
        };
    }
    let next = places.iter().map(|(_, entry)| entry.next_try).min();
    let since = places.iter().map(|(_, entry)| entry.since).min();
    match since.zip(next) {
        Some((since, next)) => PeerState::Dialing {
            since: now.since(since),
            attempts: places.iter().map(|(_, entry)| entry.failures).sum(),
            next_try: next.since(now),
            reason: places.iter().find_map(|(_, entry)| entry.reason.clone()),
        },
        None => PeerState::Lost,
    }
}

/// Addresses that led to a connection first, then others of peers that are connected.
pub(super) fn address_book(contacts: &Contacts, dialer: &Dialer) -> Vec<String> {
    let mut book: Vec<_> = dialer
        .entries()
        .filter_map(|(target, entry)| Some((target.peer?, target.address, entry)))
        .filter(|(peer, _, entry)| {
            entry.good || entry.via.contains(&Via::Remembered) || contacts.state(*peer).is_some()
        })
        .collect();
    book.sort_by_key(|(_, _, entry)| (!entry.good, entry.failures, entry.rank));
    book.iter()
        .filter_map(|(peer, address, _)| address::to_text(*address, *peer))
        .take(MAX_BOOK)
        .collect()
}

/// The innermost cause of an error; libp2p wraps them deeply.
pub(super) fn root(error: &(dyn Error + 'static)) -> String {
    causes(error)
        .last()
        .map(ToString::to_string)
        .unwrap_or_default()
}

/// Why a dial failed, in words that help.
pub(super) fn why(error: &DialError) -> String {
    let DialError::Transport(tries) = error else {
        return root(error);
    };
    let Some((_, error)) = tries.first() else {
        return "no transport for this address".to_owned();
    };
    let kind = causes(error)
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .map(io::Error::kind)
        .filter(|kind| *kind != io::ErrorKind::Other)
        .last();
    match kind {
        Some(io::ErrorKind::ConnectionRefused) => {
            "connection refused: nothing listens there".to_owned()
        }
        Some(io::ErrorKind::TimedOut) => "no answer: a firewall, or nobody is there".to_owned(),
        Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => root(error),
        _ => format!(
            "no handshake: another mesh key, or not skein ({})",
            root(error)
        ),
    }
}

/// An error and all that it wraps, outermost first.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| {
        let error: &'a (dyn Error + 'static) = *error;
        // An io error hides what it wraps from `source`.
        let wrapped = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        wrapped
            .map(|wrapped| wrapped as &(dyn Error + 'static))
            .or_else(|| error.source())
    })
}

#[cfg(test)]
mod tests {
    use super::super::dialer::Target;
    use super::super::interfaces::Rank;
    use super::*;

    fn state(via: Via, failures: usize) -> PeerState {
        let mut dialer = Dialer::new(1);
        let target = Target {
            peer: None,
            address: "10.0.0.1:4001".parse().unwrap(),
        };
        dialer.heard(Tick(0), target, via, Rank::Neighbour, None);
        let mut now = Tick(0);
        for _ in 0..failures {
            now = dialer.next_wakeup().unwrap();
            dialer.poll(now).unwrap();
            dialer.failed(now, target, "refused".to_owned());
        }
        let places: Vec<_> = dialer
            .entries()
            .map(|(target, entry)| (target.address, entry))
            .collect();
        dialling(now, &places)
    }

    #[test]
    fn a_peer_that_is_heard_but_cannot_be_dialled_is_one_way() {
        assert!(matches!(
            state(Via::Mdns, 0),
            PeerState::Dialing {
                attempts: 0,
                reason: None,
                ..
            }
        ));
        let PeerState::OneWay { reason } = state(Via::Mdns, 1) else {
            panic!("not one-way")
        };
        assert_eq!(reason, "heard at 10.0.0.1:4001, but: refused");
    }

    #[test]
    fn a_peer_that_was_only_told_of_is_being_dialled() {
        let PeerState::Dialing {
            attempts,
            next_try,
            reason,
            ..
        } = state(Via::Flag, 3)
        else {
            panic!("not dialling")
        };
        assert_eq!((attempts, reason.as_deref()), (3, Some("refused")));
        assert!(!next_try.is_zero());
        assert_eq!(dialling(Tick(0), &[]), PeerState::Lost);
    }

    #[test]
    fn the_innermost_cause_is_found_inside_io_errors() {
        let inner = io::Error::from(io::ErrorKind::ConnectionRefused);
        let text = inner.to_string();
        assert_eq!(root(&io::Error::other(io::Error::other(inner))), text);
    }
}

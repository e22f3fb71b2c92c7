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

/// What libp2p's time limit says; its type has too many parameters to be asked for.
const TIMED_OUT: &str = "Timeout has been reached";

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
            reason: places
                .iter()
                .rev()
                .find_map(|(_, entry)| entry.reason.clone()),
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
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Why a dial failed, in words that help.
pub(super) fn why(error: &DialError) -> String {
    let DialError::Transport(tries) = error else {
        return root(error);
    };
    let Some((_, error)) = tries.first() else {
        return "no transport for this address".to_owned();
    };
    let cause = root(error);
    if cause == TIMED_OUT {
        return "no answer: a firewall, or not there".to_owned();
    }
    match io_kind(error) {
        Some(io::ErrorKind::ConnectionRefused) => {
            "connection refused: nothing listens there".to_owned()
        }
        Some(io::ErrorKind::TimedOut) => "no answer: a firewall, or not there".to_owned(),
        Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => cause,
        _ => format!("no handshake: another mesh key, or not skein ({cause})"),
    }
}

fn io_kind(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let mut next = Some(error);
    let mut kind = None;
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>()
            && io.kind() != io::ErrorKind::Other
        {
            kind = Some(io.kind());
        }
        next = error.source();
    }
    kind
}

//! Addresses. Inside, an address is an ip and a TCP port; here that becomes a multiaddr and back, and what a user
//! types after `--peer` is understood. Nothing here resolves names.

use std::net::{IpAddr, SocketAddr};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use skein_gossip::ids::PeerId;

use super::identity;

/// Where a peer may be: an address, or a name that must be resolved first; and who is expected there, if known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) host: Host,
    pub(super) peer: Option<PeerId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Host {
    Address(SocketAddr),
    Name(String, u16),
}

/// What was typed is neither a multiaddr nor host:port.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{text:?} is not an address: write host:port, ip:port or a multiaddr such as /ip4/192.168.1.5/tcp/4001 ({reason})"
)]
pub struct AddressError {
    /// What was given, at most 120 characters of it.
    pub text: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// Reads a `--peer` value or a remembered address.
pub(super) fn parse(text: &str) -> Result<Place, AddressError> {
    let text = text.trim();
    let error = |reason| AddressError {
        text: text.chars().take(120).collect(),
        reason,
    };
    if text.starts_with('/') {
        let address: Multiaddr = text.parse().map_err(|_| error("no valid multiaddr"))?;
        return from_multiaddr(&address)
            .ok_or_else(|| error("not of the form /ip4|ip6|dns/…/tcp/PORT"));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        if address.port() == 0 {
            return Err(error("port 0 cannot be dialled"));
        }
        return Ok(Place {
            host: Host::Address(plain(address)),
            peer: None,
        });
    }
    let (name, port) = text
        .rsplit_once(':')
        .ok_or_else(|| error("the port is missing"))?;
    let port: u16 = port
        .parse()
        .map_err(|_| error("the port is not a number up to 65535"))?;
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if port == 0 || name.is_empty() || name.len() > 253 || !name.chars().all(valid) {
        return Err(error("not a host name and port"));
    }
    Ok(Place {
        host: Host::Name(name.to_owned(), port),
        peer: None,
    })
}

/// Reads `/ip4|ip6|dns*/…/tcp/PORT[/p2p/ID]`.
pub(super) fn from_multiaddr(address: &Multiaddr) -> Option<Place> {
    let mut parts = address.iter();
    let host = parts.next()?;
    let Some(Protocol::Tcp(port @ 1..)) = parts.next() else {
        return None;
    };
    let host = match host {
        Protocol::Ip4(ip) => Host::Address(SocketAddr::new(ip.into(), port)),
        Protocol::Ip6(ip) => Host::Address(plain(SocketAddr::new(ip.into(), port))),
        Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name) => {
            Host::Name(name.chars().take(253).collect(), port)
        }
        _ => return None,
    };
    let peer = match parts.next() {
        Some(Protocol::P2p(peer)) => Some(identity::from_libp2p(&peer)?),
        None => None,
        Some(_) => return None,
    };
    parts.next().is_none().then_some(Place { host, peer })
}

/// The ip and port of `address`, if it holds no name.
pub(super) fn socket_of(address: &Multiaddr) -> Option<SocketAddr> {
    match from_multiaddr(address)?.host {
        Host::Address(address) => Some(address),
        Host::Name(..) => None,
    }
}

/// `address` as the swarm wants it.
pub(super) fn to_multiaddr(address: SocketAddr) -> Multiaddr {
    Multiaddr::empty()
        .with(address.ip().into())
        .with(Protocol::Tcp(address.port()))
}

/// The text under which `peer` at `address` is remembered.
pub(super) fn to_text(address: SocketAddr, peer: PeerId) -> Option<String> {
    let peer = identity::to_libp2p(peer)?;
    Some(to_multiaddr(address).with(Protocol::P2p(peer)).to_string())
}

/// Whether another peer could dial `ip`. IPv6 link-local is out: it means nothing without the receiver's own interface.
pub(super) fn dialable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast(),
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast() && !ip.is_unicast_link_local(),
    }
}

/// One spelling per address: IPv4 inside IPv6 becomes IPv4, flow and scope are dropped.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::identity::Identity;
    use super::*;

    #[test]
    fn what_users_type_is_understood() {
        let peer = Identity::generate().peer();
        let address: SocketAddr = "192.168.1.5:4001".parse().unwrap();
        let known = to_text(address, peer).unwrap();
        for (text, host, peer) in [
            ("192.168.1.5:4001", Host::Address(address), None),
            (" /ip4/192.168.1.5/tcp/4001 ", Host::Address(address), None),
            (&known, Host::Address(address), Some(peer)),
            ("[::1]:7", Host::Address("[::1]:7".parse().unwrap()), None),
            ("[::ffff:192.168.1.5]:4001", Host::Address(address), None),
            (
                "nas.local:4001",
                Host::Name("nas.local".to_owned(), 4001),
                None,
            ),
            (
                "/dns/nas.local/tcp/4001",
                Host::Name("nas.local".to_owned(), 4001),
                None,
            ),
        ] {
            assert_eq!(parse(text), Ok(Place { host, peer }), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        for text in [
            "",
            "nas",
            "nas:",
            ":4",
            "nas:0",
            "1.2.3.4:0",
            "a b:4",
            "nas:70000",
            "/ip4/1.2.3.4",
            "/ip4/1.2.3.4/udp/4",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().contains("is not an address"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_an_error(text in ".{0,300}") {
            let _ = parse(&text);
        }

        #[test]
        fn addresses_go_to_multiaddrs_and_come_back(ip: std::net::IpAddr, port in 1u16..) {
            let address = plain(SocketAddr::new(ip, port));
            prop_assert_eq!(socket_of(&to_multiaddr(address)), Some(address));
        }
    }
}

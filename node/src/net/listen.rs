//! Where to listen: the addresses asked for, made concrete, and probed so that a taken port is an error that names it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use super::NetError;
use super::interfaces::Interfaces;

/// What a peer listens on when nothing is asked for: every interface, one port for IPv4 and IPv6.
const EVERYWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    IpAddr::V6(Ipv6Addr::UNSPECIFIED),
];

/// The addresses to bind for `wanted`, each of them free at this moment. Where nothing is wanted: everywhere, on
/// `last_port` if that is free, since others remember it.
pub(super) fn choose(
    wanted: &[SocketAddr],
    last_port: Option<u16>,
    interfaces: &Interfaces,
) -> Result<Vec<SocketAddr>, NetError> {
    let explicit = !wanted.is_empty();
    let wanted: Vec<SocketAddr> = if explicit {
        wanted.to_vec()
    } else {
        EVERYWHERE.map(|ip| SocketAddr::new(ip, 0)).to_vec()
    };
    let mut chosen: Vec<SocketAddr> = Vec::new();
    // One port on all addresses is easier to remember and to open in a firewall.
    let mut port = last_port.filter(|_| !explicit).unwrap_or(0);
    let mut settled = false;
    for address in wanted
        .iter()
        .flat_map(|address| expand(*address, interfaces))
    {
        let same = SocketAddr::new(
            address.ip(),
            if address.port() == 0 {
                port
            } else {
                address.port()
            },
        );
        match probe(same).or_else(|error| {
            if same == address {
                Err(error)
            } else {
                probe(address)
            }
        }) {
            Ok(free) => {
                if !settled {
                    (port, settled) = (free.port(), true);
                }
                chosen.push(free);
            }
            Err(error) if explicit => {
                return Err(NetError::Listen {
                    address,
                    reason: error.to_string(),
                });
            }
            // A machine without IPv6 (or without IPv4) is no fault.
            Err(error) => tracing::debug!(%address, %error, "not listening there"),
        }
    }
    match chosen.is_empty() {
        true => Err(NetError::NowhereToListen),
        false => Ok(chosen),
    }
}

/// "Every interface", where the user ruled some out, is the addresses of the others.
fn expand(address: SocketAddr, interfaces: &Interfaces) -> Vec<SocketAddr> {
    if !address.ip().is_unspecified() || !interfaces.is_restricted() {
        return vec![address];
    }
    interfaces
        .list()
        .iter()
        .filter(|i| interfaces.allows(&i.name) && i.ip.is_ipv4() == address.ip().is_ipv4())
        .filter(|i| super::address::dialable(i.ip))
        .map(|i| SocketAddr::new(i.ip, address.port()))
        .collect()
}

/// Binds and lets go. The transport shares ports between processes of one user and so would not notice another node there.
fn probe(address: SocketAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    Ok(SocketAddr::new(address.ip(), listener.local_addr()?.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_ipv4_and_ipv6_share_a_port() {
        let chosen = choose(&[], None, &Interfaces::new(Vec::new())).unwrap();
        assert!(
            chosen
                .iter()
                .all(|address| address.port() == chosen[0].port() && address.port() != 0)
        );
    }

    #[test]
    fn the_port_of_last_time_is_taken_if_it_is_free() {
        let ports = |last_port| {
            let chosen = choose(&[], last_port, &Interfaces::new(Vec::new())).unwrap();
            chosen.iter().map(SocketAddr::port).collect::<Vec<_>>()
        };
        let holder = TcpListener::bind("0.0.0.0:0").unwrap();
        let taken = holder.local_addr().unwrap().port();
        let others = ports(Some(taken));
        assert!(!others.contains(&taken) && others.iter().all(|port| *port == others[0]));
        // Somebody else may take a port between two looks, but not every time.
        let again = |_| {
            let port = ports(None)[0];
            ports(Some(port)).iter().all(|taken| *taken == port)
        };
        assert!((0..10).any(again));
    }

    #[test]
    fn a_taken_port_is_named() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = holder.local_addr().unwrap();
        let error = choose(&[taken], None, &Interfaces::new(Vec::new())).unwrap_err();
        assert!(error.to_string().contains(&taken.to_string()), "{error}");
    }

    #[test]
    fn ruled_out_interfaces_are_not_listened_on() {
        let mut here = Interfaces::new(vec!["lo".to_owned()]);
        here.refresh().unwrap();
        let chosen = choose(&["0.0.0.0:0".parse().unwrap()], None, &here).unwrap();
        assert!(chosen.iter().all(|address| address.ip().is_loopback()));
        let none = Interfaces::new(vec!["no-such-interface".to_owned()]);
        assert!(matches!(
            choose(&[], None, &none),
            Err(NetError::NowhereToListen)
        ));
    }
}

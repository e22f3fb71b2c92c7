//! Listens for multicast on a socket of its own: asks on every interface "who is there" (DNS service enumeration, RFC
//! 6763 section 9) and counts who is heard. Hearing oneself shows that the system lets multicast out and in; hearing
//! others shows that the network carries it.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

/// Where multicast DNS is spoken (RFC 6762, section 3).
const GROUP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(224, 0, 0, 251), 5353);

/// Packets longer than this are not looked at past it; ours has 46 bytes.
const PACKET_BYTES: usize = 2048;

/// What was heard of the question asked on one interface, and who else spoke.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// Interfaces (by their address) whose question came back to this machine.
    pub(super) own: BTreeSet<Ipv4Addr>,
    /// Other machines that said anything.
    pub(super) others: BTreeSet<Ipv4Addr>,
    /// Interfaces on which the question could not be sent, and why.
    pub(super) refused: Vec<(Ipv4Addr, String)>,
}

/// Asks on the interfaces with these `addresses` and listens for `window`. Blocks that long.
///
/// # Errors
/// What the system says when there can be no such socket.
pub(super) fn listen(addresses: &[Ipv4Addr], window: Duration) -> io::Result<Heard> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    // The port belongs to all who speak multicast DNS on this machine, a running skein among them.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, GROUP.port())).into())?;
    socket.set_multicast_loop_v4(true)?;
    let question = question(std::process::id() as u16);
    let mut heard = Heard::default();
    for address in addresses {
        let asked = socket
            .join_multicast_v4(GROUP.ip(), address)
            .and_then(|()| socket.set_multicast_if_v4(address))
            .and_then(|()| socket.send_to(&question, &GROUP.into()));
        if let Err(error) = asked {
            heard.refused.push((*address, error.to_string()));
        }
    }
    receive(&socket.into(), addresses, &question, window, &mut heard)?;
    Ok(heard)
}

fn receive(
    socket: &UdpSocket,
    addresses: &[Ipv4Addr],
    question: &[u8],
    window: Duration,
    heard: &mut Heard,
) -> io::Result<()> {
    let end = Instant::now() + window;
    let mut packet = [0; PACKET_BYTES];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        socket.set_read_timeout(Some(left))?;
        let (length, from) = match socket.recv_from(&mut packet) {
            Ok((length, SocketAddr::V4(from))) => (length, *from.ip()),
            Ok(_) => continue,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                return Ok(());
            }
            // A refusal by some machine asked earlier; not about this socket.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted
                ) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        if addresses.contains(&from) {
            if packet[..length] == *question {
                heard.own.insert(from);
            }
        } else if !from.is_loopback() && heard.others.len() < 10_000 {
            heard.others.insert(from);
        }
    }
}

/// The DNS question `_services._dns-sd._udp.local PTR`; `id` tells ours from that of another doctor.
fn question(id: u16) -> Vec<u8> {
    let mut packet = vec![];
    // Header: id, flags 0, one question, no answers.
    for word in [id, 0, 1, 0, 0, 0] {
        packet.extend(word.to_be_bytes());
    }
    for label in ["_services", "_dns-sd", "_udp", "local"] {
        packet.push(label.len() as u8);
        packet.extend(label.as_bytes());
    }
    packet.push(0);
    // Type PTR, class IN.
    packet.extend([0, 12, 0, 1]);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_is_the_one_of_the_standard() {
        let packet = question(0x1234);
        assert_eq!(packet.len(), 46);
        assert_eq!(&packet[..12], [0x12, 0x34, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&packet[12..22], b"\x09_services");
        assert_eq!(&packet[35..], b"\x05local\x00\x00\x0c\x00\x01");
    }

    #[test]
    fn own_packets_and_those_of_others_are_told_apart() {
        let (here, there) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        let question = question(7);
        let to = here.local_addr().unwrap();
        there.send_to(b"another packet", to).unwrap();
        there.send_to(&question, to).unwrap();
        let mut heard = Heard::default();
        let own = [Ipv4Addr::LOCALHOST];
        receive(
            &here,
            &own,
            &question,
            Duration::from_millis(50),
            &mut heard,
        )
        .unwrap();
        assert_eq!(
            heard,
            Heard {
                own: own.into(),
                ..Heard::default()
            }
        );
        there.send_to(&question, to).unwrap();
        let mut heard = Heard::default();
        receive(&here, &[], &question, Duration::from_millis(50), &mut heard).unwrap();
        assert_eq!(heard, Heard::default(), "loopback is nobody else");
    }

    #[test]
    fn an_address_of_no_interface_is_reported_and_does_not_stop_the_others() {
        let nowhere = Ipv4Addr::new(203, 0, 113, 7);
        let heard = listen(&[nowhere], Duration::from_millis(1)).unwrap();
        assert_eq!(heard.refused.len(), 1);
        assert_eq!(heard.refused[0].0, nowhere);
    }
}

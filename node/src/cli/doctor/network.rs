//! The network as seen from outside a node: interfaces, and whether multicast passes.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::finding::Finding;
use super::multicast::{self, Heard};
use crate::net::{self, Interface, InterfaceKind};

/// All findings about the network. Blocks for `window`.
pub(super) fn findings(window: Duration) -> Vec<Finding> {
    let interfaces = match net::list_interfaces() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            let message = format!("the system does not list them: {error}");
            return vec![Finding::bad(
                "interfaces",
                message,
                "check the rights of this user and `ip address`",
            )];
        }
    };
    let mut findings = describe(&interfaces);
    let addresses = multicast_addresses(&interfaces);
    if !addresses.is_empty() {
        match multicast::listen(&addresses, window) {
            Ok(heard) => findings.extend(judge(&interfaces, &addresses, &heard)),
            Err(error) => findings.push(Finding::bad(
                "multicast",
                format!("no socket on UDP port 5353: {error}"),
                "another program may hold the port for itself; peers can still be given with --peer",
            )),
        }
    }
    findings
}

/// One finding per interface, and one if there is nothing to be reached by.
fn describe(interfaces: &[Interface]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = interfaces
        .iter()
        .filter(|interface| interface.kind != InterfaceKind::Loopback)
        .map(|interface| {
            let kind = match interface.kind {
                InterfaceKind::Virtual => "virtual, tried last",
                InterfaceKind::Real | InterfaceKind::Loopback => "real",
            };
            Finding::good(
                "interface",
                format!(
                    "{} {}/{} ({kind})",
                    interface.name, interface.ip, interface.prefix
                ),
            )
        })
        .collect();
    if !interfaces
        .iter()
        .any(|interface| interface.kind == InterfaceKind::Real)
    {
        let message = "none but loopback and virtual ones: other machines cannot be reached";
        findings.push(Finding::warning(
            "interface",
            message,
            "connect a cable or join a wireless network",
        ));
    }
    findings
}

/// IPv4 addresses on which multicast should pass.
fn multicast_addresses(interfaces: &[Interface]) -> Vec<Ipv4Addr> {
    interfaces
        .iter()
        .filter(|interface| interface.kind != InterfaceKind::Loopback)
        .filter_map(|interface| match interface.ip {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        })
        .collect()
}

/// What the silence or the voices mean.
fn judge(interfaces: &[Interface], addresses: &[Ipv4Addr], heard: &Heard) -> Vec<Finding> {
    let mut findings = vec![];
    for address in addresses {
        let interface = interfaces
            .iter()
            .find(|interface| interface.ip == IpAddr::V4(*address));
        let name =
            interface.map_or_else(|| address.to_string(), |interface| interface.name.clone());
        let is_real = interface.is_some_and(|interface| interface.kind == InterfaceKind::Real);
        let fix =
            "allow UDP port 5353 in the firewall (ufw allow 5353/udp), or give peers with --peer";
        let refused = heard.refused.iter().find(|(refused, _)| refused == address);
        match refused {
            Some((_, error)) if is_real => {
                findings.push(Finding::warning(
                    "multicast",
                    format!("{name}: cannot send: {error}"),
                    fix,
                ));
            }
            None if is_real && !heard.own.contains(address) => {
                findings.push(Finding::warning(
                    "multicast",
                    format!("{name}: not even our own packet is heard"),
                    fix,
                ));
            }
            None if heard.own.contains(address) => {
                findings.push(Finding::good(
                    "multicast",
                    format!("{name}: sent and heard"),
                ));
            }
            // A tunnel or bridge without multicast is how most of them are.
            Some(_) | None => {}
        }
    }
    findings.push(if heard.others.is_empty() {
        Finding::note(
            "multicast",
            "no other machine was heard",
            "if there are some: many wireless networks keep guests apart; then give peers with --peer",
        )
    } else {
        Finding::good("multicast", format!("{} other machines heard", heard.others.len()))
    });
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Grade;
    use super::*;

    fn interface(name: &str, ip: &str, kind: InterfaceKind) -> Interface {
        Interface {
            name: name.into(),
            ip: ip.parse().unwrap(),
            prefix: 24,
            kind,
        }
    }

    fn machine() -> Vec<Interface> {
        vec![
            interface("lo", "127.0.0.1", InterfaceKind::Loopback),
            interface("eth0", "192.168.1.5", InterfaceKind::Real),
            interface("docker0", "172.17.0.1", InterfaceKind::Virtual),
        ]
    }

    #[test]
    fn interfaces_are_told_apart_and_their_absence_is_a_warning() {
        let findings = describe(&machine());
        assert_eq!(findings.len(), 2);
        assert!(
            findings[1]
                .message
                .contains("docker0 172.17.0.1/24 (virtual"),
            "{}",
            findings[1]
        );
        assert_eq!(describe(&machine()[..1])[0].grade, Grade::Warning);
    }

    #[test]
    fn silence_on_a_real_interface_is_a_warning_and_on_a_virtual_one_nothing() {
        let addresses = multicast_addresses(&machine());
        assert_eq!(addresses.len(), 2);
        let silent = judge(&machine(), &addresses, &Heard::default());
        assert_eq!(
            silent
                .iter()
                .map(|finding| finding.grade)
                .collect::<Vec<_>>(),
            [Grade::Warning, Grade::Note]
        );
        assert!(silent[0].message.starts_with("eth0"));
        let heard = Heard {
            own: [addresses[0]].into(),
            others: [[10, 0, 0, 1].into()].into(),
            refused: vec![],
        };
        assert!(
            judge(&machine(), &addresses, &heard)
                .iter()
                .all(|finding| finding.grade == Grade::Good)
        );
        let refused = Heard {
            refused: vec![(addresses[0], "no route".into())],
            ..Heard::default()
        };
        assert!(
            judge(&machine(), &addresses, &refused)[0]
                .message
                .contains("no route")
        );
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        assert!(!findings(Duration::from_millis(1)).is_empty());
    }
}

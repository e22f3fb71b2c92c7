//! The machine's network interfaces: which are real, which are virtual (containers, bridges, tunnels), and through
//! which of them a remote address is likely reached. Real ones are tried first, virtual ones last.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::address::dialable;

/// What an interface is, judged by its name and addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InterfaceKind {
    /// Ethernet, Wi-Fi and whatever else is not known to be virtual.
    Real,
    /// Containers, bridges, tunnels.
    Virtual,
    /// The machine itself.
    Loopback,
}

/// One address of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The system's name for it, such as `eth0`.
    pub name: String,
    /// Its address.
    pub ip: IpAddr,
    /// How many leading bits of the address name the subnet.
    pub prefix: u8,
    /// What it is.
    pub kind: InterfaceKind,
}

impl Interface {
    fn contains(&self, ip: IpAddr) -> bool {
        match (self.ip, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                let shift = 32 - u32::from(self.prefix.min(32));
                u64::from(own.to_bits() ^ ip.to_bits()) >> shift == 0
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => {
                let difference = own.to_bits() ^ ip.to_bits();
                let shift = 128 - u32::from(self.prefix.min(128));
                difference.checked_shr(shift).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// All interfaces of the machine, one entry per address.
///
/// # Errors
/// What the system says when it does not list them.
pub fn list_interfaces() -> io::Result<Vec<Interface>> {
    let found = if_addrs::get_if_addrs()?.into_iter().map(|found| {
        let (ip, prefix) = match &found.addr {
            if_addrs::IfAddr::V4(v4) => (v4.ip.into(), v4.prefixlen),
            if_addrs::IfAddr::V6(v6) => (v6.ip.into(), v6.prefixlen),
        };
        Interface {
            kind: kind_of(&found.name, ip),
            name: found.name,
            ip,
            prefix,
        }
    });
    Ok(found.collect())
}

/// How promising an address is; lower is dialled first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Rank {
    /// In the subnet of a real interface.
    Neighbour,
    /// On this machine.
    SameMachine,
    /// Behind a router.
    Routed,
    /// In the subnet of a virtual interface.
    Virtual,
}

/// The interfaces in use, and what follows from them.
#[derive(Clone, Debug, Default)]
pub(super) struct Interfaces {
    list: Vec<Interface>,
    wanted: Vec<String>,
}

impl Interfaces {
    /// No interfaces yet; later only those whose name matches one of `wanted` (`*` and `?` are wildcards; empty means
    /// all) are used.
    pub(super) fn new(wanted: Vec<String>) -> Self {
        Self {
            list: Vec::new(),
            wanted,
        }
    }

    /// Asks the system again; true if something changed.
    pub(super) fn refresh(&mut self) -> io::Result<bool> {
        let list = list_interfaces()?;
        let changed = list != self.list;
        self.list = list;
        Ok(changed)
    }

    /// All interfaces of the machine.
    pub(super) fn list(&self) -> &[Interface] {
        &self.list
    }

    /// Whether the user wants the interface called `name` to be used.
    pub(super) fn allows(&self, name: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|pattern| matches(pattern, name))
    }

    /// Whether some interfaces were ruled out by the user.
    pub(super) fn is_restricted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Whether the machine has no usable address but its loopback.
    pub(super) fn only_loopback(&self) -> bool {
        !self
            .list
            .iter()
            .any(|i| i.kind != InterfaceKind::Loopback && self.allows(&i.name) && dialable(i.ip))
    }

    /// The kind of the interface that has the address `ip`.
    pub(super) fn kind_at(&self, ip: IpAddr) -> Option<InterfaceKind> {
        self.list.iter().find(|i| i.ip == ip).map(|i| i.kind)
    }

    /// Whether the address `ip` is of an interface that the user wants.
    pub(super) fn allows_ip(&self, ip: IpAddr) -> bool {
        self.wanted.is_empty() || self.list.iter().any(|i| i.ip == ip && self.allows(&i.name))
    }

    /// How promising it is to dial `remote`.
    pub(super) fn rank(&self, remote: SocketAddr) -> Rank {
        let ip = remote.ip();
        if ip.is_loopback() {
            return Rank::SameMachine;
        }
        let kinds = self.list.iter().filter(|i| i.contains(ip)).map(|i| i.kind);
        match kinds.min() {
            Some(InterfaceKind::Real) => Rank::Neighbour,
            Some(InterfaceKind::Loopback) => Rank::SameMachine,
            Some(InterfaceKind::Virtual) => Rank::Virtual,
            None => Rank::Routed,
        }
    }
}

/// Judges an interface by its name.
fn kind_of(name: &str, ip: IpAddr) -> InterfaceKind {
    const VIRTUAL: [&str; 18] = [
        "docker",
        "br-",
        "veth",
        "virbr",
        "vmnet",
        "vboxnet",
        "tun",
        "tap",
        "wg",
        "tailscale",
        "zt",
        "awdl",
        "llw",
        "utun",
        "cni",
        "flannel",
        "podman",
        "lxc",
    ];
    if ip.is_loopback() {
        InterfaceKind::Loopback
    } else if VIRTUAL.iter().any(|prefix| name.starts_with(prefix)) {
        InterfaceKind::Virtual
    } else {
        InterfaceKind::Real
    }
}

/// Whether `name` fits `pattern`, in which `*` stands for anything and `?` for one character.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                // Give the last star one character more and try again.
                let Some((at, taken)) = star else {
                    return false;
                };
                star = Some((at, taken + 1));
                p = at + 1;
                n = taken + 1;
            }
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
impl Interfaces {
    /// Interfaces for tests: (name, ip, prefix).
    pub(super) fn of(list: &[(&str, &str, u8)]) -> Self {
        let list = list
            .iter()
            .map(|&(name, ip, prefix)| {
                let ip = ip.parse().unwrap();
                Interface {
                    name: name.to_owned(),
                    ip,
                    prefix,
                    kind: kind_of(name, ip),
                }
            })
            .collect();
        Self {
            list,
            wanted: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Interfaces {
        Interfaces::of(&[
            ("lo", "127.0.0.1", 8),
            ("eth0", "192.168.1.5", 24),
            ("docker0", "172.17.0.1", 16),
            ("wg0", "10.8.0.2", 24),
            ("eth0", "fd00::5", 64),
        ])
    }

    #[test]
    fn real_neighbours_come_before_the_routed_and_virtual_ones_come_last() {
        let machine = machine();
        for (remote, rank) in [
            ("192.168.1.77:4001", Rank::Neighbour),
            ("[fd00::77]:4001", Rank::Neighbour),
            ("127.0.0.1:4001", Rank::SameMachine),
            ("192.168.2.77:4001", Rank::Routed),
            ("[fd01::77]:4001", Rank::Routed),
            ("172.17.0.3:4001", Rank::Virtual),
            ("10.8.0.9:4001", Rank::Virtual),
        ] {
            assert_eq!(machine.rank(remote.parse().unwrap()), rank, "{remote}");
        }
        assert!(Rank::Neighbour < Rank::Routed && Rank::Routed < Rank::Virtual);
    }

    #[test]
    fn a_prefix_of_zero_and_of_the_full_length_are_no_trap() {
        let machine = Interfaces::of(&[
            ("eth0", "10.0.0.1", 32),
            ("eth1", "fd00::1", 0),
            ("eth2", "fd01::1", 128),
        ]);
        assert_eq!(machine.rank("10.0.0.2:1".parse().unwrap()), Rank::Routed);
        assert_eq!(machine.rank("10.0.0.1:1".parse().unwrap()), Rank::Neighbour);
        assert_eq!(
            machine.rank("[fe00::1]:1".parse().unwrap()),
            Rank::Neighbour
        );
    }

    #[test]
    fn wildcards_choose_interfaces() {
        for (pattern, name, fits) in [
            ("eth0", "eth0", true),
            ("eth*", "eth0", true),
            ("*", "", true),
            ("e?h0", "eth0", true),
            ("e?h0", "eh0", false),
            ("*0*1", "eth0x1", true),
            ("*0*1", "eth0x2", false),
            ("", "eth0", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
        let mut chosen = machine();
        chosen.wanted = vec!["wg*".to_owned()];
        assert!(chosen.allows("wg0") && !chosen.allows("eth0"));
        assert!(
            chosen.allows_ip("10.8.0.2".parse().unwrap())
                && !chosen.allows_ip("192.168.1.5".parse().unwrap())
        );
    }

    #[test]
    fn a_machine_with_nothing_but_loopback_is_told_apart() {
        assert!(!machine().only_loopback());
        assert!(Interfaces::of(&[("lo", "127.0.0.1", 8), ("eth0", "fe80::1", 64)]).only_loopback());
        assert_eq!(
            machine().kind_at("172.17.0.1".parse().unwrap()),
            Some(InterfaceKind::Virtual)
        );
    }

    #[test]
    fn this_machine_has_a_loopback() {
        let mut here = Interfaces::new(Vec::new());
        assert!(here.refresh().unwrap());
        assert!(
            here.list()
                .iter()
                .any(|i| i.kind == InterfaceKind::Loopback)
        );
    }
}

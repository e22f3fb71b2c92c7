//! Finding the peers of the same mesh in the local network by multicast DNS.
//!
//! What is announced: an address, and a tag that only holders of the mesh key can check. Everybody else learns that a
//! port is open, not which mesh it belongs to nor whose it is: instance and host names are random and change with every
//! start.

use std::net::{IpAddr, SocketAddr};

use mdns_sd::{
    IfKind, IfPredicate, ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent, ServiceInfo,
};
use tokio::sync::mpsc;

use super::address::dialable;
use super::identity::{MeshKey, random};

const SERVICE: &str = "_skein._tcp.local.";
/// Addresses taken from one announcement.
const MAX_ADDRESSES: usize = 16;
/// After the library ended a search (its queue was full), it is started again at once, but not in a tight loop.
const RESTART: std::time::Duration = std::time::Duration::from_secs(1);

/// What was heard.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// A peer of this mesh. `group` names the announcement.
    Ours {
        group: u64,
        addresses: Vec<SocketAddr>,
    },
    /// A peer of another mesh; nothing more is known of it.
    Foreign { group: u64 },
    /// An announcement was taken back or ran out.
    Withdrawn { group: u64 },
}

/// The announcer and listener of one process.
pub(super) struct Beacon {
    daemon: ServiceDaemon,
    key: [u8; 32],
    instance: String,
}

impl Beacon {
    /// Starts listening on the interfaces that `allows` names; what is heard goes to `heard`.
    pub(super) fn start(
        key: &MeshKey,
        allows: impl Fn(&str) -> bool + Send + Sync + 'static,
        heard: mpsc::Sender<Heard>,
    ) -> Result<Self, mdns_sd::Error> {
        let daemon = ServiceDaemon::new()?;
        let unwanted = move |i: &if_addrs::Interface| i.is_loopback() || !allows(&i.name);
        daemon.disable_interface(IfKind::Predicate(IfPredicate::new(unwanted)))?;
        let instance = data_encoding::HEXLOWER.encode(&random::<8>());
        let key = key.derive("skein 1 mdns tag");
        let listener = Listener {
            daemon: daemon.clone(),
            key,
            own: instance.clone(),
        };
        tokio::spawn(listener.run(heard));
        Ok(Self {
            daemon,
            key,
            instance,
        })
    }

    /// Announces `addresses`, in place of what was announced before.
    pub(super) fn announce(&self, addresses: &[SocketAddr]) -> Result<(), mdns_sd::Error> {
        let mut ports: Vec<u16> = addresses.iter().map(SocketAddr::port).collect();
        ports.sort_unstable();
        ports.dedup();
        for port in ports {
            // An announcement has one port.
            let name = format!("{}-{port}", self.instance);
            let ips: Vec<IpAddr> = addresses
                .iter()
                .filter(|a| a.port() == port)
                .map(SocketAddr::ip)
                .collect();
            let nonce = random::<16>();
            let text = [
                ("n", data_encoding::HEXLOWER.encode(&nonce)),
                (
                    "t",
                    data_encoding::HEXLOWER.encode(&tag(&self.key, &nonce, &name)),
                ),
            ];
            let host = format!("{}.local.", self.instance);
            let mut service = ServiceInfo::new(SERVICE, &name, &host, &ips[..], port, &text[..])?;
            // Asking around whether a random name is taken would only cost a second.
            service.set_requires_probe(false);
            self.daemon.register(service)?;
        }
        Ok(())
    }

    /// Takes the announcement back and stops.
    pub(super) async fn stop(self) {
        // Failing means that it has stopped already.
        if let Ok(done) = self.daemon.shutdown() {
            let _ = done.recv_async().await;
        }
    }
}

struct Listener {
    daemon: ServiceDaemon,
    key: [u8; 32],
    own: String,
}

impl Listener {
    async fn run(self, heard: mpsc::Sender<Heard>) {
        loop {
            // Fails only once the daemon has stopped.
            let Ok(events) = self.daemon.browse(SERVICE) else {
                return;
            };
            while let Ok(event) = events.recv_async().await {
                let Some(news) = self.judge(event) else {
                    continue;
                };
                if heard.send(news).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(RESTART).await;
        }
    }

    fn judge(&self, event: ServiceEvent) -> Option<Heard> {
        match event {
            ServiceEvent::ServiceResolved(service) => judge(&self.key, &self.own, &service),
            ServiceEvent::ServiceRemoved(_, name) => Some(Heard::Withdrawn {
                group: group(&name),
            }),
            _ => None,
        }
    }
}

fn judge(key: &[u8; 32], own: &str, service: &ResolvedService) -> Option<Heard> {
    let group = group(&service.fullname);
    let name = service.fullname.split('.').next()?;
    if name.starts_with(own) {
        return None;
    }
    let field = |key| {
        let text = service.txt_properties.get_property_val_str(key)?;
        let bytes = data_encoding::HEXLOWER.decode(text.as_bytes()).ok()?;
        <[u8; 16]>::try_from(bytes).ok()
    };
    let ours = field("n")
        .zip(field("t"))
        .is_some_and(|(nonce, claimed)| tag(key, &nonce, name) == claimed);
    if !ours {
        return Some(Heard::Foreign { group });
    }
    let mut addresses: Vec<SocketAddr> = service
        .addresses
        .iter()
        .map(ScopedIp::to_ip_addr)
        .filter(|ip| dialable(*ip) && !ip.is_loopback() && service.port != 0)
        .map(|ip| SocketAddr::new(ip, service.port))
        .collect();
    addresses.sort_unstable();
    addresses.truncate(MAX_ADDRESSES);
    (!addresses.is_empty()).then_some(Heard::Ours { group, addresses })
}

/// What only a holder of the mesh key can compute.
fn tag(key: &[u8; 32], nonce: &[u8; 16], name: &str) -> [u8; 16] {
    let mut tag = [0; 16];
    blake3::Hasher::new_keyed(key)
        .update(nonce)
        .update(name.as_bytes())
        .finalize_xof()
        .fill(&mut tag);
    tag
}

/// A number for an announcement, from its name.
fn group(fullname: &str) -> u64 {
    let mut number = [0; 8];
    blake3::Hasher::new()
        .update(fullname.to_lowercase().as_bytes())
        .finalize_xof()
        .fill(&mut number);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcement(key: &[u8; 32], name: &str, ips: &str) -> ResolvedService {
        let nonce = [5; 16];
        let text = [
            ("n", data_encoding::HEXLOWER.encode(&nonce)),
            ("t", data_encoding::HEXLOWER.encode(&tag(key, &nonce, name))),
        ];
        ServiceInfo::new(SERVICE, name, "h.local.", ips, 4001, &text[..])
            .unwrap()
            .as_resolved_service()
    }

    #[test]
    fn the_own_mesh_is_recognised_and_no_other() {
        let (key, other) = ([1; 32], [2; 32]);
        let service = announcement(&key, "abc-1", "10.0.0.5,127.0.0.1");
        let Some(Heard::Ours { addresses, .. }) = judge(&key, "own", &service) else {
            panic!("not ours")
        };
        assert_eq!(addresses, ["10.0.0.5:4001".parse().unwrap()]);
        assert!(matches!(
            judge(&other, "own", &service),
            Some(Heard::Foreign { .. })
        ));
        assert_eq!(judge(&key, "abc", &service), None);
    }

    #[test]
    fn a_tag_moved_to_another_name_is_foreign() {
        let key = [1; 32];
        let nonce = [5; 16];
        let text = [
            ("n", data_encoding::HEXLOWER.encode(&nonce)),
            (
                "t",
                data_encoding::HEXLOWER.encode(&tag(&key, &nonce, "abc-1")),
            ),
        ];
        let moved =
            ServiceInfo::new(SERVICE, "xyz-1", "h.local.", "10.0.0.5", 4001, &text[..]).unwrap();
        assert!(matches!(
            judge(&key, "own", &moved.as_resolved_service()),
            Some(Heard::Foreign { .. })
        ));
        let bare = ServiceInfo::new(SERVICE, "xyz-1", "h.local.", "10.0.0.5", 4001, None).unwrap();
        assert!(matches!(
            judge(&key, "own", &bare.as_resolved_service()),
            Some(Heard::Foreign { .. })
        ));
    }
}

//! Addresses through the driver: those of others on their way to the dialer, and our own on their way to others.

use std::net::SocketAddr;

use libp2p::Multiaddr;
use libp2p::swarm::ConnectionId;

use super::{Driver, GATHER};
use crate::net::address::{self, Host};
use crate::net::dialer::{MAX_PER_PEER, Target, Via};
use crate::net::{identity, names, report};

/// How soon after news the mesh is asked who else is in it.
const ASK_SOON: std::time::Duration = std::time::Duration::from_millis(200);

impl Driver {
    /// A peer says where it listens.
    pub(super) fn identified(
        &mut self,
        connection: ConnectionId,
        libp2p: libp2p::PeerId,
        addresses: &[Multiaddr],
    ) {
        let Some(arrival) = self.contacts.arrival(connection) else {
            return;
        };
        let local = arrival.address.ip().is_loopback();
        for address in self.learn(&libp2p, addresses, local) {
            // Others are not told of loopback addresses, unless there is nothing else here.
            if !address.ip().is_loopback() || self.loopback_only {
                self.swarm
                    .behaviour_mut()
                    .routing
                    .add(libp2p, address::to_multiaddr(address));
            }
        }
        self.ask_at = self.ask_at.min(self.now() + ASK_SOON);
    }

    /// Takes over the usable ones of `addresses`; loopback ones only from where they mean the same.
    pub(super) fn learn(
        &mut self,
        libp2p: &libp2p::PeerId,
        addresses: &[Multiaddr],
        loopback: bool,
    ) -> Vec<SocketAddr> {
        let Some(peer) = identity::from_libp2p(libp2p).filter(|peer| *peer != self.local) else {
            return Vec::new();
        };
        let usable = |address: &SocketAddr| {
            address::dialable(address.ip()) && (loopback || !address.ip().is_loopback())
        };
        let usable: Vec<SocketAddr> = addresses
            .iter()
            .filter_map(address::socket_of)
            .filter(usable)
            .take(MAX_PER_PEER)
            .collect();
        for &address in &usable {
            self.heard(
                Target {
                    peer: Some(peer),
                    address,
                },
                Via::Learnt,
                None,
            );
        }
        usable
    }

    pub(super) fn heard(&mut self, target: Target, via: Via, group: Option<u64>) {
        if target.peer != Some(self.local) {
            self.dialer.heard(
                self.now(),
                target,
                via,
                self.interfaces.rank(target.address),
                group,
            );
        }
    }

    pub(super) fn remember(&mut self, remembered: &[String]) {
        for text in remembered.iter().take(report::MAX_BOOK) {
            match address::parse(text) {
                Ok(place) => match place.host {
                    Host::Address(address) => self.heard(
                        Target {
                            peer: place.peer,
                            address,
                        },
                        Via::Remembered,
                        None,
                    ),
                    Host::Name(..) => {
                        tracing::debug!(text, "a remembered address is a name; ignored")
                    }
                },
                Err(error) => tracing::warn!(%error, "a remembered address is ignored"),
            }
        }
    }

    /// Takes a `--peer`; names are resolved again and again, since addresses change.
    pub(super) fn place(&mut self, place: address::Place) {
        match &place.host {
            Host::Address(address) => self.heard(
                Target {
                    peer: place.peer,
                    address: *address,
                },
                Via::Flag,
                None,
            ),
            Host::Name(..) => drop(
                self.resolvers
                    .spawn(names::resolve(place, self.notices.clone())),
            ),
        }
    }

    /// Looks at the interfaces, and works out anew which listen addresses others may be told.
    pub(super) fn offer(&mut self) {
        match self.interfaces.refresh() {
            Ok(true) => self.dialer.rerank(|address| self.interfaces.rank(address)),
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "cannot list the interfaces"),
        }
        self.loopback_only = self.listens_on_loopback || self.interfaces.only_loopback();
        let offers = |address: &&SocketAddr| {
            let ip = address.ip();
            address::dialable(ip)
                && if ip.is_loopback() {
                    self.loopback_only
                } else {
                    self.interfaces.allows_ip(ip)
                }
        };
        let mut offered: Vec<SocketAddr> = self.listening.iter().filter(offers).copied().collect();
        offered.sort_by_key(|address| {
            (
                self.interfaces.kind_at(address.ip()),
                address.is_ipv6(),
                *address,
            )
        });
        if offered == self.offered {
            return;
        }
        for gone in self
            .offered
            .iter()
            .filter(|address| !offered.contains(address))
        {
            self.swarm
                .remove_external_address(&address::to_multiaddr(*gone));
        }
        for new in offered
            .iter()
            .filter(|address| !self.offered.contains(address))
        {
            self.swarm.add_external_address(address::to_multiaddr(*new));
        }
        self.offered = offered;
        self.announce_at = Some(self.now() + GATHER);
    }

    pub(super) fn announce(&mut self) {
        let Some(beacon) = &self.beacon else { return };
        let addresses: Vec<SocketAddr> = self
            .offered
            .iter()
            .filter(|a| !a.ip().is_loopback())
            .copied()
            .collect();
        if let Err(error) = beacon.announce(&addresses) {
            tracing::warn!(%error, "cannot announce this peer in the local network");
            self.mdns_error = Some(error.to_string());
        }
    }
}

//! Two processes under one identity: found out, and told of each other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use libp2p::swarm::ConnectionId;
use skein_gossip::ids::PeerId;

use super::{Act, Contacts, instance};
use crate::net::greeting::Instance;

/// Pairs of processes remembered as told.
const MAX_TOLD: usize = 256;

impl Contacts {
    /// If two processes speak for `peer`, asks both to greet again.
    pub(super) fn suspect(&mut self, peer: PeerId) -> Vec<Act> {
        let instances: BTreeSet<Instance> = self
            .of(peer)
            .filter_map(|(_, contact)| instance(contact))
            .collect();
        let (Some(first), Some(last)) = (instances.first(), instances.last()) else {
            return Vec::new();
        };
        if first == last || self.told.contains(&(*first, *last)) {
            return Vec::new();
        }
        let mut acts = Vec::new();
        for (id, contact) in self
            .connections
            .iter_mut()
            .filter(|(_, contact)| contact.arrival.peer == peer)
        {
            if instance(contact).is_some() {
                contact.alive = Some(false);
                acts.push(Act::Greet {
                    connection: *id,
                    your_double: None,
                });
            }
        }
        acts
    }

    /// If two processes speak for `peer` and both live, tells each of the other.
    pub(super) fn compare(&mut self, peer: PeerId) -> Vec<Act> {
        let living: BTreeMap<Instance, (ConnectionId, SocketAddr)> = self
            .of(peer)
            .filter(|(_, contact)| contact.alive == Some(true))
            .filter_map(|(id, contact)| Some((instance(contact)?, (*id, contact.arrival.address))))
            .collect();
        let (Some((one, one_at)), Some((other, other_at))) =
            (living.first_key_value(), living.last_key_value())
        else {
            return Vec::new();
        };
        if one == other {
            return Vec::new();
        }
        tracing::warn!(
            peer = %peer.short(), one = %one_at.1, other = %other_at.1,
            "two processes use the same identity; give one of them its own home"
        );
        if self.told.len() < MAX_TOLD {
            self.told.insert((*one, *other));
        }
        let acts = vec![
            Act::Greet {
                connection: one_at.0,
                your_double: Some(other_at.1.to_string()),
            },
            Act::Greet {
                connection: other_at.0,
                your_double: Some(one_at.1.to_string()),
            },
        ];
        for contact in self
            .connections
            .values_mut()
            .filter(|contact| contact.arrival.peer == peer)
        {
            contact.alive = None;
        }
        acts
    }
}

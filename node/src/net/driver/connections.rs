//! What the swarm reports: listeners, connections, dials and what the behaviours on them have to say.

use libp2p::core::ConnectedPoint;
use libp2p::gossipsub;
use libp2p::identify;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError, ListenError, SwarmEvent};

use super::Driver;
use crate::net::contacts::Arrival;
use crate::net::dialer::Target;
use crate::net::doubles::End;
use crate::net::greeting::{self, Greeting};
use crate::net::peers::Direction;
use crate::net::streams::{Accepted, GREETING};
use crate::net::swarm::BehaviourEvent;
use crate::net::{Event, Notice, address, identity, report};

impl Driver {
    pub(super) fn on_swarm(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(event) => self.on_behaviour(event),
            SwarmEvent::NewListenAddr { address, .. } => {
                if let Some(address) = address::socket_of(&address) {
                    self.listening.insert(address);
                    self.dialer.own(address);
                    self.offer();
                }
            }
            SwarmEvent::ExpiredListenAddr { address, .. } => {
                if let Some(address) = address::socket_of(&address) {
                    self.listening.remove(&address);
                    self.offer();
                }
            }
            SwarmEvent::ListenerClosed {
                addresses, reason, ..
            } => {
                let places = addresses
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(", ");
                let reason = reason
                    .err()
                    .map_or_else(|| "closed".to_owned(), |error| error.to_string());
                self.outbox.push_back(Event::ListenFailed {
                    reason: format!("{places}: {reason}"),
                });
            }
            SwarmEvent::ListenerError { error, .. } => {
                tracing::warn!(%error, "a listener had a fault")
            }
            SwarmEvent::ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                ..
            } => {
                self.established(peer_id, connection_id, endpoint);
            }
            SwarmEvent::ConnectionClosed {
                connection_id,
                cause,
                ..
            } => {
                let reason =
                    cause.map_or_else(|| "closed".to_owned(), |cause| report::root(&cause));
                let acts = self.contacts.closed(connection_id, reason);
                self.carry_out(acts);
            }
            SwarmEvent::OutgoingConnectionError {
                connection_id,
                error,
                ..
            } => {
                if let Some(target) = self.dials.remove(&connection_id) {
                    self.missed(target, &error);
                }
            }
            SwarmEvent::IncomingConnectionError {
                send_back_addr,
                error,
                ..
            } => {
                tracing::debug!(from = %send_back_addr, error = report::root(&error), "handshake failed");
                if let (ListenError::LocalPeerId { .. }, Some(address)) =
                    (error, address::socket_of(&send_back_addr))
                {
                    self.met_own_identity(End::Accepted, address);
                }
            }
            _ => {}
        }
    }

    pub(super) fn on_behaviour(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Streams(Accepted {
                connection,
                protocol,
                stream,
            }) if protocol == GREETING => {
                let Some((from, permit)) = self.contacts.answer(connection) else {
                    return;
                };
                let (own, notices) = (Greeting::new(self.instance), self.notices.clone());
                tokio::spawn(async move {
                    let _permit = permit;
                    if let Ok(Greeting {
                        your_double: Some(address),
                        ..
                    }) = greeting::answer(stream, own).await
                    {
                        // Fails only when the driver is gone.
                        let _ = notices.send(Notice::ToldDouble { from, address }).await;
                    }
                });
            }
            BehaviourEvent::Streams(Accepted {
                connection,
                protocol,
                stream,
            }) => {
                self.contacts.accepted(connection, protocol, stream);
            }
            BehaviourEvent::Identify(identify::Event::Received {
                connection_id,
                peer_id,
                info,
            }) => {
                self.identified(connection_id, peer_id, &info.listen_addrs);
            }
            BehaviourEvent::Routing(learnt) => {
                self.learn(&learnt.peer, &learnt.addresses, self.loopback_only);
            }
            BehaviourEvent::Gossip(gossipsub::Event::Message { message, .. }) => {
                if let Some(from) = message
                    .source
                    .and_then(|source| identity::from_libp2p(&source))
                {
                    self.outbox.push_back(Event::Published {
                        from,
                        data: message.data,
                    });
                }
            }
            BehaviourEvent::Gossip(gossipsub::Event::Subscribed { .. }) => {
                for data in std::mem::take(&mut self.unpublished) {
                    self.publish(data);
                }
            }
            BehaviourEvent::Ping(ping) => {
                let acts = self.contacts.pinged(ping.connection, ping.result.ok());
                self.carry_out(acts);
            }
            _ => {}
        }
    }

    pub(super) fn established(
        &mut self,
        libp2p: libp2p::PeerId,
        connection: ConnectionId,
        endpoint: ConnectedPoint,
    ) {
        let dialled = self.dials.remove(&connection);
        let (remote, direction) = match &endpoint {
            ConnectedPoint::Dialer { address, .. } => (address, Direction::Outbound),
            ConnectedPoint::Listener { send_back_addr, .. } => (send_back_addr, Direction::Inbound),
        };
        let Some((peer, address)) = identity::from_libp2p(&libp2p).zip(address::socket_of(remote))
        else {
            tracing::warn!(peer = %libp2p, address = %remote, "a peer with a foreign kind of key; connection closed");
            if let Some(target) = dialled {
                self.dialer
                    .failed(self.now(), target, "a foreign kind of key".to_owned());
            }
            self.swarm.close_connection(connection);
            return;
        };
        let acts = self.contacts.established(
            connection,
            Arrival {
                peer,
                libp2p,
                address,
                direction,
                dialled,
            },
        );
        self.carry_out(acts);
    }

    pub(super) fn dial(&mut self, target: Target) {
        let address = address::to_multiaddr(target.address);
        let opts = match target.peer.map(identity::to_libp2p) {
            Some(Some(peer)) => DialOpts::peer_id(peer)
                .condition(PeerCondition::Always)
                .addresses(vec![address])
                .allocate_new_port()
                .build(),
            Some(None) => {
                return self
                    .dialer
                    .failed(self.now(), target, "its id is no key".to_owned());
            }
            None => DialOpts::unknown_peer_id()
                .address(address)
                .allocate_new_port()
                .build(),
        };
        let id = opts.connection_id();
        match self.swarm.dial(opts) {
            Ok(()) => drop(self.dials.insert(id, target)),
            Err(error) => self.missed(target, &error),
        }
    }

    pub(super) fn missed(&mut self, target: Target, error: &DialError) {
        let now = self.now();
        match error {
            DialError::WrongPeerId { obtained, .. } => match identity::from_libp2p(obtained) {
                Some(obtained) => self.dialer.wrong_peer(now, target, obtained),
                None => self
                    .dialer
                    .failed(now, target, "a foreign kind of key".to_owned()),
            },
            DialError::LocalPeerId { .. } => {
                self.dialer
                    .failed(now, target, "our own identity answers there".to_owned());
                self.met_own_identity(End::Dialled, target.address);
            }
            error => {
                let reason = report::why(error);
                tracing::debug!(address = %target.address, reason, "dial failed");
                self.dialer.failed(now, target, reason);
            }
        }
    }
}

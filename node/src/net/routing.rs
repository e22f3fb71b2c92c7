//! Kademlia as a source of addresses only. It finds out who is in the mesh and where; dialling is the dialer's business
//! alone, and what it tells others is only what it was given: not the address of a connection, which may be a loopback
//! one.

use std::num::NonZeroUsize;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::kad::{self, store::MemoryStore};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, DialError, DialFailure, FromSwarm, NetworkBehaviour,
    StreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};

const PROTOCOL: StreamProtocol = StreamProtocol::new("/skein/kad/1");
/// A query takes no longer than this.
const QUERY: Duration = Duration::from_secs(20);
/// Peers that one query asks at once.
const PARALLEL: NonZeroUsize = NonZeroUsize::new(8).unwrap();

type Inner = kad::Behaviour<MemoryStore>;

/// A peer that others told of.
#[derive(Debug)]
pub(super) struct Learnt {
    pub(super) peer: PeerId,
    pub(super) addresses: Vec<Multiaddr>,
}

/// See the module's header.
pub(super) struct Behaviour {
    inner: Inner,
    local: PeerId,
}

impl Behaviour {
    pub(super) fn new(local: PeerId) -> Self {
        let mut config = kad::Config::new(PROTOCOL);
        config
            .set_query_timeout(QUERY)
            .set_parallelism(PARALLEL)
            .set_kbucket_inserts(kad::BucketInserts::Manual)
            // Nobody stores records here, so nobody can fill our memory with them.
            .set_record_filtering(kad::StoreInserts::FilterBoth)
            .set_periodic_bootstrap_interval(None);
        let mut inner = Inner::with_config(local, MemoryStore::new(local), config);
        inner.set_mode(Some(kad::Mode::Server));
        Self { inner, local }
    }

    /// `peer` is at `address`; others may be told.
    pub(super) fn add(&mut self, peer: PeerId, address: Multiaddr) {
        self.inner.add_address(&peer, address);
    }

    /// Asks the peers nearest to us for the peers nearest to us; the answers come as [`Learnt`].
    pub(super) fn ask(&mut self) {
        self.inner.get_closest_peers(self.local);
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = <Inner as NetworkBehaviour>::ConnectionHandler;
    type ToSwarm = Learnt;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.inner
            .handle_established_inbound_connection(connection, peer, local, remote)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        // As if it were inbound: Kademlia would enter the dialled address into its table by itself.
        self.inner
            .handle_established_inbound_connection(connection, peer, address, address)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        self.inner.on_swarm_event(event);
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        self.inner
            .on_connection_handler_event(peer, connection, event);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Learnt, THandlerInEvent<Self>>> {
        loop {
            match ready!(self.inner.poll(cx)) {
                ToSwarm::GenerateEvent(_) => {}
                ToSwarm::Dial { opts } => {
                    let connection = opts.connection_id();
                    let known = self.inner.handle_pending_outbound_connection(
                        connection,
                        opts.get_peer_id(),
                        &[],
                        Endpoint::Dialer,
                    );
                    // The query goes on without this peer; the next one meets it connected.
                    let failure = DialFailure {
                        peer_id: opts.get_peer_id(),
                        error: &DialError::Aborted,
                        connection_id: connection,
                    };
                    self.inner.on_swarm_event(FromSwarm::DialFailure(failure));
                    if let (Some(peer), Ok(addresses)) = (opts.get_peer_id(), known) {
                        return Poll::Ready(ToSwarm::GenerateEvent(Learnt { peer, addresses }));
                    }
                }
                other => {
                    let local = self.local;
                    return Poll::Ready(other.map_out(|_| Learnt {
                        peer: local,
                        addresses: Vec::new(),
                    }));
                }
            }
        }
    }
}

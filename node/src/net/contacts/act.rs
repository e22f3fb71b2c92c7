//! What goes in and out of the contacts: a new connection, and what to do about it.

use std::net::SocketAddr;

use libp2p::swarm::ConnectionId;
use skein_gossip::ids::PeerId;

use crate::net::Event;
use crate::net::dialer::Target;
use crate::net::peers::Direction;

/// What the driver is to do.
#[derive(Debug)]
pub(in crate::net) enum Act {
    /// Greet on this connection, telling of a double if there is one.
    Greet {
        connection: ConnectionId,
        your_double: Option<String>,
    },
    Close(ConnectionId),
    Emit(Event),
    /// The peer is connected: no more dialling.
    Reached {
        peer: PeerId,
        dialled: Option<Target>,
    },
    /// The dial led to a connection of no use.
    Missed {
        dialled: Target,
        reason: String,
    },
    /// No connection to the peer is left.
    Lost(PeerId),
}

/// A new connection.
#[derive(Debug)]
pub(in crate::net) struct Arrival {
    pub(in crate::net) peer: PeerId,
    pub(in crate::net) libp2p: libp2p::PeerId,
    pub(in crate::net) address: SocketAddr,
    pub(in crate::net) direction: Direction,
    pub(in crate::net) dialled: Option<Target>,
}

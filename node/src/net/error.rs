//! What can go wrong, for whoever uses the network.

use std::net::SocketAddr;
use std::time::Duration;

use skein_gossip::ids::PeerId;

use super::address::AddressError;
use super::peers::Lane;
use super::swarm::MAX_PUBLISHED;

/// The network could not be started.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// An address is taken or not of this machine.
    #[error("cannot listen on {address}: {reason}; choose another with --listen")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        reason: String,
    },
    /// No address was left to listen on.
    #[error(
        "no address to listen on: no interface that may be used has one; check --listen and --interface"
    )]
    NowhereToListen,
    /// A `--peer` is no address.
    #[error("--peer {0}")]
    Peer(#[from] AddressError),
    /// The system does not tell its interfaces.
    #[error("cannot list the network interfaces: {0}")]
    Interfaces(#[source] std::io::Error),
    /// The protocol stack could not be set up.
    #[error("cannot set up the network: {reason}")]
    Setup {
        /// Why.
        reason: String,
    },
}

/// A frame was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No session with this peer.
    #[error("peer {} is not connected", peer.short())]
    NotConnected {
        /// Who.
        peer: PeerId,
    },
    /// The peer takes frames more slowly than they are sent.
    #[error("the {lane:?} lane to peer {} is full", peer.short())]
    Full {
        /// Who.
        peer: PeerId,
        /// Which lane.
        lane: Lane,
    },
    /// The frame would be refused at the other end.
    #[error("a frame of {length} bytes is over the {lane:?} lane's bound of {bound}")]
    TooLong {
        /// Which lane.
        lane: Lane,
        /// Its bytes.
        length: usize,
        /// The most allowed.
        bound: u32,
    },
}

/// A request had no response.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No session with this peer.
    #[error("peer {} is not connected", peer.short())]
    NotConnected {
        /// Who.
        peer: PeerId,
    },
    /// No response in time.
    #[error("peer {} did not answer within {deadline:?}", peer.short())]
    TimedOut {
        /// Who.
        peer: PeerId,
        /// The time it had.
        deadline: Duration,
    },
    /// The peer closed the stream without a response: it refused, or has too many requests.
    #[error("peer {} refused the request", peer.short())]
    Refused {
        /// Who.
        peer: PeerId,
    },
    /// The stream broke, or what came was no response.
    #[error("request to peer {} failed: {reason}", peer.short())]
    Broken {
        /// Who.
        peer: PeerId,
        /// Why.
        reason: String,
    },
}

/// Something was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// Too long for a published message.
    #[error("{length} bytes are over the bound of {MAX_PUBLISHED} for a published message")]
    TooLong {
        /// Its bytes.
        length: usize,
    },
    /// Too much is being published at once.
    #[error("too much is being published at once; try again")]
    Full,
    /// The network was shut down.
    #[error("the network was shut down")]
    Closed,
}

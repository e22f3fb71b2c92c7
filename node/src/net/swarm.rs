//! The libp2p swarm: TCP, then the pre-shared key of the mesh, then Noise, then Yamux, and the behaviours on top.
//! A stranger without the mesh key gets past none of it.

use std::io;
use std::time::Duration;

use libp2p::core::Transport as _;
use libp2p::core::transport::timeout::{TransportTimeout, TransportTimeoutError};
use libp2p::core::upgrade::Version;
use libp2p::gossipsub::{self, IdentTopic, MessageAuthenticity};
use libp2p::pnet::{PnetConfig, PreSharedKey};
use libp2p::swarm::{self, NetworkBehaviour};
use libp2p::{Swarm, connection_limits, identify, identity, noise, ping, tcp, yamux};

use super::identity::{Identity, MeshKey};
use super::{NetError, routing, streams};

/// The longest published message, in bytes.
pub const MAX_PUBLISHED: usize = 256 << 10;
/// Connections in all; two per peer where both sides dialled at once.
const MAX_CONNECTIONS: u32 = 256;
/// Connections to one peer.
const MAX_CONNECTIONS_PER_PEER: u32 = 4;
/// Inbound handshakes at the same time.
const MAX_HANDSHAKES: u32 = 64;
/// A TCP connection that takes longer is given up.
const CONNECT: Duration = Duration::from_secs(3);
/// A connection whose handshake is not done after this, all in all, is given up.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How often the round-trip time is measured, and how long an answer may take.
const PING: Duration = Duration::from_secs(10);

/// Everything that speaks on a connection.
#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    limits: connection_limits::Behaviour,
    pub(super) streams: streams::Behaviour,
    pub(super) identify: identify::Behaviour,
    pub(super) routing: routing::Behaviour,
    pub(super) gossip: gossipsub::Behaviour,
    ping: ping::Behaviour,
}

/// No TCP connection. It stands between the system's error and libp2p's wrappers, one layer of which hides what is
/// directly inside it.
#[derive(Debug, thiserror::Error)]
#[error("no connection")]
struct ConnectError(#[source] io::Error);

/// The one topic of a mesh.
pub(super) fn topic() -> IdentTopic {
    IdentTopic::new("skein/1")
}

/// Builds the swarm of `identity` in the mesh of `key`.
pub(super) fn build(identity: &Identity, key: &MeshKey) -> Result<Swarm<Behaviour>, NetError> {
    let keypair = identity.to_libp2p();
    let noise = noise::Config::new(&keypair).map_err(|error| NetError::Setup {
        reason: error.to_string(),
    })?;
    let shared = PnetConfig::new(PreSharedKey::new(key.derive("skein 1 private network")));
    let tcp = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true));
    let transport = TransportTimeout::new(tcp, CONNECT)
        .map_err(|error| match error {
            TransportTimeoutError::Other(error) => ConnectError(error),
            // So that a dial into the void can be told from a handshake that hangs.
            _ => ConnectError(io::ErrorKind::TimedOut.into()),
        })
        .and_then(move |socket, _| shared.handshake(socket))
        // Not lazy: with that, the accepting side never learns that it met its own identity.
        .upgrade(Version::V1)
        .authenticate(noise)
        .multiplex(yamux::Config::default())
        .timeout(HANDSHAKE)
        .boxed();
    let local = keypair.public().to_peer_id();
    let config = swarm::Config::with_tokio_executor()
        .with_idle_connection_timeout(Duration::from_secs(3600));
    Ok(Swarm::new(transport, behaviour(keypair)?, local, config))
}

fn behaviour(keypair: identity::Keypair) -> Result<Behaviour, NetError> {
    let local = keypair.public().to_peer_id();
    let limits = connection_limits::ConnectionLimits::default()
        .with_max_pending_incoming(Some(MAX_HANDSHAKES))
        .with_max_established(Some(MAX_CONNECTIONS))
        .with_max_established_per_peer(Some(MAX_CONNECTIONS_PER_PEER));
    let identify = identify::Config::new("/skein/identify/1".to_owned(), keypair.public())
        .with_agent_version(concat!("skein/", env!("CARGO_PKG_VERSION")).to_owned())
        .with_hide_listen_addrs(true)
        .with_interval(Duration::from_secs(60));
    let ping = ping::Config::new().with_interval(PING).with_timeout(PING);
    Ok(Behaviour {
        limits: connection_limits::Behaviour::new(limits),
        streams: streams::Behaviour::default(),
        identify: identify::Behaviour::new(identify),
        routing: routing::Behaviour::new(local),
        gossip: gossip(keypair)?,
        ping: ping::Behaviour::new(ping),
    })
}

fn gossip(keypair: identity::Keypair) -> Result<gossipsub::Behaviour, NetError> {
    let setup = |reason: String| NetError::Setup { reason };
    let config = gossipsub::ConfigBuilder::default()
        .protocol_id_prefix("/skein/gossip")
        .max_transmit_size(MAX_PUBLISHED + 1024)
        .validation_mode(gossipsub::ValidationMode::Strict)
        .build()
        .map_err(|error| setup(error.to_string()))?;
    let mut gossip = gossipsub::Behaviour::new(MessageAuthenticity::Signed(keypair), config)
        .map_err(|error| setup(error.to_owned()))?;
    gossip
        .subscribe(&topic())
        .map_err(|error| setup(error.to_string()))?;
    Ok(gossip)
}

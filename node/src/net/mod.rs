//! The network: finds the peers of the mesh, keeps a connection to each, and carries messages. The only room that knows
//! libp2p.
//!
//! ```text
//! --peer, remembered, mdns, identify, routing -> dialer -> swarm (tcp, mesh key, noise, yamux)
//!     -> contacts: greeting -> session: control lane, update lane, requests -> Event, Inbound
//! ```
//!
//! [`start`] runs a driver task that owns all state; [`Net`] is the handle to it. Modules in reading order, lowest first.

mod identity;
mod address;
mod interfaces;
mod peers;
mod error;
mod dialer;
mod doubles;
mod buffers;
mod frames;
mod paced;
mod greeting;
mod streams;
mod routing;
mod swarm;
mod listen;
mod mdns;
mod session;
mod contacts;
mod report;
mod names;
mod driver;

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use futures::io::AsyncWriteExt;
use skein_gossip::ids::PeerId;
use skein_gossip::transfer::capacity::Capacity;
use skein_gossip::transfer::probe;
use skein_gossip::wire::frame::FrameKind;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

pub use self::address::AddressError;
pub use self::buffers::Buffers;
pub use self::dialer::Via;
pub use self::error::{NetError, PublishError, RequestError, SendError};
pub use self::identity::{Identity, MeshKey, draw_instance, verify};
pub use self::interfaces::{Interface, InterfaceKind, list_interfaces};
pub use self::peers::{Direction, Lane, PeerInfo, PeerState, TrafficInfo};
pub use self::swarm::MAX_PUBLISHED;

/// Events that wait for the program; when it is full, streams are no longer read.
const EVENTS: usize = 1024;
/// Update frames that wait for the program, over all peers.
const UPDATES: usize = 8;
/// Commands and notices that wait for the driver.
const COMMANDS: usize = 256;
/// How long `shutdown` may take in all.
const SHUTDOWN: Duration = Duration::from_millis(1500);

/// An address to listen on; port 0 takes a free one.
pub type Listen = SocketAddr;

/// What [`start`] needs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who this peer is.
    pub identity: Identity,
    /// Which mesh it is in.
    pub mesh_key: MeshKey,
    /// Where to listen; empty means every interface, IPv4 and IPv6, on one port.
    pub listen: Vec<Listen>,
    /// The port of last time; taken again where `listen` is empty and it is free.
    pub last_port: Option<u16>,
    /// Addresses given by the user: a multiaddr, ip:port or host:port.
    pub peers: Vec<String>,
    /// What [`Net::address_book`] returned last time.
    pub remembered: Vec<String>,
    /// Names of the interfaces to use, with `*` and `?` as wildcards; empty means all.
    pub interfaces: Vec<String>,
    /// Whether to announce and look for peers in the local network.
    pub mdns: bool,
}

/// A running network.
#[derive(Debug)]
pub struct Started {
    /// The handle.
    pub net: Net,
    /// What happens, but for updates. Must be received from: the network waits when it is full.
    pub events: mpsc::Receiver<Event>,
    /// Frames of the update lanes; not receiving holds up those lanes and nothing else.
    pub updates: mpsc::Receiver<Inbound>,
}

/// Something that happened. The sender of anything is who the connection or signature says, not what the bytes say.
#[derive(Debug)]
pub enum Event {
    /// Messages to and from `peer` are possible now.
    Connected {
        /// Who.
        peer: PeerId,
    },
    /// The last connection to `peer` is gone.
    Disconnected {
        /// Who.
        peer: PeerId,
    },
    /// A frame of the control lane.
    Message {
        /// Who sent it.
        from: PeerId,
        /// What.
        body: Vec<u8>,
    },
    /// Something was published in the mesh.
    Published {
        /// Who published (and signed) it; not necessarily connected.
        from: PeerId,
        /// What.
        data: Vec<u8>,
    },
    /// A request; dropping `reply` refuses it.
    Request {
        /// Who asks.
        from: PeerId,
        /// What.
        body: Vec<u8>,
        /// Where the response goes, within a minute.
        reply: oneshot::Sender<Vec<u8>>,
    },
    /// Another process runs with this peer's identity.
    DuplicateIdentity {
        /// Where it was seen.
        address: String,
    },
    /// This peer no longer listens somewhere.
    ListenFailed {
        /// Where and why.
        reason: String,
    },
}

/// A frame of the update lane.
#[derive(Debug, PartialEq, Eq)]
pub struct Inbound {
    /// Who sent it.
    pub from: PeerId,
    /// When it had been read.
    pub arrived: Instant,
    /// What.
    pub body: Vec<u8>,
}

/// What is known about discovery, for diagnosis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// Why nothing is announced or heard in the local network; `None` if that works or was not asked for.
    pub mdns_error: Option<String>,
    /// Announcements of this mesh by others, now in force.
    pub ours: usize,
    /// Announcements of other meshes, now in force.
    pub foreign: usize,
    /// The machine's interfaces.
    pub interfaces: Vec<Interface>,
}

/// What [`Net`] asks of the driver.
#[derive(Debug)]
enum Command {
    Open {
        peer: PeerId,
        protocol: libp2p::StreamProtocol,
        reply: streams::Opened,
    },
    Publish(Vec<u8>),
    Peers(oneshot::Sender<Vec<PeerInfo>>),
    ListenAddresses(oneshot::Sender<Vec<String>>),
    AddressBook(oneshot::Sender<Vec<String>>),
    Discovery(oneshot::Sender<Discovery>),
    Shutdown(oneshot::Sender<()>),
}

/// What the driver's own tasks tell it.
#[derive(Debug)]
enum Notice {
    /// A greeting of ours was answered, or not.
    Greeted {
        connection: libp2p::swarm::ConnectionId,
        outcome: Result<greeting::Greeting, greeting::GreetingError>,
    },
    /// A peer says that it sees a double of this one.
    ToldDouble { from: PeerId, address: String },
    /// A session has passed on its last messages.
    Ended { peer: PeerId },
    /// A `--peer` name was resolved.
    Resolved {
        place: address::Place,
        addresses: Vec<SocketAddr>,
    },
    /// At shutdown: all queues are sent.
    Flushed,
}

/// The handle to a running network; clones are the same network.
#[derive(Clone, Debug)]
pub struct Net {
    local: PeerId,
    commands: mpsc::Sender<Command>,
    lanes: contacts::Lanes,
    buffers: Buffers,
}

/// Starts listening, announcing and dialling. Returns once this peer can be reached.
///
/// # Errors
/// [`NetError`], each with what to change.
pub async fn start(config: Config) -> Result<Started, NetError> {
    let (events, events_out) = mpsc::channel(EVENTS);
    let (updates, updates_out) = mpsc::channel(UPDATES);
    let (commands, commands_out) = mpsc::channel(COMMANDS);
    let local = config.identity.peer();
    let lanes = contacts::Lanes::default();
    let net = Net {
        local,
        commands: commands.clone(),
        lanes: Arc::clone(&lanes),
        buffers: Buffers::default(),
    };
    let outlets = session::Outlets {
        events,
        updates,
        commands,
        buffers: net.buffers.clone(),
    };
    driver::start(config, lanes, outlets, commands_out).await?;
    Ok(Started {
        net,
        events: events_out,
        updates: updates_out,
    })
}

impl Net {
    /// This peer.
    pub fn local(&self) -> PeerId {
        self.local
    }

    /// Memory for update frames: those that are received lie in it, and what was sent goes back there.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// What the link to `peer` carries, as far as transfers to it have shown; none where nothing was sent or it is not connected.
    pub fn capacity(&self, peer: PeerId) -> Option<Capacity> {
        self.queues(peer)?.pace.capacity()
    }

    /// Sends a frame of [`probe::BYTES`], which the receiver drops, and waits at most `patience` until it has arrived: the link's
    /// capacity is known then, or a bound of it.
    pub async fn probe(&self, to: PeerId, patience: Duration) -> Option<Capacity> {
        let pace = self.queues(to)?.pace;
        let before = pace.arrived_bytes();
        let mut body = self.buffers.take(probe::BYTES);
        probe::write(&mut body);
        self.send_patiently(to, Lane::Update, body).await.ok()?;
        // What has not arrived by then may still be a bound.
        let _ = timeout(patience, pace.arrives(before, probe::BYTES as u64)).await;
        pace.capacity()
    }

    fn queues(&self, peer: PeerId) -> Option<session::Queues> {
        let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
        lanes.get(&peer).cloned()
    }

    /// Queues a frame for `to`. Delivered at most once, in order as long as the lane's stream holds.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send(&self, to: PeerId, lane: Lane, body: Vec<u8>) -> Result<(), SendError> {
        let bound = lane.kind().bound();
        if body.len() > bound as usize {
            return Err(SendError::TooLong {
                lane,
                length: body.len(),
                bound,
            });
        }
        let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
        let queues = lanes.get(&to).ok_or(SendError::NotConnected { peer: to })?;
        let queue = match lane {
            Lane::Control => &queues.control,
            Lane::Update => &queues.update,
        };
        queue.try_send(body).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SendError::Full { peer: to, lane },
            mpsc::error::TrySendError::Closed(_) => SendError::NotConnected { peer: to },
        })
    }

    /// As [`Net::send`], but waits where the lane is full.
    ///
    /// # Errors
    /// [`SendError`], but never `Full`; nothing was queued.
    pub async fn send_patiently(
        &self,
        to: PeerId,
        lane: Lane,
        body: Vec<u8>,
    ) -> Result<(), SendError> {
        let bound = lane.kind().bound();
        if body.len() > bound as usize {
            return Err(SendError::TooLong {
                lane,
                length: body.len(),
                bound,
            });
        }
        let queue = {
            let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
            let queues = lanes.get(&to).ok_or(SendError::NotConnected { peer: to })?;
            match lane {
                Lane::Control => queues.control.clone(),
                Lane::Update => queues.update.clone(),
            }
        };
        queue
            .send(body)
            .await
            .map_err(|_| SendError::NotConnected { peer: to })
    }

    /// Asks `to` and waits for the response, at most for `deadline`. At most 16 requests per peer run at once; more wait.
    ///
    /// # Errors
    /// [`RequestError`]; the peer may have acted on the request nevertheless.
    pub async fn request(
        &self,
        to: PeerId,
        body: Vec<u8>,
        deadline: Duration,
    ) -> Result<Vec<u8>, RequestError> {
        timeout(deadline, self.ask(to, body))
            .await
            .unwrap_or(Err(RequestError::TimedOut { peer: to, deadline }))
    }

    async fn ask(&self, peer: PeerId, body: Vec<u8>) -> Result<Vec<u8>, RequestError> {
        let not_connected = RequestError::NotConnected { peer };
        let Some(queues) = self.queues(peer) else {
            return Err(not_connected);
        };
        // Never closed, so this only waits.
        let Ok(_permit) = queues.requests.acquire().await else {
            return Err(not_connected);
        };
        let broken = |reason: String| RequestError::Broken { peer, reason };
        let mut stream = session::open(&self.commands, peer, streams::REQUEST)
            .await
            .map_err(|error| broken(error.to_string()))?;
        frames::write(&mut stream, FrameKind::Request, &body)
            .await
            .map_err(|error| broken(error.to_string()))?;
        stream
            .flush()
            .await
            .map_err(|error| broken(error.to_string()))?;
        queues.traffic.count(None, peers::Way::Out, body.len());
        let kind = FrameKind::Response;
        // Whoever asks keeps the response: there is no memory to come back.
        let response = paced::read(&mut stream, kind, kind.bound(), &Buffers::default())
            .await
            .map_err(|error| broken(error.to_string()))?
            .ok_or(RequestError::Refused { peer })?;
        queues.traffic.count(None, peers::Way::In, response.len());
        Ok(response)
    }

    /// Publishes `data` to all peers of the mesh that are connected, directly or over others. Peers that come later do
    /// not get it.
    ///
    /// # Errors
    /// [`PublishError`].
    pub fn publish(&self, data: Vec<u8>) -> Result<(), PublishError> {
        if data.len() > MAX_PUBLISHED {
            return Err(PublishError::TooLong { length: data.len() });
        }
        self.commands
            .try_send(Command::Publish(data))
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => PublishError::Full,
                mpsc::error::TrySendError::Closed(_) => PublishError::Closed,
            })
    }

    /// Every peer heard of in this run, and every address whose owner is not known yet. Empty after `shutdown`.
    pub async fn peers(&self) -> Vec<PeerInfo> {
        self.query(Command::Peers).await.unwrap_or_default()
    }

    /// Where others can reach this peer, ip:port, the most promising first.
    pub async fn listen_addresses(&self) -> Vec<String> {
        self.query(Command::ListenAddresses)
            .await
            .unwrap_or_default()
    }

    /// What to remember for next time: multiaddrs with the peer's id, at most 256.
    pub async fn address_book(&self) -> Vec<String> {
        self.query(Command::AddressBook).await.unwrap_or_default()
    }

    /// What is known about discovery; `None` after `shutdown`.
    pub async fn discovery(&self) -> Option<Discovery> {
        self.query(Command::Discovery).await
    }

    /// Sends what is queued, takes back the announcement, closes all connections; about a second at most. The event
    /// channel ends.
    pub async fn shutdown(&self) {
        // Too slow is as good as done: the process ends next.
        let _ = timeout(SHUTDOWN, self.query(Command::Shutdown)).await;
    }

    async fn query<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, response) = oneshot::channel();
        self.commands.send(command(reply)).await.ok()?;
        response.await.ok()
    }
}

#[cfg(test)]
mod tests;

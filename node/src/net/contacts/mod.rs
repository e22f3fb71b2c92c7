//! Who is connected: the connections of each peer, their greetings, and the session on top of them.
//!
//! Decides, and says in [`Act`]s what the driver is to do. A peer's session begins with its first greeted connection and
//! ends with its last. One session talks to one process: a connection from another process with the same identity (a
//! restart whose old connections linger, or a copied identity) waits until the first is gone. Which of the two it is shows
//! when both greet again: a process that is gone does not.

mod act;
mod rivals;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use libp2p::swarm::{ConnectionId, Stream, StreamProtocol};
use skein_gossip::ids::PeerId;
use tokio::sync::{Semaphore, mpsc};

pub(super) use act::{Act, Arrival};

use crate::net::greeting::{Greeting, GreetingError, Instance};
use crate::net::peers::{PeerState, Traffic};
use crate::net::session::{Outlets, Queues, Session};
use crate::net::{Event, Notice};

/// Streams of a connection that wait for its greeting.
const MAX_WAITING: usize = 8;
/// Greetings of one connection answered at once.
const MAX_ANSWERS: usize = 4;
/// Peers remembered that are not connected.
const MAX_KNOWN: usize = 1024;
/// A connection that misses this many pings in a row is closed.
const MAX_MISSED: u8 = 3;

/// The sending ends of all sessions; written here, read by whoever sends.
pub(super) type Lanes = Arc<RwLock<HashMap<PeerId, Queues>>>;

#[derive(Debug)]
struct Contact {
    arrival: Arrival,
    rtt: Option<Duration>,
    missed: u8,
    stage: Stage,
    /// While it is being found out whether two processes live: whether this one answered.
    alive: Option<bool>,
    waiting: Vec<(StreamProtocol, Stream)>,
    answers: Arc<Semaphore>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Strange,
    Greeted(Instance),
    /// Another wire version: kept, since closing would only make both sides dial again.
    Unusable,
}

/// What stays known of a peer that was connected once.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) traffic: Arc<Traffic>,
    pub(super) software: Option<String>,
    unusable: Option<String>,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Contacts {
    connections: BTreeMap<ConnectionId, Contact>,
    sessions: HashMap<PeerId, Session>,
    known: BTreeMap<PeerId, Known>,
    lanes: Lanes,
    told: BTreeSet<(Instance, Instance)>,
    outlets: Outlets,
    notices: mpsc::Sender<Notice>,
}

impl Contacts {
    pub(super) fn new(lanes: Lanes, outlets: Outlets, notices: mpsc::Sender<Notice>) -> Self {
        Self {
            connections: BTreeMap::new(),
            sessions: HashMap::new(),
            known: BTreeMap::new(),
            lanes,
            told: BTreeSet::new(),
            outlets,
            notices,
        }
    }

    /// A connection stands.
    pub(super) fn established(&mut self, connection: ConnectionId, arrival: Arrival) -> Vec<Act> {
        if self.known.len() >= MAX_KNOWN
            && let Some(peer) = self
                .known
                .keys()
                .find(|peer| !self.is_connected(**peer))
                .copied()
        {
            self.known.remove(&peer);
        }
        self.known.entry(arrival.peer).or_default();
        let contact = Contact {
            arrival,
            rtt: None,
            missed: 0,
            stage: Stage::Strange,
            alive: None,
            waiting: Vec::new(),
            answers: Arc::new(Semaphore::new(MAX_ANSWERS)),
        };
        self.connections.insert(connection, contact);
        vec![Act::Greet {
            connection,
            your_double: None,
        }]
    }

    /// The peer opened a lane or a request.
    pub(super) fn accepted(
        &mut self,
        connection: ConnectionId,
        protocol: StreamProtocol,
        stream: Stream,
    ) {
        let Some(contact) = self.connections.get_mut(&connection) else {
            return;
        };
        match self.sessions.get_mut(&contact.arrival.peer) {
            Some(session) if session.connections.contains(&connection) => {
                session.accept(&protocol, stream)
            }
            // It is dropped, so closed, when too many wait.
            _ if contact.waiting.len() < MAX_WAITING => contact.waiting.push((protocol, stream)),
            _ => {}
        }
    }

    /// Leave to answer one greeting more on `connection`, with the peer that greets.
    pub(super) fn answer(
        &self,
        connection: ConnectionId,
    ) -> Option<(PeerId, tokio::sync::OwnedSemaphorePermit)> {
        let contact = self.connections.get(&connection)?;
        let permit = Arc::clone(&contact.answers).try_acquire_owned().ok()?;
        Some((contact.arrival.peer, permit))
    }

    /// A greeting of ours was answered, or not.
    pub(super) fn greeted(
        &mut self,
        connection: ConnectionId,
        outcome: Result<Greeting, GreetingError>,
    ) -> Vec<Act> {
        let Some(contact) = self.connections.get_mut(&connection) else {
            return Vec::new();
        };
        let peer = contact.arrival.peer;
        let known = self.known.entry(peer).or_default();
        match outcome {
            Ok(greeting) => {
                known.software = Some(greeting.software);
                known.unusable = None;
                if matches!(contact.stage, Stage::Greeted(_)) {
                    contact.alive = contact.alive.map(|_| true);
                    return self.compare(peer);
                }
                contact.stage = Stage::Greeted(greeting.instance);
                let mut acts = vec![Act::Reached {
                    peer,
                    dialled: contact.arrival.dialled.take(),
                }];
                acts.extend(self.admit(connection));
                acts.extend(self.suspect(peer));
                acts
            }
            Err(error) => match error.other_version() {
                Some(_) => {
                    if known.unusable.is_none() {
                        tracing::warn!(peer = %peer.short(), address = %contact.arrival.address, %error, "peer cannot be used");
                    }
                    known.unusable = Some(error.to_string());
                    contact.stage = Stage::Unusable;
                    vec![Act::Reached {
                        peer,
                        dialled: contact.arrival.dialled.take(),
                    }]
                }
                None => {
                    let missed = contact.arrival.dialled.take();
                    let missed = missed.map(|dialled| Act::Missed {
                        dialled,
                        reason: error.to_string(),
                    });
                    missed.into_iter().chain([Act::Close(connection)]).collect()
                }
            },
        }
    }

    /// A ping was answered within some time, or not.
    pub(super) fn pinged(&mut self, connection: ConnectionId, rtt: Option<Duration>) -> Vec<Act> {
        let Some(contact) = self.connections.get_mut(&connection) else {
            return Vec::new();
        };
        match rtt {
            Some(rtt) => (contact.rtt, contact.missed) = (Some(rtt), 0),
            None => contact.missed += 1,
        }
        if contact.missed < MAX_MISSED {
            Vec::new()
        } else {
            vec![Act::Close(connection)]
        }
    }

    /// A connection is gone.
    pub(super) fn closed(&mut self, connection: ConnectionId, reason: String) -> Vec<Act> {
        let Some(mut contact) = self.connections.remove(&connection) else {
            return Vec::new();
        };
        let peer = contact.arrival.peer;
        let mut acts = Vec::new();
        if let Some(dialled) = contact.arrival.dialled.take() {
            acts.push(Act::Missed { dialled, reason });
        }
        if !self.is_connected(peer) {
            acts.push(Act::Lost(peer));
        }
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.connections.retain(|other| *other != connection);
            if session.connections.is_empty() && !session.ending {
                write(&self.lanes).remove(&peer);
                let notices = self.notices.clone();
                session.end(async move {
                    // Fails only when the driver is gone, and with it everyone who could care.
                    let _ = notices.send(Notice::Ended { peer }).await;
                });
            }
        }
        acts
    }

    /// The last messages of a session were passed on.
    pub(super) fn ended(&mut self, peer: PeerId) -> Vec<Act> {
        if self.sessions.remove(&peer).is_none() {
            return Vec::new();
        }
        let mut acts = vec![Act::Emit(Event::Disconnected { peer })];
        let next: Vec<ConnectionId> = self.of(peer).map(|(id, _)| *id).collect();
        for connection in next {
            acts.extend(self.admit(connection));
        }
        acts
    }

    /// The program knows that `peer` is connected.
    pub(super) fn announced(&self, peer: PeerId) {
        if let Some(session) = self.sessions.get(&peer) {
            session.open_gate();
        }
    }

    /// Where to open a stream to `peer`.
    pub(super) fn route(&self, peer: PeerId) -> Option<(libp2p::PeerId, ConnectionId)> {
        let connection = self.sessions.get(&peer)?.connections.last()?;
        Some((
            self.connections.get(connection)?.arrival.libp2p,
            *connection,
        ))
    }

    /// Who is at the other end of `connection`, and where.
    pub(super) fn arrival(&self, connection: ConnectionId) -> Option<&Arrival> {
        self.connections
            .get(&connection)
            .map(|contact| &contact.arrival)
    }

    /// All connections.
    pub(super) fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.connections.keys().copied()
    }

    /// All peers ever connected in this run.
    pub(super) fn known(&self) -> &BTreeMap<PeerId, Known> {
        &self.known
    }

    /// How things stand with `peer`, if it is connected.
    pub(super) fn state(&self, peer: PeerId) -> Option<PeerState> {
        if let Some(session) = self.sessions.get(&peer)
            && let Some(contact) = session
                .connections
                .first()
                .and_then(|first| self.connections.get(first))
        {
            let rtt = session
                .connections
                .iter()
                .filter_map(|id| self.connections.get(id)?.rtt)
                .min();
            let address = contact.arrival.address.to_string();
            return Some(PeerState::Connected {
                address,
                direction: contact.arrival.direction,
                rtt,
            });
        }
        let reason = self.known.get(&peer)?.unusable.clone()?;
        self.is_connected(peer)
            .then_some(PeerState::Unusable { reason })
    }

    /// Closes all queues and hands over the writers that empty them.
    pub(super) fn close_queues(&mut self) -> Vec<tokio::task::JoinHandle<()>> {
        write(&self.lanes).clear();
        self.sessions
            .values_mut()
            .flat_map(Session::take_writers)
            .collect()
    }

    fn of(&self, peer: PeerId) -> impl Iterator<Item = (&ConnectionId, &Contact)> {
        self.connections
            .iter()
            .filter(move |(_, contact)| contact.arrival.peer == peer)
    }

    fn is_connected(&self, peer: PeerId) -> bool {
        self.of(peer).next().is_some()
    }

    /// Makes a greeted connection part of its peer's session, unless another process holds that.
    fn admit(&mut self, connection: ConnectionId) -> Option<Act> {
        let contact = self.connections.get_mut(&connection)?;
        let Stage::Greeted(instance) = contact.stage else {
            return None;
        };
        let peer = contact.arrival.peer;
        let waiting = std::mem::take(&mut contact.waiting);
        let mut act = None;
        let session = match self.sessions.get_mut(&peer) {
            Some(session) if !session.ending && session.instance == instance => {
                if !session.connections.contains(&connection) {
                    session.connections.push(connection);
                }
                session
            }
            Some(_) => {
                contact.waiting = waiting;
                return None;
            }
            None => {
                let traffic = Arc::clone(&self.known.entry(peer).or_default().traffic);
                let (session, queues) =
                    Session::start(peer, instance, connection, traffic, self.outlets.clone());
                write(&self.lanes).insert(peer, queues);
                act = Some(Act::Emit(Event::Connected { peer }));
                self.sessions.entry(peer).or_insert(session)
            }
        };
        for (protocol, stream) in waiting {
            session.accept(&protocol, stream);
        }
        act
    }
}

fn instance(contact: &Contact) -> Option<Instance> {
    match contact.stage {
        Stage::Greeted(instance) => Some(instance),
        Stage::Strange | Stage::Unusable => None,
    }
}

/// A panic elsewhere leaves the map whole, so a poisoned lock is as good as another.
fn write(lanes: &Lanes) -> std::sync::RwLockWriteGuard<'_, HashMap<PeerId, Queues>> {
    lanes
        .write()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

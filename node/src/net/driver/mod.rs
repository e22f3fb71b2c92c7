//! The task that owns the swarm and all state of the network. It only translates: swarm events into calls of the state
//! machines, their decisions into calls of the swarm.
//!
//! Its queue towards the program is bounded: while the program does not take events, the swarm is not polled, and peers
//! wait.

mod addresses;
mod connections;
mod start;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::StreamExt;
use libp2p::swarm::ConnectionId;
use libp2p::{Swarm, gossipsub};
use skein_gossip::ids::PeerId;
use skein_gossip::time::Tick;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub(super) use start::start;

use crate::net::contacts::{Act, Contacts};
use crate::net::dialer::{Dialer, Target, Via};
use crate::net::doubles::{Doubles, End, Verdict};
use crate::net::greeting::{self, Greeting, Instance};
use crate::net::interfaces::Interfaces;
use crate::net::mdns::{Beacon, Heard};
use crate::net::streams::GREETING;
use crate::net::swarm::{self, Behaviour};
use crate::net::{Command, Discovery, Event, Notice, report};

/// Events that wait here for room in the program's channel; at this many the swarm waits too.
const MAX_OUTBOX: usize = 64;
/// Notices of own tasks that wait for the driver.
const NOTICES: usize = 256;
/// Published messages that wait for the first peer.
const MAX_UNPUBLISHED: usize = 16;
/// Announcements of others remembered.
const MAX_ANNOUNCEMENTS: usize = 1024;
/// How often the interfaces are looked at.
const INTERFACES: Duration = Duration::from_secs(5);
/// How often the mesh is asked who else is in it.
const ASK: Duration = Duration::from_secs(60);
/// Listen addresses come one by one; they are announced together.
const GATHER: Duration = Duration::from_millis(50);
/// At shutdown: how long queues may take to empty, and connections to close.
const FLUSH: Duration = Duration::from_millis(500);
const CLOSE: Duration = Duration::from_millis(300);
/// How far a shutdown has come.
enum Closing {
    No,
    Flushing(tokio::sync::oneshot::Sender<()>),
    Disconnecting(tokio::sync::oneshot::Sender<()>, Tick),
}

/// See the module's header.
struct Driver {
    local: PeerId,
    instance: Instance,
    swarm: Swarm<Behaviour>,
    interfaces: Interfaces,
    dialer: Dialer,
    contacts: Contacts,
    doubles: Doubles,
    dials: HashMap<ConnectionId, Target>,
    listening: BTreeSet<SocketAddr>,
    offered: Vec<SocketAddr>,
    /// The user chose loopback addresses and no others.
    listens_on_loopback: bool,
    /// This peer has nothing but loopback addresses, so these may be told.
    loopback_only: bool,
    beacon: Option<Beacon>,
    mdns_error: Option<String>,
    ours: BTreeSet<u64>,
    foreign: BTreeSet<u64>,
    unpublished: VecDeque<Vec<u8>>,
    outbox: VecDeque<Event>,
    notices: mpsc::Sender<Notice>,
    started: Instant,
    announce_at: Option<Tick>,
    ask_at: Tick,
    interfaces_at: Tick,
    closing: Closing,
    /// Tasks that resolve names; they end with the driver.
    resolvers: JoinSet<()>,
}

impl Driver {
    async fn run(
        mut self,
        events: mpsc::Sender<Event>,
        mut commands: mpsc::Receiver<Command>,
        mut notices: mpsc::Receiver<Notice>,
        mut heard: mpsc::Receiver<Heard>,
    ) {
        loop {
            self.on_time();
            if self.is_closed() {
                break;
            }
            let wakeup = self.started + Duration::from_micros(self.next_wakeup().0);
            tokio::select! {
                permit = events.reserve(), if !self.outbox.is_empty() => {
                    // The program is gone: nobody is left to talk for.
                    let Ok(permit) = permit else { break };
                    if let Some(event) = self.outbox.pop_front() {
                        let connected = if let Event::Connected { peer } = &event { Some(*peer) } else { None };
                        permit.send(event);
                        if let Some(peer) = connected {
                            self.contacts.announced(peer);
                        }
                    }
                }
                event = self.swarm.select_next_some(), if self.outbox.len() < MAX_OUTBOX => self.on_swarm(event),
                Some(command) = commands.recv() => self.on_command(command),
                Some(notice) = notices.recv() => self.on_notice(notice),
                Some(news) = heard.recv() => self.on_heard(news),
                () = events.closed() => break,
                () = tokio::time::sleep_until(wakeup.into()) => {}
            }
        }
        // Handles may outlive the driver; whoever sends now is told that nobody is connected.
        self.contacts.close_queues();
        if let Some(beacon) = self.beacon.take() {
            beacon.stop().await;
        }
        if let Closing::Flushing(done) | Closing::Disconnecting(done, _) = self.closing {
            // Whoever waited may have lost patience.
            let _ = done.send(());
        }
    }

    fn now(&self) -> Tick {
        Tick(self.started.elapsed().as_micros() as u64)
    }

    fn next_wakeup(&self) -> Tick {
        let closing = if let Closing::Disconnecting(_, until) = self.closing {
            Some(until)
        } else {
            None
        };
        [
            self.announce_at,
            self.dialer.next_wakeup(),
            self.doubles.next_wakeup(),
            closing,
        ]
        .into_iter()
        .flatten()
        .fold(self.ask_at.min(self.interfaces_at), Tick::min)
    }

    fn is_closed(&self) -> bool {
        match &self.closing {
            Closing::Disconnecting(_, until) => {
                self.now() >= *until
                    || (self.contacts.connections().next().is_none() && self.outbox.is_empty())
            }
            _ => false,
        }
    }

    fn on_time(&mut self) {
        let now = self.now();
        if self.announce_at.is_some_and(|at| at <= now) {
            self.announce_at = None;
            self.announce();
        }
        if self.interfaces_at <= now {
            self.interfaces_at = now + INTERFACES;
            self.offer();
        }
        if self.ask_at <= now {
            self.ask_at = now + ASK;
            self.swarm.behaviour_mut().routing.ask();
        }
        while let Some(verdict) = self.doubles.poll(now) {
            self.judge(verdict);
        }
        if matches!(self.closing, Closing::No) {
            while let Some(target) = self.dialer.poll(now) {
                self.dial(target);
            }
        }
    }

    fn on_command(&mut self, command: Command) {
        // Whoever asked may have given up waiting: a reply that nobody takes is no fault.
        match command {
            Command::Open {
                peer,
                protocol,
                reply,
            } => {
                if let Some((libp2p, connection)) = self.contacts.route(peer) {
                    self.swarm
                        .behaviour_mut()
                        .streams
                        .open(libp2p, connection, protocol, reply);
                }
            }
            Command::Publish(data) => self.publish(data),
            Command::Peers(reply) => {
                drop(reply.send(report::peers(self.now(), &self.contacts, &self.dialer)));
            }
            Command::ListenAddresses(reply) => {
                drop(reply.send(self.offered.iter().map(SocketAddr::to_string).collect()));
            }
            Command::AddressBook(reply) => {
                drop(reply.send(report::address_book(&self.contacts, &self.dialer)))
            }
            Command::Discovery(reply) => drop(reply.send(self.discovery())),
            Command::Shutdown(done) => self.shut_down(done),
        }
    }

    fn on_notice(&mut self, notice: Notice) {
        match notice {
            Notice::Greeted {
                connection,
                outcome,
            } => {
                let acts = self.contacts.greeted(connection, outcome);
                self.carry_out(acts);
            }
            Notice::ToldDouble { from, address } => {
                tracing::debug!(peer = %from.short(), %address, "told of a double");
                self.duplicate(address);
            }
            Notice::Ended { peer } => {
                let acts = self.contacts.ended(peer);
                self.carry_out(acts);
            }
            Notice::Resolved { place, addresses } => {
                for address in addresses {
                    self.heard(
                        Target {
                            peer: place.peer,
                            address,
                        },
                        Via::Flag,
                        None,
                    );
                }
            }
            Notice::Flushed => {
                if let Closing::Flushing(done) = std::mem::replace(&mut self.closing, Closing::No) {
                    self.closing = Closing::Disconnecting(done, self.now() + CLOSE);
                    let all: Vec<ConnectionId> = self.contacts.connections().collect();
                    for connection in all {
                        self.swarm.close_connection(connection);
                    }
                }
            }
        }
    }

    fn on_heard(&mut self, news: Heard) {
        match news {
            Heard::Ours { group, addresses } => {
                if self.ours.len() < MAX_ANNOUNCEMENTS {
                    self.ours.insert(group);
                }
                for address in addresses {
                    self.heard(
                        Target {
                            peer: None,
                            address,
                        },
                        Via::Mdns,
                        Some(group),
                    );
                }
            }
            Heard::Foreign { group } => {
                if self.foreign.len() < MAX_ANNOUNCEMENTS {
                    self.foreign.insert(group);
                }
            }
            Heard::Withdrawn { group } => {
                self.ours.remove(&group);
                self.foreign.remove(&group);
                self.dialer.withdrawn(group);
            }
        }
    }

    fn carry_out(&mut self, acts: Vec<Act>) {
        let now = self.now();
        for act in acts {
            match act {
                Act::Greet {
                    connection,
                    your_double,
                } => self.greet(connection, your_double),
                Act::Close(connection) => {
                    self.swarm.close_connection(connection);
                }
                Act::Emit(event) => self.outbox.push_back(event),
                Act::Reached { peer, dialled } => self.dialer.connected(now, peer, dialled),
                Act::Missed { dialled, reason } => self.dialer.failed(now, dialled, reason),
                Act::Lost(peer) => self.dialer.disconnected(now, peer),
            }
        }
    }

    fn greet(&mut self, connection: ConnectionId, your_double: Option<String>) {
        let Some(arrival) = self.contacts.arrival(connection) else {
            return;
        };
        let (reply, opened) = tokio::sync::oneshot::channel();
        self.swarm
            .behaviour_mut()
            .streams
            .open(arrival.libp2p, connection, GREETING, reply);
        let own = Greeting {
            your_double,
            ..Greeting::new(self.instance)
        };
        let notices = self.notices.clone();
        tokio::spawn(async move {
            let outcome = greeting::ask(opened, own).await;
            // Fails only when the driver is gone.
            let _ = notices
                .send(Notice::Greeted {
                    connection,
                    outcome,
                })
                .await;
        });
    }

    fn met_own_identity(&mut self, end: End, address: SocketAddr) {
        if let Some(verdict) = self.doubles.met(self.now(), end, address) {
            self.judge(verdict);
        }
    }

    fn judge(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Ourselves(address) => self.dialer.own(address),
            Verdict::Double(address) => self.duplicate(address.to_string()),
        }
    }

    fn duplicate(&mut self, address: String) {
        if self.doubles.is_news(self.now(), &address) {
            tracing::warn!(%address, "another process runs with this peer's identity");
            self.outbox.push_back(Event::DuplicateIdentity { address });
        }
    }

    fn publish(&mut self, data: Vec<u8>) {
        match self
            .swarm
            .behaviour_mut()
            .gossip
            .publish(swarm::topic(), data.clone())
        {
            Ok(_) => {}
            Err(gossipsub::PublishError::NoPeersSubscribedToTopic)
                if self.unpublished.len() < MAX_UNPUBLISHED =>
            {
                self.unpublished.push_back(data);
            }
            Err(error) => tracing::warn!(%error, "a message was not published"),
        }
    }

    fn discovery(&self) -> Discovery {
        Discovery {
            mdns_error: self.mdns_error.clone(),
            ours: self.ours.len(),
            foreign: self.foreign.len(),
            interfaces: self.interfaces.list().to_vec(),
        }
    }

    fn shut_down(&mut self, done: tokio::sync::oneshot::Sender<()>) {
        self.closing = Closing::Flushing(done);
        let writers = self.contacts.close_queues();
        let notices = self.notices.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(FLUSH, futures::future::join_all(writers)).await;
            // Fails only when the driver is gone.
            let _ = notices.send(Notice::Flushed).await;
        });
    }
}

//! A session: everything that runs while a peer is connected. Per lane one outgoing stream fed from a bounded queue, and
//! readers for what the peer opened. A session outlives single connections and single streams.
//!
//! A reader that cannot pass on what it read stops reading, so a slow consumer slows the sender, lane by lane.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::swarm::{ConnectionId, Stream, StreamProtocol};
use skein_gossip::ids::PeerId;
use skein_gossip::transfer::window::Class;
use skein_gossip::wire::frame::FrameKind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::buffers::Buffers;
use super::frames::{self, ReadError};
use super::greeting::Instance;
use super::paced::{self, Pace};
use super::peers::{Lane, Traffic, Way};
use super::streams::{CONTROL, REQUEST, UPDATE};
use super::{Command, Event, Inbound};

/// Frames waiting per peer on the control lane.
const CONTROL_QUEUE: usize = 256;
/// Frames waiting per peer on the update lane.
const UPDATE_QUEUE: usize = 4;
/// Streams read at once per lane: the current one, and one before it that is still being emptied.
const MAX_READERS: usize = 2;
/// Requests of one peer at once, each way.
const MAX_REQUESTS: usize = 16;
/// How long a request may take to arrive, and its response to be made.
const REQUEST_ARRIVES: Duration = Duration::from_secs(10);
const RESPONSE_MADE: Duration = Duration::from_secs(60);
/// Pause before a broken stream is opened again.
const REOPEN: Duration = Duration::from_millis(100);
/// How long the last messages of a closed connection may take to be passed on.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Lane {
    pub(super) fn kind(self) -> FrameKind {
        match self {
            Lane::Control => FrameKind::Control,
            Lane::Update => FrameKind::Update,
        }
    }

    fn protocol(self) -> StreamProtocol {
        match self {
            Lane::Control => CONTROL,
            Lane::Update => UPDATE,
        }
    }
}

/// The sending ends of a session, for whoever has something to send.
#[derive(Clone, Debug)]
pub(super) struct Queues {
    pub(super) control: mpsc::Sender<Vec<u8>>,
    pub(super) update: mpsc::Sender<Vec<u8>>,
    /// One permit per own request under way.
    pub(super) requests: Arc<Semaphore>,
    pub(super) traffic: Arc<Traffic>,
    pub(super) pace: Pace,
}

/// Where a session passes things on.
#[derive(Clone, Debug)]
pub(super) struct Outlets {
    pub(super) events: mpsc::Sender<Event>,
    pub(super) updates: mpsc::Sender<Inbound>,
    pub(super) commands: mpsc::Sender<Command>,
    /// Memory of update frames, both ways.
    pub(super) buffers: Buffers,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Session {
    /// The process at the other end.
    pub(super) instance: Instance,
    /// Its connections, oldest first.
    pub(super) connections: Vec<ConnectionId>,
    /// All connections are gone; the last messages are being passed on.
    pub(super) ending: bool,
    peer: PeerId,
    outlets: Outlets,
    traffic: Arc<Traffic>,
    /// Opened when the program knows of the connection, so that it hears of it before it hears from it.
    gate: watch::Sender<bool>,
    control_readers: Vec<JoinHandle<()>>,
    update_readers: Vec<JoinHandle<()>>,
    writers: Vec<JoinHandle<()>>,
    requests: Arc<Semaphore>,
    /// Of all that is large on the way to the peer.
    pace: Pace,
}

impl Session {
    /// Starts the session's writers.
    pub(super) fn start(
        peer: PeerId,
        instance: Instance,
        connection: ConnectionId,
        traffic: Arc<Traffic>,
        outlets: Outlets,
    ) -> (Self, Queues) {
        let (control, control_queue) = mpsc::channel(CONTROL_QUEUE);
        let (update, update_queue) = mpsc::channel(UPDATE_QUEUE);
        let pace = Pace::default();
        let writer = |lane, queue| {
            let writer = Writer {
                peer,
                lane,
                commands: outlets.commands.clone(),
                traffic: Arc::clone(&traffic),
                pace: pace.clone(),
                buffers: outlets.buffers.clone(),
            };
            tokio::spawn(writer.run(queue))
        };
        let writers = vec![
            writer(Lane::Control, control_queue),
            writer(Lane::Update, update_queue),
        ];
        let requests = Arc::new(Semaphore::new(MAX_REQUESTS));
        let queues = Queues {
            control,
            update,
            requests,
            traffic: Arc::clone(&traffic),
            pace: pace.clone(),
        };
        let session = Self {
            instance,
            connections: vec![connection],
            ending: false,
            peer,
            outlets,
            traffic,
            gate: watch::Sender::new(false),
            control_readers: Vec::new(),
            update_readers: Vec::new(),
            writers,
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
            pace,
        };
        (session, queues)
    }

    /// The program knows of the connection now; messages may follow.
    pub(super) fn open_gate(&self) {
        self.gate.send_replace(true);
    }

    /// Takes a stream that the peer opened.
    pub(super) fn accept(&mut self, protocol: &StreamProtocol, stream: Stream) {
        if *protocol == REQUEST {
            return self.serve(stream);
        }
        let (lane, readers) = if *protocol == CONTROL {
            (Lane::Control, &mut self.control_readers)
        } else {
            (Lane::Update, &mut self.update_readers)
        };
        readers.retain(|reader| !reader.is_finished());
        if readers.len() >= MAX_READERS {
            tracing::debug!(peer = %self.peer.short(), ?lane, "too many streams from this peer; one is refused");
            return;
        }
        let reader = Reader {
            peer: self.peer,
            lane,
            outlets: self.outlets.clone(),
            gate: self.gate.subscribe(),
            traffic: Arc::clone(&self.traffic),
        };
        readers.push(tokio::spawn(reader.run(stream)));
    }

    fn serve(&self, stream: Stream) {
        let Ok(permit) = Arc::clone(&self.requests).try_acquire_owned() else {
            tracing::debug!(peer = %self.peer.short(), "too many requests from this peer at once; one is refused");
            return;
        };
        let (peer, events, traffic) = (
            self.peer,
            self.outlets.events.clone(),
            Arc::clone(&self.traffic),
        );
        let (mut gate, pace) = (self.gate.subscribe(), self.pace.clone());
        tokio::spawn(async move {
            if gate.wait_for(|open| *open).await.is_err() {
                return;
            }
            if let Err(error) = serve(peer, stream, events, &traffic, pace, permit).await {
                complain(peer, "request", &error, &traffic);
            }
        });
    }

    /// Ends the session after its last connection: what was received is passed on first. `done` is called then.
    pub(super) fn end(&mut self, done: impl Future<Output = ()> + Send + 'static) {
        self.ending = true;
        // A blocked update has nobody to come from any more; what is left of it is worth nothing.
        self.update_readers
            .drain(..)
            .for_each(|reader| reader.abort());
        let mut readers = std::mem::take(&mut self.control_readers);
        self.writers.drain(..).for_each(|writer| writer.abort());
        tokio::spawn(async move {
            let _ = timeout(LAST_WORDS, futures::future::join_all(&mut readers)).await;
            readers.iter().for_each(JoinHandle::abort);
            done.await;
        });
    }

    /// The writers; each ends once its queue is closed and sent.
    pub(super) fn take_writers(&mut self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut self.writers)
    }
}

struct Writer {
    peer: PeerId,
    lane: Lane,
    commands: mpsc::Sender<Command>,
    traffic: Arc<Traffic>,
    pace: Pace,
    buffers: Buffers,
}

impl Writer {
    async fn run(self, mut queue: mpsc::Receiver<Vec<u8>>) {
        while !queue.is_closed() || !queue.is_empty() {
            match open(&self.commands, self.peer, self.lane.protocol()).await {
                Ok(stream) => match self.feed(stream, &mut queue).await {
                    Ok(()) => return,
                    // At most once: whether the frame under way arrived is unknown, and applying a gradient twice is
                    // worse than losing it.
                    Err(error) => {
                        tracing::debug!(peer = %self.peer.short(), lane = ?self.lane, %error, "outgoing stream broke");
                    }
                },
                Err(error) => {
                    tracing::debug!(peer = %self.peer.short(), lane = ?self.lane, %error, "no outgoing stream yet");
                }
            }
            tokio::time::sleep(REOPEN).await;
        }
    }

    /// Writes until the queue is closed and empty (`Ok`) or the stream breaks.
    async fn feed(&self, stream: Stream, queue: &mut mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
        let (back, stream) = stream.split();
        match self.lane {
            Lane::Control => self.feed_messages(stream, back, queue).await,
            Lane::Update => self.feed_packets(stream, back, queue).await,
        }
    }

    /// Messages wait for nothing.
    async fn feed_messages(
        &self,
        mut stream: impl AsyncWrite + Unpin,
        mut back: impl AsyncRead + Unpin,
        queue: &mut mpsc::Receiver<Vec<u8>>,
    ) -> io::Result<()> {
        let mut byte = [0];
        // The peer never writes here; anything that comes is the end of the stream.
        let mut broken = std::pin::pin!(async move { back.read(&mut byte).await });
        loop {
            let body = tokio::select! {
                biased;
                end = &mut broken => return Err(end.err().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into())),
                body = queue.recv() => body,
            };
            let Some(body) = body else {
                stream.close().await?;
                // The reader closes its side once it has everything; closing the connection before that could lose it.
                let _ = broken.await;
                return Ok(());
            };
            frames::write(&mut stream, self.lane.kind(), &body).await?;
            self.traffic.count(Some(self.lane), Way::Out, body.len());
            if queue.is_empty() {
                stream.flush().await?;
            }
        }
    }

    /// Packets wait for their turn, piece by piece.
    async fn feed_packets(
        &self,
        stream: impl AsyncWrite + Unpin,
        back: impl AsyncRead + Unpin,
        queue: &mut mpsc::Receiver<Vec<u8>>,
    ) -> io::Result<()> {
        let mut sender = paced::Sender::new(stream, back, self.pace.clone(), Class::Update);
        loop {
            let body = tokio::select! {
                biased;
                ended = sender.acknowledged() => return Err(ended?),
                body = queue.recv() => body,
            };
            let Some(body) = body else {
                // As with messages: not before the reader has everything.
                return sender.close().await;
            };
            sender.write(self.lane.kind(), &body).await?;
            self.traffic.count(Some(self.lane), Way::Out, body.len());
            self.buffers.give(body);
        }
    }
}

struct Reader {
    peer: PeerId,
    lane: Lane,
    outlets: Outlets,
    gate: watch::Receiver<bool>,
    traffic: Arc<Traffic>,
}

impl Reader {
    async fn run(mut self, mut stream: Stream) {
        if self.gate.wait_for(|open| *open).await.is_err() {
            return;
        }
        let kind = self.lane.kind();
        loop {
            let body = match self.lane {
                Lane::Control => frames::read(&mut stream, kind, kind.bound()).await,
                Lane::Update => {
                    paced::read(&mut stream, kind, kind.bound(), &self.outlets.buffers).await
                }
            };
            match body {
                Ok(Some(body)) => {
                    self.traffic.count(Some(self.lane), Way::In, body.len());
                    if !self.pass_on(body).await {
                        return;
                    }
                }
                Ok(None) => {
                    // Tells the writer that all was read; if it is gone, nobody waits for that.
                    let _ = stream.close().await;
                    return;
                }
                Err(error) => return complain(self.peer, "stream", &error, &self.traffic),
            }
        }
    }

    async fn pass_on(&self, body: Vec<u8>) -> bool {
        let from = self.peer;
        match self.lane {
            Lane::Control => {
                let message = Event::Message { from, body };
                self.outlets.events.send(message).await.is_ok()
            }
            Lane::Update => {
                let arrived = Instant::now();
                let inbound = Inbound {
                    from,
                    arrived,
                    body,
                };
                self.outlets.updates.send(inbound).await.is_ok()
            }
        }
    }
}

async fn serve(
    peer: PeerId,
    mut stream: Stream,
    events: mpsc::Sender<Event>,
    traffic: &Traffic,
    pace: Pace,
    permit: OwnedSemaphorePermit,
) -> Result<(), ReadError> {
    let kind = FrameKind::Request;
    let read = frames::read(&mut stream, kind, kind.bound());
    let arrives = timeout(REQUEST_ARRIVES, read).await;
    let Some(body) = arrives.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? else {
        return Ok(());
    };
    traffic.count(None, Way::In, body.len());
    let (reply, response) = oneshot::channel();
    if events
        .send(Event::Request {
            from: peer,
            body,
            reply,
        })
        .await
        .is_err()
    {
        return Ok(());
    }
    // No answer: the stream is closed, and the other side told so by that.
    let Ok(Ok(response)) = timeout(RESPONSE_MADE, response).await else {
        return Ok(());
    };
    let (back, stream) = stream.split();
    let mut sender = paced::Sender::new(stream, back, pace, Class::Copy);
    sender.write(FrameKind::Response, &response).await?;
    // The next request may come as soon as the peer has read this one's response.
    drop(permit);
    // It closes the stream then; until then the response is on its way.
    sender.close().await?;
    traffic.count(None, Way::Out, response.len());
    Ok(())
}

/// Opens a stream on any connection of the peer's session.
pub(super) async fn open(
    commands: &mpsc::Sender<Command>,
    peer: PeerId,
    protocol: StreamProtocol,
) -> io::Result<Stream> {
    let (reply, opened) = oneshot::channel();
    let gone = || io::Error::from(io::ErrorKind::NotConnected);
    commands
        .send(Command::Open {
            peer,
            protocol,
            reply,
        })
        .await
        .map_err(|_| gone())?;
    opened.await.map_err(|_| gone())?
}

/// A refused frame is counted and named; a stream that just broke is nothing special.
fn complain(peer: PeerId, what: &str, error: &ReadError, traffic: &Traffic) {
    match error {
        ReadError::Io(error) => tracing::debug!(peer = %peer.short(), %error, "{what} broke"),
        error => {
            traffic.refuse();
            tracing::warn!(peer = %peer.short(), %error, "{what} closed: the peer sent what is not allowed");
        }
    }
}

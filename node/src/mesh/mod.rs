//! The node: one process of `skein up`. Owns the network, the list of jobs and the control socket, and passes events between them.
//!
//! ```text
//! net ─ events ─▶ Mesh ─ run::driver::Event ─▶ a job's driver
//! net ─ updates ─▶ packet router ─────────────▶ a job's coder (back-pressure stays on the update lanes)
//! control socket ─ Request ─▶ Mesh ─ Response ─▶
//! ```
//!
//! Jobs are passed on whole: to the mesh when they are submitted, and to every peer that connects.

mod key;
mod notices;
mod packets;
mod refusal;
mod requests;
mod signals;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use skein_gossip::ids::{JobId, PeerId};
use skein_gossip::message::{Message, StateRequest, StateResponse};
use skein_gossip::pipeline::message::Tier;
use skein_gossip::wire::codec;
use tokio::sync::{mpsc, oneshot, watch};

use key::{join_line, mesh_key};
use notices::{Notice, Notices};

use crate::cli::{CliError, Exit, Globals, UpArgs};
use crate::control::{Hex, Incoming, Server};
use crate::home::{Home, Remembered};
use crate::job::SignedJob;
use crate::net::{self, Identity, Lane, MeshKey, Net};
use crate::run::blobs::Blobs;
use crate::run::driver::{Event, JobContext};
use crate::run::folder::JobFolder;
use crate::run::{self, JobHandle, Packets};
use signals::Signals;

/// Threads of the event loop: the work is in the training and coder threads.
const WORKERS: usize = 2;
/// Jobs that one node knows; a further one is refused until a folder is removed.
const MAX_JOBS: usize = 256;
/// Requests from the command line that wait.
const REQUESTS: usize = 32;
/// How often the addresses of peers are written down.
const REMEMBER_EVERY: Duration = Duration::from_secs(30);
/// How soon after a peer was connected: the next power cut may come at any time.
const REMEMBER_SOON: Duration = Duration::from_secs(1);
/// Of two processes with one identity the newcomer ends: the one that met the other within this time of its start.
const NEWCOMER: Duration = Duration::from_secs(20);
/// How long leaving may take in all; then the process ends anyway.
const LEAVE_WITHIN: Duration = Duration::from_millis(1800);

/// Runs `skein up` to its end.
///
/// # Errors
/// In words for the user.
pub fn run_up(globals: &Globals, args: UpArgs) -> Result<Exit, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .map_err(|error| CliError::internal(format!("cannot start: {error}")))?;
    let home = globals.home()?;
    let outcome = runtime.block_on(up(home, args, Notices { json: globals.json }));
    // Threads that are in a long step end with the process.
    runtime.shutdown_background();
    outcome.map(|()| Exit::Ok).map_err(|error| CliError {
        exit: refusal::exit_of(&error),
        message: refusal::in_words(&error),
    })
}

/// Runs a node until it is told to leave.
///
/// # Errors
/// In words for the user: the home is in use, the token is wrong, no address to listen on.
async fn up(home: PathBuf, args: UpArgs, notices: Notices) -> Result<()> {
    let signals = Signals::listen()?;
    let private = refusal::private(args.data)?;
    let home = Home::open(Some(home))?;
    let identity = home.identity()?;
    let (mesh_key, peers, is_new) = mesh_key(&home, args.join.as_deref())?;
    if let Some(threads) = args.threads {
        skein_model::runtime::set_threads(usize::from(threads));
    }
    let remembered = home.remembered();
    let config = net::Config {
        identity: identity.clone(),
        mesh_key: mesh_key.clone(),
        listen: args.listen,
        last_port: remembered.port,
        peers: args.peer.into_iter().chain(peers).collect(),
        remembered: remembered.addresses,
        interfaces: args.interface,
        mdns: !args.no_mdns,
    };
    let started = net::start(config).await?;
    let (requests, incoming) = mpsc::channel(REQUESTS);
    let server = Server::bind(home.path(), requests).await?;
    let listening = started.net.listen_addresses().await;
    let addresses: Vec<SocketAddr> = listening
        .iter()
        .filter_map(|address| address.parse().ok())
        .collect();
    let join_line = join_line(&mesh_key, &addresses);
    notices.print(&Notice::Up {
        peer: Hex(started.net.local()),
        join_line: &join_line,
        is_new,
        listening: &listening,
    });
    let (jobs, routes) = watch::channel(BTreeMap::new());
    tokio::spawn(packets::route(started.updates, routes));
    let mut mesh = Mesh {
        net: started.net,
        identity,
        mesh_key,
        private,
        memory: args.memory.map_or(0, |memory| memory.0),
        tier: args.tier.map(Tier::from),
        draws: !args.no_data,
        jobs: BTreeMap::new(),
        routes: jobs,
        blobs: Blobs::default(),
        connected: Vec::new(),
        began: Instant::now(),
        port: remembered.port,
        home,
        notices,
    };
    mesh.resume();
    let outcome = mesh.drive(started.events, incoming, signals).await;
    drop(server);
    outcome
}

struct Mesh {
    net: Net,
    identity: Identity,
    mesh_key: MeshKey,
    private: BTreeMap<String, PathBuf>,
    /// Bytes that a job may use here; 0: no limit.
    memory: u64,
    /// Where this peer stands, if its user says so.
    tier: Option<Tier>,
    /// Whether samples are drawn here.
    draws: bool,
    jobs: BTreeMap<JobId, Job>,
    routes: watch::Sender<BTreeMap<JobId, Packets>>,
    blobs: Blobs,
    connected: Vec<PeerId>,
    began: Instant,
    /// The last port known to be listened on.
    port: Option<u16>,
    home: Home,
    notices: Notices,
}

struct Job {
    handle: JobHandle,
    /// As it travels.
    encoded: Vec<u8>,
    submitted_at_ms: u64,
}

impl Mesh {
    /// Takes up the jobs of the last run.
    fn resume(&mut self) {
        for signed in JobFolder::all(self.home.path()) {
            let id = signed.id();
            if let Err(error) = self.take(signed) {
                tracing::warn!(job = %id.short(), %error, "job is not taken up again");
            }
        }
    }

    async fn drive(
        &mut self,
        mut events: mpsc::Receiver<net::Event>,
        mut incoming: mpsc::Receiver<Incoming>,
        mut signals: Signals,
    ) -> Result<()> {
        let mut remember_at = Instant::now();
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(net::Event::DuplicateIdentity { address }) if self.began.elapsed() < NEWCOMER => {
                        self.leave().await;
                        bail!(
                            "another process uses this identity, at {address}: an identity belongs to one device. \
                             Remove {} on one of the two and start it again",
                            self.home.path().join("identity.key").display()
                        );
                    }
                    Some(event) => {
                        if matches!(event, net::Event::Connected { .. }) {
                            remember_at = remember_at.min(Instant::now() + REMEMBER_SOON);
                        }
                        self.on_net(event);
                    }
                    None => bail!("the network has ended"),
                },
                Some(incoming) = incoming.recv() => {
                    if self.on_request(incoming).await {
                        self.leave().await;
                        return Ok(());
                    }
                }
                () = tokio::time::sleep_until(remember_at.into()) => {
                    remember_at = Instant::now() + REMEMBER_EVERY;
                    self.remember().await;
                }
                () = signals.next() => break,
            }
        }
        eprintln!("leaving; again to end at once");
        tokio::select! {
            () = self.leave() => {}
            () = signals.next() => {}
        }
        Ok(())
    }

    fn on_net(&mut self, event: net::Event) {
        match event {
            net::Event::Connected { peer } => {
                if !self.connected.contains(&peer) {
                    self.connected.push(peer);
                }
                self.notices.print(&Notice::Connected {
                    peer: Hex(peer),
                    n_connected: self.connected.len(),
                });
                for job in self.jobs.values() {
                    self.tell(peer, &Message::Job(job.encoded.clone()));
                }
                self.to_all_jobs(|| Event::Connected(peer));
            }
            net::Event::Disconnected { peer } => {
                self.connected.retain(|connected| *connected != peer);
                self.notices.print(&Notice::Disconnected {
                    peer: Hex(peer),
                    n_connected: self.connected.len(),
                });
                self.to_all_jobs(|| Event::Disconnected(peer));
            }
            net::Event::Message { from, body } => match codec::decode::<Message>(&body) {
                Ok(message) => self.on_message(from, message),
                Err(error) => tracing::warn!(peer = %from.short(), %error, "message refused"),
            },
            net::Event::Published { from, data } => match codec::decode::<Message>(&data) {
                Ok(message @ Message::Job(_)) => self.on_message(from, message),
                Ok(_) => tracing::warn!(peer = %from.short(), "published something that is no job"),
                Err(error) => {
                    tracing::warn!(peer = %from.short(), %error, "published message refused")
                }
            },
            net::Event::Request { from, body, reply } => self.on_state_request(from, &body, reply),
            net::Event::ListenFailed { reason } => tracing::error!(reason, "no longer listening"),
            net::Event::DuplicateIdentity { address } => tracing::error!(
                address,
                "another process uses this identity and should end; this one was here before and goes on"
            ),
        }
    }

    fn on_message(&mut self, from: PeerId, message: Message) {
        let job = match &message {
            Message::Job(encoded) => return self.on_job(from, encoded),
            Message::Beat(job, _)
            | Message::View(job, _)
            | Message::Change(job, _)
            | Message::Leaving(job)
            | Message::Applied(job, _)
            | Message::Stop(job, _)
            | Message::Pipeline(job, _) => *job,
        };
        // An unknown job is on its way: its file was or will be sent. Beats repeat.
        if let Some(job) = self.jobs.get(&job) {
            to_job(&job.handle, Event::Message(from, message));
        }
    }

    fn on_job(&mut self, from: PeerId, encoded: &[u8]) {
        let signed = match SignedJob::decode(encoded) {
            Ok(signed) => signed,
            Err(error) => return tracing::warn!(peer = %from.short(), %error, "job refused"),
        };
        let id = signed.id();
        if !self.jobs.contains_key(&id)
            && let Err(error) = self.take(signed)
        {
            tracing::warn!(peer = %from.short(), job = %id.short(), %error, "job refused");
        }
    }

    /// Takes a job on: checks it, keeps it, starts its driver.
    fn take(&mut self, signed: SignedJob) -> Result<JobId> {
        let id = signed.id();
        if self.jobs.len() >= MAX_JOBS {
            bail!(
                "{MAX_JOBS} jobs are known here: remove old ones below {}",
                self.home.path().join("jobs").display()
            );
        }
        let file = signed.verify()?;
        let folder = JobFolder::create(self.home.path(), id, &signed).with_context(|| {
            format!(
                "cannot keep job {} below {}",
                id.short(),
                self.home.path().display()
            )
        })?;
        let is_over = folder.result().is_some();
        let context = JobContext {
            id,
            file,
            folder,
            net: self.net.clone(),
            instance: net::draw_instance(),
            private: self.private.clone(),
            blobs: self.blobs.clone(),
            memory: self.memory,
            tier: self.tier,
            draws: self.draws,
            connected: self.connected.clone(),
        };
        let handle = run::start(context);
        if !is_over {
            self.notice_of(&handle);
        }
        self.routes.send_modify(|routes| {
            routes.insert(id, handle.packets.clone());
        });
        let job = Job {
            handle,
            encoded: signed.encode(),
            submitted_at_ms: signed.submitted_at_ms,
        };
        self.jobs.insert(id, job);
        Ok(id)
    }

    /// Says that a job begins here, and later that it ended.
    fn notice_of(&self, handle: &JobHandle) {
        let (notices, mut status) = (self.notices, handle.status.clone());
        notices.print(&Notice::JobBegins(&status.borrow()));
        tokio::spawn(async move {
            // An error means that the node leaves first.
            if let Ok(last) = status.wait_for(|status| status.phase.is_final()).await {
                notices.print(&Notice::JobEnds(&last));
            }
        });
    }

    fn on_state_request(&mut self, from: PeerId, body: &[u8], reply: oneshot::Sender<Vec<u8>>) {
        let request = match codec::decode::<StateRequest>(body) {
            Ok(request) => request,
            Err(error) => return tracing::warn!(peer = %from.short(), %error, "request refused"),
        };
        let job = match request {
            StateRequest::Chunk { blob, index } => {
                let _ = reply.send(codec::encode(&self.blobs.chunk(blob, index)));
                return;
            }
            StateRequest::Replica { job, .. }
            | StateRequest::Weights { job, .. }
            | StateRequest::Blocks { job, .. } => job,
        };
        match self.jobs.get(&job) {
            Some(job) => to_job(&job.handle, Event::State(request, reply)),
            None => {
                let unknown = StateResponse::Unavailable("this peer does not know the job".into());
                let _ = reply.send(codec::encode(&unknown));
            }
        }
    }

    fn tell(&self, to: PeerId, message: &Message) {
        if let Err(error) = self.net.send(to, Lane::Control, codec::encode(message)) {
            tracing::debug!(peer = %to.short(), %error, "message not sent");
        }
    }

    fn to_all_jobs(&self, event: impl Fn() -> Event) {
        for job in self.jobs.values() {
            to_job(&job.handle, event());
        }
    }

    async fn remember(&mut self) {
        let listening = self.net.listen_addresses().await;
        let port = listening
            .iter()
            .find_map(|address| Some(address.parse::<SocketAddr>().ok()?.port()));
        // Without an interface there is none to tell, but next time there may be.
        self.port = port.or(self.port);
        let remembered = Remembered {
            addresses: self.net.address_book().await,
            port: self.port,
        };
        if let Err(error) = self.home.remember(remembered) {
            tracing::warn!(%error, "addresses of peers are not remembered");
        }
    }

    /// Tells the others, saves, ends; within [`LEAVE_WITHIN`].
    async fn leave(&mut self) {
        let leave = async {
            let mut left = Vec::new();
            for job in self.jobs.values() {
                let (reply, answer) = oneshot::channel();
                if job.handle.events.send(Event::Leave(reply)).await.is_ok() {
                    left.push(answer);
                }
            }
            self.remember().await;
            for answer in left {
                let _ = answer.await;
            }
            self.net.shutdown().await;
        };
        if tokio::time::timeout(LEAVE_WITHIN, leave).await.is_err() {
            tracing::warn!("not everything was saved in time; the last checkpoints count");
        }
    }
}

/// Events of a driver that is too busy are dropped: beats repeat, and connections are seen again with the next beat.
fn to_job(job: &JobHandle, event: Event) {
    if let Err(error) = job.events.try_send(event) {
        tracing::debug!(job = %job.id.short(), %error, "event dropped");
    }
}

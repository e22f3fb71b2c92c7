//! The node: one process of `skein up`. Owns the network, the list of jobs and the control socket, and passes events between them.
//!
//! ```text
//! net ─ events ─▶ Mesh ─ run::driver::Event ─▶ a job's driver
//! net ─ updates ─▶ packet router ─────────────▶ a job's coder (back-pressure stays on the update lanes)
//! control socket ─ Request ─▶ Mesh ─ Response ─▶
//! ```
//!
//! Jobs are passed on whole: to the mesh when they are submitted, and to every peer that connects.

mod requests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use skein_gossip::exchange;
use skein_gossip::ids::{JobId, PeerId};
use skein_gossip::message::{Message, StateRequest, StateResponse};
use skein_gossip::wire::codec;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

use crate::cli::{CliError, Exit, Globals, UpArgs};
use crate::control::{Incoming, Server};
use crate::home::{Home, HomeError};
use crate::job::SignedJob;
use crate::net::{self, Identity, Lane, MeshKey, Net};
use crate::run::blobs::Blobs;
use crate::run::coder;
use crate::run::driver::{Event, JobContext};
use crate::run::folder::JobFolder;
use crate::run::{self, JobHandle};
use crate::token::Token;

/// Threads of the event loop: the work is in the training and coder threads.
const WORKERS: usize = 2;
/// Jobs that one node knows; a further one is refused until a folder is removed.
const MAX_JOBS: usize = 256;
/// Requests from the command line that wait.
const REQUESTS: usize = 32;
/// How often the addresses of peers are written down.
const REMEMBER_EVERY: Duration = Duration::from_secs(30);
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
    let outcome = runtime.block_on(up(home, args));
    // Threads that are in a long step end with the process.
    runtime.shutdown_background();
    outcome.map(|()| Exit::Ok).map_err(|error| {
        error
            .downcast::<CliError>()
            .unwrap_or_else(|error| CliError::internal(format!("{error:#}")))
    })
}

/// Runs a node until it is told to leave.
///
/// # Errors
/// In words for the user: the home is in use, the token is wrong, no address to listen on.
async fn up(home: PathBuf, args: UpArgs) -> Result<()> {
    let home = Home::open(Some(home)).map_err(|error| match error {
        HomeError::InUse { .. } => CliError::refused(error.to_string()).into(),
        error => anyhow::Error::from(error),
    })?;
    let identity = home.identity()?;
    let (mesh_key, peers, is_new) = mesh_key(&home, args.join.as_deref())?;
    if let Some(threads) = args.threads {
        skein_model::runtime::set_threads(usize::from(threads));
    }
    let config = net::Config {
        identity: identity.clone(),
        mesh_key: mesh_key.clone(),
        listen: args.listen,
        peers: args.peer.into_iter().chain(peers).collect(),
        remembered: home.remembered(),
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
    let token = Token::new(mesh_key.clone(), &addresses);
    let join_line = format!("skein up --join {token}");
    if is_new {
        println!("a new mesh; others join it with");
    }
    println!("{join_line}");
    let (jobs, routes) = watch::channel(BTreeMap::new());
    tokio::spawn(route_packets(started.updates, routes));
    let mut mesh = Mesh {
        net: started.net,
        identity,
        mesh_key,
        join_line,
        private: args
            .data
            .into_iter()
            .map(|data| (data.name, data.path))
            .collect(),
        jobs: BTreeMap::new(),
        routes: jobs,
        blobs: Blobs::default(),
        connected: Vec::new(),
        began: Instant::now(),
        home,
    };
    mesh.resume();
    let outcome = mesh.drive(started.events, incoming).await;
    drop(server);
    outcome
}

/// The key of the mesh: the token's, the one kept, or a new one. With the token come addresses to try.
fn mesh_key(home: &Home, join: Option<&str>) -> Result<(MeshKey, Vec<String>, bool)> {
    let kept = home.mesh_key()?;
    let Some(text) = join else {
        if let Some(key) = kept {
            return Ok((key, Vec::new(), false));
        }
        let key = MeshKey::generate();
        home.save_mesh_key(&key)?;
        return Ok((key, Vec::new(), true));
    };
    let token = Token::parse(text).map_err(|error| {
        CliError::usage(format!("the token after --join cannot be used: {error}"))
    })?;
    let key = token.mesh_key().clone();
    if kept.is_some_and(|kept| kept != key) {
        let (home, key) = (home.path().display(), home.path().join("mesh.key"));
        let key = key.display();
        return Err(CliError::usage(format!(
            "{home} already belongs to another mesh than this token's: use another --home, or remove {key}"
        ))
        .into());
    }
    home.save_mesh_key(&key)?;
    Ok((
        key,
        token.addresses().iter().map(ToString::to_string).collect(),
        false,
    ))
}

/// Hands update packets to the coders of their jobs. A coder that is behind holds up the update lanes, and only them.
async fn route_packets(
    mut updates: mpsc::Receiver<net::Inbound>,
    routes: watch::Receiver<BTreeMap<JobId, mpsc::Sender<coder::Input>>>,
) {
    while let Some(net::Inbound { from, body }) = updates.recv().await {
        let job = match exchange::split(&body) {
            Ok((header, _)) => header.job,
            Err(reason) => {
                tracing::warn!(peer = %from.short(), reason, "update packet refused");
                continue;
            }
        };
        let route = routes.borrow().get(&job).cloned();
        if let Some(route) = route {
            // A closed route is a job that has ended here.
            let _ = route.send(coder::Input::Packet { from, bytes: body }).await;
        }
    }
}

struct Mesh {
    net: Net,
    identity: Identity,
    mesh_key: MeshKey,
    join_line: String,
    private: BTreeMap<String, PathBuf>,
    jobs: BTreeMap<JobId, Job>,
    routes: watch::Sender<BTreeMap<JobId, mpsc::Sender<coder::Input>>>,
    blobs: Blobs,
    connected: Vec<PeerId>,
    began: Instant,
    home: Home,
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
    ) -> Result<()> {
        let mut remember = tokio::time::interval(REMEMBER_EVERY);
        // Made once: a signal that arrives between two rounds of the loop must not be lost.
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(net::Event::DuplicateIdentity { address }) => {
                        self.leave().await;
                        bail!(
                            "another process uses this identity, at {address}: an identity belongs to one device. \
                             Remove {} on one of the two and start it again",
                            self.home.path().join("identity.key").display()
                        );
                    }
                    Some(event) => self.on_net(event),
                    None => bail!("the network has ended"),
                },
                Some(incoming) = incoming.recv() => {
                    if self.on_request(incoming).await {
                        self.leave().await;
                        return Ok(());
                    }
                }
                _ = remember.tick() => self.remember().await,
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
            }
        }
        eprintln!("leaving; again to end at once");
        tokio::select! {
            () = self.leave() => {}
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Ok(())
    }

    fn on_net(&mut self, event: net::Event) {
        match event {
            net::Event::Connected { peer } => {
                tracing::info!(peer = %peer.short(), "connected");
                if !self.connected.contains(&peer) {
                    self.connected.push(peer);
                }
                for job in self.jobs.values() {
                    self.tell(peer, &Message::Job(job.encoded.clone()));
                }
                self.to_all_jobs(|| Event::Connected(peer));
            }
            net::Event::Disconnected { peer } => {
                tracing::info!(peer = %peer.short(), "disconnected");
                self.connected.retain(|connected| *connected != peer);
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
            net::Event::DuplicateIdentity { .. } => {}
        }
    }

    fn on_message(&mut self, from: PeerId, message: Message) {
        let job = match &message {
            Message::Job(encoded) => return self.on_job(from, encoded),
            Message::Beat(job, _)
            | Message::View(job, _)
            | Message::Leaving(job)
            | Message::Applied(job, _)
            | Message::Stop(job, _) => *job,
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
        tracing::info!(job = %id.short(), name = file.name, "job taken on");
        let context = JobContext {
            id,
            file,
            folder,
            net: self.net.clone(),
            instance: net::draw_instance(),
            private: self.private.clone(),
            blobs: self.blobs.clone(),
            connected: self.connected.clone(),
        };
        let handle = run::start(context);
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
            StateRequest::Replica { job, .. } | StateRequest::Weights { job, .. } => job,
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

    async fn remember(&self) {
        if let Err(error) = self.home.remember(self.net.address_book().await) {
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

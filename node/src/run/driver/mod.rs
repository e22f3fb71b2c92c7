//! The driver of one job on this peer: joins the agreement (`skein_gossip`), the training thread, the coder and the network.
//!
//! It decides nothing itself: events go into [`Agreement`], and what comes out of it is carried out here. State copies,
//! evaluation and disk work run elsewhere and report back as `Done`, so that beats are never late.

mod events;
mod fetching;
mod learning;
mod orders;
mod training;

pub(super) use events::Done;
pub use events::Event;
use events::{Fetching, Order};

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use skein_gossip::agreement::{self, Agreement, Input};
use skein_gossip::batching::power::Power;
use skein_gossip::guide::Guide;
use skein_gossip::ids::{Digest, JobId, PeerId};
use skein_gossip::message::{Candidate, Message, Pace};
use skein_gossip::pipeline::message::Tier;
use skein_gossip::time::Tick;
use skein_gossip::view::Holding;
use skein_gossip::wire::codec;
use skein_model::snapshot::Snapshot;
use tokio::sync::{mpsc, watch};

use super::blobs::Blobs;
use super::coder;
use super::folder::JobFolder;
use super::journal::{Entry, Journal};
use super::prepare::Prepared;
use super::serve::{self};
use super::status::Figures;
use super::threads::{self, Threads};
use super::trainer::{self, Command};
use crate::control::JobStatus;
use crate::job::JobFile;
use crate::net::{Lane, Net};

/// Events that wait for the driver of a job. A beat more or less does not matter: when it is full, beats are dropped.
pub const EVENTS: usize = 256;
/// How long a fetch that failed waits before the next try.
const RETRY_AFTER: Duration = Duration::from_millis(300);

/// How often the journal says how links and batches stand.
pub const PACE_EVERY: Duration = Duration::from_secs(2);

/// What the driver needs to begin.
#[derive(Debug)]
pub struct JobContext {
    /// The job.
    pub id: JobId,
    /// Its file.
    pub file: JobFile,
    /// Its folder.
    pub folder: JobFolder,
    /// The network.
    pub net: Net,
    /// A number that this process drew.
    pub instance: u64,
    /// Private data of this peer by name.
    pub private: BTreeMap<String, PathBuf>,
    /// What is served to others.
    pub blobs: Blobs,
    /// Bytes that the job may use on this device; 0: no limit.
    pub memory: u64,
    /// Where this peer stands, if its user says so.
    pub tier: Option<Tier>,
    /// Whether samples are drawn here.
    pub draws: bool,
    /// Peers connected now.
    pub connected: Vec<PeerId>,
}

pub(super) struct Driver {
    pub(super) context: JobContext,
    pub(super) agreement: Agreement,
    started: Instant,
    pub(super) journal: Journal,
    pub(super) figures: Figures,
    pub(super) threads: Option<Threads>,
    coder_inputs: Option<mpsc::Receiver<coder::Input>>,
    pub(super) coder: mpsc::Sender<coder::Input>,
    pub(super) done: mpsc::Sender<Done>,
    orders: VecDeque<Order>,
    status: watch::Sender<JobStatus>,
    status_sent: Instant,
    fetching: Fetching,
    retry_at: Option<Instant>,
    guide: Guide,
    power: Power,
    pub(super) pace: Pace,
    pace_written: Instant,
    /// Whose replica is fetched to learn from.
    learning: Option<PeerId>,
    /// Samples of the losing side of a partition that this replica holds and the others do not.
    pub(super) unmerged: u64,
    /// Hash of the weights that the job starts from, where they were given here.
    given: Option<Digest>,
    /// The weights that this peer offers. Kept until the end, whatever was decided meanwhile: another decision may be for them.
    offered: Option<(Digest, Snapshot)>,
    /// The decided weights, fetched from another peer.
    fetched: Option<(Digest, Snapshot)>,
    /// Why this peer has no model to offer.
    no_candidate: Option<String>,
    last_checkpoint: (Instant, u64),
    saving: bool,
    pub(super) reason: String,
    closed: bool,
}

/// Runs a job until the node leaves or drops `events`; a closed job stays, to tell latecomers.
pub(super) async fn run(
    context: JobContext,
    mut events: mpsc::Receiver<Event>,
    coder: (mpsc::Sender<coder::Input>, mpsc::Receiver<coder::Input>),
    status: watch::Sender<JobStatus>,
) {
    let started = Instant::now();
    let config = context.file.agreement();
    let guide = Guide::new(
        context.file.strategy.guide(),
        context.net.local(),
        context.file.seed,
        Tick(0),
    );
    let mut agreement = Agreement::new(config, context.net.local(), context.instance, Tick(0));
    let mut figures = Figures::new(&context.file);
    let (done, mut dones) = mpsc::channel(8);
    let result = context.folder.result();
    let closed = result.is_some();
    match result {
        Some(result) => {
            agreement = agreement.closed_before(result.reason.clone(), result.decision());
            figures.closed_before(result);
        }
        None => threads::prepare(&context, done.clone()),
    }
    let mut driver = Driver {
        journal: Journal::open(&context.folder.journal()),
        figures,
        agreement,
        started,
        threads: None,
        coder: coder.0,
        coder_inputs: Some(coder.1),
        done,
        orders: VecDeque::new(),
        status,
        status_sent: started,
        fetching: Fetching::Nothing,
        retry_at: None,
        guide,
        power: Power::new(),
        pace: Pace::default(),
        pace_written: started,
        learning: None,
        unmerged: 0,
        given: None,
        offered: None,
        fetched: None,
        no_candidate: None,
        last_checkpoint: (started, 0),
        saving: false,
        reason: String::new(),
        closed,
        context,
    };
    for peer in driver.context.connected.clone() {
        driver.input(Input::Connected(peer));
    }
    let mut second = tokio::time::interval(Duration::from_millis(500));
    second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let wakeup = driver.started + Duration::from_micros(driver.agreement.next_wakeup().0);
        let trained = async {
            match &mut driver.threads {
                Some(threads) => threads.events.recv().await,
                None => std::future::pending().await,
            }
        };
        let mut after_a_step = false;
        tokio::select! {
            event = events.recv() => match event {
                Some(Event::Leave(reply)) => {
                    driver.leave().await;
                    let _ = reply.send(());
                    return;
                }
                Some(event) => driver.on_event(event),
                None => return,
            },
            Some(done) = dones.recv() => driver.on_done(done),
            event = trained => match event {
                Some(event) => {
                    after_a_step = matches!(event, trainer::Event::Step { .. });
                    driver.on_trained(event);
                }
                None => driver.threads = None,
            },
            _ = second.tick() => driver.every_half_second(),
            () = tokio::time::sleep_until(wakeup.into()) => driver.input(Input::Tick),
        }
        driver.carry_out(after_a_step);
        driver.give_orders();
    }
}

/// What a job shows before anything has happened.
pub(super) fn first_status(context: &JobContext) -> JobStatus {
    let config = agreement::Config::new(1, context.file.train.batch);
    let agreement = Agreement::new(config, context.net.local(), context.instance, Tick(0));
    Figures::new(&context.file).status(context, &agreement, "")
}

impl Driver {
    pub(super) fn now(&self) -> Tick {
        Tick(self.started.elapsed().as_micros() as u64)
    }

    pub(super) fn input(&mut self, input: Input) {
        let now = self.now();
        self.agreement.handle(now, input);
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Connected(peer) => {
                self.input(Input::Connected(peer));
                self.tell_coder(coder::Input::Reconnected(peer));
            }
            Event::Disconnected(peer) => self.input(Input::Disconnected(peer)),
            Event::Message(from, message) => match message {
                Message::Beat(_, beat) => self.input(Input::Beat(from, beat)),
                Message::View(_, view) => self.input(Input::View(from, view)),
                Message::Change(_, change) => self.input(Input::Change(from, change)),
                Message::Leaving(_) => self.input(Input::Leaving(from)),
                Message::Applied(_, receipt) => {
                    self.tell_coder(coder::Input::Applied { from, receipt });
                }
                Message::Stop(_, reason) => self.input(Input::StopHolds(reason)),
                // A pipeline's message is of no use to a job that exchanges updates.
                Message::Job(_) | Message::Pipeline(..) => {}
            },
            Event::State(request, reply) => serve::state(self, request, reply),
            Event::Ask(question) => serve::question(self, question),
            Event::Stop(reason) => {
                // Also from a peer that does not train itself.
                let peers: Vec<PeerId> = self.agreement.heard().keys().copied().collect();
                for peer in peers {
                    self.send(peer, &Message::Stop(self.context.id, reason.clone()));
                }
                self.input(Input::StopHolds(reason));
            }
            Event::Leave(_) => {}
        }
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Prepared(Ok(prepared)) => self.on_prepared(*prepared),
            Done::Prepared(Err(reason)) => {
                tracing::warn!(job = %self.context.id.short(), reason, "this peer cannot take part");
                self.fail(reason);
            }
            Done::Fetched(outcome, took) => self.on_fetched(outcome, took),
            Done::Taught(from, outcome) => self.on_taught(from, outcome),
            Done::Learnt(from, lesson) => self.on_learnt(from, lesson),
            Done::Restored {
                step,
                donors,
                bytes,
                took,
                outcome,
            } => match outcome {
                Ok(share) => {
                    let samples = std::mem::take(&mut self.unmerged);
                    if let Some(share) = share {
                        self.journal.write(&Entry::Merged { samples, share });
                    }
                    let donors = donors.iter().map(PeerId::short).collect();
                    self.journal.write(&Entry::Synced {
                        donors,
                        step,
                        bytes,
                        seconds: took.as_secs_f64(),
                    });
                    self.figures.step = step;
                    // The end may have come meanwhile, and what is fetched now may be its weights.
                    if matches!(self.fetching, Fetching::Replica { .. }) {
                        self.fetching = Fetching::Nothing;
                    }
                    self.input(Input::Synced { step });
                }
                Err(reason) => {
                    self.journal
                        .write(&Entry::FetchFailed { reasons: &[reason] });
                    self.retry_at = Some(Instant::now() + RETRY_AFTER);
                }
            },
            // It took so long that the others went on without it: the agreed weights are what is kept.
            Done::Candidate(_) if self.closed || self.fetched.is_some() => {}
            Done::Candidate(Ok((step, evaluation, snapshot))) => {
                let digest = Digest(snapshot.weights_hash());
                self.offered = Some((digest, *snapshot));
                self.figures.evaluated(step, &evaluation);
                if let Some(threads) = &self.threads {
                    // The last packets count in the report too.
                    self.figures.links(&threads.report.borrow());
                    self.tell_progress();
                }
                let (accuracy, loss) = (evaluation.accuracy as f32, evaluation.loss as f32);
                self.input(Input::Evaluated(Candidate {
                    accuracy,
                    loss,
                    digest,
                    step,
                }));
            }
            Done::Candidate(Err(reason)) => {
                // Nothing to offer, but the others must not wait for it.
                tracing::warn!(job = %self.context.id.short(), reason, "no candidate");
                self.no_candidate = Some(reason);
                self.input(Input::NoCandidate);
            }
            Done::Saved(outcome) => {
                self.saving = false;
                match outcome {
                    Ok(step) => self.journal.write(&Entry::Checkpoint { step }),
                    Err(reason) => {
                        tracing::error!(job = %self.context.id.short(), reason, "checkpoint not written");
                        self.journal
                            .write(&Entry::CheckpointFailed { reason: &reason });
                    }
                }
            }
        }
    }

    fn on_prepared(&mut self, prepared: Prepared) {
        let holding = prepared.holding;
        let is_given = self.context.file.start.is_given() && holding.step == 0;
        self.given = Some(holding.digest).filter(|_| is_given && holding != Holding::NOTHING);
        self.journal.write(&Entry::Opened {
            peer: self.context.net.local().to_string(),
            name: &self.context.file.name,
            step: holding.step,
            samples: holding.samples,
            digest: holding.digest.to_string(),
            skipped_checkpoints: &prepared.skipped,
        });
        self.figures.prepared(&prepared);
        self.agreement
            .set_train_samples(prepared.data.train.len() as u64);
        self.last_checkpoint = (Instant::now(), holding.step);
        let Some(inputs) = self.coder_inputs.take() else {
            return;
        };
        match threads::start(
            &self.context,
            prepared,
            self.coder.clone(),
            inputs,
            self.started,
        ) {
            Ok(threads) => {
                self.threads = Some(threads);
                self.input(Input::Prepared(holding));
                // The end may have been heard of meanwhile.
                self.try_fetch();
            }
            Err(reason) => self.fail(reason),
        }
    }

    /// This peer cannot go on with the job.
    pub(super) fn fail(&mut self, reason: String) {
        self.journal.write(&Entry::Failed { reason: &reason });
        self.figures.failure = Some(reason.clone());
        self.input(Input::Unable(reason));
    }

    pub(super) fn send(&self, to: PeerId, message: &Message) {
        if let Err(error) = self
            .context
            .net
            .send(to, Lane::Control, codec::encode(message))
        {
            tracing::debug!(peer = %to.short(), %error, "message not sent; the next beat says it again");
        }
    }

    pub(super) fn tell_trainer(&self, command: Command) {
        let Some(threads) = &self.threads else { return };
        if let Err(error) = threads.commands.try_send(command) {
            tracing::error!(job = %self.context.id.short(), %error, "the training thread does not listen");
        }
    }

    /// Tells the coder something, in order; while it is busy with packets, what it must know waits here.
    fn tell_coder(&mut self, input: coder::Input) {
        if self.orders.is_empty() || !matches!(input, coder::Input::Tick) {
            self.orders.push_back(Order::Coder(input));
        }
        self.give_orders();
    }

    fn give_orders(&mut self) {
        while let Some(order) = self.orders.pop_front() {
            match order {
                Order::Train => self.tell_trainer(Command::Train),
                Order::Coder(input) => {
                    if let Err(mpsc::error::TrySendError::Full(input)) = self.coder.try_send(input)
                    {
                        self.orders.push_front(Order::Coder(input));
                        return;
                    }
                }
            }
        }
    }
}

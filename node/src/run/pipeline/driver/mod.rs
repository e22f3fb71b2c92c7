//! The driver of a pipeline job on this peer: joins the agreement, the stage's thread, the copies and the network.
//!
//! It decides nothing itself. Loading, measuring, fetching, packing and disk work run elsewhere and report back as [`Done`], so
//! that beats are never late.

mod beginning;
mod fetching;
mod keeping;
mod latecomers;
mod outputs;
mod reporting;
mod standby;
mod working;

pub(super) use reporting::first_status;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_gossip::ids::{Digest, PeerId};
use skein_gossip::message::{self, StateRequest, StateResponse};
use skein_gossip::pipeline::agreement::{Agreement, Input, Want};
use skein_gossip::pipeline::message::{DataShape, Message, View};
use skein_gossip::time::Tick;
use skein_gossip::view::Stamp;
use skein_gossip::wire::codec;
use skein_model::data::Splits;
use skein_model::plan::Profile;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::disk::{Lines, State};
use super::facts::Facts;
use super::figures::Figures;
use super::planner::CutPlanner;
use super::prepare::{Loaded, Prepared};
use super::store::Copies;
use super::worker::{self, Command};
use crate::control::JobStatus;
use crate::net::Inbound;
use crate::net::Lane;
use crate::run::driver::{Event, JobContext};
use crate::run::journal::{Entry, Journal};

/// Slow work that has come back.
pub(super) enum Done {
    Loaded(Loaded),
    Prepared(Result<Box<Prepared>, String>),
    /// What the links carry is known, where it can be.
    Probed(Box<Prepared>),
    /// With how often work had been undone when it was asked for.
    Fetched(Want, u64, Result<Vec<(u16, State)>, Lack>),
    /// A copy is on disk: fetched to there, or put there. Work had been undone so often when that began.
    OnDisk {
        step: u64,
        block: u16,
        path: PathBuf,
        undone: u64,
    },
    /// What could be put to disk of the copies at rest is there.
    Rested(Result<(), String>),
    Saved(Result<u64, String>),
    Finished(Result<Digest, String>),
    /// The finished model of a job that was over before this peer came.
    CameLate(Digest, Result<(), String>),
    Measured(Result<Profile, String>),
}

/// Why copies are not here.
pub(super) enum Lack {
    /// No holder gave them.
    Holders(String),
    /// The disk did not take them.
    Disk(String),
}

/// A job that this peer takes part in.
pub(super) struct Running {
    pub(super) agreement: Agreement,
    pub(super) facts: Arc<Facts>,
    pub(super) planner: CutPlanner,
    pub(super) copies: Copies,
    commands: mpsc::Sender<Command>,
    /// Commands that the thread has no room for yet; a handful per view.
    orders: VecDeque<Command>,
    events: mpsc::Receiver<worker::Event>,
    /// Hash of the weights that the job starts from, where they are given here.
    weights: Option<Digest>,
    lines: Lines,
    /// Blocks that are fetched to disk, one at a time.
    one_block: Arc<Semaphore>,
    /// Older lines of which copies are held.
    held_longer: Vec<u64>,
    /// The line that is fetched to disk, or was last.
    to_disk: Option<u64>,
    /// Copies at rest are being put to disk.
    resting: bool,
    /// Whether the disk takes whole lines, and when that was looked at.
    room: Option<(Instant, bool)>,
    /// When the newest line on disk was begun, and which; the newest that is whole there.
    saved: (Instant, u64),
    on_disk: u64,
    saving: bool,
    standby: standby::Standby,
    /// The thread is gone.
    ended: bool,
    /// How often work was undone that is made again differently.
    undone: u64,
    /// Step and first block of copies that could not be had as a change against those held.
    distrusted: Option<(u64, u16)>,
}

impl Running {
    /// Whether a step that is made again is the same.
    fn is_exact(&self) -> bool {
        self.facts.is_exact()
    }

    /// Work is halted for `view`: drops the copies that are no part of it any more.
    fn undo(&mut self, view: &View) {
        if !self.is_exact() && view.after.is_none() {
            self.copies.undo(view.from);
            self.saved.1 = self.saved.1.min(view.from);
            self.on_disk = self.on_disk.min(view.from);
            self.to_disk = self.to_disk.filter(|step| *step <= view.from);
            self.undone += 1;
        }
    }

    /// Whether lines made in the view `made` are lines of the job.
    fn counts(&self, made: Stamp) -> bool {
        let counts = |view: &Arc<View>| view.stamp == made || view.after == Some(made);
        self.is_exact() || self.agreement.view().is_some_and(counts)
    }
}

pub(super) struct Driver {
    pub(super) context: JobContext,
    started: Instant,
    pub(super) journal: Journal,
    pub(super) figures: Figures,
    pub(super) running: Option<Running>,
    /// Until the job runs: the data, peers that are connected, frames for the stage.
    data: Option<Arc<Splits>>,
    shape: Option<DataShape>,
    /// Whether it is known if there is data.
    loaded: bool,
    preparing: bool,
    connected: Vec<PeerId>,
    frames: Option<mpsc::Receiver<Inbound>>,
    done: mpsc::Sender<Done>,
    status: watch::Sender<JobStatus>,
    status_sent: Instant,
    /// For which view its plan was priced, and when.
    priced: Option<(Option<Stamp>, Instant)>,
    late: latecomers::Late,
    closed: bool,
}

/// Runs a job until the node leaves; a closed job stays, to tell latecomers.
pub(super) async fn run(
    context: JobContext,
    mut events: mpsc::Receiver<Event>,
    frames: mpsc::Receiver<Inbound>,
    status: watch::Sender<JobStatus>,
) {
    let (done, mut dones) = mpsc::channel(16);
    let result = context.folder.result();
    let started = Instant::now();
    let mut driver = Driver {
        journal: Journal::open(&context.folder.journal()),
        figures: Figures::new(&context.file),
        started,
        running: None,
        data: None,
        shape: None,
        loaded: false,
        preparing: false,
        connected: context.connected.clone(),
        frames: Some(frames),
        done,
        status,
        status_sent: started,
        priced: None,
        late: latecomers::Late::default(),
        closed: result.is_some(),
        context,
    };
    match result {
        Some(result) => driver.figures.closed_before(result),
        None => driver.load(),
    }
    let mut second = tokio::time::interval(Duration::from_millis(500));
    second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let wakeup = match &driver.running {
            Some(running) => started + Duration::from_micros(running.agreement.next_wakeup().0),
            None => Instant::now() + Duration::from_secs(1),
        };
        let worked = async {
            match &mut driver.running {
                Some(running) if !running.ended => running.events.recv().await,
                _ => std::future::pending().await,
            }
        };
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
            event = worked => match event {
                Some(event) => driver.on_worked(event),
                None => driver.work_ended(),
            },
            _ = second.tick() => driver.every_half_second(),
            () = tokio::time::sleep_until(wakeup.into()) => driver.input(Input::Tick),
        }
        driver.carry_out();
        driver.tell_status();
    }
}

impl Driver {
    fn now(&self) -> Tick {
        Tick(self.started.elapsed().as_micros() as u64)
    }

    pub(super) fn input(&mut self, input: Input) {
        let now = self.now();
        if let Some(running) = &mut self.running {
            running.agreement.handle(now, input);
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Connected(peer) => {
                self.connected.push(peer);
                self.input(Input::Connected(peer));
                self.probe_newcomer(peer);
                self.tell_over(peer);
            }
            Event::Disconnected(peer) => {
                self.connected.retain(|connected| *connected != peer);
                self.lost_holder(peer);
                self.input(Input::Disconnected(peer));
            }
            Event::Message(from, message) => match message {
                message::Message::Pipeline(_, message) => self.on_message(from, message),
                message::Message::Leaving(_) => self.input(Input::Leaving(from)),
                message::Message::Stop(_, reason) => self.input(Input::StopHolds(reason)),
                // Of a job that exchanges; this one is none.
                _ => {}
            },
            Event::State(request, reply) => self.serve(request, reply),
            Event::Ask(question) => super::finish::question(self, question),
            Event::Stop(reason) => {
                let stop = message::Message::Stop(self.context.id, reason.clone());
                for peer in self.connected.clone() {
                    self.send(peer, &stop);
                }
                self.input(Input::StopHolds(reason));
            }
            Event::Leave(_) => {}
        }
    }

    fn on_message(&mut self, from: PeerId, message: Message) {
        match message {
            Message::Beat(beat) => {
                self.tell_over_if_it_works(from, &beat);
                self.input(Input::Beat(from, beat));
            }
            Message::View(view) => self.input(Input::View(from, view)),
            Message::Profile(profile) => {
                if let (None, Some(shape)) = (&self.shape, &profile.data) {
                    self.shape = Some(shape.clone());
                    self.prepare();
                }
                self.input(Input::Profile(from, profile));
            }
            Message::Over(over) => self.on_over(from, over),
        }
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Loaded(loaded) => {
                self.loaded = true;
                if let Some(reason) = &loaded.reason {
                    let job = self.context.id.short();
                    tracing::warn!(%job, reason, "no data here; this peer can host every stage but the first");
                }
                self.figures.no_data = loaded.reason;
                self.data = loaded.data;
                self.shape = loaded.shape.or(self.shape.take());
                self.prepare();
            }
            Done::Prepared(Ok(prepared)) => self.probe(prepared),
            Done::Probed(prepared) => self.begin(*prepared),
            Done::Prepared(Err(reason)) => self.fail(reason),
            Done::Fetched(want, undone, outcome) => self.on_fetched(want, undone, outcome),
            Done::OnDisk {
                step,
                block,
                path,
                undone,
            } => self.on_disk(step, block, path, undone),
            Done::Rested(outcome) => self.on_rested(outcome),
            Done::Saved(outcome) => self.on_saved(outcome),
            Done::Measured(measured) => self.on_measured(measured),
            Done::Finished(Ok(digest)) => {
                self.figures.finished(digest);
                self.input(Input::Finished(digest));
            }
            Done::Finished(Err(reason)) => self.fail(reason),
            Done::CameLate(digest, adopted) => self.on_came_late(digest, adopted),
        }
    }

    fn work_ended(&mut self) {
        if let Some(running) = &mut self.running {
            running.ended = true;
        }
        if !self.closed {
            self.fail("the stage's thread has ended".into());
        }
    }

    /// Where slow work reports back.
    pub(super) fn done(&self) -> mpsc::Sender<Done> {
        self.done.clone()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// The job is over: the thread ends, memory is given back.
    pub(super) fn end_work(&mut self) {
        self.closed = true;
        if let Some(running) = &mut self.running {
            running.copies.forget(u64::MAX, &[]);
            let (lines, job) = (running.lines.clone(), self.context.id);
            tokio::task::spawn_blocking(move || {
                if let Err(error) = lines.prune(u64::MAX, &[]) {
                    tracing::warn!(job = %job.short(), %error, "copies of a job that is over are left on disk");
                }
            });
            if running.commands.try_send(Command::End).is_err() {
                tracing::debug!("the stage's thread is busy; it ends with the process");
            }
        }
    }

    pub(super) fn send(&self, to: PeerId, message: &message::Message) {
        if let Err(error) = self
            .context
            .net
            .send(to, Lane::Control, codec::encode(message))
        {
            tracing::debug!(peer = %to.short(), %error, "message not sent");
        }
    }

    pub(super) fn fail(&mut self, reason: String) {
        tracing::warn!(job = %self.context.id.short(), reason, "this peer cannot go on");
        self.journal.write(&Entry::Failed { reason: &reason });
        self.figures.failure = Some(reason.clone());
        self.input(Input::Unable(reason));
    }

    /// Answers a peer that asks for copies or for the finished model.
    fn serve(&mut self, request: StateRequest, reply: oneshot::Sender<Vec<u8>>) {
        let refuse = |reason: &str| codec::encode(&StateResponse::Unavailable(reason.into()));
        match request {
            StateRequest::Blocks {
                first,
                end,
                step,
                have,
                ..
            } => self.give_blocks(first..end, step, have, reply),
            StateRequest::Weights { digest, .. } => super::finish::give_model(self, digest, reply),
            StateRequest::Replica { .. } | StateRequest::Chunk { .. } => {
                let _ = reply.send(refuse(
                    "this job trains as a pipeline; no peer holds a replica",
                ));
            }
        }
    }

    fn every_half_second(&mut self) {
        self.input(Input::Tick);
        self.come_late();
        self.journal.flush();
        self.context.blobs.expire();
        self.save_if_due();
        self.look_for_room();
        self.compare();
        self.time_if_standing_by();
        self.input(Input::Rates(self.rates()));
        self.report();
    }

    /// Tells the others, and saves what is held.
    async fn leave(&mut self) {
        for peer in self.connected.clone() {
            self.send(peer, &message::Message::Leaving(self.context.id));
        }
        self.save_and_wait().await;
        self.journal.flush();
    }
}

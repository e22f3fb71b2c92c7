//! The training thread of one job: the only owner of its tensors.
//!
//! In: [`Command`]s from the job driver and merged gradients from the coder, over one bounded channel that is drained
//! between steps. Out: the own gradient of each step to the coder, [`Event`]s to the driver. Buffers travel to the coder
//! and back, so a step allocates none; where the coder is behind, asynchronous gradients are summed here until it has room.

mod handover;
mod judge;
mod knowledge;
mod step;

use std::time::{Duration, Instant};

use skein_gossip::exchange::local::Local;
use skein_gossip::knowledge::sketch::Sketch;
use skein_gossip::pacing::adacomm::AdaComm;
use skein_gossip::pacing::momentum;
use skein_gossip::pacing::outer::Outer;
use skein_gossip::pacing::rhythm::Commits;
use skein_gossip::time::Tick;
use skein_gossip::view::Member;
use skein_model::average::Average;
use skein_model::config::Split;
use skein_model::data::{Sampler, Splits};
use skein_model::snapshot::Snapshot;
use skein_model::train::{Evaluation, Trainer};
use tokio::sync::{mpsc, oneshot};

use super::coder;
use crate::job::strategy::Exchange;

pub use judge::{FIRST_LOOK, LOOK_ONE_IN};
pub use knowledge::{HELD_OUT, Lesson, SKETCH_EVERY, SKETCH_ONE_IN, Teacher};

/// Commands waiting for the thread. The driver and the coder together never have more than a few on the way.
pub const COMMANDS: usize = 64;
/// Events waiting for the driver; a full channel makes training wait.
pub const EVENTS: usize = 256;
/// Steps in a row whose loss is not finite before the replica counts as diverged.
const MAX_NOT_FINITE: u32 = 10;
/// Rows per forward pass of an evaluation.
pub(super) const EVALUATION_BATCH: usize = 250;

/// How one peer trains for one job.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Samples per step, where no view says otherwise.
    pub batch: u32,
    /// What neighbours send each other, and who waits.
    pub exchange: Exchange,
    /// Step at which training stops by itself, so that `stop.steps` means exactly that many.
    pub last_step: Option<u64>,
    /// Steps between two looks at the validation set; none: as often as costs a twentieth of the time.
    pub evaluate_every: Option<u64>,
    /// Rows per look.
    pub evaluate_samples: usize,
    /// Whether the running mean of the weights is what is looked at and handed out.
    pub averages: bool,
    /// Validation accuracy and loss that end the job, which make a look at the whole set worth while.
    pub target_accuracy: Option<f64>,
    /// See `target_accuracy`.
    pub target_loss: Option<f64>,
    /// Seed of the data order.
    pub seed: u64,
}

/// A replica's state at a step boundary.
#[derive(Debug)]
pub struct Replica {
    /// Its step.
    pub step: u64,
    /// Weights and optimiser state.
    pub snapshot: Snapshot,
    /// Samples drawn from the shard so far.
    pub position: u64,
    /// The shard.
    pub shard: u32,
}

/// This peer's part in a view.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Its entry: shard and batches.
    pub member: Member,
    /// Samples of all members per step.
    pub global_batch: u64,
    /// Members other than this peer.
    pub others: usize,
    /// What the job's learning rate is multiplied with, because the global batch has grown.
    pub rate: f32,
}

/// What the driver or the coder asks of the thread.
#[derive(Debug)]
pub enum Command {
    /// Train from here on.
    Train,
    /// Stop after the current step; a synchronous step that waits is given up.
    Pause,
    /// The view changed.
    Membership(Share),
    /// Bounded waiting: the first step that must not be made yet.
    Limit(u64),
    /// The search found a rate: commits of each member per period.
    Rate {
        /// Commits.
        commits: u64,
        /// The period.
        period: Duration,
        /// The momentum that late updates make by themselves.
        implicit_momentum: f64,
    },
    /// Move towards another replica, if the held-out samples say so.
    Learn {
        /// Whose it is.
        from: Teacher,
        /// What came of it.
        reply: oneshot::Sender<Result<Lesson, String>>,
    },
    /// What the others sent (asynchronous), or the sum for `step` (synchronous).
    Merged {
        /// The step it belongs to.
        step: u64,
        /// One value per parameter.
        values: Vec<f32>,
    },
    /// The coder is done with a gradient buffer.
    Buffer {
        /// The buffer.
        values: Vec<f32>,
        /// What packing took, and unpacking since the last one; none at the start.
        cost: Option<Duration>,
    },
    /// Copy the replica at the first step boundary not before `from_step`.
    Copy {
        /// Earliest step.
        from_step: u64,
        /// Where it goes.
        reply: oneshot::Sender<Replica>,
    },
    /// Load a state.
    Restore {
        /// The state.
        snapshot: Box<Snapshot>,
        /// Its step.
        step: u64,
        /// Samples already drawn from the shard, where they are known.
        position: Option<u64>,
        /// What came of it.
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// End the thread.
    End,
    /// Training is over: judge the replica (and the best look so far) on the whole validation set, and hand out the better.
    Candidate {
        /// The step, how it did, and its state.
        reply: oneshot::Sender<Result<(u64, Evaluation, Snapshot), String>>,
    },
}

/// What the thread reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A step was made.
    Step {
        /// Steps of the replica so far.
        step: u64,
        /// Mean training loss of the own batch.
        loss: f32,
        /// Samples of the own batch.
        samples: u64,
        /// Time in forward, backward and update.
        computing: Duration,
        /// Time waiting for others.
        waiting: Duration,
        /// Time handing over and merging gradients.
        communicating: Duration,
        /// Commits made so far.
        commits: u64,
    },
    /// The parameters, sketched.
    Sketched(Sketch),
    /// A look at the validation set.
    Evaluated {
        /// Step of the replica.
        step: u64,
        /// How it did.
        evaluation: Evaluation,
        /// Whether the whole set was looked at.
        whole: bool,
    },
    /// A step's loss or gradient was not finite; the step was skipped.
    NotFinite {
        /// The step.
        step: u64,
    },
    /// Training cannot go on.
    Failed(&'static str),
}

/// The thread's state.
pub struct TrainingThread {
    /// Model and optimiser.
    pub trainer: Trainer,
    /// Data.
    pub data: std::sync::Arc<Splits>,
    /// How the data is shared out.
    pub split: Split,
    /// Settings.
    pub settings: Settings,
    /// Step to begin with.
    pub step: u64,
    /// Samples already drawn.
    pub position: u64,
    /// Shard they were drawn from.
    pub shard: u32,
    /// Commands.
    pub commands: mpsc::Receiver<Command>,
    /// To the coder.
    pub coder: mpsc::Sender<coder::Input>,
    /// To the driver.
    pub events: mpsc::Sender<Event>,
    /// Where time began.
    pub started: Instant,
}

impl std::fmt::Debug for TrainingThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrainingThread")
            .field("step", &self.step)
            .finish_non_exhaustive()
    }
}

/// What lives between steps.
struct State {
    thread: TrainingThread,
    training: bool,
    sampler: Option<Sampler>,
    share: Option<Share>,
    /// First step that has to wait for others.
    limit: u64,
    local: Local,
    commits: Commits,
    /// Local steps per round, where they fall with the loss.
    adacomm: Option<AdaComm>,
    gradient: Vec<f32>,
    average: Option<Average>,
    merged: Option<(u64, Vec<f32>)>,
    /// Gradient buffers that the coder gave back.
    spare: Vec<Vec<f32>>,
    copies: Vec<(u64, oneshot::Sender<Replica>)>,
    best_look: Option<(Evaluation, u64, Snapshot)>,
    /// When the last look ended, and what it took.
    looked: Option<(Instant, Duration)>,
    sketched: Option<Instant>,
    base_rate: f64,
    base_momentum: f64,
    not_finite: u32,
}

/// Gradient buffers in circulation: one at the coder, one being filled.
const BUFFERS: usize = 2;

impl TrainingThread {
    fn now(&self) -> Tick {
        Tick(self.started.elapsed().as_micros() as u64)
    }

    /// Runs until the command channel closes.
    pub fn run(self) {
        let n = self.trainer.model().n_parameters();
        let exchange = self.settings.exchange;
        let outer = exchange.outer().map(|settings| Outer::new(settings, n));
        let mut state = State {
            training: false,
            sampler: None,
            share: None,
            limit: u64::MAX,
            local: Local::new(exchange.config().full, outer),
            commits: Commits::new(exchange.rhythm(self.now())),
            adacomm: exchange.adacomm(),
            gradient: vec![0.0; n],
            average: self.settings.averages.then(Average::default),
            merged: None,
            spare: Vec::new(),
            copies: Vec::new(),
            best_look: None,
            looked: None,
            sketched: None,
            base_rate: self.trainer.learning_rate(),
            base_momentum: self.trainer.momentum().unwrap_or(0.0),
            not_finite: 0,
            thread: self,
        };
        while state.take_commands() {
            if state.training && !state.step() {
                return;
            }
        }
    }
}

impl State {
    /// Takes all waiting commands; waits for one while nothing is trained. False when the channel is closed.
    fn take_commands(&mut self) -> bool {
        loop {
            let command = if self.training {
                match self.thread.commands.try_recv() {
                    Ok(command) => command,
                    Err(mpsc::error::TryRecvError::Empty) => return true,
                    Err(mpsc::error::TryRecvError::Disconnected) => return false,
                }
            } else {
                match self.thread.commands.blocking_recv() {
                    Some(command) => command,
                    None => return false,
                }
            };
            if matches!(command, Command::End) {
                return false;
            }
            self.obey(command);
        }
    }

    /// Takes this peer's part in a view.
    fn join(&mut self, share: Share) {
        let slot = share.member.slot;
        if slot != self.thread.shard {
            self.thread.shard = slot;
            self.thread.position = 0;
            self.sampler = None;
        }
        let rate = self.base_rate * f64::from(share.rate);
        if rate != self.thread.trainer.learning_rate()
            && let Err(error) = self.thread.trainer.set_learning_rate(rate)
        {
            tracing::warn!(rate, %error, "learning rate is kept");
        }
        self.share = Some(share);
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Train => self.training = !self.is_at_last_step(),
            Command::Pause => {
                self.training = false;
                self.drop_merged();
                self.local.forget();
            }
            Command::Membership(share) => self.join(share),
            Command::Limit(step) => self.limit = step,
            Command::Rate {
                commits,
                period,
                implicit_momentum,
            } => {
                let now = self.thread.now();
                self.commits.target(now, commits, period);
                let left = momentum::explicit_left(self.base_momentum, implicit_momentum);
                if let Err(error) = self.thread.trainer.set_momentum(left) {
                    tracing::warn!(left, %error, "momentum is kept");
                }
            }
            Command::Learn { from, reply } => {
                let lesson = self.learn(from);
                let _ = reply.send(lesson);
            }
            Command::Merged { step, values } => {
                self.drop_merged();
                self.merged = Some((step, values));
            }
            Command::Buffer { values, cost } => {
                self.spare.push(values);
                if let Some(cost) = cost {
                    let now = self.thread.now();
                    self.commits.cost(now, cost);
                }
            }
            Command::Copy { from_step, reply } => {
                self.copies.push((from_step, reply));
                self.give_copies();
            }
            Command::Restore {
                snapshot,
                step,
                position,
                reply,
            } => {
                let restored = self
                    .thread
                    .trainer
                    .restore(&snapshot)
                    .map_err(|error| error.to_string());
                if restored.is_ok() {
                    self.thread.step = step;
                    self.drop_merged();
                    self.local.forget();
                    if let Some(average) = &mut self.average {
                        average.forget();
                    }
                    self.not_finite = 0;
                    if let Some(position) = position {
                        self.thread.position = position;
                        self.sampler = None;
                    }
                }
                // The driver may have given up meanwhile; then nobody needs the answer.
                let _ = reply.send(restored);
            }
            Command::End => self.training = false,
            Command::Candidate { reply } => {
                let candidate = self.candidate();
                let _ = reply.send(candidate);
            }
        }
    }
}

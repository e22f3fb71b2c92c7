//! The training thread of one job: the only owner of its tensors.
//!
//! In: [`Command`]s from the job driver and merged gradients from the coder, over one bounded channel that is drained
//! between steps. Out: the own gradient of each step to the coder, [`Event`]s to the driver. Buffers travel to the coder
//! and back, so a step allocates none; where the coder is behind, asynchronous gradients are summed here until it has room.

use std::time::{Duration, Instant};

use skein_model::config::Split;
use skein_model::data::{Batch, Sampler, Splits};
use skein_model::snapshot::Snapshot;
use skein_model::train::{Evaluation, Trainer};
use tokio::sync::{mpsc, oneshot};

use super::coder;

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
    /// Samples per step.
    pub batch: u32,
    /// Whether each step waits for the sum over all members.
    pub synchronous: bool,
    /// Asynchronous: steps that are summed into one hand-over to the coder.
    pub every: u32,
    /// Steps between two looks at the validation set.
    pub evaluate_every: u64,
    /// Rows per look.
    pub evaluate_samples: usize,
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

/// What the driver or the coder asks of the thread.
#[derive(Debug)]
pub enum Command {
    /// Train from here on.
    Train,
    /// Stop after the current step; a synchronous step that waits is given up.
    Pause,
    /// The view changed: samples behind one step of all members, and this peer's shard of the data.
    Membership {
        /// Samples of all members per step.
        global_batch: u64,
        /// Members other than this peer.
        others: usize,
        /// The shard.
        shard: u32,
    },
    /// What the others sent (asynchronous), or the sum for `step` (synchronous).
    Merged {
        /// The step it belongs to.
        step: u64,
        /// One value per parameter.
        values: Vec<f32>,
    },
    /// The coder is done with a gradient buffer.
    Buffer(Vec<f32>),
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
    },
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
    global_batch: u64,
    others: usize,
    gradient: Vec<f32>,
    merged: Option<(u64, Vec<f32>)>,
    outbox: Outbox,
    copies: Vec<(u64, oneshot::Sender<Replica>)>,
    best_look: Option<(Evaluation, u64, Snapshot)>,
    not_finite: u32,
}

/// Own gradients on their way to the coder.
#[derive(Default)]
struct Outbox {
    sum: Vec<f32>,
    n_steps: u32,
    samples: u64,
    /// Buffers that the coder gave back.
    spare: Vec<Vec<f32>>,
}

/// Gradient buffers in circulation: one at the coder, one being filled.
const BUFFERS: usize = 2;

impl TrainingThread {
    /// Runs until the command channel closes.
    pub fn run(self) {
        let n = self.trainer.model().n_parameters();
        let mut state = State {
            training: false,
            sampler: None,
            global_batch: u64::from(self.settings.batch),
            others: 0,
            gradient: vec![0.0; n],
            merged: None,
            outbox: Outbox::default(),
            copies: Vec::new(),
            best_look: None,
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

    fn obey(&mut self, command: Command) {
        match command {
            Command::Train => self.training = true,
            Command::Pause => {
                self.training = false;
                self.drop_merged();
                self.outbox.n_steps = 0;
            }
            Command::Membership {
                global_batch,
                others,
                shard,
            } => {
                self.global_batch = global_batch.max(1);
                self.others = others;
                if shard != self.thread.shard {
                    self.thread.shard = shard;
                    self.thread.position = 0;
                    self.sampler = None;
                }
            }
            Command::Merged { step, values } => {
                self.drop_merged();
                self.merged = Some((step, values));
            }
            Command::Buffer(buffer) => self.outbox.spare.push(buffer),
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

    /// One step. False when the driver is gone.
    fn step(&mut self) -> bool {
        let started = Instant::now();
        let batch = match self.next_batch() {
            Ok(batch) => batch,
            Err(reason) => return self.fail(reason),
        };
        let samples = batch.len() as u64;
        let loss = match self.thread.trainer.gradient(&batch, &mut self.gradient) {
            Ok(loss) => loss,
            Err(error) => return self.skip(&error.to_string()),
        };
        let computed = Instant::now();
        let mut waiting = Duration::ZERO;
        if self.thread.settings.synchronous {
            if !self.hand_over_mean(samples) {
                return false;
            }
            match self.wait_for_sum() {
                Wait::Sum(waited) => waiting = waited,
                Wait::GivenUp => return true,
                Wait::Closed => return false,
            }
        } else {
            self.hand_over_sum(samples);
            self.merge(samples);
        }
        let merged = Instant::now();
        if let Err(error) = self.thread.trainer.apply(&self.gradient) {
            return self.skip(&error.to_string());
        }
        self.not_finite = 0;
        self.thread.step += 1;
        let applied = Instant::now();
        let step = Event::Step {
            step: self.thread.step,
            loss,
            samples,
            computing: (computed - started) + (applied - merged),
            waiting,
            communicating: (merged - computed).saturating_sub(waiting),
        };
        if self.thread.events.blocking_send(step).is_err() {
            return false;
        }
        self.give_copies();
        self.thread.step % self.thread.settings.evaluate_every != 0 || self.look()
    }

    fn next_batch(&mut self) -> Result<Batch, &'static str> {
        if self.sampler.is_none() {
            let labels = self.thread.data.train.labels();
            let shards = shards(&self.thread.split);
            let shard = shards.map_or(self.thread.shard, |shards| self.thread.shard % shards);
            let seed = self.thread.settings.seed;
            let sampler = Sampler::new(
                &self.thread.split,
                labels,
                seed,
                shard,
                self.thread.position,
            );
            self.sampler = Some(sampler.map_err(|error| {
                tracing::error!(%error, "no data for this peer");
                "this peer's shard of the data is empty or does not exist"
            })?);
        }
        let Some(sampler) = &mut self.sampler else {
            return Err("no sampler");
        };
        let rows = sampler.next_rows(self.thread.settings.batch as usize);
        self.thread.position = sampler.position();
        Ok(self.thread.data.train.batch(&rows))
    }

    fn fail(&mut self, reason: &'static str) -> bool {
        self.training = false;
        self.thread
            .events
            .blocking_send(Event::Failed(reason))
            .is_ok()
    }

    /// Leaves a step out whose numbers are of no use.
    fn skip(&mut self, error: &str) -> bool {
        self.not_finite += 1;
        tracing::warn!(step = self.thread.step, error, "step left out");
        if self.not_finite > MAX_NOT_FINITE {
            return self
                .fail("training diverged: the loss is not finite; lower train.optimiser.lr");
        }
        if self.thread.settings.synchronous {
            // The others wait for this step: an empty gradient lets them go on.
            self.gradient.fill(0.0);
            if !self.hand_over_mean(u64::from(self.thread.settings.batch)) {
                return false;
            }
            match self.wait_for_sum() {
                Wait::Sum(_) => {}
                Wait::GivenUp => return true,
                Wait::Closed => return false,
            }
            if self.thread.trainer.apply(&self.gradient).is_err() {
                return self
                    .fail("training diverged: the loss is not finite; lower train.optimiser.lr");
            }
            self.thread.step += 1;
        }
        self.thread
            .events
            .blocking_send(Event::NotFinite {
                step: self.thread.step,
            })
            .is_ok()
    }

    /// Synchronous: the mean gradient goes to the coder; the buffer comes back with the sum.
    fn hand_over_mean(&mut self, samples: u64) -> bool {
        let mut values = self.outbox.spare.pop().unwrap_or_default();
        values.clear();
        values.extend_from_slice(&self.gradient);
        let input = coder::Input::Gradient {
            step: self.thread.step,
            n_steps: 1,
            samples,
            values,
        };
        self.thread.coder.blocking_send(input).is_ok()
    }

    fn wait_for_sum(&mut self) -> Wait {
        let started = Instant::now();
        loop {
            if let Some((step, mut values)) = self.merged.take() {
                if step == self.thread.step {
                    std::mem::swap(&mut self.gradient, &mut values);
                    self.give_back(values);
                    return Wait::Sum(started.elapsed());
                }
                self.give_back(values);
            }
            match self.thread.commands.blocking_recv() {
                None | Some(Command::End) => return Wait::Closed,
                Some(command) => self.obey(command),
            }
            if !self.training {
                return Wait::GivenUp;
            }
        }
    }

    /// Asynchronous: adds the own gradient to what the coder is owed, and hands it over when it is due and there is room.
    fn hand_over_sum(&mut self, samples: u64) {
        if self.others == 0 {
            self.outbox.n_steps = 0;
            return;
        }
        let outbox = &mut self.outbox;
        outbox.sum.resize(self.gradient.len(), 0.0);
        let weight = samples as f32;
        if outbox.n_steps == 0 {
            outbox.samples = 0;
            outbox
                .sum
                .iter_mut()
                .zip(&self.gradient)
                .for_each(|(sum, value)| *sum = weight * value);
        } else {
            outbox
                .sum
                .iter_mut()
                .zip(&self.gradient)
                .for_each(|(sum, value)| *sum += weight * value);
        }
        outbox.n_steps += 1;
        outbox.samples += samples;
        if outbox.n_steps < self.thread.settings.every {
            return;
        }
        let Some(next) = outbox.spare.pop() else {
            return;
        };
        let values = std::mem::replace(&mut outbox.sum, next);
        let input = coder::Input::Gradient {
            step: self.thread.step,
            n_steps: outbox.n_steps,
            samples: outbox.samples,
            values,
        };
        match self.thread.coder.try_send(input) {
            Ok(()) => outbox.n_steps = 0,
            Err(
                mpsc::error::TrySendError::Full(input) | mpsc::error::TrySendError::Closed(input),
            ) => {
                if let coder::Input::Gradient { values, .. } = input {
                    let spare = std::mem::replace(&mut outbox.sum, values);
                    outbox.spare.push(spare);
                }
            }
        }
    }

    /// Asynchronous: the own gradient counts by its share of the global batch, and what arrived is added.
    fn merge(&mut self, samples: u64) {
        let weight = samples as f32 / self.global_batch as f32;
        if weight != 1.0 {
            self.gradient.iter_mut().for_each(|value| *value *= weight);
        }
        if let Some((_, values)) = self.merged.take() {
            self.gradient
                .iter_mut()
                .zip(&values)
                .for_each(|(own, other)| *own += other);
            self.give_back(values);
        }
    }

    /// What was merged for a replica that is no more; the buffer must not be lost with it.
    fn drop_merged(&mut self) {
        if let Some((_, values)) = self.merged.take() {
            self.give_back(values);
        }
    }

    fn give_back(&mut self, values: Vec<f32>) {
        if self.thread.settings.synchronous {
            // The sum's buffer carries the next gradient.
            self.outbox.spare.push(values);
            self.outbox.spare.truncate(BUFFERS);
            return;
        }
        if let Err(error) = self.thread.coder.try_send(coder::Input::Spare(values)) {
            // The coder allocates another inbox only when it gets its own back, so it must: wait, it never waits for us.
            if let mpsc::error::TrySendError::Full(input) = error {
                let _ = self.thread.coder.blocking_send(input);
            }
        }
    }

    fn give_copies(&mut self) {
        let step = self.thread.step;
        let (due, later): (Vec<_>, Vec<_>) =
            self.copies.drain(..).partition(|(from, _)| *from <= step);
        self.copies = later;
        for (_, reply) in due {
            let replica = Replica {
                step,
                snapshot: self.thread.trainer.snapshot(),
                position: self.thread.position,
                shard: self.thread.shard,
            };
            let _ = reply.send(replica);
        }
    }

    fn evaluate(&mut self, rows: usize) -> Result<Evaluation, String> {
        let data = self.thread.data.clone();
        let rows = rows.min(data.validation.len());
        self.thread
            .trainer
            .evaluate(&data.validation, 0..rows, EVALUATION_BATCH)
            .map_err(|error| error.to_string())
    }

    /// Looks at a part of the validation set; at all of it where the part says that a target is met.
    fn look(&mut self) -> bool {
        let settings = self.thread.settings;
        let all = self.thread.data.validation.len();
        let Ok(evaluation) = self.evaluate(settings.evaluate_samples) else {
            return self.fail("the validation set cannot be evaluated");
        };
        let step = self.thread.step;
        let whole = evaluation.samples >= all;
        let better = self
            .best_look
            .as_ref()
            .is_none_or(|(best, ..)| evaluation.accuracy > best.accuracy);
        if better {
            self.best_look = Some((evaluation, step, self.thread.trainer.snapshot()));
        }
        if self
            .thread
            .events
            .blocking_send(Event::Evaluated {
                step,
                evaluation,
                whole,
            })
            .is_err()
        {
            return false;
        }
        let meets = settings
            .target_accuracy
            .is_some_and(|target| evaluation.accuracy >= target)
            || settings
                .target_loss
                .is_some_and(|target| evaluation.loss <= target);
        if !meets || whole {
            return true;
        }
        match self.evaluate(all) {
            Ok(evaluation) => self
                .thread
                .events
                .blocking_send(Event::Evaluated {
                    step,
                    evaluation,
                    whole: true,
                })
                .is_ok(),
            Err(_) => self.fail("the validation set cannot be evaluated"),
        }
    }

    /// The better of the replica and the best that was seen on the way, by the whole validation set.
    fn candidate(&mut self) -> Result<(u64, Evaluation, Snapshot), String> {
        let all = self.thread.data.validation.len();
        let now = self.evaluate(all)?;
        let current = (self.thread.step, now, self.thread.trainer.snapshot());
        let Some((_, step, snapshot)) = self.best_look.take() else {
            return Ok(current);
        };
        if step == self.thread.step {
            return Ok(current);
        }
        let restored = self
            .thread
            .trainer
            .restore(&snapshot)
            .map_err(|error| error.to_string());
        let then = restored.and_then(|()| self.evaluate(all));
        match then {
            Ok(then) if (then.accuracy, -then.loss) > (now.accuracy, -now.loss) => {
                Ok((step, then, snapshot))
            }
            _ => Ok(current),
        }
    }
}

enum Wait {
    Sum(Duration),
    GivenUp,
    Closed,
}

fn shards(split: &Split) -> Option<u32> {
    match split {
        Split::All {} => None,
        Split::Iid { shards } | Split::Dirichlet { shards, .. } => Some((*shards).max(1)),
    }
}

//! The trainer and the hand-over of gradients, step by step in virtual time; the same order of things as in the node's
//! training thread.

use std::collections::BTreeMap;

use skein_gossip::agreement::Input;
use skein_gossip::exchange::Gradient;
use skein_gossip::ids::PeerId;
use skein_gossip::view::Contribution;
use skein_model::train::Evaluation;
use skein_node::job::{Every, ExchangeMode};
use skein_node::run::journal::{self, Entry};

use super::fetching::Answer;
use super::{Disk, Peer, Work, tick};
use crate::learner::State;
use skein_netem::link::Nanos;

/// Weight of the newest step in the running training loss, as in the node.
const LOSS_WEIGHT: f32 = 0.1;
/// Byte counters per link go into a step's line so often: for 36 peers they would be most of the record.
const LINKS_EVERY: Nanos = 1_000_000_000;

#[derive(Debug)]
enum Doing {
    Nothing,
    /// In forward and backward since then.
    Stepping(Nanos),
    /// Synchronous: for the sum since then, after so much computing.
    Waiting(Nanos, Nanos),
    /// At the update and what follows from it.
    Finishing,
    /// At the validation set.
    Looking(Evaluation),
}

/// What waits for the step boundary.
#[derive(Debug)]
pub(super) enum AtBoundary {
    Restore {
        state: State,
        step: u64,
        from: PeerId,
        began: Nanos,
    },
    Judge,
}

#[derive(Debug)]
pub(super) struct Trainer {
    pub(super) step: u64,
    pub(super) work: Contribution,
    pub(super) global_batch: u64,
    pub(super) others: usize,
    pub(super) copies: Vec<(u64, PeerId)>,
    pub(super) best_look: Option<(Evaluation, u64, State)>,
    /// Core microseconds of the coder that the next step pays for.
    pub(super) owed_us: f64,
    pub(super) train_loss: Option<f32>,
    is_training: bool,
    doing: Doing,
    gradient: Vec<f32>,
    loss: f32,
    sum: Vec<f32>,
    n_summed: u32,
    samples_summed: u64,
    merged: Vec<f32>,
    boundary: Vec<AtBoundary>,
    links_written: Nanos,
}

impl Trainer {
    pub(super) fn new(step: u64, n_values: usize) -> Self {
        Self {
            step,
            work: Contribution::default(),
            global_batch: 1,
            others: 0,
            copies: Vec::new(),
            best_look: None,
            owed_us: 0.0,
            train_loss: None,
            is_training: false,
            doing: Doing::Nothing,
            gradient: Vec::with_capacity(n_values),
            loss: 0.0,
            sum: vec![0.0; n_values],
            n_summed: 0,
            samples_summed: 0,
            merged: Vec::new(),
            boundary: Vec::new(),
            links_written: 0,
        }
    }
}

impl Peer {
    fn is_synchronous(&self) -> bool {
        self.job.file.exchange.mode == ExchangeMode::Sync
    }

    fn is_at_last_step(&self) -> bool {
        let last = self.job.file.stop.steps;
        last.is_some_and(|last| self.trainer.step >= last)
    }

    pub(super) fn train(&mut self, now: Nanos) {
        self.trainer.is_training = !self.is_at_last_step();
        self.begin_step(now);
    }

    /// Stops after the current step; a synchronous step that waits is given up.
    pub(super) fn pause(&mut self, now: Nanos) {
        self.trainer.is_training = false;
        self.trainer.n_summed = 0;
        if matches!(self.trainer.doing, Doing::Waiting(..)) {
            self.at_boundary(now);
        }
    }

    pub(super) fn obey_at_boundary(&mut self, now: Nanos, what: AtBoundary) {
        self.trainer.boundary.push(what);
        if matches!(self.trainer.doing, Doing::Nothing) {
            self.at_boundary(now);
        }
    }

    fn at_boundary(&mut self, now: Nanos) {
        self.trainer.doing = Doing::Nothing;
        for what in std::mem::take(&mut self.trainer.boundary) {
            match what {
                AtBoundary::Restore {
                    state,
                    step,
                    from,
                    began,
                } => self.restore(now, &state, step, from, began),
                AtBoundary::Judge => self.judge(),
            }
        }
        self.begin_step(now);
    }

    fn begin_step(&mut self, now: Nanos) {
        if !self.trainer.is_training || !matches!(self.trainer.doing, Doing::Nothing) {
            return;
        }
        match self.learner.gradient(&mut self.trainer.gradient) {
            Ok(loss) => self.trainer.loss = loss,
            Err(reason) => {
                self.trainer.is_training = false;
                self.write(now, &Entry::Failed { reason: &reason });
                return self.input(now, Input::Unable(reason));
            }
        }
        let costs = &self.job.costs;
        let batch = f64::from(self.job.file.train.batch);
        let core_us = costs.us_per_step + costs.us_per_sample * batch;
        let owed = std::mem::take(&mut self.trainer.owed_us);
        let takes = self.works(core_us + owed).max(1000);
        self.trainer.doing = Doing::Stepping(now);
        self.later(takes, Work::StepDone);
    }

    pub(super) fn on_step_done(&mut self, now: Nanos) {
        let Doing::Stepping(since) = self.trainer.doing else {
            return;
        };
        let samples = u64::from(self.job.file.train.batch);
        if self.is_synchronous() {
            if !self.trainer.is_training {
                return self.at_boundary(now);
            }
            self.trainer.doing = Doing::Waiting(now, now - since);
            let gradient = Gradient {
                step: self.trainer.step,
                n_steps: 1,
                samples,
                values: &self.trainer.gradient,
            };
            if let Err(error) = self.exchange.gradient(tick(now), gradient) {
                tracing::warn!(%error, "own gradient is not sent");
            }
            return self.drain(now);
        }
        self.hand_over_sum(now, samples);
        let weight = samples as f32 / self.trainer.global_batch as f32;
        if weight != 1.0 {
            let gradient = &mut self.trainer.gradient;
            gradient.iter_mut().for_each(|value| *value *= weight);
        }
        let mut merged = std::mem::take(&mut self.trainer.merged);
        if self.exchange.take(&mut merged) {
            let gradient = &mut self.trainer.gradient;
            gradient
                .iter_mut()
                .zip(&merged)
                .for_each(|(own, other)| *own += other);
        }
        self.trainer.merged = merged;
        self.finish_step(now, now - since, 0);
    }

    /// Adds the own gradient to what the coder is owed, and hands it over when it is due.
    fn hand_over_sum(&mut self, now: Nanos, samples: u64) {
        let trainer = &mut self.trainer;
        if trainer.others == 0 {
            trainer.n_summed = 0;
            return;
        }
        if trainer.n_summed == 0 {
            trainer.sum.fill(0.0);
            trainer.samples_summed = 0;
        }
        let weight = samples as f32;
        trainer
            .sum
            .iter_mut()
            .zip(&trainer.gradient)
            .for_each(|(sum, value)| *sum += weight * value);
        trainer.n_summed += 1;
        trainer.samples_summed += samples;
        if trainer.n_summed < self.job.file.exchange.every {
            return;
        }
        let gradient = Gradient {
            step: trainer.step,
            n_steps: std::mem::take(&mut trainer.n_summed),
            samples: trainer.samples_summed,
            values: &trainer.sum,
        };
        if let Err(error) = self.exchange.gradient(tick(now), gradient) {
            tracing::warn!(%error, "own gradient is not sent");
        }
        self.drain(now);
    }

    /// Synchronous: the sum of a step is there.
    pub(super) fn on_ready(&mut self, now: Nanos, step: u64) {
        let Doing::Waiting(since, computing) = self.trainer.doing else {
            return;
        };
        let mut sum = std::mem::take(&mut self.trainer.gradient);
        let took = self.exchange.take(&mut sum);
        self.trainer.gradient = sum;
        if took && step == self.trainer.step {
            self.finish_step(now, computing, now - since);
        }
    }

    fn finish_step(&mut self, now: Nanos, computing: Nanos, waiting: Nanos) {
        self.trainer.doing = Doing::Finishing;
        let applied = self.learner.apply(&self.trainer.gradient);
        if let Err(reason) = applied {
            tracing::warn!(reason, "step left out");
        }
        let samples = u64::from(self.job.file.train.batch);
        let trainer = &mut self.trainer;
        trainer.step += 1;
        trainer.work.steps += 1;
        trainer.work.samples += samples;
        trainer.work.computing_us += computing / 1000;
        trainer.work.waiting_us += waiting / 1000;
        let loss = trainer.loss;
        let mean = trainer
            .train_loss
            .map_or(loss, |mean| mean + LOSS_WEIGHT * (loss - mean));
        trainer.train_loss = mean.is_finite().then_some(mean);
        let mut links = BTreeMap::new();
        if now >= trainer.links_written + LINKS_EVERY {
            trainer.links_written = now;
            links = journal::links(self.exchange.stats());
        }
        let entry = Entry::Step {
            step: trainer.step,
            train_loss: loss.is_finite().then_some(loss),
            samples,
            computing_s: computing as f64 / 1e9,
            waiting_s: waiting as f64 / 1e9,
            communicating_s: 0.0,
            links,
            view: self.agreement.view().map_or(0, |view| view.stamp.number),
        };
        self.write(now, &entry);
        self.trainer.is_training &= !self.is_at_last_step();
        self.give_copies();
        self.tell_progress(now);
        self.save_if_due(now);
        self.check_stop(now);
        let evaluate = &self.job.file.evaluate;
        if self.trainer.step.is_multiple_of(evaluate.every) {
            self.look(now);
        } else {
            self.at_boundary(now);
        }
    }

    /// Looks at a part of the validation set.
    fn look(&mut self, now: Nanos) {
        let rows = self.job.file.evaluate.samples as usize;
        let Ok(evaluation) = self.learner.evaluate(rows) else {
            return self.at_boundary(now);
        };
        let best = self.trainer.best_look.as_ref();
        if best.is_none_or(|(best, ..)| evaluation.accuracy > best.accuracy) {
            let state = self.learner.state().weights();
            self.trainer.best_look = Some((evaluation, self.trainer.step, state));
        }
        self.looking(evaluation);
    }

    fn looking(&mut self, evaluation: Evaluation) {
        let takes = self.look_takes(evaluation.samples);
        self.trainer.doing = Doing::Looking(evaluation);
        self.later(takes, Work::Looked);
    }

    pub(super) fn look_takes(&mut self, rows: usize) -> Nanos {
        self.works(self.job.costs.us_per_look * rows as f64)
    }

    pub(super) fn on_looked(&mut self, now: Nanos) {
        let Doing::Looking(evaluation) = self.trainer.doing else {
            return;
        };
        let entry = Entry::Evaluated {
            step: self.trainer.step,
            val_accuracy: evaluation.accuracy,
            val_loss: evaluation.loss.is_finite().then_some(evaluation.loss),
            samples: evaluation.samples,
            samples_mesh: self.agreement.mesh_samples(),
        };
        self.write(now, &entry);
        let all = self.learner.validation_len();
        let stop = self.job.file.stop;
        match stop.target_met(evaluation.accuracy, evaluation.loss) {
            Some(reason) if evaluation.samples >= all => {
                self.input(now, Input::StopHolds(reason));
            }
            // A part says that the target is met: all of it decides.
            Some(_) => {
                if let Ok(whole) = self.learner.evaluate(all) {
                    return self.looking(whole);
                }
            }
            None => {}
        }
        self.at_boundary(now);
    }

    pub(super) fn tell_progress(&mut self, now: Nanos) {
        let progress = Input::Progress {
            step: self.trainer.step,
            train_loss: self.trainer.train_loss.unwrap_or(f32::MAX),
            contribution: self.contribution(),
        };
        self.input(now, progress);
    }

    /// Ends the job where a stop condition holds that needs no evaluation.
    pub(super) fn check_stop(&mut self, now: Nanos) {
        let Some(began) = self.began.filter(|_| self.closed.is_none()) else {
            return;
        };
        let stop = self.job.file.stop;
        let enough = stop.enough(
            self.trainer.step,
            // Counting the mesh's samples is dear, and only one condition needs it.
            stop.epochs.map_or(0, |_| self.agreement.mesh_samples()),
            self.learner.train_len(),
            (now - began) as f64 / 1e9,
        );
        if let Some(reason) = enough {
            self.input(now, Input::StopHolds(reason));
        }
    }

    /// Copies for those who asked, at a step that is late enough for them.
    pub(super) fn give_copies(&mut self) {
        if matches!(self.trainer.doing, Doing::Stepping(_) | Doing::Looking(_)) {
            return;
        }
        let step = self.trainer.step;
        let copies = std::mem::take(&mut self.trainer.copies);
        let (due, later): (Vec<_>, Vec<_>) =
            copies.into_iter().partition(|(from, _)| *from <= step);
        self.trainer.copies = later;
        if due.is_empty() {
            return;
        }
        let state = self.learner.state();
        for (_, to) in due {
            let state = state.clone();
            self.answer(to, Answer::Replica { state, step });
        }
    }

    fn save_if_due(&mut self, now: Nanos) {
        let (at, step) = self.saved;
        let is_due = match self.job.file.checkpoint.every {
            Every::Time(every) => u128::from(now - at) >= every.as_nanos(),
            Every::Steps(every) => self.trainer.step >= step + every,
        };
        if is_due {
            self.save(now);
        }
    }

    pub(super) fn save(&mut self, now: Nanos) {
        self.saved = (now, self.trainer.step);
        self.disk = Some(Disk {
            state: self.learner.state(),
            step: self.trainer.step,
            samples: self.agreement.mesh_samples(),
        });
        let step = self.trainer.step;
        self.write(now, &Entry::Checkpoint { step });
    }

    fn restore(&mut self, now: Nanos, state: &State, step: u64, from: PeerId, began: Nanos) {
        if let Err(reason) = self.learner.load(state) {
            self.write(now, &Entry::FetchFailed { reasons: &[reason] });
            return self.retry_later();
        }
        self.trainer.step = step;
        self.write(
            now,
            &Entry::Synced {
                donors: vec![from.short()],
                step,
                bytes: state.bytes() as u64,
                seconds: (now - began) as f64 / 1e9,
            },
        );
        self.fetching = super::Fetching::Nothing;
        self.input(now, Input::Synced { step });
    }
}

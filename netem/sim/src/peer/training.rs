//! The trainer and the hand-over of gradients, step by step in virtual time; the same order of things as in the node's
//! training thread.

use std::collections::BTreeMap;
use std::time::Duration;

use skein_gossip::agreement::Input;
use skein_gossip::exchange::local::Local;
use skein_gossip::ids::PeerId;
use skein_gossip::pacing::adacomm::AdaComm;
use skein_gossip::pacing::outer::Outer;
use skein_gossip::pacing::rhythm::Commits;
use skein_gossip::view::Contribution;
use skein_model::train::Evaluation;
use skein_node::job::strategy::Exchange;
use skein_node::run::journal::{self, Entry};
use skein_node::run::trainer::{FIRST_LOOK, LOOK_ONE_IN, Share};

use super::fetching::Answer;
use super::{Peer, Work, tick};
use crate::learner::State;
use skein_netem::link::Nanos;

/// Weight of the newest step in the running training loss, as in the node.
const LOSS_WEIGHT: f32 = 0.1;
/// Byte counters per link go into a step's line so often: for 36 peers they would be most of the record.
const LINKS_EVERY: Nanos = 1_000_000_000;

#[derive(Debug)]
pub(super) enum Doing {
    Nothing,
    /// In forward and backward since then.
    Stepping(Nanos),
    /// Synchronous: for the sum since then.
    Waiting(Nanos),
    /// Too far ahead of others since then.
    AtLimit(Nanos),
    /// At the update and what follows from it.
    Finishing,
    /// At the validation set, for so long.
    Looking(Evaluation, Nanos),
}

/// What waits for the step boundary.
#[derive(Debug)]
pub(super) enum AtBoundary {
    Restore {
        state: State,
        step: u64,
        samples: u64,
        from: PeerId,
        began: Nanos,
    },
    Learn {
        state: State,
        from: PeerId,
        weight: f32,
        gated: bool,
    },
    Judge,
}

#[derive(Debug)]
pub(super) struct Trainer {
    pub(super) step: u64,
    pub(super) work: Contribution,
    pub(super) share: Option<Share>,
    /// First step that has to wait for others.
    pub(super) limit: u64,
    pub(super) commits: Commits,
    pub(super) local: Local,
    pub(super) adacomm: Option<AdaComm>,
    pub(super) copies: Vec<(u64, PeerId)>,
    pub(super) best_look: Option<(Evaluation, u64, State)>,
    /// Core microseconds of the coder that the next step pays for.
    pub(super) owed_us: f64,
    /// Core microseconds of its steps so far.
    pub(super) trained_us: f64,
    pub(super) train_loss: Option<f32>,
    pub(super) is_training: bool,
    pub(super) doing: Doing,
    pub(super) gradient: Vec<f32>,
    /// Steps of the optimiser so far in this step, their losses, samples and time.
    pub(super) round: Round,
    pub(super) handed: Vec<f32>,
    pub(super) merged: Vec<f32>,
    pub(super) boundary: Vec<AtBoundary>,
    pub(super) links_written: Nanos,
    /// When the last look ended, and what it took.
    pub(super) looked: Option<(Nanos, Nanos)>,
    pub(super) base_rate: f64,
}

/// One step: of the optimiser, or a round of several where all wait for changes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    pub(super) n: u32,
    pub(super) losses: f32,
    pub(super) samples: u64,
    pub(super) computing: Nanos,
    pub(super) waiting: Nanos,
    /// Samples of the optimiser's step under way.
    pub(super) batch: u32,
}

impl Trainer {
    pub(super) fn new(
        now: Nanos,
        step: u64,
        n_values: usize,
        exchange: &Exchange,
        rate: f64,
    ) -> Self {
        let outer = exchange
            .outer()
            .map(|settings| Outer::new(settings, n_values));
        Self {
            step,
            work: Contribution::default(),
            share: None,
            limit: u64::MAX,
            commits: Commits::new(exchange.rhythm(tick(now))),
            local: Local::new(exchange.config().full, outer),
            adacomm: exchange.adacomm(),
            copies: Vec::new(),
            best_look: None,
            owed_us: 0.0,
            trained_us: 0.0,
            train_loss: None,
            is_training: false,
            doing: Doing::Nothing,
            gradient: Vec::with_capacity(n_values),
            round: Round::default(),
            handed: Vec::new(),
            merged: Vec::new(),
            boundary: Vec::new(),
            links_written: 0,
            looked: None,
            base_rate: rate,
        }
    }
}

impl Peer {
    pub(super) fn is_synchronous(&self) -> bool {
        self.job.file.strategy.exchange.is_synchronous()
    }

    pub(super) fn makes_rounds(&self) -> bool {
        self.is_synchronous() && self.trainer.local.is_full()
    }

    fn is_at_last_step(&self) -> bool {
        let last = self.job.file.stop.steps;
        last.is_some_and(|last| self.trainer.step >= last)
    }

    /// Takes this peer's part in a view.
    pub(super) fn join(&mut self, share: Share) {
        self.learner.set_shard(share.member.slot);
        self.learner
            .set_rate_factor(self.trainer.base_rate, share.rate);
        self.trainer.share = Some(share);
    }

    pub(super) fn others(&self) -> usize {
        self.trainer.share.map_or(0, |share| share.others)
    }

    fn batch(&self) -> u32 {
        match self.trainer.share {
            Some(share) if self.is_synchronous() => share.member.batch_at(self.trainer.step),
            Some(share) => share.member.batch,
            None => self.job.file.train.batch,
        }
    }

    pub(super) fn train(&mut self, now: Nanos) {
        self.trainer.is_training = !self.is_at_last_step();
        self.begin_step(now);
    }

    /// Stops after the current step; a synchronous step that waits is given up.
    pub(super) fn pause(&mut self, now: Nanos) {
        self.trainer.is_training = false;
        self.trainer.local.forget();
        self.trainer.round = Round::default();
        if matches!(self.trainer.doing, Doing::Waiting(..) | Doing::AtLimit(_)) {
            self.at_boundary(now);
        }
    }

    pub(super) fn obey_at_boundary(&mut self, now: Nanos, what: AtBoundary) {
        self.trainer.boundary.push(what);
        if matches!(self.trainer.doing, Doing::Nothing) {
            self.at_boundary(now);
        }
    }

    pub(super) fn at_boundary(&mut self, now: Nanos) {
        self.trainer.doing = Doing::Nothing;
        for what in std::mem::take(&mut self.trainer.boundary) {
            match what {
                AtBoundary::Restore {
                    state,
                    step,
                    samples,
                    from,
                    began,
                } => self.restore(now, &state, (step, samples), from, began),
                AtBoundary::Learn {
                    state,
                    from,
                    weight,
                    gated,
                } => self.learn(now, &state, from, weight, gated),
                AtBoundary::Judge => self.judge(),
            }
        }
        self.begin_step(now);
    }

    pub(super) fn begin_step(&mut self, now: Nanos) {
        if !self.trainer.is_training || !matches!(self.trainer.doing, Doing::Nothing) {
            return;
        }
        if self.others() > 0 && self.trainer.step >= self.trainer.limit {
            self.trainer.doing = Doing::AtLimit(now);
            return;
        }
        let batch = self.batch();
        self.trainer.local.begin_step(self.learner.parameters());
        match self.learner.gradient(batch, &mut self.trainer.gradient) {
            Ok(loss) => self.trainer.round.losses += loss,
            Err(reason) => {
                self.trainer.is_training = false;
                self.write(now, &Entry::Failed { reason: &reason });
                return self.input(now, Input::Unable(reason));
            }
        }
        self.trainer.round.batch = batch;
        let costs = &self.job.costs;
        let core_us = costs.us_per_step + costs.us_per_sample * f64::from(batch);
        self.trainer.trained_us += core_us;
        let owed = std::mem::take(&mut self.trainer.owed_us);
        let takes = self.works(core_us + owed).max(1000);
        self.trainer.doing = Doing::Stepping(now);
        self.later(takes, Work::StepDone);
    }

    /// This peer may go as far as this now.
    pub(super) fn on_limit(&mut self, now: Nanos, step: u64) {
        self.trainer.limit = step;
        if let Doing::AtLimit(since) = self.trainer.doing
            && self.trainer.step < step
        {
            self.trainer.round.waiting += now - since;
            self.trainer.doing = Doing::Nothing;
            self.begin_step(now);
        }
    }

    pub(super) fn on_step_done(&mut self, now: Nanos) {
        let Doing::Stepping(since) = self.trainer.doing else {
            return;
        };
        let trainer = &mut self.trainer;
        let samples = u64::from(trainer.round.batch);
        trainer.round.n += 1;
        trainer.round.samples += samples;
        trainer.round.computing += now - since;
        trainer.local.stepped(&trainer.gradient, samples);
        if self.is_synchronous() {
            return self.on_synchronous_step(now);
        }
        if !self.trainer.local.is_full() {
            self.commit_if_due(now);
            let global = self
                .trainer
                .share
                .map_or(samples, |share| share.global_batch);
            let weight = samples as f32 / global.max(1) as f32;
            if weight != 1.0 {
                let gradient = &mut self.trainer.gradient;
                gradient.iter_mut().for_each(|value| *value *= weight);
            }
        }
        let mut merged = std::mem::take(&mut self.trainer.merged);
        if self.exchange.take(&mut merged) {
            if self.trainer.local.is_full() {
                let parameters = self.learner.parameters_mut();
                self.trainer.local.merge(parameters, &merged);
            } else {
                let gradient = &mut self.trainer.gradient;
                let pairs = gradient.iter_mut().zip(&merged);
                pairs.for_each(|(own, other)| *own += other);
            }
        }
        self.trainer.merged = merged;
        self.apply();
        if self.trainer.local.is_full() {
            self.commit_if_due(now);
        }
        self.finish_step(now);
    }

    pub(super) fn finish_step(&mut self, now: Nanos) {
        self.trainer.doing = Doing::Finishing;
        let trainer = &mut self.trainer;
        let round = std::mem::take(&mut trainer.round);
        let Round {
            samples,
            computing,
            waiting,
            ..
        } = round;
        trainer.step += 1;
        trainer.work.steps += 1;
        trainer.work.samples += samples;
        trainer.work.computing_us += computing / 1000;
        trainer.work.waiting_us += waiting / 1000;
        self.learner.stepped();
        let trainer = &mut self.trainer;
        let loss = round.losses / round.n.max(1) as f32;
        if let Some(adacomm) = &mut trainer.adacomm {
            adacomm.period_ended(f64::from(loss));
        }
        let mean = trainer
            .train_loss
            .map_or(loss, |mean| mean + LOSS_WEIGHT * (loss - mean));
        trainer.train_loss = mean.is_finite().then_some(mean);
        let step_samples = samples.min(u64::from(u32::MAX)) as u32;
        self.power
            .observe(step_samples, Duration::from_nanos(computing));
        self.pace.commits = self.trainer.commits.n_made();
        self.sketch_if_due(now);
        let trainer = &mut self.trainer;
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
            stage: None,
        };
        self.write(now, &entry);
        self.trainer.is_training &= !self.is_at_last_step();
        self.give_copies();
        self.tell_progress(now);
        self.save_if_due(now);
        self.check_stop(now);
        let must_look = match (self.job.file.evaluate.every, self.trainer.looked) {
            (Some(every), _) => self.trainer.step.is_multiple_of(every),
            (None, Some((ended, took))) => now - ended >= took * u64::from(LOOK_ONE_IN),
            (None, None) => self
                .began
                .is_some_and(|began| u128::from(now - began) >= FIRST_LOOK.as_nanos()),
        };
        if must_look {
            self.look(now);
        } else {
            self.at_boundary(now);
        }
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
        if matches!(self.trainer.doing, Doing::Stepping(_) | Doing::Looking(..)) {
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
        let samples = self.agreement.mesh_samples();
        for (_, to) in due {
            let state = state.clone();
            let answer = Answer::Replica {
                state,
                step,
                samples,
            };
            self.answer(to, answer);
        }
    }
}

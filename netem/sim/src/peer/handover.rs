//! Own updates on their way to the others: commits where nobody waits, steps and rounds where all do.

use std::time::Duration;

use skein_gossip::exchange::Gradient;

use super::training::Doing;
use super::{Peer, tick};
use skein_netem::link::Nanos;

impl Peer {
    pub(super) fn on_synchronous_step(&mut self, now: Nanos) {
        if !self.trainer.is_training {
            return self.at_boundary(now);
        }
        let rounds = self.makes_rounds();
        let n_steps = match &self.trainer.adacomm {
            Some(adacomm) => adacomm.tau(),
            None if rounds => self.job.file.strategy.exchange.steps_per_commit(),
            None => 1,
        };
        if rounds {
            self.apply();
            if self.trainer.round.n < n_steps {
                self.trainer.doing = Doing::Nothing;
                return self.begin_step(now);
            }
            let (trainer, parameters) = (&mut self.trainer, self.learner.parameters());
            trainer.local.change(parameters, &mut trainer.handed);
        } else {
            let trainer = &mut self.trainer;
            trainer.handed.clear();
            trainer.handed.extend_from_slice(&trainer.gradient);
        }
        self.trainer.doing = Doing::Waiting(now);
        let samples = self.trainer.round.samples;
        self.hand_over(now, n_steps, samples);
    }

    fn hand_over(&mut self, now: Nanos, n_steps: u32, samples: u64) {
        let weights = self.weights();
        let gradient = Gradient {
            step: self.trainer.step,
            n_steps,
            samples,
            values: &self.trainer.handed,
            weights: &weights,
        };
        if let Err(error) = self.exchange.gradient(tick(now), gradient) {
            tracing::warn!(%error, "own gradient is not sent");
        }
        self.drain(now);
    }

    /// The parameters in the unit of what is handed over, where the exchange has to see them.
    fn weights(&self) -> Vec<f32> {
        if !self.job.file.strategy.exchange.needs_weights() {
            return Vec::new();
        }
        let global = self
            .trainer
            .share
            .map_or(1, |share| share.global_batch.max(1));
        let unit = match self.trainer.local.is_full() {
            true => 1.0,
            false => global as f32 / self.learner.learning_rate() as f32,
        };
        let parameters = self.learner.parameters().iter();
        parameters.map(|value| unit * value).collect()
    }

    /// Nobody waits: hands over what was summed up, when it is due.
    pub(super) fn commit_if_due(&mut self, now: Nanos) {
        if self.others() == 0 {
            self.trainer.local.forget();
            return;
        }
        let n_steps = self.trainer.local.owed().n_steps;
        let used = Duration::from_secs_f64(self.trainer.trained_us / 1e6);
        if !self.trainer.commits.due(tick(now), used, n_steps) {
            return;
        }
        let members = self.others() + 1;
        let mut handed = std::mem::take(&mut self.trainer.handed);
        let parameters = self.learner.parameters_mut();
        let owed = self.trainer.local.commit(parameters, members, &mut handed);
        self.trainer.handed = handed;
        self.trainer.commits.made(tick(now), used);
        self.hand_over(now, owed.n_steps, owed.samples);
        let spent = std::mem::take(&mut self.coding_us);
        let took = Duration::from_secs_f64(spent / 1e6);
        self.trainer.commits.cost(tick(now), took);
    }

    pub(super) fn apply(&mut self) {
        if let Err(reason) = self.learner.apply(&self.trainer.gradient) {
            tracing::warn!(reason, "step left out");
        }
    }

    /// Synchronous: the sum of a step is there.
    pub(super) fn on_ready(&mut self, now: Nanos, step: u64) {
        let Doing::Waiting(since) = self.trainer.doing else {
            return;
        };
        let mut sum = std::mem::take(&mut self.trainer.gradient);
        let took = self.exchange.take(&mut sum);
        self.trainer.gradient = sum;
        if !took || step != self.trainer.step {
            return;
        }
        self.trainer.round.waiting += now - since;
        if self.makes_rounds() {
            let (trainer, parameters) = (&mut self.trainer, self.learner.parameters_mut());
            trainer.local.adopt(parameters, &mut trainer.gradient);
        } else {
            self.apply();
        }
        self.finish_step(now);
    }
}

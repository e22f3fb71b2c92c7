//! One training step, from the rows to the update.

use std::time::{Duration, Instant};

use skein_model::config::Split;
use skein_model::data::{Batch, Sampler};

use super::handover::Wait;
use super::{Event, MAX_NOT_FINITE, Replica, State};

impl State {
    /// One step: of the optimiser, or a round of several where all wait for changes. False when the driver is gone.
    pub(super) fn step(&mut self) -> bool {
        let Some(mut waiting) = self.wait_for_limit() else {
            return false;
        };
        if !self.training {
            return true;
        }
        let rounds = self.thread.settings.exchange.is_synchronous() && self.local.is_full();
        let n_steps = match &self.adacomm {
            Some(adacomm) => adacomm.tau(),
            None if rounds => self.thread.settings.exchange.steps_per_commit(),
            None => 1,
        };
        let (mut samples, mut losses, mut computing) = (0, 0.0, Duration::ZERO);
        let started = Instant::now();
        for n in 0..n_steps {
            let began = Instant::now();
            let parameters = self.thread.trainer.model().parameters().values();
            self.local.begin_step(parameters);
            let batch = match self.next_batch() {
                Ok(batch) => batch,
                Err(reason) => return self.fail(reason),
            };
            let n_samples = batch.len() as u64;
            match self.thread.trainer.gradient(&batch, &mut self.gradient) {
                Ok(loss) => losses += loss,
                Err(error) => return self.skip(&error.to_string()),
            }
            // Alone, nobody is owed anything, and the sum would cost a pass.
            if self.others() > 0 || self.local.is_full() {
                self.local.stepped(&self.gradient, n_samples);
            }
            samples += n_samples;
            let computed = Instant::now();
            computing += computed - began;
            let is_last = n + 1 == n_steps;
            let mut scale = 1.0;
            if self.thread.settings.exchange.is_synchronous() {
                if rounds {
                    if let Err(error) = self.thread.trainer.apply(&self.gradient) {
                        return self.skip(&error.to_string());
                    }
                    computing += computed.elapsed();
                }
                if !is_last {
                    continue;
                }
                if !self.hand_over_mean(n_steps, samples) {
                    return false;
                }
                match self.wait_for_sum() {
                    Wait::Sum(waited) => waiting += waited,
                    Wait::GivenUp => return true,
                    Wait::Closed => return false,
                }
            } else {
                if !self.local.is_full() {
                    self.commit_if_due();
                }
                scale = self.merge(n_samples);
            }
            let applying = Instant::now();
            if rounds {
                let parameters = self.thread.trainer.model_mut().parameters_mut();
                self.local
                    .adopt(parameters.values_mut(), &mut self.gradient);
            } else if let Err(error) = self.thread.trainer.apply_scaled(&self.gradient, scale) {
                return self.skip(&error.to_string());
            }
            if let Some(average) = &mut self.average {
                average.updated(self.thread.trainer.model());
            }
            computing += applying.elapsed();
            if !rounds && self.local.is_full() {
                self.commit_if_due();
            }
        }
        self.not_finite = 0;
        self.thread.step += 1;
        let loss = losses / n_steps as f32;
        if let Some(adacomm) = &mut self.adacomm {
            adacomm.period_ended(f64::from(loss));
        }
        let step = Event::Step {
            step: self.thread.step,
            loss,
            samples,
            computing,
            waiting,
            communicating: started.elapsed().saturating_sub(computing + waiting),
            commits: self.commits.n_made(),
        };
        if self.thread.events.blocking_send(step).is_err() {
            return false;
        }
        self.give_copies();
        self.training &= !self.is_at_last_step();
        if !self.sketch_if_due() {
            return false;
        }
        !self.must_look() || self.look()
    }

    pub(super) fn is_at_last_step(&self) -> bool {
        let last = self.thread.settings.last_step;
        last.is_some_and(|last| self.thread.step >= last)
    }

    pub(super) fn next_batch(&mut self) -> Result<Batch, &'static str> {
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
        let settings = &self.thread.settings;
        let batch = match self.share {
            Some(share) if settings.exchange.is_synchronous() => {
                share.member.batch_at(self.thread.step)
            }
            Some(share) => share.member.batch,
            None => settings.batch,
        };
        let rows = sampler.next_rows(batch as usize);
        self.thread.position = sampler.position();
        Ok(self.thread.data.train.batch(&rows))
    }

    pub(super) fn fail(&mut self, reason: &'static str) -> bool {
        self.training = false;
        self.thread
            .events
            .blocking_send(Event::Failed(reason))
            .is_ok()
    }

    /// Leaves a step out whose numbers are of no use.
    pub(super) fn skip(&mut self, error: &str) -> bool {
        self.not_finite += 1;
        tracing::warn!(step = self.thread.step, error, "step left out");
        if self.not_finite > MAX_NOT_FINITE {
            return self
                .fail("training diverged: the loss is not finite; lower train.optimiser.lr");
        }
        self.local.forget();
        if self.thread.settings.exchange.is_synchronous() {
            // The others wait for this step: an empty gradient lets them go on.
            self.gradient.fill(0.0);
            let parameters = self.thread.trainer.model().parameters().values();
            self.local.begin_step(parameters);
            let batch = self.share.map_or(1, |share| share.member.batch);
            if !self.hand_over_mean(1, u64::from(batch)) {
                return false;
            }
            match self.wait_for_sum() {
                Wait::Sum(_) => {}
                Wait::GivenUp => return true,
                Wait::Closed => return false,
            }
            if self.local.is_full() {
                let parameters = self.thread.trainer.model_mut().parameters_mut();
                self.local
                    .adopt(parameters.values_mut(), &mut self.gradient);
            } else if self.thread.trainer.apply(&self.gradient).is_err() {
                return self
                    .fail("training diverged: the loss is not finite; lower train.optimiser.lr");
            }
            self.thread.step += 1;
            self.training &= !self.is_at_last_step();
        }
        self.thread
            .events
            .blocking_send(Event::NotFinite {
                step: self.thread.step,
            })
            .is_ok()
    }

    pub(super) fn give_copies(&mut self) {
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
}

fn shards(split: &Split) -> Option<u32> {
    match split {
        Split::All {} => None,
        Split::Iid { shards } | Split::Dirichlet { shards, .. } => Some((*shards).max(1)),
    }
}

//! One training step, from the rows to the update.

use std::time::{Duration, Instant};

use skein_model::config::Split;
use skein_model::data::{Batch, Sampler};

use super::handover::Wait;
use super::{Event, MAX_NOT_FINITE, Replica, State};

impl State {
    /// One step. False when the driver is gone.
    pub(super) fn step(&mut self) -> bool {
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
        self.training &= !self.is_at_last_step();
        !self
            .thread
            .step
            .is_multiple_of(self.thread.settings.evaluate_every)
            || self.look()
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
        let rows = sampler.next_rows(self.thread.settings.batch as usize);
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

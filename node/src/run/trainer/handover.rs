//! Own updates between the training thread and the coder. Buffers circulate, so nothing is allocated per step.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::super::coder::{self, thread_time};
use super::{BUFFERS, Command, State};

pub(super) enum Wait {
    Sum(Duration),
    GivenUp,
    Closed,
}

impl State {
    pub(super) fn others(&self) -> usize {
        self.share.map_or(0, |share| share.others)
    }

    /// Waits where this peer is further ahead than it may be. False when the channel is closed; the time waited otherwise.
    pub(super) fn wait_for_limit(&mut self) -> Option<Duration> {
        let started = Instant::now();
        while self.training && self.others() > 0 && self.thread.step >= self.limit {
            match self.thread.commands.blocking_recv() {
                None | Some(Command::End) => return None,
                Some(command) => self.obey(command),
            }
        }
        Some(started.elapsed())
    }

    /// Synchronous: a mean gradient, or the change since the last round, goes to the coder; the buffer comes back with the sum.
    pub(super) fn hand_over_mean(&mut self, n_steps: u32, samples: u64) -> bool {
        let mut values = self.spare.pop().unwrap_or_default();
        if self.local.is_full() {
            let parameters = self.thread.trainer.model().parameters().values();
            self.local.change(parameters, &mut values);
        } else {
            values.clear();
            values.extend_from_slice(&self.gradient);
        }
        let input = coder::Input::Gradient {
            step: self.thread.step,
            n_steps,
            samples,
            values,
            weights: self.weights(),
        };
        self.thread.coder.blocking_send(input).is_ok()
    }

    /// The sum ends up in `gradient`.
    pub(super) fn wait_for_sum(&mut self) -> Wait {
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

    /// Nobody waits: hands over what was summed up, when it is due and there is room.
    pub(super) fn commit_if_due(&mut self) {
        if self.others() == 0 {
            self.local.forget();
            return;
        }
        let now = self.thread.now();
        let used = thread_time();
        if !self.commits.due(now, used, self.local.owed().n_steps) {
            return;
        }
        let Some(mut values) = self.spare.pop() else {
            return;
        };
        let coder = self.thread.coder.clone();
        let permit = match coder.try_reserve() {
            Ok(permit) => permit,
            Err(mpsc::error::TrySendError::Full(()) | mpsc::error::TrySendError::Closed(())) => {
                self.spare.push(values);
                return;
            }
        };
        let weights = self.weights();
        let members = self.others() + 1;
        let parameters = self.thread.trainer.model_mut().parameters_mut();
        let owed = self
            .local
            .commit(parameters.values_mut(), members, &mut values);
        permit.send(coder::Input::Gradient {
            step: self.thread.step,
            n_steps: owed.n_steps,
            samples: owed.samples,
            values,
            weights,
        });
        self.commits.made(now, used);
    }

    /// The parameters in the unit of what is handed over, where the exchange has to see them.
    fn weights(&self) -> Vec<f32> {
        if !self.thread.settings.exchange.needs_weights() {
            return Vec::new();
        }
        let unit = if self.local.is_full() {
            1.0
        } else {
            let global = self.share.map_or(1, |share| share.global_batch.max(1));
            global as f32 / self.thread.trainer.learning_rate() as f32
        };
        let parameters = self.thread.trainer.model().parameters().values();
        parameters.iter().map(|value| unit * value).collect()
    }

    /// Nobody waits: what arrived is added. By share, to the own gradient, which counts by its part of the global batch; in full, to
    /// the parameters. Returns what the gradient is still to be multiplied with.
    pub(super) fn merge(&mut self, samples: u64) -> f32 {
        let weight = if self.local.is_full() {
            1.0
        } else {
            let global = self.share.map_or(samples, |share| share.global_batch);
            samples as f32 / global.max(1) as f32
        };
        let Some((_, values)) = self.merged.take() else {
            return weight;
        };
        if self.local.is_full() {
            let parameters = self.thread.trainer.model_mut().parameters_mut();
            self.local.merge(parameters.values_mut(), &values);
        } else {
            let pairs = self.gradient.iter_mut().zip(&values);
            pairs.for_each(|(own, other)| *own = weight * *own + other);
        }
        self.give_back(values);
        1.0
    }

    /// What was merged for a replica that is no more; the buffer must not be lost with it.
    pub(super) fn drop_merged(&mut self) {
        if let Some((_, values)) = self.merged.take() {
            self.give_back(values);
        }
    }

    pub(super) fn give_back(&mut self, values: Vec<f32>) {
        if self.thread.settings.exchange.is_synchronous() {
            // The sum's buffer carries the next gradient.
            self.spare.push(values);
            self.spare.truncate(BUFFERS);
            return;
        }
        // The coder gets on without us, so this waits for a packet or two at most; a coder that has ended needs no buffer.
        let _ = self.thread.coder.blocking_send(coder::Input::Spare(values));
    }
}

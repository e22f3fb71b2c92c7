//! Gradients between the training thread and the coder. Buffers circulate, so nothing is allocated per step.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::super::coder;
use super::{BUFFERS, Command, State};

pub(super) enum Wait {
    Sum(Duration),
    GivenUp,
    Closed,
}

impl State {
    /// Synchronous: the mean gradient goes to the coder; the buffer comes back with the sum.
    pub(super) fn hand_over_mean(&mut self, samples: u64) -> bool {
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

    /// Asynchronous: adds the own gradient to what the coder is owed, and hands it over when it is due and there is room.
    pub(super) fn hand_over_sum(&mut self, samples: u64) {
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
    pub(super) fn merge(&mut self, samples: u64) {
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
    pub(super) fn drop_merged(&mut self) {
        if let Some((_, values)) = self.merged.take() {
            self.give_back(values);
        }
    }

    pub(super) fn give_back(&mut self, values: Vec<f32>) {
        if self.thread.settings.synchronous {
            // The sum's buffer carries the next gradient.
            self.outbox.spare.push(values);
            self.outbox.spare.truncate(BUFFERS);
            return;
        }
        // The coder gets on without us, so this waits for a packet or two at most; a coder that has ended needs no buffer.
        let _ = self.thread.coder.blocking_send(coder::Input::Spare(values));
    }
}

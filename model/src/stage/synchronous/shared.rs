//! A stage that several peers host, each with its samples of every micro-batch: what each has to add to what the others have, and
//! what follows from the sum (Asteroid: Ye et al., MobiCom 2024, intra-stage data parallelism).
//!
//! Gradients carry the weights of their micro-batches, so their sum is the step's. What batch norm recorded is averaged by samples;
//! each host normalises over its own, as with data parallelism everywhere.

use super::{Stage, StageError};

/// Bits of a batch number below the number of the first sample: hosts draw different random numbers.
const BATCH_BITS: u32 = 31;

impl Stage {
    /// This host computes the samples of each micro-batch from number `row` on. At 0, as by default, it draws the random numbers
    /// that a lone host would.
    pub fn set_first_row(&mut self, row: u32) {
        self.first_row = i64::from(row) << BATCH_BITS;
    }

    /// Values of [`Stage::addend`].
    pub fn addend_len(&self) -> usize {
        self.gradient.len() + self.buffers.len()
    }

    /// What this host has to add at the end of a step: its summed gradient, then what batch norm recorded, by its share of the
    /// samples, in (0, 1].
    pub fn addend(&self, share: f32) -> Vec<f32> {
        let buffers = self.buffers.values().iter().map(|value| share * value);
        self.gradient.iter().copied().chain(buffers).collect()
    }

    /// The sum over all hosts takes the place of what this one had; [`Stage::apply`] follows.
    ///
    /// # Errors
    /// Micro-batches still in flight; a sum of another size.
    pub fn put_sum(&mut self, sum: &[f32]) -> Result<(), StageError> {
        self.check_idle()?;
        let n = self.gradient.len();
        if sum.len() != self.addend_len() {
            return Err(StageError::Sum {
                expected: self.addend_len(),
                got: sum.len(),
            });
        }
        self.gradient.copy_from_slice(&sum[..n]);
        self.buffers.values_mut().copy_from_slice(&sum[n..]);
        Ok(())
    }
}

//! What each block costs on one device. Peers send profiles to each other, so they are checked before use.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Most blocks of a profile: planning takes time that grows with their square.
pub const MAX_BLOCKS: usize = 512;

/// Longest time that is believed, in seconds: a day.
const MAX_SECONDS: f64 = 86_400.0;

/// Most bytes that are believed: 2^50.
const MAX_BYTES: u64 = 1 << 50;

/// Time of a pass, as a line over the batch size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Time {
    /// Seconds whatever the batch.
    pub fixed: f64,
    /// Seconds per sample.
    pub per_sample: f64,
}

impl Time {
    /// Seconds for a batch of `samples`.
    pub fn of(&self, samples: usize) -> f64 {
        self.fixed + self.per_sample * samples as f64
    }

    /// `factor` times as much.
    #[must_use]
    pub(crate) fn times(self, factor: f64) -> Self {
        Self {
            fixed: factor * self.fixed,
            per_sample: factor * self.per_sample,
        }
    }

    /// The line through two measurements, neither part below zero; of one size alone, all time is per sample.
    pub fn fit([small, large]: [(usize, f64); 2]) -> Self {
        let ((n_small, small), (n_large, large)) = (small, large);
        let n = n_large.max(1) as f64;
        if n_small >= n_large || small >= large {
            // A larger batch that takes no longer: noise, and the larger one is what will be run.
            return Self {
                fixed: 0.0,
                per_sample: large / n,
            };
        }
        let per_sample = ((large - small) / (n_large - n_small) as f64).min(large / n);
        Self {
            fixed: (large - per_sample * n).max(0.0),
            per_sample,
        }
    }
}

/// What one block costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockProfile {
    /// Forward pass of a micro-batch.
    pub forward: Time,
    /// Backward pass of a micro-batch.
    pub backward: Time,
    /// Seconds of the optimiser's update.
    pub update: f64,
    /// Bytes of its output per sample, which is also what comes back as gradient.
    pub output_bytes: u64,
    /// Bytes of its parameters.
    pub parameter_bytes: u64,
    /// Bytes of parameters, gradient, optimiser state and buffers.
    pub state_bytes: u64,
    /// Bytes per sample that the forward pass keeps for the backward pass.
    pub kept_bytes: u64,
}

/// What the blocks of a model cost on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Bytes of the first block's input per sample.
    pub input_bytes: u64,
    /// First to last.
    pub blocks: Vec<BlockProfile>,
}

/// Why a profile is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// No blocks, or more than any model has.
    #[error("a profile of {got} blocks; between 1 and {MAX_BLOCKS} can be planned for")]
    Blocks {
        /// Blocks in the profile.
        got: usize,
    },
    /// A time or size that cannot be.
    #[error("the profile of block {block} holds a time or size that cannot be: measure it again")]
    Block {
        /// Number of the block.
        block: usize,
    },
}

impl Profile {
    /// Refuses times that are negative, not finite or beyond a day, sizes beyond 2^50 bytes, and no blocks.
    ///
    /// # Errors
    /// The first block that is not believed.
    pub fn check(&self) -> Result<(), ProfileError> {
        let got = self.blocks.len();
        if !(1..=MAX_BLOCKS).contains(&got) {
            return Err(ProfileError::Blocks { got });
        }
        let believed = |block: &BlockProfile| {
            let times = [
                block.forward.fixed,
                block.forward.per_sample,
                block.backward.fixed,
                block.backward.per_sample,
                block.update,
            ];
            let sizes = [
                block.output_bytes,
                block.parameter_bytes,
                block.state_bytes,
                block.kept_bytes,
                self.input_bytes,
            ];
            times.iter().all(|time| (0.0..=MAX_SECONDS).contains(time))
                && sizes.iter().all(|size| *size <= MAX_BYTES)
        };
        match self.blocks.iter().position(|block| !believed(block)) {
            Some(block) => Err(ProfileError::Block { block }),
            None => Ok(()),
        }
    }

    /// Seconds of the forward and of the backward pass of `blocks` with `samples` samples, on the device it was measured on.
    pub fn seconds(&self, blocks: Range<usize>, samples: usize) -> [f64; 2] {
        let blocks = self.blocks.get(blocks).unwrap_or(&[]);
        let sum = |time: fn(&BlockProfile) -> Time| {
            let times = blocks.iter().map(|block| time(block).of(samples));
            times.sum::<f64>()
        };
        [sum(|block| block.forward), sum(|block| block.backward)]
    }

    /// Bytes per sample that go into block `block`.
    pub fn bytes_into(&self, block: usize) -> u64 {
        let before = block
            .checked_sub(1)
            .and_then(|before| self.blocks.get(before));
        before.map_or(self.input_bytes, |before| before.output_bytes)
    }
}

/// How much slower a device is than the one the profile is of, from what `blocks` took it: the factor on all times, above
/// 1 for a slower device (FTPipeHD's C_k). None where the figures say nothing.
pub fn capacity(
    profile: &Profile,
    blocks: Range<usize>,
    samples: usize,
    seconds: f64,
) -> Option<f64> {
    let [forward, backward] = profile.seconds(blocks, samples);
    let factor = seconds / (forward + backward);
    (factor.is_finite() && factor > 0.0).then_some(factor)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_measurements_make_a_line() {
        let time = Time::fit([(8, 0.5), (16, 0.9)]);
        assert!((time.fixed - 0.1).abs() < 1e-12 && (time.per_sample - 0.05).abs() < 1e-12);
        assert_eq!(Time::fit([(8, 0.5), (16, 0.4)]).per_sample, 0.025);
        let steep = Time::fit([(8, 0.1), (16, 0.9)]);
        assert_eq!((steep.fixed, steep.of(16)), (0.0, 0.9));
    }

    #[test]
    fn a_device_that_takes_three_times_as_long_has_three_times_the_factor() {
        let block = BlockProfile {
            forward: Time {
                fixed: 0.1,
                per_sample: 0.01,
            },
            backward: Time {
                fixed: 0.1,
                per_sample: 0.02,
            },
            ..BlockProfile::default()
        };
        let profile = Profile {
            input_bytes: 4,
            blocks: vec![block; 3],
        };
        let factor = capacity(&profile, 1..3, 10, 3.0).unwrap();
        assert!((factor - 3.0).abs() < 1e-9, "{factor}");
        assert_eq!(capacity(&profile, 1..1, 10, 3.0), None);
        assert_eq!(capacity(&profile, 0..9, 10, f64::NAN), None);
    }

    #[test]
    fn figures_that_cannot_be_are_refused() {
        let with = |block: BlockProfile| Profile {
            input_bytes: 4,
            blocks: vec![BlockProfile::default(), block],
        };
        assert_eq!(with(BlockProfile::default()).check(), Ok(()));
        for update in [f64::NAN, f64::INFINITY, -1.0, 1e6] {
            let block = BlockProfile {
                update,
                ..BlockProfile::default()
            };
            assert_eq!(with(block).check(), Err(ProfileError::Block { block: 1 }));
        }
        let huge = BlockProfile {
            kept_bytes: u64::MAX,
            ..BlockProfile::default()
        };
        assert_eq!(with(huge).check(), Err(ProfileError::Block { block: 1 }));
        assert_eq!(
            Profile::default().check(),
            Err(ProfileError::Blocks { got: 0 })
        );
    }

    proptest! {
        #[test]
        fn a_fitted_line_is_never_negative_and_meets_the_larger_batch(small in 0.0..10.0, large in 0.0..10.0, n in 1usize..50, more in 0usize..50) {
            let time = Time::fit([(n, small), (n + more, large)]);
            prop_assert!(time.fixed >= 0.0 && time.per_sample >= 0.0);
            prop_assert!((time.of(n + more) - large).abs() < 1e-9);
        }
    }
}

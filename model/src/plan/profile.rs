//! What each block costs on one device. Peers send profiles to each other, so they are checked before use.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::time::Time;

/// Most blocks of a profile: planning takes time that grows with their square.
pub const MAX_BLOCKS: usize = 512;

/// Longest time that is believed, in seconds: a day.
const MAX_SECONDS: f64 = 86_400.0;

/// Most bytes that are believed: 2^50.
const MAX_BYTES: u64 = 1 << 50;

/// How long one block takes on a device of its own kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockTimes {
    /// Forward pass, by samples.
    pub forward: Time,
    /// Backward pass, by samples.
    pub backward: Time,
    /// Seconds of the optimiser's update.
    #[serde(default)]
    pub update: f64,
}

impl BlockTimes {
    /// Whether these times can be.
    pub(crate) fn is_believed(&self) -> bool {
        self.forward.is_believed(MAX_SECONDS)
            && self.backward.is_believed(MAX_SECONDS)
            && (0.0..=MAX_SECONDS).contains(&self.update)
    }
}

/// What one block costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockProfile {
    /// Forward pass of a micro-batch.
    pub forward: Time,
    /// Backward pass of a micro-batch.
    pub backward: Time,
    /// Seconds of the optimiser's update.
    #[serde(default)]
    pub update: f64,
    /// Bytes of its output per sample, which is also what comes back as gradient.
    pub output_bytes: u64,
    /// Bytes of its parameters.
    pub parameter_bytes: u64,
    /// Bytes of parameters, gradient, optimiser state and buffers.
    pub state_bytes: u64,
    /// Bytes of the copies that a stage of a pipeline keeps of it beside its state; replicas keep none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub copies_bytes: u64,
    /// Bytes per sample that the forward pass keeps for the backward pass.
    pub kept_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// What the blocks of a model cost on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// Refuses times that are negative, not finite, beyond a day or that fall as batches grow, sizes beyond 2^50 bytes, and no blocks.
    ///
    /// # Errors
    /// The first block that is not believed.
    pub fn check(&self) -> Result<(), ProfileError> {
        let got = self.blocks.len();
        if !(1..=MAX_BLOCKS).contains(&got) {
            return Err(ProfileError::Blocks { got });
        }
        let believed = |block: &BlockProfile| {
            let sizes = [
                block.output_bytes,
                block.parameter_bytes,
                block.state_bytes,
                block.copies_bytes,
                block.kept_bytes,
                self.input_bytes,
            ];
            block.forward.is_believed(MAX_SECONDS)
                && block.backward.is_believed(MAX_SECONDS)
                && (0.0..=MAX_SECONDS).contains(&block.update)
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
        let sum = |time: fn(&BlockProfile) -> &Time| {
            let times = blocks.iter().map(|block| time(block).of(samples));
            times.sum::<f64>()
        };
        [sum(|block| &block.forward), sum(|block| &block.backward)]
    }

    /// Bytes per sample that go into block `block`.
    pub fn bytes_into(&self, block: usize) -> u64 {
        let before = block
            .checked_sub(1)
            .and_then(|before| self.blocks.get(before));
        before.map_or(self.input_bytes, |before| before.output_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let falling = BlockProfile {
            forward: serde_json::from_str("[[1, 0.5], [4, 0.25]]").unwrap(),
            ..BlockProfile::default()
        };
        assert_eq!(with(falling).check(), Err(ProfileError::Block { block: 1 }));
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
}

//! The state of one block at a step boundary: parameters, optimiser vectors, buffers and counters. It is what a block
//! goes on from on any device, what replicas hold, and, all blocks together, a whole
//! snapshot.

use std::ops::Range;

use crate::arena::{Segment, push_values, read_values};
use crate::block::{Builder, Variable};
use crate::config::{ModelConfig, OptimiserConfig};
use crate::model::{ModelError, build};

const MAGIC: &[u8; 8] = b"skeinbl1";
const HEADER_BYTES: usize = 8 + 2 * 4 + 4 * 8;

/// Why bytes or values are no state of a block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The bytes do not start as a block's state does.
    #[error("these bytes are no block's state (or one of another version)")]
    Magic,
    /// It is another block's.
    #[error("the state of block {expected} was expected, got that of block {got}")]
    Block {
        /// Number of the block that was expected.
        expected: usize,
        /// Number in the state.
        got: usize,
    },
    /// The length is not that of the block's state.
    #[error("the state of block {block} has {expected} bytes, got {got}")]
    Length {
        /// Number of the block.
        block: usize,
        /// Bytes its state has.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// A part has another size than the block's.
    #[error("block {block} has {expected} {part}, its state {got}")]
    Size {
        /// Number of the block.
        block: usize,
        /// `parameters`, `buffers`, `optimiser vectors` or `elements per optimiser vector`.
        part: &'static str,
        /// Size in the model.
        expected: u64,
        /// Size in the state.
        got: u64,
    },
    /// A value is NaN or infinite.
    #[error(
        "value {index} of block {block}'s {part} is not finite: the sender's training has diverged"
    )]
    NonFinite {
        /// Number of the block.
        block: usize,
        /// `parameters`, `buffers` or `optimiser vectors`.
        part: &'static str,
        /// Index of the first such value.
        index: usize,
    },
    /// A counter is negative.
    #[error("block {block} has seen {got} batches, below zero")]
    NegativeCounter {
        /// Number of the block.
        block: usize,
        /// The counter.
        got: i64,
    },
    /// A block that the model has is not there.
    #[error("the state of block {block} is missing")]
    Missing {
        /// Number of the block.
        block: usize,
    },
    /// Two states of one block.
    #[error("the state of block {block} is given twice")]
    Twice {
        /// Number of the block.
        block: usize,
    },
    /// Blocks are from different steps.
    #[error(
        "block {block} is {got_steps} steps and {got_batches} batches old, others {steps} and {batches}"
    )]
    Uneven {
        /// Number of the block.
        block: usize,
        /// Steps of the first block.
        steps: u64,
        /// Batches of the first block.
        batches: i64,
        /// Steps of this one.
        got_steps: u64,
        /// Batches of this one.
        got_batches: i64,
    },
}

/// Sizes of one block, and where it lies in the whole model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// Number in the chain, from 0.
    pub index: usize,
    /// Name, such as `features.3`.
    pub name: String,
    /// Its elements of the whole model's parameters.
    pub parameters: Range<usize>,
    /// Its elements of the whole model's buffers.
    pub buffers: Range<usize>,
    /// Vectors the optimiser keeps, each as long as the parameters.
    pub n_vectors: usize,
}

/// The layouts of all blocks, first to last, without memory for them.
///
/// # Errors
/// As [`crate::model::Model::new`], but for want of memory.
pub fn block_layouts(
    config: &ModelConfig,
    input_shape: [i64; 3],
    n_classes: i64,
    optimiser: &OptimiserConfig,
) -> Result<Vec<BlockLayout>, ModelError> {
    let builder = build(config, input_shape, n_classes)?;
    Ok(layouts_of(&builder, optimiser.state_names().len()))
}

/// The layout of block number `block`; none where the model has no such block.
///
/// # Errors
/// As [`block_layouts`].
pub fn block_layout(
    config: &ModelConfig,
    input_shape: [i64; 3],
    n_classes: i64,
    optimiser: &OptimiserConfig,
    block: usize,
) -> Result<Option<BlockLayout>, ModelError> {
    let mut layouts = block_layouts(config, input_shape, n_classes, optimiser)?;
    Ok((block < layouts.len()).then(|| layouts.swap_remove(block)))
}

pub(crate) fn layouts_of(builder: &Builder, n_vectors: usize) -> Vec<BlockLayout> {
    let elements = |variables: &[Variable], range: Range<usize>| {
        let start = variables[..range.start]
            .last()
            .map_or(0, |v| end(&v.segment));
        start..variables[..range.end].last().map_or(0, |v| end(&v.segment))
    };
    let layout = |(index, block): (usize, &crate::Block)| BlockLayout {
        index,
        name: block.name().to_owned(),
        parameters: elements(&builder.parameters, block.parameters()),
        buffers: elements(&builder.buffers, block.buffers()),
        n_vectors,
    };
    builder.blocks.iter().enumerate().map(layout).collect()
}

/// The values of a state, wherever they lie.
pub(crate) struct Values<'a> {
    pub(crate) parameters: &'a [f32],
    pub(crate) optimiser: &'a [&'a [f32]],
    pub(crate) buffers: &'a [f32],
}

/// Appends an encoded state.
pub(crate) fn write(
    bytes: &mut Vec<u8>,
    block: usize,
    (batches_tracked, optimiser_steps): (i64, u64),
    values: &Values,
) {
    let Values {
        parameters,
        optimiser,
        buffers,
    } = values;
    let n = parameters.len() * (1 + optimiser.len()) + buffers.len();
    bytes.reserve(HEADER_BYTES + 4 * n);
    bytes.extend(MAGIC);
    bytes.extend((block as u32).to_le_bytes());
    bytes.extend((optimiser.len() as u32).to_le_bytes());
    bytes.extend((parameters.len() as u64).to_le_bytes());
    bytes.extend((buffers.len() as u64).to_le_bytes());
    bytes.extend(batches_tracked.to_le_bytes());
    bytes.extend(optimiser_steps.to_le_bytes());
    push_values(bytes, parameters);
    optimiser
        .iter()
        .for_each(|vector| push_values(bytes, vector));
    push_values(bytes, buffers);
}

fn end(segment: &Segment) -> usize {
    segment.offset + segment.len
}

impl BlockLayout {
    /// Bytes of an encoded state: the bound for a transfer.
    pub fn encoded_len(&self) -> usize {
        HEADER_BYTES + 4 * (self.parameters.len() * (1 + self.n_vectors) + self.buffers.len())
    }
}

/// Everything one block goes on from.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockState {
    /// Number in the chain, from 0.
    pub block: usize,
    /// Its parameters.
    pub parameters: Vec<f32>,
    /// The optimiser's vectors, each as long as the parameters.
    pub optimiser: Vec<Vec<f32>>,
    /// Batch norm's running statistics.
    pub buffers: Vec<f32>,
    /// Training micro-batches seen.
    pub batches_tracked: i64,
    /// Optimiser updates made.
    pub optimiser_steps: u64,
}

/// blake3 of an encoded state.
pub fn digest(encoded: &[u8]) -> [u8; 32] {
    *blake3::hash(encoded).as_bytes()
}

impl BlockState {
    /// The bytes: magic, number, sizes, counters, then parameters, optimiser vectors and buffers as little-endian f32.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let optimiser: Vec<&[f32]> = self.optimiser.iter().map(Vec::as_slice).collect();
        let values = Values {
            parameters: &self.parameters,
            optimiser: &optimiser,
            buffers: &self.buffers,
        };
        let counters = (self.batches_tracked, self.optimiser_steps);
        write(&mut bytes, self.block, counters, &values);
        bytes
    }

    /// Reads what [`BlockState::encode`] wrote. Allocates nothing before the length fits the layout.
    ///
    /// # Errors
    /// Bytes that are not exactly a state of this block, or hold values that are not finite.
    pub fn decode(bytes: &[u8], layout: &BlockLayout) -> Result<Self, StateError> {
        if bytes.get(..8) != Some(MAGIC) {
            return Err(StateError::Magic);
        }
        let (block, expected) = (layout.index, layout.encoded_len());
        if bytes.len() != expected {
            return Err(StateError::Length {
                block,
                expected,
                got: bytes.len(),
            });
        }
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|j| bytes[at + j]));
        let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|j| bytes[16 + 8 * i + j]));
        if half(8) as usize != block {
            return Err(StateError::Block {
                expected: block,
                got: half(8) as usize,
            });
        }
        for (part, expected, got) in [
            ("optimiser vectors", layout.n_vectors, u64::from(half(12))),
            ("parameters", layout.parameters.len(), word(0)),
            ("buffers", layout.buffers.len(), word(1)),
        ] {
            size(block, part, expected, got)?;
        }
        let mut rest = &bytes[HEADER_BYTES..];
        let mut take = |n: usize| {
            let (values, after) = rest.split_at(n * 4);
            rest = after;
            read_values(values)
        };
        let parameters = take(layout.parameters.len());
        let vectors = 0..layout.n_vectors;
        let state = Self {
            block,
            optimiser: vectors.map(|_| take(layout.parameters.len())).collect(),
            buffers: take(layout.buffers.len()),
            parameters,
            batches_tracked: word(2) as i64,
            optimiser_steps: word(3),
        };
        state.check(layout)?;
        Ok(state)
    }

    /// blake3 of the encoded state.
    pub fn digest(&self) -> [u8; 32] {
        digest(&self.encode())
    }

    /// Checks sizes against `layout`, and that every value is finite.
    ///
    /// # Errors
    /// The first difference or value that is not finite.
    pub fn check(&self, layout: &BlockLayout) -> Result<(), StateError> {
        let block = layout.index;
        if self.block != block {
            return Err(StateError::Block {
                expected: block,
                got: self.block,
            });
        }
        let sizes = [
            ("parameters", layout.parameters.len(), self.parameters.len()),
            ("buffers", layout.buffers.len(), self.buffers.len()),
            ("optimiser vectors", layout.n_vectors, self.optimiser.len()),
        ];
        let of_vectors = self.optimiser.iter().map(|vector| {
            let expected = layout.parameters.len();
            ("elements per optimiser vector", expected, vector.len())
        });
        for (part, expected, got) in sizes.into_iter().chain(of_vectors) {
            size(block, part, expected, got as u64)?;
        }
        if self.batches_tracked < 0 {
            return Err(StateError::NegativeCounter {
                block,
                got: self.batches_tracked,
            });
        }
        let vectors = self
            .optimiser
            .iter()
            .map(|vector| ("optimiser vectors", vector));
        let weights = [("parameters", &self.parameters), ("buffers", &self.buffers)];
        for (part, values) in weights.into_iter().chain(vectors) {
            if let Some(index) = values.iter().position(|value| !value.is_finite()) {
                return Err(StateError::NonFinite { block, part, index });
            }
        }
        Ok(())
    }
}

pub(crate) fn size(
    block: usize,
    part: &'static str,
    expected: usize,
    got: u64,
) -> Result<(), StateError> {
    let expected = expected as u64;
    let error = StateError::Size {
        block,
        part,
        expected,
        got,
    };
    if expected == got { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout() -> BlockLayout {
        BlockLayout {
            index: 3,
            name: "features.3".into(),
            parameters: 10..16,
            buffers: 4..6,
            n_vectors: 1,
        }
    }

    fn state() -> BlockState {
        BlockState {
            block: 3,
            parameters: (0..6).map(|i| i as f32 / 3.0).collect(),
            optimiser: vec![vec![-0.5; 6]],
            buffers: vec![1.0, -0.0],
            batches_tracked: 12,
            optimiser_steps: 3,
        }
    }

    #[test]
    fn a_state_survives_its_bytes() {
        let bytes = state().encode();
        assert_eq!(bytes.len(), layout().encoded_len());
        let read = BlockState::decode(&bytes, &layout()).unwrap();
        assert_eq!(read.encode(), bytes);
        assert_eq!(read.digest(), digest(&bytes));
    }

    #[test]
    fn a_state_of_another_block_or_with_nan_is_refused() {
        let decode = |state: BlockState| BlockState::decode(&state.encode(), &layout());
        let other = BlockState {
            block: 4,
            ..state()
        };
        assert!(matches!(
            decode(other),
            Err(StateError::Block {
                expected: 3,
                got: 4
            })
        ));
        let negative = BlockState {
            batches_tracked: -1,
            ..state()
        };
        assert!(matches!(
            decode(negative),
            Err(StateError::NegativeCounter { block: 3, got: -1 })
        ));
        let mut diverged = state();
        diverged.optimiser[0][2] = f32::NAN;
        assert!(matches!(
            decode(diverged),
            Err(StateError::NonFinite { index: 2, .. })
        ));
        let mut shifted = state();
        shifted.buffers.push(shifted.parameters[0]);
        shifted.parameters.truncate(5);
        assert!(matches!(
            decode(shifted),
            Err(StateError::Size {
                part: "parameters",
                ..
            })
        ));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(BlockState::decode(&bytes, &layout()).is_err());
        }

        #[test]
        fn a_changed_byte_is_an_error_or_another_finite_state(at in 0usize..104, byte: u8) {
            let mut bytes = state().encode();
            bytes[at] = byte;
            if let Ok(decoded) = BlockState::decode(&bytes, &layout()) {
                prop_assert_eq!(decoded.check(&layout()), Ok(()));
                prop_assert_eq!(decoded.encode(), bytes);
            }
        }
    }
}

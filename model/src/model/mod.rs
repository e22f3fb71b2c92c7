//! A model: a chain of blocks over two arenas, parameters (trained) and buffers (batch norm's running statistics).
//!
//! [`Layout`] says what a model looks like without allocating it; it is what snapshots and checkpoints are checked against.

mod layout;

use tch::Tensor;

pub use layout::{Layout, ModelError};
pub(crate) use layout::{build, layout_of};

use crate::arena::{Arena, hash_values};
use crate::block::{self, Block, Init, Variable};
use crate::config::ModelConfig;
use crate::layer::{Mode, Pass, Variables};
use crate::random::Stream;

/// A model with its weights.
#[derive(Debug)]
pub struct Model {
    layout: Layout,
    seed: u64,
    blocks: Vec<Block>,
    parameters: Arena,
    buffers: Arena,
    batches_tracked: i64,
    initial_hash: [u8; 32],
}

impl Model {
    /// A model for images of `input_shape` (channels, height, width) with initial weights drawn from `seed`: bit-equal on
    /// every platform, since each variable has its own named stream and only exact operations are used.
    ///
    /// # Errors
    /// Settings that cannot work, images too small for the model, more than [`crate::MAX_PARAMETERS`] parameters, no memory.
    pub fn new(
        config: &ModelConfig,
        input_shape: [i64; 3],
        n_classes: i64,
        seed: u64,
    ) -> Result<Self, ModelError> {
        let builder = build(config, input_shape, n_classes)?;
        let layout = layout_of(config, input_shape, n_classes, &builder);
        let mut parameters = Arena::new(layout.parameters.clone(), 0, true)?;
        let mut buffers = Arena::new(layout.buffers.clone(), 0, false)?;
        initialise(parameters.values_mut(), &builder.parameters, seed);
        initialise(buffers.values_mut(), &builder.buffers, seed);
        let initial_hash = weights_hash(parameters.values(), buffers.values());
        Ok(Self {
            layout,
            seed,
            blocks: builder.blocks,
            parameters,
            buffers,
            batches_tracked: 0,
            initial_hash,
        })
    }

    /// Applies the model.
    ///
    /// With `train` batch norm uses the batch's statistics and updates its buffers, dropout drops (from the seed and
    /// the number of batches seen), and the pass is recorded for gradients unless inside `tch::no_grad`.
    ///
    /// # Shapes
    /// `x: [B, C, H, W] f32 → [B, n_classes]`; of a gpt `x: [B, 1, 1, T] f32 → [B, T, n_classes]`
    ///
    /// # Errors
    /// A batch of another shape; a single sample where batch norm needs two.
    pub fn forward(&mut self, x: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        crate::runtime::take_over_threads();
        let got = x.size();
        if got.len() != 4 || got[0] < 1 || got[1..] != self.layout.input_shape {
            return Err(ModelError::BatchShape {
                expected: self.layout.input_shape,
                got,
            });
        }
        if train && got[0] < self.min_train_batch() {
            return Err(ModelError::SingleSample {
                kind: self.layout.config.kind(),
            });
        }
        let mode = if train { Mode::Train } else { Mode::Evaluate };
        let parameters = Variables::of(&self.parameters, 0);
        let buffers = Variables::of(&self.buffers, 0);
        let mut pass = Pass::new(parameters, buffers, mode, self.seed, self.batches_tracked);
        let y = block::run(&self.blocks, x, &mut pass)?;
        self.batches_tracked += i64::from(train);
        Ok(y)
    }

    /// Smallest batch that can be trained on: two where batch norm sees a single pixel per image.
    pub fn min_train_batch(&self) -> i64 {
        self.layout.min_train_batch()
    }

    /// The blocks, first to last.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The parameters.
    pub fn parameters(&self) -> &Arena {
        &self.parameters
    }

    /// The parameters, to be changed in place.
    pub fn parameters_mut(&mut self) -> &mut Arena {
        &mut self.parameters
    }

    /// Batch norm's running statistics.
    pub fn buffers(&self) -> &Arena {
        &self.buffers
    }

    /// Batch norm's running statistics, to be changed in place.
    pub fn buffers_mut(&mut self) -> &mut Arena {
        &mut self.buffers
    }

    /// Number of parameters.
    pub fn n_parameters(&self) -> usize {
        self.parameters.len()
    }

    /// What the model looks like.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Training batches seen (torch's `num_batches_tracked`).
    pub fn batches_tracked(&self) -> i64 {
        self.batches_tracked
    }

    /// Sets the number of training batches seen.
    pub(crate) fn set_batches_tracked(&mut self, batches_tracked: i64) {
        self.batches_tracked = batches_tracked;
    }

    /// Hash of the weights the model started with; peers compare it before step 0.
    pub fn initial_hash(&self) -> [u8; 32] {
        self.initial_hash
    }

    /// Hash of the weights as they are now.
    pub fn weights_hash(&self) -> [u8; 32] {
        weights_hash(self.parameters.values(), self.buffers.values())
    }
}

/// blake3 over the little-endian bytes of parameters and buffers.
pub(crate) fn weights_hash(parameters: &[f32], buffers: &[f32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hash_values(&mut hasher, parameters);
    hash_values(&mut hasher, buffers);
    *hasher.finalize().as_bytes()
}

/// Draws the initial values of `variables` from their streams of `seed`.
pub(crate) fn initialise(values: &mut [f32], variables: &[Variable], seed: u64) {
    for Variable { segment, init } in variables {
        let values = &mut values[segment.offset..segment.offset + segment.len];
        match init {
            Init::Zero => values.fill(0.0),
            Init::One => values.fill(1.0),
            Init::Uniform { bound } => {
                let mut stream = Stream::new(seed, &format!("weights {}", segment.name));
                // Multiply, subtract and round only: the same bits on every platform.
                values.fill_with(|| ((f64::from(stream.uniform()) * 2.0 - 1.0) * bound) as f32);
            }
        }
    }
}

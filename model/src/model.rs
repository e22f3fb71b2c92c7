//! A model: a chain of blocks over two arenas, parameters (trained) and buffers (batch norm's running statistics).
//!
//! [`Layout`] says what a model looks like without allocating it; it is what snapshots and checkpoints are checked against.

use tch::{TchError, Tensor};

use crate::arena::{Arena, Segment, hash_values};
use crate::block::{self, Block, Builder, Init, MAX_PARAMETERS, Variable};
use crate::config::{ConfigError, MAX_CLASSES, ModelConfig};
use crate::layer::{Mode, Pass, Variables};
use crate::random::Stream;
use crate::zoo;

/// Why a model cannot be built or run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A setting cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The images do not suit the model.
    #[error(
        "{kind} needs images of at least {min_side}x{min_side} pixels with 1 to 1024 channels, got {height}x{width} with {channels}"
    )]
    InputShape {
        /// Kind of model.
        kind: &'static str,
        /// Smallest height and width.
        min_side: i64,
        /// Channels of the images.
        channels: i64,
        /// Height of the images.
        height: i64,
        /// Width of the images.
        width: i64,
    },
    /// The samples are not the tokens the model takes.
    #[error(
        "gpt takes samples of 1 to {context} tokens, got {got:?}: give text, and data.context at most model.context"
    )]
    Tokens {
        /// Most tokens of a sample.
        context: i64,
        /// Shape of the samples.
        got: [i64; 3],
    },
    /// The data has other tokens than the model.
    #[error(
        "the model has a vocabulary of {expected}, the data of {got}: set model.vocabulary = {got}"
    )]
    Vocabulary {
        /// Tokens of the model.
        expected: i64,
        /// Tokens of the data.
        got: i64,
    },
    /// Too few or too many classes.
    #[error("a model needs between 2 and {MAX_CLASSES} classes, got {got}")]
    Classes {
        /// What was asked for.
        got: i64,
    },
    /// The model is larger than any this program trains.
    #[error(
        "{kind} would have {got} parameters, more than {MAX_PARAMETERS}: make it narrower or the images smaller"
    )]
    TooLarge {
        /// Kind of model.
        kind: &'static str,
        /// Number of parameters (saturating).
        got: usize,
    },
    /// The batch has another shape than the model was built for.
    #[error("the model takes batches of shape [B, {}, {}, {}], got {got:?}", expected[0], expected[1], expected[2])]
    BatchShape {
        /// Channels, height and width the model takes.
        expected: [i64; 3],
        /// Shape that was given.
        got: Vec<i64>,
    },
    /// Batch norm has no variance over a single value.
    #[error(
        "{kind} needs at least two samples per training batch at this image size, got one: use a larger batch"
    )]
    SingleSample {
        /// Kind of model.
        kind: &'static str,
    },
    /// libtorch refused, most likely for want of memory.
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
}

/// What a model looks like: everything a snapshot, a checkpoint or an export must agree with.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The model's settings.
    pub config: ModelConfig,
    /// Channels, height, width.
    pub input_shape: [i64; 3],
    /// Number of classes.
    pub n_classes: i64,
    /// Segments of the parameter arena.
    pub parameters: Vec<Segment>,
    /// Segments of the buffer arena.
    pub buffers: Vec<Segment>,
    /// Names of the optimiser's state vectors; empty for a bare model.
    pub optimiser: Vec<String>,
}

impl Layout {
    /// The layout of a model, without memory for it.
    ///
    /// # Errors
    /// As [`Model::new`].
    pub fn new(
        config: &ModelConfig,
        input_shape: [i64; 3],
        n_classes: i64,
    ) -> Result<Self, ModelError> {
        Ok(layout_of(
            config,
            input_shape,
            n_classes,
            &build(config, input_shape, n_classes)?,
        ))
    }

    /// Number of parameters.
    pub fn n_parameters(&self) -> usize {
        end(&self.parameters)
    }

    /// Labels each sample has: one, or one for each token.
    pub fn labels_per_sample(&self) -> usize {
        match self.config {
            ModelConfig::Gpt { .. } => self.input_shape[2] as usize,
            _ => 1,
        }
    }

    /// Smallest batch that can be trained on: two where batch norm sees a single pixel per image.
    pub fn min_train_batch(&self) -> i64 {
        let [_, height, width] = self.input_shape;
        let single_pixel = height.max(width) <= zoo::mobilenet_v2::STRIDE;
        if matches!(self.config, ModelConfig::MobilenetV2 { .. }) && single_pixel {
            2
        } else {
            1
        }
    }

    /// Number of buffer elements.
    pub fn n_buffers(&self) -> usize {
        end(&self.buffers)
    }
}

fn end(segments: &[Segment]) -> usize {
    segments.last().map_or(0, |last| last.offset + last.len)
}

pub(crate) fn layout_of(
    config: &ModelConfig,
    input_shape: [i64; 3],
    n_classes: i64,
    builder: &Builder,
) -> Layout {
    let segments = |variables: &[Variable]| {
        variables
            .iter()
            .map(|variable| variable.segment.clone())
            .collect()
    };
    Layout {
        config: config.clone(),
        input_shape,
        n_classes,
        parameters: segments(&builder.parameters),
        buffers: segments(&builder.buffers),
        optimiser: Vec::new(),
    }
}

/// Checks the sizes and declares blocks and variables.
pub(crate) fn build(
    config: &ModelConfig,
    input_shape: [i64; 3],
    n_classes: i64,
) -> Result<Builder, ModelError> {
    config.validate()?;
    let kind = config.kind();
    let min_side = match config {
        ModelConfig::Mlp { .. } => 1,
        ModelConfig::Cnn {} => zoo::cnn::MIN_SIDE,
        ModelConfig::MobilenetV2 { .. } => zoo::mobilenet_v2::MIN_SIDE,
        ModelConfig::Gpt {
            context,
            vocabulary,
            ..
        } => {
            check_tokens(*context, *vocabulary, input_shape, n_classes)?;
            1
        }
    };
    let [channels, height, width] = input_shape;
    let sides = min_side..=1 << 20;
    if !(1..=1024).contains(&channels) || !sides.contains(&height) || !sides.contains(&width) {
        return Err(ModelError::InputShape {
            kind,
            min_side,
            channels,
            height,
            width,
        });
    }
    if !(2..=MAX_CLASSES).contains(&n_classes) {
        return Err(ModelError::Classes { got: n_classes });
    }
    let mut builder = Builder::default();
    match config {
        ModelConfig::Mlp { hidden } => {
            zoo::mlp::build(&mut builder, input_shape, hidden, n_classes)
        }
        ModelConfig::Cnn {} => zoo::cnn::build(&mut builder, input_shape, n_classes),
        ModelConfig::MobilenetV2 { width } => {
            zoo::mobilenet_v2::build(&mut builder, channels, *width, n_classes)
        }
        ModelConfig::Gpt {
            layers,
            heads,
            width,
            context,
            vocabulary,
            dropout,
            tied,
        } => {
            let gpt = zoo::gpt::Gpt {
                layers: *layers,
                heads: *heads,
                width: *width,
                context: *context,
                vocabulary: *vocabulary,
                dropout: *dropout,
                tied: *tied,
            };
            zoo::gpt::build(&mut builder, &gpt);
        }
    }
    let got = builder.parameters.last().map_or(0, |last| {
        last.segment.offset.saturating_add(last.segment.len)
    });
    if got > MAX_PARAMETERS {
        Err(ModelError::TooLarge { kind, got })
    } else {
        Ok(builder)
    }
}

/// Refuses what is not tokens that a gpt knows.
fn check_tokens(
    context: i64,
    vocabulary: i64,
    got: [i64; 3],
    n_classes: i64,
) -> Result<(), ModelError> {
    let [channels, height, length] = got;
    if (channels, height) != (1, 1) || !(1..=context).contains(&length) {
        return Err(ModelError::Tokens { context, got });
    }
    if vocabulary == n_classes {
        Ok(())
    } else {
        Err(ModelError::Vocabulary {
            expected: vocabulary,
            got: n_classes,
        })
    }
}

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
    /// Settings that cannot work, images too small for the model, more than [`MAX_PARAMETERS`] parameters, no memory.
    pub fn new(
        config: &ModelConfig,
        input_shape: [i64; 3],
        n_classes: i64,
        seed: u64,
    ) -> Result<Self, ModelError> {
        let builder = build(config, input_shape, n_classes)?;
        let layout = layout_of(config, input_shape, n_classes, &builder);
        let mut parameters = Arena::new(layout.parameters.clone(), true)?;
        let mut buffers = Arena::new(layout.buffers.clone(), false)?;
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

//! What a model looks like, without memory for it: its blocks and variables out of its settings and the shape of its data.

use tch::TchError;

use crate::arena::Segment;
use crate::block::{Builder, MAX_PARAMETERS, Variable};
use crate::config::{ConfigError, MAX_CLASSES, ModelConfig};
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
    /// As [`super::Model::new`].
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
        let stride = match self.config {
            ModelConfig::MobilenetV2 { .. } => zoo::mobilenet_v2::STRIDE,
            ModelConfig::EfficientnetB1 { .. } => zoo::efficientnet_b1::STRIDE,
            ModelConfig::Resnet50 { stem, .. } => zoo::resnet_50::stride(stem),
            ModelConfig::Mlp { .. } | ModelConfig::Cnn {} | ModelConfig::Gpt { .. } => return 1,
        };
        if height.max(width) <= stride { 2 } else { 1 }
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
        ModelConfig::MobilenetV2 { .. }
        | ModelConfig::EfficientnetB1 { .. }
        | ModelConfig::Resnet50 { .. } => zoo::convolution::MIN_SIDE,
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
        ModelConfig::EfficientnetB1 {
            width,
            stochastic_depth,
        } => {
            let settings = (*width, *stochastic_depth);
            zoo::efficientnet_b1::build(&mut builder, channels, settings, n_classes)
        }
        ModelConfig::Resnet50 { width, stem } => {
            zoo::resnet_50::build(&mut builder, channels, (*width, *stem), n_classes)
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

//! The layers a block is made of, and their forward pass.
//!
//! A layer holds no tensors, only the numbers of its variables in the whole model; a part of a model has some of them.

use std::ops::Index;

use tch::{Kind, TchError, Tensor};

use crate::arena::{Arena, Segment};
use crate::random::Stream;

/// Torchvision's batch-norm settings: weight of a new batch in the running statistics, and what keeps the root above zero.
const BATCH_NORM_MOMENTUM: f64 = 0.1;
const BATCH_NORM_EPSILON: f64 = 1e-5;

/// One operation. Numbers named after variables index the arenas (`mean` and `variance` the buffers, others the parameters).
#[derive(Clone, Debug)]
pub(crate) enum Layer {
    /// `[B, C, H, W] → [B, C', H', W']`
    Conv {
        weight: usize,
        bias: Option<usize>,
        stride: i64,
        padding: i64,
        groups: i64,
    },
    /// Normalises each channel of `[B, C, H, W]`.
    BatchNorm {
        weight: usize,
        bias: usize,
        mean: usize,
        variance: usize,
    },
    /// `max(x, 0)`
    Relu,
    /// `min(max(x, 0), 6)`
    Relu6,
    /// Largest of each 2x2 square: `[B, C, H, W] → [B, C, H/2, W/2]`
    MaxPool,
    /// Mean over each channel: `[B, C, H, W] → [B, C, 1, 1]`
    GlobalMean,
    /// `[B, …] → [B, F]`
    Flatten,
    /// Drops each element with probability `p` in training.
    Dropout { p: f32 },
    /// `[B, F] → [B, F']`
    Linear { weight: usize, bias: usize },
    /// Adds what the layers make of the input to the input.
    Residual(Vec<Layer>),
}

/// Variables of the whole model from number `first` on: all of them, or those that a part of the model has.
#[derive(Clone, Copy)]
pub(crate) struct Variables<'a> {
    tensors: &'a [Tensor],
    first: usize,
}

impl<'a> Variables<'a> {
    pub(crate) fn of(arena: &'a Arena, first: usize) -> Self {
        let tensors = arena.variables();
        Self { tensors, first }
    }
}

impl Index<usize> for Variables<'_> {
    type Output = Tensor;

    fn index(&self, number: usize) -> &Tensor {
        &self.tensors[number - self.first]
    }
}

/// What a forward pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Batch norm uses its running statistics, dropout keeps everything.
    Evaluate,
    /// Batch norm uses the batch's own statistics and records them, dropout drops.
    Train,
    /// A training pass once more: as [`Mode::Train`], but recorded statistics stay as they are.
    Again,
}

/// What all layers of one forward pass share.
pub(crate) struct Pass<'a> {
    pub(crate) parameters: Variables<'a>,
    pub(crate) buffers: Variables<'a>,
    pub(crate) mode: Mode,
    /// Seed of the model and number of training batches seen before this one.
    seed: u64,
    number: i64,
    dropout: Stream,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(
        parameters: Variables<'a>,
        buffers: Variables<'a>,
        mode: Mode,
        seed: u64,
        number: i64,
    ) -> Self {
        Self {
            parameters,
            buffers,
            mode,
            seed,
            number,
            dropout: Stream::new(seed, "dropout"),
        }
    }

    /// Enters a block: dropout has one stream per block and batch, so what it drops depends neither on the other blocks
    /// nor on where the model is cut, and a pass made once more drops the same elements.
    pub(crate) fn enter(&mut self, block: &str) {
        let name = format!("dropout {block} {}", self.number);
        self.dropout = Stream::new(self.seed, &name);
    }
}

impl Layer {
    /// Applies the layer.
    pub(crate) fn forward(&self, mut x: Tensor, pass: &mut Pass) -> Result<Tensor, TchError> {
        match self {
            Self::Conv {
                weight,
                bias,
                stride,
                padding,
                groups,
            } => {
                let bias = bias.map(|bias| &pass.parameters[bias]);
                let (stride, padding) = ([*stride; 2], [*padding; 2]);
                x.f_conv2d(
                    &pass.parameters[*weight],
                    bias,
                    stride,
                    padding,
                    [1, 1],
                    *groups,
                ) // [B, C', H', W']
            }
            Self::BatchNorm {
                weight,
                bias,
                mean,
                variance,
            } => {
                let statistics =
                    |number: usize| (pass.mode != Mode::Again).then(|| &pass.buffers[number]);
                x.f_batch_norm(
                    Some(&pass.parameters[*weight]),
                    Some(&pass.parameters[*bias]),
                    statistics(*mean),
                    statistics(*variance),
                    pass.mode != Mode::Evaluate,
                    BATCH_NORM_MOMENTUM,
                    BATCH_NORM_EPSILON,
                    false,
                )
            }
            // In place: what stands before an activation (convolution, batch norm, linear) does not need its own output.
            Self::Relu => x.f_relu_(),
            Self::Relu6 => x.f_clamp_(0.0, 6.0),
            Self::MaxPool => x.f_max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false), // [B, C, H/2, W/2]
            Self::GlobalMean => x.f_mean_dim([2i64, 3].as_slice(), true, Kind::Float), // [B, C, 1, 1]
            Self::Flatten => x.f_flatten(1, -1),                                       // [B, F]
            Self::Dropout { p } => {
                if pass.mode == Mode::Evaluate {
                    return Ok(x);
                }
                let scale = 1.0 / (1.0 - p);
                let mut keep = || {
                    if pass.dropout.uniform() < *p {
                        0.0
                    } else {
                        scale
                    }
                };
                let mask: Vec<f32> = (0..x.numel()).map(|_| keep()).collect();
                x.f_mul(&Tensor::f_from_slice(&mask)?.f_view(x.size().as_slice())?)
            }
            Self::Linear { weight, bias } => {
                x.f_linear(&pass.parameters[*weight], Some(&pass.parameters[*bias]))
            } // [B, F']
            Self::Residual(layers) => {
                let mut y = x.shallow_clone();
                for layer in layers {
                    y = layer.forward(y, pass)?;
                }
                y.f_add(&x)
            }
        }
    }

    /// Shape per sample of what the layer makes of samples of the shape `input`; `segments` are the whole model's.
    pub(crate) fn output_shape(&self, input: &[i64], segments: &[Segment]) -> Vec<i64> {
        match (self, input) {
            (
                Self::Conv {
                    weight,
                    stride,
                    padding,
                    ..
                },
                [_, sides @ ..],
            ) => {
                let kernel = &segments[*weight].shape; // [C', C/groups, K, K]
                let side = |side: &i64| (side + 2 * padding - kernel[3]) / stride + 1;
                [kernel[0]]
                    .into_iter()
                    .chain(sides.iter().map(side))
                    .collect()
            }
            (Self::MaxPool, [channels, sides @ ..]) => {
                let halves = sides.iter().map(|side| side / 2);
                [*channels].into_iter().chain(halves).collect()
            }
            (Self::GlobalMean, [channels, ..]) => vec![*channels, 1, 1],
            (Self::Flatten, _) => vec![input.iter().product()],
            (Self::Linear { weight, .. }, [rest @ .., _]) => {
                let outputs = segments[*weight].shape[0];
                rest.iter().copied().chain([outputs]).collect()
            }
            _ => input.to_vec(),
        }
    }
}

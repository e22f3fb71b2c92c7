//! The layers a block is made of, and their forward pass.
//!
//! A layer holds no tensors, only the numbers of its variables in the model's two arenas.

use tch::{Kind, TchError, Tensor};

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

/// What all layers of one forward pass share.
pub(crate) struct Pass<'a> {
    /// Variables of the parameter arena.
    pub(crate) parameters: &'a [Tensor],
    /// Variables of the buffer arena.
    pub(crate) buffers: &'a [Tensor],
    /// Whether batch norm uses (and records) the batch's own statistics and dropout drops.
    pub(crate) train: bool,
    /// Drives dropout: one stream per training pass, so that a resumed run drops the same elements.
    pub(crate) dropout: Stream,
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
            } => x.f_batch_norm(
                Some(&pass.parameters[*weight]),
                Some(&pass.parameters[*bias]),
                Some(&pass.buffers[*mean]),
                Some(&pass.buffers[*variance]),
                pass.train,
                BATCH_NORM_MOMENTUM,
                BATCH_NORM_EPSILON,
                false,
            ),
            // In place: what stands before an activation (convolution, batch norm, linear) does not need its own output.
            Self::Relu => x.f_relu_(),
            Self::Relu6 => x.f_clamp_(0.0, 6.0),
            Self::MaxPool => x.f_max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false), // [B, C, H/2, W/2]
            Self::GlobalMean => x.f_mean_dim([2i64, 3].as_slice(), true, Kind::Float), // [B, C, 1, 1]
            Self::Flatten => x.f_flatten(1, -1),                                       // [B, F]
            Self::Dropout { p } => {
                if !pass.train {
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
}

//! The layers a block is made of, and their forward pass.
//!
//! A layer holds no tensors, only the numbers of its variables in the whole model; a part of a model has some of them.

use std::ops::Index;

use tch::{Kind, TchError, Tensor};

use crate::arena::Arena;
use crate::random::Stream;

/// Torchvision's batch-norm settings: weight of a new batch in the running statistics, and what keeps the root above zero.
const BATCH_NORM_MOMENTUM: f64 = 0.1;
const BATCH_NORM_EPSILON: f64 = 1e-5;
/// GPT-2's.
const LAYER_NORM_EPSILON: f64 = 1e-5;

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
    /// `x σ(x)`
    Silu,
    /// `σ(x) = 1 / (1 + exp(-x))`
    Sigmoid,
    /// Largest of each square of `kernel` by `kernel`: `[B, C, H, W] → [B, C, H', W']`
    MaxPool {
        kernel: i64,
        stride: i64,
        padding: i64,
    },
    /// Mean over each channel: `[B, C, H, W] → [B, C, 1, 1]`
    GlobalMean,
    /// `[B, …] → [B, F]`
    Flatten,
    /// Drops each element with probability `p` in training.
    Dropout { p: f32 },
    /// Drops each sample of the batch whole with probability `p` in training (Huang et al. 2016, arXiv:1603.09382): at the
    /// end of a residual branch, which such a sample then passes by.
    StochasticDepth { p: f32 },
    /// `[B, …, F] → [B, …, F']` with a weight `[F', F]`
    Linear { weight: usize, bias: Option<usize> },
    /// `[B, …, F] → [B, …, F']` with a weight `[F, F']`: GPT-2's `Conv1D`
    Projection { weight: usize, bias: usize },
    /// Layer norm: normalises each row of `[…, C]`.
    RowNorm { weight: usize, bias: usize },
    /// `x Φ(x)`, by the tanh formula GPT-2 was trained with
    Gelu,
    /// Rows of two tables, by token and by position, added: `[B, 1, 1, T] → [B, T, C]`
    Embedding { tokens: usize, positions: usize },
    /// Causal attention of queries, keys and values side by side: `[B, T, 3C] → [B, T, C]`
    Attention { heads: i64 },
    /// Multiplies each channel of the input by what the layers make of the input, `[B, C, 1, 1]`: squeeze-and-excitation
    /// (Hu et al. 2018, arXiv:1709.01507).
    Scaled(Vec<Layer>),
    /// Adds what `branch` makes of the input to what `shortcut` makes of it; without layers that is the input itself.
    Residual {
        branch: Vec<Layer>,
        shortcut: Vec<Layer>,
    },
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

    /// `n` factors for what is kept with probability `1 - p` and then made larger by as much, so that the mean stays.
    fn mask(&mut self, n: usize, p: f32) -> Result<Tensor, TchError> {
        let scale = 1.0 / (1.0 - p);
        let mut factor = || {
            let is_dropped = self.dropout.uniform() < p;
            if is_dropped { 0.0 } else { scale }
        };
        let factors: Vec<f32> = (0..n).map(|_| factor()).collect();
        Tensor::f_from_slice(&factors)
    }
}

impl Layer {
    /// Adds what `branch` makes of the input to the input.
    pub(crate) fn residual(branch: Vec<Layer>) -> Self {
        let shortcut = Vec::new();
        Self::Residual { branch, shortcut }
    }

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
            // Not in place: its backward pass needs its input, of which libtorch would make a copy.
            Self::Silu => x.f_silu(),
            Self::Sigmoid => x.f_sigmoid(),
            Self::MaxPool {
                kernel,
                stride,
                padding,
            } => {
                let (kernel, stride, padding) = ([*kernel; 2], [*stride; 2], [*padding; 2]);
                x.f_max_pool2d(kernel, stride, padding, [1, 1], false) // [B, C, H', W']
            }
            Self::GlobalMean => x.f_mean_dim([2i64, 3].as_slice(), true, Kind::Float), // [B, C, 1, 1]
            Self::Flatten => x.f_flatten(1, -1),                                       // [B, F]
            Self::Dropout { p } => {
                if pass.mode == Mode::Evaluate {
                    return Ok(x);
                }
                let mask = pass.mask(x.numel(), *p)?;
                x.f_mul(&mask.f_view(x.size().as_slice())?)
            }
            Self::StochasticDepth { p } => {
                if pass.mode == Mode::Evaluate {
                    return Ok(x);
                }
                let mut shape = vec![1; x.dim()];
                shape[0] = x.size()[0];
                let mask = pass.mask(shape[0] as usize, *p)?;
                x.f_mul(&mask.f_view(shape.as_slice())?) // [B, …] * [B, 1, …]
            }
            Self::Linear { weight, bias } => {
                let bias = bias.map(|bias| &pass.parameters[bias]);
                x.f_linear(&pass.parameters[*weight], bias) // [B, …, F']
            }
            Self::Projection { weight, bias } => {
                let weight = &pass.parameters[*weight];
                let mut shape = x.size();
                shape.pop();
                shape.push(weight.size()[1]);
                let rows = x.f_flatten(0, -2)?; // [B …, F]
                let rows = pass.parameters[*bias].f_addmm(&rows, weight)?; // [B …, F']
                rows.f_view(shape.as_slice()) // [B, …, F']
            }
            Self::RowNorm { weight, bias } => {
                let weight = &pass.parameters[*weight];
                let (shape, bias) = (weight.size(), &pass.parameters[*bias]);
                x.f_layer_norm(shape, Some(weight), Some(bias), LAYER_NORM_EPSILON, false)
            }
            Self::Gelu => x.f_gelu("tanh"),
            Self::Embedding { tokens, positions } => {
                let numbers = x.f_flatten(1, -1)?.f_to_kind(Kind::Int64)?; // [B, T]
                let positions = &pass.parameters[*positions];
                let positions = positions.f_narrow(0, 0, numbers.size()[1])?; // [T, C]
                let tokens = &pass.parameters[*tokens];
                let rows = Tensor::f_embedding(tokens, &numbers, -1, false, false)?; // [B, T, C]
                rows.f_add(&positions)
            }
            Self::Attention { heads } => attention(&x, *heads),
            Self::Scaled(layers) => {
                let factors = through(layers, &x, pass)?; // [B, C, 1, 1]
                x.f_mul(&factors)
            }
            Self::Residual { branch, shortcut } => {
                let y = through(branch, &x, pass)?;
                y.f_add(&through(shortcut, &x, pass)?)
            }
        }
    }
}

/// Applies `layers` one after the other.
pub(crate) fn through(layers: &[Layer], x: &Tensor, pass: &mut Pass) -> Result<Tensor, TchError> {
    let mut y = x.shallow_clone();
    for layer in layers {
        y = layer.forward(y, pass)?;
    }
    Ok(y)
}

/// Each token looks at itself and those before it, in `heads` ways: `[B, T, 3C] → [B, T, C]`.
fn attention(x: &Tensor, heads: i64) -> Result<Tensor, TchError> {
    let size = x.size();
    let (batch, length, width) = (size[0], size[1], size[2] / 3);
    let parts = x.f_split(width, 2)?; // three of [B, T, C]
    let part = |number: usize| {
        let part = parts[number].f_view([batch, length, heads, width / heads])?;
        part.f_transpose(1, 2) // [B, H, T, D]
    };
    let (queries, keys, values) = (part(0)?, part(1)?, part(2)?);
    let mixed = Tensor::f_scaled_dot_product_attention(
        &queries,
        &keys,
        &values,
        None::<Tensor>,
        0.0,
        true,
        None,
        false,
    )?; // [B, H, T, D]
    let rows = mixed.f_transpose(1, 2)?; // [B, T, H, D]
    rows.f_reshape([batch, length, width]) // [B, T, C]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stochastic_depth_drops_whole_samples_alike_whenever_a_pass_is_made_again() {
        let nothing = Arena::new(Vec::new(), 0, false).unwrap();
        let drop = |mode, block, number| -> Vec<f32> {
            let variables = Variables::of(&nothing, 0);
            let mut pass = Pass::new(variables, variables, mode, 3, number);
            pass.enter(block);
            let x = Tensor::ones([400, 2, 3, 3], (Kind::Float, tch::Device::Cpu));
            let y = Layer::StochasticDepth { p: 0.25 }.forward(x, &mut pass);
            y.unwrap().flatten(0, -1).try_into().unwrap()
        };
        let y = drop(Mode::Train, "features.3", 7);
        let samples = y.chunks(2 * 3 * 3);
        assert!(
            samples
                .clone()
                .all(|sample| sample.iter().all(|v| *v == sample[0]))
        );
        let firsts: Vec<f32> = samples.map(|sample| sample[0]).collect();
        assert!(firsts.iter().all(|v| [0.0, 1.0 / 0.75].contains(v)));
        let dropped = firsts.iter().filter(|v| **v == 0.0).count();
        assert!((70..130).contains(&dropped), "{dropped} of 400");
        assert_eq!(drop(Mode::Again, "features.3", 7), y);
        assert_ne!(drop(Mode::Train, "features.3", 8), y);
        assert_ne!(drop(Mode::Train, "features.4", 7), y);
        assert_eq!(drop(Mode::Evaluate, "features.3", 7), vec![1.0; y.len()]);
    }
}

//! Blocks, the units a model can be cut at, and the builder the models in `zoo` are written with.

use std::ops::Range;

use tch::{TchError, Tensor};

use crate::arena::Segment;
use crate::layer::{self, Layer, Pass};

/// Most parameters a model may have (8 GiB of f32); more is taken for a mistake in the job file.
pub const MAX_PARAMETERS: usize = 1 << 31;

/// A named run of layers and the variables it owns.
#[derive(Clone, Debug)]
pub struct Block {
    name: String,
    layers: Vec<Layer>,
    parameters: Range<usize>,
    buffers: Range<usize>,
    /// Parameters of other blocks that its layers use.
    shared: Vec<usize>,
}

impl Block {
    /// Name, unique in the model, such as `features.3`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its segments in the parameter arena.
    pub fn parameters(&self) -> Range<usize> {
        self.parameters.clone()
    }

    /// Its segments in the buffer arena.
    pub fn buffers(&self) -> Range<usize> {
        self.buffers.clone()
    }

    /// Parameters of other blocks that it uses, by number: it cannot be parted from them.
    pub fn shared(&self) -> &[usize] {
        &self.shared
    }

    pub(crate) fn layers(&self) -> &[Layer] {
        &self.layers
    }
}

/// Applies `blocks` one after the other.
pub(crate) fn run(blocks: &[Block], x: &Tensor, pass: &mut Pass) -> Result<Tensor, TchError> {
    let mut y = x.shallow_clone();
    for block in blocks {
        pass.enter(&block.name);
        y = layer::through(&block.layers, &y, pass)?;
    }
    Ok(y)
}

/// How a variable starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Init {
    /// Uniform in `[-bound, bound]`.
    Uniform {
        bound: f64,
    },
    Zero,
    One,
}

/// A variable before it has memory.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) segment: Segment,
    pub(crate) init: Init,
}

/// Collects blocks and variables. Nothing is allocated until the sizes are known and checked.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    pub(crate) blocks: Vec<Block>,
    pub(crate) parameters: Vec<Variable>,
    pub(crate) buffers: Vec<Variable>,
    /// What the block that is being declared shares with blocks before it.
    shared: Vec<usize>,
}

/// Shape and wiring of a convolution without bias.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conv {
    pub(crate) inputs: i64,
    pub(crate) outputs: i64,
    pub(crate) kernel: i64,
    pub(crate) stride: i64,
    pub(crate) groups: i64,
}

impl Conv {
    /// Every pixel by itself.
    pub(crate) fn pointwise(inputs: i64, outputs: i64) -> Self {
        Self {
            inputs,
            outputs,
            kernel: 1,
            stride: 1,
            groups: 1,
        }
    }

    /// Every channel by itself.
    pub(crate) fn depthwise(channels: i64, kernel: i64, stride: i64) -> Self {
        Self {
            inputs: channels,
            outputs: channels,
            kernel,
            stride,
            groups: channels,
        }
    }
}

impl Builder {
    /// Adds a block made of what `layers` declares.
    pub(crate) fn block(
        &mut self,
        name: impl Into<String>,
        layers: impl FnOnce(&mut Self) -> Vec<Layer>,
    ) {
        let (first_parameter, first_buffer) = (self.parameters.len(), self.buffers.len());
        let layers = layers(self);
        self.blocks.push(Block {
            name: name.into(),
            layers,
            parameters: first_parameter..self.parameters.len(),
            buffers: first_buffer..self.buffers.len(),
            shared: std::mem::take(&mut self.shared),
        });
    }

    /// A linear layer `name.weight [F', F]`, `name.bias [F']`, with weights uniform in `[-bound, bound]`.
    pub(crate) fn linear(&mut self, name: &str, inputs: i64, outputs: i64, bound: f64) -> Layer {
        let weight = self.parameter(
            format!("{name}.weight"),
            &[outputs, inputs],
            Init::Uniform { bound },
        );
        let bias = self.parameter(format!("{name}.bias"), &[outputs], Init::Zero);
        Layer::Linear {
            weight,
            bias: Some(bias),
        }
    }

    /// A linear layer whose weight stands the other way: `name.weight [F, F']`, `name.bias [F']`.
    pub(crate) fn projection(&mut self, name: &str, shape: [i64; 2], bound: f64) -> Layer {
        let weight = self.matrix(name, shape, bound);
        let bias = self.parameter(format!("{name}.bias"), &shape[1..], Init::Zero);
        Layer::Projection { weight, bias }
    }

    /// The number of a matrix `name.weight`, uniform in `[-bound, bound]`.
    pub(crate) fn matrix(&mut self, name: &str, shape: [i64; 2], bound: f64) -> usize {
        self.parameter(format!("{name}.weight"), &shape, Init::Uniform { bound })
    }

    /// Layer norm over rows of `width`.
    pub(crate) fn layer_norm(&mut self, name: &str, width: i64) -> Layer {
        Layer::RowNorm {
            weight: self.parameter(format!("{name}.weight"), &[width], Init::One),
            bias: self.parameter(format!("{name}.bias"), &[width], Init::Zero),
        }
    }

    /// Lets the block being declared use parameter `number` of a block before it.
    pub(crate) fn share(&mut self, number: usize) -> usize {
        self.shared.push(number);
        number
    }

    /// A convolution `name.weight [C', C/groups, K, K]` that keeps the size (but for the stride), with a bias if `bias`.
    pub(crate) fn conv(&mut self, name: &str, conv: Conv, bound: f64, bias: bool) -> Layer {
        let Conv {
            inputs,
            outputs,
            kernel,
            stride,
            groups,
        } = conv;
        let shape = [outputs, inputs / groups, kernel, kernel];
        let weight = self.parameter(format!("{name}.weight"), &shape, Init::Uniform { bound });
        let bias = bias.then(|| self.parameter(format!("{name}.bias"), &[outputs], Init::Zero));
        Layer::Conv {
            weight,
            bias,
            stride,
            padding: (kernel - 1) / 2,
            groups,
        }
    }

    /// Batch norm over `channels` channels.
    pub(crate) fn batch_norm(&mut self, name: &str, channels: i64) -> Layer {
        Layer::BatchNorm {
            weight: self.parameter(format!("{name}.weight"), &[channels], Init::One),
            bias: self.parameter(format!("{name}.bias"), &[channels], Init::Zero),
            mean: declare(
                &mut self.buffers,
                format!("{name}.running_mean"),
                &[channels],
                Init::Zero,
            ),
            variance: declare(
                &mut self.buffers,
                format!("{name}.running_var"),
                &[channels],
                Init::One,
            ),
        }
    }

    fn parameter(&mut self, name: String, shape: &[i64], init: Init) -> usize {
        declare(&mut self.parameters, name, shape, init)
    }
}

/// Adds a variable behind the last one. Sizes saturate: a model that large is refused when it is finished.
fn declare(variables: &mut Vec<Variable>, name: String, shape: &[i64], init: Init) -> usize {
    let offset = variables.last().map_or(0, |last| {
        last.segment.offset.saturating_add(last.segment.len)
    });
    let len = shape
        .iter()
        .fold(1usize, |len, side| len.saturating_mul(*side as usize));
    variables.push(Variable {
        segment: Segment {
            name,
            offset,
            len,
            shape: shape.to_vec(),
        },
        init,
    });
    variables.len() - 1
}

/// The bound of a uniform distribution that keeps the size of signals through a ReLU layer with `fan` inputs (He et al.
/// 2015, arXiv:1502.01852, section 2.2: variance `2 / fan`).
pub(crate) fn kaiming(fan: i64) -> f64 {
    (6.0 / fan as f64).sqrt()
}

/// The bound that keeps the size of signals through a layer without ReLU: variance `1 / fan`.
pub(crate) fn lecun(fan: i64) -> f64 {
    (3.0 / fan as f64).sqrt()
}

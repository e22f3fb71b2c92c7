//! The blocks of one stage and the mathematics both kinds of stages share: passes through the blocks, gradients, and
//! where a block's values lie in the stage's own memory.

use std::ops::Range;

use tch::{Kind, Reduction, Tensor};

use super::activation::Activation;
use super::error::StageError;
use super::shape::extents_of;
use super::state::{BlockLayout, BlockState, layouts_of};
use crate::arena::{Arena, Segment};
use crate::block::{self, Block, Builder, Variable};
use crate::config::{ModelConfig, OptimiserConfig};
use crate::data::Batch;
use crate::layer::{Mode, Pass, Variables};
use crate::model::{Layout, ModelError, build, initialise, layout_of};
use crate::train::cross_entropy;

/// What a stage is given: samples the first one, an activation the others.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Samples of the data set, for the first stage.
    Samples(&'a Batch),
    /// What the stage before made of them.
    Activation(&'a Activation),
}

impl<'a> From<&'a Batch> for Input<'a> {
    fn from(batch: &'a Batch) -> Self {
        Self::Samples(batch)
    }
}

impl<'a> From<&'a Activation> for Input<'a> {
    fn from(activation: &'a Activation) -> Self {
        Self::Activation(activation)
    }
}

/// The blocks of a stage, without the values of their variables.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Of the whole model.
    pub(crate) layout: Layout,
    pub(crate) range: Range<usize>,
    pub(crate) n_blocks: usize,
    seed: u64,
    blocks: Vec<Block>,
    block_layouts: Vec<BlockLayout>,
    /// Numbers of the first parameter and the first buffer in the whole model.
    first: [usize; 2],
    /// Shape per sample of what goes in and comes out.
    pub(crate) input: Vec<i64>,
    pub(crate) output: Vec<i64>,
    parameters: Part,
    buffers: Part,
}

/// Variables of some blocks, the first of them at offset 0.
#[derive(Debug)]
struct Part {
    variables: Vec<Variable>,
    /// Elements before them in the whole model.
    before: usize,
}

/// A gradient through the blocks.
pub(crate) struct Gradients {
    /// One per parameter.
    pub(crate) parameters: Vec<Tensor>,
    /// With respect to the input; none of the first stage.
    pub(crate) input: Option<Tensor>,
}

impl Chain {
    pub(crate) fn new(
        config: &ModelConfig,
        input_shape: [i64; 3],
        n_classes: i64,
        seed: u64,
        range: Range<usize>,
        optimiser: &OptimiserConfig,
    ) -> Result<Self, StageError> {
        optimiser.validate()?;
        let builder = build(config, input_shape, n_classes)?;
        let n_blocks = builder.blocks.len();
        let Range { start, end } = range;
        if start >= end || end > n_blocks {
            return Err(StageError::Blocks {
                start,
                end,
                n_blocks,
            });
        }
        check_shared(&builder, &range)?;
        let mut layout = layout_of(config, input_shape, n_classes, &builder);
        let names = optimiser.state_names().iter();
        layout.optimiser = names.map(|name| (*name).to_owned()).collect();
        let extents = extents_of(&builder.blocks, &layout);
        let output = extents[end - 1].shape.clone();
        let input = match start.checked_sub(1) {
            None => input_shape.to_vec(),
            Some(before) => extents[before].shape.clone(),
        };
        let block_layouts = layouts_of(&builder, optimiser.state_names().len());
        let blocks = builder.blocks[range.clone()].to_vec();
        let own = |variables: &[Variable], of: fn(&Block) -> Range<usize>| {
            let first = blocks.first().map_or(0, |block| of(block).start);
            let last = blocks.last().map_or(first, |block| of(block).end);
            (first, part(&variables[first..last]))
        };
        let (first_parameter, parameters) = own(&builder.parameters, Block::parameters);
        let (first_buffer, buffers) = own(&builder.buffers, Block::buffers);
        Ok(Self {
            n_blocks,
            seed,
            block_layouts: block_layouts[range.clone()].to_vec(),
            blocks,
            first: [first_parameter, first_buffer],
            input,
            output,
            parameters,
            buffers,
            range,
            layout,
        })
    }

    /// Memory for the parameters with their initial values, those the whole model has.
    pub(crate) fn new_parameters(&self) -> Result<Arena, StageError> {
        arena(&self.parameters, true, self.seed)
    }

    /// Memory for the buffers with their initial values.
    pub(crate) fn new_buffers(&self) -> Result<Arena, StageError> {
        arena(&self.buffers, false, self.seed)
    }

    pub(crate) fn is_first(&self) -> bool {
        self.range.start == 0
    }

    pub(crate) fn is_last(&self) -> bool {
        self.range.end == self.n_blocks
    }

    /// The input as a tensor, checked.
    pub(crate) fn tensor(&self, input: Input, train: bool) -> Result<Tensor, StageError> {
        let x = match input {
            Input::Samples(batch) if self.is_first() => batch.x().f_detach()?,
            Input::Activation(activation) if !self.is_first() => {
                self.check_input(activation.shape())?;
                activation.check_finite()?;
                activation.tensor()?
            }
            Input::Samples(_) => return Err(self.wrong_stage("a batch of samples")),
            Input::Activation(_) => return Err(self.wrong_stage("an activation")),
        };
        let size = x.size();
        self.check_input(&size)?;
        if train && size[0] < self.layout.min_train_batch() {
            let kind = self.layout.config.kind();
            return Err(ModelError::SingleSample { kind }.into());
        }
        Ok(x)
    }

    /// A leaf that records gradients, unless this is the first stage.
    pub(crate) fn leaf(&self, x: Tensor) -> Result<Tensor, StageError> {
        Ok(x.f_set_requires_grad(!self.is_first())?)
    }

    /// Applies the blocks; `number` is the number of training batches seen before this one.
    pub(crate) fn run(
        &self,
        x: &Tensor,
        parameters: &Arena,
        buffers: &Arena,
        mode: Mode,
        number: i64,
    ) -> Result<Tensor, StageError> {
        crate::runtime::take_over_threads();
        let [first_parameter, first_buffer] = self.first;
        let parameters = Variables::of(parameters, first_parameter);
        let buffers = Variables::of(buffers, first_buffer);
        let mut pass = Pass::new(parameters, buffers, mode, self.seed, number);
        Ok(block::run(&self.blocks, x, &mut pass)?)
    }

    /// What the blocks make of samples without training.
    pub(crate) fn evaluate(
        &self,
        input: Input,
        parameters: &Arena,
        buffers: &Arena,
    ) -> Result<Tensor, StageError> {
        let x = self.tensor(input, false)?;
        tch::no_grad(|| self.run(&x, parameters, buffers, Mode::Evaluate, 0))
    }

    /// The sum of the cross entropies of logits, and how many are right.
    pub(crate) fn judge(
        &self,
        logits: &Tensor,
        labels: &[i64],
    ) -> Result<(f64, usize), StageError> {
        self.check_labels(labels, logits.size()[0])?;
        let (loss, correct) = self.score(logits, labels, Reduction::Sum)?;
        Ok((loss.f_double_value(&[])?, correct))
    }

    /// Cross entropy `[]` of logits, and how many are right.
    pub(crate) fn score(
        &self,
        logits: &Tensor,
        labels: &[i64],
        reduction: Reduction,
    ) -> Result<(Tensor, usize), StageError> {
        let y = Tensor::f_from_slice(labels)?;
        let loss = cross_entropy(logits, &y, reduction)?; // []
        let hits = tch::no_grad(|| {
            let best = logits.f_argmax(-1, false)?.f_flatten(0, -1)?;
            best.f_eq_tensor(&y)?.f_sum(Kind::Int64)?.f_int64_value(&[])
        })?;
        Ok((loss, hits.max(0) as usize))
    }

    /// Refuses what are not labels of `n_samples` samples.
    pub(crate) fn check_labels(&self, labels: &[i64], n_samples: i64) -> Result<(), StageError> {
        if !self.is_last() {
            return Err(self.wrong_stage("a loss"));
        }
        let n_classes = self.layout.n_classes;
        let expected = n_samples.max(0) as usize * self.layout.labels_per_sample();
        let wrong = labels.iter().find(|label| !(0..n_classes).contains(*label));
        let got = match wrong {
            _ if labels.len() != expected => labels.len() as i64,
            Some(label) => *label,
            None => return Ok(()),
        };
        Err(StageError::Labels {
            expected,
            n_classes,
            got,
        })
    }

    /// A scalar whose gradient with respect to `y` is `upstream`.
    pub(crate) fn pull(&self, y: &Tensor, upstream: &Activation) -> Result<Tensor, StageError> {
        let gradient = upstream.tensor()?.f_flatten(0, -1)?;
        Ok(y.f_flatten(0, -1)?.f_dot(&gradient)?)
    }

    /// Refuses a gradient that is not one of `y`.
    pub(crate) fn check_upstream(
        &self,
        y: &[i64],
        upstream: &Activation,
    ) -> Result<(), StageError> {
        if y != upstream.shape() {
            return Err(StageError::Shape {
                expected: y.to_vec(),
                got: upstream.shape().to_vec(),
            });
        }
        Ok(upstream.check_finite()?)
    }

    /// The gradient of the scalar `root`; frees what the forward pass kept.
    pub(crate) fn gradients(
        &self,
        root: Tensor,
        leaf: &Tensor,
        parameters: &Arena,
    ) -> Result<Gradients, StageError> {
        let mut inputs: Vec<&Tensor> = parameters.variables().iter().collect();
        if !self.is_first() {
            inputs.push(leaf);
        }
        let mut parameters = if inputs.is_empty() {
            Vec::new()
        } else {
            Tensor::f_run_backward(&[root], &inputs, false, false)?
        };
        let input = if self.is_first() {
            None
        } else {
            parameters.pop()
        };
        Ok(Gradients { parameters, input })
    }

    /// The whole-model layout of a block of this stage.
    pub(crate) fn block_layout(&self, block: usize) -> Result<&BlockLayout, StageError> {
        let at = block.checked_sub(self.range.start);
        let layout = at.and_then(|at| self.block_layouts.get(at));
        layout.ok_or(StageError::NotHeld {
            block,
            start: self.range.start,
            end: self.range.end,
        })
    }

    /// Where the block's parameters and buffers lie in the stage's own memory.
    pub(crate) fn spans(&self, layout: &BlockLayout) -> [Range<usize>; 2] {
        let first = &self.block_layouts[0];
        let shift = |range: &Range<usize>, by: usize| range.start - by..range.end - by;
        [
            shift(&layout.parameters, first.parameters.start),
            shift(&layout.buffers, first.buffers.start),
        ]
    }

    /// The state of one block out of the stage's values.
    pub(crate) fn cut_out(
        &self,
        block: usize,
        parameters: &[f32],
        optimiser: &[Vec<f32>],
        buffers: &[f32],
        (batches_tracked, optimiser_steps): (i64, u64),
    ) -> Result<BlockState, StageError> {
        let [own, own_buffers] = self.spans(self.block_layout(block)?);
        let vectors = optimiser.iter();
        Ok(BlockState {
            block,
            parameters: parameters[own.clone()].to_vec(),
            optimiser: vectors.map(|vector| vector[own.clone()].to_vec()).collect(),
            buffers: buffers[own_buffers].to_vec(),
            batches_tracked,
            optimiser_steps,
        })
    }

    fn check_input(&self, got: &[i64]) -> Result<(), StageError> {
        if got.len() == self.input.len() + 1 && got[0] > 0 && got[1..] == self.input {
            Ok(())
        } else {
            Err(StageError::Shape {
                expected: self.input.clone(),
                got: got.to_vec(),
            })
        }
    }

    fn wrong_stage(&self, what: &'static str) -> StageError {
        StageError::WrongStage {
            what,
            start: self.range.start,
        }
    }
}

/// Refuses a stage that has one of two blocks that share a variable, but not the other.
fn check_shared(builder: &Builder, range: &Range<usize>) -> Result<(), StageError> {
    for (block, sharing) in builder.blocks.iter().enumerate() {
        for number in sharing.shared() {
            let owns = |owner: &Block| owner.parameters().contains(number);
            let owner = builder.blocks.iter().position(owns);
            let owner_is_here = owner.is_some_and(|owner| range.contains(&owner));
            if owner_is_here != range.contains(&block) {
                return Err(StageError::Tied {
                    block,
                    variable: builder.parameters[*number].segment.name.clone(),
                    start: range.start,
                    end: range.end,
                });
            }
        }
    }
    Ok(())
}

fn part(variables: &[Variable]) -> Part {
    let before = variables.first().map_or(0, |first| first.segment.offset);
    let shifted = |variable: &Variable| Variable {
        segment: Segment {
            offset: variable.segment.offset - before,
            ..variable.segment.clone()
        },
        init: variable.init,
    };
    let variables = variables.iter().map(shifted).collect();
    Part { variables, before }
}

fn arena(part: &Part, trainable: bool, seed: u64) -> Result<Arena, StageError> {
    let segments = part.variables.iter();
    let segments = segments.map(|variable| variable.segment.clone()).collect();
    let mut arena = Arena::new(segments, part.before, trainable)?;
    initialise(arena.values_mut(), &part.variables, seed);
    Ok(arena)
}

/// Refuses a share of the global batch that is none.
pub(crate) fn check_weight(weight: f32) -> Result<(), StageError> {
    if weight > 0.0 && weight <= 1.0 {
        Ok(())
    } else {
        Err(StageError::Weight { weight })
    }
}

/// Adds `weight * gradients` to `sum`, laid out as `segments`; `scratch` is reused.
pub(crate) fn accumulate(
    sum: &mut [f32],
    gradients: &[Tensor],
    segments: &[Segment],
    weight: f32,
    scratch: &mut Vec<f32>,
) -> Result<(), StageError> {
    for (segment, gradient) in segments.iter().zip(gradients) {
        scratch.resize(segment.len, 0.0);
        gradient.f_copy_data(scratch, segment.len)?;
        let sum = &mut sum[segment.offset..segment.offset + segment.len];
        for (sum, value) in sum.iter_mut().zip(&*scratch) {
            *sum += weight * value;
        }
    }
    Ok(())
}

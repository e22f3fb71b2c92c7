//! The synchronous stage: all micro-batches of a step run on the same weights, their gradients are summed in the order
//! of the backward passes, and one update ends the step. Where the model is cut then changes no bit of it.
//!
//! ```text
//! per micro-batch: forward (keeps the graph, or with recomputation the input alone) … backward (frees it)
//! last stage:      loss = forward + cross entropy + backward at once
//! per step:        apply; what a state is taken of is always the last step boundary
//! ```

mod blocks;
mod shared;

use std::collections::BTreeMap;
use std::ops::Range;

use tch::{Reduction, Tensor};

use super::activation::Activation;
use super::chain::{Chain, Input, accumulate, check_weight};
use super::error::StageError;
use super::passes::Forward;
use super::state::BlockLayout;
use crate::arena::Arena;
use crate::config::{ModelConfig, OptimiserConfig};
use crate::layer::Mode;
use crate::optimiser::Optimiser;

/// What the last stage makes of a micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// Mean cross entropy, in nats per label.
    pub loss: f32,
    /// Labels that had the largest logit.
    pub correct: usize,
    /// Gradient of the loss with respect to the stage's input; none where the stage is also the first.
    pub gradient: Option<Activation>,
}

#[derive(Debug)]
struct Kept {
    weight: f32,
    pass: Forward,
}

/// A contiguous run of a model's blocks, with optimiser.
#[derive(Debug)]
pub struct Stage {
    chain: Chain,
    parameters: Arena,
    buffers: Arena,
    optimiser: Optimiser,
    recompute: bool,
    /// Sum of weighted gradients since the last update.
    gradient: Vec<f32>,
    scratch: Vec<f32>,
    kept: BTreeMap<u32, Kept>,
    /// Training micro-batches since the step boundary.
    seen: i64,
    /// Buffers at the step boundary.
    boundary: Vec<f32>,
    /// Batches and steps at the step boundary, block by block; they differ only while blocks are being loaded.
    counters: Vec<(i64, u64)>,
    /// Memory for the next activation or gradient, and the room to leave in front of it.
    lent: (Vec<u8>, usize),
    /// Added to batch numbers, by which random numbers are drawn.
    first_row: i64,
}

impl Stage {
    /// A stage of the blocks `blocks`, with the initial values that the whole model of this seed has there, and the
    /// optimiser's state at zero. Allocates memory for its own blocks only.
    ///
    /// # Errors
    /// A model that cannot be built, no or unknown blocks, a cut between blocks that share a variable, optimiser settings
    /// that cannot work, no memory.
    pub fn new(
        config: &ModelConfig,
        input_shape: [i64; 3],
        n_classes: i64,
        seed: u64,
        blocks: Range<usize>,
        optimiser: OptimiserConfig,
    ) -> Result<Self, StageError> {
        let chain = Chain::new(config, input_shape, n_classes, seed, blocks, &optimiser)?;
        let (parameters, buffers) = (chain.new_parameters()?, chain.new_buffers()?);
        Ok(Self {
            optimiser: Optimiser::new(optimiser, parameters.len()),
            recompute: false,
            gradient: vec![0.0; parameters.len()],
            scratch: Vec::new(),
            kept: BTreeMap::new(),
            seen: 0,
            boundary: buffers.values().to_vec(),
            counters: vec![(0, 0); chain.range.len()],
            lent: (Vec::new(), 0),
            first_row: 0,
            chain,
            parameters,
            buffers,
        })
    }

    /// Keeps of later micro-batches the input alone and runs the forward pass once more in `backward`: less memory, a third
    /// more time, the same bits.
    pub fn set_recompute(&mut self, recompute: bool) {
        self.recompute = recompute;
    }

    /// The next activation or gradient is put into `memory`, behind `room` bytes for the head of its frame; what is in there does not
    /// matter. Of the right size it is neither allocated nor cleared.
    pub fn lend(&mut self, memory: Vec<u8>, room: usize) {
        self.lent = (memory, room);
    }

    /// Runs micro-batch `micro` and keeps what [`Stage::backward`] needs. `weight` is its share of the global batch, in
    /// (0, 1]. Micro-batches of a step must come in the same order at all stages.
    ///
    /// # Shapes
    /// `x: [B, input…] → [B, output…]`
    ///
    /// # Errors
    /// An input that is not for this stage, of another shape or not finite; a micro-batch that is in flight already.
    pub fn forward<'a>(
        &mut self,
        micro: u32,
        weight: f32,
        x: impl Into<Input<'a>>,
    ) -> Result<Activation, StageError> {
        let number = self.batch_number()?;
        check_weight(weight)?;
        if self.kept.contains_key(&micro) {
            return Err(StageError::InFlightAlready {
                micro: micro.into(),
            });
        }
        let x = self.chain.tensor(x.into(), true)?;
        let weights = (&self.parameters, &self.buffers);
        let lent = std::mem::take(&mut self.lent);
        let (pass, activation) = self
            .chain
            .forward(x, weights, number, self.recompute, lent)?;
        self.seen += 1;
        self.kept.insert(micro, Kept { weight, pass });
        Ok(activation)
    }

    /// Adds the weighted gradient of micro-batch `micro` to the step's, given the gradient with respect to what
    /// [`Stage::forward`] returned, and returns the gradient with respect to its input (none of the first stage).
    ///
    /// # Errors
    /// A micro-batch that is not in flight; a gradient of another shape or not finite.
    pub fn backward(
        &mut self,
        micro: u32,
        upstream: &Activation,
    ) -> Result<Option<Activation>, StageError> {
        let not_in_flight = StageError::NotInFlight {
            micro: micro.into(),
        };
        let Some(kept) = self.kept.get(&micro) else {
            return Err(not_in_flight);
        };
        self.chain.check_upstream(&kept.pass.shape(), upstream)?;
        let Some(kept) = self.kept.remove(&micro) else {
            return Err(not_in_flight);
        };
        let weights = (&self.parameters, &self.buffers);
        let (leaf, y) = kept.pass.graph(&self.chain, weights.0, weights.1)?;
        let root = self.chain.pull(&y, upstream)?;
        self.collect(root, &leaf, kept.weight)
    }

    /// The last stage's part of a micro-batch: forward pass, mean cross entropy, backward pass.
    ///
    /// # Shapes
    /// `x: [B, input…]`, `labels: [B]` (of tokens `[B T]`)
    ///
    /// # Errors
    /// As [`Stage::forward`]; labels that do not fit; a loss that is not finite.
    pub fn loss<'a>(
        &mut self,
        micro: u32,
        weight: f32,
        x: impl Into<Input<'a>>,
        labels: &[i64],
    ) -> Result<Loss, StageError> {
        let number = self.batch_number()?;
        check_weight(weight)?;
        if self.kept.contains_key(&micro) {
            return Err(StageError::InFlightAlready {
                micro: micro.into(),
            });
        }
        let x = self.chain.tensor(x.into(), true)?;
        self.chain.check_labels(labels, x.size()[0])?;
        let leaf = self.chain.leaf(x)?;
        let (parameters, buffers) = (&self.parameters, &self.buffers);
        let chain = &self.chain;
        let logits = chain.run(&leaf, parameters, buffers, Mode::Train, number)?;
        self.seen += 1;
        let (root, correct) = chain.score(&logits, labels, Reduction::Mean)?;
        let loss = root.f_double_value(&[])? as f32;
        if !loss.is_finite() {
            return Err(self.diverged("loss"));
        }
        let gradient = self.collect(root, &leaf, weight)?;
        Ok(Loss {
            loss,
            correct,
            gradient,
        })
    }

    /// Ends the step: one optimiser update of the summed gradient, which is then zero again.
    ///
    /// # Errors
    /// Micro-batches still in flight; a gradient that is not finite (drop what is in flight, or go back further).
    pub fn apply(&mut self) -> Result<(), StageError> {
        self.check_idle()?;
        let (batches, steps) = self.even_counters()?;
        if !self.gradient.iter().all(|value| value.is_finite()) {
            return Err(self.diverged("gradient"));
        }
        self.optimiser.steps = steps;
        let weights = self.parameters.values_mut();
        self.optimiser.update(weights, &self.gradient, 1.0);
        self.gradient.fill(0.0);
        self.boundary.copy_from_slice(self.buffers.values());
        self.counters.fill((batches + self.seen, steps + 1));
        self.seen = 0;
        Ok(())
    }

    /// Forgets all of the step that is under way: what was kept, the summed gradient and what batch norm recorded. The
    /// stage is at its last step boundary again, to the bit.
    pub fn drop_in_flight(&mut self) {
        self.kept.clear();
        self.gradient.fill(0.0);
        self.buffers.values_mut().copy_from_slice(&self.boundary);
        self.seen = 0;
    }

    /// Runs samples without training. Changes nothing.
    ///
    /// # Shapes
    /// `x: [B, input…] → [B, output…]`
    ///
    /// # Errors
    /// An input that is not for this stage, of another shape or not finite.
    pub fn evaluate<'a>(&self, x: impl Into<Input<'a>>) -> Result<Activation, StageError> {
        let y = self
            .chain
            .evaluate(x.into(), &self.parameters, &self.buffers)?;
        Ok(Activation::of(&y)?)
    }

    /// The last stage's part of an evaluation: the sum of the cross entropies in nats, and how many labels were right.
    ///
    /// # Errors
    /// As [`Stage::evaluate`]; labels that do not fit.
    pub fn evaluate_loss<'a>(
        &self,
        x: impl Into<Input<'a>>,
        labels: &[i64],
    ) -> Result<(f64, usize), StageError> {
        let logits = self
            .chain
            .evaluate(x.into(), &self.parameters, &self.buffers)?;
        self.chain.judge(&logits, labels)
    }

    /// Sets the learning rate of the next updates; it is not part of a state.
    ///
    /// # Errors
    /// A rate outside (0, 100].
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<(), StageError> {
        Ok(self.optimiser.try_learning_rate(rate)?)
    }

    /// Numbers of its blocks in the whole chain.
    pub fn blocks(&self) -> Range<usize> {
        self.chain.range.clone()
    }

    /// Names and sizes of its blocks.
    ///
    /// # Errors
    /// A block of another stage.
    pub fn block_layout(&self, block: usize) -> Result<&BlockLayout, StageError> {
        self.chain.block_layout(block)
    }

    /// Whether it takes samples.
    pub fn is_first(&self) -> bool {
        self.chain.is_first()
    }

    /// Whether it computes the loss.
    pub fn is_last(&self) -> bool {
        self.chain.is_last()
    }

    /// Shape per sample of what it takes.
    pub fn input_shape(&self) -> &[i64] {
        &self.chain.input
    }

    /// Shape per sample of what it gives on.
    pub fn output_shape(&self) -> &[i64] {
        &self.chain.output
    }

    /// Number of its parameters.
    pub fn n_parameters(&self) -> usize {
        self.parameters.len()
    }

    /// Bytes of parameters, gradient, optimiser state and buffers; what micro-batches in flight keep comes on top.
    pub fn state_bytes(&self) -> u64 {
        let vectors = 2 + self.optimiser.state.len();
        let values = self.parameters.len() * vectors + 2 * self.buffers.len();
        4 * values as u64
    }

    /// Micro-batches in flight.
    pub fn n_in_flight(&self) -> usize {
        self.kept.len()
    }

    /// Optimiser updates made, of the first block.
    pub fn steps(&self) -> u64 {
        self.counters[0].1
    }

    /// Training micro-batches seen, those of the step under way included.
    pub fn batches_tracked(&self) -> i64 {
        self.counters[0].0 + self.seen
    }

    /// Gradients of `root`: those of the parameters are summed, that of the input is returned.
    fn collect(
        &mut self,
        root: Tensor,
        leaf: &Tensor,
        weight: f32,
    ) -> Result<Option<Activation>, StageError> {
        let gradients = self.chain.gradients(root, leaf, &self.parameters)?;
        let segments = self.parameters.segments();
        let (sum, scratch) = (&mut self.gradient, &mut self.scratch);
        accumulate(sum, &gradients.parameters, segments, weight, scratch)?;
        let (memory, room) = std::mem::take(&mut self.lent);
        let input = gradients.input.as_ref();
        let input = input.map(|input| Activation::put(input, memory, room));
        Ok(input.transpose()?)
    }

    fn even_counters(&self) -> Result<(i64, u64), StageError> {
        let first = self.counters[0];
        if self.counters.iter().all(|counters| *counters == first) {
            Ok(first)
        } else {
            Err(StageError::Uneven)
        }
    }

    fn batch_number(&self) -> Result<i64, StageError> {
        Ok(self.even_counters()?.0 + self.seen + self.first_row)
    }

    fn check_idle(&self) -> Result<(), StageError> {
        match self.kept.len() {
            0 => Ok(()),
            n => Err(StageError::Busy { n }),
        }
    }

    fn diverged(&self, what: &'static str) -> StageError {
        StageError::Diverged {
            what,
            steps: self.steps(),
        }
    }
}

//! The asynchronous stage of PipeDream and FTPipeHD (Narayanan et al. 2019, arXiv:1806.03377, section 3.3; Chen et al.
//! 2021, arXiv:2110.02781): every batch is an update of its own, and no stage waits for the others.
//!
//! *Weight stashing*: the backward pass of a batch uses the version of the weights that its forward pass used, and its
//! update is made to the newest. *Vertical sync*: the version that the first stage used travels with the batch, and all
//! stages use that one. *Aggregation*: the versions that evolve side by side are averaged from time to time.
//!
//! Stage i of n has at most n - i batches in flight and keeps n - i versions: a gradient is at most n - i - 1 updates old.
//! With vertical sync it keeps n and a gradient is at most n - 1 updates old. Version v is that of v updates, and the state
//! at it has batch norm's statistics of v forward passes, whatever is in flight: so the states of all stages at one
//! version belong together.

mod versions;
mod blocks;

use std::collections::BTreeMap;
use std::ops::Range;

use tch::{Reduction, Tensor};

use super::activation::Activation;
use super::chain::{Chain, Gradients, Input, accumulate};
use super::error::StageError;
use super::passes::Forward;
use super::synchronous::Loss;
use crate::arena::Arena;
use crate::config::{ModelConfig, OptimiserConfig};
use crate::layer::Mode;
use crate::optimiser::Optimiser;
use versions::Versions;

/// How deep the pipeline is at one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Most batches in flight, at least one.
    pub in_flight: usize,
    /// Versions of the weights that are kept.
    pub versions: usize,
}

impl Depth {
    /// Of a stage with at most `in_flight` batches in flight where the first one has `first`: n - i and n at stage i of n.
    pub fn new(in_flight: usize, first: usize, vertical_sync: bool) -> Self {
        let in_flight = in_flight.max(1);
        Self {
            in_flight,
            versions: if vertical_sync {
                first.max(in_flight)
            } else {
                in_flight
            },
        }
    }
}

#[derive(Debug)]
struct Kept {
    version: u64,
    pass: Forward,
    /// Batch norm's after the forward pass.
    statistics: Vec<f32>,
}

/// A stage that keeps several versions of its weights.
#[derive(Debug)]
pub struct Stashed {
    chain: Chain,
    depth: Depth,
    recompute: bool,
    versions: Versions,
    buffers: Arena,
    optimiser: Optimiser,
    gradient: Vec<f32>,
    scratch: Vec<f32>,
    kept: BTreeMap<u64, Kept>,
    /// Forward passes of training, those in flight included.
    batches_tracked: i64,
    /// Buffers and forward passes that belong to the newest version.
    boundary: (Vec<f32>, i64),
    /// As in [`super::Stage`].
    lent: (Vec<u8>, usize),
}

impl Stashed {
    /// A stage of the blocks `blocks` with initial values, at version 0.
    ///
    /// # Errors
    /// As [`super::Stage::new`].
    pub fn new(
        config: &ModelConfig,
        input_shape: [i64; 3],
        n_classes: i64,
        seed: u64,
        blocks: Range<usize>,
        (optimiser, depth): (OptimiserConfig, Depth),
    ) -> Result<Self, StageError> {
        let chain = Chain::new(config, input_shape, n_classes, seed, blocks, &optimiser)?;
        let (parameters, buffers) = (chain.new_parameters()?, chain.new_buffers()?);
        Ok(Self {
            optimiser: Optimiser::new(optimiser, parameters.len()),
            recompute: false,
            gradient: vec![0.0; parameters.len()],
            scratch: Vec::new(),
            versions: Versions::new(parameters),
            kept: BTreeMap::new(),
            batches_tracked: 0,
            boundary: (buffers.values().to_vec(), 0),
            lent: (Vec::new(), 0),
            buffers,
            chain,
            depth,
        })
    }

    /// Keeps of later batches the input alone and runs the forward pass once more in `backward`, on the same weights: less
    /// memory, a third more time, the same bits.
    pub fn set_recompute(&mut self, recompute: bool) {
        self.recompute = recompute;
    }

    /// As [`super::Stage::lend`].
    pub fn lend(&mut self, memory: Vec<u8>, room: usize) {
        self.lent = (memory, room);
    }

    /// Runs batch number `batch` on the weights of `version` (the newest if none is given) and keeps what
    /// [`Stashed::backward`] needs. Returns the version used, which with vertical sync travels on.
    ///
    /// # Shapes
    /// `x: [B, input…] → [B, output…]`
    ///
    /// # Errors
    /// An input that does not fit, a version that is not kept, `in_flight` batches in flight.
    pub fn forward<'a>(
        &mut self,
        batch: u64,
        version: Option<u64>,
        x: impl Into<Input<'a>>,
    ) -> Result<(u64, Activation), StageError> {
        let version = self.check_room(batch, version)?;
        let x = self.chain.tensor(x.into(), true)?;
        let weights = (self.versions.get(version)?, &self.buffers);
        let number = self.batches_tracked;
        let lent = std::mem::take(&mut self.lent);
        let (pass, activation) = self
            .chain
            .forward(x, weights, number, self.recompute, lent)?;
        self.batches_tracked += 1;
        let kept = Kept {
            version,
            pass,
            statistics: self.buffers.values().to_vec(),
        };
        self.kept.insert(batch, kept);
        Ok((version, activation))
    }

    /// Computes the gradient of batch number `batch` on the weights its forward pass used, updates the newest with it, and
    /// returns the gradient with respect to the input (none of the first stage). To be called in the order of the forward
    /// passes.
    ///
    /// # Errors
    /// A batch that is not in flight; gradients of another shape or not finite.
    pub fn backward(
        &mut self,
        batch: u64,
        upstream: &Activation,
    ) -> Result<Option<Activation>, StageError> {
        let not_in_flight = StageError::NotInFlight { micro: batch };
        let Some(kept) = self.kept.get(&batch) else {
            return Err(not_in_flight);
        };
        self.chain.check_upstream(&kept.pass.shape(), upstream)?;
        let Some(kept) = self.kept.remove(&batch) else {
            return Err(not_in_flight);
        };
        let parameters = self.versions.get(kept.version)?;
        let (leaf, y) = kept.pass.graph(&self.chain, parameters, &self.buffers)?;
        let root = self.chain.pull(&y, upstream)?;
        self.finish((kept.version, kept.statistics), root, &leaf)
    }

    /// The last stage's part of a batch: forward pass, mean cross entropy, backward pass, update.
    ///
    /// # Shapes
    /// `x: [B, input…]`, `labels: [B]` (of tokens `[B T]`)
    ///
    /// # Errors
    /// As [`Stashed::forward`]; labels that do not fit; a loss that is not finite.
    pub fn loss<'a>(
        &mut self,
        batch: u64,
        version: Option<u64>,
        x: impl Into<Input<'a>>,
        labels: &[i64],
    ) -> Result<Loss, StageError> {
        let version = self.check_room(batch, version)?;
        let x = self.chain.tensor(x.into(), true)?;
        self.chain.check_labels(labels, x.size()[0])?;
        let leaf = self.chain.leaf(x)?;
        let (parameters, number) = (self.versions.get(version)?, self.batches_tracked);
        let logits = self
            .chain
            .run(&leaf, parameters, &self.buffers, Mode::Train, number)?;
        self.batches_tracked += 1;
        let (root, correct) = self.chain.score(&logits, labels, Reduction::Mean)?;
        let loss = root.f_double_value(&[])? as f32;
        if !loss.is_finite() {
            return Err(self.diverged("loss"));
        }
        let statistics = self.buffers.values().to_vec();
        let gradient = self.finish((version, statistics), root, &leaf)?;
        Ok(Loss {
            loss,
            correct,
            gradient,
        })
    }

    /// Runs samples on the newest weights without training. Changes nothing.
    ///
    /// # Errors
    /// An input that is not for this stage, of another shape or not finite.
    pub fn evaluate<'a>(&self, x: impl Into<Input<'a>>) -> Result<Activation, StageError> {
        let parameters = self.versions.last();
        let y = self.chain.evaluate(x.into(), parameters, &self.buffers)?;
        Ok(Activation::of(&y)?)
    }

    /// The last stage's part of an evaluation: the sum of the cross entropies in nats, and how many labels were right.
    ///
    /// # Errors
    /// As [`Stashed::evaluate`]; labels that do not fit.
    pub fn evaluate_loss<'a>(
        &self,
        x: impl Into<Input<'a>>,
        labels: &[i64],
    ) -> Result<(f64, usize), StageError> {
        let parameters = self.versions.last();
        let logits = self.chain.evaluate(x.into(), parameters, &self.buffers)?;
        self.chain.judge(&logits, labels)
    }

    /// Sets the learning rate of the next updates; it is not part of a state.
    ///
    /// # Errors
    /// A rate outside (0, 100].
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<(), StageError> {
        Ok(self.optimiser.try_learning_rate(rate)?)
    }

    /// Averages the versions that are kept; the mean becomes the newest. To be called between a backward pass and the
    /// next forward pass, after the same number of updates at all stages.
    ///
    /// # Errors
    /// A batch in flight that uses the newest version.
    pub fn aggregate(&mut self) -> Result<(), StageError> {
        let newest = self.newest();
        let users = self.kept.values().filter(|kept| kept.version == newest);
        match users.count() {
            0 => {
                self.versions.average();
                Ok(())
            }
            n => Err(StageError::Busy { n }),
        }
    }

    /// Forgets all batches in flight, and what batch norm recorded of them; updates made stay.
    pub fn drop_in_flight(&mut self) {
        self.kept.clear();
        self.buffers.values_mut().copy_from_slice(&self.boundary.0);
        self.batches_tracked = self.boundary.1;
    }

    /// The newest version: updates made.
    pub fn newest(&self) -> u64 {
        self.versions.newest()
    }

    /// Versions of the weights that are kept.
    pub fn n_versions(&self) -> usize {
        self.versions.len()
    }

    /// Batches in flight.
    pub fn n_in_flight(&self) -> usize {
        self.kept.len()
    }

    /// Whether it takes samples.
    pub fn is_first(&self) -> bool {
        self.chain.is_first()
    }

    /// Whether it computes the loss.
    pub fn is_last(&self) -> bool {
        self.chain.is_last()
    }

    /// Numbers of its blocks in the whole chain.
    pub fn blocks(&self) -> Range<usize> {
        self.chain.range.clone()
    }

    /// Whether one more forward pass may be made, and on which version.
    fn check_room(&self, batch: u64, version: Option<u64>) -> Result<u64, StageError> {
        if self.kept.contains_key(&batch) {
            return Err(StageError::InFlightAlready { micro: batch });
        }
        if self.kept.len() >= self.depth.in_flight {
            return Err(StageError::Busy { n: self.kept.len() });
        }
        let version = version.unwrap_or_else(|| self.newest());
        self.versions.get(version)?;
        Ok(version)
    }

    /// The backward pass and the update: a new version of the newest one. What nobody can ask for any more is dropped.
    fn finish(
        &mut self,
        (version, statistics): (u64, Vec<f32>),
        root: Tensor,
        leaf: &Tensor,
    ) -> Result<Option<Activation>, StageError> {
        let parameters = self.versions.get(version)?;
        let gradients = self.chain.gradients(root, leaf, parameters)?;
        let Gradients { parameters, input } = gradients;
        self.gradient.fill(0.0);
        let segments = self.versions.last().segments();
        let (sum, scratch) = (&mut self.gradient, &mut self.scratch);
        accumulate(sum, &parameters, segments, 1.0, scratch)?;
        if !self.gradient.iter().all(|value| value.is_finite()) {
            return Err(self.diverged("gradient"));
        }
        self.optimiser.steps = self.newest();
        let next = self.versions.grow(|| self.chain.new_parameters())?;
        self.optimiser.update(next, &self.gradient, 1.0);
        let in_use = self.kept.values().map(|kept| kept.version).min();
        self.versions.keep(self.depth.versions, in_use);
        self.boundary = (statistics, self.boundary.1 + 1);
        let (memory, room) = std::mem::take(&mut self.lent);
        let input = input
            .as_ref()
            .map(|input| Activation::put(input, memory, room));
        Ok(input.transpose()?)
    }

    fn diverged(&self, what: &'static str) -> StageError {
        StageError::Diverged {
            what,
            steps: self.newest(),
        }
    }
}

//! The asynchronous stage of PipeDream and FTPipeHD (Narayanan et al. 2019, arXiv:1806.03377, section 3.3; Chen et al.
//! 2021, arXiv:2110.02781): every micro-batch is an update of its own, and no stage waits for the others.
//!
//! *Weight stashing*: the backward pass of a micro-batch uses the version of the weights that its forward pass used, and
//! its update is made to the newest. *Vertical sync*: the version that the first stage used travels with the micro-batch,
//! and all stages use that one. *Aggregation*: the versions that evolve side by side are averaged from time to time.
//!
//! Stage i of n has at most n - i micro-batches in flight and keeps n - i versions, with vertical sync n. A gradient is
//! then at most n - 1 updates old. Version v is that of v updates. Batch norm's statistics have no versions.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use tch::{Reduction, Tensor};

use super::activation::Activation;
use super::chain::{Chain, Gradients, Input, accumulate};
use super::error::StageError;
use super::state::BlockState;
use super::synchronous::Loss;
use crate::arena::Arena;
use crate::config::{ModelConfig, OptimiserConfig};
use crate::layer::Mode;
use crate::optimiser::Optimiser;

/// How deep the pipeline is at one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Most micro-batches in flight, n - i at stage i of n; at least one.
    pub in_flight: usize,
    /// Versions of the weights that are kept: `in_flight`, with vertical sync n.
    pub versions: usize,
}

impl Depth {
    /// Of stage `position` (from 0) of `n_stages`.
    pub fn new(position: usize, n_stages: usize, vertical_sync: bool) -> Self {
        let in_flight = n_stages.saturating_sub(position).max(1);
        Self {
            in_flight,
            versions: if vertical_sync {
                n_stages.max(in_flight)
            } else {
                in_flight
            },
        }
    }
}

#[derive(Debug)]
struct Kept {
    version: u64,
    leaf: Tensor,
    y: Tensor,
}

/// A stage that keeps several versions of its weights.
#[derive(Debug)]
pub struct Stashed {
    chain: Chain,
    depth: Depth,
    /// Versions `first_version..`, the newest last; never empty.
    versions: VecDeque<Arena>,
    first_version: u64,
    /// Memory of the last version that was dropped.
    spare: Option<Arena>,
    buffers: Arena,
    optimiser: Optimiser,
    gradient: Vec<f32>,
    scratch: Vec<f32>,
    kept: BTreeMap<u32, Kept>,
    batches_tracked: i64,
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
        let parameters = chain.new_parameters()?;
        Ok(Self {
            buffers: chain.new_buffers()?,
            optimiser: Optimiser::new(optimiser, parameters.len()),
            gradient: vec![0.0; parameters.len()],
            scratch: Vec::new(),
            versions: VecDeque::from([parameters]),
            first_version: 0,
            spare: None,
            kept: BTreeMap::new(),
            batches_tracked: 0,
            chain,
            depth,
        })
    }

    /// Runs micro-batch `micro` on the weights of `version` (the newest if none is given) and keeps what
    /// [`Stashed::backward`] needs. Returns the version used, which with vertical sync travels on.
    ///
    /// # Errors
    /// An input that does not fit, a version that is not kept, `in_flight` micro-batches in flight.
    pub fn forward<'a>(
        &mut self,
        micro: u32,
        version: Option<u64>,
        x: impl Into<Input<'a>>,
    ) -> Result<(u64, Activation), StageError> {
        let (version, leaf, y) = self.begin(micro, version, x.into())?;
        let activation = Activation::of(&y)?;
        self.kept.insert(micro, Kept { version, leaf, y });
        Ok((version, activation))
    }

    /// Computes the gradient of micro-batch `micro` on the weights its forward pass used, updates the newest with it, and
    /// returns the gradient with respect to the input (none of the first stage).
    ///
    /// # Errors
    /// A micro-batch that is not in flight; gradients of another shape or not finite.
    pub fn backward(
        &mut self,
        micro: u32,
        upstream: &Activation,
    ) -> Result<Option<Activation>, StageError> {
        let kept = self.kept.get(&micro);
        let y = &kept.ok_or(StageError::NotInFlight { micro })?.y;
        self.chain.check_upstream(&y.size(), upstream)?;
        let Some(Kept { version, leaf, y }) = self.kept.remove(&micro) else {
            return Err(StageError::NotInFlight { micro });
        };
        let root = self.chain.pull(&y, upstream)?;
        self.finish(version, root, &leaf)
    }

    /// The last stage's part of a micro-batch: forward pass, mean cross entropy, backward pass, update.
    ///
    /// # Errors
    /// As [`Stashed::forward`]; labels that do not fit; a loss that is not finite.
    pub fn loss<'a>(
        &mut self,
        micro: u32,
        version: Option<u64>,
        x: impl Into<Input<'a>>,
        labels: &[i64],
    ) -> Result<Loss, StageError> {
        let x = x.into();
        let n_samples = match x {
            Input::Samples(batch) => batch.len(),
            Input::Activation(activation) => activation.n_samples(),
        };
        self.chain.check_labels(labels, n_samples as i64)?;
        let (version, leaf, logits) = self.begin(micro, version, x)?;
        let (root, correct) = self.chain.score(&logits, labels, Reduction::Mean)?;
        let loss = root.f_double_value(&[])? as f32;
        if !loss.is_finite() {
            return Err(self.diverged("loss"));
        }
        let gradient = self.finish(version, root, &leaf)?;
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
        let parameters = self.of_version(self.newest())?;
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
        let parameters = self.of_version(self.newest())?;
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
    /// A micro-batch in flight that uses the newest version.
    pub fn aggregate(&mut self) -> Result<(), StageError> {
        let newest = self.newest();
        let users = self.kept.values().filter(|kept| kept.version == newest);
        match users.count() {
            0 => {}
            n => return Err(StageError::Busy { n }),
        }
        let n = self.versions.len() as f32;
        let Some((newest, others)) = self.versions.make_contiguous().split_last_mut() else {
            return Ok(());
        };
        let mean = newest.values_mut();
        for other in others.iter() {
            let values = other.values();
            mean.iter_mut()
                .zip(values)
                .for_each(|(mean, value)| *mean += value);
        }
        mean.iter_mut().for_each(|mean| *mean /= n);
        Ok(())
    }

    /// Forgets all micro-batches in flight; updates made stay.
    pub fn drop_in_flight(&mut self) {
        self.kept.clear();
    }

    /// The newest version: updates made.
    pub fn newest(&self) -> u64 {
        self.first_version + self.versions.len() as u64 - 1
    }

    /// Versions of the weights that are kept.
    pub fn n_versions(&self) -> usize {
        self.versions.len()
    }

    /// Micro-batches in flight.
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

    /// The state of one block: the newest weights, and the statistics as they are.
    ///
    /// # Errors
    /// A block of another stage.
    pub fn block_state(&self, block: usize) -> Result<BlockState, StageError> {
        let counters = (self.batches_tracked, self.newest());
        let parameters = self.versions.back().map_or(&[][..], Arena::values);
        let (optimiser, buffers) = (&self.optimiser.state, self.buffers.values());
        self.chain
            .cut_out(block, parameters, optimiser, buffers, counters)
    }

    /// Goes on from the states of all its blocks, whose weights become the only version; its number is that of the updates
    /// they have had.
    ///
    /// # Errors
    /// Micro-batches in flight; states that are not those of the stage's blocks, in order and from one step.
    pub fn load(&mut self, states: &[BlockState]) -> Result<(), StageError> {
        if !self.kept.is_empty() {
            return Err(StageError::Busy { n: self.kept.len() });
        }
        let counters = |state: &BlockState| (state.batches_tracked, state.optimiser_steps);
        let Some(first) = states.first().map(counters) else {
            return Err(StageError::Uneven);
        };
        let in_order = states
            .iter()
            .map(|state| state.block)
            .eq(self.chain.range.clone());
        if !in_order || states.iter().any(|state| counters(state) != first) {
            return Err(StageError::Uneven);
        }
        for state in states {
            state.check(self.chain.block_layout(state.block)?)?;
        }
        self.versions.drain(1..);
        for state in states {
            let [own, own_buffers] = self.chain.spans(self.chain.block_layout(state.block)?);
            let values = self.versions[0].values_mut();
            values[own.clone()].copy_from_slice(&state.parameters);
            self.buffers.values_mut()[own_buffers].copy_from_slice(&state.buffers);
            for (vector, saved) in self.optimiser.state.iter_mut().zip(&state.optimiser) {
                vector[own.clone()].copy_from_slice(saved);
            }
        }
        (self.batches_tracked, self.first_version) = first;
        self.optimiser.steps = first.1;
        Ok(())
    }

    /// The forward pass: version, leaf and output.
    fn begin(
        &mut self,
        micro: u32,
        version: Option<u64>,
        x: Input,
    ) -> Result<(u64, Tensor, Tensor), StageError> {
        let version = version.unwrap_or_else(|| self.newest());
        if self.kept.contains_key(&micro) {
            return Err(StageError::InFlightAlready { micro });
        }
        if self.kept.len() >= self.depth.in_flight {
            return Err(StageError::Busy { n: self.kept.len() });
        }
        let parameters = self.of_version(version)?;
        let leaf = self.chain.leaf(self.chain.tensor(x, true)?)?;
        let number = self.batches_tracked;
        let y = self
            .chain
            .run(&leaf, parameters, &self.buffers, Mode::Train, number)?;
        self.batches_tracked += 1;
        Ok((version, leaf, y))
    }

    /// The backward pass and the update.
    fn finish(
        &mut self,
        version: u64,
        root: Tensor,
        leaf: &Tensor,
    ) -> Result<Option<Activation>, StageError> {
        let gradients = self
            .chain
            .gradients(root, leaf, self.of_version(version)?)?;
        let Gradients { parameters, input } = gradients;
        self.gradient.fill(0.0);
        let segments = self.versions[0].segments();
        let (sum, scratch) = (&mut self.gradient, &mut self.scratch);
        accumulate(sum, &parameters, segments, 1.0, scratch)?;
        if !self.gradient.iter().all(|value| value.is_finite()) {
            return Err(self.diverged("gradient"));
        }
        self.update()?;
        let input = input.as_ref().map(Activation::of);
        Ok(input.transpose()?)
    }

    /// Makes a new version of the newest one, and drops what nobody can ask for any more.
    fn update(&mut self) -> Result<(), StageError> {
        let mut next = match self.spare.take() {
            Some(arena) => arena,
            None => self.chain.new_parameters()?,
        };
        if let Some(newest) = self.versions.back() {
            next.values_mut().copy_from_slice(newest.values());
        }
        self.optimiser.steps = self.newest();
        self.optimiser
            .update(next.values_mut(), &self.gradient, 1.0);
        self.versions.push_back(next);
        let in_use = self.kept.values().map(|kept| kept.version).min();
        while self.versions.len() > self.depth.versions
            && in_use.is_none_or(|version| version > self.first_version)
        {
            self.spare = self.versions.pop_front();
            self.first_version += 1;
        }
        Ok(())
    }

    fn of_version(&self, version: u64) -> Result<&Arena, StageError> {
        let at = version.checked_sub(self.first_version);
        let arena = at.and_then(|at| self.versions.get(usize::try_from(at).ok()?));
        arena.ok_or(StageError::Version {
            wanted: version,
            oldest: self.first_version,
            newest: self.newest(),
        })
    }

    fn diverged(&self, what: &'static str) -> StageError {
        StageError::Diverged {
            what,
            steps: self.newest(),
        }
    }
}

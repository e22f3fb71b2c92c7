//! What a simulated peer trains: the job's model with the real mathematics of `skein_model`, or a quadratic bowl where only
//! the protocol matters.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use skein_gossip::knowledge::merge;
use skein_model::average::Average;
use skein_model::config::Split;
use skein_model::data::{Sampler, Splits};
use skein_model::model::Model;
use skein_model::snapshot::Snapshot;
use skein_model::train::{Evaluation, Trainer};
use skein_node::job::JobFile;

/// Rows per forward pass of an evaluation, as in the node.
const EVALUATION_BATCH: usize = 250;

/// A replica's state, to copy from peer to peer.
#[derive(Clone, Debug)]
pub(super) struct State(Arc<Snapshot>);

impl State {
    /// Bytes of its transfer, the optimiser's state included.
    pub(super) fn bytes(&self) -> usize {
        self.0.encode().len()
    }

    pub(super) fn weights_hash(&self) -> [u8; 32] {
        self.0.weights_hash()
    }

    /// Only what the finished model has.
    pub(super) fn weights(&self) -> Self {
        Self(Arc::new(Snapshot {
            optimiser: Vec::new(),
            ..(*self.0).clone()
        }))
    }
}

/// One replica.
#[derive(Debug)]
pub(super) enum Learner {
    Model(Box<ModelLearner>),
    Toy(Box<Toy>),
}

#[derive(Debug)]
pub(super) struct ModelLearner {
    trainer: Trainer,
    data: Arc<Splits>,
    split: Split,
    seed: u64,
    shard: u32,
    sampler: Option<Sampler>,
    average: Option<Average>,
}

/// Half the squared distance to a goal that all share; gradients carry noise that shrinks with the batch.
#[derive(Debug)]
pub(super) struct Toy {
    weights: Vec<f32>,
    lr: f32,
    rng: ChaCha8Rng,
}

impl Learner {
    /// The job's model on its data.
    ///
    /// # Errors
    /// Why it cannot be built, in words.
    pub(super) fn of_job(job: &JobFile, data: &Arc<Splits>) -> Result<Self, String> {
        let shape = data.train.input_shape();
        let model = Model::new(&job.model, shape, data.train.n_classes(), job.seed)
            .map_err(|error| error.to_string())?;
        let trainer =
            Trainer::new(model, job.train.optimiser.clone()).map_err(|error| error.to_string())?;
        Ok(Self::Model(Box::new(ModelLearner {
            trainer,
            data: data.clone(),
            split: job.data.split.clone(),
            seed: job.seed,
            shard: 0,
            sampler: None,
            average: job.evaluate.average.then(Average::default),
        })))
    }

    /// A bowl of `dimensions`; all start at the same place, away from the goal at zero.
    pub(super) fn toy(dimensions: usize, job: &JobFile, seed: u64) -> Self {
        Self::Toy(Box::new(Toy {
            weights: vec![1.0; dimensions],
            lr: job.train.optimiser.learning_rate() as f32,
            rng: ChaCha8Rng::seed_from_u64(seed),
        }))
    }

    /// Lengths of the variables.
    pub(super) fn lengths(&self) -> Vec<usize> {
        match self {
            Self::Model(model) => {
                let segments = &model.trainer.layout().parameters;
                segments.iter().map(|segment| segment.len).collect()
            }
            Self::Toy(toy) => vec![toy.weights.len()],
        }
    }

    /// Samples of the training set; 0 where there is none.
    pub(super) fn train_len(&self) -> u64 {
        match self {
            Self::Model(model) => model.data.train.len() as u64,
            Self::Toy(_) => 0,
        }
    }

    /// Rows of the validation set.
    pub(super) fn validation_len(&self) -> usize {
        match self {
            Self::Model(model) => model.data.validation.len(),
            Self::Toy(_) => 0,
        }
    }

    pub(super) fn set_shard(&mut self, shard: u32) {
        if let Self::Model(model) = self
            && model.shard != shard
        {
            model.shard = shard;
            model.sampler = None;
        }
    }

    /// The mean gradient of the next `batch` samples, and its loss.
    ///
    /// # Errors
    /// In words: no data for this shard, or a loss that is not finite.
    pub(super) fn gradient(&mut self, batch: u32, out: &mut Vec<f32>) -> Result<f32, String> {
        match self {
            Self::Model(model) => model.gradient(batch as usize, out),
            Self::Toy(toy) => Ok(toy.gradient(batch, out)),
        }
    }

    /// The parameters, one behind the other.
    pub(super) fn parameters(&self) -> &[f32] {
        match self {
            Self::Model(model) => model.trainer.model().parameters().values(),
            Self::Toy(toy) => &toy.weights,
        }
    }

    /// The parameters, to be changed between steps.
    pub(super) fn parameters_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Model(model) => model.trainer.model_mut().parameters_mut().values_mut(),
            Self::Toy(toy) => &mut toy.weights,
        }
    }

    pub(super) fn learning_rate(&self) -> f64 {
        match self {
            Self::Model(model) => model.trainer.learning_rate(),
            Self::Toy(toy) => f64::from(toy.lr),
        }
    }

    /// Multiplies the job's learning rate.
    pub(super) fn set_rate_factor(&mut self, base: f64, factor: f32) {
        let rate = base * f64::from(factor);
        match self {
            Self::Model(model) => {
                if let Err(error) = model.trainer.set_learning_rate(rate) {
                    tracing::warn!(rate, %error, "learning rate is kept");
                }
            }
            Self::Toy(toy) => toy.lr = rate as f32,
        }
    }

    pub(super) fn set_momentum(&mut self, momentum: f64) {
        if let Self::Model(model) = self
            && let Err(error) = model.trainer.set_momentum(momentum)
        {
            tracing::warn!(momentum, %error, "momentum is kept");
        }
    }

    /// Weights change places with their running mean, where there is one.
    pub(super) fn swap_average(&mut self) {
        if let Self::Model(model) = self
            && let Some(average) = &mut model.average
        {
            average.swap(model.trainer.model_mut());
        }
    }

    /// A step was made.
    pub(super) fn stepped(&mut self) {
        if let Self::Model(model) = self
            && let Some(average) = &mut model.average
        {
            average.updated(model.trainer.model());
        }
    }

    /// The mean of the weights begins anew.
    pub(super) fn forget_average(&mut self) {
        if let Self::Model(model) = self
            && let Some(average) = &mut model.average
        {
            average.forget();
        }
    }

    /// The replica moved towards another one: so does the mean of its weights.
    pub(super) fn move_average(&mut self, other: &State, weight: f32) {
        if let Self::Model(model) = self
            && let Some(average) = &mut model.average
        {
            average.move_towards(&other.0, weight);
        }
    }

    /// Moves towards another replica, from `own`, by `weight`.
    ///
    /// # Errors
    /// A state of another model.
    pub(super) fn move_towards(
        &mut self,
        own: &State,
        other: &State,
        weight: f32,
    ) -> Result<(), String> {
        let mut mixed = (*own.0).clone();
        merge::toward(&mut mixed.parameters, &other.0.parameters, weight)
            .and_then(|()| merge::toward(&mut mixed.buffers, &other.0.buffers, weight))
            .map_err(|error| error.to_string())?;
        let mixed = match weight == 1.0 && !other.0.optimiser.is_empty() {
            true => other.clone(),
            false => State(Arc::new(mixed)),
        };
        self.load(&mixed)
    }

    /// # Errors
    /// A gradient of another length.
    pub(super) fn apply(&mut self, gradient: &[f32]) -> Result<(), String> {
        match self {
            Self::Model(model) => {
                let applied = model.trainer.apply(gradient);
                applied.map_err(|error| error.to_string())
            }
            Self::Toy(toy) => {
                for (weight, value) in toy.weights.iter_mut().zip(gradient) {
                    *weight -= toy.lr * value;
                }
                Ok(())
            }
        }
    }

    /// Looks at `rows` of the validation set.
    ///
    /// # Errors
    /// In words.
    pub(super) fn evaluate(&mut self, rows: usize) -> Result<Evaluation, String> {
        match self {
            Self::Model(model) => {
                let data = model.data.clone();
                let rows = rows.min(data.validation.len());
                model
                    .trainer
                    .evaluate(&data.validation, 0..rows, EVALUATION_BATCH)
                    .map_err(|error| error.to_string())
            }
            Self::Toy(toy) => {
                let loss = f64::from(toy.loss());
                Ok(Evaluation {
                    loss,
                    accuracy: (-loss).exp(),
                    samples: 0,
                })
            }
        }
    }

    pub(super) fn state(&self) -> State {
        State(Arc::new(match self {
            Self::Model(model) => model.trainer.snapshot(),
            Self::Toy(toy) => Snapshot {
                parameters: toy.weights.clone(),
                buffers: Vec::new(),
                batches_tracked: 0,
                optimiser: Vec::new(),
                optimiser_steps: 0,
            },
        }))
    }

    /// # Errors
    /// A state of another model, or one that is not finite.
    pub(super) fn load(&mut self, state: &State) -> Result<(), String> {
        match self {
            Self::Model(model) => {
                let mut snapshot = (*state.0).clone();
                if snapshot.optimiser.is_empty() {
                    snapshot.optimiser = model.trainer.snapshot().optimiser;
                }
                model
                    .trainer
                    .restore(&snapshot)
                    .map_err(|error| error.to_string())
            }
            Self::Toy(toy) => {
                toy.weights.clone_from(&state.0.parameters);
                Ok(())
            }
        }
    }
}

impl ModelLearner {
    fn gradient(&mut self, batch: usize, out: &mut Vec<f32>) -> Result<f32, String> {
        out.resize(self.trainer.model().n_parameters(), 0.0);
        let sampler = match &mut self.sampler {
            Some(sampler) => sampler,
            None => {
                let shards = match &self.split {
                    Split::All {} => None,
                    Split::Iid { shards } | Split::Dirichlet { shards, .. } => {
                        Some((*shards).max(1))
                    }
                };
                let shard = shards.map_or(self.shard, |shards| self.shard % shards);
                let labels = self.data.train.labels();
                let sampler = Sampler::new(&self.split, labels, self.seed, shard, 0);
                self.sampler
                    .insert(sampler.map_err(|error| error.to_string())?)
            }
        };
        let rows = sampler.next_rows(batch);
        let batch = self.data.train.batch(&rows);
        self.trainer
            .gradient(&batch, out)
            .map_err(|error| error.to_string())
    }
}

impl Toy {
    fn gradient(&mut self, batch: u32, out: &mut Vec<f32>) -> f32 {
        let noise = 1.0 / (batch.max(1) as f32).sqrt();
        out.clear();
        for weight in &self.weights {
            let uniform = (self.rng.next_u32() >> 8) as f32 / (1 << 24) as f32;
            out.push(weight + noise * (2.0 * uniform - 1.0));
        }
        self.loss()
    }

    fn loss(&self) -> f32 {
        let sum: f32 = self.weights.iter().map(|weight| weight * weight).sum();
        0.5 * sum / self.weights.len() as f32
    }
}

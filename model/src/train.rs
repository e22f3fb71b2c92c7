//! The trainer: one thread's whole view of training. `gradient` turns a batch into the mean gradient, a flat slice that
//! the exchange may change, and `apply` makes one optimiser update of it.
//!
//! ```text
//! Batch -> forward -> cross entropy -> backward -> &mut [f32] -> (exchange) -> &[f32] -> optimiser -> parameters
//! ```

use std::ops::Range;

use tch::{Kind, Reduction, TchError, Tensor};

use crate::config::{ConfigError, OptimiserConfig};
use crate::data::{Batch, Dataset};
use crate::model::{Layout, Model, ModelError};
use crate::optimiser::Optimiser;
use crate::snapshot::{Snapshot, SnapshotError};

/// Why a step or a restore failed.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The optimiser's settings cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The batch does not suit the model, or libtorch refused.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The loss is NaN or infinite: training has diverged. Batch norm's statistics may be spoilt: restore a snapshot.
    #[error(
        "the loss is {loss} after {steps} steps: lower the learning rate, or restore an earlier snapshot"
    )]
    Diverged {
        /// The loss.
        loss: f32,
        /// Optimiser updates made.
        steps: u64,
    },
    /// Labels for another kind of model: one per sample, or one per token.
    #[error("the model needs {expected} labels for this batch, got {got}")]
    Labels {
        /// Labels the batch should have.
        expected: usize,
        /// Labels it has.
        got: usize,
    },
    /// A slice is not as long as the parameters.
    #[error("the model has {expected} parameters, the gradient slice {got}")]
    GradientLength {
        /// Number of parameters.
        expected: usize,
        /// Length of the slice.
        got: usize,
    },
    /// The snapshot is not one of this model and optimiser.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The data set has other images or classes than the model.
    #[error(
        "the model takes images {expected:?} of {expected_classes} classes, the data set has {got:?} of {got_classes}"
    )]
    Dataset {
        /// Channels, height, width of the model.
        expected: [i64; 3],
        /// Classes of the model.
        expected_classes: i64,
        /// Channels, height, width of the data.
        got: [i64; 3],
        /// Classes of the data.
        got_classes: i64,
    },
    /// Rows beyond the end of the data set, or none at all.
    #[error("rows {start}..{end} of a data set of {len} samples cannot be evaluated")]
    Rows {
        /// First row.
        start: usize,
        /// One past the last row.
        end: usize,
        /// Samples in the data set.
        len: usize,
    },
}

impl From<TchError> for TrainError {
    fn from(error: TchError) -> Self {
        Self::Model(error.into())
    }
}

/// How well a model does on a range of samples.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Evaluation {
    /// Mean cross entropy, in nats per label: per sample, of text per token.
    pub loss: f64,
    /// Share of labels that have the largest logit, 0 to 1.
    pub accuracy: f64,
    /// Samples looked at.
    pub samples: usize,
}

/// A model with its optimiser.
#[derive(Debug)]
pub struct Trainer {
    model: Model,
    optimiser: Optimiser,
    layout: Layout,
}

impl Trainer {
    /// A trainer with its optimiser state at zero.
    ///
    /// # Errors
    /// Optimiser settings that cannot work.
    pub fn new(model: Model, optimiser: OptimiserConfig) -> Result<Self, TrainError> {
        optimiser.validate()?;
        let mut layout = model.layout().clone();
        layout.optimiser = optimiser
            .state_names()
            .iter()
            .map(|name| (*name).to_owned())
            .collect();
        Ok(Self {
            optimiser: Optimiser::new(optimiser, model.n_parameters()),
            model,
            layout,
        })
    }

    /// Writes the gradient of the batch's mean cross entropy to `out` and returns that loss. Updates batch norm's
    /// statistics; changes no parameter.
    ///
    /// # Shapes
    /// `out: [N]`, laid out as the parameter arena
    ///
    /// # Errors
    /// A batch or slice of the wrong size; a loss that is not finite (`out` is then unchanged).
    pub fn gradient(&mut self, batch: &Batch, out: &mut [f32]) -> Result<f32, TrainError> {
        self.check_length(out.len())?;
        check_labels(&self.layout, batch)?;
        let logits = self.model.forward(batch.x(), true)?; // [B, …, n_classes]
        let loss = cross_entropy(&logits, batch.y(), Reduction::Mean)?; // []
        let value = loss.f_double_value(&[])? as f32;
        if !value.is_finite() {
            return Err(TrainError::Diverged {
                loss: value,
                steps: self.optimiser.steps,
            });
        }
        let parameters = self.model.parameters();
        let gradients = Tensor::f_run_backward(&[loss], parameters.variables(), false, false)?;
        for (segment, gradient) in parameters.segments().iter().zip(&gradients) {
            gradient.f_copy_data(
                &mut out[segment.offset..segment.offset + segment.len],
                segment.len,
            )?;
        }
        Ok(value)
    }

    /// Makes one optimiser update of `gradient`, laid out as the parameter arena.
    ///
    /// # Errors
    /// A slice of the wrong length (nothing is changed).
    pub fn apply(&mut self, gradient: &[f32]) -> Result<(), TrainError> {
        self.apply_scaled(gradient, 1.0)
    }

    /// Makes one optimiser update of `scale * gradient`, which saves a pass over the gradient.
    ///
    /// # Errors
    /// As [`Trainer::apply`].
    pub fn apply_scaled(&mut self, gradient: &[f32], scale: f32) -> Result<(), TrainError> {
        self.check_length(gradient.len())?;
        let parameters = self.model.parameters_mut().values_mut();
        self.optimiser.update(parameters, gradient, scale);
        Ok(())
    }

    /// Loss and accuracy on the samples `rows` of `data`, `batch` at a time. Changes nothing.
    ///
    /// # Errors
    /// Data of another shape than the model's, rows that are not there, no rows.
    pub fn evaluate(
        &mut self,
        data: &Dataset,
        rows: Range<usize>,
        batch: usize,
    ) -> Result<Evaluation, TrainError> {
        evaluate(&mut self.model, data, rows, batch)
    }

    /// A copy of the whole state.
    pub fn snapshot(&self) -> Snapshot {
        let (optimiser, optimiser_steps) = (self.optimiser.state.clone(), self.optimiser.steps);
        Snapshot {
            optimiser,
            optimiser_steps,
            ..Snapshot::of(&self.model)
        }
    }

    /// Goes on from `snapshot`: what follows is bit-identical to what followed when it was taken.
    ///
    /// # Errors
    /// A snapshot of another model or optimiser, or with values that are not finite (nothing is changed).
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<(), TrainError> {
        snapshot.check(&self.layout)?;
        snapshot.load_weights(&mut self.model);
        for (state, saved) in self.optimiser.state.iter_mut().zip(&snapshot.optimiser) {
            state.copy_from_slice(saved);
        }
        self.optimiser.steps = snapshot.optimiser_steps;
        Ok(())
    }

    /// Sets the learning rate of the next updates; it is not part of a snapshot.
    ///
    /// # Errors
    /// A rate outside (0, 100].
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<(), TrainError> {
        Ok(self.optimiser.try_learning_rate(rate)?)
    }

    /// Sets the momentum of the next updates of SGD that was begun with momentum; it is not part of a snapshot. Other optimisers
    /// are left as they are.
    ///
    /// # Errors
    /// A momentum outside [0, 1).
    pub fn set_momentum(&mut self, momentum: f64) -> Result<(), TrainError> {
        let mut changed = self.optimiser.config().clone();
        if let OptimiserConfig::Sgd {
            momentum: explicit,
            nesterov,
            ..
        } = &mut changed
        {
            *explicit = momentum;
            *nesterov &= momentum > 0.0;
        }
        changed.validate()?;
        self.optimiser.set_momentum(momentum);
        Ok(())
    }

    /// The momentum of SGD; none of other optimisers.
    pub fn momentum(&self) -> Option<f64> {
        self.optimiser.config().momentum()
    }

    /// The learning rate.
    pub fn learning_rate(&self) -> f64 {
        self.optimiser.config().learning_rate()
    }

    /// Optimiser updates made.
    pub fn steps(&self) -> u64 {
        self.optimiser.steps
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The model, whose values may be changed in place between steps.
    pub fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// What a snapshot of this trainer looks like.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    fn check_length(&self, got: usize) -> Result<(), TrainError> {
        let expected = self.model.n_parameters();
        if expected == got {
            Ok(())
        } else {
            Err(TrainError::GradientLength { expected, got })
        }
    }
}

/// Loss and accuracy of a bare model, as [`Trainer::evaluate`].
///
/// # Errors
/// As [`Trainer::evaluate`].
pub fn evaluate(
    model: &mut Model,
    data: &Dataset,
    rows: Range<usize>,
    batch: usize,
) -> Result<Evaluation, TrainError> {
    let layout = model.layout();
    if data.input_shape() != layout.input_shape || data.n_classes() > layout.n_classes {
        return Err(TrainError::Dataset {
            expected: layout.input_shape,
            expected_classes: layout.n_classes,
            got: data.input_shape(),
            got_classes: data.n_classes(),
        });
    }
    let Range { start, end } = rows;
    if start >= end || end > data.len() {
        return Err(TrainError::Rows {
            start,
            end,
            len: data.len(),
        });
    }
    let _guard = tch::no_grad_guard();
    let (mut loss, mut correct) = (0.0, 0);
    let rows: Vec<usize> = (start..end).collect();
    for rows in rows.chunks(batch.max(1)) {
        let batch = data.batch(rows);
        check_labels(model.layout(), &batch)?;
        let logits = model.forward(batch.x(), false)?; // [B, …, n_classes]
        loss += cross_entropy(&logits, batch.y(), Reduction::Sum)?.f_double_value(&[])?;
        let hits = logits
            .f_argmax(-1, false)?
            .f_eq_tensor(batch.y())?
            .f_sum(Kind::Int64)?;
        correct += hits.f_int64_value(&[])?;
    }
    let samples = end - start;
    let labels = (samples * model.layout().labels_per_sample()) as f64;
    Ok(Evaluation {
        loss: loss / labels,
        accuracy: correct as f64 / labels,
        samples,
    })
}

/// Cross entropy of logits `[B, …, V]` and as many labels as there are rows of `V`.
pub(crate) fn cross_entropy(
    logits: &Tensor,
    y: &Tensor,
    reduction: Reduction,
) -> Result<Tensor, TchError> {
    let rows = logits.f_flatten(0, -2)?; // [B …, V]
    let labels = y.f_flatten(0, -1)?; // [B …]
    rows.f_cross_entropy_loss(&labels, None::<Tensor>, reduction, -100, 0.0)
}

fn check_labels(layout: &Layout, batch: &Batch) -> Result<(), TrainError> {
    let (expected, got) = (batch.len() * layout.labels_per_sample(), batch.y().numel());
    if expected == got {
        Ok(())
    } else {
        Err(TrainError::Labels { expected, got })
    }
}

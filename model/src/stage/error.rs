//! Why a stage refuses. What is refused changes nothing, unless the variant says otherwise.

use tch::TchError;

use super::activation::ActivationError;
use super::state::StateError;
use crate::config::ConfigError;
use crate::model::ModelError;

/// Why a stage cannot be built, loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The model cannot be built, or libtorch refused.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The optimiser's settings cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What is to be added up is of another size.
    #[error("a sum of {got} values for a stage of {expected}")]
    Sum {
        /// Values of the stage.
        expected: usize,
        /// Values that came.
        got: usize,
    },
    /// What came from another stage holds values that are not finite.
    #[error(transparent)]
    Activation(#[from] ActivationError),
    /// The state is not one of this block.
    #[error(transparent)]
    State(#[from] StateError),
    /// The processor's time cannot be read, so blocks cannot be timed.
    #[error("cannot read how much time of the processor was used: {0}")]
    Clock(#[from] nix::Error),
    /// No or unknown blocks.
    #[error("blocks {start}..{end} of a model of {n_blocks} blocks make no stage")]
    Blocks {
        /// First block.
        start: usize,
        /// One past the last block.
        end: usize,
        /// Blocks of the model.
        n_blocks: usize,
    },
    /// A block shares a variable with a block of another stage.
    #[error(
        "block {block} shares {variable} with a block outside of blocks {start}..{end}: keep both in one stage, or set model.tied = false"
    )]
    Tied {
        /// Number of the block.
        block: usize,
        /// Name of the shared variable.
        variable: String,
        /// First block of the stage.
        start: usize,
        /// One past its last block.
        end: usize,
    },
    /// The stage does not hold this block.
    #[error("block {block} is not among the stage's blocks {start}..{end}")]
    NotHeld {
        /// Number of the block.
        block: usize,
        /// First block of the stage.
        start: usize,
        /// One past its last block.
        end: usize,
    },
    /// A tensor has another shape than what crosses this border.
    #[error("the stage takes {expected:?} per sample, got {got:?}")]
    Shape {
        /// Shape per sample (or with the batch, for a gradient of a micro-batch in flight).
        expected: Vec<i64>,
        /// Shape that was given.
        got: Vec<i64>,
    },
    /// Samples for a stage that is not the first, or an activation for the first.
    #[error("{what} is for another stage: this one begins with block {start}")]
    WrongStage {
        /// What was given or asked for.
        what: &'static str,
        /// First block of the stage.
        start: usize,
    },
    /// The share of the global batch is not in (0, 1].
    #[error("{weight} is no share of a global batch")]
    Weight {
        /// What was given.
        weight: f32,
    },
    /// Labels that are too few, too many or no class.
    #[error("the micro-batch needs {expected} labels from 0 to below {n_classes}, got {got}")]
    Labels {
        /// Labels a micro-batch of this size has.
        expected: usize,
        /// Number of classes.
        n_classes: i64,
        /// Labels given (or the label that is no class).
        got: i64,
    },
    /// The micro-batch's forward pass was made already, and its backward pass not yet.
    #[error("micro-batch {micro} is in flight already")]
    InFlightAlready {
        /// Number of the micro-batch.
        micro: u64,
    },
    /// No forward pass of this micro-batch is kept.
    #[error("micro-batch {micro} is not in flight")]
    NotInFlight {
        /// Number of the micro-batch.
        micro: u64,
    },
    /// It cannot be done while micro-batches are in flight.
    #[error("{n} micro-batches are in flight: finish or drop them first")]
    Busy {
        /// Micro-batches in flight.
        n: usize,
    },
    /// The version of the weights is not kept, or not reached yet.
    #[error("version {wanted} of the weights is not kept: {oldest} to {newest} are")]
    Version {
        /// Version that was asked for.
        wanted: u64,
        /// Oldest version kept.
        oldest: u64,
        /// Newest version.
        newest: u64,
    },
    /// Blocks were loaded from different steps.
    #[error("the stage's blocks are from different steps: load the rest of them first")]
    Uneven,
    /// The loss or a gradient is NaN or infinite. Batch norm's statistics may be spoilt: drop what is in flight.
    #[error(
        "the {what} is not finite after {steps} steps: lower the learning rate, or go back to an earlier state"
    )]
    Diverged {
        /// `loss` or `gradient`.
        what: &'static str,
        /// Optimiser updates made.
        steps: u64,
    },
}

impl From<TchError> for StageError {
    fn from(error: TchError) -> Self {
        Self::Model(error.into())
    }
}

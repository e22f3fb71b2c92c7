//! A stage that the thread owns: synchronous, or asynchronous with stashed weights, as the job's schedule says; or a source, which has
//! no tensors.

use skein_gossip::pipeline::flow::{self, Shape};
use skein_model::stage::{Activation, BlockState, Depth, Input, Loss, Stage, StageError, Stashed};

use super::super::facts::Facts;

/// See the module's header.
#[derive(Debug)]
pub(super) enum Hosted {
    /// It passes on what it draws, and is never asked to compute.
    Source,
    Synchronous(Stage),
    Asynchronous {
        stage: Stashed,
        /// Whether all stages use the version that the first one used.
        vertical_sync: bool,
        /// Updates between two means of the versions kept.
        aggregate_every: Option<u64>,
    },
}

/// A source computes nothing.
const NO_BLOCKS: StageError = StageError::Blocks {
    start: 0,
    end: 0,
    n_blocks: 0,
};

/// Which micro-batch, and how much of the step's gradient it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) step: u64,
    pub(super) micro: u32,
    /// What the first stage's weights had behind them.
    pub(super) version: u64,
    pub(super) weight: f32,
}

impl Hosted {
    /// A stage of these blocks at `states` (none: as the job's seed has it). The synchronous stage takes one at a time.
    ///
    /// # Errors
    /// In words for the user.
    pub(super) fn new(
        facts: &Facts,
        shape: &Shape,
        blocks: std::ops::Range<u16>,
        states: impl Iterator<Item = Result<BlockState, String>>,
    ) -> Result<Self, String> {
        if blocks.is_empty() {
            return Ok(Self::Source);
        }
        let words = |error: StageError| error.to_string();
        let pipeline = &facts.pipeline;
        if !pipeline.is_asynchronous() {
            let mut stage = facts.stage(blocks)?;
            for state in states {
                stage.load_block(&state?).map_err(words)?;
            }
            return Ok(Self::Synchronous(stage));
        }
        let hides_transfers = pipeline.hides_transfers();
        let first = flow::asynchronous_depth(0, shape.n_stages, hides_transfers);
        let vertical_sync = pipeline.syncs_versions();
        let depth = Depth::new(shape.depth as usize, first as usize, vertical_sync);
        let mut stage = facts.stashed(blocks, depth)?;
        let states = states.collect::<Result<Vec<_>, _>>()?;
        if !states.is_empty() {
            stage.load(&states).map_err(words)?;
        }
        Ok(Self::Asynchronous {
            stage,
            vertical_sync,
            aggregate_every: pipeline.aggregate_every,
        })
    }

    /// Memory for what the stage makes next, see [`Stage::lend`].
    pub(super) fn lend(&mut self, memory: Vec<u8>, room: usize) {
        match self {
            Self::Source => {}
            Self::Synchronous(stage) => stage.lend(memory, room),
            Self::Asynchronous { stage, .. } => stage.lend(memory, room),
        }
    }

    pub(super) fn forward(&mut self, part: Part, x: Input<'_>) -> Result<Activation, StageError> {
        match self {
            Self::Source => Err(NO_BLOCKS),
            Self::Synchronous(stage) => stage.forward(part.micro, part.weight, x),
            Self::Asynchronous {
                stage,
                vertical_sync,
                ..
            } => {
                let version = vertical_sync.then_some(part.version);
                Ok(stage.forward(part.step, version, x)?.1)
            }
        }
    }

    pub(super) fn loss(
        &mut self,
        part: Part,
        x: Input<'_>,
        labels: &[i64],
    ) -> Result<Loss, StageError> {
        match self {
            Self::Source => Err(NO_BLOCKS),
            Self::Synchronous(stage) => stage.loss(part.micro, part.weight, x, labels),
            Self::Asynchronous {
                stage,
                vertical_sync,
                ..
            } => stage.loss(part.step, vertical_sync.then_some(part.version), x, labels),
        }
    }

    pub(super) fn backward(
        &mut self,
        part: Part,
        gradient: &Activation,
    ) -> Result<Option<Activation>, StageError> {
        match self {
            Self::Source => Err(NO_BLOCKS),
            Self::Synchronous(stage) => stage.backward(part.micro, gradient),
            Self::Asynchronous { stage, .. } => stage.backward(part.step, gradient),
        }
    }

    /// Ends the step that `step` steps are made with. The asynchronous stage has made its update with the backward pass.
    pub(super) fn apply(&mut self, step: u64) -> Result<(), StageError> {
        match self {
            Self::Source => Ok(()),
            Self::Synchronous(stage) => stage.apply(),
            Self::Asynchronous {
                stage,
                aggregate_every,
                ..
            } => match aggregate_every {
                Some(every) if step.is_multiple_of(*every) => stage.aggregate(),
                _ => Ok(()),
            },
        }
    }

    /// The stage where it can have several hosts: the asynchronous one cannot.
    pub(super) fn shared(&mut self) -> Option<&mut Stage> {
        match self {
            Self::Source => None,
            Self::Synchronous(stage) => Some(stage),
            Self::Asynchronous { .. } => None,
        }
    }

    pub(super) fn evaluate(&self, x: Input<'_>) -> Result<Activation, StageError> {
        match self {
            Self::Source => Err(NO_BLOCKS),
            Self::Synchronous(stage) => stage.evaluate(x),
            Self::Asynchronous { stage, .. } => stage.evaluate(x),
        }
    }

    pub(super) fn evaluate_loss(
        &self,
        x: Input<'_>,
        labels: &[i64],
    ) -> Result<(f64, usize), StageError> {
        match self {
            Self::Source => Err(NO_BLOCKS),
            Self::Synchronous(stage) => stage.evaluate_loss(x, labels),
            Self::Asynchronous { stage, .. } => stage.evaluate_loss(x, labels),
        }
    }

    pub(super) fn encode_block(&self, block: u16, bytes: &mut Vec<u8>) -> Result<(), StageError> {
        match self {
            Self::Source => Err(NO_BLOCKS),
            Self::Synchronous(stage) => stage.encode_block(block.into(), bytes),
            Self::Asynchronous { stage, .. } => stage.encode_block(block.into(), bytes),
        }
    }

    pub(super) fn blocks(&self) -> std::ops::Range<usize> {
        match self {
            Self::Source => 0..0,
            Self::Synchronous(stage) => stage.blocks(),
            Self::Asynchronous { stage, .. } => stage.blocks(),
        }
    }

    pub(super) fn is_last(&self) -> bool {
        match self {
            Self::Source => false,
            Self::Synchronous(stage) => stage.is_last(),
            Self::Asynchronous { stage, .. } => stage.is_last(),
        }
    }
}

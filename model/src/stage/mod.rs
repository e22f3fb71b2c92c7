//! A model in stages: each holds a run of blocks, allocates memory for them alone, and knows nothing of the others but
//! the [`Activation`]s and gradients that pass between (GPipe: Huang et al. 2019, arXiv:1811.06965; PipeDream: Narayanan
//! et al. 2019, arXiv:1806.03377; FTPipeHD: Chen et al. 2021, arXiv:2110.02781).
//!
//! ```text
//! samples -> Stage 0 -> Activation -> Stage 1 -> Activation -> last Stage <- labels
//!                    <- gradient  <-          <- gradient  <-  loss
//! each: gradient += weight * micro-batch's gradient (in the order of the calls); apply: one optimiser update
//! ```
//!
//! [`Stage`] is the synchronous kind: any number of stages makes the same model as one, to the bit, as long as all run
//! the same libtorch on the same kind of CPU with the same number of threads (libtorch chooses its kernels, and with
//! them the order of sums, by these). [`Stashed`] is the asynchronous kind with weight stashing. [`BlockState`] is what a
//! block goes on from anywhere, and [`delta`] makes one small for somebody who has the state of some steps before.

mod activation;
mod state;
mod whole;
pub mod delta;
mod error;
mod shape;
mod chain;
mod passes;
mod synchronous;
mod stash;

pub use activation::{Activation, ActivationError};
pub use chain::Input;
pub use error::StageError;
pub use shape::{boundary_bytes, boundary_shapes, kept_bytes};
pub use stash::{Depth, Stashed};
pub use state::{BlockLayout, BlockState, StateError, block_layout, block_layouts, digest};
pub use synchronous::{Loss, Stage};
pub use whole::{assemble, dissect};

//! What is trained: models as chains of blocks, gradients, the optimiser, data and checkpoints.
//!
//! Knows tensors (tch), nothing of peers, networks or jobs. What crosses its border is plain: `&[f32]`, byte slices,
//! paths and numbers. Data runs `data::Dataset -> train::Trainer::gradient -> &[f32] -> train::Trainer::apply`, and
//! `train::Trainer::snapshot -> checkpoint`. Where one device does not hold the whole model, `stage::Stage`s do.
//!
//! Modules in reading order, lowest first; a module imports only from those above it.
//!
//! ```
//! use skein_model::config::{DataConfig, ModelConfig, OptimiserConfig};
//! use skein_model::{data, model::Model, train::Trainer};
//!
//! let digits = data::load(&DataConfig::default(), &Default::default())?;
//! let shape = digits.train.input_shape();
//! let model = Model::new(&ModelConfig::default(), shape, digits.train.n_classes(), 7)?;
//! let mut trainer = Trainer::new(model, OptimiserConfig::default())?;
//! let mut gradient = vec![0.0; trainer.model().n_parameters()];
//! let loss = trainer.gradient(&digits.train.batch(&[0, 1, 2, 3]), &mut gradient)?;
//! trainer.apply(&gradient)?;
//! assert!(loss > 0.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod runtime;
pub mod random;
pub mod config;
pub mod arena;
mod layer;
mod extent;
mod block;
mod zoo;
pub mod model;
pub mod snapshot;
pub mod data;
mod optimiser;
pub mod train;
pub mod stage;
pub mod plan;
pub mod average;
pub mod checkpoint;

pub use block::{Block, MAX_PARAMETERS};

//! Makes a job ready on this peer: data, model, the newest checkpoint. Slow and blocking, so it has its own thread.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use skein_gossip::ids::{Digest, JobId};
use skein_gossip::view::Holding;
use skein_model::checkpoint::{self, Progress, Store};
use skein_model::data::{self, Splits};
use skein_model::model::{Layout, Model};
use skein_model::train::Trainer;

use super::folder::JobFolder;
use super::start::{self, Given};
use crate::job::JobFile;

/// A job that is ready to be trained here.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Model and optimiser.
    pub(super) trainer: Trainer,
    /// Data.
    pub(super) data: Arc<Splits>,
    /// Sizes and names of the model's state.
    pub(super) layout: Layout,
    /// What is held: fresh weights, or those of a checkpoint.
    pub(super) holding: Holding,
    /// Where the checkpoint was.
    pub(super) progress: Progress,
    /// Where checkpoints go.
    pub(super) store: Store,
    /// Damaged checkpoints that were left out, and why.
    pub(super) skipped: Vec<String>,
}

/// Loads and builds everything.
///
/// # Errors
/// In words for the user: why this peer cannot take part.
pub(super) fn prepare(
    id: JobId,
    file: &JobFile,
    folder: &JobFolder,
    private: &BTreeMap<String, PathBuf>,
) -> Result<Prepared, String> {
    let data = data::load(&file.data, private).map_err(|error| error.to_string())?;
    let shape = data.train.input_shape();
    let model = Model::new(&file.model, shape, data.train.n_classes(), file.seed)
        .map_err(|error| error.to_string())?;
    let mut trainer =
        Trainer::new(model, file.train.optimiser.clone()).map_err(|error| error.to_string())?;
    let store = Store::new(folder.checkpoints(), file.checkpoint.keep as usize)
        .map_err(|error| error.to_string())?;
    let newest = store.newest().map_err(|error| error.to_string())?;
    let skipped = newest
        .skipped
        .iter()
        .map(|skipped| format!("{}: {}", skipped.path.display(), skipped.reason))
        .collect();
    let mut progress = Progress {
        job: id.to_string(),
        ..Progress::default()
    };
    let mut lacks_weights = false;
    if newest.found.is_none() && file.start.is_given() {
        match start::open(&file.start, folder, trainer.layout())? {
            Some(given) => begin_from(&mut trainer, &given)?,
            None => lacks_weights = true,
        }
    }
    if let Some(found) = newest.found {
        match trainer.restore(&found.0) {
            Ok(()) => progress = found.1,
            Err(error) => tracing::warn!(%error, "checkpoint is of another model and left out"),
        }
    }
    let holding = Holding {
        samples: progress.samples,
        step: progress.step,
        digest: Digest(trainer.model().weights_hash()),
    };
    let holding = match lacks_weights {
        true => Holding::NOTHING,
        false => holding,
    };
    let layout = trainer.layout().clone();
    Ok(Prepared {
        trainer,
        data: Arc::new(data),
        layout,
        holding,
        progress,
        store,
        skipped,
    })
}

/// Puts given weights into the model. The optimiser begins anew.
fn begin_from(trainer: &mut Trainer, given: &Given) -> Result<(), String> {
    let layout = trainer.layout().clone();
    let weights = checkpoint::import_weights(&given.path, &layout);
    let mut snapshot = weights.map_err(|error| error.to_string())?;
    snapshot.optimiser = vec![vec![0.0; layout.n_parameters()]; layout.optimiser.len()];
    snapshot.batches_tracked = 0;
    trainer
        .restore(&snapshot)
        .map_err(|error| error.to_string())
}

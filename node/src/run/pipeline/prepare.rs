//! Makes a pipeline job ready on this peer: data, if it has any, sizes, copies kept on disk, and how fast the device is. Slow
//! and blocking, so it has its own thread.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use skein_gossip::pipeline::message::{BlockTime, DataShape, Profile};
use skein_model::data::{self, Batch, Splits};
use skein_model::stage::{Activation, Input};

use super::facts::{self, Facts};
use super::store::{self, Copies};
use crate::job::JobFile;

/// Passes per block of which the middle one counts, after one that warms up.
const PASSES: usize = 3;

/// What can be said before the shape of the data is known.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) data: Option<Arc<Splits>>,
    pub(super) shape: Option<DataShape>,
    /// Why there is no data.
    pub(super) reason: Option<String>,
}

/// A peer that is ready.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) facts: Arc<Facts>,
    pub(super) data: Option<Arc<Splits>>,
    pub(super) profile: Profile,
    pub(super) copies: Copies,
    /// Damaged copies that were left out, and why.
    pub(super) skipped: Vec<String>,
}

/// Loads the data; a peer without it can host every stage but the first.
pub(super) fn load(file: &JobFile, private: &BTreeMap<String, PathBuf>) -> Loaded {
    match data::load(&file.data, private) {
        Ok(data) => Loaded {
            shape: Some(facts::shape_of(&data)),
            data: Some(Arc::new(data)),
            reason: None,
        },
        Err(error) => Loaded {
            data: None,
            shape: None,
            reason: Some(error.to_string()),
        },
    }
}

/// Measures the device and reads copies.
///
/// # Errors
/// In words for the user: why this peer cannot take part.
pub(super) fn prepare(
    file: &JobFile,
    shape: &DataShape,
    data: Option<Arc<Splits>>,
    copies: &Path,
    memory: u64,
) -> Result<Prepared, String> {
    let facts = Arc::new(Facts::new(file, shape)?);
    let (copies, skipped) = store::load(copies, &facts.blocks);
    let blocks = (0..facts.n_blocks())
        .map(|block| time(&facts, block))
        .collect::<Result<_, _>>()?;
    let profile = Profile {
        blocks,
        memory,
        rates: Vec::new(),
        data: data.is_some().then(|| shape.clone()),
    };
    Ok(Prepared {
        facts,
        data,
        profile,
        copies,
        skipped,
    })
}

/// What one block takes for a micro-batch, by doing it; only the memory of that block is needed.
fn time(facts: &Facts, block: u16) -> Result<BlockTime, String> {
    let words = |error: skein_model::stage::StageError| error.to_string();
    let mut stage = facts.stage(block..block + 1)?;
    let samples = facts.pipeline.samples(facts.batch, 0);
    let filled = |shape: Vec<i64>| {
        let n: i64 = shape.iter().product();
        let values: Vec<f32> = (0..n)
            .map(|i| ((i * 7919 % 1013) as f32 - 506.0) / 506.0)
            .collect();
        Activation::from_values(shape, &values).map_err(|error| error.to_string())
    };
    let input = match block.checked_sub(1) {
        Some(before) => Err(filled(facts.shape_behind(before, samples))?),
        None => Ok(Batch::zeros(
            facts.data.input.map(i64::from),
            samples as usize,
        )),
    };
    let input = || match &input {
        Ok(batch) => Input::from(batch),
        Err(activation) => Input::from(activation),
    };
    let upstream = filled(facts.shape_behind(block, samples))?;
    let labels = vec![0; samples as usize];
    let mut times = Vec::new();
    for _ in 0..=PASSES {
        let began = Instant::now();
        let (forward, backward) = if stage.is_last() {
            stage.loss(0, 1.0, input(), &labels).map_err(words)?;
            // Of both together a third is the way forward, as in most layers.
            let both = began.elapsed();
            (both / 3, both * 2 / 3)
        } else {
            stage.forward(0, 1.0, input()).map_err(words)?;
            let forward = began.elapsed();
            stage.backward(0, &upstream).map_err(words)?;
            (forward, began.elapsed() - forward)
        };
        stage.drop_in_flight();
        times.push((forward, backward));
    }
    times.remove(0);
    times.sort_by_key(|(forward, backward)| *forward + *backward);
    let (forward, backward) = times[PASSES / 2];
    Ok(BlockTime {
        forward_us: forward.as_secs_f32() * 1e6,
        backward_us: backward.as_secs_f32() * 1e6,
    })
}

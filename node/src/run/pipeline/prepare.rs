//! Makes a pipeline job ready on this peer: data, if it has any, sizes, copies kept on disk, and how fast the device is. Slow
//! and blocking, so it has its own thread.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use skein_gossip::ids::Digest;
use skein_gossip::pipeline::message::{DataShape, Profile, Tier};
use skein_model::data::{self, Splits};
use skein_model::plan;

use super::disk::{Kept, Lines};
use super::facts::{self, Facts};
use super::processor::Processor;
use super::store::Copies;
use super::times;
use crate::job::JobFile;
use crate::run::folder::JobFolder;
use crate::run::start;

/// Passes per block and size of which the fastest counts.
const PASSES: usize = 5;

/// What can be said before the shape of the data is known.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) data: Option<Arc<Splits>>,
    pub(super) shape: Option<DataShape>,
    /// Why there is no data.
    pub(super) reason: Option<String>,
}

impl Loaded {
    /// No data, and why.
    pub(super) fn without(reason: &str) -> Self {
        Self {
            data: None,
            shape: None,
            reason: Some(reason.to_owned()),
        }
    }
}

/// A peer that is ready.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) facts: Arc<Facts>,
    pub(super) data: Option<Arc<Splits>>,
    pub(super) profile: Profile,
    /// The same with sizes and updates, to plan with.
    pub(super) measured: plan::Profile,
    pub(super) processor: Processor,
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
        Err(error) => Loaded::without(&error.to_string()),
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
    folder: &JobFolder,
    (memory, tier): (u64, Option<Tier>),
) -> Result<Prepared, String> {
    let facts = Arc::new(Facts::new(file, shape)?);
    let (found, skipped) = Lines(folder.copies()).load(&facts.blocks);
    let mut copies = Copies::default();
    for (step, block, path) in found {
        copies.put(step, block, Kept::Disk(path));
    }
    let weights = match file.start.is_given() {
        true => begin_from(file, folder, &facts, &mut copies)?,
        false => None,
    };
    let samples = facts.pipeline.samples(facts.batch, 0) as usize;
    let (measured, processor) = Processor::watch(|| measure(&facts, shape, PASSES));
    let measured = measured?;
    let (blocks, fewer) = times::sent(&measured, samples);
    let profile = Profile {
        blocks,
        fewer,
        memory,
        rates: Vec::new(),
        data: data.is_some().then(|| shape.clone()),
        weights,
        tier,
    };
    Ok(Prepared {
        facts,
        data,
        profile,
        measured,
        processor,
        copies,
        skipped,
    })
}

/// Puts given weights to disk as copies of step 0, block by block; their hash. None where they are not here, or where something newer
/// is.
fn begin_from(
    file: &JobFile,
    folder: &JobFolder,
    facts: &Facts,
    copies: &mut Copies,
) -> Result<Option<Digest>, String> {
    if copies.newest() > 0 {
        return Ok(None);
    }
    let Some(mut given) = start::open(&file.start, folder, &facts.layout)? else {
        return Ok(None);
    };
    let lines = Lines(folder.copies());
    for layout in &facts.blocks {
        let block = layout.index as u16;
        let state = given
            .file
            .state(layout)
            .map_err(|error| error.to_string())?;
        let written = lines.write(0, block, &state.encode());
        let path =
            written.map_err(|error| format!("the weights do not fit onto the disk: {error}"))?;
        copies.put(0, block, Kept::Disk(path));
    }
    Ok(Some(given.digest))
}

/// Times every block in `passes` passes over a micro-batch.
///
/// # Errors
/// In words for the user.
pub(super) fn measure(
    facts: &Facts,
    shape: &DataShape,
    passes: usize,
) -> Result<plan::Profile, String> {
    let measured = plan::measure(
        &facts.config,
        shape.input.map(i64::from),
        i64::from(shape.classes),
        &facts.optimiser,
        facts.pipeline.samples(facts.batch, 0) as usize,
        passes,
    );
    measured.map_err(|error| error.to_string())
}

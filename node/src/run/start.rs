//! The weights that a job starts from, where it names some (`[start]`): a file, or the model of a job that is over here.
//!
//! A peer that has neither gets them from those that do: copies of step 0 in a pipeline, else the replica of a peer that trains.

use std::path::PathBuf;

use skein_gossip::ids::Digest;
use skein_model::checkpoint::WeightsFile;
use skein_model::model::Layout;

use super::folder::JobFolder;
use crate::job::Start;

/// Weights that are here.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) path: PathBuf,
    pub(super) file: WeightsFile,
    /// Their hash.
    pub(super) digest: Digest,
}

/// Finds and opens them; none where they are not here. `folder` is the job's own, beside which those of other jobs lie.
///
/// # Errors
/// In words for the user: the file cannot be read, is of another model, or holds other weights than the job says.
pub(super) fn open(
    start: &Start,
    folder: &JobFolder,
    layout: &Layout,
) -> Result<Option<Given>, String> {
    let named = start.weights.clone().filter(|path| path.exists());
    let path = named.or_else(|| {
        let expected = start.digest()?;
        let has = |other: &JobFolder| {
            let best = other.result().and_then(|result| result.best);
            best.is_some_and(|best| best.hash.0 == expected)
        };
        let other = folder.others().into_iter().find(has)?;
        Some(other.model()).filter(|path| path.exists())
    });
    let Some(path) = path else { return Ok(None) };
    let read = WeightsFile::open(&path, layout).and_then(|mut file| {
        let hash = file.hash()?;
        Ok((file, Digest(hash)))
    });
    let (file, digest) =
        read.map_err(|error| format!("the weights that the job starts from: {error}"))?;
    match start.digest().filter(|expected| *expected != digest) {
        Some(expected) => Err(format!(
            "{} holds weights of hash {digest}, the job starts from {expected} (start.hash)",
            path.display()
        )),
        None => Ok(Some(Given { path, file, digest })),
    }
}

/// What is wrong where two peers were given different weights.
pub(super) fn differ(here: Digest, there: Digest) -> String {
    format!(
        "the job starts from weights of hash {there} elsewhere and {here} here: give all the same file, or the hash in [start]"
    )
}

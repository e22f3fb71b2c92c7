//! A job's folder below the home: the signed job, the journal, checkpoints, and in the end the model and the result.
//!
//! ```text
//! jobs/<id>/job             the signed job as it travels
//!           metrics.jsonl   the journal
//!           checkpoints/    see skein_model::checkpoint
//!           copies/         of a pipeline's blocks
//!           model.safetensors, result.json     once the job is closed; the result is written last
//! ```

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use skein_gossip::ids::JobId;
use skein_gossip::message::{Candidate, Decision};

use crate::control::{Best, Contribution};
use crate::job::SignedJob;

/// How a job ended: what `result.json` holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    /// Why it ended.
    pub reason: String,
    /// The agreed model; none where nothing was trained.
    pub best: Option<Best>,
    /// Samples of all peers.
    pub samples_mesh: u64,
    /// Who contributed what.
    pub contributions: Vec<Contribution>,
}

impl JobResult {
    /// The decision that the job closed with. What is no longer known of it (who decided, in which round) decides
    /// nothing any more.
    pub fn decision(&self) -> Option<Decision> {
        let best = self.best.as_ref()?;
        let number = |value: Option<f64>| value.map_or(f32::NAN, |value| value as f32);
        let (accuracy, loss) = (number(best.accuracy), number(best.loss));
        let candidate = Candidate {
            accuracy,
            loss,
            digest: best.hash.0,
            step: 0,
        };
        Some(Decision {
            round: 1,
            steward: best.peer.0,
            winner: best.peer.0,
            candidate,
        })
    }
}

/// The folder of one job.
#[derive(Clone, Debug)]
pub struct JobFolder(PathBuf);

/// Longest `result.json` that is read.
const MAX_RESULT_BYTES: u64 = 4 << 20;

impl JobFolder {
    /// The folder of `job` below `home`, made if it is not there, with the signed job in it.
    ///
    /// # Errors
    /// The folder or the file cannot be written.
    pub fn create(home: &Path, id: JobId, signed: &SignedJob) -> io::Result<Self> {
        let folder = Self(home.join("jobs").join(id.to_string()));
        fs::create_dir_all(&folder.0)?;
        let path = folder.0.join("job");
        if !path.exists() {
            write_whole(&path, &signed.encode())?;
        }
        Ok(folder)
    }

    /// All jobs below `home` whose signed file can be read; the rest is named in the log and left alone.
    pub fn all(home: &Path) -> Vec<SignedJob> {
        let Ok(entries) = fs::read_dir(home.join("jobs")) else {
            return Vec::new();
        };
        let mut jobs = Vec::new();
        for entry in entries.flatten() {
            let path = entry.path().join("job");
            let read = fs::read(&path).map_err(|error| error.to_string());
            match read
                .and_then(|bytes| SignedJob::decode(&bytes).map_err(|error| error.to_string()))
            {
                Ok(job) => jobs.push(job),
                Err(error) => {
                    tracing::warn!(path = %path.display(), error, "job folder is left out")
                }
            }
        }
        jobs
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The folders of all other jobs of this home.
    pub fn others(&self) -> Vec<Self> {
        let entries = self.0.parent().and_then(|jobs| fs::read_dir(jobs).ok());
        let folders = entries.into_iter().flatten().flatten();
        let others = folders.map(|entry| Self(entry.path()));
        others.filter(|other| other.0 != self.0).collect()
    }

    /// Where checkpoints go.
    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    /// Where copies of a pipeline's blocks go.
    pub fn copies(&self) -> PathBuf {
        self.0.join("copies")
    }

    /// Where the journal goes.
    pub fn journal(&self) -> PathBuf {
        self.0.join("metrics.jsonl")
    }

    /// Where the agreed model goes.
    pub fn model(&self) -> PathBuf {
        self.0.join("model.safetensors")
    }

    /// How the job ended, if it has. A damaged result counts as none: the job is then asked for again.
    pub fn result(&self) -> Option<JobResult> {
        let path = self.0.join("result.json");
        let is_small = fs::metadata(&path).is_ok_and(|meta| meta.len() <= MAX_RESULT_BYTES);
        let bytes = is_small.then(|| fs::read(&path).ok()).flatten()?;
        match serde_json::from_slice(&bytes) {
            Ok(result) => Some(result),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "result is damaged; the job is asked for again");
                None
            }
        }
    }

    /// Writes how the job ended. From then on it is closed.
    ///
    /// # Errors
    /// The file cannot be written; the job is not closed then.
    pub fn save_result(&self, result: &JobResult) -> io::Result<()> {
        write_whole(
            &self.0.join("result.json"),
            &serde_json::to_vec_pretty(result)?,
        )
    }
}

/// Writes a file that is either whole or absent.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

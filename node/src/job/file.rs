//! The job file: everything that decides one training run, written as TOML by a user.
//!
//! Each key's meaning, range, default and the reason for the default stand at its field below; `examples/jobs/` has
//! whole files. The text itself travels (signed) between peers, and every peer reads it with [`JobFile::parse`], so the
//! bounds here are also what protects a peer from a job of a stranger.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use skein_gossip::agreement;
use skein_gossip::ids::Digest;
use skein_model::config::{DataConfig, ModelConfig, OptimiserConfig};

use super::document::Document;
use super::error::JobError;
use super::strategy::Strategy;
use super::{check, every};

/// Longest job file. Real ones have some 600 bytes; the bound keeps parsing cheap for whatever arrives.
pub const MAX_JOB_BYTES: usize = 64 * 1024;

/// The top-level keys, for errors that name the nearest.
const KEYS: [&str; 10] = [
    "name",
    "seed",
    "model",
    "data",
    "train",
    "stop",
    "start",
    "strategy",
    "evaluate",
    "checkpoint",
];

/// A complete, checked job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobFile {
    /// A label for people: 1 to 64 letters, digits, `-`, `_` or `.`. Default `job`.
    pub name: String,
    /// Seed of the initial weights, of the split of the data and of every shuffle; 0 to 2^63 - 1. Default 1: with one
    /// seed the same peers start from the same weights every time.
    pub seed: u64,
    /// What is trained. Required: there is no model that fits all data.
    pub model: ModelConfig,
    /// On what. Default: the UCI digits in the binary, which every peer has.
    pub data: DataConfig,
    /// How a step is made.
    pub train: Train,
    /// When it ends. Required, at least one condition.
    pub stop: Stop,
    /// When it begins.
    pub start: Start,
    /// How the peers work together.
    pub strategy: Strategy,
    /// How progress is judged.
    pub evaluate: Evaluate,
    /// What is kept on disk.
    pub checkpoint: Checkpoint,
}

/// `[train]`: how a step is made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Train {
    /// Samples per peer and step, 1 to 65536. Default 32: small enough that a step of the slowest device takes well
    /// under a second. Memory for activations grows with it.
    pub batch: u32,
    /// The update rule. Its `lr` belongs to the global batch (all samples behind one step), so it need not change when
    /// peers come and go. Default SGD, lr 0.05, no momentum: gradients of others
    /// arrive a few steps late, and momentum on top of that makes the mesh need more samples.
    pub optimiser: OptimiserConfig,
}

/// `[stop]`: the first condition that holds ends the job. All are absent by default; one must be there.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// Validation accuracy reached, above 0 and at most 1.
    pub accuracy: Option<f64>,
    /// Validation loss reached or undercut, above 0.
    pub loss: Option<f64>,
    /// Steps made, 1 or more.
    pub steps: Option<u64>,
    /// Passes over the data, above 0; counted by the samples of all peers together.
    pub epochs: Option<f64>,
    /// Seconds since step 0 on the peer that notices, above 0.
    pub seconds: Option<f64>,
}

impl Stop {
    /// Why training is enough, by everything that needs no evaluation. `samples_mesh`: of all peers together;
    /// `train_len`: samples in the training set; `seconds`: since step 0.
    pub fn enough(
        &self,
        step: u64,
        samples_mesh: u64,
        train_len: u64,
        seconds: f64,
    ) -> Option<String> {
        if let Some(steps) = self.steps.filter(|steps| step >= *steps) {
            return Some(format!("stop.steps = {steps} reached"));
        }
        if let Some(epochs) = self.epochs
            && train_len > 0
            && samples_mesh as f64 >= epochs * train_len as f64
        {
            return Some(format!("stop.epochs = {epochs} reached"));
        }
        let limit = self.seconds.filter(|limit| seconds >= *limit)?;
        Some(format!("stop.seconds = {limit} reached"))
    }

    /// Why training is enough, by an evaluation on the whole validation set.
    pub fn target_met(&self, accuracy: f64, loss: f64) -> Option<String> {
        if let Some(target) = self.accuracy.filter(|target| accuracy >= *target) {
            return Some(format!("stop.accuracy = {target} reached"));
        }
        let target = self.loss.filter(|target| loss <= *target)?;
        Some(format!("stop.loss = {target} reached"))
    }
}

/// `[start]`: when the job begins, and from what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Start {
    /// Peers that must be ready before step 0, 1 to 1024. Default 1: begin at once, others join while it runs.
    pub peers: u32,
    /// A safetensors file with the weights to start from, such as `skein export` writes, also one of PyTorch with the same names. One peer
    /// that has it is enough. Default: weights drawn from the seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
    /// Hash of the weights to start from, 64 hexadecimal digits, as `skein status` and `skein export` show it: other weights are refused,
    /// and the model of a job that is over is found by it, without a file. Default: whatever the file holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

impl Start {
    /// Whether weights are given.
    pub fn is_given(&self) -> bool {
        self.weights.is_some() || self.hash.is_some()
    }

    /// The hash, if there is one; the file's checks have seen that it is one.
    pub fn digest(&self) -> Option<Digest> {
        let text = self.hash.as_deref()?;
        let mut bytes = [0; 32];
        let digits = text.as_bytes().as_chunks::<2>().0;
        if text.len() != 64 || digits.len() != bytes.len() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits) {
            let pair = std::str::from_utf8(pair).ok()?;
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        Some(Digest(bytes))
    }
}

/// `[evaluate]`: how progress is judged while the job runs. The whole validation set decides at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Evaluate {
    /// Steps between two looks at the validation set, 1 or more. Default: as often as takes a twentieth of the time.
    pub every: Option<u64>,
    /// Validation rows per look, 1 or more; fewer are taken where the set is smaller. Default 2000: the accuracy is
    /// then known to about one percent.
    pub samples: u32,
    /// Whether the running mean of the weights is looked at and handed out, instead of those of the last step. Default true: see
    /// docs/strategy.md.
    pub average: bool,
}

/// `[checkpoint]`: what is kept on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Checkpoint {
    /// Time or steps between two checkpoints. Default `"30s"`: what a power cut may cost.
    pub every: Every,
    /// Checkpoints kept per job, 1 to 1000. Default 3: two more in case the newest is damaged.
    pub keep: u32,
}

pub use super::every::Every;

impl JobFile {
    /// Reads and checks a job file.
    ///
    /// # Errors
    /// The first fault, with key, line and fix; a text beyond [`MAX_JOB_BYTES`] is not read at all.
    pub fn parse(text: &str) -> Result<Self, JobError> {
        if text.len() > MAX_JOB_BYTES {
            return Err(JobError::TooLong {
                bytes: text.len(),
                max_bytes: MAX_JOB_BYTES,
            });
        }
        let document = Document::parse(text)?;
        document.only_these_keys(&KEYS)?;
        let job = Self {
            name: document.read("name")?.unwrap_or_else(|| "job".into()),
            seed: document.read("seed")?.unwrap_or(1),
            model: document.read("model")?.ok_or_else(|| {
                document.fault(
                    "model",
                    "is missing",
                    "add a section [model] with a kind, such as kind = \"cnn\"",
                )
            })?,
            data: document.read("data")?.unwrap_or_default(),
            train: document.read("train")?.unwrap_or_default(),
            stop: document.read("stop")?.unwrap_or_default(),
            start: document.read("start")?.unwrap_or_default(),
            strategy: document
                .read::<Strategy>("strategy")?
                .unwrap_or_default()
                .settled(),
            evaluate: document.read("evaluate")?.unwrap_or_default(),
            checkpoint: every::checkpoint(&document)?,
        };
        check::job(&job, &document)?;
        Ok(job)
    }
}

impl JobFile {
    /// What the agreement of this job's peers takes from it.
    pub fn agreement(&self) -> agreement::Config {
        agreement::Config {
            batching: self
                .strategy
                .batching
                .config(self.strategy.exchange.waiting),
            ..agreement::Config::new(self.start.peers as usize, self.train.batch)
        }
    }
}

impl Default for Train {
    fn default() -> Self {
        Self {
            batch: 32,
            optimiser: OptimiserConfig::default(),
        }
    }
}

impl Default for Start {
    fn default() -> Self {
        Self {
            peers: 1,
            weights: None,
            hash: None,
        }
    }
}

impl Default for Evaluate {
    fn default() -> Self {
        Self {
            every: None,
            samples: 2000,
            average: true,
        }
    }
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            every: Every::Time(std::time::Duration::from_secs(30)),
            keep: 3,
        }
    }
}

//! What `skein plan` prints with `--json`: the families ranked, and what each device is worth. Made by the command line; devices are
//! numbers into the list of their names.

use serde::{Deserialize, Serialize};
use skein_model::plan::{Family, Offer, Span};

use super::stages::PlanStatus;

/// A plan with those that lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanReport {
    /// The job's label.
    pub name: String,
    /// The best family.
    pub family: Family,
    /// The family that the job file asks for, if it is another one.
    pub asked: Option<Family>,
    /// Seconds of a step of the best plan.
    pub step_s: f64,
    /// Its samples per second.
    pub samples_per_s: f64,
    /// Samples of a step, of all devices together.
    pub step_samples: usize,
    /// Micro-batches of a step.
    pub n_micro: usize,
    /// Names of the devices, in the order of their numbers.
    pub devices: Vec<String>,
    /// All families, the best first, those that cannot be had last.
    pub candidates: Vec<CandidateReport>,
    /// Devices without a part in the best plan: they stand by, and keep copies.
    pub standby: Vec<StandbyReport>,
    /// What would be left without each device; with `--explain`.
    pub losses: Vec<LossReport>,
    /// One step of the best plan; none if it has too many bars.
    pub timeline: Option<Vec<Span>>,
    /// How the mesh would cut the model now; none of a plan from a file.
    pub cut: Option<PlanStatus>,
}

/// One family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CandidateReport {
    /// Which.
    pub family: Family,
    /// Its best plan.
    pub offer: Option<Offer>,
    /// Why it has none.
    pub refusal: Option<String>,
}

/// A device that stands by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StandbyReport {
    /// Its number.
    pub device: usize,
    /// Why, in words.
    pub why: String,
    /// Samples per second with it, where a plan with it was found.
    pub with_samples_per_s: Option<f64>,
}

/// What is left without a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LossReport {
    /// Its number.
    pub device: usize,
    /// The best family then.
    pub family: Option<Family>,
    /// Its samples per second.
    pub samples_per_s: Option<f64>,
    /// Its objective: seconds for what a synchronous sample is worth.
    pub seconds_per_sample: Option<f64>,
    /// Why there would be no plan.
    pub reason: Option<String>,
}

//! The simulator: the state machines of `skein_gossip` and the training of `skein_model` under a virtual clock.
//!
//! Computing takes what the scenario says a sample costs, divided by the node's share; messages take their encoded size through
//! [`skein_netem::link`]. One thread, one queue of events, every draw from the seed: a run repeats to the byte, and its hash says
//! so. After every event `checks` looks for what must never happen; what it finds comes with the command that replays it.
//!
//! Modules in reading order, lowest first. `queue`, `stream` and `transport`, and `learner` are the parts of a simulated device, `peer` drives them as the node does, `world` is the
//! run, with its `devices`, their `faults`, and the `recording` of it.

mod queue;
mod stream;
mod transport;
mod learner;
mod peer;
mod checks;
mod event;
mod world;
mod devices;
mod faults;
mod recording;

use skein_netem::record::{Progress, Record};
use skein_netem::scenario::Scenario;

/// Why a scenario was not simulated to its end.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimError {
    /// Only peers of the mesh can be simulated.
    #[error("node {node} runs a program of its own, which only the lab can run; use --engine lab")]
    Program {
        /// Its name.
        node: String,
    },
    /// There is nothing to train.
    #[error("the scenario has no [job], which the simulator needs")]
    NoJob,
    /// The job cannot be run.
    #[error("the job of this scenario: {reason}")]
    Job {
        /// In words, with the fix.
        reason: String,
    },
    /// Something happened that must never happen.
    #[error(
        "{what}, at {seconds:.6} s of scenario {scenario:?} with seed {seed}; replay it with\n    skein-netem run {file} --engine sim --seed {seed}"
    )]
    Broken {
        /// What.
        what: String,
        /// When, virtual seconds.
        seconds: f64,
        /// The scenario.
        scenario: String,
        /// The scenario's file, as long as it is named as the scenario is, and its variant.
        file: String,
        /// The seed.
        seed: u64,
    },
}

/// Runs a scenario in virtual time.
///
/// # Errors
/// [`SimError`].
pub fn run(scenario: &Scenario, progress: Progress<'_>) -> Result<Record, SimError> {
    world::World::new(scenario)?.run(progress)
}

/// Whether the scenario's job is one, as every peer would read it.
///
/// # Errors
/// [`SimError::Job`], with the fix.
pub fn check_job(scenario: &Scenario) -> Result<(), SimError> {
    let Some(text) = &scenario.job else {
        return Ok(());
    };
    let read = skein_node::job::JobFile::parse(text);
    read.map(drop).map_err(|error| SimError::Job {
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests;

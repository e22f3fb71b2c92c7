//! The simulator: the state machines of `skein_gossip` and the training of `skein_model` under a virtual clock.
//!
//! Computing takes what the scenario says a sample costs, divided by the node's share; messages take their encoded size through
//! [`skein_netem::link`]. One thread, one queue of events, every draw from the seed: a run repeats to the byte, and its hash says
//! so. After every event `checks` looks for what must never happen; what it finds comes with the command that replays it.
//!
//! Modules in reading order, lowest first. `queue`, `line`, `stream` and `transport`, and `learner` are the parts of a simulated device, `peer` drives them as the node does, `world` is the
//! run, with its `devices`, their `faults`, and the `recording` of it. Jobs with stages are `staged`: planned as nodes plan, and priced by the
//! planner's schedule; nothing is trained there.

mod queue;
mod line;
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
mod staged;

use skein_netem::record::{Progress, Record};
use skein_netem::scenario::{Program, Scenario};
use skein_node::job::JobFile;
use skein_node::job::strategy::Kind;

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
    only_peers(scenario)?;
    match job(scenario)? {
        Some(file) if matches!(file.strategy.kind, Kind::Pipeline | Kind::Hybrid) => {
            let record = staged::run(scenario, file, progress);
            record.map_err(|reason| SimError::Job { reason })
        }
        _ => world::World::new(scenario)?.run(progress),
    }
}

/// What the blocks of the scenario's model cost on one core of this machine, measured, as a file for its `sim.profile`.
///
/// # Errors
/// [`SimError`]: no job; a model that is not cut into blocks.
pub fn profile(scenario: &Scenario) -> Result<String, SimError> {
    let file = job(scenario)?.ok_or(SimError::NoJob)?;
    staged::measure(&file).map_err(|reason| SimError::Job { reason })
}

/// The scenario's job, as every peer would read it.
fn job(scenario: &Scenario) -> Result<Option<JobFile>, SimError> {
    let Some(text) = &scenario.job else {
        return Ok(None);
    };
    let read = JobFile::parse(text).map_err(|error| SimError::Job {
        reason: error.to_string(),
    })?;
    Ok(Some(read))
}

/// Refuses nodes that run something else.
fn only_peers(scenario: &Scenario) -> Result<(), SimError> {
    let mut nodes = scenario.nodes.iter();
    let other = nodes.find(|node| matches!(node.program, Program::Command(_)));
    match other {
        Some(node) => Err(SimError::Program {
            node: node.name.clone(),
        }),
        None => Ok(()),
    }
}

/// Whether the scenario's job is one, as every peer would read it.
///
/// # Errors
/// [`SimError::Job`], with the fix.
pub fn check_job(scenario: &Scenario) -> Result<(), SimError> {
    job(scenario).map(drop)
}

#[cfg(test)]
mod tests;

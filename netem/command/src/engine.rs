//! The two engines behind one call.

use std::fmt;
use std::path::Path;

use skein_netem::lab::{self, LabError, Speed};
use skein_netem::record::{Progress, Record};
use skein_netem::scenario::Scenario;
use skein_netem_sim::{self as sim, SimError};

/// What runs a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Real processes in namespaces, real time.
    Lab,
    /// State machines under a virtual clock.
    Sim,
}

/// Why a scenario could not be run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// In the lab.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// In the simulator.
    #[error(transparent)]
    Sim(#[from] SimError),
}

impl Engine {
    /// Runs `scenario`. Files of the run go to `out`, which is there and empty.
    ///
    /// # Errors
    /// [`EngineError`] when there is no record to judge.
    pub fn run(
        self,
        scenario: &Scenario,
        out: &Path,
        progress: Progress<'_>,
    ) -> Result<Record, EngineError> {
        match self {
            Self::Lab => Ok(lab::run(scenario, out, progress)?),
            Self::Sim => Ok(sim::run(scenario, progress)?),
        }
    }

    /// Measures, before a campaign, whether the machine gives every node its share whatever the others do.
    ///
    /// # Errors
    /// [`LabError::SpeedsDiffer`]: it does not.
    pub fn measure(
        self,
        scenario: &Scenario,
        progress: Progress<'_>,
    ) -> Result<Vec<Speed>, EngineError> {
        match self {
            Self::Lab => Ok(lab::speeds(scenario, progress)?),
            Self::Sim => Ok(Vec::new()),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lab => "lab",
            Self::Sim => "sim",
        })
    }
}

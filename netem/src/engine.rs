//! The two engines behind one call.

use std::fmt;
use std::path::Path;

use crate::record::{Progress, Record};
use crate::scenario::Scenario;

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
    /// The engine is not part of this program.
    #[error("the engine {engine} is not in this build; choose another with --engine")]
    Absent {
        /// Which.
        engine: Engine,
    },
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
        let _ = (scenario, out, progress);
        Err(EngineError::Absent { engine: self })
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

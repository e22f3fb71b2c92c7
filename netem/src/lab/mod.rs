//! The lab: a scenario with real processes on real time.
//!
//! Every node has a network, a process and a mount namespace of its own, and a TAP interface whose other end is a port of
//! the `switch` in this process, which moves frames through [`Fabric`](crate::link::Fabric). Nothing outlives the testbed:
//! namespaces and TAPs go with their last process, processes with the thread that started them, cgroups with the janitor.
//!
//! `address` and `netlink` are the network of one node, `namespace` holds its namespace, `init` is what runs inside before
//! its program, `limits` its CPU and memory, `node` the whole of it; `switch` and `lines` are what is between nodes; `watch`
//! reads what programs write, `schedule` says what is to happen, `action` does it, `campaign` is the whole run. `speeds` measures before a campaign.

mod error;
mod machine;
mod address;
mod netlink;
mod namespace;
mod hidden;
mod janitor;
mod limits;
mod processes;
mod switch;
mod lines;
mod watch;
mod schedule;
mod node;
mod mesh;
mod speeds;
mod campaign;
mod action;

use std::path::{Path, PathBuf};

pub use error::LabError;
pub use hidden::hidden_main;
pub use namespace::{enter, permitted};
pub use speeds::Speed;

use crate::record::{Progress, Record};
use crate::scenario::Scenario;

/// The program that the lab starts in its namespaces.
const NODE: &str = "skein-netem-node";

/// Where a run puts its files, and which executable its helper processes are.
#[derive(Clone, Debug)]
pub struct Lab {
    /// `skein-netem-node`: it starts programs inside of namespaces and cleans up behind a testbed that was killed.
    pub exe: PathBuf,
    /// Folder of the run: `NAME.log` and `NAME/` per node.
    pub out: PathBuf,
}

impl Lab {
    /// Files in `out`; the executable is the one beside that which runs.
    ///
    /// # Errors
    /// There is none.
    pub fn new(out: &Path) -> Result<Self, LabError> {
        let beside = std::env::current_exe().map(|exe| exe.with_file_name(NODE));
        let exe = beside
            .and_then(|exe| exe.metadata().map(|_| exe))
            .map_err(LabError::failed(format!(
                "{NODE}, which the lab starts in its namespaces, must lie beside this program"
            )))?;
        let out = out.to_owned();
        Ok(Self { exe, out })
    }

    /// Runs `scenario` to its end.
    ///
    /// # Errors
    /// [`LabError`]; whatever was started is gone by then.
    pub fn run(&self, scenario: &Scenario, progress: Progress<'_>) -> Result<Record, LabError> {
        enter()?;
        campaign::run(self, scenario, progress)
    }

    /// Measures every node's speed alone and all together.
    ///
    /// # Errors
    /// [`LabError::SpeedsDiffer`] where they differ by more than 5 % also after having been measured again.
    pub fn speeds(
        &self,
        scenario: &Scenario,
        progress: Progress<'_>,
    ) -> Result<Vec<Speed>, LabError> {
        enter()?;
        speeds::measure(self, scenario, progress)
    }
}

/// Runs `scenario` to its end, with files in `out`.
///
/// # Errors
/// [`LabError`]; whatever was started is gone by then.
pub fn run(scenario: &Scenario, out: &Path, progress: Progress<'_>) -> Result<Record, LabError> {
    Lab::new(out)?.run(scenario, progress)
}

/// Measures every node's speed alone and all together; once before a campaign.
///
/// # Errors
/// [`LabError::SpeedsDiffer`] where they differ by more than 5 %: the figures of a campaign would be those of the machine.
pub fn speeds(scenario: &Scenario, progress: Progress<'_>) -> Result<Vec<Speed>, LabError> {
    Lab::new(Path::new("."))?.speeds(scenario, progress)
}

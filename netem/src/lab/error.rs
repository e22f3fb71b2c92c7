//! Why a run in the lab cannot be, or could not go on.

use std::io;
use std::path::PathBuf;

/// Why a scenario could not be run.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The system does not let us make namespaces or TAP interfaces.
    #[error(
        "this system does not permit {what}: {reason}; run as root, or permit user namespaces and /dev/net/tun"
    )]
    NotPermitted {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        reason: String,
    },
    /// More CPU than there is.
    #[error(
        "the nodes' CPU shares add up to {asked:.2} cores, and this machine has {cores}; lower them by the same factor"
    )]
    Overbooked {
        /// Sum of the shares.
        asked: f64,
        /// Cores of the machine.
        cores: usize,
    },
    /// More nodes than the network has addresses for.
    #[error("{nodes} nodes; the lab has room for {most}, the simulator for more")]
    TooManyNodes {
        /// How many.
        nodes: usize,
        /// How many there may be.
        most: usize,
    },
    /// Nodes are slower together than alone.
    #[error(
        "nodes differ in speed by more than 5 % alone and all together: {figures}; end what else runs on this machine, or lower the shares"
    )]
    SpeedsDiffer {
        /// Per node: its name and both speeds.
        figures: String,
    },
    /// A `skein` binary is needed and not found.
    #[error("the scenario runs skein, and {} is not there; build it, or set SKEIN to its path", .looked.display())]
    NoSkein {
        /// Where it was looked for.
        looked: PathBuf,
    },
    /// A peer's control socket would have too long a name.
    #[error("{}: a control socket's path may have {most} bytes; choose a shorter --out", .path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// The most bytes it may have.
        most: usize,
    },
    /// The job was not taken.
    #[error("{node} refuses the job: {said}")]
    JobRefused {
        /// The node.
        node: String,
        /// What it said.
        said: String,
    },
    /// A file or folder of the run.
    #[error("{}: {source}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// Something that must work did not.
    #[error("{what}: {source}")]
    Failed {
        /// What.
        what: String,
        /// What happened.
        source: io::Error,
    },
}

impl LabError {
    pub(super) fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Failed { what, source }
    }

    pub(super) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}

//! A scenario as the engines run it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::link::{NodeIndex, Profile, Trace};

/// One run: a file with its variant and settings applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Which variant of the file; empty where it has none.
    pub variant: String,
    /// What it shows, which paper and table it stands for and what was scaled.
    pub about: String,
    /// Seed of every draw: links, jobs, the simulator.
    pub seed: u64,
    /// How often it is run, with seeds counting up.
    pub repeat: u32,
    /// The nodes, in the order of the file: their places are their ranks.
    pub nodes: Vec<Node>,
    /// What is between nodes beside their lines.
    pub pairs: Vec<Pair>,
    /// What happens, in the order of the file.
    pub events: Vec<Event>,
    /// What ends it.
    pub end: End,
    /// What makes it pass.
    pub expect: Vec<Expectation>,
    /// The job that `skein` nodes train, as TOML; a seed that it does not set is that of the run.
    pub job: Option<String>,
    /// What the simulator needs beside.
    pub sim: Sim,
    /// Folder of the file: programs run there, and paths are from there.
    pub folder: PathBuf,
}

/// One device.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Unique. A node with a count of n stands for `name-0` to `name-(n-1)`.
    pub name: String,
    /// The name in the file, which stands for all of a count.
    pub group: String,
    /// CPU time per second of real time, in cores. None: no limit.
    pub cpu: Option<f64>,
    /// Most bytes of memory. None: no limit.
    pub memory: Option<u64>,
    /// Compute threads.
    pub threads: u32,
    /// What runs there.
    pub program: Program,
    /// When it starts. None: only when an event says `join`.
    pub start: Option<Duration>,
    /// More environment for the program.
    pub env: BTreeMap<String, String>,
    /// From the node to the network.
    pub up: Line,
    /// From the network to the node.
    pub down: Line,
}

/// What a node runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// `skein up`, in one mesh with the other such nodes; the first of them submits the job.
    Skein {
        /// More arguments for `skein up`.
        args: Vec<String>,
    },
    /// Any program.
    Command(Vec<String>),
}

/// One direction of a node's line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// Its numbers at the start.
    pub profile: Profile,
    /// Its rate over time.
    pub trace: Option<Arc<Trace>>,
}

/// One direction between two nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// Sender.
    pub from: NodeIndex,
    /// Receiver.
    pub to: NodeIndex,
    /// Numbers and rate over time.
    pub line: Line,
}

/// Something that happens once.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When.
    pub when: When,
    /// What.
    pub action: Action,
}

/// When an event happens.
#[derive(Clone, Debug, PartialEq)]
pub enum When {
    /// This long after the start.
    At(Duration),
    /// This long after a condition first holds.
    After(Condition, Duration),
    /// Again and again, from the first to the last moment, so far apart. Targets of groups are drawn anew each time.
    Every {
        /// First time.
        from: Duration,
        /// Not after.
        until: Duration,
        /// Time between.
        period: Duration,
    },
}

/// What a node's metrics must show.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// Any of these nodes.
    pub nodes: Vec<NodeIndex>,
    /// Name of the event in the node's metrics, such as `step`.
    pub event: String,
    /// A field of it and what it must reach; none: the event is enough.
    pub field: Option<(String, Comparison, f64)>,
}

impl Condition {
    /// Whether a line of a node's metrics fulfils it.
    pub fn holds(
        &self,
        rank: NodeIndex,
        event: &str,
        fields: &serde_json::Map<String, serde_json::Value>,
    ) -> bool {
        let reaches = |(field, comparison, bound): &(String, Comparison, f64)| {
            let value = fields.get(field).and_then(serde_json::Value::as_f64);
            value.is_some_and(|value| comparison.holds(value, *bound))
        };
        self.event == event && self.nodes.contains(&rank) && self.field.as_ref().is_none_or(reaches)
    }
}

/// What happens to nodes and links. A list of nodes: all of them, but one drawn by seed where the event repeats.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// SIGKILL.
    Kill(Vec<NodeIndex>),
    /// SIGSTOP.
    Stop(Vec<NodeIndex>),
    /// SIGCONT.
    Continue(Vec<NodeIndex>),
    /// Started again with what it had on disk; killed first where it runs.
    Restart(Vec<NodeIndex>),
    /// SIGINT: it leaves cleanly.
    Leave(Vec<NodeIndex>),
    /// Started where it does not run.
    Join(Vec<NodeIndex>),
    /// Nodes of different groups no longer reach each other; nodes in none are a group.
    Partition(Vec<Vec<NodeIndex>>),
    /// All reach each other again.
    Heal,
    /// Other lines; none: as it was.
    SetLine {
        /// Whose.
        nodes: Vec<NodeIndex>,
        /// From them.
        up: Option<Profile>,
        /// To them.
        down: Option<Profile>,
    },
    /// Another pair.
    SetPair {
        /// Sender.
        from: NodeIndex,
        /// Receiver.
        to: NodeIndex,
        /// Its numbers.
        profile: Profile,
    },
    /// Another CPU share, in cores.
    SetCpu {
        /// Whose.
        nodes: Vec<NodeIndex>,
        /// The share.
        share: f64,
    },
}

impl Action {
    /// The nodes that it is about; none where it is about the network.
    pub fn nodes(&self) -> Option<&[NodeIndex]> {
        match self {
            Self::Kill(nodes)
            | Self::Stop(nodes)
            | Self::Continue(nodes)
            | Self::Restart(nodes)
            | Self::Leave(nodes)
            | Self::Join(nodes)
            | Self::SetLine { nodes, .. }
            | Self::SetCpu { nodes, .. } => Some(nodes),
            Self::Partition(_) | Self::Heal | Self::SetPair { .. } => None,
        }
    }
}

/// What ends a run; the first that holds.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// At the latest. A run that must end before (`job` or `exit`) and does not is a run that could not be judged by them.
    pub after: Duration,
    /// Every node that runs and belongs to the mesh has closed the job.
    pub job: bool,
    /// Every program has ended by itself.
    pub exit: bool,
    /// A condition holds.
    pub when: Option<Condition>,
}

/// A metric and its bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// Name of a metric, see `report::metrics`.
    pub metric: String,
    /// How it compares.
    pub comparison: Comparison,
    /// With what.
    pub value: f64,
}

/// How a value compares with a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `<=`
    AtMost,
    /// `<`
    Below,
    /// `>=`
    AtLeast,
    /// `>`
    Above,
    /// `==`
    Equal,
}

impl Comparison {
    /// Whether it holds. Never for a value that is no number.
    pub fn holds(self, value: f64, bound: f64) -> bool {
        match self {
            Self::AtMost => value <= bound,
            Self::Below => value < bound,
            Self::AtLeast => value >= bound,
            Self::Above => value > bound,
            Self::Equal => value == bound,
        }
    }

    /// As it is written.
    pub fn sign(self) -> &'static str {
        match self {
            Self::AtMost => "<=",
            Self::Below => "<",
            Self::AtLeast => ">=",
            Self::Above => ">",
            Self::Equal => "==",
        }
    }

    /// Reads a sign.
    pub fn from_sign(sign: &str) -> Option<Self> {
        [
            Self::AtMost,
            Self::Below,
            Self::AtLeast,
            Self::Above,
            Self::Equal,
        ]
        .into_iter()
        .find(|comparison| comparison.sign() == sign)
    }
}

/// What the simulator needs beside the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct Sim {
    /// What is trained.
    pub problem: Problem,
    /// Microseconds per sample of one step on one whole core.
    pub us_per_sample: f64,
    /// Microseconds per step beside its samples, on one whole core.
    pub us_per_step: f64,
    /// Microseconds per row of a look at the validation set, on one whole core.
    pub us_per_look: f64,
    /// Microseconds to add a gradient to a residual and to pack it, once for all links that share it, on one whole core.
    pub us_per_packet: f64,
    /// Microseconds to send a packet to one peer, on one whole core.
    pub us_per_sent: f64,
    /// Microseconds to apply a packet that arrived, on one whole core.
    pub us_per_applied: f64,
    /// What the blocks of a model that is cut into stages cost, from the scenario's folder; measured if there is none.
    pub profile: Option<PathBuf>,
    /// What follows on the loss of a stage's host.
    pub recovery: Recovery,
}

/// What follows on the loss of a stage's host in the simulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// What nodes do: a plan near the last one, and what is missing is fetched.
    #[default]
    Replay,
    /// All is collected by one peer, planned anew and sent out again (Asteroid's comparison).
    Redistribute,
}

/// What a simulated peer trains.
#[derive(Clone, Debug, PartialEq)]
pub enum Problem {
    /// The job's own model on its own data.
    Job,
    /// A quadratic bowl of so many dimensions with noisy gradients, for runs that are about the protocol.
    Toy {
        /// Dimensions.
        dimensions: usize,
    },
}

impl Default for Sim {
    fn default() -> Self {
        Self {
            problem: Problem::Job,
            us_per_sample: 100.0,
            us_per_step: 0.0,
            us_per_look: 38.0,
            us_per_packet: 0.0,
            us_per_sent: 0.0,
            us_per_applied: 0.0,
            profile: None,
            recovery: Recovery::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_reads_as_it_is_written() {
        for sign in ["<=", "<", ">=", ">", "=="] {
            assert_eq!(
                Comparison::from_sign(sign).map(Comparison::sign),
                Some(sign)
            );
        }
        assert!(!Comparison::AtMost.holds(f64::NAN, 1.0));
    }
}

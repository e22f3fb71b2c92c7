//! What a run leaves behind, whichever engine ran it: what the nodes wrote, what the links carried, what happened.
//!
//! Times are seconds since the start of the run: real ones in the lab, virtual ones in the simulator.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Told as a run goes on: seconds since its start, and a line for people.
pub type Progress<'a> = &'a mut dyn FnMut(f64, &str);

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The scenario's name.
    pub scenario: String,
    /// Its variant; empty where there is none.
    pub variant: String,
    /// `lab` or `sim`.
    pub engine: String,
    /// The seed.
    pub seed: u64,
    /// How long it ran.
    pub duration_s: f64,
    /// The machine it ran on: processor, cores, memory.
    pub machine: String,
    /// The nodes, by rank.
    pub nodes: Vec<NodeRecord>,
    /// Bytes carried so far, sampled once a second at most; the last sample is that of the end.
    pub traffic: Vec<Traffic>,
    /// What happened: events of the scenario, and exits of programs.
    pub marks: Vec<Mark>,
    /// Limits that could not be applied, with the reason.
    pub not_applied: Vec<String>,
    /// Lab: CPU seconds of the testbed itself, the switch above all.
    pub switch_cpu_s: Option<f64>,
    /// Simulator: hash over every event of the run.
    pub trace_hash: Option<String>,
    /// Simulator: virtual seconds per real second. Not part of what repeats.
    pub speed: Option<f64>,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Its name.
    pub name: String,
    /// Its group's name.
    pub group: String,
    /// Its share in cores, as the scenario sets it at the start.
    pub cpu: Option<f64>,
    /// The short id of its peer in the metrics of others, where known.
    pub peer: Option<String>,
    /// What it wrote, in order: the lines of its metrics.
    pub metrics: Vec<Metric>,
    /// CPU time and memory over time, from outside.
    pub usage: Vec<Usage>,
    /// From when to when it ran.
    pub lives: Vec<[f64; 2]>,
}

/// One line of a node's metrics (docs/journal.md).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// When.
    pub t: f64,
    /// What kind of line: `step`, `evaluated`, `view`, ...
    pub event: String,
    /// Its other fields.
    pub fields: Map<String, Value>,
}

impl Metric {
    /// A field that is a number.
    pub fn number(&self, field: &str) -> Option<f64> {
        self.fields.get(field)?.as_f64()
    }
}

/// What a node used so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// When.
    pub t: f64,
    /// CPU seconds.
    pub cpu_s: f64,
    /// Resident memory now, bytes.
    pub rss_bytes: u64,
}

/// What the network carried so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// When.
    pub t: f64,
    /// Directed pairs that carried anything.
    pub pairs: Vec<PairTraffic>,
}

/// What one directed pair carried so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairTraffic {
    /// Sender's rank.
    pub from: usize,
    /// Receiver's rank.
    pub to: usize,
    /// Bytes that the sender put on the wire.
    pub bytes: u64,
    /// Bytes that came out.
    pub delivered: u64,
    /// Frames dropped by queues, the line, and cuts.
    pub dropped: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// When.
    pub t: f64,
    /// To which nodes, by rank; none: to the network.
    pub nodes: Vec<usize>,
    /// In one word: `kill`, `partition`, `exit`, ...
    pub what: String,
    /// More, for people.
    pub detail: String,
}

//! Metrics and verdicts of a run, as `summary.json` holds them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::compare::Compared;
use super::metrics::{of_pipeline, value};
use super::numbers::number_text;
use crate::record::Record;
use crate::scenario::{Against, Comparison, Expectation, Measure, Named, Quantity, Scenario};

/// Version of the form. Fields are only added within one.
pub const FORMAT: u32 = 1;

/// Everything that `--json` holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// [`FORMAT`].
    pub format: u32,
    /// Name of the scenario, or of those compared.
    pub name: String,
    /// Whether every expectation of every run holds.
    pub passed: bool,
    /// The runs, in their order.
    pub runs: Vec<RunSummary>,
    /// What `compare` makes of them; empty after `run`.
    pub comparison: Vec<Compared>,
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// Its folder beside the summary.
    pub folder: String,
    /// Name of the scenario.
    pub scenario: String,
    /// Its variant; empty where there is none.
    pub variant: String,
    /// What it shows.
    pub about: String,
    /// `lab` or `sim`.
    pub engine: String,
    /// The seed.
    pub seed: u64,
    /// The machine.
    pub machine: String,
    /// How long it ran.
    pub duration_s: f64,
    /// Limits that could not be applied.
    pub not_applied: Vec<String>,
    /// Simulator: hash over every event.
    pub trace_hash: Option<String>,
    /// Simulator: virtual seconds per real second.
    pub speed: Option<f64>,
    /// Whether every expectation holds.
    pub passed: bool,
    /// Each expectation with what was measured.
    pub verdicts: Vec<Verdict>,
    /// Metrics of all nodes together; null: has no value, such as a target never reached.
    pub metrics: BTreeMap<String, Option<f64>>,
    /// Metrics of each node, by its name; empty beyond 256 nodes.
    pub nodes: BTreeMap<String, BTreeMap<String, Option<f64>>>,
}

/// One expectation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The metric.
    pub metric: String,
    /// `<=`, `<`, `>=`, `>` or `==`.
    pub comparison: String,
    /// What it is compared with.
    pub bound: f64,
    /// What was measured; null: never.
    pub value: Option<f64>,
    /// Whether it holds. Never without a value.
    pub holds: bool,
}

/// Beyond so many nodes nobody reads their numbers one by one.
const MOST_NODES: usize = 256;
/// Metrics of single nodes that a summary holds.
const OF_NODES: [Named; 12] = [
    Named::Accuracy,
    Named::BestAccuracy,
    Named::Steps,
    Named::Samples,
    Named::StepsPerS,
    Named::BytesSent,
    Named::CpuS,
    Named::PeakRssBytes,
    Named::Views,
    Named::ComputeShare,
    Named::WaitShare,
    Named::CommunicateShare,
];
/// Metrics against the accuracy that the job trains to.
const OF_TARGET: [Against; 3] = [
    Against::TimeToAccuracy,
    Against::BytesToAccuracy,
    Against::SamplesToAccuracy,
];

/// Judges a run.
pub fn judge(record: &Record, scenario: &Scenario, folder: &str) -> RunSummary {
    let mut names: Vec<String> = Named::ALL
        .iter()
        .map(|named| named.word().to_owned())
        .collect();
    if let Some(target) = target(scenario) {
        let against = OF_TARGET.iter().map(|against| Measure {
            quantity: Quantity::At(*against, target),
            of: None,
        });
        names.extend(against.map(|measure| measure.to_string()));
    }
    names.extend(scenario.expect.iter().map(|expect| expect.metric.clone()));
    judged(record, &scenario.expect, &names, &scenario.about, folder)
}

/// Judges a run again by what its summary says was asked of it.
pub fn judge_again(record: &Record, before: &RunSummary) -> RunSummary {
    let expect = before.verdicts.iter().filter_map(|verdict| {
        Some(Expectation {
            metric: verdict.metric.clone(),
            comparison: Comparison::from_sign(&verdict.comparison)?,
            value: verdict.bound,
        })
    });
    let names: Vec<String> = before.metrics.keys().cloned().collect();
    let expect: Vec<Expectation> = expect.collect();
    judged(record, &expect, &names, &before.about, &before.folder)
}

fn judged(
    record: &Record,
    expect: &[Expectation],
    names: &[String],
    about: &str,
    folder: &str,
) -> RunSummary {
    let measured = |metric: &str| value(record, &metric.parse::<Measure>().ok()?);
    let verdicts: Vec<Verdict> = expect
        .iter()
        .map(|expect| {
            let value = measured(&expect.metric);
            Verdict {
                metric: expect.metric.clone(),
                comparison: expect.comparison.sign().to_owned(),
                bound: expect.value,
                value,
                holds: value.is_some_and(|value| expect.comparison.holds(value, expect.value)),
            }
        })
        .collect();
    let of_node = |name: &str| {
        let of = |named: &Named| {
            let measure = Measure {
                quantity: Quantity::Named(*named),
                of: Some(name.to_owned()),
            };
            (named.word().to_owned(), value(record, &measure))
        };
        OF_NODES.iter().map(of).collect()
    };
    let nodes = record.nodes.iter();
    let nodes = nodes.filter(|_| record.nodes.len() <= MOST_NODES);
    RunSummary {
        folder: folder.to_owned(),
        scenario: record.scenario.clone(),
        variant: record.variant.clone(),
        about: about.to_owned(),
        engine: record.engine.clone(),
        seed: record.seed,
        machine: record.machine.clone(),
        duration_s: record.duration_s,
        not_applied: record.not_applied.clone(),
        trace_hash: record.trace_hash.clone(),
        speed: record.speed,
        passed: verdicts.iter().all(|verdict| verdict.holds),
        verdicts,
        metrics: names
            .iter()
            .chain(&of_pipeline(record))
            .map(|name| (name.clone(), measured(name)))
            .collect(),
        nodes: nodes
            .map(|node| (node.name.clone(), of_node(&node.name)))
            .collect(),
    }
}

/// The accuracy that the job of a scenario trains to.
pub fn target(scenario: &Scenario) -> Option<f64> {
    let job: toml::Table = scenario.job.as_ref()?.parse().ok()?;
    let accuracy = job.get("stop")?.get("accuracy")?;
    accuracy
        .as_float()
        .or_else(|| accuracy.as_integer().map(|whole| whole as f64))
}

impl Summary {
    /// Of these runs.
    pub fn new(name: impl Into<String>, runs: Vec<RunSummary>) -> Self {
        Self {
            format: FORMAT,
            name: name.into(),
            passed: runs.iter().all(|run| run.passed),
            runs,
            comparison: vec![],
        }
    }
}

impl RunSummary {
    /// `scenario`, or `scenario#variant`.
    pub fn title(&self) -> String {
        match self.variant.as_str() {
            "" => self.scenario.clone(),
            variant => format!("{}#{variant}", self.scenario),
        }
    }
}

impl Verdict {
    /// For a terminal: `ok    accuracy = 0.851, >= 0.8`.
    pub fn line(&self) -> String {
        let value = number_text(self.value);
        let word = if self.holds { "ok   " } else { "SHORT" };
        format!(
            "{word} {} = {value}, expected {} {}",
            self.metric, self.comparison, self.bound
        )
    }
}

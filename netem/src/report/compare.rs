//! Runs of several scenarios or variants beside each other: least, middle and most of each metric, and ratios.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::metrics::{of_pipeline, value};
use super::numbers::{bytes_text, number_text};
use super::summary::RunSummary;
use crate::record::Record;
use crate::scenario::{Against, Measure, Named, Quantity};

/// One metric of one contestant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// The metric.
    pub metric: String,
    /// The scenario, or `scenario#variant`.
    pub contestant: String,
    /// Its values, in the order of the runs; null: never.
    pub values: Vec<Option<f64>>,
    /// The least; null if no run has a value.
    pub min: Option<f64>,
    /// The middle one, where `never` counts as more than any number.
    pub median: Option<f64>,
    /// The most; null if any run has none.
    pub max: Option<f64>,
    /// Median over that of the first contestant; null where one has none.
    pub ratio: Option<f64>,
}

/// Compares runs with their records; contestants in the order in which they first ran. `target` is the accuracy that
/// they train to, if they do.
pub fn compare(runs: &[(Record, RunSummary)], target: Option<f64>) -> Vec<Compared> {
    let mut contestants: Vec<String> = vec![];
    for (_, run) in runs {
        if !contestants.contains(&run.title()) {
            contestants.push(run.title());
        }
    }
    let mut all = vec![];
    for metric in metrics(runs, target) {
        let Ok(measure) = metric.parse::<Measure>() else {
            continue;
        };
        let mut first = None;
        for (place, contestant) in contestants.iter().enumerate() {
            let own = runs.iter().filter(|(_, run)| &run.title() == contestant);
            let values: Vec<Option<f64>> = own.map(|(record, _)| value(record, &measure)).collect();
            let (min, median, max) = spread(&values);
            if place == 0 {
                first = median;
            }
            let ratio = median.zip(first).map(|(median, first)| median / first);
            all.push(Compared {
                metric: metric.clone(),
                contestant: contestant.clone(),
                values,
                min,
                median,
                max,
                ratio: ratio.filter(|ratio| ratio.is_finite()),
            });
        }
    }
    all
}

/// What is compared: the way to the target, the accuracy at the end of the shortest run, what tells of pipelines, and all that is
/// expected.
fn metrics(runs: &[(Record, RunSummary)], target: Option<f64>) -> Vec<String> {
    let text = |quantity| Measure { quantity, of: None }.to_string();
    let mut names = vec![];
    if let Some(target) = target {
        let ways = [
            Against::TimeToAccuracy,
            Against::BytesToAccuracy,
            Against::SamplesToAccuracy,
        ];
        names.extend(ways.map(|way| text(Quantity::At(way, target))));
    }
    let deadline = runs
        .iter()
        .map(|(record, _)| record.duration_s)
        .reduce(f64::min);
    let deadline = deadline.map(|deadline| Quantity::At(Against::AccuracyAt, deadline.floor()));
    names.extend(deadline.map(text));
    names.extend(
        [Named::Accuracy, Named::BytesSent, Named::DurationS]
            .map(|named| text(Quantity::Named(named))),
    );
    let asked = |run: &RunSummary| {
        let metrics = run.verdicts.iter().map(|verdict| verdict.metric.clone());
        metrics.collect::<Vec<String>>()
    };
    let more = runs.iter().map(|(record, _)| of_pipeline(record));
    let more = more.chain(runs.iter().map(|(_, run)| asked(run)));
    for name in more.flatten() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Least, middle and most, where none is more than any number.
fn spread(values: &[Option<f64>]) -> (Option<f64>, Option<f64>, Option<f64>) {
    let mut sorted: Vec<f64> = values
        .iter()
        .map(|value| value.unwrap_or(f64::INFINITY))
        .collect();
    sorted.sort_by(f64::total_cmp);
    let finite = |value: Option<&f64>| value.copied().filter(|value| value.is_finite());
    let middle = sorted.len() / 2;
    let median = match sorted.len() % 2 {
        1 => finite(sorted.get(middle)),
        _ => finite(sorted.get(middle)).map(|above| (above + sorted[middle - 1]) / 2.0),
    };
    (finite(sorted.first()), median, finite(sorted.last()))
}

/// The comparison for a terminal.
pub fn comparison_table(compared: &[Compared]) -> String {
    let names = compared.iter().flat_map(|row| {
        [
            row.contestant.chars().count() + 2,
            row.metric.chars().count(),
        ]
    });
    let wide = names.max().unwrap_or(0);
    let mut text = String::new();
    let mut before = "";
    for row in compared {
        if row.metric != before {
            before = &row.metric;
            let gap = if text.is_empty() { "" } else { "\n" };
            let _ = writeln!(
                text,
                "{gap}{:<wide$}  {:>5} {:>12} {:>12} {:>12} {:>8}",
                row.metric, "runs", "min", "median", "max", "ratio"
            );
        }
        let ratio = row
            .ratio
            .map_or("–".to_owned(), |ratio| format!("{ratio:.2} x"));
        let _ = writeln!(
            text,
            "  {:<w$}  {:>5} {:>12} {:>12} {:>12} {ratio:>8}",
            row.contestant,
            row.values.len(),
            text_of(&row.metric, row.min),
            text_of(&row.metric, row.median),
            text_of(&row.metric, row.max),
            w = wide - 2,
        );
    }
    text
}

fn text_of(metric: &str, value: Option<f64>) -> String {
    match value {
        Some(bytes) if metric.contains("bytes") => bytes_text(bytes),
        value => number_text(value),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::super::summary::judge_again;
    use super::*;
    use crate::report::Verdict;

    fn run(variant: &str, slower: f64, metric: &str) -> (Record, RunSummary) {
        let mut record = sample::record();
        record.variant = variant.to_owned();
        record.duration_s *= slower;
        for line in record.nodes.iter_mut().flat_map(|node| &mut node.metrics) {
            line.t *= slower;
        }
        let asked = RunSummary {
            verdicts: vec![Verdict {
                metric: metric.to_owned(),
                comparison: ">=".into(),
                bound: 1.0,
                value: None,
                holds: false,
            }],
            ..RunSummary::default()
        };
        let summary = judge_again(&record, &asked);
        (record, summary)
    }

    #[test]
    fn pipelines_are_compared_by_their_speed_and_their_takeovers() {
        let record = sample::pipeline();
        let run = judge_again(&record, &RunSummary::default());
        assert_eq!(run.metrics["redone_steps"], Some(5.0));
        let compared = compare(&[(record, run)], None);
        let names: Vec<&str> = compared.iter().map(|row| row.metric.as_str()).collect();
        assert_eq!(
            names[names.len() - 4..],
            [
                "samples_per_s",
                "takeover_s(0.5)",
                "takeover_s(0.95)",
                "redone_steps"
            ]
        );
    }

    #[test]
    fn contestants_stand_beside_each_other_with_ratios_to_the_first() {
        let mut never = run("b", 9.0, "steps");
        never
            .0
            .nodes
            .iter_mut()
            .for_each(|node| node.metrics.clear());
        let runs = [
            run("a", 1.0, "views"),
            run("b", 2.0, "steps"),
            run("a", 1.5, "views"),
            run("b", 4.0, "steps"),
            run("a", 1.1, "views"),
            never,
        ];
        let compared = compare(&runs, Some(0.8));
        let of = |metric: &str, contestant: &str| {
            let mut rows = compared.iter();
            let row = rows.find(|row| row.metric == metric && row.contestant == contestant);
            row.map(|row| (row.min, row.median, row.max, row.ratio))
        };
        let time = "time_to_accuracy(0.8)";
        let a = (Some(60.0), Some(66.0), Some(90.0), Some(1.0));
        assert_eq!(of(time, "sample#a"), Some(a));
        let b = (Some(120.0), Some(240.0), None, Some(240.0 / 66.0));
        assert_eq!(of(time, "sample#b"), Some(b));
        // The shortest run lasts 100 s.
        assert!(of("accuracy_at(100)", "sample#b").is_some());
        assert!(of("views", "sample#b").is_some() && of("steps", "sample#a").is_some());
        assert!(of("samples_per_s", "sample#a").is_none());
        let table = comparison_table(&compared);
        assert!(
            table.contains("never") && table.contains("3.64 x"),
            "{table}"
        );
    }
}

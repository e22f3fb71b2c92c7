//! Samples per second where training runs steadily, measured alike for pipelines and for exchanges.
//!
//! Time falls into stretches: steps of one view (in a pipeline: of one cut) between two marks. What is between the second and the
//! last step of a stretch counts; takeovers, loading and waiting for others to come are left out.

use std::collections::BTreeMap;

use super::cuts::{Cuts, lines, whole};
use crate::link::NodeIndex;
use crate::record::{Metric, NodeRecord, Record};

/// One stretch of steady training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stretch {
    /// The view's number; 0 where a program has none.
    pub(super) view: u64,
    pub(super) seconds: f64,
    pub(super) samples_per_s: f64,
}

/// The mean over all stretches, by their length.
pub(super) fn samples_per_s(record: &Record, nodes: &[NodeIndex]) -> Option<f64> {
    mean(&stretches(record, &Cuts::of(record), nodes))
}

/// The mean by length.
pub(super) fn mean<'a>(stretches: impl IntoIterator<Item = &'a Stretch>) -> Option<f64> {
    let sum = |(samples, seconds): (f64, f64), stretch: &Stretch| {
        (
            samples + stretch.samples_per_s * stretch.seconds,
            seconds + stretch.seconds,
        )
    };
    let (samples, seconds) = stretches.into_iter().fold((0.0, 0.0), sum);
    (seconds > 0.0).then(|| samples / seconds)
}

/// All stretches of `nodes`. All stages of a pipeline make the same steps, so its first one's count.
pub(super) fn stretches(record: &Record, cuts: &Cuts<'_>, nodes: &[NodeIndex]) -> Vec<Stretch> {
    let marks = record.marks.iter();
    let marks = marks.filter(|mark| !matches!(mark.what.as_str(), "job" | "exit" | "deadline"));
    let mut marks: Vec<f64> = marks.map(|mark| mark.t).collect();
    marks.sort_by(f64::total_cmp);
    let view_of = |rank: NodeIndex, line: &Metric| {
        if cuts.all.is_empty() {
            return Some(whole(line, "view").unwrap_or(0));
        }
        let cut = cuts.of_step(line)?;
        (cut.stage_on(rank) == Some(0)).then_some(cut.number)
    };
    let mut paces: BTreeMap<(usize, u64), (f64, f64)> = BTreeMap::new();
    for &rank in nodes {
        let Some(node) = record.nodes.get(rank) else {
            continue;
        };
        for (stretch, steps) in of_node(node, &marks, |line| view_of(rank, line)) {
            let [_, second, .., last] = steps.as_slice() else {
                continue;
            };
            let seconds = last.0 - second.0;
            if seconds > 0.0 {
                let samples: f64 = steps[2..].iter().map(|step| step.1).sum();
                let pace = paces.entry(stretch).or_default();
                *pace = (pace.0.max(seconds), pace.1 + samples / seconds);
            }
        }
    }
    let stretches = paces.into_iter();
    let stretch = |((_, view), (seconds, samples_per_s))| Stretch {
        view,
        seconds,
        samples_per_s,
    };
    stretches.map(stretch).collect()
}

/// Times and samples of a node's steps, by how many marks are before and by view.
fn of_node(
    node: &NodeRecord,
    marks: &[f64],
    view_of: impl Fn(&Metric) -> Option<u64>,
) -> BTreeMap<(usize, u64), Vec<(f64, f64)>> {
    let mut stretches: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in lines(node, "step") {
        let samples = line.number("samples").filter(|samples| *samples >= 0.0);
        if let (Some(view), Some(samples)) = (view_of(line), samples) {
            let marks = marks.partition_point(|mark| *mark <= line.t);
            let steps = stretches.entry((marks, view)).or_default();
            steps.push((line.t, samples));
        }
    }
    stretches
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn of(record: &Record, nodes: &[NodeIndex]) -> f64 {
        samples_per_s(record, nodes).unwrap_or(f64::NAN)
    }

    #[test]
    fn a_pipeline_counts_its_first_stage_and_neither_takeovers_nor_first_steps() {
        let record = sample::pipeline();
        // 8 steps in 8 s, 5 in 10 s.
        let expected = 13.0 * 32.0 / 18.0;
        assert!((of(&record, &[0, 1, 2, 3]) - expected).abs() < 1e-9);
        assert!((of(&record, &[0]) - expected).abs() < 1e-9);
        assert_eq!(samples_per_s(&record, &[1, 2, 3]), None);
        let stretches = stretches(&record, &Cuts::of(&record), &[0]);
        let rates: Vec<_> = stretches
            .iter()
            .map(|stretch| (stretch.view, stretch.samples_per_s))
            .collect();
        assert_eq!(rates, [(1, 32.0), (2, 16.0)]);
    }

    #[test]
    fn an_exchange_counts_all_peers_between_marks() {
        let record = sample::record();
        // Eight samples every one, two, three seconds; the first is killed at 40 s, the network is cut at 70 s and heals at 80 s.
        let (all, two) = (8.0 + 4.0 + 8.0 / 3.0, 4.0 + 8.0 / 3.0);
        let expected = (all * 37.0 + two * (26.0 + 6.0 + 18.0)) / 87.0;
        assert!((of(&record, &[0, 1, 2]) - expected).abs() < 1e-9);
        assert!((of(&record, &[1]) - 4.0).abs() < 1e-9);
    }

    #[test]
    fn a_pipeline_of_one_stage_is_as_fast_as_an_exchange_of_one_peer() {
        let mut record = sample::pipeline();
        record.nodes.truncate(1);
        record.marks.clear();
        let lines = &mut record.nodes[0].metrics;
        lines.retain(|line| line.t <= 10.0 && line.event == "step");
        let exchange = samples_per_s(&record, &[0]);
        assert_eq!(exchange, Some(32.0));
        let lines = &mut record.nodes[0].metrics;
        lines.insert(0, sample::cut(0.0, 1, 0, &[("a", 0, 20)]));
        assert_eq!(samples_per_s(&record, &[0]), exchange);
    }
}

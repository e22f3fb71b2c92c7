//! Works metrics out of a record. What each one means exactly stands in docs/testbed.md.

use std::collections::BTreeSet;

use super::cuts::Cuts;
use super::prediction::prediction_error;
use super::recovery::recovery_s;
use super::smoothed;
use super::takeover::{changes, recut_s, redone_steps, takeover_s, takeovers};
use super::throughput::samples_per_s;
use crate::link::NodeIndex;
use crate::record::{Mark, Metric, NodeRecord, PairTraffic, Record, Usage};
use crate::scenario::{Against, Measure, Named, Quantity, Statistic};

/// The value of `measure` in a run; none where there is none, as of a target that was never reached.
pub fn value(record: &Record, measure: &Measure) -> Option<f64> {
    let nodes = chosen(record, measure.node());
    let mut inside = vec![false; record.nodes.len()];
    nodes.iter().for_each(|&rank| inside[rank] = true);
    let view = Chosen {
        record,
        nodes,
        inside,
    };
    let value = match &measure.quantity {
        Quantity::Named(named) => view.named(*named),
        Quantity::At(against, number) => view.against(*against, *number),
        Quantity::Field {
            event,
            field,
            statistic,
        } => {
            let lines = view.members().flat_map(|node| &node.metrics);
            let lines = lines.filter(|line| &line.event == event);
            let values = lines.filter_map(|line| Some((line.t, line.number(field)?)));
            statistic_of(values.collect(), *statistic)
        }
    };
    value.filter(|value| value.is_finite())
}

/// Metrics that say something of a run with a pipeline, beside those that all runs have.
pub(super) fn of_pipeline(record: &Record) -> Vec<String> {
    let cuts = Cuts::of(record);
    if cuts.all.is_empty() {
        return vec![];
    }
    let mut quantities = vec![Quantity::Named(Named::SamplesPerS)];
    if !takeovers(record, &cuts).is_empty() {
        let share = |share| Quantity::At(Against::TakeoverS, share);
        quantities.extend([share(0.5), share(0.95), Quantity::Named(Named::RedoneSteps)]);
    }
    if !changes(record).is_empty() {
        quantities.push(Quantity::Named(Named::RecutS));
    }
    let text = |quantity| Measure { quantity, of: None }.to_string();
    quantities.into_iter().map(text).collect()
}

/// Ranks of a node or of a group's nodes; all without a name, and for `*` and `any`, as in a scenario file.
pub(super) fn chosen(record: &Record, name: Option<&str>) -> Vec<NodeIndex> {
    let name = name.filter(|name| !matches!(*name, "*" | "any"));
    let nodes = record.nodes.iter().enumerate();
    let wanted =
        nodes.filter(|(_, node)| name.is_none_or(|name| node.name == name || node.group == name));
    wanted.map(|(rank, _)| rank).collect()
}

fn statistic_of(mut values: Vec<(f64, f64)>, statistic: Statistic) -> Option<f64> {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let last = values.last().map(|value| value.1);
    let mut values: Vec<f64> = values.into_iter().map(|value| value.1).collect();
    values.sort_by(f64::total_cmp);
    let sum: f64 = values.iter().sum();
    match statistic {
        Statistic::Count => Some(values.len() as f64),
        Statistic::Last => last,
        Statistic::Min => values.first().copied(),
        Statistic::Max => values.last().copied(),
        Statistic::Mean => (!values.is_empty()).then(|| sum / values.len() as f64),
        Statistic::P50 => quantile(&values, 0.5),
        Statistic::P99 => quantile(&values, 0.99),
        Statistic::Sum => (!values.is_empty()).then_some(sum),
    }
}

/// The value that a share `q` of the ascending `sorted` does not exceed, between neighbours in proportion.
pub(super) fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = q.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (at.floor() as usize, at.ceil() as usize);
    let (low, high) = (*sorted.get(below)?, *sorted.get(above)?);
    Some(low + (high - low) * (at - below as f64))
}

/// The nodes that a metric is about.
struct Chosen<'a> {
    record: &'a Record,
    nodes: Vec<NodeIndex>,
    /// By rank.
    inside: Vec<bool>,
}

impl<'a> Chosen<'a> {
    fn members(&self) -> impl Iterator<Item = &'a NodeRecord> {
        self.nodes.iter().map(|&rank| &self.record.nodes[rank])
    }

    /// Lines of one event of all members.
    fn lines(&self, event: &'static str) -> impl Iterator<Item = &'a Metric> {
        let of =
            move |node: &'a NodeRecord| node.metrics.iter().filter(move |line| line.event == event);
        self.members().flat_map(of)
    }

    fn sum(&self, event: &'static str, field: &str) -> f64 {
        self.lines(event)
            .filter_map(|line| line.number(field))
            .sum()
    }

    fn named(&self, named: Named) -> Option<f64> {
        let record = self.record;
        match named {
            Named::Accuracy => self.accuracy(),
            Named::BestAccuracy => {
                let seen = self.lines("evaluated");
                seen.filter_map(|line| line.number("val_accuracy"))
                    .reduce(f64::max)
            }
            Named::Steps => Some(self.lines("step").count() as f64),
            Named::Samples => Some(self.sum("step", "samples")),
            Named::StepsPerS => self.members().filter_map(steps_per_s).reduce(|a, b| a + b),
            Named::DurationS => Some(record.duration_s),
            Named::BytesSent => Some(self.traffic(|pair| pair.bytes)),
            Named::BytesDelivered => Some(self.traffic(|pair| pair.delivered)),
            Named::FramesDropped => Some(self.traffic(|pair| pair.dropped)),
            Named::CpuS => {
                let used = self.members().filter(|node| !node.usage.is_empty());
                used.map(|node| cpu_s(&node.usage)).reduce(|a, b| a + b)
            }
            Named::PeakRssBytes => {
                let usage = self.members().flat_map(|node| &node.usage);
                usage
                    .map(|usage| usage.rss_bytes)
                    .max()
                    .map(|bytes| bytes as f64)
            }
            Named::Views => {
                let views = |node: &NodeRecord| {
                    node.metrics
                        .iter()
                        .filter(|line| line.event == "view")
                        .count()
                };
                self.members().map(views).max().map(|views| views as f64)
            }
            Named::ComputeShare => self.share("computing_s"),
            Named::WaitShare => self.share("waiting_s"),
            Named::CommunicateShare => self.share("communicating_s"),
            Named::ClosedNodes => {
                let closed =
                    |node: &&NodeRecord| node.metrics.iter().any(|line| line.event == "closed");
                Some(self.members().filter(closed).count() as f64)
            }
            Named::DistinctModels => {
                let models = self.members().filter_map(model).collect::<BTreeSet<&str>>();
                (!models.is_empty()).then_some(models.len() as f64)
            }
            Named::FailedNodes => Some(self.failed() as f64),
            Named::RecoveryS => recovery_s(record, &self.nodes),
            Named::RedoneSteps => redone_steps(record, &self.nodes),
            Named::RecutS => recut_s(record, &self.nodes),
            Named::SamplesPerS => samples_per_s(record, &self.nodes),
            Named::SwitchCpuS => record.switch_cpu_s,
            Named::SwitchCpuShare => record.switch_cpu_s.map(|cpu_s| cpu_s / record.duration_s),
        }
    }

    /// Of the agreed model, else what was seen last.
    fn accuracy(&self) -> Option<f64> {
        let last = |event, field: &str| {
            let lines = self
                .lines(event)
                .filter_map(|line| Some((line.t, line.number(field)?)));
            lines
                .max_by(|a, b| a.0.total_cmp(&b.0))
                .map(|(_, value)| value)
        };
        last("closed", "val_accuracy").or_else(|| last("evaluated", "val_accuracy"))
    }

    fn share(&self, field: &str) -> Option<f64> {
        let all: f64 = ["computing_s", "waiting_s", "communicating_s"]
            .iter()
            .map(|field| self.sum("step", field))
            .sum();
        (all > 0.0).then(|| self.sum("step", field) / all)
    }

    /// Over the pairs whose sender is a member, at the end.
    fn traffic(&self, of: impl Fn(&PairTraffic) -> u64) -> f64 {
        let pairs = self
            .record
            .traffic
            .last()
            .map(|sample| sample.pairs.as_slice());
        self.sum_pairs(pairs.unwrap_or_default(), of)
    }

    fn sum_pairs(&self, pairs: &[PairTraffic], of: impl Fn(&PairTraffic) -> u64) -> f64 {
        let pairs = pairs
            .iter()
            .filter(|pair| self.inside.get(pair.from) == Some(&true));
        pairs.map(|pair| of(pair) as f64).sum()
    }

    fn failed(&self) -> usize {
        let says_so = |node: &NodeRecord| node.metrics.iter().any(|line| line.event == "failed");
        let ended_badly = |&rank: &NodeIndex| {
            let mut marks = self.record.marks.iter();
            marks.any(|mark| is_failure(self.record, mark, rank))
        };
        let failed = |rank: &&NodeIndex| says_so(&self.record.nodes[**rank]) || ended_badly(rank);
        self.nodes.iter().filter(failed).count()
    }

    fn against(&self, against: Against, number: f64) -> Option<f64> {
        match against {
            Against::TimeToAccuracy => self.reached(number).map(|line| line.t),
            Against::SmoothedTimeToAccuracy => {
                let (at, began) = self.reached_smoothly(number)?;
                Some(at - began)
            }
            Against::BytesToSmoothedAccuracy => {
                let (at, _) = self.reached_smoothly(number)?;
                Some(self.bytes_at(at))
            }
            Against::TimeToLoss => {
                let looks = self.lines("evaluated");
                let good =
                    looks.filter(|line| line.number("val_loss").is_some_and(|loss| loss <= number));
                good.map(|line| line.t).reduce(f64::min)
            }
            Against::BytesToAccuracy => {
                let at = self.reached(number)?.t;
                Some(self.bytes_at(at))
            }
            Against::SamplesToAccuracy => {
                let look = self.reached(number)?;
                let own = |line: &&Metric| line.t <= look.t;
                let counted = || {
                    let steps = self.lines("step").filter(own);
                    steps.filter_map(|line| line.number("samples")).sum()
                };
                Some(look.number("samples_mesh").unwrap_or_else(counted))
            }
            Against::AccuracyAt => self.mean_at(number, "val_accuracy"),
            Against::LossAt => self.mean_at(number, "val_loss"),
            Against::TakeoverS => takeover_s(self.record, &self.nodes, number),
            Against::PredictionError => prediction_error(self.record, &self.nodes, number),
        }
    }

    fn reached_smoothly(&self, accuracy: f64) -> Option<(f64, f64)> {
        let began = self.lines("view").map(|line| line.t).reduce(f64::min);
        smoothed::reached(self.lines("evaluated"), began, accuracy)
    }

    /// The first look of any member that saw this accuracy.
    fn reached(&self, accuracy: f64) -> Option<&'a Metric> {
        let looks = self.lines("evaluated").chain(self.lines("closed"));
        let good = looks.filter(|line| {
            line.number("val_accuracy")
                .is_some_and(|seen| seen >= accuracy)
        });
        good.min_by(|a, b| a.t.total_cmp(&b.t))
    }

    /// Bytes that members had sent by then, between samples in proportion.
    fn bytes_at(&self, t: f64) -> f64 {
        let mut before = (0.0, 0.0);
        for sample in &self.record.traffic {
            let bytes = self.sum_pairs(&sample.pairs, |pair| pair.bytes);
            if sample.t >= t {
                let span = sample.t - before.0;
                let share = if span > 0.0 {
                    (t - before.0) / span
                } else {
                    1.0
                };
                return before.1 + (bytes - before.1) * share;
            }
            before = (sample.t, bytes);
        }
        before.1
    }

    /// Mean over the members of what each saw last by then.
    fn mean_at(&self, t: f64, field: &str) -> Option<f64> {
        let last = |node: &NodeRecord| {
            let looks = node
                .metrics
                .iter()
                .filter(|line| line.event == "evaluated" && line.t <= t);
            looks.filter_map(|line| line.number(field)).next_back()
        };
        let seen: Vec<f64> = self.members().filter_map(last).collect();
        (!seen.is_empty()).then(|| seen.iter().sum::<f64>() / seen.len() as f64)
    }
}

/// Whether `mark` says that the program of node `rank` ended with an error that nobody asked for by killing it, or by
/// telling it to leave.
pub(super) fn is_failure(record: &Record, mark: &Mark, rank: NodeIndex) -> bool {
    let of_it =
        |mark: &&Mark| mark.nodes.contains(&rank) && mark.what != "stop" && mark.what != "continue";
    if mark.what != "exit" || !of_it(&mark) {
        return false;
    }
    let first_line = mark.detail.lines().next().unwrap_or_default();
    let mut before = record
        .marks
        .iter()
        .filter(of_it)
        .filter(|other| other.t <= mark.t && *other != mark);
    let last = before.next_back().map(|mark| mark.what.as_str());
    let asked = matches!(last, Some("kill" | "leave" | "restart"));
    first_line != "status 0" && !asked
}

/// The digest of the model that the node closed the job with.
fn model(node: &NodeRecord) -> Option<&str> {
    let mut closed = node
        .metrics
        .iter()
        .rev()
        .filter(|line| line.event == "closed");
    closed.find_map(|line| line.fields.get("digest")?.as_str())
}

fn steps_per_s(node: &NodeRecord) -> Option<f64> {
    let mut steps = node.metrics.iter().filter(|line| line.event == "step");
    let first = steps.next()?.t;
    let (after, last) = steps.fold((0_u64, first), |(n, _), line| (n + 1, line.t));
    (last > first).then(|| after as f64 / (last - first))
}

/// CPU seconds over all lives of a node: a count that falls is that of a new process.
pub(super) fn cpu_s(usage: &[Usage]) -> f64 {
    let mut before = 0.0;
    let mut all = 0.0;
    for sample in usage {
        let new = sample.cpu_s < before;
        all += sample.cpu_s - if new { 0.0 } else { before };
        before = sample.cpu_s;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn metrics_are_those_of_the_run_that_was_made_by_hand() {
        let record = sample::record();
        for (metric, expected) in [
            ("time_to_accuracy(0.5)", Some(20.0)),
            ("time_to_accuracy(0.8)", Some(60.0)),
            ("time_to_accuracy(0.82)", Some(100.0)),
            ("time_to_accuracy(0.9)", None),
            ("time_to_accuracy(0.8)@a-0", None),
            ("time_to_loss(0.5)", Some(20.0)),
            ("bytes_to_accuracy(0.5)", Some(1600.0)),
            ("bytes_to_accuracy(0.8)@b", Some(1200.0)),
            ("samples_to_accuracy(0.8)", Some(1000.0)),
            ("accuracy_at(30)", Some(0.5)),
            ("accuracy_at(10)", None),
            ("accuracy_at(60)", Some((0.5 + 0.8 + 0.8) / 3.0)),
            ("accuracy", Some(0.82)),
            ("accuracy@a-0", Some(0.5)),
            ("best_accuracy", Some(0.8)),
            ("steps", Some(40.0 + 50.0 + 33.0)),
            ("steps@a", Some(90.0)),
            ("steps@*", Some(40.0 + 50.0 + 33.0)),
            ("steps@any", Some(40.0 + 50.0 + 33.0)),
            ("field(any, step, samples, p50)", Some(8.0)),
            ("samples@b", Some(264.0)),
            ("steps_per_s@a-1", Some(0.5)),
            ("duration_s", Some(100.0)),
            ("bytes_sent", Some(8000.0)),
            ("bytes_sent@a", Some(6000.0)),
            ("bytes_delivered@b", Some(1800.0)),
            ("frames_dropped", Some(6.0)),
            ("cpu_s", Some(120.0)),
            ("peak_rss_bytes", Some(3.0 * 1_048_576.0)),
            ("views", Some(2.0)),
            ("views@a-0", Some(1.0)),
            ("compute_share", Some(0.6)),
            ("closed_nodes", Some(2.0)),
            ("distinct_models", Some(1.0)),
            ("distinct_models@a-0", None),
            ("failed_nodes", Some(0.0)),
            // a-1 steps at 42 s, b at 42 s.
            ("recovery_s", Some(2.0)),
            ("switch_cpu_share", Some(0.05)),
            ("field(b, step, train_loss, min)", Some(2.0 - 0.99)),
            ("field(*, step, samples, p50)", Some(8.0)),
            ("field(b, step, step, p99)", Some(98.04)),
            ("field(a-0, closed, val_accuracy, last)", None),
            ("field(a-0, closed, val_accuracy, count)", Some(0.0)),
        ] {
            let found = metric.parse().ok().map(|measure| value(&record, &measure));
            let close = match (found.flatten(), expected) {
                (Some(found), Some(expected)) => {
                    (found - expected).abs() < 1e-9 * expected.abs().max(1.0)
                }
                (found, expected) => found == expected,
            };
            assert!(close, "{metric}: {found:?}, expected {expected:?}");
        }
    }

    #[test]
    fn a_survivor_that_never_goes_on_means_no_recovery_and_one_that_closed_owes_none() {
        let of = |record: &Record| recovery_s(record, &[0, 1, 2]);
        let mut record = sample::record();
        record.nodes[2].metrics.retain(|line| line.t < 40.0);
        assert_eq!(of(&record), None);
        record.nodes[2].metrics.push(Metric {
            t: 41.0,
            event: "closed".into(),
            fields: serde_json::Map::new(),
        });
        assert_eq!(of(&record), Some(2.0));
    }

    #[test]
    fn a_program_failed_if_it_ended_with_an_error_that_nobody_asked_for() {
        let mut record = sample::record();
        let exit = |t, rank, detail: &str| Mark {
            t,
            nodes: vec![rank],
            what: "exit".into(),
            detail: detail.into(),
        };
        record.marks.push(exit(40.1, 0, "killed by signal 9"));
        record.marks.push(exit(100.0, 1, "status 0"));
        let failed = |record: &Record| value(record, &"failed_nodes".parse().ok()?);
        assert_eq!(failed(&record), Some(0.0));
        record.marks.push(exit(100.0, 2, "status 1\nout of memory"));
        assert_eq!(failed(&record), Some(1.0));
    }

    #[test]
    fn cpu_seconds_go_on_counting_after_a_restart() {
        let usage = [1.0, 3.0, 0.5, 2.0].map(|cpu_s| Usage {
            t: 0.0,
            cpu_s,
            rss_bytes: 0,
        });
        assert_eq!(cpu_s(&usage), 5.0);
    }
}

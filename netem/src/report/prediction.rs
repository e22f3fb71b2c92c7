//! What cuts promised beside what was measured under them.

use super::cuts::{Cut, Cuts};
use super::throughput::{Stretch, mean, stretches};
use crate::link::NodeIndex;
use crate::record::Record;

/// Samples per second promised over those measured where training ran steadily; none where one of them is not known.
pub(super) fn promise_kept(cut: &Cut, stretches: &[Stretch]) -> Option<f64> {
    let own = stretches
        .iter()
        .filter(|stretch| stretch.view == cut.number);
    let measured = mean(own).filter(|rate| *rate > 0.0)?;
    Some(cut.promised? / measured)
}

/// What a share `q` of the cuts were off at most, by nearest rank: the promised time of a step against the measured one, 0.1 for 10 %.
pub(super) fn prediction_error(record: &Record, nodes: &[NodeIndex], q: f64) -> Option<f64> {
    let cuts = Cuts::of(record);
    let stretches = stretches(record, &cuts, nodes);
    // Times are the inverse of rates.
    let off = |cut: &Cut| Some((1.0 / promise_kept(cut, &stretches)? - 1.0).abs());
    let mut all: Vec<f64> = cuts.all.iter().filter_map(off).collect();
    all.sort_by(f64::total_cmp);
    let rank = (q.clamp(0.0, 1.0) * all.len() as f64).ceil() as usize;
    all.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample::{cut, line, pipeline, stage_step};
    use super::*;
    use crate::record::Metric;

    #[test]
    fn a_promise_is_held_against_what_was_measured() {
        let mut record = pipeline();
        record.marks.clear();
        for node in &mut record.nodes {
            node.metrics.clear();
        }
        // A step of 32 samples takes a second under both cuts; half a second more was promised of the second one.
        let mut metrics: Vec<Metric> = Vec::new();
        for (number, from, promised, t) in [(1u64, 0u64, 1.0, 1.0), (2, 8, 1.5, 20.0)] {
            metrics.push(line(
                t,
                "view",
                json!({"number": number, "global_batch": 32}),
            ));
            let mut told = cut(t, number, from, &[("a", 0, 4)]);
            told.fields.insert("step_s".into(), promised.into());
            metrics.push(told);
            metrics.extend((1..=8).map(|i| stage_step(t + i as f64, from + i, number)));
        }
        record.nodes[0].metrics = metrics;
        let off = |nodes: &[NodeIndex], q| prediction_error(&record, nodes, q);
        assert!(off(&[0], 0.5).is_some_and(|off| off < 1e-9));
        assert!(off(&[0], 1.0).is_some_and(|off| (off - 0.5).abs() < 1e-9));
        assert_eq!(off(&[1], 0.5), None, "no first stage");
    }
}

//! The cuts of a pipeline as the nodes wrote them down (`cut` lines): who hosts which blocks from which step on, and when all of
//! them worked so.
//!
//! A cut is known by its number. Step lines name the newest view, also while an older cut still works, so a step belongs to the
//! newest cut that it lies behind.

use std::collections::BTreeMap;

use serde_json::Value;

use super::recovery::peer;
use crate::link::NodeIndex;
use crate::record::{Metric, NodeRecord, Record};

/// One stage of a cut: blocks `first..end` on a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stage {
    /// None: a peer that is no node of the record.
    pub(super) host: Option<NodeIndex>,
    pub(super) first: u64,
    /// One past the last.
    pub(super) end: u64,
    /// The other hosts, where it has several.
    pub(super) fellows: Vec<NodeIndex>,
}

impl Stage {
    pub(super) fn hosts(&self) -> impl Iterator<Item = NodeIndex> {
        self.host.into_iter().chain(self.fellows.iter().copied())
    }
}

/// One cut.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cut {
    pub(super) number: u64,
    /// The step that it goes on from.
    pub(super) from_step: u64,
    /// First to last.
    pub(super) stages: Vec<Stage>,
    /// Samples per second that it promised.
    pub(super) promised: Option<f64>,
    /// When each node first wrote of it, not empty.
    told: BTreeMap<NodeIndex, f64>,
}

impl Cut {
    /// When the first node knew of it.
    pub(super) fn at(&self) -> f64 {
        self.told.values().copied().fold(f64::INFINITY, f64::min)
    }

    /// When the first node but `victim` knew of it.
    pub(super) fn at_without(&self, victim: NodeIndex) -> Option<f64> {
        let others = self.told.iter().filter(|(node, _)| **node != victim);
        others.map(|(_, t)| *t).reduce(f64::min)
    }

    pub(super) fn hosts(&self) -> impl Iterator<Item = NodeIndex> {
        self.stages.iter().flat_map(Stage::hosts)
    }

    /// The number of the stage on `node`.
    pub(super) fn stage_on(&self, node: NodeIndex) -> Option<usize> {
        let mut stages = self.stages.iter();
        stages.position(|stage| stage.hosts().any(|host| host == node))
    }
}

/// All cuts of a run.
#[derive(Debug)]
pub(super) struct Cuts<'a> {
    record: &'a Record,
    /// By number.
    pub(super) all: Vec<Cut>,
    /// Whether nodes write when their stage is in place.
    places: bool,
}

impl<'a> Cuts<'a> {
    pub(super) fn of(record: &'a Record) -> Self {
        let peers: BTreeMap<&str, NodeIndex> = record
            .nodes
            .iter()
            .enumerate()
            .filter_map(|(rank, node)| Some((peer(node)?, rank)))
            .collect();
        let ranked = record.nodes.iter().enumerate();
        let mut told: Vec<(NodeIndex, &Metric)> = ranked
            .flat_map(|(rank, node)| lines(node, "cut").map(move |line| (rank, line)))
            .collect();
        told.sort_by(|a, b| a.1.t.total_cmp(&b.1.t));
        let mut all: BTreeMap<u64, Cut> = BTreeMap::new();
        for (rank, line) in told {
            let Some(read) = read(rank, line, &peers) else {
                continue;
            };
            let batch = record.nodes.get(rank).and_then(|node| {
                let mut views = lines(node, "view");
                let view = views.find(|view| whole(view, "number") == Some(read.number));
                view?.number("global_batch")
            });
            let promised = line.number("step_s").filter(|seconds| *seconds > 0.0);
            let promised = batch.zip(promised).map(|(batch, seconds)| batch / seconds);
            let read = Cut { promised, ..read };
            let known = all.entry(read.number).or_insert_with(|| read.clone());
            // Of two that were proposed at once under one number the later one is what the peers settled on.
            if (known.from_step, &known.stages) == (read.from_step, &read.stages) {
                known.told.entry(rank).or_insert(line.t);
                // Who does not know all profiles makes no promise.
                known.promised = known.promised.or(read.promised);
            } else {
                *known = read;
            }
        }
        let mut nodes = record.nodes.iter();
        Self {
            record,
            all: all.into_values().collect(),
            places: nodes.any(|node| lines(node, "in_place").next().is_some()),
        }
    }

    /// The newest that anybody knew of at `t`.
    pub(super) fn newest(&self, t: f64) -> Option<&Cut> {
        self.all.iter().rev().find(|cut| cut.at() <= t)
    }

    /// The one in which a step was made.
    pub(super) fn of_step(&self, line: &Metric) -> Option<&Cut> {
        let (view, step) = (whole(line, "view")?, whole(line, "step")?);
        let mut newest_first = self.all.iter().rev();
        newest_first.find(|cut| cut.number <= view && cut.from_step < step)
    }

    /// When the last host of `cut` made its first step in it, or in a later one.
    pub(super) fn works_at(&self, cut: &Cut) -> Option<f64> {
        let mut last = None;
        for stage in &cut.stages {
            let first = self.first_step(stage.host?, cut)?;
            last = Some(last.map_or(first, |so_far: f64| so_far.max(first)));
        }
        last
    }

    /// The first cut among `cuts` (in the order of time) in which all hosts made a step before the next one came, with the moment, and
    /// those before it. None if none held.
    pub(super) fn held<'c>(&self, cuts: &[&'c Cut]) -> (Vec<&'c Cut>, Option<f64>) {
        let mut tried = vec![];
        for (place, cut) in cuts.iter().enumerate() {
            tried.push(*cut);
            let next = cuts.get(place + 1).map(|next| next.at());
            let works = self.works_at(cut);
            if let Some(works) = works.filter(|works| next.is_none_or(|next| *works <= next)) {
                return (tried, Some(works));
            }
        }
        (tried, None)
    }

    /// Those of higher numbers than `cut` that came at `t` or later, in the order of time.
    pub(super) fn after(&self, t: f64, cut: &Cut) -> Vec<&Cut> {
        let newer = self.all.iter().filter(|newer| newer.number > cut.number);
        let mut newer: Vec<&Cut> = newer.filter(|newer| newer.at() >= t).collect();
        newer.sort_by(|a, b| a.at().total_cmp(&b.at()));
        newer
    }

    fn first_step(&self, host: NodeIndex, cut: &Cut) -> Option<f64> {
        let node = self.record.nodes.get(host)?;
        let in_view = |line: &&Metric| whole(line, "view").is_some_and(|view| view >= cut.number);
        let mut from = cut.at();
        if self.places {
            // A step of the cut before may come to the journal after the news of this one.
            let mut placed = lines(node, "in_place").filter(in_view);
            from = placed.find(|line| line.t >= from)?.t;
        }
        let mut steps = lines(node, "step").filter(in_view);
        let first = steps.find(|line| {
            line.t >= from && whole(line, "step").is_some_and(|step| step > cut.from_step)
        });
        first.map(|line| line.t)
    }
}

/// Lines of one event.
pub(super) fn lines<'a>(
    node: &'a NodeRecord,
    event: &'static str,
) -> impl Iterator<Item = &'a Metric> {
    node.metrics.iter().filter(move |line| line.event == event)
}

/// A field that is a whole number.
pub(super) fn whole(line: &Metric, field: &str) -> Option<u64> {
    line.fields.get(field)?.as_u64()
}

fn read(rank: NodeIndex, line: &Metric, peers: &BTreeMap<&str, NodeIndex>) -> Option<Cut> {
    let host = |of: &Value| peers.get(of.get("host")?.as_str()?).copied();
    let stage = |stage: &Value| {
        stage.get("host")?.as_str()?;
        Some(Stage {
            host: host(stage),
            first: stage.get("first")?.as_u64()?,
            end: stage.get("end")?.as_u64()?,
            fellows: match stage.get("shares").and_then(Value::as_array) {
                Some(shares) => shares.iter().skip(1).filter_map(host).collect(),
                None => Vec::new(),
            },
        })
    };
    let stages = line.fields.get("stages")?.as_array()?;
    Some(Cut {
        number: whole(line, "view")?,
        from_step: whole(line, "from_step")?,
        stages: stages.iter().map(stage).collect::<Option<_>>()?,
        promised: None,
        told: [(rank, line.t)].into(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample::{cut, pipeline, stage_step};
    use super::*;

    #[test]
    fn of_two_cuts_under_one_number_the_later_one_holds() {
        let mut record = pipeline();
        let news = cut(10.8, 2, 4, &[("c", 0, 10), ("a", 10, 20)]);
        record.nodes[2].metrics.push(news);
        let cuts = Cuts::of(&record);
        let of_2 = cuts.all.iter().find(|cut| cut.number == 2).unwrap();
        assert_eq!((of_2.from_step, of_2.hosts().collect()), (4, vec![2, 0]));
        assert_eq!((of_2.at(), cuts.all.len()), (10.8, 2));
    }

    #[test]
    fn a_step_belongs_to_the_newest_cut_that_it_lies_behind() {
        let record = pipeline();
        let cuts = Cuts::of(&record);
        let of = |step, view| {
            cuts.of_step(&stage_step(11.0, step, view))
                .map(|cut| cut.number)
        };
        assert_eq!(of(5, 2), Some(1));
        assert_eq!(of(6, 2), Some(2));
        assert_eq!(of(6, 1), Some(1));
        assert_eq!(of(6, 9), Some(2));
        assert_eq!((of(0, 1), of(6, 0)), (None, None));
    }

    #[test]
    fn lines_that_are_no_cuts_are_left_out() {
        let mut record = pipeline();
        for line in &mut record.nodes[0].metrics {
            if line.event == "cut" {
                line.fields.insert("stages".into(), "none".into());
            }
        }
        record.nodes.truncate(1);
        assert!(Cuts::of(&record).all.is_empty());
    }
}

//! A small run made by hand for tests: three peers; `a-0` is killed at 40 s and the others go on in a view without it, the
//! last of them at 43 s. A look at 20 s shows 0.5, one at 60 s 0.8.

use serde_json::{Map, Value, json};

use crate::record::{Mark, Metric, NodeRecord, PairTraffic, Record, Traffic, Usage};

pub(super) fn line(t: f64, event: &str, fields: Value) -> Metric {
    let fields = match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    Metric {
        t,
        event: event.to_owned(),
        fields,
    }
}

fn step(t: f64) -> Metric {
    let fields = json!({"step": t, "train_loss": 2.0 - t / 100.0, "samples": 8, "computing_s": 0.6,
        "waiting_s": 0.3, "communicating_s": 0.1, "view": 1});
    line(t, "step", fields)
}

fn node(name: &str, group: &str, id: &str) -> NodeRecord {
    let view = json!({"number": 1, "members": ["aaaaaaaa", "bbbbbbbb", "cccccccc"]});
    NodeRecord {
        name: name.to_owned(),
        group: group.to_owned(),
        cpu: Some(0.4),
        peer: Some(id.to_owned()),
        metrics: vec![line(0.0, "view", view)],
        usage: vec![],
        lives: vec![[0.0, 100.0]],
    }
}

/// The run.
pub(super) fn record() -> Record {
    let mut nodes = vec![
        node("a-0", "a", "aaaaaaaa"),
        node("a-1", "a", "bbbbbbbb"),
        node("b", "b", "cccccccc"),
    ];
    for (rank, node) in nodes.iter_mut().enumerate() {
        let last = if rank == 0 { 40 } else { 100 };
        let gap = 1 + rank;
        for t in (gap..=last).step_by(gap) {
            node.metrics.push(step(t as f64));
            if t == 20 || t == 60 {
                let (accuracy, samples) = if t == 20 { (0.5, 400) } else { (0.8, 1000) };
                let fields = json!({"val_accuracy": accuracy, "val_loss": 1.0 - accuracy, "samples_mesh": samples});
                node.metrics.push(line(t as f64, "evaluated", fields));
            }
        }
        let usage = |t: f64, cpu_s: f64| Usage {
            t,
            cpu_s,
            rss_bytes: (rank as u64 + 1) << 20,
        };
        node.usage = vec![usage(1.0, 0.5), usage(50.0, 20.0), usage(99.0, 40.0)];
    }
    nodes[0].lives = vec![[0.0, 40.0]];
    for node in &mut nodes[1..] {
        let view = json!({"number": 2, "members": ["bbbbbbbb", "cccccccc"]});
        let at = node.metrics.partition_point(|line| line.t <= 41.0);
        node.metrics.insert(at, line(41.0, "view", view));
        let closed = json!({"digest": "d1", "val_accuracy": 0.82});
        node.metrics.push(line(100.0, "closed", closed));
    }
    let pair = |from, to, bytes| PairTraffic {
        from,
        to,
        bytes,
        delivered: bytes / 10 * 9,
        dropped: 2,
    };
    let sample = |t, bytes| Traffic {
        t,
        pairs: vec![pair(0, 1, bytes), pair(1, 2, 2 * bytes), pair(2, 1, bytes)],
    };
    let mark = |t, nodes: &[usize], what: &str| Mark {
        t,
        nodes: nodes.to_vec(),
        what: what.to_owned(),
        detail: String::new(),
    };
    Record {
        scenario: "sample".into(),
        variant: String::new(),
        engine: "lab".into(),
        seed: 1,
        duration_s: 100.0,
        machine: "two cores & <more>".into(),
        nodes,
        traffic: vec![sample(0.0, 0), sample(50.0, 1000), sample(100.0, 2000)],
        marks: vec![
            mark(40.0, &[0], "kill"),
            mark(70.0, &[], "partition"),
            mark(80.0, &[], "heal"),
        ],
        not_applied: vec![],
        switch_cpu_s: Some(5.0),
        trace_hash: None,
        speed: None,
    }
}

/// A cut on nodes of [`pipeline`], first stage to last: node, first block, one past the last.
pub(super) fn cut(t: f64, number: u64, from_step: u64, stages: &[(&str, u64, u64)]) -> Metric {
    let stage = |&(node, first, end): &(&str, u64, u64)| json!({"host": node.repeat(8), "first": first, "end": end});
    let stages: Vec<Value> = stages.iter().map(stage).collect();
    let fields = json!({"view": number, "from_step": from_step, "stages": stages});
    line(t, "cut", fields)
}

/// A line about a view.
pub(super) fn of_view(t: f64, event: &str, number: u64) -> Metric {
    line(t, event, json!({"view": number}))
}

/// A step of a pipeline of 32 samples.
pub(super) fn stage_step(t: f64, step: u64, view: u64) -> Metric {
    let fields = json!({"step": step, "samples": 32, "view": view, "computing_s": 0.6, "waiting_s": 0.2,
        "communicating_s": 0.0});
    line(t, "step", fields)
}

/// A mark on one node.
pub(super) fn mark(t: f64, node: usize, what: &str) -> Mark {
    Mark {
        t,
        nodes: vec![node],
        what: what.to_owned(),
        detail: String::new(),
    }
}

/// A pipeline made by hand: `a`, `b`, `c` host 20 blocks and make a step a second, `d` stands by. `b` is killed at 10.5 s with step
/// 10 made and step 5 recoverable; from 12 s on `a` and `c` make steps 6 to 12, one every two seconds.
pub(super) fn pipeline() -> Record {
    let names = ["a", "b", "c", "d"];
    let mut nodes = names.map(|name| NodeRecord {
        name: name.to_owned(),
        group: name.to_owned(),
        peer: Some(name.repeat(8)),
        lives: vec![[0.0, 30.0]],
        ..NodeRecord::default()
    });
    nodes[1].lives = vec![[0.0, 10.5]];
    let copied = |t, event| line(t, event, json!({"step": 5}));
    let fetched =
        |t, first, end| line(t, "fetched", json!({"step": 5, "first": first, "end": end}));
    for (rank, node) in nodes.iter_mut().enumerate() {
        let lines = &mut node.metrics;
        lines.push(cut(0.0, 1, 0, &[("a", 0, 6), ("b", 6, 13), ("c", 13, 20)]));
        if rank < 3 {
            lines.push(of_view(0.2, "in_place", 1));
            for step in 1..=10 {
                lines.push(stage_step(step as f64, step, 1));
                if step == 5 {
                    lines.push(copied(5.1, "line"));
                    lines.push(copied(5.4, "recoverable"));
                }
            }
        }
        if rank != 1 {
            lines.push(cut(10.7, 2, 5, &[("a", 0, 10), ("c", 10, 20)]));
        }
        let goes_on = match rank {
            0 => Some((fetched(11.0, 6, 10), 11.1, 12.0)),
            2 => Some((fetched(11.2, 10, 13), 11.3, 12.1)),
            _ => None,
        };
        if let Some((copies, placed, first)) = goes_on {
            lines.push(copies);
            lines.push(of_view(placed, "in_place", 2));
            if rank == 0 {
                lines.push(of_view(11.4, "fed", 2));
            }
            for step in 6..=12 {
                lines.push(stage_step(first + 2.0 * (step - 6) as f64, step, 2));
            }
            lines.push(line(27.0, "ending", json!({})));
        }
    }
    // What `d` keeps delays nobody.
    nodes[3].metrics.push(fetched(11.8, 0, 20));
    Record {
        scenario: "pipeline".into(),
        engine: "lab".into(),
        duration_s: 30.0,
        nodes: nodes.into(),
        marks: vec![mark(10.5, 1, "kill")],
        ..Record::default()
    }
}

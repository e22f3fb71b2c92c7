//! A small run made by hand for tests: three peers; `a-0` is killed at 40 s and the others go on in a view without it, the
//! last of them at 43 s. A look at 20 s shows 0.5, one at 60 s 0.8.

use serde_json::{Map, Value, json};

use crate::record::{Mark, Metric, NodeRecord, PairTraffic, Record, Traffic, Usage};

fn line(t: f64, event: &str, fields: Value) -> Metric {
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

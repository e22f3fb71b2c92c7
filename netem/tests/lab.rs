//! The lab with real processes: what a link does to them, what happens to nodes, and that nothing stays behind.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use skein_netem::lab::{self, Lab, LabError};
use skein_netem::link::Profile;
use skein_netem::record::{Metric, Record};
use skein_netem::scenario::{
    Action, Condition, End, Event, Line, Node, Pair, Program, Scenario, Sim, When,
};

/// Labs measure time: one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// None: this system does not permit a lab, and the reason is printed.
fn turn() -> Option<MutexGuard<'static, ()>> {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match lab::permitted() {
        Ok(()) => Some(turn),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn node(name: &str, words: &[&str]) -> Node {
    Node {
        name: name.into(),
        group: name.into(),
        cpu: None,
        memory: None,
        threads: 1,
        program: Program::Command(words.iter().map(|word| (*word).to_owned()).collect()),
        start: Some(Duration::ZERO),
        env: BTreeMap::new(),
        up: Line::default(),
        down: Line::default(),
    }
}

fn probe(name: &str, words: &str) -> Node {
    let words: Vec<&str> = ["{exe}", "probe"]
        .into_iter()
        .chain(words.split_whitespace())
        .collect();
    node(name, &words)
}

fn shell(name: &str, script: &str) -> Node {
    node(name, &["sh", "-c", script])
}

fn scenario(nodes: Vec<Node>) -> Scenario {
    Scenario {
        name: "test".into(),
        variant: String::new(),
        about: String::new(),
        seed: 1,
        repeat: 1,
        nodes,
        pairs: Vec::new(),
        events: Vec::new(),
        end: End {
            after: Duration::from_secs(60),
            job: false,
            exit: true,
            when: None,
        },
        expect: Vec::new(),
        job: None,
        sim: Sim::default(),
        folder: PathBuf::new(),
    }
}

fn testbed(out: &Path) -> Lab {
    Lab {
        exe: env!("CARGO_BIN_EXE_skein-netem").into(),
        out: out.into(),
    }
}

fn run(scenario: &Scenario) -> Record {
    let out = tempfile::tempdir().unwrap();
    let mut said = Vec::new();
    let mut progress = |t: f64, line: &str| said.push(format!("{t:.2} {line}"));
    let record = testbed(out.path()).run(scenario, &mut progress);
    let record = record.unwrap();
    assert!(record.duration_s < 59.0, "it does not end: {said:#?}");
    record
}

fn metric<'a>(record: &'a Record, node: usize, event: &str) -> &'a Metric {
    let of = &record.nodes[node];
    let found = of.metrics.iter().find(|line| line.event == event);
    found.unwrap_or_else(|| panic!("{} wrote no {event}: {:?}", of.name, record.marks))
}

fn delay(ms: u64) -> Line {
    Line {
        profile: Profile {
            delay: Duration::from_millis(ms),
            ..Profile::default()
        },
        trace: None,
    }
}

#[test]
fn two_nodes_reach_each_other_at_the_delay_that_is_set() {
    let Some(_turn) = turn() else { return };
    let mut of = scenario(vec![
        probe("asked", "echo"),
        probe(
            "asks",
            "round-trips --to 10.77.0.1 --count 50 --interval-ms 2",
        ),
    ]);
    for node in &mut of.nodes {
        node.up = delay(5);
        node.down = delay(5);
    }
    let record = run(&of);
    let found = metric(&record, 1, "round-trips");
    assert_eq!(found.number("received"), Some(50.0));
    let p50 = found.number("p50_ms").unwrap();
    assert!((20.0..25.0).contains(&p50), "{p50}");
    let carried = record.traffic.last().unwrap();
    assert!(
        carried
            .pairs
            .iter()
            .any(|pair| (pair.from, pair.to) == (1, 0)
                && pair.delivered >= 50 * 64
                && pair.delivered == pair.bytes)
    );
    assert!(record.marks.iter().all(|mark| mark.detail == "status 0"));
}

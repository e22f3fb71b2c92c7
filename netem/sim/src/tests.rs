//! Whole simulated runs on the toy problem, built by hand.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use skein_netem::link::Profile;
use skein_netem::scenario::{
    Action, Condition, End, Event, Line, Node, Problem, Program, Sim, When,
};

const JOB: &str = r#"
[model]
kind = "mlp"
[train]
batch = 8
optimiser = { kind = "sgd", lr = 0.05 }
[strategy.batching]
kind = "equal"
[strategy.exchange]
[evaluate]
every = 10
"#;

fn node(n: usize, cpu: f64, mbit: u64) -> Node {
    let line = Line {
        profile: Profile {
            delay: Duration::from_millis(2),
            ..Profile::rate(mbit * 1_000_000)
        },
        trace: None,
    };
    Node {
        name: format!("n-{n}"),
        group: "n".into(),
        cpu: Some(cpu),
        memory: None,
        threads: 1,
        program: Program::Skein { args: Vec::new() },
        start: Some(Duration::ZERO),
        env: BTreeMap::new(),
        up: line.clone(),
        down: line,
    }
}

fn scenario(nodes: Vec<Node>, job: &str, seconds: u64, seed: u64) -> Scenario {
    Scenario {
        name: "by-hand".into(),
        variant: String::new(),
        about: String::new(),
        seed,
        repeat: 1,
        pairs: Vec::new(),
        events: Vec::new(),
        end: End {
            after: Duration::from_secs(seconds),
            job: true,
            exit: false,
            when: None,
        },
        expect: Vec::new(),
        job: Some(format!("{job}[start]\npeers = {}\n", nodes.len())),
        sim: Sim {
            problem: Problem::Toy { dimensions: 32 },
            us_per_sample: 2500.0,
            ..Sim::default()
        },
        folder: ".".into(),
        nodes,
    }
}

fn at(seconds: f64, action: Action) -> Event {
    let when = When::At(Duration::from_secs_f64(seconds));
    Event { when, action }
}

fn finish(scenario: &Scenario) -> Record {
    match run(scenario, &mut |_, _| {}) {
        Ok(record) => record,
        Err(error) => panic!("{error}"),
    }
}

fn count(record: &Record, rank: usize, event: &str) -> usize {
    let metrics = &record.nodes[rank].metrics;
    metrics
        .iter()
        .filter(|metric| metric.event == event)
        .count()
}

fn last(record: &Record, rank: usize, event: &str, field: &str) -> Option<f64> {
    let metrics = record.nodes[rank].metrics.iter().rev();
    metrics
        .filter(|metric| metric.event == event)
        .find_map(|metric| metric.number(field))
}

#[test]
fn unequal_peers_train_by_their_shares_and_close_with_one_model() {
    for waiting in ["never", "all"] {
        let nodes = vec![node(0, 0.8, 50), node(1, 0.4, 20), node(2, 0.2, 5)];
        let exchange = format!("[strategy.exchange]\nwaiting = \"{waiting}\"");
        let job = JOB.replace("[strategy.exchange]", &exchange);
        let record = finish(&scenario(
            nodes,
            &format!("{job}[stop]\nseconds = 20\n"),
            60,
            1,
        ));
        let steps: Vec<f64> = (0..3)
            .map(|rank| last(&record, rank, "step", "step").unwrap_or(0.0))
            .collect();
        if waiting == "never" {
            assert!((steps[0] / steps[1] - 2.0).abs() < 0.1, "{steps:?}");
            assert!((steps[1] / steps[2] - 2.0).abs() < 0.1, "{steps:?}");
        } else {
            assert!((steps[0] - steps[2]).abs() <= 1.0, "{steps:?}");
            // All wait for the slowest, which takes 0.1 s for a step and finds the packets of the others there.
            assert!((150.0..=200.0).contains(&steps[0]), "{steps:?}");
        }
        assert!(
            (0..3).all(|rank| count(&record, rank, "closed") == 1),
            "{waiting}"
        );
        let loss = last(&record, 0, "evaluated", "val_loss").unwrap_or(1.0);
        assert!(loss < 0.05, "{waiting}: {loss}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let hash = |seed| {
        let nodes = (0..6).map(|n| node(n, 0.5, 20)).collect();
        let mut of = scenario(nodes, &format!("{JOB}[stop]\nseconds = 15\n"), 40, seed);
        for node in &mut of.nodes {
            node.up.profile.loss = 0.02;
            node.up.profile.jitter = Duration::from_millis(1);
        }
        of.events = vec![
            at(5.0, Action::Kill(vec![2])),
            at(8.0, Action::Join(vec![2])),
        ];
        let record = finish(&of);
        (record.trace_hash, record.nodes)
    };
    let (first, again, other) = (hash(1), hash(1), hash(2));
    assert!(first == again, "{:?} and {:?}", first.0, again.0);
    assert_ne!(first.0, other.0);
}

#[test]
fn a_kill_a_stop_and_a_partition_heal_and_are_marked() {
    for seed in 0..8 {
        let nodes = (0..5).map(|n| node(n, 0.3, 20)).collect();
        let mut of = scenario(nodes, &format!("{JOB}[stop]\nseconds = 170\n"), 300, seed);
        of.events = vec![
            at(10.0, Action::Kill(vec![0])),
            at(20.0, Action::Restart(vec![0])),
            at(35.0, Action::Stop(vec![1])),
            at(50.0, Action::Continue(vec![1])),
            at(70.0, Action::Partition(vec![vec![0, 3]])),
            at(85.0, Action::Heal),
            at(110.0, Action::Leave(vec![4])),
        ];
        let record = finish(&of);
        let marks: Vec<&str> = record.marks.iter().map(|mark| mark.what.as_str()).collect();
        let expected = [
            "kill",
            "restart",
            "stop",
            "continue",
            "partition",
            "heal",
            "leave",
        ];
        assert_eq!(marks, expected, "seed {seed}");
        for rank in 0..4 {
            assert_eq!(
                count(&record, rank, "closed"),
                1,
                "seed {seed}, node {rank}"
            );
        }
        assert_eq!(count(&record, 4, "closed"), 0, "seed {seed}");
        assert_eq!(record.nodes[0].lives.len(), 2, "seed {seed}");
    }
}

#[test]
fn an_event_waits_for_its_condition_and_a_condition_ends_a_run() {
    let reaches = |rank, step: f64| Condition {
        nodes: vec![rank],
        event: "step".into(),
        field: Some((
            "step".into(),
            skein_netem::scenario::Comparison::AtLeast,
            step,
        )),
    };
    let nodes = (0..2).map(|n| node(n, 0.5, 20)).collect();
    let mut of = scenario(nodes, &format!("{JOB}[stop]\nsteps = 10000\n"), 60, 3);
    of.events = vec![Event {
        when: When::After(reaches(0, 50.0), Duration::from_secs(1)),
        action: Action::Kill(vec![1]),
    }];
    of.end.when = Some(reaches(0, 200.0));
    let record = finish(&of);
    let reached = record.nodes[0]
        .metrics
        .iter()
        .find(|metric| metric.number("step") == Some(50.0))
        .map(|metric| metric.t);
    let killed = record.marks[0].t;
    assert!(reached.is_some_and(|t| (killed - t - 1.0).abs() < 1e-3));
    assert_eq!(last(&record, 0, "step", "step"), Some(200.0));
}

#[test]
fn a_slow_link_holds_packets_back_and_the_bytes_stay_within_its_rate() {
    let mut nodes: Vec<Node> = (0..2).map(|n| node(n, 1.0, 50)).collect();
    nodes[1].down.profile.rate = Some(20_000);
    let mut of = scenario(nodes, &format!("{JOB}[stop]\nseconds = 30\n"), 90, 4);
    of.sim.problem = Problem::Toy { dimensions: 20_000 };
    let record = finish(&of);
    let carried = record.traffic.last().map(|traffic| traffic.pairs.clone());
    let carried = carried.unwrap_or_default();
    let to_slow = carried
        .iter()
        .find(|pair| pair.to == 1)
        .map(|pair| pair.delivered);
    let bound = 20_000.0 / 8.0 * record.duration_s;
    let measured = to_slow.unwrap_or(0) as f64;
    assert!(
        (0.3 * bound..bound).contains(&measured),
        "{measured} of {bound}"
    );
}

#[test]
fn a_program_cannot_be_simulated() {
    let mut of = scenario(vec![node(0, 1.0, 10)], JOB, 1, 1);
    of.nodes[0].program = Program::Command(vec!["true".into()]);
    let error = run(&of, &mut |_, _| {}).err();
    assert!(matches!(error, Some(SimError::Program { .. })), "{error:?}");
}

#[test]
fn a_stopped_peer_can_be_killed_and_a_run_ends_when_all_programs_have() {
    let nodes = (0..2).map(|n| node(n, 0.5, 20)).collect();
    let mut of = scenario(nodes, &format!("{JOB}[stop]\nsteps = 10000\n"), 100, 5);
    of.events = vec![
        at(10.0, Action::Stop(vec![0])),
        at(12.0, Action::Kill(vec![0])),
        at(14.0, Action::Continue(vec![0])),
        at(20.0, Action::Leave(vec![1])),
        at(30.0, Action::Join(vec![1])),
        at(40.0, Action::Kill(vec![1])),
    ];
    of.end.exit = true;
    let record = finish(&of);
    let lives: Vec<f64> = record.nodes[0].lives.iter().map(|life| life[1]).collect();
    assert_eq!(lives, [12.0]);
    assert_eq!(record.nodes[1].lives.len(), 2);
    assert_eq!(record.duration_s, 40.0);
    assert!(record.marks.iter().all(|mark| mark.what != "deadline"));
}

#[test]
fn an_event_that_repeats_draws_one_of_its_nodes_each_time() {
    let nodes = (0..4).map(|n| node(n, 0.5, 20)).collect();
    let mut of = scenario(nodes, &format!("{JOB}[stop]\nsteps = 10000\n"), 30, 6);
    of.events = vec![Event {
        when: When::Every {
            from: Duration::from_secs(5),
            until: Duration::from_secs(25),
            period: Duration::from_secs(1),
        },
        action: Action::SetCpu {
            nodes: vec![0, 1, 2, 3],
            share: 0.3,
        },
    }];
    let record = finish(&of);
    let drawn = record.marks.iter().filter(|mark| mark.what == "cpu");
    assert!(drawn.clone().all(|mark| mark.nodes.len() == 1));
    let different: std::collections::BTreeSet<usize> =
        drawn.flat_map(|mark| mark.nodes.clone()).collect();
    assert!(different.len() > 1, "{different:?}");
    let last = record.marks.last().map(|mark| mark.what.as_str());
    assert_eq!(last, Some("deadline"));
}

/// Each method trains the same model on real data, and all peers close with one and the same.
#[test]
fn every_method_trains_and_closes_with_one_model() {
    const METHODS: [&str; 13] = [
        "skein",
        "dlion",
        "dense",
        "gaia",
        "ako",
        "hop",
        "ssp",
        "asp",
        "adsp",
        "adacomm",
        "fixed-adacomm",
        "local-sgd",
        "diloco",
    ];
    for method in METHODS {
        let nodes = vec![node(0, 0.8, 50), node(1, 0.4, 20), node(2, 0.4, 20)];
        let job = format!(
            "seed = 3\n[model]\nkind = \"mlp\"\nhidden = [16]\n[train]\nbatch = 16\n\
             optimiser = {{ kind = \"sgd\", lr = 0.05 }}\n[strategy.exchange]\nlike = \"{method}\"\n\
             [strategy.knowledge]\nevery = 5.0\n[evaluate]\nsamples = 200\n[stop]\nseconds = 30\n"
        );
        let mut scenario = scenario(nodes, &job, 90, 1);
        scenario.sim.problem = Problem::Job;
        let record = finish(&scenario);
        let digests: Vec<Option<String>> = (0..3)
            .map(|rank| {
                let closed = record.nodes[rank]
                    .metrics
                    .iter()
                    .find(|metric| metric.event == "closed")?;
                Some(closed.fields.get("digest")?.as_str()?.to_owned())
            })
            .collect();
        assert!(digests[0].is_some(), "{method}: not closed");
        assert!(
            digests.iter().all(|digest| *digest == digests[0]),
            "{method}: {digests:?}"
        );
        let accuracy = last(&record, 0, "closed", "val_accuracy").unwrap_or(0.0);
        assert!(accuracy > 0.7, "{method}: accuracy {accuracy}");
    }
}

/// DLion's dynamic batching: a peer that is throttled to a third has its new share within five seconds.
#[test]
fn a_throttled_peer_has_its_new_share_within_five_seconds() {
    let nodes = vec![node(0, 0.8, 50), node(1, 0.8, 50), node(2, 0.4, 20)];
    let job = JOB.replace("kind = \"equal\"", "kind = \"weighted\"\nglobal = 96");
    let mut scenario = scenario(nodes, &format!("{job}[stop]\nseconds = 40\n"), 60, 1);
    let share = 0.8 / 3.0;
    scenario.events = vec![at(
        20.0,
        Action::SetCpu {
            nodes: vec![0],
            share,
        },
    )];
    let record = finish(&scenario);
    let views = record.nodes[0]
        .metrics
        .iter()
        .filter(|metric| metric.event == "view");
    let shares: Vec<(f64, f64, f64)> = views
        .filter_map(|view| {
            let batches = view.fields.get("batches")?.as_array()?;
            let members = view.fields.get("members")?.as_array()?;
            let me = record.nodes[0].peer.as_ref()?.get(..8)?;
            let at = members
                .iter()
                .position(|member| member.as_str() == Some(me))?;
            let sum: f64 = batches.iter().filter_map(|batch| batch.as_f64()).sum();
            Some((view.t, batches[at].as_f64()?, sum))
        })
        .collect();
    assert!(shares.iter().all(|(_, _, sum)| *sum == 96.0), "{shares:?}");
    let of = |from: f64, until: f64| {
        let last = shares.iter().rev().find(|(t, ..)| *t <= until);
        last.filter(|(t, ..)| *t >= from)
            .map(|(_, batch, _)| *batch)
    };
    let before = of(0.0, 20.0).unwrap_or(0.0);
    let after = of(20.0, 25.0).unwrap_or(before);
    // Of 0.8 + 0.8 + 0.4 it has two fifths, of 0.27 + 0.8 + 0.4 less than a fifth.
    assert!((before - 38.0).abs() < 6.0, "{shares:?}");
    assert!((after - 17.5).abs() < 5.0, "{shares:?}");
}

/// A network falls apart for about as long as silence is borne, and connections outlive it: each side hears late what the other has long
/// given up. There are fewer peers than the job needed to begin.
#[test]
fn a_kill_and_a_short_partition_never_keep_the_rest_from_closing() {
    for seed in 0..60u32 {
        let nodes = (0..4).map(|n| node(n, 0.5, 100)).collect();
        let job = format!("{JOB}[stop]\nseconds = 14\n");
        let mut of = scenario(nodes, &job, 80, seed.into());
        let apart = 5.0 + f64::from(seed % 7);
        of.events = vec![
            at(4.0, Action::Kill(vec![3])),
            at(apart, Action::Partition(vec![vec![(seed % 3) as usize]])),
            at(apart + 2.7 + f64::from(seed % 20) / 20.0, Action::Heal),
        ];
        let record = finish(&of);
        for rank in 0..3 {
            let closed = count(&record, rank, "closed");
            assert_eq!(closed, 1, "seed {seed}, node {rank}");
        }
    }
}

/// Looks see the mean of the weights, which jump to and fro at a high rate; training itself does not notice.
#[test]
fn averaged_weights_do_better_and_training_goes_on_as_without_them() {
    let runs = [true, false].map(|average| {
        let nodes = vec![node(0, 0.8, 50), node(1, 0.4, 20)];
        let job = format!(
            "seed = 3\n[model]\nkind = \"mlp\"\nhidden = [16]\n[train]\nbatch = 4\n\
             optimiser = {{ kind = \"sgd\", lr = 0.1 }}\n[strategy.knowledge]\nevery = 0\n\
             [evaluate]\nsamples = 250\nevery = 20\naverage = {average}\n[stop]\nseconds = 20\n"
        );
        let mut scenario = scenario(nodes, &job, 60, 1);
        scenario.sim.problem = Problem::Job;
        let record = finish(&scenario);
        let numbers = |event: &str, field: &str| -> Vec<f64> {
            let metrics = record.nodes[0].metrics.iter();
            let of_kind = metrics.filter(|metric| metric.event == event);
            of_kind.filter_map(|metric| metric.number(field)).collect()
        };
        (
            numbers("step", "train_loss"),
            numbers("evaluated", "val_loss"),
        )
    });
    let [(averaged, looks), (plain, plain_looks)] = runs;
    assert!(plain.len() > 200 && averaged == plain);
    let late = |looks: &[f64]| {
        let late = &looks[looks.len() / 2..];
        late.iter().sum::<f64>() / late.len() as f64
    };
    let (with, without) = (late(&looks), late(&plain_looks));
    assert!(with < 0.9 * without, "{with} {without}");
}

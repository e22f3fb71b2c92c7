//! Whole simulated runs from scenario files: a thousand peers, and the same bytes from the same seed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use skein_netem::record::Record;
use skein_netem::scenario::{self, Scenario};
use skein_netem_sim as sim;

fn read(text: &str, seed: u64) -> Scenario {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scenario.toml");
    std::fs::write(&path, text).unwrap();
    let campaign = scenario::load(&path, &[], Some(seed)).unwrap_or_else(|error| panic!("{error}"));
    campaign.variants.into_iter().next().unwrap()
}

fn run(scenario: &Scenario) -> Record {
    sim::run(scenario, &mut |_, _| {}).unwrap_or_else(|error| panic!("{error}"))
}

fn closed(record: &Record) -> usize {
    let closes = |node: &&skein_netem::record::NodeRecord| {
        node.metrics.iter().any(|metric| metric.event == "closed")
    };
    record.nodes.iter().filter(closes).count()
}

/// Kills and joins all the while, 2 % of all frames lost: the checks of the simulator hold after every event, and those that
/// are left close with one model.
#[test]
fn a_thousand_peers_train_under_churn_and_loss_and_close_with_one_model() {
    let text = r#"
        name = "thousand"
        about = "a thousand peers, churn, 2 % loss"
        [job]
        model.kind = "mlp"
        train = { batch = 8, optimiser = { kind = "sgd", lr = 0.05 } }
        strategy.exchange.commit = { steps = 4 }
        evaluate.every = 4
        stop.seconds = 10
        start.peers = 1000
        [[node]]
        name = "peer"
        count = 1000
        up = { delay = "3ms", jitter = "1ms", loss = 0.02 }
        down = { delay = "3ms" }
        [[event]]
        every = "1s"
        from = "5s"
        until = "9s"
        kill = "peer"
        [[event]]
        every = "2s"
        from = "6s"
        until = "9s"
        join = "peer"
        [end]
        after = "90s"
        job = true
        [sim]
        problem = { toy = 16 }
        us_per_sample = 400000
    "#;
    let record = run(&read(text, 1));
    println!(
        "{:.1} virtual seconds, {:.2} per real second",
        record.duration_s,
        record.speed.unwrap_or(0.0)
    );
    let kills = record
        .marks
        .iter()
        .filter(|mark| mark.what == "kill")
        .count();
    let joins = record
        .marks
        .iter()
        .filter(|mark| mark.what == "join")
        .count();
    assert_eq!((kills, joins), (5, 2));
    assert!(closed(&record) >= 990, "{} closed", closed(&record));
}

/// The real model on real data, twice: every byte of the record but its speed is the same.
#[test]
fn the_same_seed_trains_the_same_model_to_the_byte() {
    let text = r#"
        name = "twice"
        about = "three peers, the digits, lossy lines, one killed"
        [job]
        model.kind = "mlp"
        data.source = "digits"
        train = { batch = 8, optimiser = { kind = "sgd", lr = 0.05 } }
        strategy.exchange.most = 0.1
        evaluate.every = 20
        stop.steps = 150
        start.peers = 3
        [[node]]
        name = "peer"
        count = 3
        cpu = 0.5
        link = "wifi"
        [[event]]
        at = "5s"
        kill = "peer-1"
        [end]
        after = "60s"
        job = true
        [sim]
        us_per_sample = 4000
    "#;
    let once = |seed| {
        let mut record = run(&read(text, seed));
        record.speed = None;
        record
    };
    let (first, again, other) = (once(1), once(1), once(2));
    assert_eq!(closed(&first), 2);
    assert!(
        first == again,
        "{:?} and {:?}",
        first.trace_hash,
        again.trace_hash
    );
    assert_ne!(first.trace_hash, other.trace_hash);
    let looks = first.nodes[0].metrics.iter().rev();
    let accuracy = looks
        .filter_map(|metric| metric.number("val_accuracy"))
        .next();
    assert!(accuracy > Some(0.7), "{accuracy:?}");
}

#[test]
fn a_violation_names_the_seed_and_the_command_that_replays_it() {
    let broken = sim::SimError::Broken {
        what: "two peers closed with different models".into(),
        seconds: 12.5,
        scenario: "churn".into(),
        file: "churn.toml".into(),
        seed: 7,
    };
    let text = broken.to_string();
    assert!(
        text.contains("seed 7") && text.contains("--engine sim --seed 7"),
        "{text}"
    );
}

/// A hybrid of five unequal devices with the profile of a scenario that ships.
fn staged(more: &str) -> Scenario {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios");
    let text = format!(
        r#"
        name = "staged"
        about = "a hybrid on unequal devices"
        [job]
        file = "{folder}/jobs/mobilenet-32.toml"
        strategy.kind = "hybrid"
        start.peers = 5
        stop = {{ steps = 60, seconds = 3600 }}
        [[node]]
        name = "fast"
        cpu = 0.5
        link = "lan-100m"
        [[node]]
        name = "slow"
        count = 4
        cpu = 0.25
        link = "lan-100m"
        [end]
        after = "10m"
        job = true
        {more}
        [sim]
        profile = "{folder}/profiles/mobilenet-v2.toml"
    "#
    );
    read(&text, 1)
}

fn value(record: &Record, metric: &str) -> Option<f64> {
    let measure = metric.parse().unwrap();
    skein_netem::report::value(record, &measure)
}

#[test]
fn a_hybrid_repeats_to_the_byte_and_keeps_what_its_plan_promised() {
    let once = || {
        let mut record = run(&staged(""));
        record.speed = None;
        record
    };
    let (first, again) = (once(), once());
    assert!(first == again);
    assert_eq!(closed(&first), 5);
    let promised = first.nodes[0].metrics.iter();
    let promised = promised.filter(|metric| metric.event == "cut");
    let step_s = promised
        .filter_map(|metric| metric.number("step_s"))
        .next()
        .unwrap();
    let measured = value(&first, "samples_per_s").unwrap();
    assert!(
        (measured * step_s / 128.0 - 1.0).abs() < 1e-6,
        "{measured} {step_s}"
    );
    assert!(value(&first, "bytes_sent") > Some(0.0) && value(&first, "peak_rss_bytes") > Some(1e6));
}

#[test]
fn after_a_kill_few_blocks_move_and_more_where_all_is_handed_out_anew() {
    let kill =
        |when: &str| format!("[[event]]\nwhen = \"any step.step >= 35\"\n{when} = \"fast\"\n");
    let lost = |text: &str, sim: &str| {
        let mut scenario = staged(text);
        if sim == "redistribute" {
            scenario.sim.recovery = scenario::Recovery::Redistribute;
        }
        run(&scenario)
    };
    let of = |record: &Record, field: &str| {
        value(record, &format!("field(*, recovered, {field}, max)")).unwrap()
    };
    let replayed = lost(&kill("kill"), "replay");
    let anew = lost(&kill("kill"), "redistribute");
    let stopped = lost(&kill("stop"), "replay");
    assert_eq!((closed(&replayed), closed(&anew)), (4, 4));
    assert!(of(&replayed, "fetched_bytes") < 0.5 * of(&anew, "fetched_bytes"));
    assert!(of(&replayed, "fetching_s") < 0.5 * of(&anew, "fetching_s"));
    assert!(of(&replayed, "detection_s") < 0.01 && of(&stopped, "detection_s") > 0.9);
    let redone = of(&replayed, "redone_steps");
    assert_eq!(value(&replayed, "redone_steps"), Some(redone));
    assert!((1.0..=25.0).contains(&redone), "{redone}");
    let parts = [
        "detection_s",
        "planning_s",
        "agreeing_s",
        "fetching_s",
        "redone_s",
    ];
    let parts: f64 = parts.iter().map(|part| of(&replayed, part)).sum();
    assert!((parts - of(&replayed, "total_s")).abs() < 1e-3, "{parts}");
    // Planning takes real time, which differs; what is planned does not.
    let again = lost(&kill("kill"), "replay");
    assert_eq!(replayed.trace_hash, again.trace_hash);
}

#[test]
fn what_is_not_simulated_of_jobs_with_stages_is_refused_with_a_way_out() {
    let refused = |text: &str| {
        let error = sim::run(&staged(text), &mut |_, _| {}).unwrap_err();
        error.to_string()
    };
    let event = |action: &str| format!("[[event]]\nat = \"5s\"\n{action}\n");
    for action in [
        "restart = \"fast\"",
        "set_cpu = { node = \"fast\", share = 0.1 }",
    ] {
        let error = refused(&event(action));
        assert!(error.contains("--engine lab"), "{error}");
    }
    let mut other = staged("");
    let scenarios = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios");
    other.sim.profile = Some(format!("{scenarios}/profiles/gpt.toml").into());
    let error = sim::run(&other, &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("another model"), "{error}");
    other.sim.profile = Some("none.toml".into());
    let error = sim::run(&other, &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("skein-netem profile"), "{error}");
}

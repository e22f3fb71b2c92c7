//! Jobs whose stages have several hosts: what they train is what one peer trains, but for the last bits, and a lost host is made up
//! for.

use skein_tests::{Cluster, Job};

/// A hybrid of `stop` steps on `peers` peers, with stages as `cut` has them.
fn hybrid(stop: &'static str, peers: u32, cut: &str) -> String {
    let job = Job {
        batch: 128,
        stop,
        peers,
        evaluate_every: 20,
        checkpoint: "steps = 20",
        ..Job::default()
    };
    // Work that grows with the samples, so that it is worth sharing out.
    let toml = job
        .toml()
        .replace("kind = \"mlp\"\nhidden = [32]", "kind = \"cnn\"");
    Job::staged(
        &toml,
        "hybrid",
        &format!("copy_every = 5\ncut = \"{cut}\"\n"),
    )
}

/// Validation losses by step, from whoever judged.
pub(super) fn losses(cluster: &Cluster, nodes: &[usize], job: &str) -> Vec<(u64, f64)> {
    let looks = nodes
        .iter()
        .flat_map(|n| cluster.node(*n).events(job, "evaluated"));
    let mut losses: Vec<(u64, f64)> = looks
        .map(|look| {
            (
                look["step"].as_u64().unwrap(),
                look["val_loss"].as_f64().unwrap(),
            )
        })
        .collect();
    losses.sort_by_key(|(step, _)| *step);
    losses
}

/// How many hosts the stages of the first cut have.
fn hosts(cluster: &Cluster, job: &str) -> Vec<usize> {
    let cut = &cluster.node(0).events(job, "cut")[0];
    let stages = cut["stages"].as_array().unwrap().iter();
    stages
        .map(|stage| stage["shares"].as_array().map_or(1, Vec::len))
        .collect()
}

/// The validation losses of one peer alone.
fn alone(stop: &'static str) -> Vec<(u64, f64)> {
    let cluster = Cluster::start(1);
    let job = cluster.submit(0, &hybrid(stop, 1, "measured"));
    cluster.wait_for_one_hash(&[0], &job);
    losses(&cluster, &[0], &job)
}

/// What was judged of a job is what was expected, within rounding, which grows with the steps.
pub(super) fn assert_alike(what: &str, seen: &[(u64, f64)], expected: &[(u64, f64)]) {
    for ((step, loss), (of, expected)) in seen.iter().zip(expected) {
        assert_eq!(step, of);
        let most = if *step <= 20 { 1e-3 } else { 0.03 * expected };
        assert!(
            (loss - expected).abs() < most,
            "{what}, step {step}: {loss} and {expected}"
        );
    }
}

#[test]
fn peers_that_share_stages_train_what_one_trains() {
    let expected = alone("steps = 40");
    assert_eq!(expected.len(), 2, "{expected:?}");
    for (n, cut) in [(3, "data-parallel"), (4, "hetpipe")] {
        let cluster = Cluster::start(n);
        let all: Vec<usize> = (0..n).collect();
        let job = cluster.submit(0, &hybrid("steps = 40", n as u32, cut));
        cluster.wait_for_one_hash(&all, &job);
        // Whether one stage or more are the fastest is measured; all replicas are one stage by order.
        let shape = hosts(&cluster, &job);
        assert!(cut == "hetpipe" || shape[0] > 1, "{cut}: {shape:?}");
        let seen = losses(&cluster, &all, &job);
        assert_eq!(seen.len(), 2, "leads alone look: {seen:?}");
        assert_alike(cut, &seen, &expected);
    }
}

#[test]
fn a_lost_host_of_a_shared_stage_is_made_up_for_and_may_come_back() {
    let mut cluster = Cluster::start(4);
    let all = [0, 1, 2, 3];
    let job = cluster.submit(0, &hybrid("steps = 300", 4, "hetpipe"));
    cluster.wait_for_step(&all, &job, 40);
    cluster.node(2).kill();
    cluster.wait_for_steps(&[0, 1, 3], &job, 60);
    cluster.restart(2);
    cluster.wait_for_one_hash(&all, &job);
    let samples: u64 = {
        let result = cluster.node(0).result(&job).unwrap();
        let contributions = result["contributions"].as_array().unwrap().iter();
        contributions
            .map(|peer| peer["samples"].as_u64().unwrap())
            .sum()
    };
    assert!(samples > 0);
    let last = *losses(&cluster, &all, &job).last().unwrap();
    assert!(last.0 == 300 && last.1 < 0.3, "{last:?}");
}

#[test]
fn the_measured_plan_trains_and_is_shown() {
    let cluster = Cluster::start(2);
    let job = cluster.submit(0, &hybrid("steps = 100", 2, "measured"));
    let hash = cluster.wait_for_one_hash(&[0, 1], &job);
    assert_eq!(cluster.node(0).result(&job).unwrap()["best"]["hash"], hash);
    let cuts = (0..2).flat_map(|n| cluster.node(n).events(&job, "cut"));
    let promised: Vec<f64> = cuts.filter_map(|cut| cut["step_s"].as_f64()).collect();
    assert!(
        promised.iter().any(|seconds| *seconds > 0.0),
        "{promised:?}"
    );
}

#[test]
fn a_job_that_leaves_the_choice_to_the_mesh_is_trained() {
    let cluster = Cluster::start(2);
    let toml = hybrid("steps = 60", 2, "measured").replace("kind = \"hybrid\"", "kind = \"auto\"");
    let job = cluster.submit(0, &toml);
    let hash = cluster.wait_for_one_hash(&[0, 1], &job);
    assert_eq!(cluster.node(1).result(&job).unwrap()["best"]["hash"], hash);
    // A node takes no job of which nothing is chosen.
    let request = serde_json::json!({ "v": 1, "command": "train", "job": toml });
    let answer = cluster.node(0).ask(&request).unwrap();
    assert!(
        answer.to_string().contains("strategy.kind is auto"),
        "{answer}"
    );
}

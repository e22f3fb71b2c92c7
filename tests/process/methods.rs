//! The methods that a job may name, in real processes: what waits, averages or searches does so and ends.

use skein_tests::{Cluster, Exchange, Job};

/// Three peers train by `method` until they are good enough, and end with one model.
fn ends_well(method: &'static str) {
    let cluster = Cluster::start(3);
    let job = Job {
        peers: 3,
        stop: "accuracy = 0.8\nseconds = 60",
        exchange: Exchange::Like(method),
        evaluate_every: 10,
        optimiser: "{ kind = \"sgd\", lr = 0.05 }",
        ..Job::default()
    };
    let job = cluster.submit(0, &job.toml());
    let hash = cluster.wait_for_one_hash(&[0, 1, 2], &job);
    let result = cluster.node(0).result(&job).unwrap();
    assert_eq!(result["best"]["hash"], hash, "{method}");
    let accuracy = result["best"]["accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.75, "{method}: {result}");
}

#[test]
fn a_peer_that_runs_ahead_waits_for_the_slowest_but_its_backup() {
    ends_well("hop");
}

#[test]
fn changes_are_averaged_as_they_come_at_a_searched_rate() {
    ends_well("adsp");
}

#[test]
fn all_average_after_rounds_of_local_steps() {
    ends_well("local-sgd");
}

#[test]
fn rounds_end_with_an_outer_step() {
    ends_well("diloco");
}

#[test]
fn significant_updates_alone_are_enough() {
    ends_well("gaia");
}

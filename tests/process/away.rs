//! A peer that is stopped for a while, as a laptop whose lid is closed.

use std::time::{Duration, Instant};

use skein_tests::{Cluster, Job};

#[test]
fn a_peer_stopped_for_ten_seconds_is_dropped_and_catches_up() {
    let cluster = Cluster::start(3);
    let job = Job {
        peers: 3,
        ..Job::default()
    };
    let job = cluster.submit(0, &job.toml());
    cluster.wait_for_members(&[0, 1, 2], &job, 3);
    cluster.wait_for_steps(&[0, 1, 2], &job, 10);
    // The steward is the hardest to lose: the lowest peer.
    let stopped = (0..3).min_by_key(|n| cluster.node(*n).peer()).unwrap();
    let others: Vec<usize> = (0..3).filter(|n| *n != stopped).collect();
    let began = Instant::now();
    cluster.node(stopped).signal("STOP");
    cluster.wait_for_members(&others, &job, 2);
    cluster.wait("ten seconds", || {
        (began.elapsed() >= Duration::from_secs(10)).then_some(())
    });
    let steps = others.iter().map(|n| cluster.node(*n).step(&job));
    let step_of_others = steps.min().unwrap();
    cluster.node(stopped).signal("CONT");

    cluster.wait_for_members(&[0, 1, 2], &job, 3);
    let synced = cluster.wait("the state of the others", || {
        cluster.node(stopped).events(&job, "synced").pop()
    });
    assert!(
        synced["step"].as_u64() >= Some(step_of_others),
        "it goes on from {synced}, the others were at {step_of_others}"
    );
    cluster.wait_for_steps(&[0, 1, 2], &job, 10);
    cluster.stop(stopped, &job);
    cluster.wait_for_one_hash(&[0, 1, 2], &job);
}

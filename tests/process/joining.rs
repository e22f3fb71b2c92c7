//! Peers that come while the job runs, and synchronous exchange under comings and goings.

use std::collections::BTreeMap;

use skein_tests::{Cluster, Exchange, Job};

#[test]
fn a_joiner_is_fed_while_its_donor_goes_on() {
    let mut cluster = Cluster::start(1);
    let job = Job {
        hidden: &[2048, 1024],
        batch: 1,
        ..Job::default()
    };
    let job = cluster.submit(0, &job.toml());
    cluster.wait_for_step(&[0], &job, 3);
    let joiner = cluster.add();
    let synced = cluster.wait("the joiner's state", || {
        cluster.node(joiner).events(&job, "synced").pop()
    });
    assert!(synced["bytes"].as_u64() > Some(25_000_000), "{synced}");
    cluster.wait_for_steps(&[0, joiner], &job, 2);
    // A donor that stood still would make its next step only when the joiner has everything.
    let meanwhile = cluster.node(0).events(&job, "step");
    let meanwhile = meanwhile.iter().filter(|step| {
        step["step"].as_u64() > synced["step"].as_u64()
            && step["t_ms"].as_u64() <= synced["t_ms"].as_u64()
    });
    let n = meanwhile.count();
    println!("{n} steps while {synced}");
    assert!(
        n >= 1,
        "no step of the donor after the copy and before {synced}"
    );
    cluster.stop(joiner, &job);
    cluster.wait_for_one_hash(&[0, joiner], &job);
}

/// Validation losses by step. Replicas that are equal to the bit have the same ones.
fn losses(cluster: &Cluster, n: usize, job: &str) -> BTreeMap<u64, String> {
    let looks = cluster.node(n).events(job, "evaluated");
    looks
        .iter()
        .map(|look| (look["step"].as_u64().unwrap(), look["val_loss"].to_string()))
        .collect()
}

#[test]
fn a_joiner_takes_part_in_synchronous_steps_and_all_replicas_stay_equal() {
    let mut cluster = Cluster::start(2);
    let job = Job {
        peers: 2,
        exchange: Exchange::Sync,
        evaluate_every: 1,
        ..Job::default()
    };
    let job = cluster.submit(0, &job.toml());
    cluster.wait_for_step(&[0, 1], &job, 10);
    let joiner = cluster.add();
    cluster.wait_for_members(&[0, 1, joiner], &job, 3);
    cluster.wait_for_steps(&[0, 1, joiner], &job, 10);
    cluster.stop(1, &job);
    cluster.wait_for_one_hash(&[0, 1, joiner], &job);

    let reference = losses(&cluster, 0, &job);
    for n in [1, joiner] {
        let theirs = losses(&cluster, n, &job);
        let common: Vec<u64> = theirs
            .keys()
            .copied()
            .filter(|step| reference.contains_key(step))
            .collect();
        assert!(common.len() >= 10, "node {n}: {common:?}");
        let differ: Vec<_> = common
            .iter()
            .filter(|step| theirs[step] != reference[step])
            .collect();
        assert!(differ.is_empty(), "node {n} differs at {differ:?}");
    }
}

#[test]
fn synchronous_peers_go_on_when_one_is_killed_in_mid_step() {
    let mut cluster = Cluster::start(3);
    let job = Job {
        peers: 3,
        exchange: Exchange::Sync,
        ..Job::default()
    };
    let job = cluster.submit(0, &job.toml());
    for victim in [0, 1] {
        cluster.wait_for_members(&[0, 1, 2], &job, 3);
        cluster.wait_for_steps(&[0, 1, 2], &job, 10);
        cluster.node(victim).kill();
        let others: Vec<usize> = (0..3).filter(|n| *n != victim).collect();
        cluster.wait_for_members(&others, &job, 2);
        cluster.wait_for_steps(&others, &job, 10);
        cluster.restart(victim);
    }
    cluster.wait_for_members(&[0, 1, 2], &job, 3);
    cluster.wait_for_steps(&[0, 1, 2], &job, 10);
    cluster.stop(2, &job);
    cluster.wait_for_one_hash(&[0, 1, 2], &job);
}

//! SIGKILL of each peer in turn, the submitter included, at three moments. The others finish; who was killed comes back
//! and ends with the same model.

use skein_tests::{Cluster, Exchange, Job};

/// The peers besides `victim` of three.
fn others(victim: usize) -> Vec<usize> {
    (0..3).filter(|n| *n != victim).collect()
}

/// Waits until the job is known on all of `nodes`.
fn wait_until_known(cluster: &Cluster, nodes: &[usize], job: &str) {
    cluster.wait("the job on all nodes", || {
        let knows = |n: &usize| cluster.node(*n).job(job).is_some();
        nodes.iter().all(knows).then_some(())
    });
}

#[test]
fn a_peer_killed_before_step_0_is_not_waited_for() {
    let mut cluster = Cluster::start(3);
    for victim in 0..3 {
        let job = Job {
            peers: 2,
            stop: "steps = 40",
            ..Job::default()
        };
        let job = cluster.submit(0, &job.toml());
        wait_until_known(&cluster, &[0, 1, 2], &job);
        cluster.node(victim).kill();
        let steps = cluster.node(victim).events(&job, "step").len();
        if steps > 0 {
            println!("victim {victim} had made {steps} steps already");
        }
        let hash = cluster.wait_for_one_hash(&others(victim), &job);
        cluster.restart(victim);
        cluster.connected();
        assert_eq!(
            cluster.wait_for_one_hash(&[victim], &job),
            hash,
            "it is given the finished model"
        );
    }
}

#[test]
fn a_job_that_waits_for_peers_survives_its_submitter() {
    let mut cluster = Cluster::start(3);
    let job = Job {
        peers: 4,
        stop: "steps = 40",
        ..Job::default()
    };
    let job = cluster.submit(0, &job.toml());
    cluster.wait("three that are ready", || {
        let waits = |n: &usize| {
            let status = cluster.node(*n).job(&job)?;
            let reason = status["reason"].as_str()?.to_owned();
            reason.starts_with("3 of 4").then_some(())
        };
        (0..3).collect::<Vec<_>>().iter().find_map(waits)
    });
    cluster.node(0).kill();
    let new = cluster.add();
    cluster.connected();
    wait_until_known(&cluster, &[1, 2, new], &job);
    assert!(cluster.node(1).events(&job, "step").is_empty());
    cluster.restart(0);
    cluster.wait_for_one_hash(&[0, 1, 2, new], &job);
}

#[test]
fn each_peer_in_turn_is_killed_in_mid_run_and_the_others_go_on() {
    let mut cluster = Cluster::start(3);
    let job = Job {
        peers: 3,
        checkpoint: "steps = 20",
        ..Job::default()
    };
    let job = cluster.submit(0, &job.toml());
    for victim in 0..3 {
        cluster.wait_for_members(&[0, 1, 2], &job, 3);
        cluster.wait_for_steps(&[0, 1, 2], &job, 20);
        cluster.node(victim).kill();
        let others = others(victim);
        cluster.wait_for_members(&others, &job, 2);
        cluster.wait_for_steps(&others, &job, 20);
        cluster.restart(victim);
    }
    cluster.wait_for_members(&[0, 1, 2], &job, 3);
    cluster.stop(1, &job);
    cluster.wait_for_one_hash(&[0, 1, 2], &job);
    for n in 0..3 {
        // Nobody counts twice what it reads in its checkpoint and hears from the others.
        let result = cluster.node(n).result(&job).unwrap();
        let contributions = result["contributions"].as_array().unwrap().iter();
        let samples = contributions.map(|peer| peer["samples"].as_u64().unwrap());
        assert_eq!(
            Some(samples.sum()),
            result["samples_mesh"].as_u64(),
            "{result}"
        );
    }
}

#[test]
fn each_peer_in_turn_is_killed_while_a_joiner_is_fed_and_the_others_go_on() {
    let mut cluster = Cluster::start(3);
    let job = Job {
        hidden: &[2048, 1024],
        peers: 3,
        batch: 8,
        exchange: Exchange::Async,
        ..Job::default()
    };
    let job = cluster.submit(0, &job.toml());
    cluster.wait_for_members(&[0, 1, 2], &job, 3);
    let mut members = vec![0, 1, 2];
    // The joiner is a newcomer at first, then the one that was killed before.
    let mut killed = None;
    for victim in 0..3 {
        cluster.wait_for_steps(&members, &job, 2);
        let joiner = match killed {
            None => cluster.add(),
            Some(before) => {
                cluster.restart(before);
                before
            }
        };
        // Whoever knows but one peer, and loses it at once, is alone.
        cluster.connected();
        let phase = cluster.wait("the joiner's fetch", || {
            let phase = cluster.node(joiner).phase(&job)?;
            matches!(phase.as_str(), "syncing" | "running").then_some(phase)
        });
        cluster.node(victim).kill();
        println!("victim {victim} was killed while the joiner was {phase}");
        members.retain(|n| *n != victim);
        members.push(joiner);
        cluster.wait_for_members(&members, &job, 3);
        killed = Some(victim);
    }
    cluster.wait_for_steps(&members, &job, 2);
    cluster.stop(members[0], &job);
    cluster.wait_for_one_hash(&members, &job);
}

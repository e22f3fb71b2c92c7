//! Jobs whose model is cut into stages on several peers: the same weights to the bit as one peer makes, whoever is killed.

use serde_json::Value;
use skein_tests::{Cluster, Job};

/// A pipeline of `stop` steps on `peers` peers, copied every five.
fn pipeline(stop: &'static str, peers: u32) -> String {
    let job = Job {
        hidden: &[48, 48, 48, 48],
        batch: 32,
        stop,
        peers,
        evaluate_every: 40,
        ..Job::default()
    };
    format!(
        "{}[strategy]\nkind = \"pipeline\"\n[strategy.pipeline]\nmicro_batches = 4\ncopy_every = 5\ncut = \"equal\"\n",
        job.toml()
            .split("[strategy.exchange]")
            .next()
            .unwrap_or_default()
            .to_owned()
    ) + "[evaluate]\nevery = 40\n[checkpoint]\nsteps = 20\n"
}

/// The hash that one peer alone ends with.
fn alone(stop: &'static str) -> String {
    let cluster = Cluster::start(1);
    let job = cluster.submit(0, &pipeline(stop, 1));
    cluster.wait_for_one_hash(&[0], &job)
}

/// Waits until all of `nodes` show a cut in work.
fn wait_until_running(cluster: &Cluster, nodes: &[usize], job: &str) {
    cluster.wait("a cut in work", || {
        let works = |n: &usize| {
            let status = cluster.node(*n).job(job)?;
            let stages = status["stages"].as_array()?;
            let all = stages
                .iter()
                .all(|stage| stage["in_place"] == Value::Bool(true));
            (all && !stages.is_empty()).then_some(())
        };
        nodes.iter().all(|n| works(n).is_some()).then_some(())
    });
}

#[test]
fn three_peers_make_the_weights_that_one_makes() {
    let expected = alone("steps = 120");
    let cluster = Cluster::start(3);
    let job = cluster.submit(0, &pipeline("steps = 120", 3));
    let hash = cluster.wait_for_one_hash(&[0, 1, 2], &job);
    assert_eq!(hash, expected);
    let cut = cluster.node(0).events(&job, "cut").pop().unwrap();
    assert_eq!(cut["stages"].as_array().unwrap().len(), 3, "{cut}");
    let judged = (0..3).flat_map(|n| cluster.node(n).events(&job, "evaluated"));
    assert_eq!(judged.count(), 3, "every 40 steps, by the last stage alone");
}

#[test]
fn whoever_is_killed_the_weights_are_those_of_the_undisturbed_run() {
    let expected = alone("steps = 3000");
    for victim in 0..3 {
        let mut cluster = Cluster::start(3);
        let job = cluster.submit(0, &pipeline("steps = 3000", 3));
        wait_until_running(&cluster, &[0, 1, 2], &job);
        cluster.wait_for_step(&[0, 1, 2], &job, 100 + 150 * victim as u64);
        cluster.node(victim).kill();
        let others: Vec<usize> = (0..3).filter(|n| *n != victim).collect();
        cluster.wait_for_step(&others, &job, 900);
        let views = cluster.node(others[0]).events(&job, "cut");
        assert!(views.len() > 1, "a host fell out: {views:?}");
        cluster.restart(victim);
        let hash = cluster.wait_for_one_hash(&[0, 1, 2], &job);
        assert_eq!(hash, expected, "victim {victim}: {views:?}");
    }
}

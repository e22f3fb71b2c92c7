//! Jobs whose model is cut into stages on several peers: the same weights to the bit as one peer makes, whoever is killed.

use std::time::{Duration, Instant};

use serde_json::Value;
use skein_tests::{Cluster, Job};

use crate::users::write_readings;

/// A pipeline of `stop` steps on `peers` peers, copied every five; `data` are the lines of `[data]`.
fn pipeline_on(data: &'static str, stop: &'static str, peers: u32) -> String {
    let job = Job {
        hidden: &[48, 48, 48, 48],
        data,
        batch: 32,
        stop,
        peers,
        evaluate_every: 40,
        checkpoint: "steps = 20",
        ..Job::default()
    };
    let toml = job.toml();
    Job::staged(&toml, "pipeline", "copy_every = 5\ncut = \"equal\"\n")
}

fn pipeline(stop: &'static str, peers: u32) -> String {
    pipeline_on("source = \"digits\"", stop, peers)
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
fn in_int8_all_end_with_one_model_and_the_links_of_the_cut_are_shown() {
    let cluster = Cluster::start(3);
    let job = pipeline("steps = 300", 3).replace("cut = ", "values = \"int8\"\ncut = ");
    let job = cluster.submit(0, &job);
    let links = cluster.wait("a cut with its links", || {
        let status = cluster.node(0).job(&job)?;
        let links = status["plan"]["links"].as_array()?.clone();
        (links.len() == 4).then_some(links)
    });
    for link in links {
        assert!(link["bytes_per_s"].as_f64().unwrap() > 0.0, "{link}");
        assert_ne!(link["from"], link["to"]);
    }
    cluster.wait_for_one_hash(&[0, 1, 2], &job);
    let judged = (0..3).flat_map(|n| cluster.node(n).events(&job, "evaluated"));
    let best = judged
        .filter_map(|look| look["val_accuracy"].as_f64())
        .fold(0.0, f64::max);
    assert!(best > 0.6, "rounded activations train too: {best}");
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

#[test]
fn two_of_four_die_at_once_and_the_others_make_the_same_weights() {
    let expected = alone("steps = 2000");
    let cluster = Cluster::start(4);
    let job = cluster.submit(0, &pipeline("steps = 2000", 4));
    wait_until_running(&cluster, &[0, 1, 2, 3], &job);
    cluster.wait_for_step(&[0, 1, 2, 3], &job, 100);
    cluster.node(1).kill();
    cluster.node(3).kill();
    assert_eq!(cluster.wait_for_one_hash(&[0, 2], &job), expected);
}

#[test]
fn a_host_that_stands_still_for_five_seconds_is_replaced_and_comes_back() {
    let expected = alone("steps = 4000");
    let cluster = Cluster::start(3);
    let job = cluster.submit(0, &pipeline("steps = 4000", 3));
    wait_until_running(&cluster, &[0, 1, 2], &job);
    // The steward is the hardest to lose: the lowest peer.
    let stopped = (0..3).min_by_key(|n| cluster.node(*n).peer()).unwrap();
    let others: Vec<usize> = (0..3).filter(|n| *n != stopped).collect();
    let began = Instant::now();
    cluster.node(stopped).signal("STOP");
    cluster.wait_for_steps(&others, &job, 50);
    cluster.wait("five seconds", || {
        (began.elapsed() >= Duration::from_secs(5)).then_some(())
    });
    cluster.node(stopped).signal("CONT");
    assert_eq!(cluster.wait_for_one_hash(&[0, 1, 2], &job), expected);
}

#[test]
fn after_all_were_killed_a_pipeline_goes_on_from_its_copies_on_disk() {
    let expected = alone("steps = 3000");
    let mut cluster = Cluster::start(3);
    let job = cluster.submit(0, &pipeline("steps = 3000", 3));
    cluster.wait("copies on each disk", || {
        let has = |n: usize| !cluster.node(n).events(&job, "checkpoint").is_empty();
        (0..3).all(has).then_some(())
    });
    for n in 0..3 {
        cluster.node(n).kill();
    }
    for n in 0..3 {
        cluster.restart(n);
    }
    assert_eq!(cluster.wait_for_one_hash(&[0, 1, 2], &job), expected);
    let goes_on = (0..3)
        .flat_map(|n| cluster.node(n).events(&job, "cut"))
        .filter_map(|cut| cut["from_step"].as_u64());
    assert!(goes_on.max() > Some(0));
}

#[test]
fn a_pipeline_waits_for_the_only_peer_with_the_data_and_then_goes_on() {
    let mut cluster = Cluster::empty();
    let folder = cluster.folder().join("readings");
    write_readings(&folder, 400);
    let data = format!("readings={}", folder.display());
    let owner = cluster.add_with(&["--data", &data]);
    let others = [cluster.add(), cluster.add()];
    cluster.connected();
    let job = cluster.submit(
        others[0],
        &pipeline_on(
            "source = \"npy\"\nname = \"readings\"\nclasses = 2",
            "steps = 3000",
            3,
        ),
    );
    wait_until_running(&cluster, &[owner, others[0], others[1]], &job);
    cluster.wait_for_step(&others, &job, 100);
    cluster.node(owner).kill();
    let steward = *others
        .iter()
        .min_by_key(|n| cluster.node(**n).peer())
        .unwrap();
    cluster.wait("a pause that says why", || {
        let status = cluster.node(steward).job(&job)?;
        status["reason"]
            .as_str()?
            .contains("holds the data")
            .then_some(())
    });
    cluster.restart(owner);
    cluster.wait_for_one_hash(&[owner, others[0], others[1]], &job);
}

#[test]
fn a_host_that_comes_back_when_the_job_is_over_gets_its_model() {
    let mut cluster = Cluster::empty();
    let folder = cluster.folder().join("readings");
    write_readings(&folder, 400);
    let data = format!("readings={}", folder.display());
    let owner = cluster.add_with(&["--data", &data]);
    let (other, late) = (cluster.add(), cluster.add());
    cluster.connected();
    let data = "source = \"npy\"\nname = \"readings\"\nclasses = 2";
    let job = cluster.submit(other, &pipeline_on(data, "steps = 500", 3));
    wait_until_running(&cluster, &[owner, other, late], &job);
    cluster.node(late).kill();
    let hash = cluster.wait_for_one_hash(&[owner, other], &job);
    cluster.restart(late);
    assert_eq!(cluster.wait_for_one_hash(&[late], &job), hash);
    // Those that were there know it from disk alone now, and the one that comes has seen nothing of the data.
    for n in [owner, other] {
        cluster.node(n).kill();
        cluster.restart(n);
    }
    let newcomer = cluster.add();
    assert_eq!(cluster.wait_for_one_hash(&[newcomer], &job), hash);
}

/// A peer that may use so little memory for the job that the finished model does not fit beside its stage.
const SHORT: [&str; 2] = ["--memory", "600K"];

#[test]
fn a_peer_that_is_short_of_memory_ends_with_the_same_model_block_by_block() {
    let expected = alone("steps = 120");
    let mut cluster = Cluster::empty();
    let nodes = [cluster.add_with(&SHORT), cluster.add(), cluster.add()];
    cluster.connected();
    let job = cluster.submit(0, &pipeline("steps = 120", 3));
    assert_eq!(cluster.wait_for_one_hash(&nodes, &job), expected);
    let file = |n: usize| std::fs::read(cluster.node(n).job_folder(&job).join("model.safetensors"));
    assert!(file(0).unwrap() == file(1).unwrap(), "the same file");
    let to_disk = |n: usize| {
        let fetched = cluster.node(n).events(&job, "fetched");
        let mut last = fetched.iter().filter(|event| event["step"] == 120);
        last.any(|event| event["to_disk"] == Value::Bool(true))
    };
    assert!(to_disk(0) && !to_disk(1) && !to_disk(2));
}

#[test]
fn a_stage_lost_with_all_its_copies_goes_on_from_the_line_that_a_peer_holds_whole() {
    let job = pipeline("steps = 2000", 4).replace("copy_every = 5", "copy_every = 5\ncopies = 1");
    let expected = alone("steps = 2000");
    let cluster = Cluster::start(4);
    let job = cluster.submit(0, &job);
    wait_until_running(&cluster, &[0, 1, 2, 3], &job);
    cluster.wait("a whole line", || {
        let recovery = cluster.node(0).job(&job)?["recovery"].clone();
        (recovery["whole"].as_u64()? > 0 && recovery["whole_peers"].as_u64()? >= 2).then_some(())
    });
    let status = cluster.node(0).job(&job).unwrap();
    let stages = status["stages"].as_array().unwrap();
    let hosts: Vec<&str> = stages
        .iter()
        .map(|stage| stage["host"].as_str().unwrap())
        .collect();
    let node_of = |host: &str| (0..4).find(|n| cluster.node(*n).peer().as_deref() == Some(host));
    // The second stage, and the peer that keeps its only copy.
    let dead: Vec<usize> = hosts[1..3]
        .iter()
        .map(|host| node_of(host).unwrap())
        .collect();
    dead.iter().for_each(|n| cluster.node(*n).kill());
    let left: Vec<usize> = (0..4).filter(|n| !dead.contains(n)).collect();
    assert_eq!(cluster.wait_for_one_hash(&left, &job), expected);
    let views = cluster.node(left[0]).events(&job, "cut");
    let from = views.last().unwrap()["from_step"].as_u64().unwrap();
    assert!(from > 0, "{views:?}");
}

/// As [`pipeline`], but nobody waits.
fn asynchronous(stop: &'static str, more: &str) -> String {
    let schedule = format!("schedule = \"async\"\n{more}");
    let toml = pipeline(stop, 3).replace("micro_batches = 4\n", &schedule);
    assert!(toml.contains("async"));
    toml
}

/// Accuracy on held-out samples of the model that `node` ended with.
fn accuracy(cluster: &Cluster, node: usize, job: &str) -> f64 {
    let result = cluster.node(node).result(job).unwrap();
    result["best"]["accuracy"].as_f64().unwrap()
}

#[test]
fn stages_that_wait_for_nobody_end_with_one_model_though_the_middle_one_is_killed() {
    let mut cluster = Cluster::start(3);
    let job = cluster.submit(0, &asynchronous("steps = 3000", ""));
    wait_until_running(&cluster, &[0, 1, 2], &job);
    cluster.wait_for_step(&[0, 1, 2], &job, 300);
    let status = cluster.node(0).job(&job).unwrap();
    let middle = status["stages"][1]["host"].as_str().unwrap();
    let is_middle = |n: &usize| cluster.node(*n).peer().as_deref() == Some(middle);
    let victim = (0..3).find(is_middle).unwrap();
    cluster.node(victim).kill();
    let others: Vec<usize> = (0..3).filter(|n| *n != victim).collect();
    cluster.wait_for_step(&others, &job, 900);
    cluster.restart(victim);
    cluster.wait_for_one_hash(&[0, 1, 2], &job);
    let views = cluster.node(others[0]).events(&job, "cut");
    assert!(views.len() > 1, "a host fell out: {views:?}");
    let accuracy = accuracy(&cluster, others[0], &job);
    assert!(accuracy > 0.85, "{accuracy}");
    let looks = (0..3).flat_map(|n| cluster.node(n).events(&job, "evaluated"));
    let steps: Vec<u64> = looks.filter_map(|look| look["step"].as_u64()).collect();
    assert!(
        steps.contains(&3000) && steps.iter().all(|step| step % 40 == 0),
        "{steps:?}"
    );
}

#[test]
fn stages_with_one_version_for_a_batch_go_on_from_copies_on_disk_and_aggregate() {
    let more = "vertical_sync = true\naggregate_every = 5\nhide_transfers = true\n";
    let mut cluster = Cluster::start(3);
    let job = cluster.submit(0, &asynchronous("steps = 2000", more));
    cluster.wait("copies on each disk", || {
        let has = |n: usize| !cluster.node(n).events(&job, "checkpoint").is_empty();
        (0..3).all(has).then_some(())
    });
    for n in 0..3 {
        cluster.node(n).kill();
    }
    for n in 0..3 {
        cluster.restart(n);
    }
    cluster.wait_for_one_hash(&[0, 1, 2], &job);
    let goes_on = (0..3)
        .flat_map(|n| cluster.node(n).events(&job, "cut"))
        .filter_map(|cut| cut["from_step"].as_u64());
    assert!(goes_on.max() > Some(0));
    let accuracy = accuracy(&cluster, 0, &job);
    assert!(accuracy > 0.85, "{accuracy}");
}

//! All peers end and start again.

use std::fs;
use std::path::PathBuf;

use skein_tests::{Cluster, Job};

/// A checkpoint on a node's disk.
#[derive(Debug, Clone)]
struct OnDisk {
    samples: u64,
    step: u64,
    node: usize,
    folder: PathBuf,
}

fn checkpoints(cluster: &Cluster, job: &str) -> Vec<OnDisk> {
    let mut all = Vec::new();
    for node in 0..3 {
        for (step, folder) in cluster.node(node).checkpoints(job) {
            let manifest = fs::read(folder.join("manifest.json")).unwrap();
            let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
            let samples = manifest["progress"]["samples"].as_u64().unwrap();
            all.push(OnDisk {
                samples,
                step,
                node,
                folder,
            });
        }
    }
    all.sort_by_key(|checkpoint| (checkpoint.samples, checkpoint.step));
    all
}

#[test]
fn after_all_were_killed_the_job_goes_on_from_the_newest_checkpoint_that_is_whole() {
    let mut cluster = Cluster::start(3);
    let job = Job {
        peers: 3,
        checkpoint: "steps = 25\nkeep = 3",
        ..Job::default()
    };
    let job = cluster.submit(0, &job.toml());
    cluster.wait("two checkpoints on each", || {
        let has_two = |n: usize| cluster.node(n).checkpoints(&job).len() >= 2;
        (0..3).all(has_two).then_some(())
    });
    for n in 0..3 {
        cluster.node(n).kill();
    }

    let mut on_disk = checkpoints(&cluster, &job);
    let damaged = on_disk.pop().unwrap();
    let path = damaged.folder.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let newest = on_disk.last().unwrap().clone();
    let lines: Vec<usize> = (0..3)
        .map(|n| cluster.node(n).journal(&job).len())
        .collect();

    for n in 0..3 {
        cluster.restart(n);
    }
    cluster.wait_for_members(&[0, 1, 2], &job, 3);
    cluster.wait_for_step(&[0, 1, 2], &job, newest.step + 20);
    cluster.stop(2, &job);
    cluster.wait_for_one_hash(&[0, 1, 2], &job);

    for n in 0..3 {
        let journal = cluster.node(n).journal(&job);
        // The last line before the kill may be half written; the line after it is lost with it.
        let since = &journal[lines[n]..];
        let opened = cluster.node(n).events(&job, "opened").pop().unwrap();
        let skipped = opened["skipped_checkpoints"].as_array().unwrap();
        assert_eq!(
            skipped.len(),
            usize::from(n == damaged.node),
            "node {n}: {opened}, damaged was {damaged:?}"
        );
        let first = since.iter().find(|line| line["event"] == "step").unwrap();
        assert!(
            first["step"].as_u64() > Some(newest.step),
            "node {n} goes on with {first}, the newest whole checkpoint is {newest:?}"
        );
        let result = cluster.node(n).result(&job).unwrap();
        assert!(
            result["samples_mesh"].as_u64() > Some(newest.samples),
            "{result}"
        );
    }
}

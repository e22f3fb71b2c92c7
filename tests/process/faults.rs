//! Training that goes wrong: a learning rate that is far too high, a disk that is full.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use skein_tests::{Cluster, Exchange, Job};

/// Each step multiplies the weights by -99: the loss is not finite after 8 steps, and 10 more are waited for.
const DIVERGES: &str = "{ kind = \"sgd\", lr = 100.0, momentum = 0.0, weight_decay = 1.0 }";

#[test]
fn a_job_that_diverges_fails_on_all_peers_and_names_the_learning_rate() {
    let cluster = Cluster::start(2);
    for exchange in [Exchange::Async, Exchange::Sync] {
        let job = Job {
            peers: 2,
            exchange,
            optimiser: DIVERGES,
            ..Job::default()
        };
        let job = cluster.submit(0, &job.toml());
        for n in [0, 1] {
            let status = cluster.wait("the failure", || {
                let status = cluster.node(n).job(&job)?;
                (status["phase"] == "failed").then_some(status)
            });
            let reason = status["reason"].as_str().unwrap();
            assert!(
                reason.contains("train.optimiser.lr"),
                "{exchange:?}: {reason}"
            );
            let event = cluster.node(n).events(&job, "failed").pop();
            assert_eq!(event.unwrap()["reason"], reason);
        }
        let watched = cluster.node(1).skein(&["watch", &job]);
        assert_eq!(watched.code, Some(1), "{watched:?}");
    }
}

#[test]
fn a_job_that_ends_before_its_divergence_is_noticed_has_no_model_and_says_why() {
    let cluster = Cluster::start(2);
    let job = Job {
        peers: 2,
        exchange: Exchange::SyncDense,
        optimiser: DIVERGES,
        stop: "steps = 12",
        ..Job::default()
    };
    let job = cluster.submit(0, &job.toml());
    for n in [0, 1] {
        cluster.wait("the end", || {
            (cluster.node(n).phase(&job)? == "failed").then_some(())
        });
        let result = cluster.wait("the result", || cluster.node(n).result(&job));
        assert!(result["best"].is_null(), "{result}");
        let reason = result["reason"].as_str().unwrap();
        assert!(reason.contains("train.optimiser.lr"), "{reason}");
    }
}

/// A small file system in memory, gone with this value.
struct TinyDisk(PathBuf);

impl TinyDisk {
    fn mount(at: &Path, kib: u32) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let size = format!("size={kib}k,mode=700");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "skein-test"])
            .arg(at)
            .output();
        let mounted = mounted.is_ok_and(|output| output.status.success());
        mounted.then(|| Self(at.to_owned()))
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        // Lazily: a process that is about to end may still have files open. What fails here is seen in `mount`.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Takes whatever room is left.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    while file.write_all(&[0; 1024]).is_ok() {}
}

#[test]
fn a_full_disk_costs_checkpoints_but_not_the_training() {
    let mut cluster = Cluster::empty();
    let home = cluster.folder().join("tiny");
    let Some(_disk) = TinyDisk::mount(&home, 1500) else {
        println!("skipped: this user may not mount a tmpfs");
        return;
    };
    cluster.add_at(&home, &[]);
    let job = Job {
        // 25 450 parameters: about 200 KB per checkpoint, and far more are to be kept than fit.
        checkpoint: "steps = 20\nkeep = 100",
        ..Job::default()
    };
    let job = cluster.submit(0, &job.toml());
    let node = cluster.node(0);
    cluster.wait("the error", || {
        node.stderr()
            .contains("checkpoint not written")
            .then_some(())
    });
    let kept = node.checkpoints(&job);
    fill(&home.join("filler"));
    assert!(kept.len() >= 2, "{kept:?}");
    cluster.wait_for_steps(&[0], &job, 100);
    let now = node.checkpoints(&job);
    assert!(
        kept.iter().all(|checkpoint| now.contains(checkpoint)),
        "{kept:?} and {now:?}"
    );
    assert_eq!(node.phase(&job).as_deref(), Some("running"));
    cluster.stop(0, &job);
    // The model does not fit either, and that is said instead of a job that seems well ended.
    let status = cluster.wait("the end", || {
        let status = node.job(&job)?;
        (status["phase"] == "failed").then_some(status)
    });
    let reason = status["reason"].as_str().unwrap();
    assert!(reason.contains("No space left"), "{reason}");
}

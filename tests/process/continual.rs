//! Jobs on a trained model: they begin where the first one ended, also on peers that lack its file.

use skein_tests::{Cluster, Exchange, Job};

fn first() -> Job {
    Job {
        name: "first",
        stop: "steps = 300",
        evaluate_every: 10,
        peers: 2,
        exchange: Exchange::SyncDense,
        ..Job::default()
    }
}

/// `toml` with `lines` in its `[start]`.
fn started_from(toml: &str, lines: &str) -> String {
    toml.replace("[start]\n", &format!("[start]\n{lines}\n"))
}

fn as_pipeline(toml: &str) -> String {
    Job::staged(toml, "pipeline", "")
}

/// The model of a job of 300 steps on two peers: its file, hash and accuracy.
fn trained(cluster: &Cluster) -> (std::path::PathBuf, String, f64) {
    let job = cluster.submit(0, &first().toml());
    let hash = cluster.wait_for_one_hash(&[0, 1], &job);
    let best = cluster.node(0).result(&job).unwrap()["best"].clone();
    let path = cluster.folder().join("trained.safetensors");
    std::fs::copy(
        cluster.node(0).job_folder(&job).join("model.safetensors"),
        &path,
    )
    .unwrap();
    (path, hash, best["accuracy"].as_f64().unwrap())
}

/// The first look at the held-out samples of any peer.
fn first_look(cluster: &Cluster, nodes: &[usize], job: &str) -> f64 {
    cluster.wait("a look", || {
        let looks = nodes
            .iter()
            .flat_map(|n| cluster.node(*n).events(job, "evaluated"));
        let first = looks.min_by_key(|look| look["step"].as_u64())?;
        first["val_accuracy"].as_f64()
    })
}

#[test]
fn a_second_job_begins_at_the_accuracy_of_the_first_ones_model() {
    let cluster = Cluster::start(2);
    let (path, hash, accuracy) = trained(&cluster);
    assert!(accuracy > 0.85, "{accuracy}");
    let gentle = Job {
        name: "second",
        optimiser: "{ kind = \"sgd\", lr = 0.000001 }",
        stop: "steps = 20",
        data: "source = \"digits\"\nlabels = [0, 1, 2, 3, 4, 5, 6, 7]\nmix = { share = 0.1, labels = [8, 9] }",
        ..first()
    };
    let by_path = started_from(&gentle.toml(), &format!("weights = {path:?}"));
    let by_hash = started_from(&gentle.toml(), &format!("hash = \"{hash}\""));
    for toml in [by_path, as_pipeline(&by_hash)] {
        let job = cluster.submit(0, &toml);
        let begins = first_look(&cluster, &[0, 1], &job);
        assert!(
            (begins - accuracy).abs() < 0.02,
            "{begins} after {accuracy}"
        );
        cluster.wait_for_one_hash(&[0, 1], &job);
    }
}

#[test]
fn peers_without_the_file_get_the_weights_from_those_with_it_and_others_are_refused() {
    let mut cluster = Cluster::start(2);
    let (path, hash, accuracy) = trained(&cluster);
    // It took no part in the first job, and where it lies there is no such file.
    let newcomer = cluster.add();
    cluster.connected();
    let here = cluster.node(0).home().join("trained.safetensors");
    std::fs::rename(&path, &here).unwrap();
    let gentle = Job {
        name: "second",
        optimiser: "{ kind = \"sgd\", lr = 0.000001 }",
        stop: "steps = 20",
        peers: 3,
        ..first()
    };
    let nodes = [0, 1, newcomer];
    for toml in [gentle.toml(), as_pipeline(&gentle.toml())] {
        let job = cluster.submit(
            newcomer,
            &started_from(&toml, &format!("hash = \"{hash}\"")),
        );
        let begins = first_look(&cluster, &nodes, &job);
        assert!(
            (begins - accuracy).abs() < 0.02,
            "{begins} after {accuracy}"
        );
        cluster.wait_for_one_hash(&nodes, &job);
    }
    // Weights of another model, and other weights than the hash says.
    let other = Job {
        hidden: &[16],
        ..gentle.clone()
    };
    let wrong_shape = started_from(&other.toml(), &format!("weights = {here:?}"));
    let wrong_hash = format!("weights = {here:?}\nhash = \"{}\"", "0".repeat(64));
    let wrong_hash = started_from(&as_pipeline(&gentle.toml()), &wrong_hash);
    for (toml, words) in [
        (wrong_shape, "the model has F32"),
        (wrong_hash, "start.hash"),
    ] {
        let job = cluster.submit(0, &toml);
        cluster.wait("a refusal that says why", || {
            let status = cluster.node(0).job(&job)?;
            status["reason"].as_str()?.contains(words).then_some(())
        });
        cluster.stop(0, &job);
    }
}

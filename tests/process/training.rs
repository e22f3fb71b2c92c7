//! The main job: peers agree, train, and end with one model.

use skein_tests::{Cluster, Job, skein};

#[test]
fn four_peers_agree_train_and_end_with_the_same_model() {
    let cluster = Cluster::start(4);
    let all = [0, 1, 2, 3];
    let job = Job {
        peers: 4,
        evaluate_every: 50,
        ..Job::default()
    };
    let job = cluster.submit(0, &job.toml());
    // Not a number of steps or an accuracy ends it: how the machine shares itself out decides what each peer has done by then.
    cluster.wait("a commit of each and an accuracy of 0.9", || {
        let has_learnt = |n: &usize| {
            let node = cluster.node(*n);
            let status = node.job(&job)?;
            let (accuracy, me) = (status["val_accuracy"].as_f64()?, node.peer()?);
            let contributions = status["contributions"].as_array()?;
            let own = contributions.iter().find(|of| of["peer"] == *me)?;
            (accuracy >= 0.9 && own["commits"].as_u64()? > 0).then_some(())
        };
        all.iter().all(|n| has_learnt(n).is_some()).then_some(())
    });
    cluster.stop(1, &job);
    let hash = cluster.wait_for_one_hash(&all, &job);

    let peers: Vec<String> = all
        .iter()
        .map(|n| cluster.node(*n).peer().unwrap())
        .collect();
    for n in all {
        let result = cluster.node(n).result(&job).unwrap();
        let contributions = result["contributions"].as_array().unwrap();
        for peer in &peers {
            let own = contributions
                .iter()
                .find(|contribution| contribution["peer"] == **peer);
            let own = own.unwrap_or_else(|| panic!("{peer} is missing in {result}"));
            assert!(own["samples"].as_u64() >= Some(16), "{own}");
            assert!(own["bytes_out"].as_u64() > Some(0), "{own}");
        }
        let closed = cluster.node(n).events(&job, "closed");
        assert_eq!(closed.len(), 1, "{closed:?}");
        assert_eq!(closed[0]["digest"], hash);
        let first_view = &cluster.node(n).events(&job, "view")[0];
        assert_eq!(first_view["members"].as_array().unwrap().len(), 4);
    }

    let file = cluster.folder().join("exported.safetensors");
    let file = file.to_str().unwrap();
    let exported = cluster.node(2).json(&["export", &job, "-o", file]);
    assert_eq!(exported["best"]["hash"], hash);
    let evaluated = skein(["--json", "eval", file, "--data", "digits"]);
    assert_eq!(evaluated.code, Some(0), "{evaluated:?}");
    let evaluated: serde_json::Value = serde_json::from_str(&evaluated.out).unwrap();
    assert_eq!(evaluated["model_hash"], hash);
    let agreed = exported["best"]["accuracy"].as_f64().unwrap();
    let judged = evaluated["accuracy"].as_f64().unwrap();
    // The agreed number travels as f32.
    assert!((agreed - judged).abs() < 1e-6, "{agreed} and {judged}");
    // What was looked at last is each peer's own replica; the agreed model is made of all of them.
    assert!(judged >= 0.85, "{judged}");
}

//! Jobs over tiers: what a device, an edge and a cloud train together is what one peer trains, but for the last bits, also where only the
//! device has the data; and any of them may be lost.

use skein_tests::{Cluster, Job};

use super::hybrid::{assert_alike, losses};

/// A job of `stop` steps over tiers on `peers` peers, divided as `cut` has it.
fn tiers(stop: &'static str, peers: u32, cut: &str) -> String {
    let job = Job {
        batch: 96,
        stop,
        peers,
        evaluate_every: 20,
        checkpoint: "steps = 20",
        ..Job::default()
    };
    let toml = job
        .toml()
        .replace("kind = \"mlp\"\nhidden = [32]", "kind = \"cnn\"");
    let staged = Job::staged(
        &toml,
        "tiers",
        &format!("copy_every = 5\ncut = \"{cut}\"\n"),
    );
    // All samples of a step are computed at once.
    staged.replace("micro_batches = 4\n", "")
}

/// A device, an edge and a cloud, the latter two with `more` words for their `skein up`.
fn started(more: &[&str]) -> Cluster {
    let mut cluster = Cluster::empty();
    for (tier, more) in [("device", &[][..]), ("edge", more), ("cloud", more)] {
        let words = [&["--tier", tier], more].concat();
        cluster.add_with(&words);
    }
    cluster.connected();
    cluster
}

/// First and last block of the stages of the first cut, and how many host them.
fn stages(cluster: &Cluster, job: &str) -> Vec<(u64, u64, usize)> {
    let cut = &cluster.node(0).events(job, "cut")[0];
    let stages = cut["stages"].as_array().unwrap().iter();
    let told = |stage: &serde_json::Value| {
        let hosts = stage["shares"].as_array().map_or(1, Vec::len);
        let border = |which: &str| stage[which].as_u64().unwrap();
        (border("first"), border("end"), hosts)
    };
    stages.map(told).collect()
}

#[test]
fn tiers_train_what_one_peer_trains() {
    let expected = {
        let cluster = Cluster::start(1);
        let job = cluster.submit(0, &tiers("steps = 40", 1, "measured"));
        cluster.wait_for_one_hash(&[0], &job);
        losses(&cluster, &[0], &job)
    };
    assert_eq!(expected.len(), 2, "{expected:?}");
    let shared = [(0, 1, 3), (1, 2, 2), (2, 4, 1)];
    for (more, n_sources) in [(&[][..], 0), (&["--no-data"][..], 1)] {
        let cluster = started(more);
        let job = cluster.submit(0, &tiers("steps = 40", 3, "equal"));
        cluster.wait_for_one_hash(&[0, 1, 2], &job);
        let cut = stages(&cluster, &job);
        let sources = [(0, 0, 1)].iter().take(n_sources);
        assert!(cut.iter().eq(sources.chain(&shared)), "{cut:?}");
        let seen = losses(&cluster, &[0, 1, 2], &job);
        assert_eq!(seen.len(), 2, "leads alone look: {seen:?}");
        assert_alike(&format!("{more:?}"), &seen, &expected);
    }
}

#[test]
fn a_tier_that_is_lost_is_made_up_for_by_the_others_and_may_come_back() {
    for lost in [2, 0] {
        let mut cluster = started(&[]);
        let job = cluster.submit(0, &tiers("steps = 100", 3, "equal"));
        cluster.wait_for_step(&[0, 1, 2], &job, 20);
        cluster.node(lost).kill();
        let rest: Vec<usize> = (0..3).filter(|n| *n != lost).collect();
        cluster.wait_for_steps(&rest, &job, 30);
        cluster.restart(lost);
        cluster.wait_for_one_hash(&[0, 1, 2], &job);
        let last = *losses(&cluster, &[0, 1, 2], &job).last().unwrap();
        assert!(last.0 == 100 && last.1 < 0.5, "{lost}: {last:?}");
    }
}

#[test]
fn the_measured_plan_over_tiers_trains_where_only_the_device_has_the_data() {
    let cluster = started(&["--no-data"]);
    let job = cluster.submit(0, &tiers("steps = 60", 3, "measured"));
    let hash = cluster.wait_for_one_hash(&[0, 1, 2], &job);
    assert_eq!(cluster.node(2).result(&job).unwrap()["best"]["hash"], hash);
}

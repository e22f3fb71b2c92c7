//! `skein plan`: what a mesh measures is saved, edited, and planned with where no node runs.

use std::fs;

use serde_json::Value;
use skein_tests::{Cluster, Job, skein};

#[test]
fn what_two_peers_measure_can_be_saved_edited_and_planned_with_anywhere() {
    let cluster = Cluster::start(2);
    let job = Job {
        hidden: &[48, 48],
        batch: 32,
        ..Job::default()
    };
    let path = |name: &str| {
        let path = cluster.folder().join(name);
        path.to_string_lossy().into_owned()
    };
    let (file, saved, edited) = (path("job.toml"), path("mesh.toml"), path("edited.toml"));
    fs::write(&file, job.toml()).unwrap();
    let measured = cluster.node(0).json(&["plan", &file, "--save", &saved]);
    assert_eq!(measured["kind"], "plan", "{measured}");
    assert_eq!(measured["devices"].as_array().unwrap().len(), 2);
    assert_eq!(measured["step_samples"], 32);
    assert!(measured["cut"]["stages"].is_array(), "{measured}");
    cluster.wait("the end of the job that was only planned", || {
        let status = cluster.node(0).status()?;
        let job = status["jobs"].as_array()?.first()?;
        (job["phase"] == "stopped").then_some(())
    });
    let peer = cluster.node(1).peer().unwrap();
    for n in 0..2 {
        cluster.node(n).kill();
    }
    let told = |words: &[&str]| -> Value {
        let finished = skein([&["--json", "plan", &file], words].concat());
        assert_eq!(finished.code, Some(0), "{finished:?}");
        serde_json::from_str(&finished.out).unwrap()
    };
    let again = told(&["--profile", &saved, "--explain"]);
    for key in ["family", "devices", "step_samples"] {
        assert_eq!(again[key], measured[key], "{again}");
    }
    let (now, before) = (again["step_s"].as_f64(), measured["step_s"].as_f64());
    assert!((now.unwrap() / before.unwrap() - 1.0).abs() < 1e-6);
    assert_eq!(again["losses"].as_array().unwrap().len(), 2);
    let alone = told(&["--profile", &saved, "--without", &peer[..8]]);
    assert_eq!(alone["devices"].as_array().unwrap().len(), 1);
    assert_eq!(alone["family"], "single");
    let text = fs::read_to_string(&saved).unwrap();
    for (from, to, says) in [
        ("input_bytes", "input_octets", "input_octets"),
        ("micro_batch = ", "micro_batch = 0 # ", "of 0 samples"),
        (
            "capacity = ",
            "capacity = 0.0 # ",
            "capacity is not above 0",
        ),
    ] {
        fs::write(&edited, text.replace(from, to)).unwrap();
        // The job's own step would stand in for the one of the file.
        let stepless = job.toml().replace("batch = 32\n", "");
        fs::write(&file, stepless).unwrap();
        let refused = skein(["plan", &file, "--profile", &edited]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.err.contains(says), "{says} is not in {refused:?}");
    }
}

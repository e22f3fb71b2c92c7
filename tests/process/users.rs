//! What users do and do wrong: job files, tokens, homes, Ctrl-C, stopping from elsewhere, data that only some have.

use std::fs;
use std::path::Path;

use skein_tests::{Cluster, Job, skein};

#[test]
fn a_wrong_job_file_is_refused_with_the_key_the_line_and_the_fix() {
    let cluster = Cluster::start(1);
    let good = Job::default().toml();
    for (wrong, key, fix) in [
        (
            good.replace("batch =", "bach ="),
            "train.bach",
            "did you mean `batch`?",
        ),
        (
            good.replace("lr = 0.02", "lr = -1.0"),
            "train.optimiser.lr",
            "above 0",
        ),
        (
            good.replace("steps = 1000000000", ""),
            "stop",
            "add a section",
        ),
        (
            good.replace("\"mlp\"", "\"mlpp\""),
            "model.kind",
            "did you mean `mlp`?",
        ),
    ] {
        let file = cluster.folder().join("wrong.toml");
        fs::write(&file, &wrong).unwrap();
        let refused = cluster
            .node(0)
            .skein(&["train", &file.to_string_lossy(), "--detach"]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        for part in [key, fix, "line "] {
            assert!(refused.err.contains(part), "{part} is not in {refused:?}");
        }
    }
    let status = cluster.node(0).status().unwrap();
    assert_eq!(status["jobs"].as_array().unwrap().len(), 0, "{status}");
}

#[test]
fn a_token_with_a_typing_error_is_refused_with_exit_code_2() {
    let cluster = Cluster::start(1);
    let home = cluster.folder().join("another");
    let token = cluster.token();
    let at = token.len() / 2;
    let other = if &token[at..=at] == "a" { "b" } else { "a" };
    let mistyped = format!("{}{other}{}", &token[..at], &token[at + 1..]);
    for (token, says) in [
        (mistyped.as_str(), "mistyped or cut short"),
        (&token[..token.len() - 3], "mistyped or cut short"),
        ("hello", "it begins with skein1"),
    ] {
        let refused = skein([
            "--home",
            home.to_str().unwrap(),
            "up",
            "--no-mdns",
            "--join",
            token,
        ]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.err.contains(says), "{refused:?}");
    }
}

#[test]
fn a_second_peer_on_the_same_home_is_told_who_holds_it() {
    let cluster = Cluster::start(1);
    let node = cluster.node(0);
    let refused = node.skein(&["up", "--no-mdns", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, Some(5), "{refused:?}");
    let pid = node.pid().to_string();
    assert!(refused.err.contains(&pid), "{pid} is not in {refused:?}");
    assert!(refused.err.contains("--home"), "{refused:?}");
    assert!(node.status().is_some(), "the first goes on");
}

#[test]
fn a_control_socket_left_by_a_killed_peer_is_no_obstacle() {
    let mut cluster = Cluster::start(1);
    cluster.node(0).kill();
    assert!(cluster.node(0).home().join("control.sock").exists());
    let nobody = cluster.node(0).skein(&["status"]);
    assert_eq!(nobody.code, Some(3), "{nobody:?}");
    assert!(nobody.err.contains("skein up"), "{nobody:?}");
    cluster.restart(0);
    let status = cluster.node(0).skein(&["status"]);
    assert_eq!(status.code, Some(0), "{status:?}");
}

#[test]
fn another_peer_than_the_submitter_may_stop_a_job() {
    let cluster = Cluster::start(2);
    let job = Job {
        peers: 2,
        ..Job::default()
    };
    let job = cluster.submit(0, &job.toml());
    cluster.wait_for_step(&[0, 1], &job, 5);
    let stopped = cluster.node(1).skein(&["stop", "test"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    cluster.wait_for_one_hash(&[0, 1], &job);
    for n in [0, 1] {
        let status = cluster.node(n).job(&job).unwrap();
        assert_eq!(status["phase"], "stopped", "{status}");
        let reason = status["reason"].as_str().unwrap();
        assert!(reason.starts_with("stopped by "), "{reason}");
    }
    let again = cluster.node(0).skein(&["watch", "test"]);
    assert_eq!(again.code, Some(0), "{again:?}");
}

#[test]
fn ctrl_c_leaves_and_the_others_drop_the_peer_and_go_on() {
    let cluster = Cluster::start(3);
    let job = Job {
        peers: 3,
        ..Job::default()
    };
    let job = cluster.submit(0, &job.toml());
    cluster.wait_for_members(&[0, 1, 2], &job, 3);
    cluster.wait_for_steps(&[0, 1, 2], &job, 10);
    let began = std::time::Instant::now();
    cluster.node(0).signal("INT");
    let status = cluster.wait("the end of the process", || cluster.node(0).ended());
    println!("left after {:?}", began.elapsed());
    cluster.wait_for_members(&[1, 2], &job, 2);
    assert_eq!(status.code(), Some(0), "{}", cluster.node(0).stderr());
    assert_eq!(
        cluster.node(0).checkpoints(&job).len(),
        1,
        "what it held is saved: {}",
        cluster.node(0).stderr()
    );
    // Twice: at once, without an error.
    cluster.node(1).signal("INT");
    cluster.node(1).signal("INT");
    let status = cluster.wait("the end of the process", || cluster.node(1).ended());
    assert_eq!(status.code(), Some(0), "{}", cluster.node(1).stderr());
    cluster.wait_for_members(&[2], &job, 1);
    cluster.wait_for_steps(&[2], &job, 10);
    cluster.stop(2, &job);
    cluster.wait_for_one_hash(&[2], &job);
}

#[test]
fn a_peer_that_is_ended_in_mid_step_ends_well_every_time() {
    let mut cluster = Cluster::start(1);
    let job = Job {
        hidden: &[256, 128],
        batch: 64,
        ..Job::default()
    };
    let job = cluster.submit(0, &job.toml());
    for round in 0..6 {
        cluster.wait_for_members(&[0], &job, 1);
        cluster.wait_for_steps(&[0], &job, 3);
        let signal = if round % 2 == 0 { "INT" } else { "TERM" };
        cluster.node(0).signal(signal);
        let status = cluster.wait("the end of the process", || cluster.node(0).ended());
        let stderr = cluster.node(0).stderr();
        assert_eq!(
            status.code(),
            Some(0),
            "{status} in round {round}: {stderr}"
        );
        cluster.restart(0);
    }
}

/// Writes `x.npy` and `y.npy`: `n` rows of 8 numbers in two classes that are easily told apart.
pub(crate) fn write_readings(folder: &Path, n: usize) {
    let npy = |header: String, values: Vec<u8>| {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        let padded = format!("{header:<117}\n");
        bytes.extend((padded.len() as u16).to_le_bytes());
        bytes.extend(padded.into_bytes());
        bytes.extend(values);
        bytes
    };
    let value = |row: usize, column: usize| {
        let sign = if row.is_multiple_of(2) { 1.0 } else { -1.0 };
        sign + ((row * 31 + column * 17) % 13) as f32 / 13.0
    };
    let x = (0..n).flat_map(|row| (0..8).flat_map(move |column| value(row, column).to_le_bytes()));
    let y = (0..n).flat_map(|row| ((row % 2) as i64).to_le_bytes());
    let header = |descr: &str, shape: String| {
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}")
    };
    fs::create_dir_all(folder).unwrap();
    fs::write(
        folder.join("x.npy"),
        npy(header("<f4", format!("({n}, 8)")), x.collect()),
    )
    .unwrap();
    fs::write(
        folder.join("y.npy"),
        npy(header("<i8", format!("({n},)")), y.collect()),
    )
    .unwrap();
}

#[test]
fn a_peer_without_the_private_data_says_so_and_the_others_train() {
    let mut cluster = Cluster::empty();
    for n in 0..2 {
        let folder = cluster.folder().join(format!("readings{n}"));
        write_readings(&folder, 200 + 50 * n);
        let data = format!("readings={}", folder.display());
        cluster.add_with(&["--data", &data]);
    }
    cluster.add();
    cluster.connected();
    let job = Job {
        data: "source = \"npy\"\nname = \"readings\"\nclasses = 2",
        peers: 2,
        ..Job::default()
    };
    // The one without data submits it.
    let job = cluster.submit(2, &job.toml());
    let failed = cluster.wait("the failure", || {
        let status = cluster.node(2).job(&job)?;
        (status["phase"] == "failed").then_some(status)
    });
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("--data readings=PATH"), "{reason}");
    let event = cluster.node(2).events(&job, "failed").pop();
    assert_eq!(event.unwrap()["reason"], reason);
    cluster.wait_for_members(&[0, 1], &job, 2);
    cluster.wait_for_steps(&[0, 1], &job, 10);
    // It has no part in the job, but a say.
    cluster.stop(2, &job);
    cluster.wait_for_one_hash(&[0, 1], &job);
    assert_eq!(cluster.node(2).phase(&job).as_deref(), Some("failed"));
}

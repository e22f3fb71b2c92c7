//! A cable that is pulled while the mesh trains.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::netns::Lab;
use crate::peer::{Peer, fully_connected, skein, until};
use crate::{DEADLINE, bare_token, say, start_all};

/// Ends only when it is told to.
const JOB: &str = r#"
name = "outage"
[model]
kind = "mlp"
hidden = [32]
[data]
source = "digits"
[stop]
seconds = 600
[start]
peers = 4
[strategy.exchange]
most = 0.05
"#;
/// How long the cable is out at least.
const OUT: Duration = Duration::from_secs(5);

fn job(peer: &Peer) -> Result<Value, String> {
    let answer = peer.ask("jobs").map_err(|error| error.to_string())?;
    let job = answer["jobs"].get(0).cloned();
    job.ok_or_else(|| answer.to_string())
}

/// Waits until the job at `peer` has `count` members and trains.
#[track_caller]
fn members(peer: &Peer, count: usize) -> u64 {
    until(&format!("{count} members that train"), DEADLINE, || {
        let job = job(peer)?;
        let members = job["peers"].as_array().map_or(0, Vec::len);
        let step = job["step"].as_u64().filter(|step| *step > 0);
        step.filter(|_| members == count && job["phase"] == "running")
            .ok_or_else(|| job.to_string())
    })
}

#[test]
fn a_peer_whose_cable_is_pulled_is_dropped_and_comes_back_and_all_end_with_one_model() {
    let Some(lab) = Lab::new(4) else { return };
    let folder = TempDir::new().unwrap();
    let token = bare_token(&lab, folder.path());
    let peers = start_all(&lab, 4, folder.path(), &["--join", &token]);
    fully_connected(&peers, DEADLINE);
    let file = folder.path().join("job.toml");
    fs::write(&file, JOB).unwrap();
    let call = |words: &[&str]| {
        let home = peers[0].home.to_str().unwrap();
        let output = skein(None, &[words, &["--home", home]].concat())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    call(&["train", "--detach", file.to_str().unwrap()]);
    for peer in &peers {
        members(peer, 4);
    }

    lab.machines[3].ip(&["link", "set", "eth0", "down"]);
    let cut = Instant::now();
    let mut before = 0;
    for peer in &peers[..3] {
        before = members(peer, 3).max(before);
    }
    say(&format!("dropped after {:.2?}", cut.elapsed()));
    // The others train on meanwhile.
    until("steps without it", DEADLINE, || {
        let job = job(&peers[0])?;
        let on = job["step"].as_u64() > Some(before) && cut.elapsed() >= OUT;
        if on { Ok(()) } else { Err(job.to_string()) }
    });
    lab.machines[3].ip(&["link", "set", "eth0", "up"]);
    let back = Instant::now();
    for peer in &peers {
        members(peer, 4);
    }
    say(&format!("back after {:.2?}", back.elapsed()));
    fully_connected(&peers, DEADLINE);

    call(&["stop", "outage"]);
    let hashes: Vec<String> = peers
        .iter()
        .map(|peer| {
            until("the end of the job", DEADLINE, || {
                let job = job(peer)?;
                let ended = job["phase"] == "done" || job["phase"] == "stopped";
                let hash = job["model_hash"].as_str().filter(|_| ended);
                hash.map(str::to_owned).ok_or_else(|| job.to_string())
            })
        })
        .collect();
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

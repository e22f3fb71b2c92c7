//! How peers find each other: by multicast, by one address each, and by what they remember.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::netns::Lab;
use crate::peer::{self, Peer, fully_connected, skein, strings, until};
use crate::{DEADLINE, bare_token, say, start_all};

/// What the project promises from the last start to full connection, on a machine that is not loaded.
const PROMISE: Duration = Duration::from_secs(3);
/// What is asserted on any machine.
const PATIENCE: Duration = Duration::from_secs(15);

fn setting(name: &str) -> Option<u32> {
    Some(std::env::var(name).ok()?.parse().unwrap())
}

#[test]
fn four_peers_with_one_token_and_no_addresses_find_each_other_and_not_the_stranger() {
    let Some(lab) = Lab::new(5) else { return };
    let folder = TempDir::new().unwrap();
    let token = bare_token(&lab, folder.path());
    let stranger = Peer::start(&lab.machines[4], &folder.path().join("stranger"), &[]);
    let strange = stranger.id();
    let mut times = Vec::new();
    for round in 0..setting("LAB_STARTS").unwrap_or(5) {
        let homes = folder.path().join(round.to_string());
        let mut peers = start_all(&lab, 4, &homes, &["--join", &token]);
        let began = Instant::now();
        fully_connected(&peers, PATIENCE);
        let took = began.elapsed();
        say(&format!(
            "start {round}: {took:.2?} from the last start to full connection"
        ));
        times.push(took);

        let home = peers[0].home.to_str().unwrap();
        let shown = skein(None, &["peers", "--json", "--home", home])
            .output()
            .unwrap();
        let shown = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!(peer::connected(&shown).len(), 3, "{shown}");
        for peer in &peers {
            until("the stranger is heard", DEADLINE, || {
                let facts = peer.ask("doctor").map_err(|error| error.to_string())?;
                let heard = facts["foreign_announcements"].as_u64();
                heard
                    .filter(|count| *count > 0)
                    .ok_or_else(|| facts.to_string())
            });
            let known = peer.told("peers").to_string();
            assert!(
                !known.contains(&strange) && !known.contains("10.77.0.5"),
                "{known}"
            );
        }
        assert_eq!(stranger.told("peers")["peers"].as_array().unwrap().len(), 0);
        for peer in &mut peers {
            assert!(peer.interrupt().success(), "{}", peer.log());
        }
    }
    let kept = times.iter().filter(|took| **took <= PROMISE).count();
    say(&format!(
        "{kept} of {} starts within {PROMISE:?}",
        times.len()
    ));
    if setting("LAB_STRICT").is_some_and(|strict| strict != 0) {
        assert_eq!(kept, times.len(), "{times:?}");
    }
}

/// No address that a peer tells of itself or knows of others is a loopback one.
fn no_loopback(peers: &[Peer]) {
    for peer in peers {
        let mut addresses = peer.listening();
        let known = peer.told("peers");
        for row in known["peers"].as_array().unwrap() {
            addresses.extend(strings(&row["addresses"]));
        }
        assert!(
            addresses.iter().all(|a| a.starts_with("10.77.0.")),
            "{addresses:?}"
        );
    }
}

#[test]
fn a_chain_of_single_addresses_is_enough_and_is_remembered_and_a_copied_identity_is_named() {
    let Some(lab) = Lab::new(5) else { return };
    let folder = TempDir::new().unwrap();
    let token = bare_token(&lab, folder.path());
    let mut peers: Vec<Peer> = Vec::new();
    for (i, machine) in lab.machines.iter().take(4).enumerate() {
        let mut words = vec!["--join", &token, "--no-mdns"];
        let before = peers.last().map(|peer| peer.listening().remove(0));
        if let Some(address) = &before {
            words.extend(["--peer", address]);
        }
        peers.push(Peer::start(
            machine,
            &folder.path().join(format!("p{i}")),
            &words,
        ));
    }
    fully_connected(&peers, DEADLINE);
    let known = peers[3].told("peers");
    let first = peer::row(&known, &peers[0].id()).unwrap();
    assert_eq!(first["via"], "learnt", "{first}");
    no_loopback(&peers);
    let ports: Vec<Vec<String>> = peers.iter().map(Peer::listening).collect();

    for peer in &mut peers {
        assert!(peer.interrupt().success(), "{}", peer.log());
    }
    drop(peers);
    let mut peers = start_all(&lab, 4, folder.path(), &["--no-mdns"]);
    let began = Instant::now();
    fully_connected(&peers, DEADLINE);
    say(&format!(
        "remembered: {:.2?} from the last start to full connection",
        began.elapsed()
    ));
    assert_eq!(peers.iter().map(Peer::listening).collect::<Vec<_>>(), ports);
    no_loopback(&peers);

    // As after a power cut.
    drop(peers);
    peers = start_all(&lab, 4, folder.path(), &["--no-mdns"]);
    fully_connected(&peers, DEADLINE);

    copies_end(&lab, folder.path(), &mut peers);
}

/// A copy of the first peer's home is started on the fifth machine: it ends and says why; the mesh goes on.
fn copies_end(lab: &Lab, folder: &Path, peers: &mut [Peer]) {
    until("the first peer is no newcomer", DEADLINE, || {
        let uptime = peers[0].told("status")["uptime_s"].as_u64().unwrap();
        if uptime > 20 {
            Ok(())
        } else {
            Err(format!("{uptime} s"))
        }
    });
    for (name, words) in [("heard", &[][..]), ("remembered", &["--no-mdns"])] {
        let home = folder.join(name);
        let copied = Command::new("cp")
            .arg("-r")
            .arg(&peers[0].home)
            .arg(&home)
            .status();
        assert!(copied.unwrap().success());
        fs::remove_file(home.join("up.log")).unwrap();
        let mut copy = Peer::start(&lab.machines[4], &home, words);
        let began = Instant::now();
        let status = copy.ended(DEADLINE);
        let said = copy.log();
        say(&format!(
            "copied identity ({name}): ended after {:.2?}",
            began.elapsed()
        ));
        assert!(
            !status.success() && said.contains("another process uses this identity, at 10.77.0.1"),
            "{said}"
        );
        assert!(peers[0].runs());
        fully_connected(peers, DEADLINE);
    }
}

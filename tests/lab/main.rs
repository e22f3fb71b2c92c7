//! Peers in a local network: real processes on machines made of network namespaces. Skipped, with the reason printed,
//! where these are not permitted (they need root and the command `ip`).
//!
//! `LAB_STARTS=20` makes that many starts in the discovery test, `LAB_STRICT=1` fails a start that takes over 3 s.

#![expect(
    clippy::unwrap_used,
    reason = "a lab that cannot be built has to stop the test"
)]

mod netns;
mod peer;

use std::path::Path;
use std::time::{Duration, Instant};

use netns::Lab;
use peer::{Peer, fully_connected, skein, until};
use tempfile::TempDir;

/// A machine with a high load needs longer for everything; met only on failure.
const DEADLINE: Duration = Duration::from_secs(60);
/// What the project promises from the last start to full connection, on a machine that is not loaded.
const PROMISE: Duration = Duration::from_secs(3);
/// What is asserted on any machine.
const PATIENCE: Duration = Duration::from_secs(15);

/// The token of a new mesh without any address in it: from a peer that no cable leads to.
fn bare_token(lab: &Lab, folder: &Path) -> String {
    let mut maker = Peer::start(lab.island(), &folder.join("maker"), &["--no-mdns"]);
    let line = maker.told("status")["join_line"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(maker.interrupt().success(), "{}", maker.log());
    line.rsplit(' ').next().unwrap().to_owned()
}

/// Starts a peer per machine of the first `count`, with homes below `folder`.
fn start_all(lab: &Lab, count: usize, folder: &Path, words: &[&str]) -> Vec<Peer> {
    let numbered = lab.machines.iter().take(count).enumerate();
    numbered
        .map(|(i, machine)| Peer::start(machine, &folder.join(format!("p{i}")), words))
        .collect()
}

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
        println!("start {round}: {took:.2?} from the last start to full connection");
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
    println!("{kept} of {} starts within {PROMISE:?}", times.len());
    if setting("LAB_STRICT").is_some_and(|strict| strict != 0) {
        assert_eq!(kept, times.len(), "{times:?}");
    }
}

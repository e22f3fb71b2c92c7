//! Peers in a local network: real processes on machines made of network namespaces. Skipped, with the reason printed,
//! where these are not permitted (they need root and the command `ip`).
//!
//! `LAB_STARTS=20` makes that many starts in the discovery test, `LAB_STRICT=1` fails a start that takes over 3 s.

#![expect(
    clippy::unwrap_used,
    reason = "a lab that cannot be built has to stop the test"
)]

mod attack;
mod discovery;
mod heartbeat;
mod netns;
mod outage;
mod peer;
mod reach;

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use netns::Lab;
use peer::Peer;

/// A machine with a high load needs longer for everything; met only on failure.
const DEADLINE: Duration = Duration::from_secs(60);

/// Prints past the test harness, which keeps what is printed by a test that passes.
fn say(text: &str) {
    // Nobody is told where there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "lab: {text}");
}

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

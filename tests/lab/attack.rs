//! Somebody in the same network without the mesh key: a port scan, noise, connections that never go on, a wrong key.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::netns::Lab;
use crate::peer::{Peer, fully_connected, until};
use crate::{DEADLINE, bare_token, say, start_all};

/// Names the target to the attacker, which is this very program on another machine of the lab.
const TARGET: &str = "LAB_TARGET";
/// Where the attacker says how far it is.
const REPORT: &str = "LAB_REPORT";
/// Connections that are held open.
const HELD: usize = 400;
/// All that a stranger gets: the nonce of the mesh key's cipher, random bytes.
const NONCE: usize = 24;
/// Memory that all of this may cost the target, in KiB.
const MEMORY: u64 = 64 << 10;

/// No test by itself: what the attacker does, until it is killed.
#[test]
fn attacker() {
    let Ok(target) = std::env::var(TARGET) else {
        return;
    };
    let target: SocketAddr = target.parse().unwrap();
    let report = std::env::var(REPORT).unwrap();
    for noise in [
        &b""[..],
        b"GET / HTTP/1.1\r\n\r\n",
        &[0; 1 << 16],
        &[0xff; 1 << 16],
    ] {
        let mut stream = TcpStream::connect(target).unwrap();
        // It may be closed already: that is the point.
        let _ = stream.write_all(noise);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        assert!(
            got.len() <= NONCE,
            "{} bytes after {} of noise",
            got.len(),
            noise.len()
        );
    }
    fs::write(Path::new(&report).join("noise"), "").unwrap();
    let mut held = Vec::new();
    loop {
        if held.len() == HELD {
            fs::write(Path::new(&report).join("held"), "").unwrap();
            held.clear();
        }
        let connected = TcpStream::connect_timeout(&target, Duration::from_secs(1));
        if let Ok(mut stream) = connected {
            // One byte of the nonce that is waited for.
            let _ = stream.write_all(&[7]);
            held.push(stream);
        }
    }
}

fn resident_kib(peer: &Peer) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", peer.pid())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_stranger_learns_nothing_takes_no_memory_and_keeps_nobody_out() {
    let Some(lab) = Lab::new(4) else { return };
    let folder = TempDir::new().unwrap();
    let token = bare_token(&lab, folder.path());
    let mut peers = start_all(&lab, 2, folder.path(), &["--join", &token]);
    fully_connected(&peers, DEADLINE);
    let target = peers[0].listening().remove(0);
    let before = resident_kib(&peers[0]);

    let strange = ["--no-mdns", "--peer", &target];
    let stranger = Peer::start(&lab.machines[3], &folder.path().join("stranger"), &strange);
    until("the stranger was refused", DEADLINE, || {
        let known = stranger.told("peers");
        let row = known["peers"].get(0).cloned().unwrap_or_default();
        let refused = row["state"] == "dialling" && row["reason"].is_string();
        if refused {
            Ok(())
        } else {
            Err(known.to_string())
        }
    });

    let mut attack = lab.machines[3].command(&std::env::current_exe().unwrap());
    attack.args(["attack::attacker", "--exact"]);
    attack.env(TARGET, &target).env(REPORT, folder.path());
    let mut attack = attack.spawn().unwrap();
    let held = folder.path().join("held");
    until("the attack", DEADLINE, || {
        let ended = attack.try_wait().unwrap();
        assert!(ended.is_none(), "the attacker failed");
        if held.exists() {
            Ok(())
        } else {
            Err("it goes on".to_owned())
        }
    });
    // It goes on while another peer joins.
    let third = folder.path().join("third");
    peers.push(Peer::start(&lab.machines[2], &third, &["--join", &token]));
    fully_connected(&peers, DEADLINE);
    let more = resident_kib(&peers[0]).saturating_sub(before);
    say(&format!("the attack cost {more} KiB"));
    attack.kill().unwrap();
    attack.wait().unwrap();
    assert!(more < MEMORY, "{more} KiB more");
    assert_eq!(peers[0].connected().unwrap().len(), 2);
    let known = stranger.told("peers");
    assert!(
        known["peers"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["id"].is_null()),
        "{known}"
    );
}

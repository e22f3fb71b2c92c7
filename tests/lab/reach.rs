//! What cannot be reached, or should not be tried first.

use tempfile::TempDir;

use crate::netns::Lab;
use crate::peer::{fully_connected, row, strings, until};
use crate::{DEADLINE, bare_token, start_all};

#[test]
fn a_peer_that_nobody_can_dial_dials_and_two_of_them_are_shown_with_the_reason() {
    let Some(lab) = Lab::new(4) else { return };
    if !lab.machines[3].refuse_inbound() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let token = bare_token(&lab, folder.path());
    let one = folder.path().join("one");
    let peers = start_all(&lab, 4, &one, &["--join", &token]);
    fully_connected(&peers, DEADLINE);
    drop(peers);

    assert!(lab.machines[2].refuse_inbound());
    let peers = start_all(&lab, 4, &folder.path().join("two"), &["--join", &token]);
    let ids: Vec<String> = peers.iter().map(|peer| peer.id()).collect();
    for (i, count) in [(0, 3), (1, 3), (2, 2), (3, 2)] {
        until("all that can be reached", DEADLINE, || {
            let connected = peers[i].connected().map_err(|error| error.to_string())?;
            if connected.len() == count {
                Ok(())
            } else {
                Err(format!("{i}: {connected:?}"))
            }
        });
    }
    for (from, to) in [(2, 3), (3, 2)] {
        until("the reason is shown", DEADLINE, || {
            let answer = peers[from].told("peers");
            let row = row(&answer, &ids[to]).ok_or_else(|| answer.to_string())?;
            let reason = row["reason"].as_str().unwrap_or_default();
            let address = &lab.machines[to].address;
            if row["state"] == "one_way" && reason.contains(address) && reason.contains("no answer")
            {
                // Known under its id alone, not once more as an address.
                assert_eq!(answer["peers"].as_array().unwrap().len(), 3, "{answer}");
                return Ok(());
            }
            Err(answer.to_string())
        });
    }
}

#[test]
fn an_address_that_all_machines_have_is_never_the_first_choice() {
    let Some(lab) = Lab::new(3) else { return };
    for machine in &lab.machines {
        machine.ip(&["link", "add", "docker0", "type", "bridge"]);
        machine.ip(&["address", "add", "172.17.0.1/16", "dev", "docker0"]);
        machine.ip(&["link", "set", "docker0", "up"]);
    }
    let folder = TempDir::new().unwrap();
    let token = bare_token(&lab, folder.path());
    let peers = start_all(&lab, 3, folder.path(), &["--join", &token]);
    fully_connected(&peers, DEADLINE);
    for peer in &peers {
        assert!(
            peer.listening()[0].starts_with("10.77.0."),
            "{:?}",
            peer.listening()
        );
        let known = peer.told("peers");
        for row in known["peers"].as_array().unwrap() {
            let addresses = strings(&row["addresses"]);
            assert!(
                addresses.iter().any(|a| a.starts_with("10.77.0.")),
                "{known}"
            );
            assert!(!addresses[0].starts_with("172.17."), "{known}");
        }
        let log = peer.log();
        assert!(!log.contains("another process uses"), "{log}");
    }
}

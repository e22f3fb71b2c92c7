//! What the running node knows: peers that are heard but not reached, other clocks, its own discovery.

use super::finding::Finding;
use crate::control::{NodeFacts, PeerState};

/// Clocks further apart make times in logs and reports confusing; nothing else depends on them.
const CLOCK_MS: i64 = 5000;

/// All findings about the node and its peers.
pub(super) fn findings(facts: &NodeFacts) -> Vec<Finding> {
    let connected = facts
        .peers
        .iter()
        .filter(|peer| peer.state == PeerState::Connected)
        .count();
    let listening = facts
        .listening
        .first()
        .map_or_else(|| "nowhere".into(), Clone::clone);
    let message = format!(
        "running, listens on {listening}, {connected} peers connected, {} threads",
        facts.training_threads
    );
    let mut findings = vec![Finding::good("node", message)];
    if let Some(reason) = &facts.mdns_error {
        let fix = "mend what is named, or give peers with --peer";
        findings.push(Finding::warning(
            "discovery",
            format!("multicast discovery does not work: {reason}"),
            fix,
        ));
    } else {
        let message = format!(
            "{} announcements of this mesh heard, {} of others",
            facts.announcements, facts.foreign_announcements
        );
        findings.push(Finding::good("discovery", message));
    }
    for peer in &facts.peers {
        let name = peer.label();
        let reason = peer.reason.as_deref().unwrap_or("no answer");
        let addresses = peer.addresses.join(", ");
        match peer.state {
            PeerState::OneWay => findings.push(Finding::warning(
                "peer",
                format!("{name} is heard, but dialling {addresses} fails: {reason}"),
                "allow its port in the firewall of that machine, or fix the port with --listen IP:PORT there",
            )),
            PeerState::Dialling => findings.push(Finding::note(
                "peer",
                format!("{name} at {addresses} does not answer yet: {reason}"),
                "check that skein runs there and that the machine is in this network",
            )),
            PeerState::Unusable => {
                findings.push(Finding::warning("peer", format!("{name}: {reason}"), "run the same version of skein on both"));
            }
            PeerState::Suspected => {
                findings.push(Finding::note("peer", format!("{name} is connected but silent"), "it may be asleep or overloaded"));
            }
            PeerState::Connected | PeerState::Lost => {}
        }
        if let Some(offset) = peer
            .clock_offset_ms
            .filter(|offset| offset.abs() > CLOCK_MS)
        {
            let message = format!("that of {name} differs by {:.1} s", offset as f64 / 1000.0);
            findings.push(Finding::warning(
                "clock",
                message,
                "set both with NTP: timedatectl set-ntp true",
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Grade;
    use super::*;
    use crate::control::PeerStatus;

    fn peer(state: PeerState, clock_offset_ms: Option<i64>) -> PeerStatus {
        PeerStatus {
            id: None,
            addresses: vec!["10.0.0.2:4001".into()],
            state,
            via: "mdns".into(),
            rtt_ms: None,
            reason: Some("connection refused".into()),
            bytes_in: 0,
            bytes_out: 0,
            version: None,
            clock_offset_ms,
        }
    }

    #[test]
    fn a_peer_that_is_heard_but_not_reached_is_shown_with_reason_and_fix() {
        let facts = NodeFacts {
            peers: vec![peer(PeerState::OneWay, None)],
            ..NodeFacts::default()
        };
        let findings = findings(&facts);
        let text = findings[2].to_string();
        assert!(
            text.contains("10.0.0.2:4001")
                && text.contains("connection refused")
                && text.contains("--listen"),
            "{text}"
        );
    }

    #[test]
    fn connected_peers_with_the_right_time_need_no_word() {
        let grades = |facts: &NodeFacts| {
            findings(facts)
                .iter()
                .map(|finding| finding.grade)
                .collect::<Vec<_>>()
        };
        let mut facts = NodeFacts {
            peers: vec![peer(PeerState::Connected, Some(-20))],
            ..NodeFacts::default()
        };
        assert_eq!(grades(&facts), [Grade::Good, Grade::Good]);
        facts.peers[0].clock_offset_ms = Some(-60_000);
        facts.mdns_error = Some("no interface".into());
        assert_eq!(
            grades(&facts),
            [Grade::Good, Grade::Warning, Grade::Warning]
        );
    }
}

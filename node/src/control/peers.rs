//! What the network knows about a peer, in the words of the control socket.

use std::time::Duration;

use super::status::{PeerState, PeerStatus};
use crate::net::{self, PeerInfo, Via};

impl From<PeerInfo> for PeerStatus {
    /// `clock_offset_ms` is left unknown; whoever hears the peer's time fills it in.
    fn from(info: PeerInfo) -> Self {
        let (state, reason) = state(&info.state);
        let rtt = match &info.state {
            net::PeerState::Connected { rtt, .. } => *rtt,
            _ => None,
        };
        let traffic = &info.traffic;
        Self {
            id: info.peer.map(Into::into),
            state,
            via: info.via.iter().map(via).collect::<Vec<_>>().join("+"),
            rtt_ms: rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
            reason,
            bytes_in: traffic.control_in + traffic.update_in + traffic.request_in,
            bytes_out: traffic.control_out + traffic.update_out + traffic.request_out,
            version: info.software.clone(),
            clock_offset_ms: None,
            addresses: info.addresses,
        }
    }
}

fn state(state: &net::PeerState) -> (PeerState, Option<String>) {
    let short = |time: Duration| format!("{:.0} s", time.as_secs_f64());
    match state {
        net::PeerState::Connected { .. } => (PeerState::Connected, None),
        net::PeerState::Dialing {
            since,
            attempts,
            next_try,
            reason,
        } => {
            let why = reason
                .as_ref()
                .map_or(String::new(), |why| format!(": {why}"));
            let tried = format!(
                "{attempts} tries failed in {}, next in {}{why}",
                short(*since),
                short(*next_try)
            );
            (PeerState::Dialling, Some(tried).filter(|_| *attempts > 0))
        }
        net::PeerState::OneWay { reason } => (PeerState::OneWay, Some(reason.clone())),
        net::PeerState::Unusable { reason } => (PeerState::Unusable, Some(reason.clone())),
        net::PeerState::Lost => (PeerState::Lost, None),
    }
}

fn via(via: &Via) -> &'static str {
    match via {
        Via::Flag => "given",
        Via::Remembered => "remembered",
        Via::Mdns => "mdns",
        Via::Learnt => "learnt",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(state: net::PeerState) -> PeerInfo {
        PeerInfo {
            peer: None,
            addresses: vec!["10.0.0.2:4001".into()],
            via: vec![Via::Flag, Via::Mdns],
            state,
            software: Some("0.1.0".into()),
            traffic: Default::default(),
        }
    }

    #[test]
    fn a_peer_is_shown_with_how_it_was_found_and_why_it_is_not_connected() {
        let dialing = net::PeerState::Dialing {
            since: Duration::from_secs(9),
            attempts: 3,
            next_try: Duration::from_secs(4),
            reason: Some("refused".into()),
        };
        let status = PeerStatus::from(info(dialing));
        assert_eq!(
            (status.state, status.via.as_str()),
            (PeerState::Dialling, "given+mdns")
        );
        assert_eq!(
            status.reason.as_deref(),
            Some("3 tries failed in 9 s, next in 4 s: refused")
        );
        assert_eq!(status.label(), "10.0.0.2:4001");
        let refused = net::PeerState::OneWay {
            reason: "refused".into(),
        };
        assert_eq!(
            PeerStatus::from(info(refused)).reason.as_deref(),
            Some("refused")
        );
    }
}

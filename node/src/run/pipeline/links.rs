//! What the links between candidates carry, for plans: as measured, else as far as it can be told, else as assumed.

use skein_gossip::pipeline::agreement::Candidate;
use skein_gossip::pipeline::links::{LinkRate, measured, towards};
use skein_model::plan;

use crate::control::LinkKnown;
use crate::planning::HAND_OVER;

/// Bytes per second that a link is reckoned with of which nothing is known: 100 Mbit/s.
const ASSUMED_RATE: f64 = 12.5e6;
/// Seconds of the way there that are assumed: of a wired LAN.
const ASSUMED_WAY: f64 = 0.5e-3;

/// One direction between two candidates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Link {
    /// Bytes per second.
    pub(super) rate: f64,
    /// Seconds from the end of sending to the end of receiving.
    pub(super) latency: f64,
    /// How the rate is known.
    pub(super) known: LinkKnown,
}

/// The link from one candidate to another.
pub(super) fn link(from: &Candidate, to: &Candidate) -> Link {
    let (there, back) = (rates(from), rates(to));
    let (direct, reverse) = (towards(there, to.peer), towards(back, from.peer));
    let bound = direct.map_or(0.0, |rate| f64::from(rate.bytes_per_s));
    let (rate, known) = match (measured(there, to.peer), measured(back, from.peer)) {
        (Some(rate), _) => (rate, LinkKnown::Measured),
        (None, Some(rate)) => (rate.max(bound), LinkKnown::OtherWay),
        (None, None) if bound > ASSUMED_RATE => (bound, LinkKnown::AtLeast),
        (None, None) => (ASSUMED_RATE, LinkKnown::Assumed),
    };
    let trip = direct
        .or(reverse)
        .map(|rate| f64::from(rate.round_trip_us) / 1e6);
    Link {
        rate,
        latency: trip.map_or(ASSUMED_WAY, |trip| trip / 2.0) + HAND_OVER,
        known,
    }
}

fn rates(of: &Candidate) -> &[LinkRate] {
    let profile = of.profile.as_ref();
    profile
        .map(|profile| profile.rates.as_slice())
        .unwrap_or_default()
}

/// All links between `hosts`, for a planner. Both directions of one carry their rate at once.
pub(super) fn matrix(hosts: &[&Candidate]) -> plan::Links {
    let rows = hosts.iter().map(|from| {
        let row = hosts.iter().map(|to| link(from, to));
        row.map(|link| (link.rate, link.latency)).unzip()
    });
    let (rate, latency) = rows.unzip();
    plan::Links {
        rate,
        latency,
        shared: false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use skein_gossip::ids::PeerId;
    use skein_gossip::pipeline::message::Profile;

    use super::*;

    fn candidate(peer: u8, rates: &[(u8, f32, bool)]) -> Candidate {
        let rate = |(peer, bytes_per_s, is_bound): &(u8, f32, bool)| LinkRate {
            peer: PeerId([*peer; 32]),
            bytes_per_s: *bytes_per_s,
            round_trip_us: 4000,
            is_bound: *is_bound,
        };
        Candidate {
            peer: PeerId([peer; 32]),
            has_data: true,
            profile: Some(Arc::new(Profile {
                rates: rates.iter().map(rate).collect(),
                ..Profile::default()
            })),
            slowdown: 1.0,
        }
    }

    #[test]
    fn what_is_measured_counts_before_the_other_way_and_that_before_what_is_assumed() {
        let known = |there: &[(u8, f32, bool)], back: &[(u8, f32, bool)]| {
            let link = link(&candidate(1, there), &candidate(2, back));
            (link.rate, link.known)
        };
        assert_eq!(known(&[], &[]), (12.5e6, LinkKnown::Assumed));
        assert_eq!(known(&[(3, 1e6, false)], &[]), (12.5e6, LinkKnown::Assumed));
        assert_eq!(known(&[], &[(1, 1e6, false)]), (1e6, LinkKnown::OtherWay));
        assert_eq!(
            known(&[(2, 2e6, false)], &[(1, 1e6, false)]),
            (2e6, LinkKnown::Measured)
        );
        // That little was sent says nothing against what is assumed; that much was, does.
        assert_eq!(known(&[(2, 1e3, true)], &[]), (12.5e6, LinkKnown::Assumed));
        assert_eq!(known(&[(2, 5e7, true)], &[]), (5e7, LinkKnown::AtLeast));
        let far = link(&candidate(1, &[]), &candidate(2, &[(1, 1e6, false)]));
        assert_eq!(far.latency, 2e-3 + HAND_OVER);
    }
}

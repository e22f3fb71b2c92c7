//! What the links between a pipeline's peers carry: each peer measures its own from what it sends, and says so with its profile, so
//! that the steward plans with what all links do (FTPipeHD, on partition: bandwidth is measured by each worker towards its successor;
//! here by real transfers, see [`crate::transfer::capacity`], and towards everybody).

use serde::{Deserialize, Serialize};

use crate::ids::PeerId;
use crate::transfer::capacity::Capacity;

/// No link carries more, bytes per second.
const MOST_RATE: f32 = 1e12;
/// No round trip takes longer, microseconds.
const MOST_TRIP_US: u32 = 60_000_000;
/// A rate is told again when it is so many times what was told, or this part of it; a bound when it has doubled.
const NEWS: f32 = 1.25;
/// As to round trips: half as long again, and a millisecond.
const NEWS_TRIP_US: u32 = 1_000;

/// What the link to one peer carries.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkRate {
    /// The other end.
    pub peer: PeerId,
    /// Bytes per second towards it.
    pub bytes_per_s: f32,
    /// Round trip of a small piece on the idle link, microseconds.
    pub round_trip_us: u32,
    /// It was never the link that limited a transfer: it carries at least so much.
    pub is_bound: bool,
}

impl LinkRate {
    /// As measured.
    pub fn new(peer: PeerId, capacity: Capacity) -> Self {
        let trip = u32::try_from(capacity.round_trip.as_micros());
        Self {
            peer,
            bytes_per_s: (capacity.bytes_per_s as f32).clamp(1.0, MOST_RATE),
            round_trip_us: trip.unwrap_or(MOST_TRIP_US).min(MOST_TRIP_US),
            is_bound: capacity.is_bound,
        }
    }

    /// Whether a link can be so.
    pub fn is_sound(&self) -> bool {
        (1.0..=MOST_RATE).contains(&self.bytes_per_s) && self.round_trip_us <= MOST_TRIP_US
    }

    fn is_news(&self, told: &Self) -> bool {
        let ratio = self.bytes_per_s / told.bytes_per_s;
        let rate = match (told.is_bound, self.is_bound) {
            (true, true) => ratio > 2.0,
            (true, false) => true,
            (false, true) => false,
            (false, false) => !(1.0 / NEWS..=NEWS).contains(&ratio),
        };
        let (less, more) = (
            told.round_trip_us.min(self.round_trip_us),
            told.round_trip_us.max(self.round_trip_us),
        );
        rate || more - less > NEWS_TRIP_US.max(less / 2)
    }
}

/// What is known of the link to `peer`.
pub fn towards(rates: &[LinkRate], peer: PeerId) -> Option<&LinkRate> {
    rates.iter().find(|rate| rate.peer == peer)
}

/// Bytes per second to `peer`, where it was the link that limited transfers.
pub fn measured(rates: &[LinkRate], peer: PeerId) -> Option<f64> {
    let rate = towards(rates, peer).filter(|rate| !rate.is_bound)?;
    Some(f64::from(rate.bytes_per_s))
}

/// Whether `now` says what those do not know that were `told`.
pub(super) fn is_news(told: &[LinkRate], now: &[LinkRate]) -> bool {
    now.iter()
        .any(|rate| towards(told, rate.peer).is_none_or(|told| rate.is_news(told)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn rate(peer: u8, bytes_per_s: f64, is_bound: bool) -> LinkRate {
        let round_trip = Duration::from_millis(2);
        let capacity = Capacity {
            bytes_per_s,
            is_bound,
            round_trip,
        };
        LinkRate::new(PeerId([peer; 32]), capacity)
    }

    #[test]
    fn a_rate_is_told_when_it_is_new_measured_or_another() {
        let told = [rate(1, 1e6, false), rate(2, 1e6, true)];
        assert!(!is_news(&told, &told));
        assert!(!is_news(&told, &[rate(1, 1.1e6, false)]));
        assert!(is_news(&told, &[rate(1, 1.3e6, false)]));
        assert!(is_news(&told, &[rate(1, 0.7e6, false)]));
        assert!(!is_news(&told, &[rate(2, 1.5e6, true)]));
        assert!(is_news(&told, &[rate(2, 1e6, false)]));
        assert!(is_news(&told, &[rate(3, 1e6, false)]));
        let far = LinkRate {
            round_trip_us: 4000,
            ..told[0]
        };
        assert!(is_news(&told, &[far]));
    }

    proptest! {
        #[test]
        fn what_is_measured_is_sound(bytes_per_s: f64, us: u64, is_bound: bool) {
            let capacity = Capacity { bytes_per_s, is_bound, round_trip: Duration::from_micros(us) };
            let rate = LinkRate::new(PeerId([1; 32]), capacity);
            prop_assert!(bytes_per_s.is_nan() || rate.is_sound(), "{rate:?}");
        }
    }
}

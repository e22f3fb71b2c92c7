//! What a receiver's clock says about one link: the least one-way delay seen lately, and whether a claimed arrival can
//! be true.
//!
//! In: when a packet was sent and its acknowledgement came (own clock), and when the receiver says that it had arrived
//! (its clock, with an unknown offset and a slight drift). Out: how much later than the least delay it arrived. The sum
//! of any packet's way out and any acknowledgement's way back is a round trip and so not negative, whatever the offset:
//! a claim that breaks this for the packets of the last [`WINDOW`] or [`N_KEPT`] packets is refused, and after
//! [`PATIENCE`] in a row the clock itself must have been set anew, so everything known of it is forgotten.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Tick;

/// How long a least delay is believed: a changed route shows after this. The fill of a budget leaves room for a queue
/// to drain well within this time.
pub(super) const WINDOW: Duration = Duration::from_secs(5);
/// Where packets are rare, it is believed for so many of them.
const N_KEPT: u64 = 16;
/// A smaller value that is this fresh stands for the next ones, which bounds the memory of a window.
const GRAIN: Duration = Duration::from_millis(250);
/// Refused claims in a row until the clock is taken to have been set.
const PATIENCE: u32 = 8;
/// What drift may do within the window: 0.2 %.
const SLACK_US: i64 = 20_000;
/// Clock readings beyond this are nonsense; half a million years are left.
const READABLE: u64 = 1 << 62;

/// A value of which the least is wanted, and the packet that showed it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Least {
    pub(super) value_us: i64,
    /// Size of the packet.
    pub(super) bytes: usize,
    /// For how long the link was believed to be busy with it, infinite if nothing was known.
    pub(super) own_us: f64,
}

impl Least {
    /// The delay without the time of transmission, on a link of `rate` bytes per microsecond now. A rate that changed
    /// since makes it rather too large than too small: a small one would look like a queue and keep the budget down.
    pub(super) fn delay_us(&self, rate: f64) -> f64 {
        self.value_us as f64 - self.own_us.min(self.bytes as f64 / rate)
    }
}

/// The least of the values of the last [`WINDOW`] of traffic. Without new values it keeps the last.
#[derive(Clone, Debug, Default)]
pub(super) struct Lowest {
    /// Ascending in time, in number and in value.
    entries: VecDeque<(Tick, u64, Least)>,
    n_pushed: u64,
}

impl Lowest {
    pub(super) fn push(&mut self, now: Tick, least: Least) {
        self.n_pushed += 1;
        let n_pushed = self.n_pushed;
        let is_old =
            |(at, n, _): &(Tick, u64, Least)| now.since(*at) > WINDOW && n_pushed - n >= N_KEPT;
        while self.entries.front().is_some_and(is_old) {
            self.entries.pop_front();
        }
        while (self.entries.back()).is_some_and(|(_, _, last)| last.value_us >= least.value_us) {
            self.entries.pop_back();
        }
        if (self.entries.back()).is_none_or(|(at, _, _)| now.since(*at) >= GRAIN) {
            self.entries.push_back((now, n_pushed, least));
        }
    }

    pub(super) fn get(&self) -> Option<Least> {
        self.entries.front().map(|(_, _, least)| *least)
    }
}

/// An arrival that can be true.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Receiver's clock.
    pub(super) at_us: i64,
    /// The way of the packet: arrival (its clock) less sending (own clock).
    pub(super) there_us: i64,
    /// The least of these lately.
    pub(super) least: Least,
}

/// What is known of the receiver's clock and the delays of the link.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    /// Arrival (its clock) less sending (own clock).
    there: Lowest,
    /// Acknowledgement (own clock) less arrival (its clock).
    back: Lowest,
    /// From an arrival to its acknowledgement, plus the least way out: mean and deviation.
    answer_us: Option<(f64, f64)>,
    refused: u32,
}

impl Clock {
    /// Judges a claim; `None` if it cannot be true. The link is believed to be busy for `own_us` with the packet
    /// itself.
    pub(super) fn arrival(
        &mut self,
        now: Tick,
        sent: Tick,
        arrived_us: u64,
        bytes: usize,
        own_us: f64,
    ) -> Option<Arrival> {
        let readable = |us: u64| i64::try_from(us).ok().filter(|_| us < READABLE);
        let at_us = readable(arrived_us);
        let (Some(at_us), Some(sent_us), Some(now_us)) = (at_us, readable(sent.0), readable(now.0))
        else {
            self.refuse();
            return None;
        };
        let there_us = at_us - sent_us;
        let back_us = now_us - at_us;
        let least_there = self.there.get().map_or(there_us, |least| least.value_us);
        let least_back = self.back.get().map_or(back_us, |least| least.value_us);
        let impossible = there_us.saturating_add(least_back) < -SLACK_US
            || back_us.saturating_add(least_there) < -SLACK_US;
        if impossible && !self.refuse() {
            return None;
        }
        self.refused = 0;
        let seen = |value_us| Least {
            value_us,
            bytes,
            own_us,
        };
        self.there.push(now, seen(there_us));
        self.back.push(now, seen(back_us));
        let least = self.there.get()?;
        self.answered(back_us.saturating_add(least.value_us) as f64);
        Some(Arrival {
            at_us,
            there_us,
            least,
        })
    }

    /// Counts a refusal. True if it was one too many: all is forgotten then.
    fn refuse(&mut self) -> bool {
        let refused = self.refused + 1;
        if refused < PATIENCE {
            self.refused = refused;
            return false;
        }
        *self = Self::default();
        true
    }

    fn answered(&mut self, us: f64) {
        let (mean, deviation) = self.answer_us.unwrap_or((us, us / 4.0));
        let off = us - mean;
        self.answer_us = Some((mean + off / 8.0, deviation + (off.abs() - deviation) / 8.0));
    }

    /// The least way out, receiver's clock less own.
    pub(super) fn least(&self) -> Option<Least> {
        self.there.get()
    }

    /// Whether a packet that arrived would be acknowledged by now: the time on the receiver's clock before which it
    /// did not arrive, given that it is not.
    pub(super) fn not_before_us(&self, now: Tick) -> Option<f64> {
        let (mean, deviation) = self.answer_us?;
        let least = self.there.get()?.value_us as f64;
        Some(now.0 as f64 + least - mean - 4.0 * deviation)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_windows_memory_is_bounded_and_it_forgets() {
        let mut lowest = Lowest::default();
        for i in 0..100_000u64 {
            let least = Least {
                value_us: i as i64,
                bytes: 1,
                own_us: 0.0,
            };
            lowest.push(Tick(i * 1_000), least);
            assert!(lowest.entries.len() <= 22, "{}", lowest.entries.len());
        }
        let kept = lowest.get().unwrap().value_us;
        assert!((94_000..95_300).contains(&kept), "{kept}");
    }

    proptest! {
        #[test]
        fn no_true_arrival_is_refused(
            offset in -1_000_000_000i64..1_000_000_000_000,
            ways in proptest::collection::vec((0..400_000u64, 0..400_000u64, 1..50_000u64), 1..50),
        ) {
            let mut clock = Clock::default();
            let mut sent = 2_000_000_000;
            for (out, back, pause) in ways {
                sent += pause;
                let arrived = (sent + out).checked_add_signed(offset).unwrap();
                let arrival = clock.arrival(Tick(sent + out + back), Tick(sent), arrived, 100, 0.0);
                prop_assert!(arrival.is_some());
            }
        }

        #[test]
        fn no_claim_does_more_than_be_refused(claims: Vec<(u64, u64, u64)>) {
            let mut clock = Clock::default();
            for (now, sent, arrived) in claims {
                let arrival = clock.arrival(Tick(now), Tick(sent), arrived, 1, 1e300);
                prop_assert!(arrival.is_none_or(|arrival| arrival.at_us as u64 == arrived));
                let early = clock.not_before_us(Tick(now));
                prop_assert!(early.is_none_or(f64::is_finite));
            }
        }
    }

    #[test]
    fn a_clock_that_was_set_is_believed_after_a_few_refusals() {
        let mut clock = Clock::default();
        let mut ask = |i: u64, offset| {
            let sent = Tick(i * 100_000);
            let arrived = sent.0 + 5_000 + offset;
            clock.arrival(sent + Duration::from_millis(10), sent, arrived, 9, 0.0)
        };
        assert!(ask(1, 60_000_000).is_some());
        let refused = (2..20).filter(|i| ask(*i, 0).is_none()).count();
        assert_eq!(refused, PATIENCE as usize - 1);
    }
}

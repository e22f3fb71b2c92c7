//! When a new division of the global batch is worth proposing.
//!
//! In: the division in force, the members' fits, the global batch that should be. Out: a division, or nothing. A change
//! costs an agreement and new buffers, so one that only evens out is proposed when it makes steps faster by [`GAIN`],
//! and not more often than [`EVERY`]. One that is wrong is replaced at once: members came or went, or the global batch
//! changed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::power::Fit;
use super::shares::{believed, shares};
use crate::ids::PeerId;
use crate::time::Tick;

/// Part of a step's time that must be won.
pub const GAIN: f64 = 0.15;
/// Least time between two proposals that only even out.
pub const EVERY: Duration = Duration::from_secs(2);

/// The division to propose instead of `current`, which lists the members with what each has now, 0 for one that has
/// nothing yet.
///
/// `last` is when the last one was proposed. A member without a sound fit counts as the median of those with one. The
/// sum is `global` as far as [`shares()`] can make it.
pub fn rebalance(
    now: Tick,
    last: Tick,
    current: &[(PeerId, u32)],
    fits: &BTreeMap<PeerId, Fit>,
    global: u32,
    most: u32,
) -> Option<Vec<(PeerId, u32)>> {
    let unknown = Fit {
        fixed_us: 0.0,
        per_sample_us: f32::NAN,
    };
    let claimed: Vec<(PeerId, Fit)> = (current.iter())
        .map(|(peer, _)| (*peer, fits.get(peer).copied().unwrap_or(unknown)))
        .collect();
    let fits = believed(&claimed);
    let proposed = shares(global, &fits, most);
    let sum = |batches: &[(PeerId, u32)]| -> u64 {
        batches.iter().map(|(_, samples)| u64::from(*samples)).sum()
    };
    let is_wrong = sum(current) != sum(&proposed)
        || (current.iter()).any(|(_, samples)| !(1..=most.max(1)).contains(samples));
    if is_wrong {
        return Some(proposed);
    }
    let is_worth = |leaves_out: Option<usize>| {
        let step_us = |batches: &[(PeerId, u32)]| {
            let times = (fits.iter().zip(batches)).map(|((_, fit), (_, b))| fit.step_us(*b));
            let others = times
                .enumerate()
                .filter(|(rank, _)| Some(*rank) != leaves_out);
            others.fold(0.0, |most, (_, us)| f64::max(most, us))
        };
        step_us(&proposed) <= (1.0 - GAIN) * step_us(current)
    };
    // One that is slowest with a single sample is so whatever is proposed, and hides what the others win.
    let slowest = (fits.iter().zip(&proposed).enumerate())
        .max_by(|(_, (a, (_, n))), (_, (b, (_, m)))| a.1.step_us(*n).total_cmp(&b.1.step_us(*m)))
        .filter(|(_, (_, (_, samples)))| *samples == 1)
        .map(|(rank, _)| rank);
    let is_faster = is_worth(None) || (slowest.is_some() && is_worth(slowest));
    (is_faster && !current.is_empty() && now.since(last) >= EVERY).then_some(proposed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LATER: Tick = Tick(10_000_000);

    fn peer(i: usize) -> PeerId {
        PeerId([i as u8; 32])
    }

    fn fits(per_sample_us: &[f32]) -> BTreeMap<PeerId, Fit> {
        let fit = |per_sample_us: &f32| Fit {
            fixed_us: 0.0,
            per_sample_us: *per_sample_us,
        };
        let fits = per_sample_us.iter().map(fit).enumerate();
        fits.map(|(i, fit)| (peer(i), fit)).collect()
    }

    fn batches(samples: &[u32]) -> Vec<(PeerId, u32)> {
        let batches = samples.iter().copied().enumerate();
        batches.map(|(i, samples)| (peer(i), samples)).collect()
    }

    #[test]
    fn a_throttled_peer_gets_less_and_small_gains_are_left() {
        let current = batches(&[20, 20, 20]);
        let ask = |fits, last| rebalance(LATER, last, &current, fits, 60, 1_000);
        let throttled = fits(&[10.0, 10.0, 30.0]);
        assert_eq!(ask(&throttled, Tick(0)), Some(batches(&[26, 26, 8])));
        assert_eq!(
            ask(&throttled, LATER - Duration::from_secs(1)),
            None,
            "too soon"
        );
        assert_eq!(ask(&fits(&[10.0, 10.0, 11.0]), Tick(0)), None);
    }

    #[test]
    fn one_that_is_slow_whatever_it_gets_does_not_hide_what_others_win() {
        let mut claims = fits(&[10.0, 10.0, 30.0, 10.0]);
        let slow = Fit {
            fixed_us: 3e9,
            per_sample_us: 1.0,
        };
        claims.insert(peer(3), slow);
        let current = batches(&[20, 20, 19, 1]);
        let proposed = rebalance(LATER, Tick(0), &current, &claims, 60, 1_000);
        assert_eq!(proposed, Some(batches(&[25, 25, 9, 1])));
    }

    #[test]
    fn a_wrong_sum_is_mended_at_once() {
        let fits = fits(&[10.0, 10.0]);
        let ask = |current: &[u32]| rebalance(LATER, LATER, &batches(current), &fits, 60, 50);
        assert_eq!(ask(&[20, 20]), Some(batches(&[30, 30])), "one left");
        assert_eq!(
            ask(&[30, 30, 0]),
            Some(batches(&[20, 20, 20])),
            "one came, unknown"
        );
        assert_eq!(ask(&[60, 0]), Some(batches(&[30, 30])));
        assert_eq!(ask(&[30, 30]), None);
        assert_eq!(rebalance(LATER, Tick(0), &[], &fits, 60, 50), None);
    }

    #[test]
    fn nothing_is_proposed_while_nothing_is_known() {
        let current = batches(&[31, 29]);
        let none = BTreeMap::new();
        assert_eq!(rebalance(LATER, Tick(0), &current, &none, 60, 50), None);
        assert!(rebalance(LATER, Tick(0), &current, &none, 61, 50).is_some());
    }

    proptest! {
        #[test]
        fn what_is_proposed_sums_up_and_is_final(
            members in proptest::collection::vec((0..500u32, proptest::option::of(0.1..1e4f32)), 1..30),
            global in 30..5_000u32,
        ) {
            let current = batches(&members.iter().map(|(samples, _)| *samples).collect::<Vec<_>>());
            let known = members.iter().enumerate().filter_map(|(i, (_, per_sample))| {
                per_sample.map(|per_sample_us| (peer(i), Fit { fixed_us: 100.0, per_sample_us }))
            });
            let fits: BTreeMap<PeerId, Fit> = known.collect();
            if let Some(proposed) = rebalance(LATER, Tick(0), &current, &fits, global, 5_000) {
                let sum: u32 = proposed.iter().map(|(_, samples)| samples).sum();
                prop_assert_eq!(sum, global);
                let again = rebalance(LATER, Tick(0), &proposed, &fits, global, 5_000);
                prop_assert_eq!(again, None);
            } else {
                let sum: u32 = current.iter().map(|(_, samples)| samples).sum();
                prop_assert_eq!(sum, global);
            }
        }
    }
}

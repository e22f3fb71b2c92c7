//! How a global batch is divided, so that all members need the same time for a step.
//!
//! In: the global batch and each member's fit. Out: samples per member. DLion divides in proportion to relative compute
//! power, which has all peers ready at the same time only if steps cost nothing but their samples. With a fixed part,
//! the time `t` that all need is the one at which the members' `(t - fixed) / per_sample` sum to the global batch;
//! without one, this is the paper's form. Whole samples are given out by largest remainder. Members compute the same
//! from the same fits.

use std::cmp::Ordering;

use super::power::Fit;
use crate::ids::PeerId;

/// Halvings until neighbouring numbers are left of any range of times.
const HALVINGS: usize = 128;

/// A member is believed to be so many times faster than the median per sample: whoever claims more takes no more from others. Devices
/// in one mesh differ by less, and one that does not is not idle for long.
const FASTER: f32 = 32.0;

/// The samples of each member, in the order of `fits`; each at least 1 and at most `most` (a `most` of 0 counts as 1).
///
/// They sum to `global` exactly, unless that is fewer than one each or more than `most` each: all have 1 or `most`
/// then. A fit that is not sound counts as the median of the others, and if there is no sound one all have equal
/// shares. None counts as more than 32 times faster per sample than the median.
pub fn shares(global: u32, fits: &[(PeerId, Fit)], most: u32) -> Vec<(PeerId, u32)> {
    let most = most.max(1);
    let fits = believed(fits);
    let global = u64::from(global);
    let parts = parts(global as f64, &fits, f64::from(most));
    let mut shares: Vec<(PeerId, u32)> = (fits.iter().zip(&parts))
        .map(|((peer, _), part)| (*peer, (*part as u32).clamp(1, most)))
        .collect();
    let mut order: Vec<usize> = (0..fits.len()).collect();
    order.sort_by(|a, b| by_remainder((parts[*a], fits[*a].0), (parts[*b], fits[*b].0)));
    let given: u64 = shares.iter().map(|(_, share)| u64::from(*share)).sum();
    let mut left = global.saturating_sub(given);
    while left > 0 && shares.iter().any(|(_, share)| *share < most) {
        for rank in &order {
            if left > 0 && shares[*rank].1 < most {
                shares[*rank].1 += 1;
                left -= 1;
            }
        }
    }
    shares
}

/// What is planned with: a sound fit for each member, in the same order.
pub(super) fn believed(fits: &[(PeerId, Fit)]) -> Vec<(PeerId, Fit)> {
    let stand_in = median(fits.iter().map(|(_, fit)| *fit));
    let least_us = stand_in.per_sample_us / FASTER;
    let fit = |fit: &Fit| match fit.is_sound() {
        true => Fit {
            per_sample_us: fit.per_sample_us.max(least_us),
            ..*fit
        },
        false => stand_in,
    };
    fits.iter()
        .map(|(peer, claim)| (*peer, fit(claim)))
        .collect()
}

/// A fit that stands for an unknown one: the median of each part of the sound ones.
pub fn median(fits: impl Iterator<Item = Fit>) -> Fit {
    let (mut fixed, mut per_sample): (Vec<f32>, Vec<f32>) = fits
        .filter(Fit::is_sound)
        .map(|fit| (fit.fixed_us, fit.per_sample_us))
        .unzip();
    let middle = |parts: &mut Vec<f32>, none| {
        parts.sort_unstable_by(f32::total_cmp);
        parts.get(parts.len() / 2).copied().unwrap_or(none)
    };
    Fit {
        fixed_us: middle(&mut fixed, 0.0),
        per_sample_us: middle(&mut per_sample, 1.0),
    }
}

/// Largest remainder first, then the lower peer.
fn by_remainder(a: (f64, PeerId), b: (f64, PeerId)) -> Ordering {
    let by_part = b.0.fract().total_cmp(&a.0.fract());
    by_part.then_with(|| a.1.cmp(&b.1))
}

/// Parts within bounds that take equally long and sum to at most `global`, as near as numbers go.
fn parts(global: f64, fits: &[(PeerId, Fit)], most: f64) -> Vec<f64> {
    let at = |us: f64| {
        let part = move |(_, fit): &(PeerId, Fit)| {
            ((us - f64::from(fit.fixed_us)) / f64::from(fit.per_sample_us)).clamp(1.0, most)
        };
        fits.iter().map(part)
    };
    let longest =
        |(_, fit): &(PeerId, Fit)| f64::from(fit.fixed_us) + f64::from(fit.per_sample_us) * most;
    let (mut low, mut high) = (0.0, fits.iter().map(longest).fold(0.0, f64::max));
    if at(high).sum::<f64>() <= global {
        return at(high).collect();
    }
    for _ in 0..HALVINGS {
        let middle = low + (high - low) / 2.0;
        if at(middle).sum::<f64>() <= global {
            low = middle;
        } else {
            high = middle;
        }
    }
    at(low).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fit(fixed_us: f32, per_sample_us: f32) -> Fit {
        Fit {
            fixed_us,
            per_sample_us,
        }
    }

    fn of(global: u32, fits: &[Fit], most: u32) -> Vec<u32> {
        let peer = |i: usize| PeerId([i as u8; 32]);
        let fits: Vec<_> = (fits.iter().enumerate())
            .map(|(i, fit)| (peer(i), *fit))
            .collect();
        let shares = shares(global, &fits, most);
        assert!(
            shares
                .iter()
                .map(|(peer, _)| peer)
                .eq(fits.iter().map(|(peer, _)| peer))
        );
        shares.into_iter().map(|(_, share)| share).collect()
    }

    #[test]
    fn without_a_fixed_part_shares_are_proportional_to_power() {
        let fits = [1.0, 2.0, 4.0].map(|per_sample| fit(0.0, per_sample));
        assert_eq!(of(70, &fits, 1_000), [40, 20, 10]);
    }

    #[test]
    fn a_fixed_part_is_taken_off_before_dividing() {
        // 20 + 2 * 40 = 60 + 1 * 40 = 100.
        assert_eq!(of(80, &[fit(20.0, 2.0), fit(60.0, 1.0)], 1_000), [40, 40]);
        assert_eq!(of(30, &[fit(1e6, 1.0), fit(0.0, 1.0)], 1_000), [1, 29]);
    }

    #[test]
    fn bounds_hold_and_win_over_the_sum() {
        assert_eq!(of(100, &[fit(0.0, 1.0), fit(0.0, 1.0)], 10), [10, 10]);
        assert_eq!(of(1, &[fit(0.0, 1.0); 3], 10), [1, 1, 1]);
        assert_eq!(of(9, &[fit(0.0, 1.0); 2], 0), [1, 1]);
        assert_eq!(of(60, &[fit(0.0, 1.0), fit(0.0, 100.0)], 40), [40, 20]);
        assert!(of(9, &[], 5).is_empty());
    }

    #[test]
    fn unsound_fits_count_as_the_median() {
        let fits = [
            fit(0.0, 1.0),
            fit(f32::NAN, 1.0),
            fit(0.0, 1.0),
            fit(0.0, -3.0),
        ];
        assert_eq!(of(40, &fits, 100), [10, 10, 10, 10]);
        assert_eq!(
            of(11, &[fit(0.0, 0.0); 3], 100),
            [4, 4, 3],
            "lower peers first"
        );
    }

    #[test]
    fn whoever_claims_to_take_no_time_does_not_take_it_all() {
        for claim in [1e-30, 1e-3, 1.0] {
            let shares = of(
                370,
                &[
                    fit(0.0, claim),
                    fit(0.0, 100.0),
                    fit(0.0, 100.0),
                    fit(0.0, 100.0),
                ],
                10_000,
            );
            assert_eq!(shares[1..].iter().sum::<u32>(), 370 - shares[0]);
            assert!(
                shares[1..].iter().all(|share| (10..=12).contains(share)),
                "{shares:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn shares_sum_to_the_global_batch_within_bounds_and_no_other_is_faster(
            fits in proptest::collection::vec((0.0..1e6f32, 1e-3..1e5f32), 1..40),
            global in 1..100_000u32,
            most in 1..5_000u32,
        ) {
            let fits: Vec<Fit> = fits.into_iter().map(|(a, b)| fit(a, b)).collect();
            let shares = of(global, &fits, most);
            let n = fits.len() as u32;
            let sum: u32 = shares.iter().sum();
            prop_assert_eq!(sum, global.clamp(n, n.saturating_mul(most)));
            prop_assert!(shares.iter().all(|share| (1..=most).contains(share)));
            prop_assert_eq!(&shares, &of(global, &fits, most));
            // Nobody is done later than if it had given one of its samples to the fastest that has room.
            let claimed: Vec<_> = fits.iter().map(|fit| (PeerId([0; 32]), *fit)).collect();
            let believed = believed(&claimed);
            let steps = believed.iter().zip(&shares).map(|((_, fit), share)| (fit, *share));
            let room = steps.clone().filter(|(_, share)| *share < most);
            let soonest = room.map(|(fit, share)| fit.step_us(share + 1)).fold(f64::INFINITY, f64::min);
            for (fit, share) in steps.filter(|(_, share)| *share > 1) {
                prop_assert!(fit.step_us(share - 1) <= soonest * 1.000_001);
            }
        }
    }
}

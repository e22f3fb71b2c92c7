//! Magnitudes as integers, and what a few thousand entries from all over a variable tell about all of them.
//!
//! The bits of a magnitude are ordered as the magnitudes are, which the compiler turns into vector code; NaN and infinity
//! are larger than every finite magnitude.

use std::ops::Range;

const ABSOLUTE: u32 = 0x7fff_ffff;
/// The least magnitude that is not finite.
pub(super) const INFINITE: u32 = 0x7f80_0000;

/// Eight bits of exponent and three of mantissa.
pub(super) const BIN_SHIFT: u32 = 20;
pub(super) const BINS: usize = 1 << (31 - BIN_SHIFT);

/// Up to here the sample is the whole variable.
pub(super) const WHOLE: usize = 4096;

/// Entries in a row that a sample takes: half a cache line.
const RUN: usize = 8;

/// The magnitude's bits.
pub(super) fn magnitude(value: f32) -> u32 {
    value.to_bits() & ABSOLUTE
}

/// The largest magnitude; compared as signed integers because every processor has that as a vector instruction.
pub(super) fn largest(values: &[f32]) -> u32 {
    values
        .iter()
        .fold(0, |largest, value| (magnitude(*value) as i32).max(largest)) as u32
}

/// Whether all are finite.
pub(super) fn all_finite(values: &[f32]) -> bool {
    // A magnitude that is not finite carries into the sign.
    let signs = values.iter().fold(0, |signs, value| {
        signs | magnitude(*value).wrapping_add(0x8000_0000 - INFINITE)
    });
    signs >> 31 == 0
}

/// Short runs from all over a variable: one of `one_of` entries, 4,096 to `most` entries, or all of a short variable. One run
/// lies somewhere, by a fixed sequence of pseudo-random numbers, in each of equally long pieces: no pattern of the variable
/// (rows, channels) can hide from it, and the same variable gives the same sample.
pub(super) fn runs(
    length: usize,
    one_of: usize,
    most: usize,
) -> impl Iterator<Item = Range<usize>> {
    let (piece, n) = if length <= WHOLE {
        (RUN, length.div_ceil(RUN))
    } else {
        let n = (length / one_of).clamp(WHOLE, most) / RUN;
        (length / n, n)
    };
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..n).map(move |nth| {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        let start = nth * piece + (((state >> 33) as usize * (piece - RUN + 1)) >> 31);
        start..(start + RUN).min(length)
    })
}

/// The share of nonzero entries, 0 to 1: of a sample where the variable is long.
pub(super) fn nonzero_frac(variable: &[f32]) -> f64 {
    let (nonzero, n) = runs(variable.len(), 16, 1 << 15).fold((0, 0), |(nonzero, n), run| {
        let run = &variable[run];
        let more = run.iter().filter(|value| **value != 0.0).count();
        (nonzero + more, n + run.len())
    });
    nonzero as f64 / n.max(1) as f64
}

/// Adds to a histogram of [`BINS`] magnitudes.
pub(super) fn count(histogram: &mut [u32], values: &[f32]) {
    for value in values {
        if let Some(bin) = histogram.get_mut((magnitude(*value) >> BIN_SHIFT) as usize) {
            *bin += 1;
        }
    }
}

/// The bin that holds the magnitude of this rank (1 is the largest), and how many lie in the bins above it.
pub(super) fn bin_of(histogram: &[u32], rank: usize) -> (usize, usize) {
    let mut above = 0;
    for (bin, n) in histogram.iter().enumerate().rev() {
        if above + *n as usize >= rank {
            return (bin, above);
        }
        above += *n as usize;
    }
    (0, above)
}

/// The lower edge of the bin that holds the magnitude of this rank; at least 1, which is above zero.
pub(super) fn threshold_of(histogram: &[u32], rank: usize) -> u32 {
    ((bin_of(histogram, rank).0 as u32) << BIN_SHIFT).clamp(1, INFINITE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_nonzero_share_is_near_the_truth() {
        let variable: Vec<f32> = (0..100_000).map(|i| (i % 4) as f32).collect();
        let frac = nonzero_frac(&variable);
        assert!((frac - 0.75).abs() < 0.05, "{frac}");
        assert_eq!(
            nonzero_frac(&[0.0, 1.0, -0.0, f32::MIN_POSITIVE / 2.0]),
            0.5
        );
    }

    #[test]
    fn one_value_that_is_not_finite_is_enough() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 50, 99] {
                let mut values = [f32::MAX; 100];
                values[50] = f32::MIN;
                assert!(all_finite(&values));
                values[at] = bad;
                assert!(!all_finite(&values), "{bad} at {at}");
            }
        }
    }

    proptest! {
        #[test]
        fn runs_ascend_within_the_variable(length in prop_oneof![1usize..5000, 5000usize..3_000_000]) {
            let mut end = 0;
            let mut n = 0;
            for run in runs(length, 16, 1 << 16) {
                prop_assert!(run.start >= end && run.end <= length && !run.is_empty());
                end = run.end;
                n += run.len();
            }
            let enough = if length <= WHOLE { n == length } else { n >= WHOLE - RUN };
            prop_assert!(enough);
        }
    }
}

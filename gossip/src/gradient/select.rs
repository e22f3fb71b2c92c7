//! The `k` largest entries of a variable by magnitude, without sorting it.
//!
//! 1. A few thousand entries, taken from all over the variable, give a threshold that a little more than `k` entries should
//!    pass (Lin et al. 2018, Deep Gradient Compression, arXiv:1712.01887, section 3.1 on sampling the threshold).
//! 2. One pass over the variable collects the entries that pass, the *candidates*.
//! 3. Among these few, quickselect finds the `k`-th magnitude, and the rest is dropped.
//!
//! So the choice is exact, whatever the sample says: the sample only decides how many candidates there are. Should it have
//! been too strict, a histogram over the whole variable sets the threshold and step 2 is repeated. Ties at the `k`-th
//! magnitude go to the lower index; zeros are never chosen. Magnitudes are compared as the integers that their bits are
//! (the order is the same), which the compiler turns into vector code; NaN and infinity are larger than every finite
//! magnitude, hence always candidates, and found there.

const ABSOLUTE: u32 = 0x7fff_ffff;
const INFINITE: u32 = 0x7f80_0000;

/// Eight bits of exponent and three of mantissa.
const BIN_SHIFT: u32 = 20;
const BINS: usize = 1 << (31 - BIN_SHIFT);

/// Entries looked at in one go: a block without a candidate is skipped whole.
const BLOCK: usize = 16;

/// Up to here all entries are candidates: cheaper than clearing a histogram.
const SHORT: usize = 256;

/// Up to here the sample is the whole variable.
const WHOLE: usize = 4096;

/// Entries in a row that a sample takes: half a cache line.
const RUN: usize = 8;

/// Chooses entries; holds the buffers for it.
#[derive(Debug)]
pub(super) struct Selector {
    // As long as the longest variable, though only the pages that candidates reach ever become resident.
    indices: Vec<u32>,
    values: Vec<f32>,
    magnitudes: Vec<u32>,
    histogram: Vec<u32>,
}

/// The chosen entries of a variable, ascending.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Selection<'a> {
    /// Positions in the variable.
    pub(super) indices: &'a [u32],
    /// The values there.
    pub(super) values: &'a [f32],
}

/// A variable holds NaN or an infinity.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotFinite {
    /// Position in the variable.
    pub(super) entry: usize,
    /// What is there.
    pub(super) value: f32,
}

impl Selector {
    /// A selector for variables of up to `longest` entries.
    pub(super) fn new(longest: usize) -> Self {
        Self {
            indices: vec![0; longest + BLOCK],
            values: vec![0.0; longest + BLOCK],
            magnitudes: Vec::with_capacity(longest),
            histogram: vec![0; BINS],
        }
    }

    /// The `k` largest of `variable`, fewer if fewer are nonzero.
    pub(super) fn select(
        &mut self,
        variable: &[f32],
        k: usize,
    ) -> Result<Selection<'_>, NotFinite> {
        let threshold = self.estimate(variable, k);
        let mut n = self.collect(variable, threshold);
        if n < k && threshold > 1 {
            self.histogram.fill(0);
            count(&mut self.histogram, variable);
            let threshold = threshold_of(&self.histogram, k);
            n = self.collect(variable, threshold);
        }
        if let Some(at) = self.values[..n].iter().position(|value| !value.is_finite()) {
            return Err(NotFinite {
                entry: self.indices[at] as usize,
                value: self.values[at],
            });
        }
        if n > k {
            self.narrow(n, k);
            n = k;
        }
        Ok(Selection {
            indices: &self.indices[..n],
            values: &self.values[..n],
        })
    }

    /// The least magnitude (as bits, at least 1) to be a candidate.
    fn estimate(&mut self, variable: &[f32], k: usize) -> u32 {
        if variable.len() <= SHORT || k >= variable.len() {
            return 1;
        }
        self.histogram.fill(0);
        if variable.len() <= WHOLE {
            count(&mut self.histogram, variable);
            return threshold_of(&self.histogram, k);
        }
        let mut n_sampled = 0;
        for run in sample(variable) {
            n_sampled += run.len();
            count(&mut self.histogram, run);
        }
        // Among the sample, the rank of the k-th is spread like a binomial: four deviations make repeats rare.
        let rank = k as f64 * n_sampled as f64 / variable.len() as f64;
        threshold_of(&self.histogram, (rank + 4.0 * rank.sqrt() + 4.0) as usize)
    }

    /// Writes the entries of at least `threshold` to the front of the buffers and returns their number.
    fn collect(&mut self, variable: &[f32], threshold: u32) -> usize {
        let blocks = variable.chunks_exact(BLOCK);
        let rest = blocks.remainder();
        let (mut n, mut start) = (0, 0u32);
        for block in blocks {
            let passed = block.iter().fold(0, |passed, value| {
                passed | u32::from(magnitude(*value) >= threshold)
            });
            if passed != 0 {
                // Every lane writes, those that pass keep their place: no branch for the processor to guess.
                let (mut indices, mut values) = ([0; BLOCK], [0.0; BLOCK]);
                let mut kept = 0;
                for (lane, value) in block.iter().enumerate() {
                    indices[kept % BLOCK] = start + lane as u32;
                    values[kept % BLOCK] = *value;
                    kept += usize::from(magnitude(*value) >= threshold);
                }
                self.indices[n..n + BLOCK].copy_from_slice(&indices);
                self.values[n..n + BLOCK].copy_from_slice(&values);
                n += kept;
            }
            start += BLOCK as u32;
        }
        for (index, value) in (start..).zip(rest) {
            if magnitude(*value) >= threshold {
                self.indices[n] = index;
                self.values[n] = *value;
                n += 1;
            }
        }
        n
    }

    /// Keeps the `k` largest of the `n` > `k` candidates, in place.
    fn narrow(&mut self, n: usize, k: usize) {
        let (indices, values) = (&mut self.indices[..n], &mut self.values[..n]);
        self.magnitudes.clear();
        self.magnitudes
            .extend(values.iter().map(|value| magnitude(*value)));
        let (larger, kth, _) = self
            .magnitudes
            .select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
        let kth = *kth;
        let mut ties = k - larger.iter().filter(|magnitude| **magnitude > kth).count();
        let mut kept = 0;
        for at in 0..n {
            let (index, value) = (indices[at], values[at]);
            let tie = magnitude(value) == kth && ties > 0;
            ties -= usize::from(tie);
            indices[kept] = index;
            values[kept] = value;
            kept += usize::from(tie || magnitude(value) > kth);
            if kept == k {
                break;
            }
        }
    }
}

/// The share of nonzero entries, 0 to 1: of a sample where the variable is long.
pub(super) fn nonzero_frac(variable: &[f32]) -> f64 {
    let count = |entries: &[f32]| entries.iter().filter(|value| **value != 0.0).count();
    let (nonzero, n) = if variable.len() <= WHOLE {
        (count(variable), variable.len())
    } else {
        sample(variable).fold((0, 0), |(nonzero, n), run| {
            (nonzero + count(run), n + run.len())
        })
    };
    nonzero as f64 / n.max(1) as f64
}

/// The magnitude's bits, ordered as the magnitudes are.
pub(super) fn magnitude(value: f32) -> u32 {
    value.to_bits() & ABSOLUTE
}

/// Short runs from all over a variable of more than [`WHOLE`] entries: a sixteenth of it, 4,096 to 65,536 entries. One run
/// lies somewhere, by a fixed sequence of pseudo-random numbers, in each of equally long pieces: no pattern of the variable
/// (rows, channels) can hide from it, and the same variable gives the same sample.
fn sample(variable: &[f32]) -> impl Iterator<Item = &[f32]> {
    let n_runs = (variable.len() / 16).clamp(WHOLE, 1 << 16) / RUN;
    let piece = variable.len() / n_runs;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    variable.chunks_exact(piece).map(move |piece| {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        let start = ((state >> 33) as usize * (piece.len() - RUN + 1)) >> 31;
        &piece[start..start + RUN]
    })
}

fn count(histogram: &mut [u32], values: &[f32]) {
    for value in values {
        if let Some(bin) = histogram.get_mut((magnitude(*value) >> BIN_SHIFT) as usize) {
            *bin += 1;
        }
    }
}

/// The lower edge of the bin that holds the magnitude of this rank (1 is the largest); 1 if that is zero.
fn threshold_of(histogram: &[u32], rank: usize) -> u32 {
    let mut above = 0;
    for (bin, n) in histogram.iter().enumerate().rev() {
        above += *n as usize;
        if above >= rank {
            return ((bin as u32) << BIN_SHIFT).clamp(1, INFINITE);
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By sorting: what `select` must equal.
    fn by_sorting(variable: &[f32], k: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..variable.len() as u32)
            .filter(|i| variable[*i as usize] != 0.0)
            .collect();
        order.sort_by_key(|i| (std::cmp::Reverse(magnitude(variable[*i as usize])), *i));
        order.truncate(k);
        order.sort_unstable();
        order
    }

    fn check(variable: &[f32], k: usize) {
        let mut selector = Selector::new(variable.len());
        let selection = selector.select(variable, k).unwrap();
        let expected = by_sorting(variable, k);
        assert!(
            selection.indices == expected,
            "{} values, k {k}",
            variable.len()
        );
        assert!(
            selection
                .values
                .iter()
                .zip(&expected)
                .all(|(value, i)| *value == variable[*i as usize])
        );
    }

    /// Heavy tails of both signs.
    fn heavy(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let uniform = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        std::iter::repeat_with(uniform)
            .take(n)
            .map(|u| u.powi(9))
            .collect()
    }

    #[test]
    fn the_choice_equals_that_of_a_sort_at_every_length() {
        for n in [1, 15, 16, 17, 256, 257, 4096, 4097, 5000, 100_003] {
            for k in [1, 2, n / 100, n / 10, n / 2, n - 1, n] {
                check(&heavy(n, n as u32), k.max(1));
            }
        }
    }

    #[test]
    fn a_variable_that_misleads_the_sample_is_still_chosen_from_exactly() {
        // All that is large lies in one place; nearly all is zero; all is equal.
        let mut clustered = heavy(50_000, 1);
        clustered[30_000..30_400]
            .iter_mut()
            .for_each(|value| *value += 9.0);
        let mut lonely = vec![0.0; 50_000];
        (lonely[7], lonely[49_999]) = (1e-30, -2.0);
        for k in [1, 2, 3, 100, 500, 5000] {
            check(&clustered, k);
            check(&lonely, k);
            check(&vec![0.25; 50_000], k);
            check(&vec![0.0; 50_000], k);
        }
    }

    #[test]
    fn values_that_are_not_finite_are_found_wherever_they_are() {
        for n in [10, 300, 5000, 40_000] {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for entry in [0, n / 2, n - 1] {
                    let mut variable = heavy(n, 3);
                    variable[entry] = bad;
                    for k in [1, n / 10, n] {
                        let found = Selector::new(n).select(&variable, k).unwrap_err();
                        assert_eq!(found.entry, entry);
                    }
                }
            }
        }
        let flood = vec![f32::NAN; 9000];
        assert_eq!(Selector::new(9000).select(&flood, 10).unwrap_err().entry, 0);
    }

    #[test]
    fn the_nonzero_share_is_near_the_truth() {
        let mut variable = heavy(100_000, 5);
        variable
            .iter_mut()
            .step_by(4)
            .for_each(|value| *value = 0.0);
        let frac = nonzero_frac(&variable);
        assert!((frac - 0.75).abs() < 0.05, "{frac}");
        assert_eq!(
            nonzero_frac(&[0.0, 1.0, -0.0, f32::MIN_POSITIVE / 2.0]),
            0.5
        );
    }

    proptest! {
        #[test]
        fn any_values_are_chosen_as_a_sort_would(
            variable in proptest::collection::vec(
                prop_oneof![Just(0.0f32), Just(-0.5), Just(0.5), -1e30f32..1e30, -1f32..1.0, Just(1e-42)], 1..700),
            k in 1usize..700,
        ) {
            check(&variable, k.min(variable.len()));
        }
    }
}

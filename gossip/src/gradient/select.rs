//! The entries of a variable that a rule chooses: the `k` largest by magnitude without sorting it, those above a threshold, or
//! at random. The `k` largest are found like this:
//!
//! 1. A few thousand entries, taken from all over the variable, give a threshold that a little more than `k` entries should
//!    pass (Lin et al. 2018, Deep Gradient Compression, arXiv:1712.01887, section 3.1 on sampling the threshold).
//! 2. One pass over the variable collects the entries that pass, the *candidates*.
//! 3. Among these few, a histogram and quickselect in one of its bins find the `k`-th magnitude, and the rest is dropped.
//!
//! So the choice is exact, whatever the sample says: the sample only decides how many candidates there are. Should it have
//! been too strict, a histogram over the whole variable sets the threshold and step 2 is repeated. Ties at the `k`-th
//! magnitude go to the lower index; zeros are never chosen. Since NaN and infinity are larger than every finite magnitude,
//! they are always candidates, and found there.

use super::sample::{self, BIN_SHIFT, BINS, INFINITE, WHOLE, magnitude};

/// Entries looked at in one go: a block without a candidate is skipped whole.
const BLOCK: usize = 16;

/// Blocks that are looked at, then looked at again where entries pass: they stay in the fastest cache.
const TILE: usize = 256;

/// Up to here all entries are candidates: cheaper than clearing a histogram.
const SHORT: usize = 256;

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
pub(super) struct Chosen<'a> {
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
            indices: vec![0; longest],
            values: vec![0.0; longest],
            magnitudes: vec![0; longest],
            histogram: vec![0; BINS],
        }
    }

    /// The `k` largest of `variable`, fewer if fewer are nonzero.
    pub(super) fn largest(&mut self, variable: &[f32], k: usize) -> Result<Chosen<'_>, NotFinite> {
        let threshold = self.estimate(variable, k);
        let mut n = self.collect(variable, over(threshold));
        if n < k && threshold > 1 {
            self.histogram.fill(0);
            sample::count(&mut self.histogram, variable);
            let threshold = sample::threshold_of(&self.histogram, k);
            n = self.collect(variable, over(threshold));
        }
        self.check(n)?;
        if n > k {
            self.narrow(n, k);
            n = k;
        }
        Ok(self.chosen(n))
    }

    /// The entries of at least `threshold`, a magnitude's bits; no zeros.
    pub(super) fn at_least(
        &mut self,
        variable: &[f32],
        threshold: u32,
    ) -> Result<Chosen<'_>, NotFinite> {
        let n = self.collect(variable, over(threshold));
        self.check(n)?;
        Ok(self.chosen(n))
    }

    /// The values of at least `threshold`, finite or not; no zeros.
    pub(super) fn collected(&mut self, variable: &[f32], threshold: u32) -> &[f32] {
        let n = self.collect(variable, over(threshold));
        &self.values[..n]
    }

    /// The entries of at least `threshold` times the weight beside them; no zeros.
    pub(super) fn significant(
        &mut self,
        variable: &[f32],
        weights: &[f32],
        threshold: f32,
    ) -> Result<Chosen<'_>, NotFinite> {
        let (weights, rest) = weights.as_chunks::<BLOCK>();
        let rest = padded(rest);
        let n = self.collect(variable, |nth, block| {
            let weights = weights.get(nth).unwrap_or(&rest);
            let mut over = [0; BLOCK];
            for ((over, value), weight) in over.iter_mut().zip(block).zip(weights) {
                let least = magnitude(threshold * weight) as i32;
                *over = least.clamp(1, INFINITE as i32) - 1 - magnitude(*value) as i32;
            }
            over
        });
        self.check(n)?;
        Ok(self.chosen(n))
    }

    /// One entry, by pseudo-random numbers from `seed`, of each of `k` equally long pieces; no zeros. `variable` is finite.
    pub(super) fn random(&mut self, variable: &[f32], k: usize, seed: u64) -> Chosen<'_> {
        let mut state = seed;
        let mut n = 0;
        for piece in 0..k {
            // SplitMix64 (Steele et al. 2014).
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut random = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            random = (random ^ random >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            let (start, end) = (piece * variable.len() / k, (piece + 1) * variable.len() / k);
            let index = start + (((random >> 32) as usize * (end - start)) >> 32);
            self.indices[n] = index as u32;
            self.values[n] = variable[index];
            n += usize::from(variable[index] != 0.0);
        }
        self.chosen(n)
    }

    fn chosen(&self, n: usize) -> Chosen<'_> {
        Chosen {
            indices: &self.indices[..n],
            values: &self.values[..n],
        }
    }

    fn check(&self, n: usize) -> Result<(), NotFinite> {
        let values = &self.values[..n];
        if sample::all_finite(values) {
            return Ok(());
        }
        let at = values
            .iter()
            .position(|value| !value.is_finite())
            .unwrap_or(0);
        Err(NotFinite {
            entry: self.indices[at] as usize,
            value: values[at],
        })
    }

    /// The least magnitude (as bits, at least 1) to be a candidate.
    fn estimate(&mut self, variable: &[f32], k: usize) -> u32 {
        if variable.len() <= SHORT || k >= variable.len() {
            return 1;
        }
        self.histogram.fill(0);
        let mut n_sampled = 0;
        for run in sample::runs(variable.len(), 16, 1 << 15) {
            n_sampled += run.len();
            sample::count(&mut self.histogram, &variable[run]);
        }
        if variable.len() <= WHOLE {
            return sample::threshold_of(&self.histogram, k);
        }
        // Among the sample, the rank of the k-th is spread like a binomial: four deviations make repeats rare.
        let rank = k as f64 * n_sampled as f64 / variable.len() as f64;
        sample::threshold_of(&self.histogram, (rank + 4.0 * rank.sqrt() + 4.0) as usize)
    }

    /// Writes the entries that pass to the front of the buffers and returns their number. `over`, given a block and its
    /// number, makes the lanes of those that pass negative; zeros must not pass.
    fn collect(
        &mut self,
        variable: &[f32],
        over: impl Fn(usize, &[f32; BLOCK]) -> [i32; BLOCK],
    ) -> usize {
        let (blocks, rest) = variable.as_chunks::<BLOCK>();
        let rest = padded(rest);
        let mut passing = [0; TILE];
        let mut n = 0;
        for (nth_tile, tile) in blocks.chunks(TILE).enumerate() {
            let first = nth_tile * TILE;
            // Which blocks: every number is written, those of blocks that pass keep their place. No branch to guess.
            let mut n_passing = 0;
            for (nth, block) in tile.iter().enumerate() {
                let any = over(first + nth, block)
                    .iter()
                    .fold(0, |any, lane| any | lane);
                passing[n_passing % TILE] = nth as u16;
                n_passing += usize::from(any < 0);
            }
            let many = n_passing > TILE / 2;
            for nth in &passing[..n_passing] {
                let (nth, block) = (first + usize::from(*nth), &tile[usize::from(*nth)]);
                let over = over(nth, block);
                n = if many {
                    self.put_lanes(n, nth, block, over)
                } else {
                    self.put_bits(n, nth, block, over)
                };
            }
        }
        self.put_bits(n, blocks.len(), &rest, over(blocks.len(), &rest))
    }

    /// Writes the entries of a block that pass behind the first `n`: one by one, for where they are few.
    fn put_bits(
        &mut self,
        mut n: usize,
        nth: usize,
        block: &[f32; BLOCK],
        over: [i32; BLOCK],
    ) -> usize {
        let mut passed = mask(over);
        while passed != 0 {
            let lane = passed.trailing_zeros() as usize;
            self.indices[n] = (nth * BLOCK + lane) as u32;
            self.values[n] = block[lane % BLOCK];
            n += 1;
            passed &= passed - 1;
        }
        n
    }

    /// The same where they are many: every lane writes, those that pass keep their place.
    fn put_lanes(
        &mut self,
        mut n: usize,
        nth: usize,
        block: &[f32; BLOCK],
        over: [i32; BLOCK],
    ) -> usize {
        let (Some(indices), Some(values)) = (
            self.indices[n..].first_chunk_mut::<BLOCK>(),
            self.values[n..].first_chunk_mut::<BLOCK>(),
        ) else {
            return self.put_bits(n, nth, block, over);
        };
        let mut kept = 0;
        for lane in 0..BLOCK {
            indices[kept % BLOCK] = (nth * BLOCK + lane) as u32;
            values[kept % BLOCK] = block[lane];
            kept += usize::from(over[lane] < 0);
        }
        n += kept;
        n
    }

    /// Keeps the `k` largest of the `n` > `k` candidates, in place.
    fn narrow(&mut self, n: usize, k: usize) {
        let (indices, values) = (&mut self.indices[..n], &mut self.values[..n]);
        // Only the bin that the k-th lies in has to be ordered.
        self.histogram.fill(0);
        sample::count(&mut self.histogram, values);
        let (bin, above) = sample::bin_of(&self.histogram, k);
        let lower = (bin as u32) << BIN_SHIFT;
        let upper = lower + (1 << BIN_SHIFT);
        let mut n_within = 0;
        for value in values.iter() {
            let magnitude = magnitude(*value);
            self.magnitudes[n_within] = magnitude;
            n_within += usize::from((lower..upper).contains(&magnitude));
        }
        let within = &mut self.magnitudes[..n_within];
        let (larger, kth, _) = within.select_nth_unstable_by(k - above - 1, |a, b| b.cmp(a));
        let kth = *kth;
        let mut ties = k - above - larger.iter().filter(|magnitude| **magnitude > kth).count();
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

/// For [`Selector::collect`]: passes what is of at least `threshold`, at most [`INFINITE`], and not zero.
fn over(threshold: u32) -> impl Fn(usize, &[f32; BLOCK]) -> [i32; BLOCK] {
    let below = threshold.clamp(1, INFINITE) as i32 - 1;
    move |_, block| block.map(|value| below - magnitude(value) as i32)
}

/// A bit for each negative lane.
fn mask(over: [i32; BLOCK]) -> u32 {
    const BITS: [i32; BLOCK] = {
        let mut bits = [0; BLOCK];
        let mut lane = 0;
        while lane < BLOCK {
            bits[lane] = 1 << lane;
            lane += 1;
        }
        bits
    };
    let lanes = over.iter().zip(&BITS);
    lanes.fold(0, |mask, (lane, bit)| mask | (lane >> 31 & bit)) as u32
}

/// A block of the last few entries, with zeros behind.
fn padded(rest: &[f32]) -> [f32; BLOCK] {
    let mut block = [0.0; BLOCK];
    block
        .iter_mut()
        .zip(rest)
        .for_each(|(to, from)| *to = *from);
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By sorting: what `largest` must equal.
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
        let selection = selector.largest(variable, k).unwrap();
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
                        let found = Selector::new(n).largest(&variable, k).unwrap_err();
                        assert_eq!(found.entry, entry);
                    }
                }
            }
        }
        let flood = vec![f32::NAN; 9000];
        assert_eq!(
            Selector::new(9000).largest(&flood, 10).unwrap_err().entry,
            0
        );
    }

    #[test]
    fn a_threshold_lets_pass_what_reaches_it_and_no_zeros() {
        let variable = heavy(1001, 7);
        let kept = |threshold: f32| -> Vec<u32> {
            (0..1001)
                .filter(|i| variable[*i].abs() >= threshold && variable[*i] != 0.0)
                .map(|i| i as u32)
                .collect()
        };
        for threshold in [0.0, 1e-5, 1e-3, variable[500].abs(), 1.0] {
            let mut selector = Selector::new(1001);
            let chosen = selector.at_least(&variable, threshold.to_bits()).unwrap();
            assert_eq!(chosen.indices, kept(threshold));
        }
    }

    #[test]
    fn significance_is_relative_to_the_weight() {
        let mut variable = vec![0.5; 40];
        (variable[20], variable[21], variable[39]) = (0.0, -0.5, 0.0);
        let mut weights = vec![100.0; 40];
        (weights[3], weights[20], weights[21]) = (-49.0, 0.0, 0.0);
        (weights[30], weights[38]) = (f32::NAN, 50.0);
        let mut selector = Selector::new(40);
        let chosen = selector.significant(&variable, &weights, 0.01).unwrap();
        assert_eq!(chosen.indices, [3, 21, 38]);
        variable[30] = f32::INFINITY;
        assert_eq!(
            selector
                .significant(&variable, &weights, 0.01)
                .unwrap_err()
                .entry,
            30
        );
    }

    #[test]
    fn random_entries_differ_by_seed_and_reach_all_in_the_end() {
        let variable = vec![1.0; 1000];
        let mut selector = Selector::new(1000);
        let mut hits = vec![0; 1000];
        for seed in 0..400 {
            let chosen = selector.random(&variable, 37, seed);
            assert_eq!(chosen.indices.len(), 37);
            assert!(chosen.indices.is_sorted_by(|a, b| a < b));
            chosen.indices.iter().for_each(|i| hits[*i as usize] += 1);
        }
        // 400 * 0.037 = 14.8 each; six deviations.
        assert!(hits.iter().all(|n| (1..40).contains(n)), "{hits:?}");
        assert_eq!(selector.random(&vec![0.0; 1000], 37, 1).indices, []);
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

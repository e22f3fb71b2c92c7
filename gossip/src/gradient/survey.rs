//! How many entries of each variable reach a magnitude: read from a sample, so that a budget can be fitted without packing.
//!
//! Per variable a staircase of *knots* (magnitude, how many entries are at least as large), each some 5 % more entries than the one
//! before. Variables of up to 4,096 entries are read whole, of longer ones a fourth or less. Max N cuts relative to the
//! largest entry and often far out in the tail, where a sample knows little: for it, the sample is larger, and one pass
//! collects the largest few percent of a long variable, which are counted exactly.

use super::{
    layout::Layout,
    sample::{self, INFINITE, magnitude},
    select::Selector,
};

/// Eight bits of exponent and five of mantissa: 2 % wide, so that interpolation within one does no harm.
const BIN_SHIFT: u32 = 18;
const BINS: usize = 1 << (31 - BIN_SHIFT);

/// How many more entries a knot has than the one before.
const STEP: f64 = 1.05;

/// As many sampled entries, at most a sixteenth of them, reach into the tail that Max N counts exactly: below it, counts
/// from the sample are good to 2 %.
const TAIL: usize = 2048;

/// One of how many entries is sampled, and how many of a variable at most.
const SAMPLE: (usize, usize) = (4, 1 << 16);

/// The same where counts decide what is sent: for Max N.
const EXACT_SAMPLE: (usize, usize) = (4, 1 << 17);

/// The most entries that a survey samples.
pub(super) fn capacity(layout: &Layout) -> usize {
    let of =
        |length: usize| length.min((length / EXACT_SAMPLE.0).clamp(sample::WHOLE, EXACT_SAMPLE.1));
    layout.ranges().map(|range| of(range.len())).sum()
}

/// So many entries have at least this magnitude.
#[derive(Clone, Copy, Debug)]
struct Knot {
    magnitude: u32,
    n: f32,
}

/// What is known of a residual's variables.
#[derive(Debug)]
pub(super) struct Survey {
    knots: Vec<Knot>,
    /// The sampled entries, variable by variable.
    sampled: Vec<f32>,
    variables: Vec<Surveyed>,
    histogram: Vec<u32>,
}

/// What is known of one variable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surveyed {
    pub(super) length: usize,
    /// The largest magnitude that was seen.
    pub(super) largest: u32,
    /// Entries of the variable for each that the sample holds.
    pub(super) scale: f64,
    first_knot: usize,
    n_knots: usize,
    first_sampled: usize,
    n_sampled: usize,
}

impl Survey {
    pub(super) fn new(layout: &Layout) -> Self {
        let n_knots = |length: usize| length.min((length as f64).ln() as usize * 21 + 21) + 3;
        Self {
            // Address space, resident as far as it is used.
            knots: Vec::with_capacity(layout.ranges().map(|range| n_knots(range.len())).sum()),
            sampled: Vec::with_capacity(capacity(layout)),
            variables: Vec::with_capacity(layout.n_variables()),
            histogram: vec![0; BINS],
        }
    }

    /// Reads `residual`; `selector` is borrowed where tails have to be exact.
    pub(super) fn read(
        &mut self,
        layout: &Layout,
        residual: &[f32],
        mut tails: Option<&mut Selector>,
    ) {
        self.knots.clear();
        self.sampled.clear();
        self.variables.clear();
        for range in layout.ranges() {
            self.read_variable(&residual[range], tails.as_deref_mut());
        }
    }

    pub(super) fn variables(&self) -> &[Surveyed] {
        &self.variables
    }

    fn read_variable(&mut self, variable: &[f32], tails: Option<&mut Selector>) {
        let length = variable.len();
        let (one_of, most) = if tails.is_some() {
            EXACT_SAMPLE
        } else {
            SAMPLE
        };
        let first_sampled = self.sampled.len();
        for run in sample::runs(length, one_of, most) {
            self.sampled.extend_from_slice(&variable[run]);
        }
        let sampled = &self.sampled[first_sampled..];
        let n_sampled = sampled.len();
        let n_zeros = sampled.iter().filter(|value| **value == 0.0).count();
        let mut largest = sample::largest(sampled).min(INFINITE);
        for value in sampled {
            self.histogram[(magnitude(*value).min(INFINITE) >> BIN_SHIFT) as usize] += 1;
        }
        self.histogram[0] -= n_zeros as u32;
        let scale = length as f64 / n_sampled.max(1) as f64;
        let mut top = largest >> BIN_SHIFT;
        let bottom = self.lowest(top, n_sampled - n_zeros);
        let first_knot = self.knots.len();
        let mut above = 0.0;
        if let Some(selector) = tails.filter(|_| length > sample::WHOLE && largest > 0) {
            let mut rank = TAIL.min(n_sampled / 16);
            let mut cut = top;
            while cut > bottom && rank > self.histogram[cut as usize] as usize {
                rank -= self.histogram[cut as usize] as usize;
                cut -= 1;
            }
            self.histogram[cut as usize..=top as usize].fill(0);
            let tail = selector.collected(variable, cut << BIN_SHIFT);
            largest = 0;
            for value in tail {
                let magnitude = magnitude(*value).min(INFINITE);
                self.histogram[(magnitude >> BIN_SHIFT) as usize] += 1;
                largest = largest.max(magnitude);
            }
            top = largest >> BIN_SHIFT;
            above = self.walk(cut, top, above, 1.0, largest, first_knot);
            if cut > bottom {
                self.walk(bottom, cut - 1, above, scale, largest, first_knot);
            }
        } else if largest > 0 {
            self.walk(bottom, top, above, scale, largest, first_knot);
        }
        self.variables.push(Surveyed {
            length,
            largest,
            scale,
            first_knot,
            n_knots: self.knots.len() - first_knot,
            first_sampled,
            n_sampled,
        });
    }

    /// The bin of the least of `n` magnitudes, none of them above `top`.
    fn lowest(&self, top: u32, mut n: usize) -> u32 {
        for bin in (0..=top).rev() {
            n = n.saturating_sub(self.histogram[bin as usize] as usize);
            if n == 0 {
                return bin;
            }
        }
        0
    }

    /// Makes knots of the bins from `top` down to `bottom` and clears them; `above` entries lie in those before.
    fn walk(
        &mut self,
        bottom: u32,
        top: u32,
        mut above: f64,
        scale: f64,
        largest: u32,
        first_knot: usize,
    ) -> f64 {
        for bin in (bottom..=top).rev() {
            let n = std::mem::take(&mut self.histogram[bin as usize]);
            if n == 0 && bin != bottom {
                continue;
            }
            above += f64::from(n) * scale;
            let last = self.knots[first_knot..].last().map_or(0.0, |knot| knot.n);
            if above >= f64::from(last) * STEP || bin == bottom {
                if last == 0.0 {
                    self.knots.push(Knot {
                        magnitude: largest,
                        n: 1.0,
                    });
                }
                self.knots.push(Knot {
                    magnitude: (bin << BIN_SHIFT).clamp(1, largest),
                    n: above as f32,
                });
            }
        }
        above
    }

    /// The entries of a variable that were sampled.
    pub(super) fn sampled(&self, variable: &Surveyed) -> &[f32] {
        &self.sampled[variable.first_sampled..][..variable.n_sampled]
    }

    fn knots_of(&self, variable: &Surveyed) -> &[Knot] {
        &self.knots[variable.first_knot..][..variable.n_knots]
    }

    /// How many entries are not zero.
    pub(super) fn nonzero(&self, variable: &Surveyed) -> f64 {
        self.knots_of(variable)
            .last()
            .map_or(0.0, |knot| f64::from(knot.n))
    }

    /// How many entries have at least `magnitude`.
    pub(super) fn n_at_least(&self, variable: &Surveyed, magnitude: u32) -> f64 {
        let knots = self.knots_of(variable);
        let below = knots.partition_point(|knot| knot.magnitude >= magnitude);
        let (Some(upper), Some(lower)) = (below.checked_sub(1).map(|i| knots[i]), knots.get(below))
        else {
            return if below == 0 {
                0.0
            } else {
                self.nonzero(variable)
            };
        };
        let share = f64::from(upper.magnitude - magnitude)
            / f64::from(upper.magnitude - lower.magnitude).max(1.0);
        f64::from(upper.n) + f64::from(lower.n - upper.n) * share
    }

    /// The magnitude that `n` entries reach.
    pub(super) fn magnitude_of(&self, variable: &Surveyed, n: f64) -> u32 {
        let knots = self.knots_of(variable);
        let at = knots.partition_point(|knot| f64::from(knot.n) < n);
        knots.get(at).map_or(1, |knot| knot.magnitude)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(variable: &[f32], tails: bool, threshold: f32, tolerance: f64) {
        let layout = Layout::new(&[variable.len()]).unwrap();
        let mut survey = Survey::new(&layout);
        let mut selector = Selector::new(variable.len());
        let capacity = survey.knots.capacity();
        for _ in 0..2 {
            survey.read(&layout, variable, tails.then_some(&mut selector));
        }
        let exact = variable
            .iter()
            .filter(|value| value.abs() >= threshold && **value != 0.0)
            .count() as f64;
        let estimated = survey.n_at_least(&survey.variables()[0], threshold.to_bits());
        // A few entries may lie anywhere within a bin.
        assert!(
            (estimated - exact).abs() <= exact * tolerance + exact.sqrt() + 2.0,
            "{estimated} of {exact} from {threshold}"
        );
        assert!(survey.histogram.iter().all(|n| *n == 0));
        assert_eq!(survey.knots.capacity(), capacity);
    }

    #[test]
    fn far_out_in_the_tail_counts_are_near_exact_and_elsewhere_near() {
        let mut state = 1u32;
        let variable: Vec<f32> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / (1 << 24) as f32 - 0.5).powi(5)
        })
        .take(300_000)
        .collect();
        for share in [0.99, 0.9, 0.5] {
            check(&variable, true, share / 32.0, 0.02);
        }
        for share in [0.1, 0.01, 1e-4] {
            check(&variable, true, share / 32.0, 0.05);
            check(&variable, false, share / 32.0, 0.05);
        }
    }

    proptest! {
        #[test]
        fn any_variable_can_be_surveyed(
            bits in proptest::collection::vec(prop_oneof![Just(0u32), any::<u32>()], 1..300), repeats in 1usize..40, tails: bool, n in 0.0f64..20_000.0,
        ) {
            let variable: Vec<f32> = bits.iter().cycle().take(bits.len() * repeats).map(|bits| f32::from_bits(*bits)).collect();
            let layout = Layout::new(&[variable.len()]).unwrap();
            let (mut survey, mut selector) = (Survey::new(&layout), Selector::new(variable.len()));
            survey.read(&layout, &variable, tails.then_some(&mut selector));
            let surveyed = survey.variables()[0];
            let magnitude = survey.magnitude_of(&surveyed, n);
            for magnitude in [0, 1, magnitude, bits[0], u32::MAX] {
                let n = survey.n_at_least(&surveyed, magnitude);
                prop_assert!((0.0..=variable.len() as f64 * 1.01).contains(&n), "{}", n);
            }
        }

        #[test]
        fn short_variables_are_counted_as_they_are(
            variable in proptest::collection::vec(prop_oneof![Just(0.0f32), -1f32..1.0, Just(1e-42)], 1..3000), threshold in 0f32..1.0,
        ) {
            check(&variable, false, threshold, 0.08);
            check(&variable, true, threshold, 0.08);
        }
    }
}

//! How large the global batch is, and what that means for the learning rate (DLion's GBS controller).
//!
//! In: settings, and how many samples the mesh has trained on. Out: the global batch of the next step. Small batches
//! early generalise better, larger ones later cost fewer bytes per sample: the global batch grows by a constant while
//! it is below 1 % of the training set, then by a factor while below 10 %, then it stays. All is a pure function of
//! numbers that every member has, so nobody announces it. The paper's constants are not known; the defaults are ours.

/// Part of the training set below which growth is arithmetic.
const WARMUP_FRAC: f64 = 0.01;
/// Part of the training set beyond which nothing grows.
const SPEEDUP_FRAC: f64 = 0.1;
/// Ratio of global batches up to which the learning rate grows in proportion.
const LINEAR_UP_TO: f64 = 8.0;
/// Samples per member at the start.
const FIRST_PER_MEMBER: u32 = 32;

/// How a global batch grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// At the start. Default 32 per member.
    pub initial: u32,
    /// Samples more at each adjustment below 1 % of the training set. Default: `initial`.
    pub warmup_step: u32,
    /// Factor at each adjustment from there on. Default 1.5. At most 1, or not finite: no growth in this phase.
    pub speedup: f64,
    /// Steps of the mesh between two adjustments. Default 100; 0 counts as 1.
    pub every_steps: u32,
    /// Size of the training set.
    pub train_samples: u64,
}

impl Growth {
    /// The defaults for so many members at the start; those who come later change nothing.
    pub fn for_members(n_members: u32, train_samples: u64) -> Self {
        let initial = n_members.max(1).saturating_mul(FIRST_PER_MEMBER);
        Self {
            initial,
            warmup_step: initial,
            speedup: 1.5,
            every_steps: 100,
            train_samples,
        }
    }

    /// The global batch of the next adjustment, `None` if there is none.
    fn next(&self, global: u32) -> Option<u32> {
        let part = |frac: f64| self.train_samples as f64 * frac;
        let now = f64::from(global);
        let next = if now < part(WARMUP_FRAC) {
            now + f64::from(self.warmup_step)
        } else if now < part(SPEEDUP_FRAC) && self.speedup.is_finite() {
            (now * self.speedup).round()
        } else {
            return None;
        };
        let next = next.min(part(SPEEDUP_FRAC).floor()) as u32;
        (next > global).then_some(next)
    }
}

/// The global batch of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GlobalBatch {
    /// The user's: the same whoever joins or leaves. 0 counts as 1.
    Fixed(u32),
    /// DLion's growth.
    Grows(Growth),
}

impl GlobalBatch {
    /// The global batch once the mesh has trained on `samples`. Takes as many turns as there were adjustments.
    pub fn at(&self, samples: u64) -> u32 {
        let Self::Grows(growth) = self else {
            return self.initial();
        };
        let (mut global, mut left) = (self.initial(), samples);
        while let Some(next) = growth.next(global) {
            let span = u64::from(global) * u64::from(growth.every_steps.max(1));
            if left < span {
                break;
            }
            (global, left) = (next, left - span);
        }
        global
    }

    /// By what the learning rate of the start is multiplied at a global batch of `global`: in proportion up to the eightfold (Goyal et
    /// al. 2017, arXiv:1706.02677), with the square root of what is beyond, where the linear rule becomes unstable.
    pub fn rate_factor(&self, global: u32) -> f32 {
        let ratio = f64::from(global.max(1)) / f64::from(self.initial());
        let factor = match ratio <= LINEAR_UP_TO {
            true => ratio,
            false => (LINEAR_UP_TO * ratio).sqrt(),
        };
        factor as f32
    }

    fn initial(&self) -> u32 {
        match self {
            Self::Fixed(global) => *global,
            Self::Grows(growth) => growth.initial,
        }
        .max(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_grows_by_steps_then_by_factors_then_stays() {
        let growth = Growth::for_members(6, 60_000);
        let batch = GlobalBatch::Grows(growth);
        let (mut samples, mut seen) = (0u64, vec![batch.at(0)]);
        for _ in 0..5_000 {
            samples += u64::from(batch.at(samples));
            if batch.at(samples) != seen[seen.len() - 1] {
                seen.push(batch.at(samples));
            }
        }
        let expected = [192, 384, 576, 768, 1152, 1728, 2592, 3888, 5832, 6000];
        assert_eq!(seen, expected);
        assert_eq!(batch.at(192 * 100 - 1), 192);
        assert_eq!(batch.at(192 * 100), 384);
        assert_eq!(batch.at(u64::MAX), 6_000);
    }

    #[test]
    fn a_fixed_one_stays_and_so_does_one_that_is_large_already() {
        let large = Growth::for_members(100, 1_000);
        for samples in [0, 1_000_000, u64::MAX] {
            assert_eq!(GlobalBatch::Fixed(77).at(samples), 77);
            assert_eq!(GlobalBatch::Grows(large).at(samples), 3_200);
        }
        assert_eq!(GlobalBatch::Fixed(0).at(5), 1);
    }

    #[test]
    fn the_learning_rate_grows_in_proportion_to_the_eightfold_and_then_by_the_root() {
        let batch = GlobalBatch::Grows(Growth::for_members(4, 1 << 20));
        let factor = |global| batch.rate_factor(global);
        assert_eq!(factor(128), 1.0);
        assert_eq!(factor(512), 4.0);
        assert_eq!(factor(128 * 8), 8.0);
        assert_eq!(factor(128 * 32), 16.0);
    }

    proptest! {
        #[test]
        fn it_never_shrinks_nor_leaves_its_bounds(
            (initial, warmup_step, every_steps) in (0..5_000u32, 0..5_000u32, 0..1_000u32),
            speedup in prop_oneof![0.0..4.0f64, Just(f64::NAN), Just(f64::INFINITY)],
            train_samples in 0..100_000_000u64,
            mut samples: Vec<u64>,
        ) {
            let growth = Growth { initial, warmup_step, speedup, every_steps, train_samples };
            let batch = GlobalBatch::Grows(growth);
            samples.sort_unstable();
            let sizes: Vec<u32> = samples.iter().map(|samples| batch.at(*samples)).collect();
            prop_assert!(sizes.is_sorted());
            let most = initial.max(1).max((train_samples / 10) as u32 + 1);
            prop_assert!(sizes.iter().all(|size| (initial.max(1)..=most).contains(size)));
            for size in sizes {
                let factor = batch.rate_factor(size);
                prop_assert!(factor.is_finite() && factor >= 1.0);
            }
        }
    }
}

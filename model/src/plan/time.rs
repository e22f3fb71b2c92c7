//! How long a pass takes, by its number of samples: a curve through measured points (Asteroid: Ye et al., MobiCom 2024, the
//! profiler). Small batches are relatively dear, and a line through two sizes does not say how much.

use serde::{Deserialize, Serialize};

/// Most points of a curve.
pub const MAX_POINTS: usize = 32;

/// Seconds of a pass at measured numbers of samples: rising sizes, times that never fall. Between two points a straight line;
/// before the first one the line through the first two, but never below zero; behind the last one the line through the last
/// two. A single point is all time per sample. Without points a pass takes no time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time {
    /// Samples and seconds.
    points: Vec<(usize, f64)>,
}

impl Time {
    /// The curve through measured `points` in any order. Of two with the same size the later one counts; where a larger batch
    /// took less time that is noise, and the smaller one is taken to be as fast: the larger is what will be run.
    pub fn measured(points: impl IntoIterator<Item = (usize, f64)>) -> Self {
        let mut sorted: Vec<(usize, f64)> = Vec::new();
        for (samples, seconds) in points {
            match sorted.binary_search_by_key(&samples, |point| point.0) {
                Ok(at) => sorted[at].1 = seconds,
                Err(at) => sorted.insert(at, (samples, seconds)),
            }
        }
        let mut most = f64::INFINITY;
        for (_, seconds) in sorted.iter_mut().rev() {
            *seconds = seconds.min(most);
            most = *seconds;
        }
        Self { points: sorted }
    }

    /// Seconds for `samples`; none for none.
    pub fn of(&self, samples: usize) -> f64 {
        if samples == 0 {
            return 0.0;
        }
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else {
            return 0.0;
        };
        let at = self.points.partition_point(|point| point.0 <= samples);
        if let Some(before) = at.checked_sub(1) {
            let before = &self.points[before];
            let beyond = (samples - before.0) as f64;
            let slope = match self.points.get(at) {
                Some(after) => (after.1 - before.1) / (after.0 - before.0) as f64,
                None => self.last_slope(),
            };
            return if before.0 == last.0 || beyond > 0.0 {
                before.1 + slope * beyond
            } else {
                before.1
            };
        }
        let least = self.least();
        least + (first.1 - least) * samples as f64 / first.0 as f64
    }

    /// What a pass takes whatever its samples: where the curve meets none of them.
    pub(crate) fn least(&self) -> f64 {
        let [first, second, ..] = self.points.as_slice() else {
            return 0.0;
        };
        let slope = (second.1 - first.1) / (second.0 - first.0) as f64;
        (first.1 - slope * first.0 as f64).max(0.0)
    }

    /// Seconds of one more sample behind the last point. Where the last two took as long, all its time is per sample: nothing
    /// says that more come for nothing.
    fn last_slope(&self) -> f64 {
        let Some(last) = self.points.last() else {
            return 0.0;
        };
        let before = self.points.len().checked_sub(2).map(|at| self.points[at]);
        let slope = before.map(|before| (last.1 - before.1) / (last.0 - before.0) as f64);
        match slope {
            Some(slope) if slope > 0.0 => slope,
            _ => last.1 / last.0.max(1) as f64,
        }
    }

    /// Sizes at which the curve bends.
    pub fn sizes(&self) -> impl Iterator<Item = usize> {
        self.points.iter().map(|point| point.0)
    }

    /// `factor` times as much.
    #[must_use]
    pub(crate) fn times(mut self, factor: f64) -> Self {
        for point in &mut self.points {
            point.1 *= factor;
        }
        self
    }

    /// Whether the sizes rise from one on and the times lie between 0 and `most` and never fall.
    pub(crate) fn is_believed(&self, most: f64) -> bool {
        let rises = |pair: &[(usize, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
        let believed = |(samples, seconds): &(usize, f64)| {
            (1..=1 << 20).contains(samples) && (0.0..=most).contains(seconds)
        };
        self.points.len() <= MAX_POINTS
            && self.points.iter().all(believed)
            && self.points.windows(2).all(rises)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_between_measured_sizes_lie_on_lines() {
        let time = Time::measured([(16, 0.9), (8, 0.5)]);
        assert_eq!(
            (time.of(0), time.of(8), time.of(12), time.of(16)),
            (0.0, 0.5, 0.7, 0.9)
        );
        assert!((time.of(4) - 0.3).abs() < 1e-12 && (time.of(32) - 1.7).abs() < 1e-12);
        assert!((time.least() - 0.1).abs() < 1e-12);
        // Steeper than its size: the line would begin below zero.
        assert_eq!(Time::measured([(8, 0.1), (16, 0.9)]).of(4), 0.05);
        assert_eq!(Time::measured([(8, 0.4)]).of(4), 0.2);
        assert_eq!(Time::measured([(8, 0.4)]).of(16), 0.8);
        assert_eq!(Time::default().of(5), 0.0);
    }

    #[test]
    fn a_larger_batch_that_takes_no_longer_is_believed() {
        let time = Time::measured([(8, 0.5), (16, 0.4)]);
        assert_eq!((time.of(8), time.of(16), time.of(32)), (0.4, 0.4, 0.8));
    }

    #[test]
    fn curves_that_cannot_be_are_not_believed() {
        let curve = |points: &[(usize, f64)]| Time {
            points: points.to_vec(),
        };
        assert!(curve(&[(1, 0.0), (4, 0.5)]).is_believed(1.0));
        for points in [
            &[(0, 0.1)][..],
            &[(1, f64::NAN)],
            &[(1, -0.1)],
            &[(1, 2.0)],
            &[(4, 0.1), (1, 0.2)],
            &[(1, 0.1), (1, 0.2)],
            &[(1, 0.2), (4, 0.1)],
            &[(1 << 21, 0.1)],
        ] {
            assert!(!curve(points).is_believed(1.0), "{points:?}");
        }
        let many: Vec<_> = (1..40).map(|n| (n, 0.5)).collect();
        assert!(!curve(&many).is_believed(1.0));
    }

    proptest! {
        #[test]
        fn a_curve_never_falls_and_meets_its_largest_point(points in proptest::collection::vec((1usize..60, 0.0f64..10.0), 1..9)) {
            let time = Time::measured(points.clone());
            prop_assert!(time.is_believed(10.0));
            let largest = points.iter().map(|point| point.0).max().unwrap_or(0);
            let last = points.iter().rev().find(|point| point.0 == largest).map(|point| point.1);
            prop_assert_eq!(Some(time.of(largest)), last);
            for samples in 0..100 {
                prop_assert!(time.of(samples) <= time.of(samples + 1) + 1e-9, "{} {:?}", samples, time);
            }
            prop_assert!(time.least() <= time.of(1) + 1e-12);
        }
    }
}

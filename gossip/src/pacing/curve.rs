//! A loss curve fitted to a few points, and the reward of the commit rate that made it.
//!
//! ADSP fits `loss(t) = 1 / (a^2 t + b) + c` to the mean training loss at three moments of a try and rewards the try with the
//! reciprocal of the time at which the curve meets a target (Hu, Wang, Wu, AAAI 2020). Two fits are here:
//!
//! * [`Curve::fit`], the paper's, all of a², b and c free: exact for three convex points, least squares over more;
//! * [`Curve::fit_above`], c known: two parameters only, much less sensitive to noise, with the standard error of its rate.
//!
//! Deviation: a later try begins at a lower loss, so its time to the target is shorter whatever its rate.
//! [`Curve::reward_from`] moves the curve in time so that it begins at a loss common to all tries; then rewards compare.

/// The mean training loss at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Seconds since the try began.
    pub at_s: f64,
    /// Nats per sample.
    pub train_loss: f64,
}

/// `loss(t) = 1 / (a2 t + b) + c`, t in seconds; a2 and b are positive, so it falls and is convex.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Curve {
    a2: f64,
    b: f64,
    c: f64,
}

/// The shapes searched by [`Curve::fit`]: `k T`, where the loss above c falls as 1/(1 + k t) and T is the time covered. At the
/// lower end the curve is a straight line, at the upper end it has fallen wholly by the second point.
const SHAPES: (f64, f64) = (1e-4, 1e4);

impl Curve {
    /// The curve closest to `points` (at least three, least squares of the losses). `None` if there are fewer, or not at three
    /// different times, or something is not finite, or the loss does not fall.
    pub fn fit(points: &[Point]) -> Option<Self> {
        let (start, covered) = span(points)?;
        if points.len() < 3 {
            return None;
        }
        // For a given shape k the rest is linear: loss = scale / (1 + k t) + c. So only k is searched, on a grid of its
        // logarithm first (there may be more than one valley), then by golden section.
        let cost = |log_shape: f64| {
            linear(points, start, log_shape.exp() / covered).map_or(f64::INFINITY, |fit| fit.cost)
        };
        let (low, high) = (SHAPES.0.ln(), SHAPES.1.ln());
        const GRID: usize = 32;
        let width = (high - low) / GRID as f64;
        let best = (0..=GRID)
            .map(|i| low + width * i as f64)
            .min_by(|a, b| cost(*a).total_cmp(&cost(*b)))?;
        let shape = golden(&cost, (best - width).max(low), (best + width).min(high));
        let k = shape.exp() / covered;
        let fit = linear(points, start, k)?;
        // The times were taken from the first point; 1 / scale is b there.
        let b = (1.0 - k * start) / fit.scale;
        Self::falling(k / fit.scale, b, fit.c)
    }

    /// The curve through `points` (at least two) that ends at `floor`, by a straight line through 1 / (loss - floor), and the
    /// standard error of a² (0 if two points leave none). Points at or below the floor are passed over.
    pub fn fit_above(points: &[Point], floor: f64) -> Option<(Self, f64)> {
        let above: Vec<(f64, f64)> = points
            .iter()
            .map(|point| (point.at_s, 1.0 / (point.train_loss - floor)))
            .filter(|(at, inverse)| at.is_finite() && inverse.is_finite() && *inverse > 0.0)
            .collect();
        let n = above.len() as f64;
        let mean_t = above.iter().map(|(t, _)| t).sum::<f64>() / n;
        let mean_u = above.iter().map(|(_, u)| u).sum::<f64>() / n;
        let spread: f64 = above.iter().map(|(t, _)| (t - mean_t).powi(2)).sum();
        let joint: f64 = above.iter().map(|(t, u)| (t - mean_t) * (u - mean_u)).sum();
        if above.len() < 2 || spread <= 0.0 {
            return None;
        }
        let a2 = joint / spread;
        let b = mean_u - a2 * mean_t;
        let unexplained: f64 = above.iter().map(|(t, u)| (u - b - a2 * t).powi(2)).sum();
        let error = if above.len() > 2 {
            (unexplained / (n - 2.0) / spread).sqrt()
        } else {
            0.0
        };
        Some((Self::falling(a2, b, floor)?, error))
    }

    fn falling(a2: f64, b: f64, c: f64) -> Option<Self> {
        let sound = a2.is_finite() && b.is_finite() && c.is_finite() && a2 > 0.0;
        sound.then_some(Self { a2, b, c })
    }

    /// The loss at `at_s` seconds.
    pub fn loss_at(&self, at_s: f64) -> f64 {
        1.0 / (self.a2 * at_s + self.b) + self.c
    }

    /// How fast 1 / (loss - c) grows, per second: the same wherever on the curve it is measured.
    pub fn rate(&self) -> f64 {
        self.a2
    }

    /// The paper's reward `a^2 / (1 / (target - c) - b)`: the reciprocal of the seconds after which the loss is `target`. `None`
    /// (the paper's sentinel) if it never gets there, is below it already, or the figure is not finite.
    pub fn reward(&self, target: f64) -> Option<f64> {
        self.reciprocal_time(self.b, target)
    }

    /// The reward as if the curve had begun at the loss `from`, so that tries which began at different losses compare. `None`
    /// also if `from` is not above the curve's end.
    pub fn reward_from(&self, from: f64, target: f64) -> Option<f64> {
        (from > self.c).then_some(())?;
        self.reciprocal_time(1.0 / (from - self.c), target)
    }

    fn reciprocal_time(&self, b: f64, target: f64) -> Option<f64> {
        let reward = self.a2 / (1.0 / (target - self.c) - b);
        (target > self.c && reward > 0.0 && reward.is_finite()).then_some(reward)
    }
}

/// When the points begin and how long they last.
fn span(points: &[Point]) -> Option<(f64, f64)> {
    let finite = |point: &Point| point.at_s.is_finite() && point.train_loss.is_finite();
    if !points.iter().all(finite) {
        return None;
    }
    let times = points.iter().map(|point| point.at_s);
    let (first, last) = times.fold((f64::MAX, f64::MIN), |(a, b), t| (a.min(t), b.max(t)));
    let covered = last - first;
    let between = |point: &Point| point.at_s > first && point.at_s < last;
    (covered > 0.0 && covered.is_finite() && points.iter().any(between)).then_some((first, covered))
}

struct Linear {
    scale: f64,
    c: f64,
    cost: f64,
}

/// Least squares of `scale / (1 + k (t - start)) + c`; `None` unless the loss falls.
fn linear(points: &[Point], start: f64, k: f64) -> Option<Linear> {
    let n = points.len() as f64;
    let shape = |point: &Point| 1.0 / (1.0 + k * (point.at_s - start));
    let mean_x = points.iter().map(shape).sum::<f64>() / n;
    let mean_y = points.iter().map(|point| point.train_loss).sum::<f64>() / n;
    let (mut xx, mut xy) = (0.0, 0.0);
    for point in points {
        let x = shape(point) - mean_x;
        xx += x * x;
        xy += x * (point.train_loss - mean_y);
    }
    let scale = xy / xx;
    let c = mean_y - scale * mean_x;
    let residual = |point: &Point| (point.train_loss - c - scale * shape(point)).powi(2);
    let cost = points.iter().map(residual).sum::<f64>();
    (scale > 0.0 && scale.is_finite() && cost.is_finite()).then_some(Linear { scale, c, cost })
}

/// The minimum of `cost` between `low` and `high`, where it has one valley.
fn golden(cost: &impl Fn(f64) -> f64, mut low: f64, mut high: f64) -> f64 {
    let ratio = (5f64.sqrt() - 1.0) / 2.0;
    // Each turn leaves 0.618 of the interval: 80 take it to the precision of f64.
    for _ in 0..80 {
        let (left, right) = (high - ratio * (high - low), low + ratio * (high - low));
        if cost(left) <= cost(right) {
            high = right;
        } else {
            low = left;
        }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn points(a2: f64, b: f64, c: f64, times: &[f64]) -> Vec<Point> {
        let on_curve = |at_s: &f64| Point {
            at_s: *at_s,
            train_loss: 1.0 / (a2 * at_s + b) + c,
        };
        times.iter().map(on_curve).collect()
    }

    #[test]
    fn three_points_are_met_exactly() {
        let curve = Curve::fit(&points(0.02, 0.5, 0.3, &[0.0, 30.0, 60.0])).unwrap();
        for (got, wished) in [(curve.a2, 0.02), (curve.b, 0.5), (curve.c, 0.3)] {
            assert!((got / wished - 1.0).abs() < 1e-4, "{curve:?}");
        }
        // 1 / (0.02 t + 0.5) + 0.3 = 0.7 at t = 100.
        let reward = curve.reward(0.7).unwrap();
        assert!((reward * 100.0 - 1.0).abs() < 1e-4, "{reward}");
        assert_eq!(curve.reward(0.2), None, "below its end");
        assert_eq!(curve.reward(3.0), None, "behind it already");
    }

    #[test]
    fn a_try_that_begins_lower_on_the_same_curve_has_the_same_reward_from_a_common_start() {
        let early = Curve::fit(&points(0.02, 0.5, 0.3, &[0.0, 5.0, 10.0])).unwrap();
        let late = Curve::fit(&points(0.02, 0.9, 0.3, &[0.0, 5.0, 10.0])).unwrap();
        let rewards = [early, late].map(|curve| curve.reward_from(2.3, 0.7).unwrap());
        assert!((rewards[0] / rewards[1] - 1.0).abs() < 1e-3, "{rewards:?}");
        assert!(
            late.reward(0.7).unwrap() > 1.1 * early.reward(0.7).unwrap(),
            "the paper's does not"
        );
    }

    #[test]
    fn noise_moves_a_fit_over_many_points_little() {
        let times: Vec<f64> = (0..40).map(f64::from).collect();
        let mut noisy = points(0.05, 0.5, 0.2, &times);
        for (i, point) in noisy.iter_mut().enumerate() {
            point.train_loss *= 1.0 + 0.01 * (i as f64 * 12.9898).sin();
        }
        let curve = Curve::fit(&noisy).unwrap();
        let truth = points(0.05, 0.5, 0.2, &times);
        for point in &truth {
            assert!((curve.loss_at(point.at_s) / point.train_loss - 1.0).abs() < 0.01);
        }
        let (above, error) = Curve::fit_above(&noisy, 0.2).unwrap();
        assert!(
            (above.rate() - 0.05).abs() < 3.0 * error && error < 0.002,
            "{above:?} {error}"
        );
    }

    #[test]
    fn a_straight_or_concave_fall_is_taken_as_a_line() {
        let line = [(0.0, 2.0), (1.0, 1.9), (2.0, 1.8)]
            .map(|(at_s, train_loss)| Point { at_s, train_loss });
        let reward = Curve::fit(&line).unwrap().reward(1.0).unwrap();
        assert!((reward * 10.0 - 1.0).abs() < 0.01, "{reward}");
    }

    #[test]
    fn a_loss_that_rises_or_stands_or_was_seen_too_seldom_has_no_curve() {
        let at = |losses: &[f64]| {
            let points: Vec<_> = (0..)
                .zip(losses)
                .map(|(i, loss)| Point {
                    at_s: f64::from(i),
                    train_loss: *loss,
                })
                .collect();
            Curve::fit(&points)
        };
        assert_eq!(at(&[1.0, 1.1, 1.3]), None);
        assert_eq!(at(&[1.0, 1.0, 1.0]), None);
        assert_eq!(at(&[1.0, 0.9]), None);
        assert_eq!(at(&[1.0, f64::NAN, 0.5]), None);
        let same = Point {
            at_s: 1.0,
            train_loss: 1.0,
        };
        assert_eq!(Curve::fit(&[same; 5]), None);
        assert_eq!(Curve::fit_above(&[same; 5], 0.0), None);
    }

    proptest! {
        #[test]
        fn whatever_the_points_a_reward_is_positive_and_finite(
            raw: Vec<(f64, f64)>, target: f64, from: f64
        ) {
            let points: Vec<_> = raw.into_iter().map(|(at_s, train_loss)| Point { at_s, train_loss }).collect();
            let curves = [Curve::fit(&points), Curve::fit_above(&points, 0.0).map(|(curve, _)| curve)];
            for curve in curves.into_iter().flatten() {
                for reward in [curve.reward(target), curve.reward_from(from, target)].into_iter().flatten() {
                    prop_assert!(reward > 0.0 && reward.is_finite());
                }
            }
        }

        #[test]
        fn three_points_on_a_curve_give_that_curve_back(
            a2 in 0.001f64..1.0, b in 0.2f64..3.0, c in 0.0f64..1.0, half in 1f64..30.0
        ) {
            let given = points(a2, b, c, &[0.0, half, 2.0 * half]);
            let curve = Curve::fit(&given).unwrap();
            for point in given {
                prop_assert!((curve.loss_at(point.at_s) - point.train_loss).abs() < 1e-6, "{curve:?}");
            }
        }
    }
}

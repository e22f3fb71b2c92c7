//! What members say of their training losses in their beats: which of it can be true, and the mean of it. Goes into the choice of
//! whom to copy from and into the search for the commit rate.

use serde::{Deserialize, Serialize};

/// What one member reports of its training; another peer's word until it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Mean training loss of late, nats per sample.
    pub train_loss: f32,
    /// Samples behind that mean: its weight.
    pub n_samples: u64,
}

/// Losses beyond this are no measurement of a model that trains.
pub const MAX_LOSS: f32 = 1e6;

/// A member's weight is at most this many times the median weight, so that a claim of endless samples does not silence the
/// others; honest shares of the batch differ by less.
const MOST_OF_MEDIAN: u64 = 16;

impl Report {
    /// Whether it can be a mean over samples at all: finite, from 0 to [`MAX_LOSS`], and of at least one sample.
    pub fn is_plausible(&self) -> bool {
        (0.0..=MAX_LOSS).contains(&self.train_loss) && self.n_samples > 0
    }
}

/// The mean weighted by samples over the plausible reports; `None` if there are none.
pub fn mean(reports: &[Report]) -> Option<f32> {
    let mut plausible: Vec<Report> = reports.to_vec();
    plausible.retain(Report::is_plausible);
    plausible.sort_by_key(|report| report.n_samples);
    let median = plausible
        .get(plausible.len().checked_sub(1)? / 2)?
        .n_samples;
    let most = median.saturating_mul(MOST_OF_MEDIAN);
    let (mut sum, mut weights) = (0.0, 0.0);
    for report in &plausible {
        let weight = report.n_samples.min(most) as f64;
        sum += weight * f64::from(report.train_loss);
        weights += weight;
    }
    Some((sum / weights) as f32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn report(train_loss: f32, n_samples: u64) -> Report {
        Report {
            train_loss,
            n_samples,
        }
    }

    #[test]
    fn members_weigh_by_their_samples() {
        assert_eq!(mean(&[report(1.0, 30), report(2.0, 10)]), Some(1.25));
    }

    #[test]
    fn what_is_no_loss_does_not_count_and_endless_samples_do_not_silence_the_others() {
        assert_eq!(mean(&[]), None);
        assert_eq!(
            mean(&[report(f32::NAN, 5), report(-1.0, 5), report(1.0, 0)]),
            None
        );
        let lied = mean(&[report(1.0, 10), report(1.0, 10), report(9.0, u64::MAX)]);
        assert!(
            lied.is_some_and(|loss| (1.1..8.5).contains(&loss)),
            "{lied:?}"
        );
    }

    proptest! {
        #[test]
        fn the_mean_lies_between_the_plausible_losses(reports: Vec<(f32, u64)>) {
            let reports: Vec<_> = reports.into_iter().map(|(loss, n)| report(loss, n)).collect();
            if let Some(mean) = mean(&reports) {
                let losses = reports.iter().filter(|r| r.is_plausible()).map(|r| r.train_loss);
                let (low, high) = losses.fold((f32::MAX, 0.0f32), |(l, h), x| (l.min(x), h.max(x)));
                prop_assert!(mean >= low * 0.999 && mean <= high * 1.001, "{low} {mean} {high}");
            }
        }
    }
}

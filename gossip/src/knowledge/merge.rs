//! Arithmetic of merging one replica's parameters into another's: a knowledge transfer, and the two sides of a network partition
//! that has healed.
//!
//! After a partition both sides have trained on. The receiver makes the mean of both by the samples each has trained on since
//! they parted, evaluates all three on held-out samples (the driver does), and keeps the best: [`pick`]. Whatever falls
//! is counted in samples, so that no work is thrown away without saying so.

/// Slices of unequal length; nothing was altered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parameters of {expected} values cannot be merged with {got}")]
pub struct LengthError {
    /// Values of one's own.
    pub expected: usize,
    /// Values of the other.
    pub got: usize,
}

fn check(own: &[f32], other: &[f32]) -> Result<(), LengthError> {
    let (expected, got) = (own.len(), other.len());
    (expected == got)
        .then_some(())
        .ok_or(LengthError { expected, got })
}

/// Moves `own` towards `other`: `w <- w + weight * (other - w)` (DLion's lambda merge; 1 copies, exactly). A weight outside 0 to 1
/// acts as the nearer end, NaN as 0.
///
/// # Errors
/// [`LengthError`]
pub fn toward(own: &mut [f32], other: &[f32], weight: f32) -> Result<(), LengthError> {
    check(own, other)?;
    let weight = if weight.is_nan() {
        0.0
    } else {
        weight.clamp(0.0, 1.0)
    };
    if weight == 1.0 {
        // Also where one's own value is not finite, which no sum would mend.
        own.copy_from_slice(other);
    } else if weight > 0.0 {
        for (own, other) in own.iter_mut().zip(other) {
            *own += weight * (other - *own);
        }
    }
    Ok(())
}

/// The share of the loser in the mean of both sides: its samples since they parted over those of both; half if there are none.
pub fn losers_share(winner_samples: u64, loser_samples: u64) -> f32 {
    let (winner, loser) = (winner_samples as f64, loser_samples as f64);
    if winner + loser > 0.0 {
        (loser / (winner + loser)) as f32
    } else {
        0.5
    }
}

/// What one of the three was worth on held-out samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Losses {
    /// Of the side whose view wins.
    pub winner: f32,
    /// Of the other side.
    pub loser: f32,
    /// Of their mean.
    pub mean: f32,
}

/// Whose parameters go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Those of the side whose view wins.
    Winner,
    /// Those of the other side.
    Loser,
    /// Their mean: both sides' work.
    Mean,
}

impl Choice {
    /// How far the loser's parameters move towards the winner's: by `losers_share` of the way short of them for the mean.
    pub fn toward_winner(self, losers_share: f32) -> f32 {
        match self {
            Self::Winner => 1.0,
            Self::Loser => 0.0,
            Self::Mean => 1.0 - losers_share,
        }
    }
}

/// The outcome of a merge of two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Whose parameters go on.
    pub choice: Choice,
    /// Samples since the sides parted whose work is kept.
    pub kept_samples: u64,
    /// Samples whose work is not: to be reported.
    pub dropped_samples: u64,
}

/// Chooses the lowest held-out loss. Of equals the mean, which keeps both sides' work, then the winner. A loss that is not finite
/// loses; if none is finite the winner goes on.
pub fn pick(losses: Losses, winner_samples: u64, loser_samples: u64) -> Pick {
    let candidates = [
        (Choice::Mean, losses.mean),
        (Choice::Winner, losses.winner),
        (Choice::Loser, losses.loser),
    ];
    let finite = candidates.into_iter().filter(|(_, loss)| loss.is_finite());
    let best = finite.min_by(|a, b| a.1.total_cmp(&b.1));
    let choice = best.map_or(Choice::Winner, |(choice, _)| choice);
    let (kept_samples, dropped_samples) = match choice {
        Choice::Winner => (winner_samples, loser_samples),
        Choice::Loser => (loser_samples, winner_samples),
        Choice::Mean => (winner_samples.saturating_add(loser_samples), 0),
    };
    Pick {
        choice,
        kept_samples,
        dropped_samples,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_merge_goes_that_share_of_the_way() {
        let mut own = [0.0, 4.0];
        toward(&mut own, &[1.0, 2.0], 0.75).unwrap();
        assert_eq!(own, [0.75, 2.5]);
        let mut broken = [f32::NAN, 1.0];
        toward(&mut broken, &[5.0, 6.0], 1.0).unwrap();
        assert_eq!(broken, [5.0, 6.0], "a whole copy mends what is not finite");
        assert_eq!(
            toward(&mut own, &[1.0], 0.5),
            Err(LengthError {
                expected: 2,
                got: 1
            })
        );
        assert_eq!(own, [0.75, 2.5]);
    }

    #[test]
    fn both_sides_weigh_by_the_samples_since_they_parted() {
        let mut loser = [4.0, 0.0];
        let share = losers_share(300, 100);
        toward(&mut loser, &[0.0, 8.0], Choice::Mean.toward_winner(share)).unwrap();
        assert_eq!(loser, [1.0, 6.0]);
        assert_eq!(losers_share(0, 0), 0.5);
        assert_eq!(losers_share(0, u64::MAX), 1.0);
    }

    #[test]
    fn the_best_goes_on_and_what_is_dropped_is_counted() {
        let picked = |winner, loser, mean| {
            pick(
                Losses {
                    winner,
                    loser,
                    mean,
                },
                300,
                100,
            )
        };
        let as_tuple = |pick: Pick| (pick.choice, pick.kept_samples, pick.dropped_samples);
        assert_eq!(as_tuple(picked(0.5, 0.6, 0.4)), (Choice::Mean, 400, 0));
        assert_eq!(as_tuple(picked(0.5, 0.6, 0.9)), (Choice::Winner, 300, 100));
        assert_eq!(as_tuple(picked(0.5, 0.4, 0.9)), (Choice::Loser, 100, 300));
        assert_eq!(
            as_tuple(picked(0.5, 0.5, 0.5)),
            (Choice::Mean, 400, 0),
            "equal: nobody's work is lost"
        );
        assert_eq!(
            as_tuple(picked(f32::NAN, 0.7, f32::INFINITY)),
            (Choice::Loser, 100, 300)
        );
        assert_eq!(
            as_tuple(picked(f32::NAN, f32::NAN, f32::NAN)),
            (Choice::Winner, 300, 100)
        );
    }

    proptest! {
        #[test]
        fn a_merge_of_finite_values_lies_between_them(own in -1e30f32..1e30, other in -1e30f32..1e30, weight: f32) {
            let mut merged = [own];
            toward(&mut merged, &[other], weight).unwrap();
            let slack = 1e-6 * own.abs().max(other.abs());
            prop_assert!(merged[0] >= own.min(other) - slack && merged[0] <= own.max(other) + slack);
        }

        #[test]
        fn every_sample_is_kept_or_counted_as_dropped(
            losses: (f32, f32, f32), winner_samples in 0..1u64 << 60, loser_samples in 0..1u64 << 60
        ) {
            let losses = Losses { winner: losses.0, loser: losses.1, mean: losses.2 };
            let pick = pick(losses, winner_samples, loser_samples);
            prop_assert_eq!(pick.kept_samples + pick.dropped_samples, winner_samples + loser_samples);
        }
    }
}

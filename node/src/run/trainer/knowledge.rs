//! What a replica learns from another one: sketches by which drift is found, and moves towards a better replica.

use std::time::{Duration, Instant};

use skein_gossip::knowledge::merge;
use skein_gossip::knowledge::sketch::Sketch;
use skein_model::snapshot::Snapshot;

use super::{Event, State};

/// Between two sketches of the own parameters.
pub const SKETCH_EVERY: Duration = Duration::from_secs(4);
/// Every so manyeth parameter is sketched: a pass over a part of them, for a distance within a quarter.
pub const SKETCH_ONE_IN: usize = 8;

/// Held-out rows on which replicas are compared, at most: three looks that cost as much as one.
pub const HELD_OUT: usize = 500;

/// A replica to learn from.
#[derive(Debug)]
pub enum Teacher {
    /// The best: move towards it by this weight, if it is better on held-out samples or if `gated` is not set.
    Best {
        /// Its state.
        snapshot: Box<Snapshot>,
        /// How far, 0 to 1.
        weight: f32,
        /// Whether it has to prove better.
        gated: bool,
    },
    /// The winning side of a healed partition: take its state, or the mean of both by samples, or keep the own, whichever is best on
    /// held-out samples.
    Winner {
        /// Its state.
        snapshot: Box<Snapshot>,
        /// Its step.
        step: u64,
        /// Samples it was trained on since the sides parted.
        samples: u64,
        /// Samples of this side.
        own_samples: u64,
    },
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lesson {
    /// Loss of the own replica on the held-out samples, before.
    pub own_loss: f64,
    /// Loss with the move that was tried.
    pub merged_loss: f64,
    /// How far the own replica moved towards the other; 0 where it is as it was.
    pub moved: f32,
}

impl State {
    /// Tells the driver what the parameters look like, now and then. False when the driver is gone.
    pub(super) fn sketch_if_due(&mut self) -> bool {
        let is_due = self.sketched.is_none_or(|at| at.elapsed() >= SKETCH_EVERY);
        if self.others() == 0 || !is_due {
            return true;
        }
        self.sketched = Some(Instant::now());
        let parameters = self.thread.trainer.model().parameters().values();
        let seed = self.thread.settings.seed;
        match Sketch::of(parameters, seed, SKETCH_ONE_IN) {
            Some(sketch) => self
                .thread
                .events
                .blocking_send(Event::Sketched(sketch))
                .is_ok(),
            None => true,
        }
    }

    /// Learns from `teacher` what there is to learn.
    ///
    /// # Errors
    /// In words; the replica is as it was.
    pub(super) fn learn(&mut self, teacher: Teacher) -> Result<Lesson, String> {
        let rows = self.thread.settings.evaluate_samples.min(HELD_OUT);
        let own = self.thread.trainer.snapshot();
        let own_loss = self.evaluate(rows)?.loss;
        let (other, moved, merged_loss) = match teacher {
            Teacher::Best {
                snapshot,
                weight,
                gated,
            } => {
                let loss = self.try_move(&own, &snapshot, weight, rows)?;
                // A replica that is not finite has no loss to defend.
                let is_better = loss < own_loss || (!own_loss.is_finite() && loss.is_finite());
                let moved = if is_better || !gated { weight } else { 0.0 };
                (snapshot, moved, loss)
            }
            Teacher::Winner {
                snapshot,
                step,
                samples,
                own_samples,
            } => {
                let share = merge::losers_share(samples, own_samples);
                let winner = self.try_move(&own, &snapshot, 1.0, rows)?;
                let mean = self.try_move(&own, &snapshot, 1.0 - share, rows)?;
                let losses = merge::Losses {
                    winner: winner as f32,
                    loser: own_loss as f32,
                    mean: mean as f32,
                };
                let choice = merge::pick(losses, samples, own_samples).choice;
                self.thread.step = step;
                (snapshot, choice.toward_winner(share), winner.min(mean))
            }
        };
        self.move_towards(&own, &other, moved)?;
        if let Some(average) = &mut self.average {
            average.move_towards(&other, moved);
        }
        Ok(Lesson {
            own_loss,
            merged_loss,
            moved,
        })
    }

    /// The held-out loss of `own` moved towards `other` by `weight`; the replica is left there.
    fn try_move(
        &mut self,
        own: &Snapshot,
        other: &Snapshot,
        weight: f32,
        rows: usize,
    ) -> Result<f64, String> {
        self.move_towards(own, other, weight)?;
        Ok(self.evaluate(rows)?.loss)
    }

    /// Makes the replica `own` moved towards `other` by `weight`.
    fn move_towards(
        &mut self,
        own: &Snapshot,
        other: &Snapshot,
        weight: f32,
    ) -> Result<(), String> {
        let mut mixed = own.clone();
        let moved = merge::toward(&mut mixed.parameters, &other.parameters, weight)
            .and_then(|()| merge::toward(&mut mixed.buffers, &other.buffers, weight));
        moved.map_err(|error| error.to_string())?;
        if weight == 1.0 && !other.optimiser.is_empty() {
            mixed = other.clone();
        }
        self.local.forget();
        let restored = self.thread.trainer.restore(&mixed);
        restored.map_err(|error| {
            // It was this replica's state a moment ago.
            let _ = self.thread.trainer.restore(own);
            error.to_string()
        })
    }
}

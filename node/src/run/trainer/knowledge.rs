//! What a replica learns from another one: sketches by which drift is found, and moves towards a better replica.

use std::time::{Duration, Instant};

use skein_gossip::knowledge::merge;
use skein_gossip::knowledge::sketch::Sketch;
use skein_model::snapshot::Snapshot;

use super::{Event, State};

/// Between two sketches of the own parameters.
const SKETCH_EVERY: Duration = Duration::from_secs(4);
/// Every so manyeth parameter is sketched: a pass over a part of them, for a distance within a quarter.
const SKETCH_ONE_IN: usize = 8;

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
    /// The winning side of a healed partition: take its state, or the mean of both by samples, or keep the own, whichever is best
    /// on held-out samples.
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
    /// Loss of the other one.
    pub loss: f64,
    /// How far the own replica moved towards it.
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
        let rows = self.thread.settings.evaluate_samples;
        let own = self.thread.trainer.snapshot();
        let own_loss = self.evaluate(rows)?.loss;
        let (snapshot, step, weights) = match teacher {
            Teacher::Best {
                snapshot,
                weight,
                gated: false,
            } => {
                self.take_part(&own, *snapshot, weight)?;
                let loss = self.evaluate(rows)?.loss;
                return Ok(Lesson {
                    own_loss,
                    loss,
                    moved: weight,
                });
            }
            Teacher::Best {
                snapshot, weight, ..
            } => (snapshot, self.thread.step, vec![weight]),
            Teacher::Winner {
                snapshot,
                step,
                samples,
                own_samples,
            } => {
                let share = merge::losers_share(samples, own_samples);
                (snapshot, step, vec![1.0, 1.0 - share])
            }
        };
        let mut other = (*snapshot).clone();
        if other.optimiser.is_empty() {
            other.optimiser.clone_from(&own.optimiser);
        }
        self.restore_or(&own, &other)?;
        let loss = self.evaluate(rows)?.loss;
        let mut best = (own_loss, 0.0);
        for weight in weights {
            if loss >= own_loss && weight == 1.0 {
                continue;
            }
            self.take_part(&own, other.clone(), weight)?;
            let moved = self.evaluate(rows)?.loss;
            if moved < best.0 {
                best = (moved, weight);
            }
        }
        self.take_part(&own, other, best.1)?;
        self.thread.step = self.thread.step.max(step);
        Ok(Lesson {
            own_loss,
            loss,
            moved: best.1,
        })
    }

    /// Makes the replica `own` moved towards `other` by `weight`.
    fn take_part(&mut self, own: &Snapshot, other: Snapshot, weight: f32) -> Result<(), String> {
        let mut mixed = own.clone();
        let moved = merge::toward(&mut mixed.parameters, &other.parameters, weight)
            .and_then(|()| merge::toward(&mut mixed.buffers, &other.buffers, weight));
        moved.map_err(|error| error.to_string())?;
        if weight == 1.0 {
            mixed = other;
            if mixed.optimiser.is_empty() {
                mixed.optimiser.clone_from(&own.optimiser);
            }
        }
        self.restore_or(own, &mixed)
    }

    /// Restores `wanted`, or `own` where that is not possible.
    fn restore_or(&mut self, own: &Snapshot, wanted: &Snapshot) -> Result<(), String> {
        self.local.forget();
        let restored = self.thread.trainer.restore(wanted);
        restored.map_err(|error| {
            // It was this replica's state a moment ago.
            let _ = self.thread.trainer.restore(own);
            error.to_string()
        })
    }
}

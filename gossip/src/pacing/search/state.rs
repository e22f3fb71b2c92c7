//! What a search for the commit rate knows: travels in the steward's beats, so that the next steward goes on with it. Only how long
//! things have lasted is in it, no time of a clock; bounded, and checked before use.

use serde::{Deserialize, Serialize};

use crate::knowledge::losses::MAX_LOSS;

/// The highest rate that is ever tried, commits per check period.
pub const MAX_COMMITS: u32 = 4096;
/// The most losses kept of one try: bounds a state on the wire.
pub const MAX_SAMPLES: usize = 32;

/// One mean loss of a try.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Microseconds since the try began.
    pub at_us: u64,
    /// Nats per sample.
    pub train_loss: f32,
}

/// What a try was worth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reward {
    /// The reciprocal of the seconds to the target.
    pub per_s: f64,
    /// Its standard error.
    pub error: f64,
}

/// What a try is made for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Direction {
    /// To know the held rate.
    Same,
    /// To see whether more commits are better.
    Up,
    /// To see whether fewer commits are no worse.
    Down,
    /// To know the held rate once more, after a higher one that did not look better.
    Again {
        /// The higher rate.
        commits: u32,
        /// What it was worth.
        reward: Reward,
    },
}

/// What the search is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Phase {
    /// Measuring a rate.
    Try {
        /// Commits per check period.
        commits: u32,
        /// What for.
        direction: Direction,
        /// Losses so far.
        samples: Vec<Sample>,
    },
    /// Staying with the held rate.
    Hold {
        /// Microseconds since the last check.
        unchecked_us: u64,
        /// The mean loss then; `None` if there was none.
        checked_loss: Option<f32>,
    },
}

/// Everything a search knows. Travels in the steward's beats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchState {
    /// Counts phases: of two states the one with more is the newer.
    pub turn: u64,
    /// The best rate so far, commits per check period.
    pub held: u32,
    /// Its reward in this search; `None`: not measured, or undefined.
    pub reward: Option<Reward>,
    /// The loss at which this search began: where rewards are counted from.
    pub began_at_loss: Option<f32>,
    /// Whether this search has found a higher rate.
    pub climbed: bool,
    /// Microseconds since the phase began.
    pub elapsed_us: u64,
    /// What it is doing.
    pub phase: Phase,
}

/// A state from another peer that no search can be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the state of a search at turn {turn} is refused: {what}")]
pub struct StateError {
    /// The turn it claims.
    pub turn: u64,
    /// Which part.
    pub what: &'static str,
}

impl SearchState {
    /// A search that begins at `commits` per check period (the paper begins at 1).
    pub fn new(commits: u32) -> Self {
        let held = commits.clamp(1, MAX_COMMITS);
        Self {
            turn: 0,
            held,
            reward: None,
            began_at_loss: None,
            climbed: false,
            elapsed_us: 0,
            phase: trying(held, Direction::Same),
        }
    }

    /// Commits per check period at present: what every peer paces by. Within 1 to [`MAX_COMMITS`] also in a state that was not
    /// checked.
    pub fn commits(&self) -> u32 {
        let commits = match &self.phase {
            Phase::Try { commits, .. } => *commits,
            Phase::Hold { .. } => self.held,
        };
        commits.clamp(1, MAX_COMMITS)
    }

    /// Checks what a search relies on.
    ///
    /// # Errors
    /// [`StateError`]: keep the state that was there.
    pub fn validate(&self) -> Result<(), StateError> {
        let refuse = |what| {
            Err(StateError {
                turn: self.turn,
                what,
            })
        };
        let is_rate = |commits: u32| (1..=MAX_COMMITS).contains(&commits);
        if !is_rate(self.held) || self.turn == u64::MAX {
            return refuse("its rate or turn");
        }
        let positive = |value: f64| value > 0.0 && value.is_finite();
        let sound = |reward: Reward| {
            positive(reward.per_s) && (reward.error == 0.0 || positive(reward.error))
        };
        if !self.reward.is_none_or(sound) || !self.began_at_loss.is_none_or(is_loss) {
            return refuse("its reward or first loss");
        }
        match &self.phase {
            Phase::Try {
                commits,
                direction,
                samples,
            } => {
                let for_sound = match direction {
                    Direction::Again { commits, reward } => is_rate(*commits) && sound(*reward),
                    _ => true,
                };
                if !is_rate(*commits) || !for_sound || samples.len() > MAX_SAMPLES {
                    return refuse("its try");
                }
                let ordered = samples.windows(2).all(|pair| pair[0].at_us < pair[1].at_us);
                let past = samples.iter().all(|sample| sample.at_us <= self.elapsed_us);
                if !ordered || !past || !samples.iter().all(|sample| is_loss(sample.train_loss)) {
                    return refuse("its losses");
                }
            }
            Phase::Hold { checked_loss, .. } if !checked_loss.is_none_or(is_loss) => {
                return refuse("its last check");
            }
            Phase::Hold { .. } => {}
        }
        Ok(())
    }
}

pub(super) fn is_loss(train_loss: f32) -> bool {
    (0.0..=MAX_LOSS).contains(&train_loss)
}

pub(super) fn trying(commits: u32, direction: Direction) -> Phase {
    Phase::Try {
        commits,
        direction,
        samples: Vec::new(),
    }
}

//! The online search for the commit rate: how many commits per check period make the mean training loss fall fastest.
//!
//! ADSP (Hu, Wang, Wu, AAAI 2020): a try lasts a check period at one rate; tries at higher rates follow while the
//! reward rises; then the best rate is held. It searches again after [`Settings::hold`] and when the loss has risen by
//! [`Settings::rise_frac`] from one check to the next.
//!
//! In: the time and the mean training loss of the members. Out: commits per check period, and [`state::SearchState`], everything the
//! search knows, which goes into the steward's beats: whoever takes over resumes from the last one it saw and goes on where it
//! was. No time of a clock is in it, only how long things have lasted.
//!
//! | phase | ends when | then |
//! | --- | --- | --- |
//! | `Try` | undecided at the end of a check period | it goes on, [`Settings::most_periods`] at most |
//! | `Try` at the held rate | it is known well | try higher, or lower if no higher rate is allowed |
//! | `Try` higher | better by more than noise | hold that rate, try still higher |
//! | | else | try the held rate again |
//! | `Try` at the held rate again | the higher rate is better than the mean of before and after | hold that rate, try still higher |
//! | | else | if this search has climbed: `Hold`; if not: try lower |
//! | `Try` lower | no worse | hold that rate (fewer bytes), try still lower |
//! | | else | `Hold` |
//! | `Hold` | time is up, or the loss has risen | `Try` at the held rate |
//!
//! Deviations, each because it measured better (tests below): no barrier before a try, only the commit rate changes; rates
//! double and halve instead of going up by one, and also go down; tries are compared from a common loss
//! ([`Curve::reward_from`]), by default with the curve's end known ([`Curve::fit_above`]); a rise must exceed the noise, and a higher
//! rate is dismissed only after the held one was measured again, as a loss falls slower later whatever the rate.
//! [`Settings::paper`] is the paper's.
//! A gap in the calls of more than a check period begins the present try anew.

pub mod state;

use std::time::Duration;

use super::curve::{Curve, Point};
use crate::time::Tick;
use state::{Direction, MAX_COMMITS, MAX_SAMPLES, Phase, Reward, Sample, SearchState, StateError};
use state::{is_loss, trying};

/// The held rate's reward is measured to this relative error, or for as long as a try may last.
const WELL_KNOWN_FRAC: f64 = 0.05;

/// How the next rate to try follows from the best one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stride {
    /// One more or one less, as in the paper.
    One,
    /// Twice or half as many.
    Double,
}

/// What the loss is taken to fall towards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Floor {
    /// Fitted for each try, as in the paper: three parameters from one noisy try.
    Fitted,
    /// Known, nats per sample; 0 is the bound of a cross-entropy.
    At(f32),
}

/// How to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Length of a try and between two checks (Gamma). Longer measures better and searches longer.
    pub period: Duration,
    /// How long a rate is held until it is searched again.
    pub hold: Duration,
    /// A rise of the mean loss from one check to the next that starts a search.
    pub rise_frac: f32,
    /// The next rate to try.
    pub stride: Stride,
    /// What the loss falls towards.
    pub floor: Floor,
    /// The loss to reach (the paper's l_target), nats per sample; `None`: four fifths of the loss at which the search began.
    /// Rewards above a known floor are in the same proportion whatever the target.
    pub target_loss: Option<f32>,
    /// Losses taken per try, evenly from its begin to its end: 3 (the paper's) to [`MAX_SAMPLES`]; more means less noise.
    pub n_samples: usize,
    /// The least rise of the reward, as a share of it, that is worth more bytes.
    pub least_gain_frac: f64,
    /// A rise must also be this many standard errors.
    pub sure: f64,
    /// A try that is not that sure of better or worse goes on, for at most this many periods (at least 1).
    pub most_periods: u32,
    /// Whether the held rate is measured again before a higher one is dismissed.
    pub again: bool,
}

impl Settings {
    /// As in the paper, with the times of its authors' code: one by one, three points, all three parameters fitted, any rise counts.
    pub fn paper() -> Self {
        Self {
            period: Duration::from_secs(60),
            hold: Duration::from_secs(1000),
            rise_frac: 0.3,
            stride: Stride::One,
            floor: Floor::Fitted,
            target_loss: None,
            n_samples: 3,
            least_gain_frac: 0.0,
            sure: 0.0,
            most_periods: 1,
            again: false,
        }
    }
}

impl Default for Settings {
    /// The paper's times scaled to seconds-long steps: tries of 10 s, a search every 200 s.
    fn default() -> Self {
        Self {
            period: Duration::from_secs(10),
            hold: Duration::from_secs(200),
            rise_frac: 0.3,
            stride: Stride::Double,
            floor: Floor::At(0.0),
            target_loss: None,
            n_samples: 9,
            least_gain_frac: 0.02,
            sure: 0.25,
            most_periods: 3,
            again: true,
        }
    }
}

/// The search, as the steward runs it.
#[derive(Clone, Debug)]
pub struct Search {
    settings: Settings,
    state: SearchState,
    last: Tick,
}

impl Search {
    /// A search that begins at `commits` per check period.
    pub fn new(settings: Settings, now: Tick, commits: u32) -> Self {
        Self {
            settings,
            state: SearchState::new(commits),
            last: now,
        }
    }

    /// Goes on with another steward's search: `state` was received at `seen`.
    ///
    /// # Errors
    /// [`StateError`]: not a state of a search; begin with [`Search::new`].
    pub fn resume(settings: Settings, seen: Tick, state: SearchState) -> Result<Self, StateError> {
        state.validate()?;
        Ok(Self {
            settings,
            state,
            last: seen,
        })
    }

    /// Everything it knows, for the beats.
    pub fn state(&self) -> &SearchState {
        &self.state
    }

    /// Searches anew from the held rate: members or links have changed much.
    pub fn begin(&mut self) {
        self.state.reward = None;
        self.state.began_at_loss = None;
        self.state.climbed = false;
        self.enter(trying(self.state.held, Direction::Same));
    }

    /// Takes the mean loss at `now` (`None` or no loss at all: nothing is known) and returns the commits per check period from
    /// now on. To be called at least as often as losses are to be taken. `cap`: the most commits that the links carry.
    pub fn advance(&mut self, now: Tick, train_loss: Option<f32>, cap: Option<u32>) -> u32 {
        let gap = micros(now.since(self.last));
        self.last = now;
        let cap = cap.unwrap_or(MAX_COMMITS).clamp(1, MAX_COMMITS);
        let train_loss = train_loss.filter(|loss| is_loss(*loss));
        let period = micros(self.settings.period).max(1);
        self.state.elapsed_us = self.state.elapsed_us.saturating_add(gap);
        self.state.held = self.state.held.min(cap);
        match &mut self.state.phase {
            Phase::Try {
                commits, direction, ..
            } if gap > period || *commits > cap => {
                let (commits, direction) = ((*commits).min(cap), *direction);
                self.enter(trying(commits, direction));
                self.sample(train_loss, period);
            }
            Phase::Try { .. } => {
                self.sample(train_loss, period);
                if self.is_measured(period) {
                    self.judge(cap);
                    self.sample(train_loss, period);
                }
            }
            Phase::Hold {
                unchecked_us,
                checked_loss,
            } => {
                *unchecked_us = unchecked_us.saturating_add(gap);
                let mut risen = false;
                if *unchecked_us >= period {
                    *unchecked_us = 0;
                    let bound = |before: f32| before * (1.0 + self.settings.rise_frac);
                    risen = checked_loss
                        .zip(train_loss)
                        .is_some_and(|(before, loss)| loss >= bound(before));
                    *checked_loss = train_loss.or(*checked_loss);
                }
                if risen || self.state.elapsed_us >= micros(self.settings.hold) {
                    self.begin();
                    self.sample(train_loss, period);
                }
            }
        }
        self.state.commits()
    }

    fn enter(&mut self, phase: Phase) {
        // Counted modulo: a hostile predecessor's count must not stop the search.
        self.state.turn = self.state.turn.wrapping_add(1) % u64::MAX;
        self.state.elapsed_us = 0;
        self.state.phase = phase;
    }

    /// Keeps the loss if the next one is due.
    fn sample(&mut self, train_loss: Option<f32>, period: u64) {
        let Phase::Try { samples, .. } = &mut self.state.phase else {
            return;
        };
        let n_samples = self.settings.n_samples.clamp(3, MAX_SAMPLES) as u64;
        let at_us = self.state.elapsed_us;
        let spacing = (period / (n_samples - 1)).max(1);
        let is_due = samples.last().is_none_or(|last| {
            at_us >= last.at_us.saturating_add(spacing) || at_us / period > last.at_us / period
        });
        if let Some(train_loss) = train_loss
            && is_due
            && samples.len() < MAX_SAMPLES
        {
            self.state.began_at_loss.get_or_insert(train_loss);
            samples.push(Sample { at_us, train_loss });
        }
    }

    /// Whether a try is over: a loss was taken at the end of a period (or none came for as long again) and it is sure of better
    /// or worse, or may not go on.
    fn is_measured(&self, period: u64) -> bool {
        let Phase::Try {
            samples, direction, ..
        } = &self.state.phase
        else {
            return false;
        };
        let mut lately = samples.iter().rev().map(|sample| sample.at_us / period);
        let last = lately.next().unwrap_or(0);
        let before = lately.next().unwrap_or(0);
        let silent = self.state.elapsed_us / period > last + 1;
        if last >= u64::from(self.settings.most_periods.max(1))
            || silent
            || samples.len() >= MAX_SAMPLES
        {
            return true;
        }
        last > before && self.is_sure(*direction, self.reward(samples))
    }

    /// Whether a try with this reward is known better or worse than the held rate; of the held rate itself, whether it is
    /// known well enough to compare with.
    fn is_sure(&self, direction: Direction, reward: Option<Reward>) -> bool {
        let sure = self.settings.sure;
        match (direction, reward, self.state.reward) {
            (_, None, _) => false,
            (Direction::Up | Direction::Down, Some(new), Some(held)) => {
                (new.per_s - held.per_s).abs() > sure * new.error.hypot(held.error)
            }
            (_, Some(new), _) => sure * new.error <= WELL_KNOWN_FRAC * new.per_s,
        }
    }

    /// Draws the conclusion from the try that has ended, and chooses what comes next.
    fn judge(&mut self, cap: u32) {
        let Phase::Try {
            commits,
            direction,
            samples,
        } = &self.state.phase
        else {
            return;
        };
        let (commits, direction) = (*commits, *direction);
        let reward = self.reward(samples);
        let last_loss = samples.last().map(|sample| sample.train_loss);
        let held = self.state.reward;
        let next = match direction {
            Direction::Same => {
                self.state.reward = reward;
                self.higher(cap).or_else(|| self.lower())
            }
            Direction::Up if is_more(reward, held, &self.settings) => {
                self.climb(commits, reward, cap)
            }
            Direction::Up => match reward {
                Some(reward) if self.settings.again => Some(trying(
                    self.state.held,
                    Direction::Again { commits, reward },
                )),
                _ => self.turn_down(),
            },
            Direction::Again {
                commits,
                reward: higher,
            } => {
                let between = held.zip(reward).map(|(before, after)| mean(before, after));
                if commits <= cap
                    && is_more(Some(higher), between.or(held).or(reward), &self.settings)
                {
                    self.climb(commits, Some(higher), cap)
                } else {
                    self.state.reward = reward.or(held);
                    self.turn_down()
                }
            }
            // A rate that cannot be judged is no reason to save bytes.
            Direction::Down
                if reward
                    .zip(held)
                    .is_some_and(|(new, held)| new.per_s >= held.per_s) =>
            {
                self.state.held = commits;
                self.state.reward = reward;
                self.lower()
            }
            Direction::Down => None,
        };
        self.enter(next.unwrap_or(Phase::Hold {
            unchecked_us: 0,
            checked_loss: last_loss,
        }));
    }

    fn climb(&mut self, commits: u32, reward: Option<Reward>, cap: u32) -> Option<Phase> {
        self.state.held = commits;
        self.state.reward = reward;
        self.state.climbed = true;
        self.higher(cap)
    }

    /// Higher is no better: whoever came from lower knows that lower is not either.
    fn turn_down(&self) -> Option<Phase> {
        if self.state.climbed {
            None
        } else {
            self.lower()
        }
    }

    fn higher(&self, cap: u32) -> Option<Phase> {
        let higher = match self.settings.stride {
            Stride::One => self.state.held.saturating_add(1),
            Stride::Double => self.state.held.saturating_mul(2),
        };
        let commits = higher.min(cap);
        (commits > self.state.held).then(|| trying(commits, Direction::Up))
    }

    fn lower(&self) -> Option<Phase> {
        let commits = match self.settings.stride {
            Stride::One => self.state.held.saturating_sub(1),
            Stride::Double => self.state.held / 2,
        };
        (commits >= 1).then(|| trying(commits, Direction::Down))
    }

    fn reward(&self, samples: &[Sample]) -> Option<Reward> {
        let from = f64::from(self.state.began_at_loss?);
        let target = self.settings.target_loss.map_or(0.8 * from, f64::from);
        let point = |sample: &Sample| Point {
            at_s: sample.at_us as f64 / 1e6,
            train_loss: f64::from(sample.train_loss),
        };
        let points: Vec<Point> = samples.iter().map(point).collect();
        let (curve, error_frac) = match self.settings.floor {
            Floor::Fitted => (Curve::fit(&points)?, 0.0),
            Floor::At(floor) => {
                let (curve, error) = Curve::fit_above(&points, f64::from(floor))?;
                (curve, error / curve.rate())
            }
        };
        let per_s = curve.reward_from(from, target)?;
        let error = per_s * error_frac;
        error.is_finite().then_some(Reward { per_s, error })
    }
}

/// Whether `new` is more than `held` by more than noise; anything is more than nothing.
fn is_more(new: Option<Reward>, held: Option<Reward>, settings: &Settings) -> bool {
    match (new, held) {
        (Some(new), Some(held)) => {
            let noise = settings.sure * new.error.hypot(held.error);
            new.per_s - held.per_s > noise.max(settings.least_gain_frac * held.per_s)
        }
        (new, held) => new.is_some() && held.is_none(),
    }
}

fn mean(a: Reward, b: Reward) -> Reward {
    Reward {
        per_s: (a.per_s + b.per_s) / 2.0,
        error: a.error.hypot(b.error) / 2.0,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

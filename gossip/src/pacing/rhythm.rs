//! When a peer commits: after so many steps, as often as it can afford, or at the rate that a search found.
//!
//! Driven by the training thread: `due` at every step boundary, `committed` when the coder says what the last commit cost.

use std::time::Duration;

use super::pacer::Pacer;
use crate::time::Tick;

/// A commit is not put off for longer than this, whatever it costs: what waits gets stale.
const LONGEST: Duration = Duration::from_secs(10);

/// The rule.
#[derive(Debug)]
pub enum Rhythm {
    /// After so many steps.
    Steps(u32),
    /// So often that packing and unpacking take this share of the processor time of training, but not more often than every so many
    /// steps.
    Cost {
        /// Share of the processor time, 0 to 1.
        share: f32,
        /// Steps between two commits at least: more often needs bytes and saves hardly any samples.
        least_steps: u32,
    },
    /// ADSP's timer.
    Paced(Pacer),
}

/// The rule, and what is known.
#[derive(Debug)]
pub struct Commits {
    rhythm: Rhythm,
    /// When the last commit was made, and the processor time that training had used by then.
    last: Option<(Tick, Duration)>,
    /// Smoothed cost of a commit, processor time.
    cost: Option<Duration>,
    made: u64,
}

impl Commits {
    /// None made yet.
    pub fn new(rhythm: Rhythm) -> Self {
        Self {
            rhythm,
            last: None,
            cost: None,
            made: 0,
        }
    }

    /// Whether to commit now, `n_steps` steps after the last one. `used`: processor time of training so far, so that a device whose
    /// share of a core is small is not taken to be busy with packing.
    pub fn due(&mut self, now: Tick, used: Duration, n_steps: u32) -> bool {
        if n_steps == 0 {
            return false;
        }
        match &mut self.rhythm {
            Rhythm::Steps(every) => n_steps >= *every,
            Rhythm::Cost { share, least_steps } => {
                let (Some(cost), Some((last, used_then))) = (self.cost, self.last) else {
                    return n_steps >= *least_steps;
                };
                let pays = used.saturating_sub(used_then) >= cost.div_f32(share.max(1e-3));
                now.since(last) >= LONGEST || (pays && n_steps >= *least_steps)
            }
            Rhythm::Paced(pacer) => pacer.due(now, u64::from(n_steps)),
        }
    }

    /// A commit was made.
    pub fn made(&mut self, now: Tick, used: Duration) {
        self.last = Some((now, used));
        self.made += 1;
    }

    /// The processor time that the last commit cost, with what was unpacked since the one before.
    pub fn cost(&mut self, now: Tick, cost: Duration) {
        let mean = self.cost.unwrap_or(cost);
        self.cost = Some((mean * 7 + cost) / 8);
        if let Rhythm::Paced(pacer) = &mut self.rhythm {
            pacer.committed(now, cost);
        }
    }

    /// The search's rate: commits of each member per period.
    pub fn target(&mut self, now: Tick, per_period: u64, period: Duration) {
        if let Rhythm::Paced(pacer) = &mut self.rhythm {
            pacer.target(now, per_period, period);
        }
    }

    /// Commits made.
    pub fn n_made(&self) -> u64 {
        self.made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Tick {
        Tick(ms * 1000)
    }

    #[test]
    fn commits_take_their_share_of_the_processor_time() {
        let used = Duration::from_millis;
        let mut commits = Commits::new(Rhythm::Cost {
            share: 0.01,
            least_steps: 4,
        });
        assert!(!commits.due(at(0), used(0), 3));
        assert!(commits.due(at(0), used(0), 4), "nothing is known yet");
        commits.made(at(0), used(0));
        commits.cost(at(0), used(5));
        assert!(!commits.due(at(4000), used(499), 50));
        assert!(
            !commits.due(at(500), used(500), 3),
            "that often is not worth the bytes"
        );
        assert!(commits.due(at(500), used(500), 4));
        assert!(
            !commits.due(at(500), used(500), 0),
            "there is nothing to hand on"
        );
        commits.cost(at(500), Duration::from_secs(60));
        assert!(
            commits.due(at(10_000), used(600), 1),
            "it is not put off for ever"
        );
    }

    #[test]
    fn a_number_of_steps_is_kept_to() {
        let mut commits = Commits::new(Rhythm::Steps(3));
        assert!(!commits.due(at(1_000_000), Duration::MAX, 2));
        assert!(commits.due(at(0), Duration::ZERO, 3));
    }
}

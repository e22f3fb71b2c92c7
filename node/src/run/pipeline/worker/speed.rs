//! What steps take a stage, beside what its profile says.

use std::collections::VecDeque;
use std::time::Duration;

/// Steps of which the middle one counts: a device that is slowed is seen after three, and two slow steps are no news.
const STEPS: usize = 5;

/// What was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Backward,
    /// Both at once, on the last stage.
    Both,
    Update,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Speed {
    /// Seconds of a micro-batch's passes by the profile, forward and backward.
    profiled: [f64; 2],
    /// What the passes since the last step should have taken. Where steps overlap it need not be as many of each kind.
    expected: f64,
    /// Of the last steps; none until the first, which makes room for all that follow, is over.
    ratios: Option<VecDeque<f32>>,
    computing: Duration,
    waiting: Duration,
}

impl Speed {
    /// Of a stage whose passes take `profiled` seconds per micro-batch, forward and backward.
    pub(super) fn new(profiled: [f64; 2]) -> Self {
        Self {
            profiled,
            expected: 0.0,
            ratios: None,
            computing: Duration::ZERO,
            waiting: Duration::ZERO,
        }
    }

    /// A pass took so long.
    pub(super) fn computed(&mut self, pass: Pass, time: Duration) {
        self.computing += time;
        let [forward, backward] = self.profiled;
        self.expected += match pass {
            Pass::Forward => forward,
            Pass::Backward => backward,
            Pass::Both => forward + backward,
            Pass::Update => 0.0,
        };
    }

    /// Nothing could be done for so long.
    pub(super) fn waited(&mut self, time: Duration) {
        self.waiting += time;
    }

    /// A step is made: what it computed and waited, and by how much the stage is slower than profiled, once that is known.
    pub(super) fn stepped(&mut self) -> (Duration, Duration, Option<f32>) {
        let (computing, waiting) = (
            std::mem::take(&mut self.computing),
            std::mem::take(&mut self.waiting),
        );
        let ratio = computing.as_secs_f64() / std::mem::take(&mut self.expected);
        let Some(ratios) = &mut self.ratios else {
            self.ratios = Some(VecDeque::with_capacity(STEPS));
            return (computing, waiting, None);
        };
        if ratio.is_finite() && ratio > 0.0 {
            ratios.truncate(STEPS - 1);
            ratios.push_front(ratio as f32);
        }
        let mut sorted: Vec<f32> = ratios.iter().copied().collect();
        sorted.sort_by(f32::total_cmp);
        (computing, waiting, sorted.get(sorted.len() / 2).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_slowed_is_seen_within_a_few_steps() {
        let mut speed = Speed::new([1e-3, 2e-3]);
        let mut step = |ms| {
            for _ in 0..4 {
                speed.computed(Pass::Forward, Duration::ZERO);
                speed.computed(Pass::Backward, Duration::ZERO);
            }
            speed.computed(Pass::Update, Duration::from_millis(ms));
            speed.waited(Duration::from_millis(5));
            speed.stepped()
        };
        assert_eq!(step(99).2, None, "the first counts for nothing");
        for _ in 0..9 {
            assert_eq!(step(12).2, Some(1.0));
        }
        let slowdowns = [36, 36, 36, 36].map(|ms| step(ms).2);
        assert_eq!(slowdowns, [1.0, 1.0, 3.0, 3.0].map(Some));
        assert_eq!(step(36).1, Duration::from_millis(5));
    }

    #[test]
    fn a_stage_is_not_slow_for_passes_that_go_ahead_of_their_step() {
        let mut speed = Speed::new([1e-3, 2e-3]);
        speed.stepped();
        for _ in 0..5 {
            speed.computed(Pass::Forward, Duration::from_millis(1));
        }
        speed.computed(Pass::Backward, Duration::from_millis(2));
        let slowdown = speed.stepped().2.unwrap();
        assert!((slowdown - 1.0).abs() < 1e-6, "{slowdown}");
        speed.computed(Pass::Both, Duration::from_millis(3));
        assert!((speed.stepped().2.unwrap() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn without_a_profile_nothing_is_slow() {
        let mut speed = Speed::new([0.0; 2]);
        for _ in 0..3 {
            speed.computed(Pass::Forward, Duration::from_millis(9));
            assert_eq!(speed.stepped().2, None);
        }
    }
}

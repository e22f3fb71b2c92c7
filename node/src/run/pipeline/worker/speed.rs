//! What steps take the stages of this peer, beside what its profile says.

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

/// What a stage has spent since its last step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    pub(super) computing: Duration,
    pub(super) waiting: Duration,
    /// Seconds that the passes should have taken. Where steps overlap it need not be as many of each kind.
    expected: f64,
}

impl Spent {
    /// A pass took so long.
    pub(super) fn computed(&mut self, [forward, backward]: [f64; 2], pass: Pass, time: Duration) {
        self.computing += time;
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

    /// With what another stage of the same peer has spent.
    pub(super) fn add(&mut self, other: &Self) {
        self.computing += other.computing;
        self.waiting += other.waiting;
        self.expected += other.expected;
    }
}

/// By how much steps take longer than profiled.
#[derive(Debug, Default)]
pub(super) struct Slowdown {
    /// Of the last steps; none until the first, which makes room for all that follow, is over.
    ratios: Option<VecDeque<f32>>,
}

impl Slowdown {
    /// A step is made: by how much steps are slower than profiled, once that is known.
    pub(super) fn stepped(&mut self, spent: &Spent) -> Option<f32> {
        let ratio = spent.computing.as_secs_f64() / spent.expected;
        let Some(ratios) = &mut self.ratios else {
            self.ratios = Some(VecDeque::with_capacity(STEPS));
            return None;
        };
        if ratio.is_finite() && ratio > 0.0 {
            ratios.truncate(STEPS - 1);
            ratios.push_front(ratio as f32);
        }
        let mut sorted: Vec<f32> = ratios.iter().copied().collect();
        sorted.sort_by(f32::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILED: [f64; 2] = [1e-3, 2e-3];

    #[test]
    fn a_device_that_is_slowed_is_seen_within_a_few_steps() {
        let mut slowdown = Slowdown::default();
        let mut step = |ms| {
            let mut spent = Spent::default();
            for _ in 0..4 {
                spent.computed(PROFILED, Pass::Forward, Duration::ZERO);
                spent.computed(PROFILED, Pass::Backward, Duration::ZERO);
            }
            spent.computed(PROFILED, Pass::Update, Duration::from_millis(ms));
            slowdown.stepped(&spent)
        };
        assert_eq!(step(99), None, "the first counts for nothing");
        for _ in 0..9 {
            assert_eq!(step(12), Some(1.0));
        }
        let slowdowns = [36, 36, 36, 36].map(step);
        assert_eq!(slowdowns, [1.0, 1.0, 3.0, 3.0].map(Some));
    }

    #[test]
    fn a_stage_is_not_slow_for_passes_that_go_ahead_of_their_step() {
        let mut slowdown = Slowdown::default();
        slowdown.stepped(&Spent::default());
        let mut spent = Spent::default();
        for _ in 0..5 {
            spent.computed(PROFILED, Pass::Forward, Duration::from_millis(1));
        }
        spent.computed(PROFILED, Pass::Backward, Duration::from_millis(2));
        let ratio = slowdown.stepped(&spent).unwrap();
        assert!((ratio - 1.0).abs() < 1e-6, "{ratio}");
        let mut spent = Spent::default();
        spent.computed(PROFILED, Pass::Both, Duration::from_millis(3));
        assert!((slowdown.stepped(&spent).unwrap() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn stages_of_one_peer_are_slow_together() {
        let mut slowdown = Slowdown::default();
        slowdown.stepped(&Spent::default());
        let (mut first, mut last) = (Spent::default(), Spent::default());
        first.computed(PROFILED, Pass::Both, Duration::from_millis(3));
        last.computed([4e-3, 5e-3], Pass::Both, Duration::from_millis(21));
        last.waited(Duration::from_millis(5));
        first.add(&last);
        assert_eq!(slowdown.stepped(&first), Some(2.0));
        assert_eq!(first.waiting, Duration::from_millis(5));
    }

    #[test]
    fn without_a_profile_nothing_is_slow() {
        let mut slowdown = Slowdown::default();
        for _ in 0..3 {
            let mut spent = Spent::default();
            spent.computed([0.0; 2], Pass::Forward, Duration::from_millis(9));
            assert_eq!(slowdown.stepped(&spent), None);
        }
    }
}

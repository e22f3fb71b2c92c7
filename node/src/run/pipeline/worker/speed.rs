//! What steps take the stages of this peer, beside what its profile says.
//!
//! Two clocks are compared with the profile, and the slower one counts. On the wall a device shows that others use it. But one whose
//! share of a core is limited, and that waits for others between passes, is given its share in bursts: on the wall such passes look
//! faster than they would be one after the other. The processor's clock shows those, at the share that the device is known to give.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::super::processor::{Clocks, Processor};

/// Steps of which the middle one counts: a device that is slowed is seen after three, and two slow steps are no news.
const STEPS: usize = 5;

/// Weight of a step in the means of what is used of the processor: copies and looks make some steps dear.
const STEP_WEIGHT: f64 = 0.05;

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

/// Cores in use, on average over the last steps.
#[derive(Clone, Copy, Debug)]
struct Used {
    n: u32,
    all: f64,
    beside: f64,
}

/// By how much steps take longer than profiled.
#[derive(Debug)]
pub(super) struct Slowdown {
    processor: Processor,
    /// Of the last steps; the first, which makes room for all that follow, is none.
    ratios: VecDeque<f32>,
    used: Option<Used>,
    /// When the last step was made, and what the clocks said.
    before: Option<(Instant, Clocks)>,
}

impl Slowdown {
    /// On a device with this processor.
    pub(super) fn new(processor: Processor) -> Self {
        Self {
            processor,
            ratios: VecDeque::with_capacity(STEPS),
            used: None,
            before: None,
        }
    }

    /// A step is made, and the clocks are read: by how much steps are slower than profiled, once that is known, and what the processor
    /// spent on this one.
    pub(super) fn stepped(
        &mut self,
        spent: &Spent,
        (now, clocks): (Instant, Clocks),
    ) -> (Option<f32>, Clocks) {
        let Some((then, before)) = self.before.replace((now, clocks)) else {
            return (None, Clocks::default());
        };
        let clocks = clocks.since(&before);
        let passes = clocks.thread.as_secs_f64() * self.processor.threads;
        let used = self.use_up(&clocks, passes, now - then);
        let processor = self.processor.at_least(used.all);
        let alone = passes * processor.seconds(used.beside);
        let ratio = spent.computing.as_secs_f64().max(alone) / spent.expected;
        if ratio.is_finite() && ratio > 0.0 {
            self.ratios.truncate(STEPS - 1);
            self.ratios.push_front(ratio as f32);
        }
        let mut sorted: Vec<f32> = self.ratios.iter().copied().collect();
        sorted.sort_by(f32::total_cmp);
        (sorted.get(sorted.len() / 2).copied(), clocks)
    }

    /// Cores in use, in all and beside the passes, with this step.
    fn use_up(&mut self, clocks: &Clocks, passes: f64, wall: Duration) -> Used {
        let wall = wall.as_secs_f64().max(1e-9);
        let process = clocks.process.as_secs_f64();
        let (all, beside) = (process / wall, (process - passes).max(0.0) / wall);
        let used = match self.used {
            None => Used { n: 1, all, beside },
            Some(used) => {
                let n = used.n.saturating_add(1);
                let weight = STEP_WEIGHT.max(1.0 / f64::from(n));
                let mean = |mean: f64, new: f64| mean + weight * (new - mean);
                Used {
                    n,
                    all: mean(used.all, all),
                    beside: mean(used.beside, beside),
                }
            }
        };
        self.used = Some(used);
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILED: [f64; 2] = [1e-3, 2e-3];

    /// A processor of which passes get a whole core, unless it is said otherwise.
    const WHOLE: Processor = Processor {
        threads: 1.0,
        rate: 1.0,
        has_spare: false,
    };

    /// Steps of so many milliseconds on the wall, of which the processor spent some in the stage's thread and some beside it.
    struct Clock {
        slowdown: Slowdown,
        now: Instant,
        clocks: Clocks,
    }

    impl Clock {
        fn start(processor: Processor) -> Self {
            Self {
                slowdown: Slowdown::new(processor),
                now: Instant::now(),
                clocks: Clocks::default(),
            }
        }

        fn step(&mut self, spent: &Spent, [wall, thread, beside]: [u64; 3]) -> Option<f32> {
            self.now += Duration::from_millis(wall);
            self.clocks.thread += Duration::from_millis(thread);
            self.clocks.process += Duration::from_millis(thread + beside);
            let step = self.slowdown.stepped(spent, (self.now, self.clocks));
            if step.0.is_some() {
                assert_eq!(step.1.thread, Duration::from_millis(thread));
            }
            step.0
        }
    }

    #[test]
    fn a_device_that_is_slowed_is_seen_within_a_few_steps() {
        let mut clock = Clock::start(WHOLE);
        let mut step = |ms| {
            let mut spent = Spent::default();
            for _ in 0..4 {
                spent.computed(PROFILED, Pass::Forward, Duration::ZERO);
                spent.computed(PROFILED, Pass::Backward, Duration::ZERO);
            }
            spent.computed(PROFILED, Pass::Update, Duration::from_millis(ms));
            clock.step(&spent, [ms + 5, ms.min(12), 0])
        };
        assert_eq!(step(99), None, "the first counts for nothing");
        for _ in 0..9 {
            assert_eq!(step(12), Some(1.0));
        }
        let slowdowns = [36, 36, 36, 36].map(step);
        assert_eq!(slowdowns, [1.0, 1.0, 3.0, 3.0].map(Some));
    }

    #[test]
    fn one_that_waits_and_computes_in_bursts_is_no_faster_for_it() {
        // A third of a core. Profiled: 12 ms of passes, which are 4 ms of the processor. It waits most of the time.
        let mut clock = Clock::start(Processor {
            rate: 1.0 / 3.0,
            ..WHOLE
        });
        let mut slowdown = |wall, thread, beside| {
            let mut spent = Spent::default();
            for _ in 0..4 {
                spent.computed(PROFILED, Pass::Both, Duration::from_micros(1250));
            }
            clock.step(&spent, [wall, thread, beside])
        };
        slowdown(40, 4, 0);
        for _ in 0..5 {
            let slowdown = slowdown(40, 4, 0).unwrap();
            assert!((slowdown - 1.0).abs() < 1e-5, "{slowdown}");
        }
        // What frames take of its share it lacks: 4 of 40 ms are a tenth of a core.
        for _ in 0..99 {
            slowdown(40, 4, 4);
        }
        let busy = slowdown(40, 4, 4).unwrap();
        assert!((busy - 1.0 / 0.7).abs() < 0.01, "{busy}");
        // Given a whole core, and using more of it than a third, it is known to be faster.
        for _ in 0..99 {
            slowdown(5, 4, 0);
        }
        let fast = slowdown(5, 4, 0).unwrap();
        assert!((fast - 5.0 / 12.0).abs() < 0.02, "{fast}");
    }

    #[test]
    fn a_stage_is_not_slow_for_passes_that_go_ahead_of_their_step() {
        let mut clock = Clock::start(WHOLE);
        clock.step(&Spent::default(), [1, 1, 0]);
        let mut spent = Spent::default();
        for _ in 0..5 {
            spent.computed(PROFILED, Pass::Forward, Duration::from_millis(1));
        }
        spent.computed(PROFILED, Pass::Backward, Duration::from_millis(2));
        let ratio = clock.step(&spent, [9, 7, 0]).unwrap();
        assert!((ratio - 1.0).abs() < 1e-6, "{ratio}");
        let mut spent = Spent::default();
        spent.computed(PROFILED, Pass::Both, Duration::from_millis(3));
        let ratio = clock.step(&spent, [9, 3, 0]).unwrap();
        assert!((ratio - 1.0).abs() < 1e-6, "{ratio}");
    }

    #[test]
    fn stages_of_one_peer_are_slow_together() {
        let mut clock = Clock::start(WHOLE);
        clock.step(&Spent::default(), [1, 1, 0]);
        let (mut first, mut last) = (Spent::default(), Spent::default());
        first.computed(PROFILED, Pass::Both, Duration::from_millis(3));
        last.computed([4e-3, 5e-3], Pass::Both, Duration::from_millis(21));
        last.waited(Duration::from_millis(5));
        first.add(&last);
        assert_eq!(clock.step(&first, [29, 24, 0]), Some(2.0));
        assert_eq!(first.waiting, Duration::from_millis(5));
    }

    #[test]
    fn without_a_profile_nothing_is_slow() {
        let mut clock = Clock::start(WHOLE);
        for _ in 0..3 {
            let mut spent = Spent::default();
            spent.computed([0.0; 2], Pass::Forward, Duration::from_millis(9));
            assert_eq!(clock.step(&spent, [9, 9, 0]), None);
        }
    }
}

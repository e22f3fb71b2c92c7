//! What steps take a stage, beside what its profile says.
//!
//! Two clocks are compared with the profile, and the slower one counts. On the wall a device shows that others use it. But one whose
//! share of a core is limited, and that waits for others between passes, is given its share in bursts: on the wall such passes look
//! faster than they would be one after the other. The processor's clock shows those, at the share that the device is known to give.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::super::processor::{Processor, Spent};

/// Steps of which the middle one counts: a device that is slowed is seen after three, and two slow steps are no news.
const STEPS: usize = 5;

/// Weight of a step in the means of what is used of the processor: copies and looks make some steps dear.
const STEP_WEIGHT: f64 = 0.05;

/// A step of the own stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stepped {
    pub(super) computing: Duration,
    pub(super) waiting: Duration,
    /// By how much passes take longer than profiled, once that is known.
    pub(super) slowdown: Option<f32>,
    /// What the processor spent on it.
    pub(super) spent: Spent,
}

/// Cores in use, on average over the last steps.
#[derive(Clone, Copy, Debug)]
struct Used {
    n: u32,
    all: f64,
    beside: f64,
}

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
    /// Of the last steps; the first, which makes room for all that follow, is none.
    ratios: VecDeque<f32>,
    computing: Duration,
    waiting: Duration,
    processor: Processor,
    used: Option<Used>,
    /// When the last step was made, and what had been spent by then.
    before: Option<(Instant, Spent)>,
}

impl Speed {
    /// Of a stage whose passes take `profiled` seconds per micro-batch, forward and backward, on a device with this processor.
    pub(super) fn new(profiled: [f64; 2], processor: Processor) -> Self {
        Self {
            processor,
            used: None,
            before: None,
            profiled,
            expected: 0.0,
            ratios: VecDeque::with_capacity(STEPS),
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

    /// A step is made, by now with so much spent.
    pub(super) fn stepped(&mut self, spent: Spent, now: Instant) -> Stepped {
        let (computing, waiting) = (
            std::mem::take(&mut self.computing),
            std::mem::take(&mut self.waiting),
        );
        let expected = std::mem::take(&mut self.expected);
        let Some((then, before)) = self.before.replace((now, spent)) else {
            return Stepped {
                computing,
                waiting,
                slowdown: None,
                spent: Spent::default(),
            };
        };
        let spent = spent.since(&before);
        let passes = spent.thread.as_secs_f64() * self.processor.threads;
        let used = self.use_up(&spent, passes, now - then);
        let processor = self.processor.at_least(used.all);
        let alone = passes * processor.seconds(used.beside);
        let ratio = computing.as_secs_f64().max(alone) / expected;
        let ratios = &mut self.ratios;
        if ratio.is_finite() && ratio > 0.0 {
            ratios.truncate(STEPS - 1);
            ratios.push_front(ratio as f32);
        }
        let mut sorted: Vec<f32> = ratios.iter().copied().collect();
        sorted.sort_by(f32::total_cmp);
        Stepped {
            computing,
            waiting,
            slowdown: sorted.get(sorted.len() / 2).copied(),
            spent,
        }
    }

    /// Cores in use, in all and beside the passes, with this step.
    fn use_up(&mut self, spent: &Spent, passes: f64, wall: Duration) -> Used {
        let wall = wall.as_secs_f64().max(1e-9);
        let process = spent.process.as_secs_f64();
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

    /// A processor of which passes get a whole core, unless it is said otherwise.
    const WHOLE: Processor = Processor {
        threads: 1.0,
        rate: 1.0,
        has_spare: false,
    };

    /// Steps of so many milliseconds on the wall, of which the processor spent some in the stage's thread and some beside it.
    struct Clock {
        now: Instant,
        spent: Spent,
    }

    impl Clock {
        fn start() -> Self {
            Self {
                now: Instant::now(),
                spent: Spent::default(),
            }
        }

        fn step(&mut self, speed: &mut Speed, [wall, thread, beside]: [u64; 3]) -> Stepped {
            self.now += Duration::from_millis(wall);
            self.spent.thread += Duration::from_millis(thread);
            self.spent.process += Duration::from_millis(thread + beside);
            speed.stepped(self.spent, self.now)
        }
    }

    #[test]
    fn a_device_that_is_slowed_is_seen_within_a_few_steps() {
        let mut speed = Speed::new([1e-3, 2e-3], WHOLE);
        let mut clock = Clock::start();
        let mut step = |ms| {
            for _ in 0..4 {
                speed.computed(Pass::Forward, Duration::ZERO);
                speed.computed(Pass::Backward, Duration::ZERO);
            }
            speed.computed(Pass::Update, Duration::from_millis(ms));
            speed.waited(Duration::from_millis(5));
            clock.step(&mut speed, [ms + 5, ms.min(12), 0])
        };
        assert_eq!(step(99).slowdown, None, "the first counts for nothing");
        for _ in 0..9 {
            assert_eq!(step(12).slowdown, Some(1.0));
        }
        let slowdowns = [36, 36, 36, 36].map(|ms| step(ms).slowdown);
        assert_eq!(slowdowns, [1.0, 1.0, 3.0, 3.0].map(Some));
        assert_eq!(step(36).waiting, Duration::from_millis(5));
    }

    #[test]
    fn one_that_waits_and_computes_in_bursts_is_no_faster_for_it() {
        // A third of a core. Profiled: 12 ms of passes, which are 4 ms of the processor. It waits most of the time.
        let third = Processor {
            rate: 1.0 / 3.0,
            ..WHOLE
        };
        let mut speed = Speed::new([1e-3, 2e-3], third);
        let mut clock = Clock::start();
        let mut slowdown = |wall, thread, beside| {
            for _ in 0..4 {
                speed.computed(Pass::Both, Duration::from_micros(1250));
            }
            clock.step(&mut speed, [wall, thread, beside]).slowdown
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
        let mut speed = Speed::new([1e-3, 2e-3], WHOLE);
        let mut clock = Clock::start();
        clock.step(&mut speed, [1, 1, 0]);
        for _ in 0..5 {
            speed.computed(Pass::Forward, Duration::from_millis(1));
        }
        speed.computed(Pass::Backward, Duration::from_millis(2));
        let slowdown = clock.step(&mut speed, [9, 7, 0]).slowdown.unwrap();
        assert!((slowdown - 1.0).abs() < 1e-6, "{slowdown}");
        speed.computed(Pass::Both, Duration::from_millis(3));
        let slowdown = clock.step(&mut speed, [9, 3, 0]).slowdown.unwrap();
        assert!((slowdown - 1.0).abs() < 1e-6);
    }

    #[test]
    fn without_a_profile_nothing_is_slow() {
        let mut speed = Speed::new([0.0; 2], WHOLE);
        let mut clock = Clock::start();
        for _ in 0..3 {
            speed.computed(Pass::Forward, Duration::from_millis(9));
            assert_eq!(clock.step(&mut speed, [9, 9, 0]).slowdown, None);
        }
    }
}

//! What this device's processor gives a job: how long its seconds are on the wall, and what is spent beside the passes.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// Processor time so far, or between two moments; zero where the system does not tell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clocks {
    /// Of all threads of this process.
    pub(super) process: Duration,
    /// Of the thread that asks.
    pub(super) thread: Duration,
}

impl Clocks {
    pub(super) fn now() -> Self {
        let so_far = |clock: ClockId| clock_gettime(clock).map_or(Duration::ZERO, Duration::from);
        Self {
            process: so_far(ClockId::CLOCK_PROCESS_CPUTIME_ID),
            thread: so_far(ClockId::CLOCK_THREAD_CPUTIME_ID),
        }
    }

    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            process: self.process.saturating_sub(before.process),
            thread: self.thread.saturating_sub(before.thread),
        }
    }
}

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Processor {
    /// Threads that passes keep busy.
    pub(super) threads: f64,
    /// Seconds of the processor that the process gets per second while passes run, in cores.
    pub(super) rate: f64,
    /// Whether a core is left for what runs beside the passes.
    pub(super) has_spare: bool,
}

/// What frames, copies and beats take of a core until steps show it.
const ASSUMED_BESIDE: f64 = 0.03;
/// Least part of the processor that passes get, whatever runs beside them.
const LEAST: f64 = 0.1;

impl Processor {
    /// Watches `passes`, in which nothing else is to run.
    pub(super) fn watch<T>(passes: impl FnOnce() -> T) -> (T, Self) {
        let (before, began) = (Clocks::now(), Instant::now());
        let result = passes();
        let spent = Clocks::now().since(&before);
        let wall = began.elapsed().as_secs_f64().max(1e-9);
        let process = spent.process.as_secs_f64().max(1e-9);
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let threads = process / spent.thread.as_secs_f64().max(1e-9);
        let threads = threads.clamp(1.0, cores);
        let processor = Self {
            threads,
            rate: (process / wall).clamp(1e-3, cores),
            has_spare: cores >= threads + 1.0,
        };
        (result, processor)
    }

    /// The same where it turns out to give so many cores at least.
    pub(super) fn at_least(self, rate: f64) -> Self {
        Self {
            rate: self.rate.max(rate),
            ..self
        }
    }

    /// Seconds of this device per second of the processor in passes, where so much of a core is spent beside them.
    pub(super) fn seconds(&self, beside: f64) -> f64 {
        let taken = if self.has_spare { 0.0 } else { beside };
        1.0 / (self.rate - taken).max(LEAST * self.rate)
    }

    /// By how much passes take longer than alone, as far as can be told before the first step.
    pub(super) fn assumed_slowdown(&self) -> f32 {
        (self.seconds(ASSUMED_BESIDE) / self.seconds(0.0)) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_beside_passes_takes_of_their_share_of_the_processor() {
        let third = Processor {
            threads: 1.0,
            rate: 0.3,
            has_spare: false,
        };
        assert!((third.seconds(0.05) - 4.0).abs() < 1e-9);
        assert!(
            (third.seconds(1.0) - 1.0 / 0.03).abs() < 1e-9,
            "a little is always left"
        );
        assert!((third.assumed_slowdown() - 0.3 / 0.27).abs() < 1e-6);
        let spare = Processor {
            has_spare: true,
            ..third
        };
        assert_eq!(spare.assumed_slowdown(), 1.0);
        assert_eq!(
            (third.at_least(0.2).rate, third.at_least(0.9).rate),
            (0.3, 0.9)
        );
    }

    #[test]
    fn a_thread_that_computes_alone_is_one() {
        let (sum, processor) = Processor::watch(|| (0..20_000_000u64).fold(0, |a, b| a ^ b));
        assert!(sum > 0 || processor.threads >= 1.0);
        assert!(processor.rate > 0.0);
    }
}

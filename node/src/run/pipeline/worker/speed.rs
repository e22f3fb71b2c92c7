//! What steps take a stage, beside what its profile says.

use std::time::Duration;

use skein_gossip::pipeline::message::BlockTime;

/// Weight of a step in the running figure: a device that is slowed is seen within a few steps, and one slow step is no news.
const WEIGHT: f32 = 0.3;

/// See the module's header.
#[derive(Debug)]
pub(super) struct Speed {
    /// Seconds of a step's passes by the profile.
    profiled: f64,
    slowdown: Option<f32>,
    computing: Duration,
    waiting: Duration,
}

impl Speed {
    /// Of a stage of blocks that take `times` per micro-batch.
    pub(super) fn new(times: &[BlockTime], micro_batches: u32) -> Self {
        let sum: f64 = times
            .iter()
            .map(|time| f64::from(time.forward_us) + f64::from(time.backward_us))
            .sum();
        Self {
            profiled: sum * f64::from(micro_batches) / 1e6,
            slowdown: None,
            computing: Duration::ZERO,
            waiting: Duration::ZERO,
        }
    }

    /// A pass took so long.
    pub(super) fn computed(&mut self, time: Duration) {
        self.computing += time;
    }

    /// Nothing could be done for so long.
    pub(super) fn waited(&mut self, time: Duration) {
        self.waiting += time;
    }

    /// A step is made: what it computed and waited, and by how much the stage is slower than profiled.
    pub(super) fn stepped(&mut self) -> (Duration, Duration, f32) {
        let (computing, waiting) = (
            std::mem::take(&mut self.computing),
            std::mem::take(&mut self.waiting),
        );
        let ratio = computing.as_secs_f64() / self.profiled;
        if ratio.is_finite() && ratio > 0.0 {
            let ratio = ratio as f32;
            let slowdown = self.slowdown.get_or_insert(ratio);
            *slowdown += WEIGHT * (ratio - *slowdown);
        }
        (computing, waiting, self.slowdown.unwrap_or(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_slowed_is_seen_within_a_few_steps() {
        let times = [BlockTime {
            forward_us: 1000.0,
            backward_us: 2000.0,
        }];
        let mut speed = Speed::new(&times, 4);
        let mut step = |ms| {
            speed.computed(Duration::from_millis(ms));
            speed.waited(Duration::from_millis(5));
            speed.stepped()
        };
        assert_eq!(step(12).2, 1.0);
        let slowdowns: Vec<f32> = (0..6).map(|_| step(36).2).collect();
        assert!(slowdowns[5] > 2.7 && slowdowns[0] < 2.0, "{slowdowns:?}");
        assert_eq!(step(36).1, Duration::from_millis(5));
    }

    #[test]
    fn without_a_profile_nothing_is_slow() {
        let mut speed = Speed::new(&[], 4);
        speed.computed(Duration::from_millis(9));
        assert_eq!(speed.stepped().2, 1.0);
    }
}

//! A peer without a stage times the blocks now and then: it may have become faster or slower, and no step of its own shows it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_gossip::pipeline::agreement::Input;
use skein_model::plan::Profile;

use super::super::prepare;
use super::{Done, Driver};

/// Least time from one measurement to the next.
const EVERY: Duration = Duration::from_secs(15);
/// Times as long as a measurement takes the device is left alone after it.
const REST: u32 = 7;

/// When blocks were timed, and what they took before the job.
#[derive(Debug)]
pub(super) struct Standby {
    measured: Profile,
    /// What runs beside passes slows them by so much where it cannot be seen.
    assumed: f32,
    began: Instant,
    next: Instant,
    measuring: bool,
}

impl Standby {
    /// After the measurement that this peer began with.
    pub(super) fn new(measured: Profile, assumed: f32) -> Self {
        let now = Instant::now();
        Self {
            measured,
            assumed,
            began: now,
            next: now + EVERY,
            measuring: false,
        }
    }
}

impl Driver {
    pub(super) fn time_if_standing_by(&mut self) {
        let (me, closed) = (self.context.net.local(), self.closed);
        let (Some(running), Some(shape)) = (&mut self.running, &self.shape) else {
            return;
        };
        let view = running.agreement.view();
        let stands_by = view.is_some_and(|view| !view.plan.is_host(me));
        let standby = &mut running.standby;
        if !stands_by || closed || standby.measuring || Instant::now() < standby.next {
            return;
        }
        (standby.measuring, standby.began) = (true, Instant::now());
        let (facts, shape, done) = (Arc::clone(&running.facts), shape.clone(), self.done.clone());
        tokio::task::spawn_blocking(move || {
            let measured = prepare::measure(&facts, &shape, 1);
            let _ = done.blocking_send(Done::Measured(measured));
        });
    }

    pub(super) fn on_measured(&mut self, measured: Result<Profile, String>) {
        let Some(running) = &mut self.running else {
            return;
        };
        let samples = running.facts.pipeline.samples(running.facts.batch, 0) as usize;
        let standby = &mut running.standby;
        standby.measuring = false;
        standby.next = Instant::now() + EVERY.max(REST * standby.began.elapsed());
        let seconds = |profile: &Profile| -> f64 {
            profile
                .seconds(0..profile.blocks.len(), samples)
                .iter()
                .sum()
        };
        match measured {
            Ok(now) => {
                let slowdown = seconds(&now) / seconds(&standby.measured).max(1e-9);
                let slowdown = slowdown as f32 * standby.assumed;
                self.input(Input::Slowdown(slowdown));
            }
            Err(reason) => tracing::warn!(reason, "the blocks could not be timed again"),
        }
    }
}

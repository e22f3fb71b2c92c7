//! What a job shows its users.

use std::time::{Duration, Instant};

use skein_gossip::pipeline::agreement::Input;
use skein_gossip::view::Stamp;

use super::super::figures::Figures;
use super::Driver;
use crate::control::JobStatus;
use crate::run::driver::JobContext;

/// What a plan promises is shown for so long in one view.
const PRICED_FOR: Duration = Duration::from_secs(3);

/// What a job shows before anything has happened.
pub(in super::super) fn first_status(context: &JobContext) -> JobStatus {
    Figures::new(&context.file).status(context, None, context.connected.len())
}

impl Driver {
    /// What is looked at twice a second and with each new view: the rate, the plan, and whether it is enough.
    pub(super) fn report(&mut self) {
        let Some(running) = self.running.as_ref().filter(|_| !self.closed) else {
            return;
        };
        let samples = running.agreement.step() * u64::from(running.facts.batch);
        self.figures.sample_rate(samples);
        let view = running.agreement.view();
        let stamp = view.map(|view| view.stamp);
        // In one view figures change slowly, and to price a plan takes the processor from the stage.
        let is_old = |(of, at): (Option<Stamp>, Instant)| {
            of != stamp || stamp.is_none() || at.elapsed() > PRICED_FOR
        };
        if self.priced.is_none_or(is_old) || self.figures.plan.is_err() {
            self.priced = Some((stamp, Instant::now()));
            let plan = view.map(|view| &view.plan);
            let candidates = running.agreement.candidates();
            let n_connected = self.connected.len();
            self.figures.plan = running.planner.shown(plan, &candidates, n_connected);
            let measured = || running.planner.measured(&candidates, n_connected);
            self.figures.measured = plan.is_none().then(measured).flatten().map(Box::new);
        }
        if let Some(reason) = self.figures.stop_holds(samples) {
            self.input(Input::StopHolds(reason));
        }
    }

    /// Tells users how the job stands, at most ten times a second.
    pub(super) fn tell_status(&mut self) {
        if self.status_sent.elapsed() < Duration::from_millis(100) && !self.closed {
            return;
        }
        self.status_sent = Instant::now();
        let status =
            self.figures
                .status(&self.context, self.running.as_ref(), self.connected.len());
        self.status.send_if_modified(|told| {
            let is_news = *told != status;
            *told = status;
            is_news
        });
    }
}

//! The end of the job: the first stage names the last step, all collect the blocks at that step, and the job is over when
//! everybody alive that takes part holds the model.

use super::super::message::Standing;
use super::{Agreement, Output};

impl Agreement {
    pub(super) fn close(&mut self) {
        if self.closed {
            return;
        }
        // Named on a side of a partition whose peers are gone again with what they had.
        let is_past = |last: u64| !self.can_end_at(last);
        if self.config.last_step.is_none()
            && self.own.standing == Standing::Ready
            && self.own.last_step.is_some_and(is_past)
        {
            self.own.last_step = None;
            self.chose_last = false;
            self.is_news = true;
        }
        let nobody_trains =
            self.view.is_none() && self.heard.values().all(|heard| heard.beat.view.is_none());
        if nobody_trains && self.own.stop.is_some() {
            // Nothing was trained, and nothing will be.
            self.closed = true;
            return self.outputs.push_back(Output::Closed);
        }
        self.choose_last_step();
        let Some(last) = self.own.last_step else {
            return;
        };
        let ready = self.own.standing == Standing::Ready;
        if ready
            && !self.finishing
            && last > 0
            && self.own.holding.has_all(last, 0..self.config.n_blocks)
        {
            self.finishing = true;
            self.outputs.push_back(Output::Finish(last));
        }
        let is_done = |standing: &Standing| matches!(standing, Standing::Finished(_));
        let others = self.heard.iter().filter(|(peer, heard)| {
            self.membership.is_alive(self.now, **peer) && heard.beat.standing == Standing::Ready
        });
        if is_done(&self.own.standing) && others.count() == 0 {
            self.closed = true;
            self.outputs.push_back(Output::Closed);
        }
    }

    /// Whether the model can still be had as it is after `last` steps.
    pub(super) fn can_end_at(&self, last: u64) -> bool {
        last >= self.step() || self.copies().fewest(last) > 0
    }

    fn choose_last_step(&mut self) {
        if self.own.last_step.is_some() || self.own.stop.is_none() || self.chose_last {
            return;
        }
        let Some(view) = &self.view else { return };
        if view.plan.lead() == Some(self.me) && self.fed == Some(view.stamp) {
            self.chose_last = true;
            self.outputs.push_back(Output::ChooseLastStep);
        }
    }

    /// Whether every block is held at the last step: nothing is left to be trained.
    pub(super) fn is_trained(&self) -> bool {
        let Some(last) = self.own.last_step else {
            return false;
        };
        last > 0 && self.copies().fewest(last) > 0
    }

    /// Why the job ends, once that is known.
    pub fn stop(&self) -> Option<&str> {
        self.own.stop.as_deref()
    }

    /// The job's last step, once it is known.
    pub fn last_step(&self) -> Option<u64> {
        self.own.last_step
    }
}

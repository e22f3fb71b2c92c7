//! What the training thread reports, and what is due from time to time.

use std::time::Instant;

use skein_gossip::agreement::Input;

use super::super::journal::{Entry, links, pace};
use super::super::{coder, threads, trainer};
use super::{Driver, PACE_EVERY};
use crate::job::Every;

impl Driver {
    pub(super) fn on_trained(&mut self, event: trainer::Event) {
        match event {
            trainer::Event::Step {
                step,
                loss,
                samples,
                computing,
                waiting,
                communicating,
                commits,
            } => {
                self.power
                    .observe(samples.min(u64::from(u32::MAX)) as u32, computing);
                self.pace.commits = commits;
                self.figures
                    .stepped(step, loss, samples, computing, waiting, communicating);
                let report = self
                    .threads
                    .as_ref()
                    .map(|threads| threads.report.borrow().clone());
                let report = report.unwrap_or_default();
                self.figures.links(&report);
                self.journal.write(&Entry::Step {
                    step,
                    train_loss: loss.is_finite().then_some(loss),
                    samples,
                    computing_s: computing.as_secs_f64(),
                    waiting_s: waiting.as_secs_f64(),
                    communicating_s: communicating.as_secs_f64(),
                    links: links(&report.links),
                    view: self.agreement.view().map_or(0, |view| view.stamp.number),
                    stage: None,
                });
                self.tell_progress();
                self.checkpoint_if_due(step);
            }
            trainer::Event::Evaluated {
                step,
                evaluation,
                whole,
            } => {
                let samples_mesh = self.agreement.mesh_samples();
                self.pace.held_out = Some(evaluation.loss as f32).filter(|loss| loss.is_finite());
                self.figures.evaluated(step, &evaluation);
                self.journal.write(&Entry::Evaluated {
                    step,
                    val_accuracy: evaluation.accuracy,
                    val_loss: evaluation.loss.is_finite().then_some(evaluation.loss),
                    samples: evaluation.samples,
                    samples_mesh,
                });
                if let Some(reason) = whole
                    .then(|| self.figures.target_met(&evaluation))
                    .flatten()
                {
                    return self.input(Input::StopHolds(reason));
                }
            }
            trainer::Event::Sketched(sketch) => self.pace.sketch = Some(sketch),
            trainer::Event::NotFinite { step } => {
                self.figures.refused_own += 1;
                // A synchronous step counts all the same.
                self.figures.step = step;
                let peer = self.context.net.local().short();
                self.journal.write(&Entry::Refused {
                    peer,
                    reason: &format!("own step {step} is not finite"),
                });
            }
            trainer::Event::Failed(reason) => self.fail(reason.into()),
        }
        if let Some(reason) = self.figures.stop_holds(self.agreement.mesh_samples()) {
            self.input(Input::StopHolds(reason));
        }
    }

    /// Tells the agreement, and so the others, of the own work so far.
    pub(super) fn tell_progress(&mut self) {
        let progress = Input::Progress {
            step: self.figures.step,
            train_loss: self.figures.train_loss.unwrap_or(f32::MAX),
            contribution: self.figures.contribution,
        };
        self.input(progress);
    }

    pub(super) fn every_half_second(&mut self) {
        self.tell_coder(coder::Input::Tick);
        self.look_around();
        self.write_pace();
        self.journal.flush();
        self.context.blobs.expire();
        self.figures.sample_rate(self.agreement.mesh_samples());
        if self.retry_at.is_some_and(|at| at <= Instant::now()) {
            self.try_fetch();
        }
        if let Some(threads) = &self.threads {
            let report = threads.report.borrow().clone();
            if let Some((peer, reason)) = self.figures.new_refusal(&report) {
                self.journal.write(&Entry::Refused {
                    peer: peer.short(),
                    reason: &reason,
                });
            }
        }
        if let Some(reason) = self.figures.stop_holds(self.agreement.mesh_samples()) {
            self.input(Input::StopHolds(reason));
        }
    }

    fn write_pace(&mut self) {
        let Some(threads) = &self.threads else { return };
        let is_due = self.pace_written.elapsed() >= PACE_EVERY;
        let view = self.agreement.view().filter(|_| is_due).cloned();
        let Some(view) = view else { return };
        self.pace_written = Instant::now();
        let me = view.member(self.context.net.local());
        let batch = me.map_or(0, |member| member.batch);
        let share_frac = f64::from(batch) / view.global_batch().max(1) as f64;
        let waiting_us = self.figures.contribution.waiting_us;
        let report = threads.report.borrow().clone();
        let entry = pace(&report.links, share_frac, self.pace.commits, waiting_us);
        self.journal.write(&entry);
    }

    pub(super) fn checkpoint_if_due(&mut self, step: u64) {
        let (at, last) = self.last_checkpoint;
        let due = match self.context.file.checkpoint.every {
            Every::Time(every) => at.elapsed() >= every,
            Every::Steps(every) => step >= last + every,
        };
        if due && !self.saving {
            self.last_checkpoint = (Instant::now(), step);
            self.saving = threads::checkpoint(self);
        }
    }
}

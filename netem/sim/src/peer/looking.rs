//! Looks at the validation set.

use skein_gossip::agreement::Input;
use skein_model::train::Evaluation;
use skein_node::run::journal::Entry;

use super::training::Doing;
use super::{Peer, Work};
use skein_netem::link::Nanos;

impl Peer {
    /// Looks at a part of the validation set.
    pub(super) fn look(&mut self, now: Nanos) {
        let rows = self.job.file.evaluate.samples as usize;
        self.learner.swap_average();
        let seen = self.learner.evaluate(rows);
        let best = self.trainer.best_look.as_ref();
        if let Ok(evaluation) = seen
            && best.is_none_or(|(best, ..)| evaluation.accuracy > best.accuracy)
        {
            let state = self.learner.state().weights();
            self.trainer.best_look = Some((evaluation, self.trainer.step, state));
        }
        self.learner.swap_average();
        let Ok(evaluation) = seen else {
            return self.at_boundary(now);
        };
        self.looking(evaluation);
    }

    fn looking(&mut self, evaluation: Evaluation) {
        let takes = self.look_takes(evaluation.samples);
        self.trainer.doing = Doing::Looking(evaluation, takes);
        self.later(takes, Work::Looked);
    }

    pub(super) fn look_takes(&mut self, rows: usize) -> Nanos {
        self.works(self.job.costs.us_per_look * rows as f64)
    }

    pub(super) fn on_looked(&mut self, now: Nanos) {
        let Doing::Looking(evaluation, took) = self.trainer.doing else {
            return;
        };
        self.trainer.looked = Some((now, took));
        self.pace.held_out = Some(evaluation.loss as f32).filter(|loss| loss.is_finite());
        let entry = Entry::Evaluated {
            step: self.trainer.step,
            val_accuracy: evaluation.accuracy,
            val_loss: evaluation.loss.is_finite().then_some(evaluation.loss),
            samples: evaluation.samples,
            samples_mesh: self.agreement.mesh_samples(),
        };
        self.write(now, &entry);
        let all = self.learner.validation_len();
        let stop = self.job.file.stop;
        match stop.target_met(evaluation.accuracy, evaluation.loss) {
            Some(reason) if evaluation.samples >= all => {
                self.input(now, Input::StopHolds(reason));
            }
            // A part says that the target is met: all of it decides.
            Some(_) => {
                self.learner.swap_average();
                let whole = self.learner.evaluate(all);
                self.learner.swap_average();
                if let Ok(whole) = whole {
                    return self.looking(whole);
                }
            }
            None => {}
        }
        self.at_boundary(now);
    }
}

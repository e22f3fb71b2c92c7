//! The end of the job at one peer: its candidate, and the decision it closes with.

use skein_gossip::agreement::Input;
use skein_gossip::ids::Digest;
use skein_gossip::message::{Candidate, Decision};
use skein_model::train::Evaluation;
use skein_node::run::journal::Entry;

use super::training::AtBoundary;
use super::{Fetching, Peer, Work};
use crate::learner::State;
use skein_netem::link::Nanos;

/// The better of the replica and the best that was seen on the way; none where no loss is finite.
#[derive(Debug)]
pub(crate) struct Judged(Option<(u64, Evaluation, State)>);

impl Peer {
    pub(super) fn judge_at_boundary(&mut self, now: Nanos) {
        self.obey_at_boundary(now, AtBoundary::Judge);
    }

    /// The rows of a look choose between the replica and the best seen, the whole validation set judges the chosen one, as in the
    /// node.
    pub(super) fn judge(&mut self) {
        self.learner.swap_average();
        self.learner.forget_average();
        let all = self.learner.validation_len();
        let mut rows = all;
        let mut step = self.trainer.step;
        if let Some((then, best_step, best)) = self.trainer.best_look.take()
            && best_step != step
        {
            let few = self.job.file.evaluate.samples as usize;
            rows += few.min(all);
            let rank = |of: &Evaluation| (of.loss.is_finite(), of.accuracy, -of.loss);
            let now = self.learner.evaluate(few);
            if now.is_ok_and(|now| rank(&then) > rank(&now)) && self.learner.load(&best).is_ok() {
                step = best_step;
            }
        }
        let judged = self.learner.evaluate(all).ok();
        let judged = judged.filter(|evaluation| evaluation.loss.is_finite());
        let best = judged.map(|evaluation| (step, evaluation, self.learner.state().weights()));
        let takes = self.look_takes(rows);
        self.later(takes, Work::Judged(Box::new(Judged(best))));
    }

    pub(super) fn on_judged(&mut self, now: Nanos, judged: Judged) {
        if self.closed.is_some() || self.fetched.is_some() {
            // It took so long that the others went on without it.
            return;
        }
        let Judged(Some((step, evaluation, state))) = judged else {
            return self.input(now, Input::NoCandidate);
        };
        let digest = Digest(state.weights_hash());
        self.offered = Some((digest, state));
        self.tell_progress(now);
        let candidate = Candidate {
            accuracy: evaluation.accuracy as f32,
            loss: evaluation.loss as f32,
            digest,
            step,
        };
        self.input(now, Input::Evaluated(candidate));
    }

    pub(super) fn close(&mut self, now: Nanos, decision: Option<Decision>) {
        if self.closed.is_some() {
            return;
        }
        self.closed = Some(decision);
        self.fetching = Fetching::Nothing;
        let entry = Entry::Closed {
            reason: "the job is over",
            digest: decision.map(|decision| decision.candidate.digest.to_string()),
            winner: decision.map(|decision| decision.winner.short()),
            val_accuracy: decision.map(|decision| decision.candidate.accuracy),
        };
        self.write(now, &entry);
    }
}

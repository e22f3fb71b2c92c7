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

    pub(super) fn judge(&mut self) {
        let all = self.learner.validation_len();
        let state = self.learner.state();
        let mut rows = all;
        let mut best = self
            .learner
            .evaluate(all)
            .ok()
            .map(|now| (self.trainer.step, now, state.weights()));
        if let Some((_, step, then)) = self.trainer.best_look.take()
            && step != self.trainer.step
            && self.learner.load(&then).is_ok()
        {
            rows += all;
            if let Ok(seen) = self.learner.evaluate(all) {
                let rank = |of: &Evaluation| (of.loss.is_finite(), of.accuracy, -of.loss);
                if best
                    .as_ref()
                    .is_none_or(|(_, now, _)| rank(&seen) > rank(now))
                {
                    best = Some((step, seen, then));
                }
            }
        }
        let best = best.filter(|(_, evaluation, _)| evaluation.loss.is_finite());
        let takes = self.look_takes(rows);
        self.later(takes, Work::Judged(Box::new(Judged(best))));
    }

    pub(super) fn on_judged(&mut self, now: Nanos, judged: Judged) {
        if self.closed.is_some() || self.kept.is_some() {
            // It took so long that the others went on without it.
            return;
        }
        let Judged(Some((step, evaluation, state))) = judged else {
            return self.input(now, Input::NoCandidate);
        };
        let digest = Digest(state.weights_hash());
        self.kept = Some((digest, state));
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

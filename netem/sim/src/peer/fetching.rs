//! Copies between peers: a replica to start from, or the decided weights.

use skein_gossip::agreement::Input;
use skein_gossip::ids::{Digest, PeerId};
use skein_gossip::message::Decision;

use super::training::AtBoundary;
use super::{Effect, Message, Peer, Work, tick};
use crate::learner::State;
use crate::stream::Lane;
use skein_netem::link::Nanos;

/// How long a fetch that failed waits before the next try, as in the node.
const RETRY_AFTER: Nanos = 300_000_000;
/// How long an answer may take to begin, as in the node.
const DEADLINE: Nanos = 30_000_000_000;
/// A request on the wire.
pub(super) const ASK_BYTES: usize = 80;

/// What is being fetched.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fetching {
    Nothing,
    Replica { from_step: u64 },
    Weights { decision: Decision },
}

/// A question.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    Replica { from_step: u64 },
    Weights { digest: Digest },
}

/// An answer.
#[derive(Debug)]
pub(crate) enum Answer {
    Replica {
        state: State,
        step: u64,
        samples: u64,
    },
    Weights {
        digest: Digest,
        state: State,
    },
    Unavailable,
}

impl Peer {
    /// Asks whoever has what is wanted now; another one at each try.
    pub(super) fn try_fetch(&mut self, now: Nanos) {
        let (holders, ask) = match self.fetching {
            Fetching::Nothing => return,
            Fetching::Replica { from_step } => {
                let is_synchronous = self.job.file.strategy.exchange.is_synchronous();
                let from_step = if is_synchronous { from_step } else { 0 };
                (self.agreement.donors(tick(now)), Ask::Replica { from_step })
            }
            Fetching::Weights { decision } => {
                let digest = decision.candidate.digest;
                let holders = self.agreement.holders(tick(now), digest);
                (holders, Ask::Weights { digest })
            }
        };
        self.attempts += 1;
        let attempt = self.attempts;
        let holder = holders
            .get(attempt as usize % holders.len().max(1))
            .copied();
        self.asked = holder;
        let Some(to) = holder else {
            return self.later(RETRY_AFTER, Work::Retry { attempt });
        };
        self.asked_at = now;
        self.effects.push(Effect::Send {
            to,
            lane: Lane::Control,
            bytes: ASK_BYTES,
            message: Message::Ask(ask),
        });
        self.later(DEADLINE, Work::Retry { attempt });
    }

    pub(super) fn on_retry(&mut self, now: Nanos, attempt: u64) {
        if attempt == self.attempts {
            self.try_fetch(now);
        }
    }

    /// The try that is under way came to nothing.
    pub(super) fn retry_later(&mut self) {
        self.asked = None;
        self.attempts += 1;
        let attempt = self.attempts;
        self.later(RETRY_AFTER, Work::Retry { attempt });
    }

    pub(super) fn lost_holder(&mut self, peer: PeerId) {
        if self.asked == Some(peer) && !matches!(self.fetching, Fetching::Nothing) {
            self.retry_later();
        }
    }

    pub(super) fn on_ask(&mut self, from: PeerId, ask: Ask) {
        match ask {
            Ask::Replica { from_step } => {
                self.trainer.copies.push((from_step, from));
                self.give_copies();
            }
            Ask::Weights { digest } => {
                let answer = match self.held(digest) {
                    Some(state) => Answer::Weights {
                        digest,
                        state: state.clone(),
                    },
                    None => Answer::Unavailable,
                };
                self.answer(from, answer);
            }
        }
    }

    pub(super) fn answer(&mut self, to: PeerId, answer: Answer) {
        let bytes = match &answer {
            Answer::Replica { state, .. } => state.bytes(),
            Answer::Weights { state, .. } => state.bytes(),
            Answer::Unavailable => ASK_BYTES,
        };
        self.effects.push(Effect::Send {
            to,
            lane: Lane::Bulk,
            bytes,
            message: Message::Answer(answer),
        });
    }

    pub(super) fn on_answer(&mut self, now: Nanos, from: PeerId, answer: Answer) {
        match (answer, self.fetching) {
            (Answer::Replica { state, .. }, Fetching::Nothing) if self.learning == Some(from) => {
                self.on_taught(now, from, state);
            }
            (
                Answer::Replica {
                    state,
                    step,
                    samples,
                },
                Fetching::Replica { .. },
            ) => {
                let began = self.asked_at;
                self.obey_at_boundary(
                    now,
                    AtBoundary::Restore {
                        state,
                        step,
                        samples,
                        from,
                        began,
                    },
                );
            }
            (Answer::Weights { digest, state }, Fetching::Weights { decision })
                if decision.candidate.digest == digest =>
            {
                self.fetched = Some((digest, state));
                self.fetching = Fetching::Nothing;
                self.input(now, Input::Fetched(digest));
            }
            (Answer::Unavailable, Fetching::Weights { .. }) if self.asked == Some(from) => {
                self.retry_later();
            }
            _ => {}
        }
    }
}

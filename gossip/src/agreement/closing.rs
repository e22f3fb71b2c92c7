//! The end of a job, as one peer goes through it; the steward's rule is in [`ending`](crate::ending).

use super::{Agreement, Output, Phase, truncate};
use crate::ending;
use crate::ids::Digest;
use crate::message::{Decision, EndingState};
use crate::time::Tick;

impl Agreement {
    /// Learns of the end from another peer's beat.
    pub(super) fn on_ending(&mut self, now: Tick, is_member: bool, theirs: &EndingState) {
        if theirs.closed && !matches!(self.phase, Phase::Closed(_)) {
            return self.on_closed(now, is_member, theirs.clone());
        }
        if is_member && !self.is_over() {
            self.begin_end(now, theirs.reason.clone());
        }
        let Phase::Ending(mine) = &mut self.phase else {
            return;
        };
        let judges = mine.candidate.is_none() && !mine.abstains;
        if judges && theirs.candidate.is_some() && self.abstain_at.is_none() {
            // As long again as the first needed: a device many times slower holds up the end no further.
            let took = now.since(self.ended_at);
            let more = took.max(self.membership.times().silence_min);
            self.abstain_at = Some(now + more);
            self.due = self.due.min(now + more);
        }
        let Some(decision) = theirs.decision else {
            return;
        };
        let stands = mine
            .decision
            .map_or(decision, |known| ending::newer(known, decision));
        if mine.decision != Some(stands) {
            self.adopt_decision(now, stands);
        }
    }

    /// Gives up judging the own replica where others were done long before. Returns when it would.
    pub(super) fn abstain_when_late(&mut self, now: Tick) -> Tick {
        let Phase::Ending(mine) = &mut self.phase else {
            return Tick::NEVER;
        };
        let Some(at) = self.abstain_at else {
            return Tick::NEVER;
        };
        if mine.candidate.is_some() || mine.abstains {
            return Tick::NEVER;
        }
        if now < at {
            return at;
        }
        mine.abstains = true;
        self.news = true;
        Tick::NEVER
    }

    /// Whoever closed is gone for good, and the weights with it: the members that are left end with what they have. Returns when that
    /// would be.
    pub(super) fn give_up_closing(&mut self, now: Tick) -> Tick {
        let Phase::Closing(state) = &self.phase else {
            return Tick::NEVER;
        };
        let is_lost = state
            .decision
            .is_some_and(|decision| self.holders(now, decision.candidate.digest).is_empty());
        if !is_lost || self.view.is_none() {
            self.lost_since = None;
            return Tick::NEVER;
        }
        let at = *self.lost_since.get_or_insert(now) + self.membership.times().silence_min;
        if now < at {
            return at;
        }
        let abstains = !self.has_replica;
        let state = EndingState {
            decision: None,
            abstains,
            ..state.clone()
        };
        self.outputs.push_back(Output::End {
            reason: state.reason.clone(),
            abstain: abstains,
        });
        self.ended_at = now;
        self.abstain_at = None;
        self.lost_since = None;
        self.set_phase(now, Phase::Ending(state));
        Tick::NEVER
    }

    pub(super) fn adopt_decision(&mut self, now: Tick, decision: Decision) {
        let Phase::Ending(mine) = &mut self.phase else {
            return;
        };
        let digest = decision.candidate.digest;
        let held = mine.holds
            && mine
                .decision
                .is_some_and(|known| known.candidate.digest == digest);
        mine.holds = held
            || mine
                .candidate
                .is_some_and(|candidate| candidate.digest == digest);
        mine.decision = Some(decision);
        if !mine.holds {
            self.outputs.push_back(Output::Fetch(decision));
        }
        self.news = true;
        self.changed(now);
    }

    fn on_closed(&mut self, now: Tick, is_member: bool, theirs: EndingState) {
        let mine = match &self.phase {
            Phase::Ending(state) | Phase::Closing(state) => Some(state.clone()),
            _ => None,
        };
        let holds = |digest| mine.as_ref().is_some_and(|state| state.has(digest));
        match theirs.decision {
            Some(decision) if !holds(decision.candidate.digest) => {
                let known = mine.is_some_and(|state| state.decision == Some(decision));
                if !(known && matches!(self.phase, Phase::Closing(_))) {
                    if !self.is_over() {
                        self.outputs.push_back(Output::End {
                            reason: theirs.reason.clone(),
                            abstain: true,
                        });
                    }
                    self.outputs.push_back(Output::Fetch(decision));
                    self.has_replica = match &self.phase {
                        Phase::Training => true,
                        Phase::Ending(mine) => !mine.abstains,
                        Phase::Closing(_) => self.has_replica,
                        _ => false,
                    };
                    let state = EndingState {
                        candidate: None,
                        abstains: true,
                        holds: false,
                        closed: false,
                        ..theirs
                    };
                    self.set_phase(now, Phase::Closing(state));
                }
            }
            // It had nothing and met nobody; here there is work to be kept.
            None if !is_member && matches!(self.phase, Phase::Training | Phase::Syncing(_)) => {
                self.begin_end(now, theirs.reason);
            }
            None if !is_member && self.is_over() => {}
            None if self.left.is_some() => self.enough = Some(theirs.reason),
            decision => self.close(now, theirs.reason, decision),
        }
    }

    pub(super) fn on_fetched(&mut self, now: Tick, digest: Digest) {
        match &mut self.phase {
            Phase::Ending(state)
                if state
                    .decision
                    .is_some_and(|decision| decision.candidate.digest == digest) =>
            {
                state.holds = true;
                self.news = true;
            }
            Phase::Closing(state)
                if state
                    .decision
                    .is_some_and(|decision| decision.candidate.digest == digest) =>
            {
                let (reason, decision) = (state.reason.clone(), state.decision);
                self.close(now, reason, decision);
            }
            _ => {}
        }
    }

    pub(super) fn close(&mut self, now: Tick, reason: String, decision: Option<Decision>) {
        let state = EndingState {
            reason,
            candidate: None,
            abstains: true,
            decision,
            holds: decision.is_some(),
            closed: true,
        };
        self.set_phase(now, Phase::Closed(state));
        self.outputs.push_back(Output::Closed(decision));
    }

    pub(super) fn begin_end(&mut self, now: Tick, mut reason: String) {
        truncate(&mut reason);
        let abstain = match self.phase {
            Phase::Training => false,
            Phase::Syncing(_) => true,
            // Nothing was trained and no view exists: there is nobody to agree with and nothing to keep.
            Phase::Preparing | Phase::Unable(_) | Phase::Ready(_) => {
                self.close_before_start(now, reason.clone());
                if !self.is_over() {
                    self.enough = Some(reason);
                }
                return;
            }
            Phase::Ending(_) | Phase::Closing(_) | Phase::Closed(_) => return,
        };
        self.outputs.push_back(Output::End {
            reason: reason.clone(),
            abstain,
        });
        self.ended_at = now;
        self.abstain_at = None;
        let state = EndingState {
            reason,
            candidate: None,
            abstains: abstain,
            decision: None,
            holds: false,
            closed: false,
        };
        self.set_phase(now, Phase::Ending(state));
    }

    pub(super) fn close_before_start(&mut self, now: Tick, reason: String) {
        let anybody_trains = self.heard.values().any(|beat| beat.view.is_some());
        if self.view.is_none() && self.left.is_none() && !anybody_trains {
            self.outputs.push_back(Output::End {
                reason: reason.clone(),
                abstain: true,
            });
            self.close(now, reason, None);
        }
    }
}

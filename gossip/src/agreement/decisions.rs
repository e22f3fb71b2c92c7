//! What follows from who is alive and what all have said: the steward acts, everybody else notices who it is.
//!
//! For a member that is not the steward a decision costs O(log n), and O(n) when a view may have come to be agreed or while it
//! fetches the state; for the steward O(n).

use std::collections::BTreeMap;
use std::time::Duration;

use super::start::ready;
use super::{Agreement, Output, Phase};
use crate::ending::{self, Move};
use crate::ids::PeerId;
use crate::message::{Beat, Standing};
use crate::time::Tick;
use crate::view::{Contribution, Joiner, MAX_MEMBERS, Member, View};

/// The least that passes between two decisions: what a decision itself changed is for the next one.
const MOMENT: Duration = Duration::from_micros(1);
/// Among many peers decisions wait for more of the same, for this part of a beat's time.
const PAUSE_PART: u32 = 64;

impl Agreement {
    /// Something that decisions look at changed.
    pub(super) fn changed(&mut self, now: Tick) {
        let pause = match self.membership.are_few() {
            true => Duration::ZERO,
            false => self.membership.times().beat_every / PAUSE_PART,
        };
        self.due = self.due.min(now.max(self.decided_at + pause));
    }

    /// Lets the steward of this moment act, and everybody notice what changed.
    pub(super) fn decide(&mut self, now: Tick) {
        self.decided_at = now;
        self.due = Tick::NEVER;
        let next = self.decide_now(now);
        self.due = self.due.min(next).max(now + MOMENT);
    }

    /// Returns when time alone may change the outcome.
    fn decide_now(&mut self, now: Tick) -> Tick {
        if matches!(self.phase, Phase::Closed(_)) {
            // Peers that closed fall silent; that changes nothing any more.
            return Tick::NEVER;
        }
        let (steward, mut next) = self.lowest_alive(now);
        if steward != self.steward {
            self.steward = steward;
            // What was told to the steward before is told to this one.
            self.news |= !self.membership.are_few();
        }
        let Some(view) = &self.view else {
            return next.min(self.decide_first_view(now));
        };
        if !self.agreed && self.n_behind == 0 {
            let mut members = view.members.iter();
            if members.all(|member| self.is_member_alive(now, member)) {
                self.agreed = true;
                self.outputs.push_back(Output::Agreed);
            }
        }
        if matches!(self.phase, Phase::Syncing(_)) {
            let times = self.membership.times();
            let patient_until = self.adopted_at + times.silence_min + MOMENT;
            if now < patient_until {
                next = next.min(patient_until);
            } else if self.anybody_trains(now) {
                next = next.min(now + times.beat_every);
            } else {
                self.start_anew(now);
                return next;
            }
        }
        next = next.min(self.give_up_closing(now));
        next = next.min(self.abstain_when_late(now));
        if steward == self.me {
            next = next.min(self.act_as_steward(now));
        }
        next
    }

    /// The lowest member alive, or without a view the lowest peer alive; and when it may be another.
    fn lowest_alive(&self, now: Tick) -> (PeerId, Tick) {
        let lowest = match &self.view {
            Some(_) => self.alive_members(now).next(),
            None => self.membership.alive(now).next(),
        };
        match lowest.filter(|peer| *peer < self.me) {
            Some(peer) => (peer, self.membership.down_at(peer).unwrap_or(Tick::NEVER)),
            None => (self.me, Tick::NEVER),
        }
    }

    /// Whether any other member of the view trains, or did until the end.
    fn anybody_trains(&self, now: Tick) -> bool {
        let view = self.view.as_ref();
        view.is_some_and(|view| self.trains_any(now, view))
    }

    /// The same of any view.
    pub(super) fn trains_any(&self, now: Tick, view: &View) -> bool {
        let trains = |member: &Member| {
            let beat = self.heard.get(&member.peer);
            beat.is_some_and(|beat| matches!(beat.standing, Standing::Training | Standing::Ending))
                && self.is_member_alive(now, member)
        };
        view.members.iter().any(trains)
    }

    /// Whoever held the state is gone: starts anew from the best that is left.
    fn start_anew(&mut self, now: Tick) {
        if let Phase::Syncing(holds) = self.phase {
            self.leave_view();
            self.set_phase(now, Phase::Ready(holds));
            self.outputs.push_back(Output::Pause { lost_samples: 0 });
        }
    }

    /// Returns when time alone may change the outcome.
    fn act_as_steward(&mut self, now: Tick) -> Tick {
        let Some(view) = self.view.clone() else {
            return Tick::NEVER;
        };
        let mut gone: BTreeMap<PeerId, Contribution> = BTreeMap::new();
        let mut next = Tick::NEVER;
        for member in view.members.iter().filter(|member| member.peer != self.me) {
            if self.is_member_alive(now, member) {
                let down_at = self.membership.down_at(member.peer);
                next = next.min(down_at.unwrap_or(Tick::NEVER));
            } else {
                gone.insert(member.peer, self.work_of(member.peer, member.instance));
            }
        }
        let recent_until = self.adopted_at + self.membership.times().silence_min;
        if now < recent_until {
            next = next.min(recent_until);
        }
        // An end that has begun is for those who trained: whoever comes now is given the finished model. Where nobody has a state
        // there is nothing to come for.
        let has_none = matches!(self.phase, Phase::Syncing(_)) && !self.anybody_trains(now);
        let joiners = match self.is_over() || has_none {
            true => Vec::new(),
            false => self.joiners(now, &view, gone.len(), now < recent_until),
        };
        if !gone.is_empty() || !joiners.is_empty() {
            let mut change = view.change(
                self.next_stamp(&view),
                &gone,
                &joiners,
                self.admission_step(),
            );
            self.share_out(&view, &mut change);
            self.propose_change(now, change);
            return next;
        }
        let (change, look_at) = self.reshare(now, &view);
        if let Some(change) = change {
            self.propose_change(now, change);
        }
        next = next.min(look_at);
        self.decide_end(now);
        next
    }

    /// Who is ready and for whom there is room. `recent`: the view was adopted a short time ago.
    fn joiners(&self, now: Tick, view: &View, n_gone: usize, recent: bool) -> Vec<Joiner> {
        let mut room = MAX_MEMBERS.saturating_sub(view.members.len() - n_gone);
        let mut joiners = Vec::new();
        for (peer, beat) in &self.heard {
            let Some(joiner) = ready(*peer, beat) else {
                continue;
            };
            let member = view.member(*peer);
            let same = member.is_some_and(|member| member.instance == beat.instance);
            // A member that has not heard of its admission yet still says that it is ready.
            let is_admitted = same && (recent || beat.view == Some(view.stamp));
            if is_admitted || !self.membership.is_alive(now, *peer) {
                continue;
            }
            if member.is_none() {
                match room.checked_sub(1) {
                    Some(left) => room = left,
                    None => continue,
                }
            }
            joiners.push(joiner);
        }
        joiners
    }

    pub(super) fn work_of(&self, peer: PeerId, instance: u64) -> Contribution {
        let kept = self.instances.get(&(peer, instance)).copied();
        let heard = self
            .heard
            .get(&peer)
            .filter(|beat| beat.instance == instance);
        let heard = heard.map(|beat| beat.contribution);
        let both = kept.into_iter().chain(heard);
        both.max_by_key(|work| work.samples).unwrap_or_default()
    }

    fn decide_end(&mut self, now: Tick) {
        let Phase::Ending(mine) = &self.phase else {
            return;
        };
        let of = |peer: PeerId| match peer == self.me {
            true => Some(mine),
            false => self.heard.get(&peer)?.ending.as_ref(),
        };
        let states = self.alive_members(now).map(|peer| (peer, of(peer)));
        let is_elsewhere = |digest| !self.holders(now, digest).is_empty();
        match ending::steward_move(self.me, states, is_elsewhere) {
            Move::Wait => {}
            Move::Decide(decision) if mine.decision == Some(decision) => {}
            Move::Decide(decision) => self.adopt_decision(now, decision),
            Move::Close => self.close(now, mine.reason.clone(), mine.decision),
            // They will end, and this peer with what they have.
            Move::CloseEmpty if self.has_work_elsewhere(now) => {}
            Move::CloseEmpty => self.close(now, mine.reason.clone(), None),
        }
    }

    /// Whether a peer alive trains, or has trained and is about to start again.
    fn has_work_elsewhere(&self, now: Tick) -> bool {
        let works = |beat: &Beat| matches!(beat.standing, Standing::Training | Standing::Again(_));
        let mut others = self.heard.iter();
        others.any(|(peer, beat)| works(beat) && self.membership.is_alive(now, *peer))
    }

    /// A step that no member can have reached before it hears of the admission: twice as far as a beat's time carries.
    pub(super) fn admission_step(&self) -> u64 {
        self.progress
            .0
            .saturating_add(self.steps_per_beat.saturating_mul(2))
            .saturating_add(2)
    }
}

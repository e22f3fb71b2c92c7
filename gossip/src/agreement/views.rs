//! Views as one peer adopts and, when it is the steward, proposes them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Agreement, Output, Phase};
use crate::ending::{self, Move};
use crate::ids::{Digest, PeerId};
use crate::message::{Beat, Standing};
use crate::time::Tick;
use crate::view::{Contribution, Holding, Joiner, View};

impl Agreement {
    pub(super) fn on_view(&mut self, now: Tick, view: View) {
        if self.is_over() && !matches!(self.phase, Phase::Ending(_)) {
            return;
        }
        let mine = view
            .member(self.me)
            .filter(|member| member.instance == self.instance)
            .copied();
        match (&self.view, mine) {
            (None, Some(_)) if matches!(self.phase, Phase::Ready(_)) => self.adopt(now, view),
            (Some(held), _) if held.stamp == view.stamp || !view.wins_over(held) => {}
            (Some(_), Some(_)) => self.adopt(now, view),
            (Some(held), None) => {
                let lost = !view.descends_from(held.stamp);
                self.fall_out(now, lost);
            }
            (None, _) => {}
        }
    }

    /// This peer is not in the view that goes on: it joins again with a state that counts for nothing.
    pub(super) fn fall_out(&mut self, now: Tick, lost_side: bool) {
        if self.is_over() {
            return;
        }
        let lost_samples = if lost_side {
            self.progress.2.samples
        } else {
            0
        };
        self.view = None;
        self.agreed = false;
        self.outputs.push_back(Output::Pause { lost_samples });
        let holds = self.unique_holding();
        self.set_phase(now, Phase::Ready(holds));
    }

    /// A replica in mid-run equals no other one: a digest that nobody else can claim.
    pub(super) fn unique_holding(&self) -> Holding {
        let mut name = self.me.0.to_vec();
        name.extend(self.instance.to_le_bytes());
        name.extend(self.progress.0.to_le_bytes());
        Holding {
            samples: self.mesh_samples(),
            step: self.progress.0,
            digest: Digest::of(&name),
        }
    }

    pub(super) fn adopt(&mut self, now: Tick, view: View) {
        let Some(mine) = view.member(self.me).copied() else {
            return;
        };
        let continues = self.view.as_ref().is_some_and(|held| {
            view.descends_from(held.stamp)
                && held
                    .member(self.me)
                    .is_some_and(|before| before.since == mine.since)
        });
        for member in &view.members {
            let known = self
                .view
                .as_ref()
                .is_some_and(|held| held.contains(member.peer));
            if !known && member.peer != self.me {
                self.membership.expect(now, member.peer);
            }
        }
        let origin = view.origin;
        let number = view.stamp.number;
        self.outputs
            .push_back(Output::Adopted(Box::new(view.clone())));
        self.view = Some(view);
        self.adopted_at = now;
        self.agreed = false;
        self.next_beat = now;
        if continues || self.is_over() {
            return;
        }
        match self.phase.clone() {
            Phase::Ready(holds)
                if number == 1 && (holds.digest == origin.1.digest || origin.0 == self.me) =>
            {
                self.set_phase(now, Phase::Training);
                self.outputs.push_back(Output::Train);
            }
            phase => {
                let holds = match phase {
                    Phase::Ready(holds) | Phase::Syncing(holds) => holds,
                    _ => self.unique_holding(),
                };
                self.set_phase(now, Phase::Syncing(holds));
                self.outputs.push_back(Output::Sync {
                    from_step: mine.from_step,
                });
            }
        }
    }

    /// Lets the steward of this moment act, and everybody notice what changed.
    pub(super) fn decide(&mut self, now: Tick) {
        if matches!(self.phase, Phase::Closed(_)) {
            // Peers that closed fall silent; that changes nothing any more.
            return;
        }
        if matches!(self.phase, Phase::Ready(_)) && self.view.is_none() {
            return self.decide_first_view(now);
        }
        let Some(view) = &self.view else { return };
        let alive = self.alive_members(now);
        let steward = alive.first() == Some(&self.me);
        if !self.agreed {
            let holds = |peer: &PeerId| {
                *peer == self.me
                    || self
                        .heard
                        .get(peer)
                        .is_some_and(|beat| beat.view == Some(view.stamp))
            };
            if alive.len() == view.members.len() && alive.iter().all(holds) {
                self.agreed = true;
                self.outputs.push_back(Output::Agreed);
            }
        }
        if matches!(self.phase, Phase::Syncing(_))
            && now.since(self.adopted_at) > self.config.membership.silence_min
        {
            let anybody_trains = |peer: &PeerId| {
                self.heard.get(peer).is_some_and(|beat| {
                    matches!(beat.standing, Standing::Training | Standing::Ending)
                })
            };
            if !alive.iter().any(anybody_trains) {
                // Whoever held the state is gone: start anew from the best that is left.
                if let Phase::Syncing(holds) = self.phase.clone() {
                    self.view = None;
                    self.set_phase(now, Phase::Ready(holds));
                    self.outputs.push_back(Output::Pause { lost_samples: 0 });
                }
                return;
            }
        }
        if steward {
            self.steward(now, &alive);
        }
    }

    pub(super) fn decide_first_view(&mut self, now: Tick) {
        let Phase::Ready(mine) = self.phase else {
            return;
        };
        let alive = self.membership.alive(now);
        let others = || self.heard.iter().filter(|(peer, _)| alive.contains(peer));
        if others().any(|(_, beat)| beat.view.is_some()) {
            self.enough_since = None;
            return;
        }
        let mut joiners: Vec<Joiner> = others()
            .filter_map(|(peer, beat)| ready(*peer, beat))
            .collect();
        joiners.push(Joiner {
            peer: self.me,
            instance: self.instance,
            batch: self.config.batch,
            holds: mine,
        });
        let set: BTreeSet<PeerId> = joiners.iter().map(|joiner| joiner.peer).collect();
        if set != self.ready_set.0 {
            self.ready_set = (set, now);
        }
        if self.ready_set.0.len() < self.config.start_peers {
            self.enough_since = None;
            return;
        }
        let enough_since = *self.enough_since.get_or_insert(now);
        let preparing = others().any(|(_, beat)| beat.standing == Standing::Preparing);
        let settled = now.since(self.ready_set.1) >= self.config.settle;
        let patient = preparing && now.since(enough_since) < self.config.prepare_patience;
        if settled && !patient && self.ready_set.0.first() == Some(&self.me) {
            joiners.sort_by_key(|joiner| joiner.peer);
            if let Some(view) = View::first(self.me, &joiners) {
                self.propose(now, view);
            }
        }
    }

    pub(super) fn steward(&mut self, now: Tick, alive: &BTreeSet<PeerId>) {
        let Some(view) = &self.view else { return };
        let mut gone: BTreeMap<PeerId, Contribution> = BTreeMap::new();
        let mut joiners = Vec::new();
        for member in &view.members {
            if !alive.contains(&member.peer) {
                let work = self.instances.get(&(member.peer, member.instance));
                gone.insert(member.peer, work.copied().unwrap_or_default());
            }
        }
        // An end that has begun is for those who trained: whoever comes now is given the finished model.
        if !self.is_over() {
            let recent = now.since(self.adopted_at) < self.config.membership.silence_min;
            for (peer, beat) in self
                .heard
                .iter()
                .filter(|(peer, _)| self.membership.is_alive(now, **peer))
            {
                let same = view
                    .member(*peer)
                    .is_some_and(|member| member.instance == beat.instance);
                // A member that has not heard of its admission yet still says that it is ready.
                if !(same && (recent || beat.view == Some(view.stamp))) {
                    joiners.extend(ready(*peer, beat));
                }
            }
        }
        if !gone.is_empty() || !joiners.is_empty() {
            let next = view.successor(self.me, &gone, &joiners, self.admission_step());
            return self.propose(now, next);
        }
        let Phase::Ending(mine) = &self.phase else {
            return;
        };
        let of = |peer: &PeerId| {
            let state = if *peer == self.me {
                Some(mine)
            } else {
                self.heard.get(peer)?.ending.as_ref()
            };
            state.cloned()
        };
        let states = alive.iter().map(|peer| (*peer, of(peer))).collect();
        match ending::steward_move(self.me, &states) {
            Move::Wait => {}
            Move::Decide(decision) if mine.decision == Some(decision) => {}
            Move::Decide(decision) => self.adopt_decision(now, decision),
            Move::Close => self.close(now, mine.reason.clone(), mine.decision),
            Move::CloseEmpty => self.close(now, mine.reason.clone(), None),
        }
    }

    /// A step that no member can have reached before it hears of the admission: twice as far as a beat's time carries.
    pub(super) fn admission_step(&self) -> u64 {
        self.progress
            .0
            .saturating_add(self.steps_per_beat.saturating_mul(2))
            .saturating_add(2)
    }

    pub(super) fn propose(&mut self, now: Tick, view: View) {
        let mut to: BTreeSet<PeerId> = view.members.iter().map(|member| member.peer).collect();
        to.extend(
            self.view
                .iter()
                .flat_map(|held| held.members.iter().map(|member| member.peer)),
        );
        to.remove(&self.me);
        self.outputs.extend(
            to.into_iter()
                .map(|peer| Output::SendView(peer, Box::new(view.clone()))),
        );
        self.adopt(now, view);
    }
}

fn ready(peer: PeerId, beat: &Beat) -> Option<Joiner> {
    match beat.standing {
        Standing::Ready(holds) => Some(Joiner {
            peer,
            instance: beat.instance,
            batch: beat.batch,
            holds,
        }),
        _ => None,
    }
}

//! Views as one peer adopts and, when it is the steward, proposes them.

use std::sync::Arc;

use super::{Agreement, Output, Phase};
use crate::ids::{Digest, PeerId};
use crate::message::Beat;
use crate::time::Tick;
use crate::view::{Change, Holding, Member, Stamp, View};

impl Agreement {
    pub(super) fn on_view(&mut self, now: Tick, view: Arc<View>) {
        if self.is_over() && !matches!(self.phase, Phase::Ending(_)) {
            return;
        }
        let mine = view
            .member(self.me)
            .filter(|member| member.instance == self.instance)
            .copied();
        match (&self.view, mine) {
            (None, Some(_)) if matches!(self.phase, Phase::Ready(_)) => {
                if self.is_of_use(now, &view) {
                    self.adopt(now, view);
                }
            }
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
        let lost_samples = match lost_side {
            true => self.mesh_samples().saturating_sub(self.parted_at),
            false => 0,
        };
        let holds = match self.phase {
            Phase::Syncing(holds) => holds,
            _ => self.unique_holding(),
        };
        self.leave_view();
        self.outputs.push_back(Output::Pause { lost_samples });
        self.set_phase(now, Phase::Ready(holds));
    }

    /// Is in no view from here on.
    pub(super) fn leave_view(&mut self) {
        self.left = self.view.take().or(self.left.take());
        self.set_view(None);
    }

    /// A name for the view after `view` that this peer has given no other one, whichever line it was in before.
    pub(super) fn next_stamp(&self, view: &View) -> Stamp {
        let number = view.stamp.number.max(self.highest).saturating_add(1);
        Stamp {
            number,
            steward: self.me,
        }
    }

    /// Whether there is a state to be had in `view`. Members who all wait for one would tell each other of it for ever.
    fn is_of_use(&self, now: Tick, view: &View) -> bool {
        let left = self.left.as_ref().map(|left| left.stamp);
        (view.is_start() && left != Some(view.stamp)) || self.trains_any(now, view)
    }

    /// A view of another line counts only where `from` last said that it is in it: one that was long on its way may be given up, and
    /// two sides that compare other views than they hold might each fall out in favour of the other. Of many, beats come too seldom
    /// to tell.
    pub(super) fn is_held_by(&self, from: PeerId, view: &View) -> bool {
        let is_of_this_line = |held: &Arc<View>| view.descends_from(held.stamp);
        let says_so = |beat: &Arc<Beat>| beat.view == Some(view.stamp);
        !self.membership.are_few()
            || self.view.as_ref().is_none_or(is_of_this_line)
            || self.heard.get(&from).is_some_and(says_so)
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

    pub(super) fn adopt(&mut self, now: Tick, view: Arc<View>) {
        let Some(mine) = view.member(self.me).copied() else {
            return;
        };
        let continues = self.view.as_ref().is_some_and(|held| {
            view.descends_from(held.stamp)
                && held
                    .member(self.me)
                    .is_some_and(|before| before.since == mine.since)
        });
        let held = self.view.clone();
        let known = |peer| held.as_ref().is_some_and(|held| held.contains(peer));
        for member in &view.members {
            if member.peer == self.me || known(member.peer) {
                continue;
            }
            // One that was met as this very process and is not connected is lost, not late; unless a network partition was between.
            let met = continues
                && self
                    .heard
                    .get(&member.peer)
                    .is_some_and(|beat| beat.instance == member.instance);
            if !met {
                self.membership.expect(now, member.peer);
            }
        }
        // The other side of a partition goes on: what this side did since is not in its state.
        let lost_side = held
            .as_ref()
            .is_some_and(|held| !view.descends_from(held.stamp));
        if lost_side && !self.is_over() {
            let lost_samples = self.mesh_samples().saturating_sub(self.parted_at);
            self.outputs.push_back(Output::Pause { lost_samples });
        }
        let origin = view.origin;
        let is_start = view.is_start();
        self.highest = self.highest.max(view.stamp.number);
        if held.is_some_and(|held| held.members.iter().any(|m| !view.contains(m.peer))) {
            self.parted_at = self.mesh_samples();
        }
        self.outputs.push_back(Output::Adopted(view.clone()));
        self.set_view(Some(view));
        self.adopted_at = now;
        self.changed(now);
        // Among many, next beats say who holds a view: told at once, each view would cost as many messages as pairs.
        self.news |= self.membership.are_few();
        if continues || self.is_over() {
            return;
        }
        match self.phase.clone() {
            Phase::Ready(holds)
                if is_start && (holds.digest == origin.1.digest || origin.0 == self.me) =>
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

    /// Proposes a view that all its members start in.
    pub(super) fn propose(&mut self, now: Tick, view: View) {
        let view = Arc::new(view);
        self.send_view(&view, &view.members);
        self.adopt(now, view);
    }

    /// Proposes the next view. Among few peers all are sent it; of many only those that are new to it, and the others what
    /// changed: a whole list for everybody would cost the square of their number.
    pub(super) fn propose_change(&mut self, now: Tick, change: Change) {
        let Some(held) = self.view.clone() else {
            return;
        };
        let Some(view) = held.changed_by(&change).map(Arc::new) else {
            return;
        };
        if self.membership.are_few() {
            let gone = held.members.iter().filter(|m| !view.contains(m.peer));
            let all: Vec<Member> = view.members.iter().chain(gone).copied().collect();
            self.send_view(&view, &all);
        } else {
            self.send_view(&view, &change.admitted);
            let change = Arc::new(change);
            let me = self.me;
            let is_new = |peer| change.admitted.iter().any(|member| member.peer == peer);
            let others = held.members.iter().map(|member| member.peer);
            self.outputs.extend(
                others
                    .filter(|peer| *peer != me && !is_new(*peer))
                    .map(|peer| Output::SendChange(peer, change.clone())),
            );
        }
        self.adopt(now, view);
    }

    fn send_view(&mut self, view: &Arc<View>, to: &[Member]) {
        let others = to.iter().map(|member| member.peer);
        let others = others.filter(|peer| *peer != self.me);
        self.outputs
            .extend(others.map(|peer| Output::SendView(peer, view.clone())));
    }
}

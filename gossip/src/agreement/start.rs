//! The first view of a job: who proposes it, and when.
//!
//! A job that has begun needs no number of peers to go on. Members may all have fallen out of their views: each side of a network
//! partition in favour of the other, or because whoever had the state is gone. Those start again together, in a view of the line
//! that they left, from the newest state that is left; the lowest of them proposes it.

use std::collections::BTreeSet;

use super::{Agreement, Phase};
use crate::ids::PeerId;
use crate::message::{Beat, Standing};
use crate::time::Tick;
use crate::view::{Holding, Joiner, Member, View};

/// Who could start together.
#[derive(Debug)]
pub(super) struct Start {
    /// Other peers whose last beat said that they are ready; silent ones included.
    ready: BTreeSet<PeerId>,
    /// When that set, or the own readiness, last changed.
    changed_at: Tick,
    enough_since: Option<Tick>,
}

impl Start {
    pub(super) fn new(now: Tick) -> Self {
        Self {
            ready: BTreeSet::new(),
            changed_at: now,
            enough_since: None,
        }
    }

    pub(super) fn heard(&mut self, now: Tick, peer: PeerId, is_ready: bool) {
        let changed = match is_ready {
            true => self.ready.insert(peer),
            false => self.ready.remove(&peer),
        };
        if changed {
            self.changed_at = now;
        }
    }

    pub(super) fn lost(&mut self, now: Tick, peer: PeerId) {
        self.heard(now, peer, false);
    }

    pub(super) fn changed(&mut self, now: Tick) {
        self.changed_at = now;
    }
}

impl Agreement {
    /// Returns when time alone may change the outcome.
    pub(super) fn decide_first_view(&mut self, now: Tick) -> Tick {
        let Phase::Ready(mine) = self.phase else {
            return Tick::NEVER;
        };
        let again = |peer: &PeerId| {
            let beat = self.heard.get(peer);
            beat.is_some_and(|beat| matches!(beat.standing, Standing::Again(_)))
        };
        let is_again = self.left.is_some();
        if !is_again && self.start.ready.len() + 1 < self.config.start_peers {
            self.start.enough_since = None;
            return Tick::NEVER;
        }
        // Who starts again goes before who starts.
        let is_before = |peer: &PeerId| match (again(peer), is_again) {
            (true, false) => true,
            (false, true) => false,
            _ => *peer < self.me,
        };
        let before = self.start.ready.iter().filter(|peer| is_before(peer));
        let mut alive_before = before.filter(|peer| self.membership.is_alive(now, **peer));
        if let Some(proposer) = alive_before.next() {
            self.start.enough_since.get_or_insert(now);
            return self.membership.down_at(*proposer).unwrap_or(Tick::NEVER);
        }
        self.propose_first(now, mine)
    }

    fn propose_first(&mut self, now: Tick, mine: Holding) -> Tick {
        let alive = |peer: &PeerId| self.membership.is_alive(now, *peer);
        let others = || self.heard.iter().filter(|(peer, _)| alive(peer));
        // Silence of anybody may leave this peer as the proposer, or with too few.
        let next = others()
            .filter_map(|(peer, _)| self.membership.down_at(*peer))
            .min()
            .unwrap_or(Tick::NEVER);
        if others().any(|(_, beat)| beat.view.is_some()) {
            self.start.enough_since = None;
            return next;
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
        if self.left.is_none() && joiners.len() < self.config.start_peers {
            self.start.enough_since = None;
            return next;
        }
        let preparing = others().any(|(_, beat)| beat.standing == Standing::Preparing);
        let patience = self.config.prepare_patience;
        let patient_until = *self.start.enough_since.get_or_insert(now) + patience;
        let settled_at = self.start.changed_at + self.config.settle;
        if preparing && self.left.is_none() && now < patient_until {
            return next.min(patient_until);
        }
        if now < settled_at {
            return next.min(settled_at);
        }
        joiners.sort_by_key(|joiner| joiner.peer);
        let view = match &self.left {
            Some(left) => self.again(left, &joiners),
            None => View::first(self.me, &joiners),
        };
        if let Some(mut view) = view {
            self.share_out_first(&mut view);
            self.propose(now, view);
        }
        next
    }

    fn again(&self, left: &View, joiners: &[Joiner]) -> Option<View> {
        let is_there = |member: &&Member| {
            let mut joiners = joiners.iter();
            joiners.any(|joiner| (joiner.peer, joiner.instance) == (member.peer, member.instance))
        };
        let gone = left.members.iter().filter(|member| !is_there(member));
        let gone = gone.map(|member| (member.peer, self.work_of(member.peer, member.instance)));
        left.start_again(self.next_stamp(left), &gone.collect(), joiners)
    }
}

pub(super) fn ready(peer: PeerId, beat: &Beat) -> Option<Joiner> {
    beat.standing.holding().map(|holds| Joiner {
        peer,
        instance: beat.instance,
        batch: beat.batch,
        holds,
    })
}

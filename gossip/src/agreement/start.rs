//! The first view of a job: who proposes it, and when.

use std::collections::BTreeSet;

use super::{Agreement, Phase};
use crate::ids::PeerId;
use crate::message::{Beat, Standing};
use crate::time::Tick;
use crate::view::{Holding, Joiner, View};

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
        if self.start.ready.len() + 1 < self.config.start_peers {
            self.start.enough_since = None;
            return Tick::NEVER;
        }
        let below = self.start.ready.range(..self.me);
        let mut alive_below = below.filter(|peer| self.membership.is_alive(now, **peer));
        if let Some(proposer) = alive_below.next() {
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
        if joiners.len() < self.config.start_peers {
            self.start.enough_since = None;
            return next;
        }
        let preparing = others().any(|(_, beat)| beat.standing == Standing::Preparing);
        let patience = self.config.prepare_patience;
        let patient_until = *self.start.enough_since.get_or_insert(now) + patience;
        let settled_at = self.start.changed_at + self.config.settle;
        if preparing && now < patient_until {
            return next.min(patient_until);
        }
        if now < settled_at {
            return next.min(settled_at);
        }
        joiners.sort_by_key(|joiner| joiner.peer);
        if let Some(mut view) = View::first(self.me, &joiners) {
            self.share_out_first(&mut view);
            self.propose(now, view);
        }
        next
    }
}

pub(super) fn ready(peer: PeerId, beat: &Beat) -> Option<Joiner> {
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

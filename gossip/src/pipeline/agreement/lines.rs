//! What can be recovered: the newest line with enough copies, and what is of no use any more.

use super::super::copies::{Copies, Held, Holding};
use super::super::message::{Standing, View};
use super::{Agreement, Output};
use crate::ids::PeerId;

impl Agreement {
    /// What all peers hold that are alive.
    pub(super) fn copies(&self) -> Copies<'_> {
        // Of others, a peer that does not know yet that work was undone holds what is no part of it any more.
        let mine = self.view.as_ref().map(|view| view.stamp);
        let others = self.heard.iter().filter(|(peer, heard)| {
            self.is_alive(**peer) && (self.config.is_exact || heard.beat.view == mine)
        });
        let others = others.map(|(peer, heard)| (*peer, &heard.holding));
        Copies::new(
            self.config.n_blocks,
            others.chain([(self.me, &self.own.holding)]),
        )
    }

    /// Finds the newest line with enough copies, and forgets what lies before the one before it.
    pub(super) fn count_copies(&mut self) {
        // What it kept on disk is not known yet.
        if self.own.standing == Standing::Preparing {
            return;
        }
        let members = self.view.as_ref().map_or(1, |view| {
            let alive = |member: &&PeerId| **member == self.me || self.is_alive(**member);
            view.members.iter().filter(alive).count()
        });
        let safe = self
            .copies()
            .newest_line((1 + self.config.copies).min(members.max(1)));
        if safe > self.safe {
            self.safe_before = self.safe;
            self.safe = safe;
            self.outputs.push_back(Output::Safe(safe));
        }
        let needed = match &self.view {
            Some(view) if !self.is_in_effect(view) => view.from,
            _ => u64::MAX,
        };
        let keep_from = self.safe_before.min(needed);
        let but = self.held_longer(keep_from);
        if keep_from > self.forgotten || but != self.held_longer {
            self.forgotten = keep_from;
            self.held_longer.clone_from(&but);
            self.own.holding.retain(|step, block| {
                let is_named = |held: &Held| held.step == step && held.blocks().contains(&block);
                step >= keep_from || but.iter().any(is_named)
            });
            self.outputs.push_back(Output::Forget {
                before: keep_from,
                but,
            });
            self.is_news = true;
        }
    }

    /// Steps that a host of `view` has made, the line at which it begins at least.
    pub(super) fn reached(&self, view: &View) -> u64 {
        let reached = view.plan.hosts().map(|host| match host == self.me {
            true => self.own.step,
            false => self.heard.get(&host).map_or(0, |heard| heard.beat.step),
        });
        reached.max().unwrap_or(0).max(view.from)
    }

    /// Whether a copy that comes now is held: the step counts still, and all of that block is not dropped.
    pub fn is_of_use(&self, step: u64, block: u16) -> bool {
        let is_named = |held: &Held| held.step == step && held.blocks().contains(&block);
        step >= self.forgotten || self.held_longer.iter().any(is_named)
    }

    /// What this peer holds, to give to others.
    pub fn holding(&self) -> &Holding {
        &self.own.holding
    }

    /// The recovery point: the newest line that would survive the loss of as many peers as there are to be copies.
    pub fn safe(&self) -> u64 {
        self.safe
    }

    /// How many peers alive hold a copy of every block at the newest line, at least.
    pub fn fewest_copies(&self) -> usize {
        let copies = self.copies();
        copies.fewest(copies.newest_line(1))
    }
}

//! Global replication: more rarely than copies along the chain, the whole model goes to peers with room, so that training goes
//! on even where a stage and all who keep copies of it are lost at once (FTPipeHD, section on weight replication; there the
//! central node is the only one that gets it).
//!
//! ```text
//! steward: names a safe line ─ beats ─▶ hosts: hold their blocks of it ─▶ peers with room: fetch what they lack, block by block
//! ```
//!
//! Nobody is told what to do: each peer with room fetches when nothing else is to be fetched, and keeps the newest line that it
//! holds whole until it holds a newer one. The steward's beat names the line; the next steward goes on with it.

use super::super::copies::{Held, Holding};
use super::super::message::Standing;
use super::Agreement;
use crate::ids::PeerId;
use crate::time::Tick;

/// Collecting takes one part of the time where the job does not say how often, and this many it does not.
const REST: u32 = 15;
/// Peers that take this many times as long as the first are no longer waited for.
const LATE: u32 = 4;

#[derive(Debug, Default)]
pub(super) struct Global {
    /// The line that is collected, or was last; 0: none yet.
    pub(super) line: u64,
    named: Tick,
    /// When the first peer was seen to hold it whole, and when nobody was waited for any more.
    first: Option<Tick>,
    done: Option<Tick>,
    /// Blocks of the own stage at that line: others fetch them.
    pinned: Option<Held>,
}

impl Agreement {
    /// Follows the line that the steward names, or names one.
    pub(super) fn replicate(&mut self) {
        let steward = self.steward();
        if steward == Some(self.me) {
            if self.is_line_due() {
                self.collect(self.safe);
            }
        } else if let Some(named) = steward.and_then(|steward| self.heard.get(&steward))
            && let Some(line) = named.beat.global
            && line != self.global.line
        {
            self.collect(line);
        }
        self.watch_collectors();
    }

    fn collect(&mut self, line: u64) {
        let view = self.view.as_ref();
        let blocks = view.and_then(|view| view.plan.blocks_of(self.me));
        let pinned = blocks.filter(|blocks| !blocks.is_empty());
        let pinned = pinned.map(|blocks| Held {
            step: line,
            first: blocks.start,
            end: blocks.end,
        });
        self.global = Global {
            line,
            named: self.now,
            pinned,
            ..Global::default()
        };
        self.is_news = true;
    }

    /// Work beyond `step` was undone and is made again differently: so is a line beyond it.
    pub(super) fn undo_global(&mut self, step: u64) {
        if self.global.line > step {
            self.global = Global::default();
        }
    }

    /// Whether this peer, the steward, is to name the newest safe line.
    fn is_line_due(&self) -> bool {
        let Global {
            line, named, done, ..
        } = self.global;
        let is_idle = self.closed
            || self.own.standing != Standing::Ready
            || self.is_trained()
            || self.is_ignorant()
            || !self.is_running();
        if is_idle || self.safe <= line {
            return false;
        }
        let is_time = match (self.config.global_every, done) {
            (Some(0), _) => false,
            (Some(every), _) if line == 0 => self.safe >= every,
            (None, _) if line == 0 => true,
            (_, None) => false,
            (Some(every), Some(_)) => self.safe - line >= every,
            (None, Some(done)) => self.now.since(done) >= REST * done.since(named),
        };
        let lacks = |holding: &Holding| self.newest_whole(holding) < self.safe;
        is_time && self.collectors().any(|(_, holding)| lacks(holding))
    }

    /// Notes when the line is where it is to be.
    fn watch_collectors(&mut self) {
        let line = self.global.line;
        if line == 0 || self.global.done.is_some() {
            return;
        }
        let (mut n, mut n_whole) = (0, 0);
        for (_, holding) in self.collectors() {
            n += 1;
            n_whole += usize::from(self.newest_whole(holding) >= line);
        }
        let (now, named) = (self.now, self.global.named);
        if n_whole > 0 {
            self.global.first.get_or_insert(now);
        }
        let is_late = self
            .global
            .first
            .is_some_and(|first| now.since(named) > LATE * first.since(named));
        let is_lost = self.copies().fewest(line) == 0;
        if n_whole == n || is_late || is_lost {
            self.global.done = Some(now);
            self.global.pinned = None;
        }
    }

    /// Peers alive that have room for the whole model, with what they hold.
    fn collectors(&self) -> impl Iterator<Item = (PeerId, &Holding)> {
        let others = self.heard.iter().filter(|(peer, heard)| {
            heard.beat.has_room && heard.beat.standing == Standing::Ready && self.is_alive(**peer)
        });
        let others = others.map(|(peer, heard)| (*peer, &heard.holding));
        let own = self.own.has_room && self.own.standing == Standing::Ready;
        others.chain(own.then_some((self.me, &self.own.holding)))
    }

    /// The newest line of which `holding` has every block; 0 where there is none.
    fn newest_whole(&self, holding: &Holding) -> u64 {
        let mut newest_first = holding.steps().rev();
        let is_whole = |step: &u64| holding.has_all(*step, 0..self.config.n_blocks);
        newest_first.find(is_whole).unwrap_or(0)
    }

    /// What this peer is to fetch of the line, if anything.
    pub(super) fn collecting(&self) -> Option<u64> {
        let line = self.global.line;
        let lacks = || self.newest_whole(&self.own.holding) < line;
        (self.own.has_room && lacks()).then_some(line)
    }

    /// Copies older than `before` that are held all the same.
    pub(super) fn held_longer(&self, before: u64) -> Vec<Held> {
        let all = |step| Held {
            step,
            first: 0,
            end: self.config.n_blocks,
        };
        // What the job starts from, where that was given, is a whole line too.
        let whole = Some(self.newest_whole(&self.own.holding)).filter(|step| {
            *step > 0 || (!self.config.is_seeded && self.own.holding.has_all(0, all(0).blocks()))
        });
        let line = match self.collecting() {
            Some(line) => Some(all(line)),
            None => self.global.pinned.clone(),
        };
        let held = whole.map(all).into_iter().chain(line);
        held.filter(|held| held.step < before).collect()
    }

    /// The newest line that a peer alive holds whole, 0 where nobody holds one, and how many such peers there are.
    pub fn whole_line(&self) -> (u64, usize) {
        let others = self.heard.iter().filter(|(peer, _)| self.is_alive(**peer));
        let others = others.map(|(_, heard)| &heard.holding);
        let holdings = others.chain([&self.own.holding]);
        let lines: Vec<u64> = holdings.map(|holding| self.newest_whole(holding)).collect();
        let newest = lines.iter().copied().max().unwrap_or(0);
        match newest {
            0 => (0, 0),
            _ => (newest, lines.iter().filter(|line| **line == newest).count()),
        }
    }
}

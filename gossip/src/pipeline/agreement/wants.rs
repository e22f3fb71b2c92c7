//! Which copies this peer fetches: first what training waits for, then its part of the replica chains, then, where it has room,
//! what it lacks of a whole line; at the end the whole model.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use super::super::chain;
use super::super::links;
use super::super::message::Standing;
use super::super::plan::Blocks;
use super::lead::UNMEASURED_RATE;
use super::{Agreement, Output, Want};
use crate::ids::PeerId;
use crate::time::Tick;

/// Fetches under way at once: two that training waits for, or one that it does not, and beside that what is left of one of a whole
/// line.
const URGENT_AT_ONCE: usize = 2;
/// Pause before something that could not be had is asked for again.
const AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(super) struct Wants {
    under_way: Vec<Want>,
    /// Until when a step's blocks are not asked for, by first block.
    put_off: BTreeMap<(u64, u16), Tick>,
}

impl Wants {
    pub(super) fn came(&mut self, step: u64, blocks: &Blocks) {
        self.under_way
            .retain(|want| want.step != step || want.blocks != *blocks);
    }

    pub(super) fn failed(&mut self, now: Tick, want: &Want) {
        self.came(want.step, &want.blocks);
        self.put_off.retain(|_, until| *until > now);
        self.put_off
            .insert((want.step, want.blocks.start), now + AGAIN);
    }

    fn is_put_off(&self, now: Tick, want: &Want) -> bool {
        self.put_off
            .get(&(want.step, want.blocks.start))
            .is_some_and(|until| *until > now)
    }

    fn overlaps(&self, want: &Want) -> bool {
        let overlap = |other: &Want| {
            // One that nobody waits for holds up none that is waited for.
            (want.is_global || !other.is_global)
                && other.step == want.step
                && other.blocks.start < want.blocks.end
                && want.blocks.start < other.blocks.end
        };
        self.under_way.iter().any(overlap)
    }
}

impl Agreement {
    pub(super) fn want(&mut self) {
        if self.own.standing != Standing::Ready {
            return;
        }
        // One whose holder is dead is not waited for; should it come all the same, it is taken.
        let mut wants = std::mem::take(&mut self.wants);
        let is_alive = |want: &Want| {
            want.holders
                .first()
                .is_some_and(|first| self.is_alive(*first))
        };
        wants.under_way.retain(is_alive);
        self.wants = wants;
        for want in self.wanted() {
            let (urgent, patient): (Vec<&Want>, Vec<&Want>) =
                self.wants.under_way.iter().partition(|want| want.is_urgent);
            let has_room = match want.is_urgent {
                true => urgent.len() < URGENT_AT_ONCE,
                false => {
                    let mut patient = patient.iter();
                    urgent.is_empty() && patient.all(|other| other.is_global && !want.is_global)
                }
            };
            if has_room && !self.wants.overlaps(&want) && !self.wants.is_put_off(self.now, &want) {
                self.wants.under_way.push(want.clone());
                self.outputs.push_back(Output::Fetch(want));
            }
        }
    }

    fn wanted(&self) -> Vec<Want> {
        let mut wanted = Vec::new();
        let Some(view) = &self.view else {
            return wanted;
        };
        if let Some(blocks) = view.plan.blocks_of(self.me)
            && !self.own.in_place
        {
            let lacks: Vec<Want> = self.lacking(view.from, blocks.clone(), true);
            if lacks.is_empty() {
                // The line is still to come: what is fetched now need not be fetched whole then.
                wanted.extend(
                    blocks
                        .filter_map(|block| self.newer(block, view.from))
                        .fold(Vec::new(), join),
                );
            }
            wanted.extend(lacks);
        }
        if let Some(last) = self
            .own
            .last_step
            .filter(|last| *last > 0 && self.copies().fewest(*last) > 0)
        {
            wanted.extend(self.lacking(last, 0..self.config.n_blocks, true));
            return wanted;
        }
        // Copies beyond that are of work that was undone: they are held, but the line that counts is made anew.
        let reached = self.reached(view);
        // A peer that came since keeps copies like any standby.
        let mut members = view.members.clone();
        if let Err(at) = members.binary_search(&self.me) {
            members.insert(at, self.me);
        }
        for blocks in chain::duties(&view.plan, &members, self.me, self.config.copies) {
            wanted.extend(
                blocks
                    .filter_map(|block| self.newer(block, reached))
                    .fold(Vec::new(), join),
            );
        }
        if let Some(line) = self.collecting().filter(|_| wanted.is_empty()) {
            let lacks =
                (0..self.config.n_blocks).filter(|block| !self.own.holding.has(line, *block));
            let parts = lacks.filter_map(|block| self.want_of(line, block, false));
            wanted.extend(parts.map(|want| Want {
                is_global: true,
                ..want
            }));
        }
        wanted
    }

    /// Those of `blocks` that are not held at `step` and that others hold, run by run of equal holders.
    fn lacking(&self, step: u64, blocks: Blocks, is_urgent: bool) -> Vec<Want> {
        let lacks = blocks.filter(|block| !self.own.holding.has(step, *block));
        let want = lacks.filter_map(|block| self.want_of(step, block, is_urgent));
        want.fold(Vec::new(), join)
    }

    /// The newest copy of `block` that anybody holds, up to `most`, where it is newer than the own.
    fn newer(&self, block: u16, most: u64) -> Option<Want> {
        let newest = self.copies().newest_until(block, most);
        (newest > self.own.holding.newest_until(block, most))
            .then(|| self.want_of(newest, block, false))
            .flatten()
    }

    fn want_of(&self, step: u64, block: u16, is_urgent: bool) -> Option<Want> {
        let hosts_it = |peer: PeerId| {
            let view = self.view.as_ref();
            view.is_some_and(|view| view.plan.hosts_block(peer, block))
        };
        let copies = self.copies();
        let mut holders: Vec<PeerId> = copies
            .holders(step, block)
            .filter(|peer| *peer != self.me)
            .collect();
        // The host first, unless the link from another carries about twice as much.
        let octave = |peer: PeerId| {
            let profile = self
                .heard
                .get(&peer)
                .and_then(|heard| heard.profile.as_ref());
            let rate = profile.and_then(|profile| links::measured(&profile.rates, self.me));
            Reverse(rate.unwrap_or(UNMEASURED_RATE).log2() as i32)
        };
        holders.sort_by_key(|peer| (octave(*peer), !hosts_it(*peer), *peer));
        let end = block.checked_add(1)?;
        (!holders.is_empty()).then_some(Want {
            step,
            blocks: block..end,
            holders,
            is_urgent,
            is_global: false,
        })
    }
}

/// Joins neighbouring blocks that the same peers hold.
fn join(mut wants: Vec<Want>, want: Want) -> Vec<Want> {
    match wants.last_mut() {
        Some(last)
            if last.blocks.end == want.blocks.start
                && last.step == want.step
                && last.holders == want.holders =>
        {
            last.blocks.end = want.blocks.end;
        }
        _ => wants.push(want),
    }
    wants
}

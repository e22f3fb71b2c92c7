//! What is sent at a commit: every group packs what all its links carry until the next one. Links that cannot take it, twice in a row,
//! leave the group; the others wait once. When they keep up again they come back.

use std::time::Duration;

use super::Asynchronous;
use crate::exchange::choice::{Choice, Moment};
use crate::exchange::residual::CALM;
use crate::exchange::shared::{Shared, join};
use crate::gradient::fit::{Measure, Wanted};
use crate::gradient::pack::PackError;
use crate::gradient::selection::{Order, Selection};
use crate::gradient::values::Values;
use crate::ids::PeerId;
use crate::time::Tick;

/// The time between two commits before there were two.
const FIRST_INTERVAL: Duration = Duration::from_millis(250);
/// Commits in a row that a link holds its group up before it leaves it.
const PATIENCE: u32 = 2;
/// Bytes of an entry of a sparse f32 packet, about.
const SPARSE_BYTES: usize = 6;

/// A link that carries so many times what the others are sent gains on them when it is told exact values, which take twice the bytes.
const AHEAD: usize = 4;
/// Least share of entries of a packet that catches up.
const LEAST: f32 = 1e-4;

/// A link at a commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    peer: PeerId,
    budget: usize,
    has_room: bool,
}

/// Why a group is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Occasion<'a> {
    /// The parameters, if there are any.
    Commit(&'a [f32]),
    /// There may be room for what could not be told before. `parts`: it was long enough that those without room leave.
    Room { parts: bool },
}

impl Asynchronous {
    /// Sends what each group's links may carry now; without room the residual waits for the next commit.
    pub(super) fn send_all(
        &mut self,
        shared: &mut Shared,
        now: Tick,
        occasion: Occasion<'_>,
    ) -> Result<(), PackError> {
        let mut names = std::mem::take(&mut self.names);
        let mut looks = std::mem::take(&mut self.looks);
        names.clear();
        names.extend(self.residuals.names());
        let send = |group: &u32| self.look_at(shared, now, *group, occasion, &mut looks);
        let outcome = names.iter().try_for_each(send);
        (self.names, self.looks) = (names, looks);
        outcome
    }

    /// Sends to the links of a group, unless one of them holds it up.
    fn look_at(
        &mut self,
        shared: &mut Shared,
        now: Tick,
        group: u32,
        occasion: Occasion<'_>,
        looks: &mut Vec<Look>,
    ) -> Result<(), PackError> {
        let interval = self.interval.unwrap_or(FIRST_INTERVAL);
        looks.clear();
        for peer in self.residuals.links(group) {
            let Some(link) = self.links.get_mut(&peer) else {
                continue;
            };
            link.offer(shared, now, peer);
            looks.push(Look {
                peer,
                has_room: link.has_room(shared, now, peer),
                budget: (shared.meters.entry(peer).or_default()).budget(now, interval),
            });
        }
        let budgets = |looks: &[Look]| looks.iter().map(|look| look.budget).max().unwrap_or(0);
        // A link with less than half of what the others have holds them up as well.
        let wanted = shared.most_bytes().min(budgets(looks));
        let holds_up = |look: &Look| !look.has_room || look.budget < wanted / 2;
        if let Occasion::Room { parts } = occasion {
            let parted = parts && self.part(group, looks, |look| !look.has_room);
            if !parted && !looks.iter().all(|look| look.has_room) {
                return Ok(());
            }
        } else if self.wait_for(group, looks, holds_up) {
            for look in looks.iter() {
                shared.stats.entry(look.peer).or_default().held_back += 1;
            }
            return Ok(());
        }
        let budget = looks.iter().map(|look| look.budget).min().unwrap_or(0);
        if self.catches_up(shared, now, group, budget)? {
            return Ok(());
        }
        self.send(shared, now, group, budget, occasion)
    }

    /// Whether the group waits. Links that held it up for too long leave it, and `looks`.
    fn wait_for(
        &mut self,
        group: u32,
        looks: &mut Vec<Look>,
        holds_up: impl Fn(&Look) -> bool,
    ) -> bool {
        let mut is_patient = false;
        for look in looks.iter() {
            if let Some(link) = self.links.get_mut(&look.peer) {
                link.held_up = match holds_up(look) {
                    true => link.held_up + 1,
                    false => 0,
                };
                is_patient |= (1..PATIENCE).contains(&link.held_up);
            }
        }
        let links = std::mem::take(&mut self.links);
        self.part(group, looks, |look| {
            let link = links.get(&look.peer);
            link.is_some_and(|link| link.held_up >= PATIENCE)
        });
        self.links = links;
        // One that is only slow and cannot leave sets the pace.
        let waits = is_patient || looks.iter().any(|look| !look.has_room);
        if let Some(residual) = self.residuals.get_mut(group) {
            residual.calm = if waits { 0 } else { residual.calm + 1 };
        }
        waits
    }

    /// Those links leave the group, and `looks`, unless they are all of it, or there is no room for one more.
    fn part(&mut self, group: u32, looks: &mut Vec<Look>, leaves: impl Fn(&Look) -> bool) -> bool {
        let leaving = looks.iter().filter(|look| leaves(look));
        let leaving: Vec<PeerId> = leaving.map(|look| look.peer).collect();
        let parts = !leaving.is_empty()
            && leaving.len() < looks.len()
            && self.residuals.leave(group, &leaving);
        if parts {
            looks.retain(|look| !leaving.contains(&look.peer));
        }
        parts
    }

    /// Tells the links of a group that keeps up again what those that most links are with were told and they were not, instead of
    /// what is largest; once that is all, exactly, they join them. False where there is nothing of this kind to do.
    fn catches_up(
        &mut self,
        shared: &mut Shared,
        now: Tick,
        group: u32,
        budget: usize,
    ) -> Result<bool, PackError> {
        let home = self.residuals.largest();
        let Some(home) = home.filter(|home| !shared.relays && *home != group) else {
            return Ok(false);
        };
        let most_bytes = shared.most_bytes();
        let Some((home_is, away)) = self.residuals.pair_mut(home, group) else {
            return Ok(false);
        };
        let gains = budget >= AHEAD * home_is.bytes;
        let is_due = away.calm >= if gains { CALM } else { away.look_at };
        if !is_due || budget < home_is.budget.min(most_bytes) / 2 {
            return Ok(false);
        }
        away.look_at = away.calm.saturating_mul(2);
        let pairs = away.values.iter().zip(&home_is.values);
        let difference = &mut self.difference;
        difference.clear();
        difference.extend(pairs.map(|(away, home)| away - home));
        let n_different = difference.iter().filter(|value| **value != 0.0).count();
        let fits = n_different * SPARSE_BYTES <= budget;
        if !(fits || gains) {
            return Ok(false);
        }
        let selection = match fits {
            true => Selection::Dense,
            false => {
                let wanted = Wanted {
                    bytes: budget,
                    measure: Measure::TopK,
                    least: LEAST,
                    most: 1.0,
                    values: &[Values::F32],
                };
                shared.packer.fit(difference, wanted).selection
            }
        };
        let order = Order {
            selection,
            values: Values::F32,
            weights: None,
        };
        let mut packed = std::mem::take(&mut shared.packed);
        packed.clear();
        let outcome = shared.packer.pack(difference, order, &mut packed);
        if let Ok(made) = &outcome {
            let told = away.values.iter_mut().zip(&home_is.values);
            let mut n_left = 0;
            for ((away, home), left) in told.zip(&*difference) {
                match *left == 0.0 {
                    true => *away = *home,
                    false => n_left += 1,
                }
            }
            let owed = (away.samples_since, away.steps);
            (away.samples, away.steps) = (0, 0);
            shared.n_packed += 1;
            let choice = Choice {
                share: made.n_entries as f32 / difference.len().max(1) as f32,
                ..Choice::default()
            };
            self.hand_over(shared, now, group, &packed, owed, choice);
            if n_left == 0 {
                self.residuals.join(group, home);
            }
        }
        shared.packed = packed;
        outcome.map(|_| true)
    }

    /// Packs once for all links of the group.
    fn send(
        &mut self,
        shared: &mut Shared,
        now: Tick,
        group: u32,
        budget: usize,
        occasion: Occasion<'_>,
    ) -> Result<(), PackError> {
        let Some(residual) = self.residuals.get_mut(group) else {
            return Ok(());
        };
        let moment = Moment {
            budget: Some(budget),
            step: self.step,
            turn: residual.turn,
            updates: residual.updates(),
        };
        let mut choice = shared
            .chooser
            .choose(&mut shared.packer, &residual.values, moment);
        let weights = match occasion {
            Occasion::Commit(weights) => weights,
            Occasion::Room { .. } => &[],
        };
        if let (Selection::Significant { .. }, Occasion::Room { .. }) = (choice.selection, occasion)
        {
            // Without the parameters nothing is known to be significant: it is told the step, and as little else as can be.
            let fraction = f32::MIN_POSITIVE;
            choice.selection = Selection::TopK { fraction };
        }
        let mut packed = std::mem::take(&mut shared.packed);
        packed.clear();
        let outcome = shared
            .packer
            .pack(&mut residual.values, choice.order(weights), &mut packed);
        match outcome {
            Ok(made) => {
                residual.turn += 1;
                (residual.budget, residual.bytes) = (budget, made.bytes);
                let owed = (residual.samples, residual.steps);
                (residual.samples, residual.steps) = (0, 0);
                residual.own_samples = 0;
                shared.norms.sent(made.norm, owed.0);
                shared.n_packed += 1;
                self.hand_over(shared, now, group, &packed, owed, choice);
                shared.packed = packed;
                Ok(())
            }
            Err(error) => {
                shared.packed = packed;
                Err(error)
            }
        }
    }

    /// Sends what was packed to all links of the group.
    fn hand_over(
        &mut self,
        shared: &mut Shared,
        now: Tick,
        group: u32,
        packed: &[u8],
        (samples, steps): (u64, u32),
        choice: Choice,
    ) {
        for to in self.residuals.links(group) {
            let Some(link) = self.links.get_mut(&to) else {
                continue;
            };
            let seq = self.next_seq;
            self.next_seq += 1;
            let packet = join(&shared.header(seq, self.step, samples), packed);
            link.way.sent(now, seq, &packet);
            shared.count_sent(to, packet.len(), steps, &choice);
            shared.send(now, to, seq, packet);
        }
    }
}

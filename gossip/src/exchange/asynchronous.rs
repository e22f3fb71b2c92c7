//! Exchange in which nobody waits: a residual per group of links, at most [`CREDIT`](super::CREDIT) packets in flight on each link, and
//! an inbox into which whatever arrives is added at once.
//!
//! At each commit every group packs what all its links carry until the next one. A link that cannot take it, twice in a row, leaves the
//! group; the others wait once. Bounds: one arena per group and one for the inbox, and per link at most
//! [`CREDIT`](super::CREDIT) packets, whatever the others do.

use std::collections::BTreeMap;
use std::time::Duration;

use super::choice::Moment;
use super::residual::Residuals;
use super::{CREDIT, Gradient, Output, Shared, join, split};
use crate::gradient::accumulate::{accumulate, all_finite};
use crate::gradient::pack::PackError;
use crate::ids::PeerId;
use crate::message::UpdateHeader;
use crate::time::Tick;

/// A packet without an answer for this long is taken as lost, so that one lost answer does not silence a link for good.
const CREDIT_LOST_AFTER: Duration = Duration::from_secs(15);
/// Between two commits: what is assumed before there were two, and the bounds of what is planned with.
const FIRST_INTERVAL: Duration = Duration::from_millis(250);
const INTERVALS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(10);
/// Commits in a row that a link holds its group up before it leaves it.
const PATIENCE: u32 = 2;

#[derive(Debug, Default)]
pub(super) struct Asynchronous {
    residuals: Residuals,
    links: BTreeMap<PeerId, Link>,
    /// Sum over samples of what arrived, over the global batch; empty while there is nothing.
    inbox: Vec<f32>,
    inbox_is_empty: bool,
    last_commit: Option<Tick>,
    /// Smoothed time between two commits.
    interval: Option<Duration>,
    /// Own step.
    step: u64,
}

#[derive(Debug, Default)]
struct Link {
    next_seq: u64,
    /// Packets not acknowledged yet, and when they were sent.
    in_flight: Vec<(u64, Tick)>,
    /// Packets that the lane would not take; they go before new ones.
    waiting: Vec<(u64, Vec<u8>)>,
    /// Commits in a row that found no room.
    held_up: u32,
    /// Number of the last packet applied of the other.
    seen: Option<u64>,
}

impl Asynchronous {
    pub(super) fn set_view(&mut self, shared: &mut Shared) {
        let targets = &shared.targets;
        self.links.retain(|peer, _| targets.contains(peer));
        for peer in targets {
            self.links.entry(*peer).or_default();
        }
        self.residuals
            .set_links(targets, shared.relays, shared.n_values);
        let others: Vec<PeerId> = shared.others().collect();
        shared.bound.members(others.into_iter(), self.step);
        shared.tell_limit();
    }

    pub(super) fn start_at(&mut self, shared: &mut Shared, step: u64) {
        self.step = step;
        shared.tell_limit();
    }

    pub(super) fn gradient(
        &mut self,
        shared: &mut Shared,
        now: Tick,
        gradient: Gradient<'_>,
    ) -> Result<(), PackError> {
        self.step = gradient.step;
        self.note_commit(now);
        if self.residuals.n_links() == 0 {
            return Ok(());
        }
        if !all_finite(gradient.values) {
            let mut values = gradient.values.iter().enumerate();
            let bad = values.find(|(_, value)| !value.is_finite());
            let (entry, value) = bad.map_or((0, 0.0), |(entry, value)| (entry, *value));
            return Err(PackError::NotFinite {
                variable: 0,
                entry,
                value,
            });
        }
        for residual in self.residuals.all_mut() {
            if !accumulate(&mut residual.values, gradient.values) {
                // Sums of finite gradients overflowed: what is owed is lost, or nothing would ever be sent again.
                residual.values.fill(0.0);
            }
            residual.samples += gradient.samples;
            residual.steps += gradient.n_steps;
        }
        self.send_all(shared, now, gradient.weights)
    }

    fn note_commit(&mut self, now: Tick) {
        if let Some(last) = self.last_commit.replace(now) {
            let took = now.since(last).clamp(*INTERVALS.start(), *INTERVALS.end());
            let mean = self.interval.unwrap_or(took);
            self.interval = Some((mean * 3 + took) / 4);
        }
    }

    /// Sends what each group's links may carry now; without room the residual waits for the next commit.
    fn send_all(
        &mut self,
        shared: &mut Shared,
        now: Tick,
        weights: &[f32],
    ) -> Result<(), PackError> {
        let interval = self.interval.unwrap_or(FIRST_INTERVAL);
        for group in self.residuals.names() {
            let links: Vec<PeerId> = self.residuals.links(group).collect();
            let (mut least, mut most) = (usize::MAX, 0);
            let mut blocked = Vec::new();
            for peer in &links {
                if let Some(link) = self.links.get_mut(peer) {
                    link.offer_again(shared, *peer);
                    if !link.has_room(now, shared, *peer) {
                        blocked.push(*peer);
                        continue;
                    }
                }
                let budget = shared
                    .meters
                    .entry(*peer)
                    .or_default()
                    .budget(now, interval);
                least = least.min(budget);
                most = most.max(budget);
            }
            // A link with less than half of what the others have holds them up as well.
            let wanted = shared.most_bytes().min(most);
            if least < wanted / 2 {
                let is_slow = |peer: &PeerId| {
                    let meter = shared.meters.get(peer);
                    meter.is_some_and(|meter| meter.budget(now, interval) < wanted / 2)
                };
                blocked.extend(links.iter().copied().filter(is_slow));
                blocked.sort_unstable();
                blocked.dedup();
            }
            let apart = links.len() == 1;
            let mut waits = false;
            for peer in &links {
                let Some(link) = self.links.get_mut(peer) else {
                    continue;
                };
                if !blocked.contains(peer) {
                    link.held_up = 0;
                    continue;
                }
                link.held_up += 1;
                let patient = link.held_up < PATIENCE;
                waits |= patient || !(apart || self.residuals.leave(*peer));
            }
            if waits || (apart && !blocked.is_empty()) {
                let links = self.residuals.links(group);
                links.for_each(|peer| shared.stats.entry(peer).or_default().held_back += 1);
                continue;
            }
            self.send(shared, now, group, least, weights)?;
        }
        Ok(())
    }

    /// Packs once for all links of the group.
    fn send(
        &mut self,
        shared: &mut Shared,
        now: Tick,
        group: u32,
        budget: usize,
        weights: &[f32],
    ) -> Result<(), PackError> {
        let links: Vec<PeerId> = self.residuals.links(group).collect();
        let Some(residual) = self.residuals.get_mut(group) else {
            return Ok(());
        };
        let moment = Moment {
            budget,
            step: self.step,
            turn: residual.turn,
        };
        let choice = shared
            .chooser
            .choose(&mut shared.packer, &residual.values, moment);
        let mut packed = std::mem::take(&mut shared.packed);
        packed.clear();
        let outcome = shared
            .packer
            .pack(&mut residual.values, choice.order(weights), &mut packed);
        if let Err(error) = outcome {
            shared.packed = packed;
            return Err(error);
        }
        residual.turn += 1;
        shared.n_packed += 1;
        let (samples, steps) = (residual.samples, residual.steps);
        (residual.samples, residual.steps) = (0, 0);
        for to in links {
            let Some(link) = self.links.get_mut(&to) else {
                continue;
            };
            let seq = link.next_seq;
            link.next_seq += 1;
            let packet = join(&shared.header(seq, self.step, samples), &packed);
            link.in_flight.push((seq, now));
            shared
                .meters
                .entry(to)
                .or_default()
                .sent(now, seq, packet.len());
            shared.count_sent(to, packet.len(), steps, &choice);
            shared.outputs.push_back(Output::Send { to, seq, packet });
        }
        shared.packed = packed;
        Ok(())
    }

    pub(super) fn packet(
        &mut self,
        shared: &mut Shared,
        from: PeerId,
        header: UpdateHeader,
        packed: &[u8],
    ) {
        let link = self.links.entry(from).or_default();
        if link.seen.is_some_and(|seen| header.seq <= seen) {
            return shared.refuse(from, format!("packet {} came again", header.seq));
        }
        if let Err(reason) = shared.judge(from, &header, packed) {
            return shared.refuse(from, reason);
        }
        link.seen = Some(header.seq);
        if self.inbox.is_empty() {
            self.inbox.resize(shared.n_values, 0.0);
            self.inbox_is_empty = true;
        }
        let weight = shared.weight();
        match shared
            .unpacker
            .check_and_add(packed, weight, &mut self.inbox)
        {
            Ok(_) => {
                self.inbox_is_empty = false;
                let stats = shared.stats.entry(from).or_default();
                stats.packets_in += 1;
                stats.step_heard = stats.step_heard.max(header.step);
                if shared.relays {
                    self.relay(shared, from, header.samples, packed);
                }
                shared.bound.heard(from, header.step);
                shared.tell_limit();
            }
            Err(error) => shared.refuse(from, error.to_string()),
        }
    }

    /// What came from one link is owed to all others.
    fn relay(&mut self, shared: &mut Shared, from: PeerId, samples: u64, packed: &[u8]) {
        let own = self.residuals.group(from);
        for (_, residual) in self
            .residuals
            .iter_mut()
            .filter(|(group, _)| Some(*group) != own)
        {
            // It was checked when it was added to the inbox; all arenas are of one length.
            let added = shared
                .unpacker
                .check_and_add(packed, 1.0, &mut residual.values);
            if added.is_ok() {
                residual.samples += samples;
            }
        }
    }

    pub(super) fn applied(&mut self, shared: &mut Shared, from: PeerId, seq: u64) {
        if let Some(link) = self.links.get_mut(&from) {
            link.in_flight.retain(|(sent, _)| *sent != seq);
            link.offer_again(shared, from);
        }
    }

    pub(super) fn reconnected(&mut self, peer: PeerId) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.in_flight.clear();
            link.waiting.clear();
            // It may be another process, which counts from 0.
            link.seen = None;
        }
    }

    /// The lane would not take it: it goes first when there is room.
    pub(super) fn returned(&mut self, to: PeerId, seq: u64, packet: Vec<u8>) {
        if let Some(link) = self.links.get_mut(&to)
            && link.waiting.len() < CREDIT
            && split(&packet).is_ok()
        {
            link.waiting.push((seq, packet));
            link.waiting.sort_by_key(|(seq, _)| *seq);
        }
    }

    pub(super) fn tick(&mut self, shared: &mut Shared) {
        for (peer, link) in &mut self.links {
            link.offer_again(shared, *peer);
        }
        for (peer, residual) in self.untold() {
            shared.stats.entry(peer).or_default().steps_untold = residual;
        }
    }

    fn untold(&mut self) -> Vec<(PeerId, u32)> {
        let mut untold = Vec::new();
        for group in self.residuals.names() {
            let steps = self.residuals.get_mut(group).map_or(0, |group| group.steps);
            untold.extend(self.residuals.links(group).map(|peer| (peer, steps)));
        }
        untold
    }

    pub(super) fn take(&mut self, into: &mut Vec<f32>) -> bool {
        if self.inbox.is_empty() || self.inbox_is_empty {
            return false;
        }
        into.resize(self.inbox.len(), 0.0);
        std::mem::swap(into, &mut self.inbox);
        self.inbox.fill(0.0);
        self.inbox_is_empty = true;
        true
    }

    /// Groups of links that share a residual.
    pub(super) fn n_residuals(&self) -> usize {
        self.residuals.names().len()
    }
}

impl Link {
    fn has_room(&mut self, now: Tick, shared: &mut Shared, peer: PeerId) -> bool {
        let is_lost = |sent: &Tick| now.since(*sent) >= CREDIT_LOST_AFTER;
        if self.in_flight.iter().any(|(_, sent)| is_lost(sent)) {
            let meter = shared.meters.entry(peer).or_default();
            for (seq, _) in self.in_flight.iter().filter(|(_, sent)| is_lost(sent)) {
                meter.forgotten(*seq);
            }
            self.in_flight.retain(|(_, sent)| !is_lost(sent));
        }
        self.waiting.is_empty() && self.in_flight.len() < CREDIT
    }

    fn offer_again(&mut self, shared: &mut Shared, to: PeerId) {
        for (seq, packet) in self.waiting.drain(..) {
            shared.outputs.push_back(Output::Send { to, seq, packet });
        }
    }
}

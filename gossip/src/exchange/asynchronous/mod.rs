//! Exchange in which nobody waits: a residual per group of links, at most [`CREDIT`](super::CREDIT) packets under way on each link, and
//! an inbox into which whatever arrives is added at once.
//!
//! What is sent when, and who shares a residual with whom, is in `commit`. Bounds: one arena per group, one for the inbox and
//! one for what a group catches up, and per link at most [`CREDIT`](super::CREDIT) packets, whatever the others do, and as many that came early.

mod commit;

use std::collections::BTreeMap;
use std::time::Duration;

use commit::{Look, Occasion};

use super::residual::Residuals;
use super::way::Way;
use super::{CREDIT, Gradient, Shared, Waiting};
use crate::gradient::accumulate::{accumulate, all_finite};
use crate::gradient::pack::PackError;
use crate::ids::PeerId;
use crate::message::UpdateHeader;
use crate::time::Tick;

/// The bounds of what is planned with between two commits.
const INTERVALS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Asynchronous {
    residuals: Residuals,
    links: BTreeMap<PeerId, Link>,
    /// Number of the next packet, to whomever it goes: so that numbers ascend on a link that is gone for a while, too.
    next_seq: u64,
    /// Packets of a view that this peer has not heard of yet.
    early: Vec<Early>,
    /// Sum over samples of what arrived, over the global batch; empty while there is nothing.
    inbox: Vec<f32>,
    inbox_is_empty: bool,
    last_commit: Option<Tick>,
    /// Smoothed time between two commits.
    interval: Option<Duration>,
    /// Own step, and how many were made before the next.
    step: u64,
    n_made: u64,
    /// The groups and the links that are looked at; kept to allocate none.
    names: Vec<u32>,
    looks: Vec<Look>,
    /// What one group was not told and another was, while it catches up.
    difference: Vec<f32>,
}

/// A packet of a view that is not there yet.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) from: PeerId,
    pub(super) arrived: Tick,
    pub(super) bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Link {
    way: Way,
    /// Commits in a row that it held its group up.
    held_up: u32,
    /// Number of the last packet applied of the other.
    seen: Option<u64>,
    /// Number of the view since which the same members are beyond it: what was sent before is not passed on.
    since: u64,
}

impl Asynchronous {
    /// Returns what came too early before.
    pub(super) fn set_view(&mut self, shared: &mut Shared, fresh: &[PeerId]) -> Vec<Early> {
        if shared.view.is_none() || fresh.contains(&shared.me) {
            // What came is for the replica that this peer had as the member it was.
            self.inbox.fill(0.0);
            self.inbox_is_empty = true;
        }
        let targets = &shared.targets;
        let goes_on = |peer: &PeerId| targets.contains(peer) && !fresh.contains(peer);
        self.links.retain(|peer, _| goes_on(peer));
        let since = shared.view.as_ref().map_or(0, |view| view.stamp.number);
        for peer in targets {
            self.links.entry(*peer).or_insert_with(|| Link {
                since,
                ..Link::default()
            });
        }
        self.residuals
            .set_links(targets, fresh, shared.relays, shared.n_values);
        // Of many, only neighbours are heard of.
        let waited_for = shared.targets.clone();
        shared.bound.members(waited_for.into_iter(), self.n_made);
        shared.tell_limit();
        std::mem::take(&mut self.early)
    }

    pub(super) fn start_at(&mut self, shared: &mut Shared, step: u64) {
        (self.step, self.n_made) = (step, step);
        shared.bound.start_at(step);
        shared.tell_limit();
    }

    pub(super) fn gradient(
        &mut self,
        shared: &mut Shared,
        now: Tick,
        gradient: Gradient<'_>,
    ) -> Result<(), PackError> {
        self.step = gradient.step;
        self.n_made = gradient.step.saturating_add(1);
        self.note_commit(now);
        if self.residuals.n_links() == 0 {
            return Ok(());
        }
        if !all_finite(gradient.values) {
            let mut values = gradient.values.iter().enumerate();
            let bad = values.find(|(_, value)| !value.is_finite());
            let (entry, value) = bad.map_or((0, 0.0), |(entry, value)| (entry, *value));
            // The step was made all the same, and others may wait to hear of it.
            let all = self.residuals.iter_mut();
            all.for_each(|(_, residual)| residual.count(0, gradient.n_steps));
            self.send_all(shared, now, Occasion::Commit(gradient.weights))?;
            return Err(PackError::NotFinite {
                variable: 0,
                entry,
                value,
            });
        }
        shared.norms.trained(gradient.values, gradient.samples);
        for (_, residual) in self.residuals.iter_mut() {
            if !accumulate(&mut residual.values, gradient.values) {
                // Sums of finite gradients overflowed: what is owed is lost, or nothing would ever be sent again.
                residual.values.fill(0.0);
            }
            residual.count(gradient.samples, gradient.n_steps);
        }
        self.send_all(shared, now, Occasion::Commit(gradient.weights))
    }

    fn note_commit(&mut self, now: Tick) {
        if let Some(last) = self.last_commit.replace(now) {
            let took = now.since(last).clamp(*INTERVALS.start(), *INTERVALS.end());
            let mean = self.interval.unwrap_or(took);
            self.interval = Some((mean * 3 + took) / 4);
        }
    }

    /// Whether a packet is of a view that a member holds and this peer does not yet.
    pub(super) fn is_early(&self, shared: &Shared, from: PeerId, header: &UpdateHeader) -> bool {
        let view = shared.view.as_ref();
        view.is_some_and(|view| header.view > view.stamp.number && view.contains(from))
    }

    /// Keeps a packet until its view is there: who is to hear of it, and whether its sender is who it was, depends on that.
    pub(super) fn keep(&mut self, shared: &mut Shared, from: PeerId, arrived: Tick, bytes: &[u8]) {
        let kept = self.early.iter().filter(|early| early.from == from);
        if kept.count() >= CREDIT {
            return shared.refuse(
                from,
                "more packets of a view to come than it has credit".into(),
            );
        }
        self.early.push(Early {
            from,
            arrived,
            bytes: bytes.to_vec(),
        });
    }

    pub(super) fn packet(
        &mut self,
        shared: &mut Shared,
        from: PeerId,
        header: UpdateHeader,
        packed: &[u8],
    ) {
        let link = self.links.get(&from);
        let seen = link.and_then(|link| link.seen);
        if seen.is_some_and(|seen| header.seq <= seen) {
            return shared.refuse(from, format!("packet {} came again", header.seq));
        }
        if let Err(reason) = shared.judge(from, &header, packed) {
            return shared.refuse(from, reason);
        }
        let goes_on = link.is_some_and(|link| header.view >= link.since);
        if let Some(link) = self.links.get_mut(&from) {
            link.seen = Some(header.seq);
        }
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
                if shared.relays && goes_on {
                    self.relay(shared, from, header.samples, packed);
                }
                shared.bound.heard(from, header.step.saturating_add(1));
                shared.tell_limit();
            }
            Err(error) => shared.refuse(from, error.to_string()),
        }
    }

    /// What came from one link is owed to all others.
    fn relay(&mut self, shared: &mut Shared, from: PeerId, samples: u64, packed: &[u8]) {
        let own = self.residuals.group(from);
        let others = self.residuals.iter_mut();
        for (_, residual) in others.filter(|(group, _)| Some(*group) != own) {
            // It was checked when it was added to the inbox; all arenas are of one length.
            let added = shared
                .unpacker
                .check_and_add(packed, 1.0, &mut residual.values);
            if added.is_ok() {
                residual.count(samples, 0);
            }
        }
    }

    pub(super) fn applied(&mut self, shared: &mut Shared, now: Tick, from: PeerId, seq: u64) {
        if let Some(link) = self.links.get_mut(&from) {
            link.way.applied(seq);
            link.offer(shared, now, from);
        }
        self.tell_step(shared, now, false);
    }

    pub(super) fn reconnected(&mut self, shared: &mut Shared, now: Tick, peer: PeerId) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.way.reconnected();
            link.offer(shared, now, peer);
        }
    }

    /// The lane would not take it: it goes first when there is room.
    pub(super) fn returned(&mut self, shared: &mut Shared, to: PeerId, seq: u64) {
        if let Some(link) = self.links.get_mut(&to)
            && link.way.returned(seq)
            && let Some(meter) = shared.meters.get_mut(&to)
        {
            meter.forgotten(seq);
        }
    }

    pub(super) fn tick(&mut self, shared: &mut Shared, now: Tick) {
        for (peer, link) in &mut self.links {
            link.has_room(shared, now, *peer);
            link.offer(shared, now, *peer);
        }
        self.tell_step(shared, now, true);
        for (group, residual) in self.residuals.iter() {
            for peer in self.residuals.links(group) {
                shared.stats.entry(peer).or_default().steps_untold = residual.steps;
            }
        }
    }

    /// Where others wait for this peer's step, and it perhaps for theirs, what it could not tell them at its commit is told as
    /// soon as there is room: there may be no commit before that.
    fn tell_step(&mut self, shared: &mut Shared, now: Tick, parts: bool) {
        let is_untold = self
            .residuals
            .iter()
            .any(|(_, residual)| residual.steps > 0);
        if is_untold && matches!(shared.config.waiting, Waiting::Bounded { .. }) {
            // An error is one of packing, and shows at the next commit again.
            let _ = self.send_all(shared, now, Occasion::Room { parts });
        }
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
        self.residuals.n_groups()
    }
}

impl Link {
    fn has_room(&mut self, shared: &mut Shared, now: Tick, peer: PeerId) -> bool {
        self.way.expire(now, |seq| {
            if let Some(meter) = shared.meters.get_mut(&peer) {
                meter.forgotten(seq);
            }
        });
        self.way.has_room()
    }

    fn offer(&mut self, shared: &mut Shared, now: Tick, to: PeerId) {
        self.way.offer(now, |seq, packet| {
            shared.send(now, to, seq, packet.to_vec())
        });
    }
}

//! What a scenario does to a simulated run: kills, stops, partitions, other links.

use rand_chacha::rand_core::Rng;

use super::event::{Event, Place};
use super::transport::Delivery;
use super::world::World;
use skein_netem::link::{Nanos, NodeIndex, Profile};
use skein_netem::record::{Mark, Metric};
use skein_netem::scenario::{Action, When};

/// How long a peer that leaves says so before it is gone, as the node's last flush.
const LAST_WORDS: Nanos = 300_000_000;
/// From the end of a process to the next one's start.
const RESTARTING: Nanos = 100_000_000;

impl World<'_> {
    pub(super) fn plan_faults(&mut self) {
        for (number, event) in self.scenario.events.iter().enumerate() {
            match &event.when {
                When::At(at) => self
                    .queue
                    .push(at.as_nanos() as Nanos, Event::Fault(number)),
                When::Every { from, .. } => {
                    self.queue
                        .push(from.as_nanos() as Nanos, Event::Fault(number));
                }
                When::After(..) => self.pending.push(number),
            }
        }
        for (line, (_, _, trace)) in self.traces.iter().enumerate() {
            self.queue.push(trace.points[0].at, Event::Trace(line, 0));
        }
    }

    /// A node wrote a line: events that wait for it are due.
    pub(super) fn on_metric(&mut self, rank: NodeIndex, metric: &Metric) {
        let scenario = self.scenario;
        let pending = std::mem::take(&mut self.pending);
        for number in pending {
            match &scenario.events[number].when {
                When::After(condition, pause)
                    if condition.holds(rank, &metric.event, &metric.fields) =>
                {
                    let at = self.now + pause.as_nanos() as Nanos;
                    self.queue.push(at, Event::Fault(number));
                }
                _ => self.pending.push(number),
            }
        }
        let end = scenario.end.when.as_ref();
        if end.is_some_and(|end| end.holds(rank, &metric.event, &metric.fields)) {
            self.end_now();
        }
    }

    pub(super) fn fault(&mut self, number: usize) -> Result<(), String> {
        let scenario = self.scenario;
        let event = &scenario.events[number];
        let mut is_drawn = false;
        if let When::Every { until, period, .. } = event.when {
            is_drawn = true;
            let next = self.now + period.as_nanos() as Nanos;
            if next <= until.as_nanos() as Nanos {
                self.queue.push(next, Event::Fault(number));
            }
        }
        self.last_fault = self.now;
        match &event.action {
            Action::Kill(nodes) => {
                let is_there = |world: &Self, rank: NodeIndex| world.devices[rank].peer.is_some();
                for rank in self.targets(nodes, is_drawn, is_there) {
                    self.mark(&[rank], "kill", "");
                    self.gone(rank);
                }
            }
            Action::Stop(nodes) => {
                for rank in self.targets(nodes, is_drawn, |world, rank| world.runs(rank)) {
                    self.mark(&[rank], "stop", "");
                    self.devices[rank].is_stopped = true;
                }
            }
            Action::Continue(nodes) => {
                let is_stopped = |world: &Self, rank: NodeIndex| world.devices[rank].is_stopped;
                for rank in self.targets(nodes, is_drawn, is_stopped) {
                    self.mark(&[rank], "continue", "");
                    self.go_on(rank)?;
                }
            }
            Action::Restart(nodes) => {
                for rank in self.targets(nodes, is_drawn, |_, _| true) {
                    self.mark(&[rank], "restart", "");
                    self.gone(rank);
                    self.start_at(self.now + RESTARTING, rank);
                }
            }
            Action::Leave(nodes) => {
                for rank in self.targets(nodes, is_drawn, |world, rank| world.runs(rank)) {
                    self.mark(&[rank], "leave", "");
                    if let Some(peer) = &mut self.devices[rank].peer {
                        peer.leave(self.now);
                    }
                    self.after(rank)?;
                    let life = self.devices[rank].life;
                    self.queue
                        .push(self.now + LAST_WORDS, Event::Gone(rank, life));
                }
            }
            Action::Join(nodes) => {
                let is_away = |world: &Self, rank: NodeIndex| world.devices[rank].peer.is_none();
                for rank in self.targets(nodes, is_drawn, is_away) {
                    self.mark(&[rank], "join", "");
                    self.start(rank)?;
                    self.after(rank)?;
                }
            }
            Action::Partition(groups) => {
                let sizes: Vec<String> =
                    groups.iter().map(|group| group.len().to_string()).collect();
                self.mark(&groups.concat(), "partition", &sizes.join(" | "));
                self.transport.fabric.partition(groups);
            }
            Action::Heal => {
                self.mark(&[], "heal", "");
                self.transport.fabric.heal();
            }
            Action::SetLine { nodes, up, down } => {
                let nodes = self.targets(nodes, is_drawn, |_, _| true);
                self.mark(&nodes, "line", "");
                for rank in nodes {
                    up.map(|profile| self.transport.fabric.set_up(rank, profile));
                    down.map(|profile| self.transport.fabric.set_down(rank, profile));
                }
            }
            Action::SetPair { from, to, profile } => {
                self.mark(&[*from, *to], "pair", "");
                self.transport.fabric.set_pair(*from, *to, *profile);
            }
            Action::SetCpu { nodes, share } => {
                let nodes = self.targets(nodes, is_drawn, |_, _| true);
                self.mark(&nodes, "cpu", &share.to_string());
                for rank in nodes {
                    self.devices[rank].share = Some(*share);
                    if let Some(peer) = &mut self.devices[rank].peer {
                        peer.share = Some(*share);
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn follow_trace(&mut self, line: usize, point: usize) {
        let Some((place, own, trace)) = self.traces.get(line).copied() else {
            return;
        };
        let Some(now) = trace.points.get(point) else {
            return;
        };
        let change = |profile: &Profile| Profile {
            rate: Some(now.rate),
            delay: now.delay.unwrap_or(own.delay),
            ..*profile
        };
        let fabric = &mut self.transport.fabric;
        match place {
            Place::Up(rank) => fabric.set_up(rank, change(&fabric.lines(rank).0.clone())),
            Place::Down(rank) => fabric.set_down(rank, change(&fabric.lines(rank).1.clone())),
            Place::Pair(from, to) => fabric.set_pair(from, to, change(&fabric.pair(from, to))),
        }
        let (next, pause) = match trace.points.get(point + 1) {
            Some(after) => (point + 1, after.at - now.at),
            // Over again: the last point holds as long as the one before it did.
            None => match point
                .checked_sub(1)
                .and_then(|before| trace.points.get(before))
            {
                Some(before) => (0, now.at - before.at),
                None => return,
            },
        };
        self.queue.push(self.now + pause, Event::Trace(line, next));
    }

    /// Whether an event to come may start a node.
    pub(super) fn may_start(&self) -> bool {
        let mut events = self.scenario.events.iter().enumerate();
        events.any(|(number, event)| {
            let starts = matches!(event.action, Action::Join(_) | Action::Restart(_));
            starts
                && match event.when {
                    When::At(at) => at.as_nanos() as Nanos > self.now,
                    When::Every { until, .. } => until.as_nanos() as Nanos > self.now,
                    When::After(..) => self.pending.contains(&number),
                }
        })
    }

    fn runs(&self, rank: NodeIndex) -> bool {
        self.devices[rank].peer.is_some() && !self.devices[rank].is_stopped
    }

    /// All of `nodes` that the action makes sense for, or one of them.
    fn targets(
        &mut self,
        nodes: &[NodeIndex],
        is_drawn: bool,
        makes_sense: impl Fn(&Self, NodeIndex) -> bool,
    ) -> Vec<NodeIndex> {
        let can: Vec<NodeIndex> = nodes
            .iter()
            .copied()
            .filter(|rank| makes_sense(self, *rank))
            .collect();
        if !is_drawn || can.is_empty() {
            return can;
        }
        let drawn = self.rng.next_u64() % can.len() as u64;
        vec![can[drawn as usize]]
    }

    /// A stopped device goes on with what waited for it.
    fn go_on(&mut self, rank: NodeIndex) -> Result<(), String> {
        let device = &mut self.devices[rank];
        device.is_stopped = false;
        for event in std::mem::take(&mut device.held) {
            self.queue.push(self.now, event);
        }
        for (from, message) in std::mem::take(&mut self.devices[rank].inbox) {
            let to = rank;
            self.hand_over(Delivery { from, to, message })?;
        }
        Ok(())
    }

    fn mark(&mut self, nodes: &[NodeIndex], what: &str, detail: &str) {
        self.marks.push(Mark {
            t: self.seconds(),
            nodes: nodes.to_vec(),
            what: what.into(),
            detail: detail.into(),
        });
    }
}

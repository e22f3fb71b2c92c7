//! Exchange in lockstep: the update of step t is the weighted sum of the packets of step t of all members, own one included,
//! added in ascending peer order. The same bytes go to everybody, so all replicas stay equal to the bit.
//!
//! Bounds: one residual, one sum, and per member at most [`HELD`] packets. A packet lost with a connection is sent again when the
//! peer reconnects, or when a step has waited for [`REPEAT_AFTER`].
//! A member that dies in mid-step may have reached some of the others and not the rest: their replicas then differ by that one
//! gradient until the end of the job, which settles on one model.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::choice::{Choice, Moment};
use super::norms::outliers;
use super::shared::{join, split};
use super::{Gradient, Output, Shared};
use crate::gradient::pack::PackError;
use crate::ids::PeerId;
use crate::message::UpdateHeader;
use crate::time::Tick;
use crate::view::Member;

/// Packets held per member: it can be one step ahead; one more while this peer learns where to start.
pub(super) const HELD: usize = 3;
/// A step that waits this long sends its packets again to those it hears nothing from.
pub(super) const REPEAT_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Synchronous {
    residual: Vec<f32>,
    /// The step that is being put together.
    step: u64,
    /// Own packets by step: the one waited on and the one before, whole, as they were sent.
    own: VecDeque<(u64, Vec<u8>)>,
    held: BTreeMap<PeerId, VecDeque<(u64, Vec<u8>)>>,
    sum: Vec<f32>,
    ready: bool,
    /// Number of the latest view that every member is known to hold.
    agreed: u64,
    /// Steps whose own packet was sent to everybody.
    sent_below: u64,
    last_change: Tick,
    /// Packets made, and what is in the latest.
    turn: u64,
    choice: Choice,
    /// Own steps in the latest packet.
    n_steps: u32,
}

impl Synchronous {
    pub(super) fn set_view(&mut self, shared: &mut Shared, now: Tick, agreed: bool) {
        self.held.retain(|peer, _| shared.is_other(*peer));
        self.last_change = now;
        match &shared.view {
            Some(view) if agreed => self.agreed = view.stamp.number,
            Some(_) => {}
            None => {
                self.own.clear();
                self.agreed = 0;
            }
        }
        self.send_own(shared, now);
        self.combine(shared, now);
    }

    pub(super) fn start_at(&mut self, shared: &mut Shared, now: Tick, step: u64) {
        self.step = step;
        self.sent_below = step;
        self.own.clear();
        self.residual.clear();
        self.ready = false;
        self.last_change = now;
        self.forget_below(step);
        self.combine(shared, now);
    }

    pub(super) fn gradient(
        &mut self,
        shared: &mut Shared,
        now: Tick,
        gradient: Gradient<'_>,
    ) -> Result<(), PackError> {
        let step = gradient.step;
        if self.residual.is_empty() {
            self.residual.resize(shared.n_values, 0.0);
        }
        for (kept, value) in self.residual.iter_mut().zip(gradient.values) {
            *kept += value;
        }
        let mut packed = Vec::new();
        let moment = Moment {
            budget: None,
            step,
            turn: self.turn,
            updates: 1.0,
        };
        let packer = &mut shared.packer;
        self.choice = shared.chooser.choose(packer, &self.residual, moment);
        self.turn += 1;
        shared.n_packed += 1;
        let order = self.choice.order(gradient.weights);
        let outcome = shared.packer.pack(&mut self.residual, order, &mut packed);
        if outcome.is_err() {
            // All wait for a packet of this step: it says that there is nothing in it.
            self.residual.fill(0.0);
            packed.clear();
            let nothing = Choice::default();
            shared
                .packer
                .pack(&mut self.residual, nothing.order(&[]), &mut packed)?;
        }
        let packet = join(&shared.header(step, step, gradient.samples), &packed);
        self.own.push_back((step, packet));
        while self.own.len() > 2 {
            self.own.pop_front();
        }
        self.step = step;
        self.n_steps = gradient.n_steps;
        self.last_change = now;
        self.send_own(shared, now);
        self.combine(shared, now);
        outcome.map(|_| ())
    }

    pub(super) fn packet(
        &mut self,
        shared: &mut Shared,
        now: Tick,
        from: PeerId,
        header: UpdateHeader,
        packed: &[u8],
    ) {
        if header.step < self.step {
            return;
        }
        let held = self.held.entry(from).or_default();
        if held.iter().any(|(step, _)| *step == header.step) {
            return;
        }
        held.push_back((header.step, packed.to_vec()));
        while held.len() > HELD {
            held.pop_front();
        }
        self.combine(shared, now);
    }

    /// Sends the own packets that the peer may lack.
    pub(super) fn resend(&mut self, shared: &mut Shared, now: Tick, to: PeerId) {
        if !shared.is_other(to) {
            return;
        }
        for (step, packet) in self.own.iter().filter(|(step, _)| *step < self.sent_below) {
            shared.send(now, to, *step, packet.clone());
        }
    }

    pub(super) fn tick(&mut self, shared: &mut Shared, now: Tick) {
        let waits = self.own.back().is_some_and(|(step, _)| *step == self.step) && !self.ready;
        if !waits || now.since(self.last_change) < REPEAT_AFTER {
            return;
        }
        self.last_change = now;
        let lacking: Vec<PeerId> = waited_for(shared, self.step)
            .map(|member| member.peer)
            .filter(|peer| !self.has(*peer))
            .collect();
        for peer in lacking {
            self.resend(shared, now, peer);
        }
    }

    pub(super) fn take(&mut self, into: &mut Vec<f32>) -> bool {
        if !std::mem::take(&mut self.ready) {
            return false;
        }
        into.resize(self.sum.len(), 0.0);
        into.copy_from_slice(&self.sum);
        true
    }

    fn has(&self, peer: PeerId) -> bool {
        self.held
            .get(&peer)
            .is_some_and(|held| held.iter().any(|(step, _)| *step == self.step))
    }

    /// Sends the own packet of the current step, unless a member is admitted at this step, or batches change, and not everybody
    /// knows it yet: without it nobody can pass the step, so all pass it together with the newcomer.
    fn send_own(&mut self, shared: &mut Shared, now: Tick) {
        let Some(view) = &shared.view else { return };
        let changes_now = |member: &Member| member.needed_for(self.step) > self.agreed;
        if view.members.iter().any(changes_now) {
            return;
        }
        let due: Vec<&(u64, Vec<u8>)> = self
            .own
            .iter()
            .filter(|(step, _)| *step >= self.sent_below)
            .collect();
        for (step, packet) in due {
            self.sent_below = step + 1;
            for to in shared.targets.clone() {
                shared.count_sent(to, packet.len(), self.n_steps, &self.choice);
                shared.send(now, to, *step, packet.clone());
            }
        }
    }

    /// Adds everything up once it is all there.
    fn combine(&mut self, shared: &mut Shared, now: Tick) {
        let step = self.step;
        let own = self
            .own
            .iter()
            .find(|(own, _)| *own == step && step < self.sent_below);
        let Some((_, own)) = own else { return };
        if self.ready || !waited_for(shared, step).all(|member| self.has(member.peer)) {
            return;
        }
        let mut members: Vec<Member> = waited_for(shared, step).copied().collect();
        members.extend(
            shared
                .view
                .as_ref()
                .and_then(|view| view.member(shared.me))
                .copied(),
        );
        members.sort_by_key(|member| member.peer);
        let batches = members.iter().map(|member| member.batch_at(step));
        let global: u64 = batches.map(u64::from).sum();
        let mut sum = std::mem::take(&mut self.sum);
        sum.resize(shared.n_values, 0.0);
        sum.fill(0.0);
        let own = split(own).map(|(_, packed)| packed).unwrap_or_default();
        let packets: Vec<&[u8]> = members
            .iter()
            .map(|member| match member.peer == shared.me {
                true => own,
                false => self.packet_of(member.peer, step),
            })
            .collect();
        let norm = |packed: &&[u8]| shared.unpacker.norm(packed).ok();
        let norms: Vec<Option<f32>> = packets.iter().map(norm).collect();
        let is_absurd = outliers(&norms.iter().copied().flatten().collect::<Vec<_>>());
        for ((member, packed), norm) in members.iter().zip(packets).zip(norms) {
            if let Some(norm) = norm.filter(|norm| is_absurd(*norm)) {
                let reason = format!("its norm is {norm:e}, absurd beside the others'");
                shared.refuse(member.peer, reason);
                continue;
            }
            let weight = member.batch_at(step) as f32 / global.max(1) as f32;
            match shared.unpacker.check_and_add(packed, weight, &mut sum) {
                Ok(_) => {
                    let stats = shared.stats.entry(member.peer).or_default();
                    stats.packets_in += 1;
                    stats.step_heard = step;
                }
                Err(error) => shared.refuse(member.peer, error.to_string()),
            }
        }
        self.sum = sum;
        shared.stats.remove(&shared.me);
        self.ready = true;
        self.last_change = now;
        self.step = step + 1;
        self.forget_below(step + 1);
        shared.outputs.push_back(Output::Ready { step });
    }

    fn packet_of(&self, peer: PeerId, step: u64) -> &[u8] {
        let held = self.held.get(&peer);
        let held = held.and_then(|held| held.iter().find(|(held, _)| *held == step));
        held.map_or(&[], |(_, packed)| packed)
    }

    fn forget_below(&mut self, below: u64) {
        for held in self.held.values_mut() {
            held.retain(|(step, _)| *step >= below);
        }
    }
}

/// The other members whose packet of `step` counts.
fn waited_for(shared: &Shared, step: u64) -> impl Iterator<Item = &Member> {
    let members = shared.view.iter().flat_map(|view| &view.members);
    members.filter(move |member| member.peer != shared.me && member.from_step <= step)
}

//! Exchange in which nobody waits: a residual per link, at most [`CREDIT`](super::CREDIT) packets in flight on each, and an
//! inbox into which whatever arrives is added at once.
//!
//! Bounds: one arena per link and one for the inbox, whatever the others do.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{CREDIT, Gradient, Output, Shared, join, split};
use crate::gradient::pack::PackError;
use crate::gradient::selection::{Order, Selection};
use crate::ids::PeerId;
use crate::message::UpdateHeader;
use crate::time::Tick;

/// A packet without an answer for this long is taken as lost, so that one lost answer does not silence a link for good.
const CREDIT_LOST_AFTER: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
pub(super) struct Asynchronous {
    links: BTreeMap<PeerId, Link>,
    /// Sum over samples of what arrived, over the global batch; empty while there is nothing.
    inbox: Vec<f32>,
    inbox_is_empty: bool,
}

#[derive(Debug)]
struct Link {
    /// Sum over samples of the gradients that the peer has not been told.
    residual: Vec<f32>,
    samples: u64,
    steps: u32,
    next_seq: u64,
    /// Packets not acknowledged yet, and when they were sent.
    in_flight: Vec<(u64, Tick)>,
}

impl Asynchronous {
    pub(super) fn set_view(&mut self, shared: &Shared) {
        self.links.retain(|peer, _| shared.is_other(*peer));
        for peer in shared.others() {
            self.links.entry(peer).or_insert_with(|| Link {
                residual: vec![0.0; shared.n_values],
                samples: 0,
                steps: 0,
                next_seq: 0,
                in_flight: Vec::with_capacity(CREDIT),
            });
        }
    }

    pub(super) fn gradient(
        &mut self,
        shared: &mut Shared,
        now: Tick,
        gradient: Gradient<'_>,
    ) -> Result<(), PackError> {
        if self.links.is_empty() {
            return Ok(());
        }
        if let Some(entry) = gradient.values.iter().position(|value| !value.is_finite()) {
            return Err(PackError::NotFinite {
                variable: 0,
                entry,
                value: gradient.values[entry],
            });
        }
        for (peer, link) in &mut self.links {
            for (kept, value) in link.residual.iter_mut().zip(gradient.values) {
                *kept += value;
            }
            link.samples += gradient.samples;
            link.steps += gradient.n_steps;
            send(shared, now, *peer, link, gradient.step)?;
        }
        Ok(())
    }

    pub(super) fn packet(
        &mut self,
        shared: &mut Shared,
        from: PeerId,
        header: UpdateHeader,
        packed: &[u8],
    ) {
        if self.inbox.is_empty() {
            self.inbox.resize(shared.n_values, 0.0);
            self.inbox_is_empty = true;
        }
        let weight = 1.0 / shared.global_batch as f32;
        match shared
            .unpacker
            .check_and_add(packed, weight, &mut self.inbox)
        {
            Ok(_) => {
                self.inbox_is_empty = false;
                shared.stats.entry(from).or_default().packets_in += 1;
            }
            Err(error) => shared.refuse(from, error.to_string()),
        }
        shared.outputs.push_back(Output::Applied {
            to: from,
            seq: header.seq,
        });
    }

    pub(super) fn applied(&mut self, from: PeerId, seq: u64) {
        if let Some(link) = self.links.get_mut(&from) {
            link.in_flight.retain(|(sent, _)| *sent != seq);
        }
    }

    pub(super) fn reconnected(&mut self, peer: PeerId) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.in_flight.clear();
        }
    }

    pub(super) fn returned(&mut self, shared: &mut Shared, to: PeerId, seq: u64, packet: &[u8]) {
        let Some(link) = self.links.get_mut(&to) else {
            return;
        };
        link.in_flight.retain(|(sent, _)| *sent != seq);
        if let Ok((header, packed)) = split(packet) {
            // Our own packet decodes; only a residual of another length could fail, and links never change theirs.
            if shared
                .unpacker
                .check_and_add(packed, 1.0, &mut link.residual)
                .is_ok()
            {
                link.samples += header.samples;
                let stats = shared.stats.entry(to).or_default();
                stats.bytes_out = stats.bytes_out.saturating_sub(packet.len() as u64);
                stats.packets_out = stats.packets_out.saturating_sub(1);
            }
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
}

/// Sends what the link may carry now; without credit the residual waits for the next gradient.
fn send(
    shared: &mut Shared,
    now: Tick,
    to: PeerId,
    link: &mut Link,
    step: u64,
) -> Result<(), PackError> {
    link.in_flight
        .retain(|(_, sent)| now.since(*sent) < CREDIT_LOST_AFTER);
    if link.in_flight.len() >= CREDIT {
        shared.stats.entry(to).or_default().held_back += 1;
        return Ok(());
    }
    let mut packed = Vec::new();
    shared.packer.pack(
        &mut link.residual,
        Order {
            selection: Selection::TopK {
                fraction: shared.config.fraction,
            },
            values: shared.config.values,
            weights: None,
        },
        &mut packed,
    )?;
    let packet = join(&shared.header(link.next_seq, step, link.samples), &packed);
    let stats = shared.stats.entry(to).or_default();
    stats.packets_out += 1;
    stats.bytes_out += packet.len() as u64;
    stats.dense_bytes_out += u64::from(link.steps) * 4 * shared.n_values as u64;
    link.in_flight.push((link.next_seq, now));
    shared.outputs.push_back(Output::Send {
        to,
        seq: link.next_seq,
        packet,
    });
    link.next_seq += 1;
    link.samples = 0;
    link.steps = 0;
    Ok(())
}

//! Data-parallel exchange of gradients between peers that each hold the whole model (DLion, Hong and Chandra, HPDC 2021,
//! section 3; the selection itself is in [`gradient`](crate::gradient)).
//!
//! In: the own gradient of each step, update packets, views, returned credits. Out: packets to send, and the sum of what
//! the others sent, weighted by samples: `w -= lr * sum_j (samples_j / global batch) * gradient_j`, the unbiased form.
//!
//! Two rules, one file each: `asynchronous` (nobody waits; one residual per link) and `synchronous` (step t waits for
//! the packets of step t of all members and sums in ascending peer order; one residual for all links, so that all replicas stay
//! equal to the bit whatever fraction is sent).

mod asynchronous;
mod synchronous;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use asynchronous::Asynchronous;
use synchronous::Synchronous;

use crate::gradient::layout::Layout;
use crate::gradient::pack::{PackError, Packer};
use crate::gradient::unpack::Unpacker;
use crate::gradient::values::Values;
use crate::ids::{JobId, PeerId};
use crate::message::UpdateHeader;
use crate::time::Tick;
use crate::view::View;
use crate::wire::codec;
use crate::wire::zstd::ZstdError;

/// Packets in flight per link before the sender keeps its gradient in the residual: one on the way, one being applied.
pub const CREDIT: usize = 2;

/// Whether a step waits for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Never.
    Asynchronous,
    /// For the packets of the same step of all members.
    Synchronous,
}

/// How gradients are exchanged.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Waiting or not.
    pub mode: Mode,
    /// Share of each variable's entries in a packet, above 0 and at most 1.
    pub fraction: f32,
    /// How values are coded.
    pub values: Values,
    /// zstd level.
    pub level: i32,
}

/// A gradient of one's own, handed to the exchange.
#[derive(Clone, Copy, Debug)]
pub struct Gradient<'a> {
    /// The step it belongs to; the last one where several are summed.
    pub step: u64,
    /// Steps in it: 1, or more where asynchronous steps were summed before they were handed over.
    pub n_steps: u32,
    /// Samples behind it.
    pub samples: u64,
    /// Asynchronous: the sum over those samples. Synchronous: their mean.
    pub values: &'a [f32],
}

/// What the driver must do.
#[derive(Debug, PartialEq)]
pub enum Output {
    /// Send this packet on the update lane. If that is refused, give it back with [`Exchange::returned`].
    Send {
        /// To whom.
        to: PeerId,
        /// Its number on this link.
        seq: u64,
        /// Header and packed gradient.
        packet: Vec<u8>,
    },
    /// Tell the sender that its packet was applied.
    Applied {
        /// The sender.
        to: PeerId,
        /// The packet's number on its link.
        seq: u64,
    },
    /// A packet was refused; nothing of it was applied.
    Refused {
        /// The sender.
        from: PeerId,
        /// Why.
        reason: String,
    },
    /// Synchronous: the sum of this step is ready, see [`Exchange::take`].
    Ready {
        /// The step.
        step: u64,
    },
}

/// Counters of one link, both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets sent.
    pub packets_out: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Bytes of the gradients behind them as dense f32.
    pub dense_bytes_out: u64,
    /// Times that a packet was due and the link had no credit.
    pub held_back: u64,
    /// Packets applied.
    pub packets_in: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Packets refused.
    pub refused: u64,
}

/// One peer's exchange for one job.
#[derive(Debug)]
pub struct Exchange {
    shared: Shared,
    rule: Rule,
}

#[derive(Debug)]
enum Rule {
    Asynchronous(Asynchronous),
    Synchronous(Synchronous),
}

/// What both rules work with.
#[derive(Debug)]
struct Shared {
    job: JobId,
    me: PeerId,
    config: Config,
    n_values: usize,
    packer: Packer,
    unpacker: Unpacker,
    view: Option<Arc<View>>,
    /// Samples behind one step of all members.
    global_batch: u64,
    outputs: VecDeque<Output>,
    stats: BTreeMap<PeerId, LinkStats>,
}

impl Exchange {
    /// # Errors
    /// [`ZstdError`]: no memory for the coder's context, or no such level.
    pub fn new(job: JobId, me: PeerId, config: Config, layout: &Layout) -> Result<Self, ZstdError> {
        let shared = Shared {
            job,
            me,
            config,
            n_values: layout.n_values(),
            packer: Packer::with_level(layout, config.level)?,
            unpacker: Unpacker::new(layout)?,
            view: None,
            global_batch: 1,
            outputs: VecDeque::new(),
            stats: BTreeMap::new(),
        };
        let rule = match config.mode {
            Mode::Asynchronous => Rule::Asynchronous(Asynchronous::default()),
            Mode::Synchronous => Rule::Synchronous(Synchronous::default()),
        };
        Ok(Self { shared, rule })
    }

    /// The view changed, or `None`: this peer is in none. Links to members that are gone are dropped with their residual.
    /// `agreed`: every member is known to hold this view.
    pub fn set_view(&mut self, now: Tick, view: Option<Arc<View>>, agreed: bool) {
        self.shared.global_batch = view.as_ref().map_or(1, |view| view.global_batch().max(1));
        self.shared.view = view;
        match &mut self.rule {
            Rule::Asynchronous(rule) => rule.set_view(&self.shared),
            Rule::Synchronous(rule) => rule.set_view(&mut self.shared, now, agreed),
        }
    }

    /// The replica is at `step` now (start, or a state was loaded): earlier packets are of no use.
    pub fn start_at(&mut self, now: Tick, step: u64) {
        if let Rule::Synchronous(rule) = &mut self.rule {
            rule.start_at(&mut self.shared, now, step);
        }
    }

    /// Takes an own gradient.
    ///
    /// # Errors
    /// [`PackError`]: it is not finite; nothing of it was sent or kept.
    pub fn gradient(&mut self, now: Tick, gradient: Gradient<'_>) -> Result<(), PackError> {
        match &mut self.rule {
            Rule::Asynchronous(rule) => rule.gradient(&mut self.shared, now, gradient),
            Rule::Synchronous(rule) => rule.gradient(&mut self.shared, now, gradient),
        }
    }

    /// Takes a packet that arrived.
    pub fn packet(&mut self, now: Tick, from: PeerId, bytes: &[u8]) {
        let stats = self.shared.stats.entry(from).or_default();
        stats.bytes_in += bytes.len() as u64;
        let (header, packed) = match split(bytes) {
            Ok(parts) => parts,
            Err(reason) => return self.shared.refuse(from, reason),
        };
        let admitted = self
            .shared
            .view
            .as_ref()
            .is_some_and(|view| view.admits(from, header.view));
        if !admitted {
            // Fenced, not hostile: the sender has not heard of the latest view, or this peer has not.
            self.shared.outputs.push_back(Output::Applied {
                to: from,
                seq: header.seq,
            });
            return;
        }
        match &mut self.rule {
            Rule::Asynchronous(rule) => rule.packet(&mut self.shared, from, header, packed),
            Rule::Synchronous(rule) => rule.packet(&mut self.shared, now, from, header, packed),
        }
    }

    /// The peer applied packet `seq`.
    pub fn applied(&mut self, from: PeerId, seq: u64) {
        if let Rule::Asynchronous(rule) = &mut self.rule {
            rule.applied(from, seq);
        }
    }

    /// The connection to `peer` was lost and made anew: what was in flight may not have arrived.
    pub fn reconnected(&mut self, peer: PeerId) {
        match &mut self.rule {
            Rule::Asynchronous(rule) => rule.reconnected(peer),
            Rule::Synchronous(rule) => rule.resend(&mut self.shared, peer),
        }
    }

    /// The packet could not be handed to the lane: its gradient goes back into the residual.
    pub fn returned(&mut self, to: PeerId, seq: u64, packet: &[u8]) {
        if let Rule::Asynchronous(rule) = &mut self.rule {
            rule.returned(&mut self.shared, to, seq, packet);
        }
    }

    /// Time passed: a synchronous step that waits for long repeats what may have been lost.
    pub fn tick(&mut self, now: Tick) {
        if let Rule::Synchronous(rule) = &mut self.rule {
            rule.tick(&mut self.shared, now);
        }
    }

    /// Moves what the others sent (asynchronous), or the sum of all for the step that is ready (synchronous), into `into`,
    /// which is overwritten. False, with `into` unchanged, where there is nothing.
    pub fn take(&mut self, into: &mut Vec<f32>) -> bool {
        match &mut self.rule {
            Rule::Asynchronous(rule) => rule.take(into),
            Rule::Synchronous(rule) => rule.take(into),
        }
    }

    /// The next effect, until `None`.
    pub fn poll(&mut self) -> Option<Output> {
        self.shared.outputs.pop_front()
    }

    /// Counters per peer.
    pub fn stats(&self) -> &BTreeMap<PeerId, LinkStats> {
        &self.shared.stats
    }
}

impl Shared {
    fn refuse(&mut self, from: PeerId, reason: String) {
        self.stats.entry(from).or_default().refused += 1;
        self.outputs.push_back(Output::Refused { from, reason });
    }

    fn others(&self) -> impl Iterator<Item = PeerId> + '_ {
        let members = self.view.iter().flat_map(|view| &view.members);
        members
            .map(|member| member.peer)
            .filter(|peer| *peer != self.me)
    }

    fn is_other(&self, peer: PeerId) -> bool {
        peer != self.me && self.view.as_ref().is_some_and(|view| view.contains(peer))
    }

    fn header(&self, seq: u64, step: u64, samples: u64) -> UpdateHeader {
        let view = self.view.as_ref().map_or(0, |view| view.stamp.number);
        UpdateHeader {
            job: self.job,
            view,
            seq,
            step,
            samples,
        }
    }
}

/// A header is short: a length byte, then its encoding.
fn join(header: &UpdateHeader, packed: &[u8]) -> Vec<u8> {
    let encoded = codec::encode(header);
    let mut packet = Vec::with_capacity(1 + encoded.len() + packed.len());
    packet.push(encoded.len() as u8);
    packet.extend_from_slice(&encoded);
    packet.extend_from_slice(packed);
    packet
}

/// The job that a packet belongs to, and the packet's parts.
///
/// # Errors
/// What is wrong with it, in words.
pub fn split(packet: &[u8]) -> Result<(UpdateHeader, &[u8]), String> {
    let (length, rest) = packet.split_first().ok_or("an empty update packet")?;
    let (header, packed) = rest
        .split_at_checked(usize::from(*length))
        .ok_or("an update packet cut short")?;
    let header = codec::decode(header).map_err(|error| error.to_string())?;
    Ok((header, packed))
}

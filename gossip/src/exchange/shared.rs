//! What both rules of the exchange work with: the view and the links that follow from it, coders, meters, counters; and how a packet is
//! put together.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::bound::Bound;
use super::choice::{Amount, Choice, Chooser, ValueChoice};
use super::norms::Norms;
use super::{Config, LinkStats, Output};
use crate::gradient::layout::Layout;
use crate::gradient::pack::Packer;
use crate::gradient::unpack::Unpacker;
use crate::gradient::values::Values;
use crate::ids::{JobId, PeerId};
use crate::link::Meter;
use crate::message::UpdateHeader;
use crate::overlay::Overlay;
use crate::time::Tick;
use crate::view::View;
use crate::wire::codec;
use crate::wire::zstd::ZstdError;

/// Bytes of the longest header: a job, and four numbers of up to nine bytes.
const MAX_HEADER: usize = 32 + 4 * 9;

/// What both rules work with.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) job: JobId,
    pub(super) me: PeerId,
    pub(super) config: Config,
    pub(super) n_values: usize,
    pub(super) packer: Packer,
    pub(super) unpacker: Unpacker,
    pub(super) chooser: Chooser,
    pub(super) meters: BTreeMap<PeerId, Meter>,
    pub(super) bound: Bound,
    pub(super) norms: Norms,
    /// Where packets are made, to allocate none.
    pub(super) packed: Vec<u8>,
    pub(super) n_packed: u64,
    pub(super) view: Option<Arc<View>>,
    /// Whom updates go to.
    pub(super) targets: Vec<PeerId>,
    /// What is heard from one is passed on to the others.
    pub(super) relays: bool,
    overlay: Option<Overlay>,
    /// Samples behind one step of all members.
    pub(super) global_batch: u64,
    pub(super) outputs: VecDeque<Output>,
    pub(super) stats: BTreeMap<PeerId, LinkStats>,
}

impl Shared {
    pub(super) fn new(
        job: JobId,
        me: PeerId,
        config: Config,
        layout: &Layout,
    ) -> Result<Self, ZstdError> {
        Ok(Self {
            job,
            me,
            config,
            n_values: layout.n_values(),
            packer: Packer::with_level(layout, config.level)?,
            unpacker: Unpacker::new(layout)?,
            chooser: Chooser::new(config.amount, config.values),
            meters: BTreeMap::new(),
            bound: Bound::default(),
            norms: Norms::default(),
            packed: Vec::new(),
            n_packed: 0,
            view: None,
            targets: Vec::new(),
            relays: false,
            overlay: None,
            global_batch: 1,
            outputs: VecDeque::new(),
            stats: BTreeMap::new(),
        })
    }

    pub(super) fn refuse(&mut self, from: PeerId, reason: String) {
        self.stats.entry(from).or_default().refused += 1;
        self.outputs.push_back(Output::Refused { from, reason });
    }

    pub(super) fn others(&self) -> impl Iterator<Item = PeerId> + '_ {
        let members = self.view.iter().flat_map(|view| &view.members);
        members
            .map(|member| member.peer)
            .filter(|peer| *peer != self.me)
    }

    pub(super) fn is_other(&self, peer: PeerId) -> bool {
        peer != self.me && self.view.as_ref().is_some_and(|view| view.contains(peer))
    }

    /// Takes the view and with it the links. Returns those that begin anew although they were there before: their peer is another
    /// process now, or others are beyond them. This peer is
    /// among them if it is admitted anew itself.
    pub(super) fn set_view(&mut self, view: Option<Arc<View>>, directly: bool) -> Vec<PeerId> {
        self.global_batch = view.as_ref().map_or(1, |view| view.global_batch().max(1));
        let before = std::mem::replace(&mut self.view, view);
        let since = |view: &Option<Arc<View>>, peer| {
            let member = view.as_ref().and_then(|view| view.member(peer));
            member.map(|member| member.since)
        };
        let me_anew = since(&before, self.me) != since(&self.view, self.me);
        let is_anew = |peer: &PeerId| me_anew || since(&before, *peer) != since(&self.view, *peer);
        let peers = |view: &Option<Arc<View>>| -> Vec<PeerId> {
            let members = view.iter().flat_map(|view| &view.members);
            members.map(|member| member.peer).collect()
        };
        let members = peers(&self.view);
        let mut fresh = Vec::new();
        if directly || !members.contains(&self.me) {
            self.targets = self.others().collect();
            self.relays = false;
            self.overlay = None;
        } else {
            let seed = u64::from_le_bytes(self.job.0[..8].try_into().unwrap_or_default());
            let overlay = Overlay::of(&members, self.me, seed);
            if let Some(old) = &self.overlay {
                fresh = overlay.rerouted(&members, old, &peers(&before));
            }
            self.relays = overlay.relays();
            self.targets.clone_from(&overlay.tree);
            self.overlay = Some(overlay);
        }
        fresh.extend(members.iter().copied().filter(is_anew));
        self.meters.retain(|peer, _| members.contains(peer));
        self.norms.retain(|peer| members.contains(&peer));
        fresh
    }

    /// What one unit of a received packet counts.
    pub(super) fn weight(&self) -> f32 {
        let members = self.view.as_ref().map_or(1, |view| view.members.len());
        match self.config.full {
            true => 1.0 / members as f32,
            false => 1.0 / self.global_batch as f32,
        }
    }

    /// Bytes of a packet with all that is ever sent, roughly.
    pub(super) fn most_bytes(&self) -> usize {
        let n = self.n_values as f32;
        let per_entry = match self.config.values {
            ValueChoice::Fixed(Values::Octave) => 1.25,
            _ => 3.0,
        };
        match self.config.amount {
            Amount::TopK { most, .. } => (most * n * per_entry) as usize,
            Amount::RandomK { fraction } => (fraction * n * per_entry) as usize,
            Amount::MaxN { .. } | Amount::Dense | Amount::Significant { .. } | Amount::Parts => {
                self.n_values * 2
            }
        }
    }

    pub(super) fn tell_limit(&mut self) {
        if let Some(step) = self.bound.news(self.config.waiting) {
            self.outputs.push_back(Output::Limit { step });
        }
    }

    pub(super) fn count_sent(&mut self, to: PeerId, bytes: usize, steps: u32, choice: &Choice) {
        let stats = self.stats.entry(to).or_default();
        stats.packets_out += 1;
        stats.bytes_out += bytes as u64;
        stats.dense_bytes_out += u64::from(steps) * 4 * self.n_values as u64;
        stats.share = choice.share;
        stats.bits = choice.bits();
        stats.bytes_per_step = bytes as f64 / f64::from(steps.max(1));
    }

    /// Hands a packet to the lane.
    pub(super) fn send(&mut self, now: Tick, to: PeerId, seq: u64, packet: Vec<u8>) {
        let meter = self.meters.entry(to).or_default();
        meter.sent(now, seq, packet.len());
        self.outputs.push_back(Output::Send { to, seq, packet });
    }

    pub(super) fn estimate_links(&mut self) {
        for (peer, meter) in &self.meters {
            let estimate = meter.estimate();
            let stats = self.stats.entry(*peer).or_default();
            stats.rate = estimate.rate;
            stats.round_trip_us = estimate.round_trip.map(|time| time.as_micros() as u64);
            stats.queueing_us = estimate.queueing.as_micros() as u64;
        }
    }

    /// Whether a packet may be what an honest peer sends: its norm per sample is not far beyond what is usual.
    pub(super) fn judge(
        &mut self,
        from: PeerId,
        header: &UpdateHeader,
        packed: &[u8],
    ) -> Result<(), String> {
        let norm = self
            .unpacker
            .norm(packed)
            .map_err(|error| error.to_string())?;
        let n_peers = match (&self.view, self.relays) {
            (Some(view), true) => view.members.len() as u64,
            _ => 1,
        };
        self.norms.judge(from, norm, header.samples, n_peers)
    }

    pub(super) fn header(&self, seq: u64, step: u64, samples: u64) -> UpdateHeader {
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
pub(super) fn join(header: &UpdateHeader, packed: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(1 + MAX_HEADER + packed.len());
    packet.push(0);
    codec::append(header, &mut packet);
    packet[0] = (packet.len() - 1) as u8;
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

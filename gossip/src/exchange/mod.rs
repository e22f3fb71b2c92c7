//! Data-parallel exchange of gradients between peers that each hold the whole model (DLion, Hong and Chandra, HPDC 2021,
//! section 3; commits of summed updates, ADSP, Hu, Wang and Wu, AAAI 2020; the selection itself is in
//! [`gradient`](crate::gradient)).
//!
//! In: what a peer has summed up since its last commit, update packets, views, acknowledgements. Out: packets to send, and the sum of
//! what the others sent, weighted by samples: `w -= lr * sum_j (samples_j / global batch) * gradient_j`, the unbiased form.
//! With `full`, what travels are changes of parameters, and each counts by the number of members.
//!
//! Two rules, one file each: `asynchronous` (nobody waits; residuals per group of links of like rate) and `synchronous` (step t waits for
//! the packets of step t of all members and sums in ascending peer order; one residual for all links, so that all replicas stay
//! equal to the bit whatever fraction is sent). `choice` says what goes into a packet, `bound` how far a peer may run ahead.

pub mod local;
mod choice;
mod bound;
mod residual;
mod norms;
mod shared;
mod way;
mod asynchronous;
mod synchronous;

use std::collections::BTreeMap;
use std::sync::Arc;

use asynchronous::{Asynchronous, Early};
use shared::Shared;
use synchronous::Synchronous;

pub use choice::{Amount, ValueChoice};
pub use shared::split;

use crate::gradient::layout::Layout;
use crate::gradient::pack::PackError;
use crate::ids::{JobId, PeerId};
use crate::time::Tick;
use crate::view::View;
use crate::wire::zstd::ZstdError;

/// Packets under way per link before the sender keeps its gradient in the residual: one on the way, one being applied.
pub const CREDIT: usize = 2;

/// Who waits for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Nobody.
    Never,
    /// Each step for the packets of the same step of all members.
    All,
    /// A peer that is so many steps ahead of the slowest but `backup` (SSP, Hop, Gaia's mirror clock).
    Bounded {
        /// Steps ahead.
        staleness: u64,
        /// Slowest members that are not waited for.
        backup: usize,
    },
}

/// How gradients are exchanged.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Who waits for whom.
    pub waiting: Waiting,
    /// Which entries are sent, and how many.
    pub amount: Amount,
    /// How values are coded.
    pub values: ValueChoice,
    /// What is exchanged are changes of parameters that their sender has applied in full, not gradients.
    pub full: bool,
    /// zstd level.
    pub level: i32,
}

/// What a peer hands over at a commit.
#[derive(Clone, Copy, Debug)]
pub struct Gradient<'a> {
    /// The step it belongs to; the last one where several are summed.
    pub step: u64,
    /// Steps in it.
    pub n_steps: u32,
    /// Samples behind it.
    pub samples: u64,
    /// `full`: the parameters before less those after. Otherwise asynchronous: the sum over those samples of gradients;
    /// synchronous: their mean.
    pub values: &'a [f32],
    /// For [`Amount::Significant`]: the parameters in the unit of `values`. May be empty otherwise.
    pub weights: &'a [f32],
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
        /// When it arrived, in microseconds of this peer's clock.
        arrived_us: u64,
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
    /// Bounded: this peer may make steps up to this one, not included.
    Limit {
        /// The first step that has to wait.
        step: u64,
    },
}

/// Counters and estimates of one link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkStats {
    /// Packets sent.
    pub packets_out: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Bytes of the gradients behind them as dense f32.
    pub dense_bytes_out: u64,
    /// Times that a packet was due and the link could not take it.
    pub held_back: u64,
    /// Packets applied.
    pub packets_in: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Packets refused.
    pub refused: u64,
    /// What the link carries, bytes per second; none before it is known.
    pub rate: Option<f64>,
    /// Smoothed round trip, microseconds, the time to apply included.
    pub round_trip_us: Option<u64>,
    /// How long the last packets stood in a queue, microseconds.
    pub queueing_us: u64,
    /// Share of the entries in the last packet; for Max N the paper's N / 100.
    pub share: f32,
    /// Bits per value in the last packet, indices left out.
    pub bits: u8,
    /// Bytes of the last packet over the steps in it.
    pub bytes_per_step: f64,
    /// Steps of this peer that the other has not been told of.
    pub steps_untold: u32,
    /// The last step of the other that this peer heard of.
    pub step_heard: u64,
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

impl Exchange {
    /// # Errors
    /// [`ZstdError`]: no memory for the coder's context, or no such level.
    pub fn new(job: JobId, me: PeerId, config: Config, layout: &Layout) -> Result<Self, ZstdError> {
        let shared = Shared::new(job, me, config, layout)?;
        let rule = match config.waiting {
            Waiting::All => Rule::Synchronous(Synchronous::default()),
            Waiting::Never | Waiting::Bounded { .. } => Rule::Asynchronous(Asynchronous::default()),
        };
        Ok(Self { shared, rule })
    }

    /// The view changed, or `None`: this peer is in none. Links to members that are gone, or were admitted anew, are dropped with
    /// their residual. `agreed`: every member is known to hold this view.
    pub fn set_view(&mut self, now: Tick, view: Option<Arc<View>>, agreed: bool) {
        let directly = matches!(self.rule, Rule::Synchronous(_));
        let fresh = self.shared.set_view(view, directly);
        match &mut self.rule {
            Rule::Asynchronous(rule) => {
                let early = rule.set_view(&mut self.shared, &fresh);
                for Early {
                    from,
                    arrived,
                    bytes,
                } in early
                {
                    self.packet(now, arrived, from, &bytes);
                }
            }
            Rule::Synchronous(rule) => rule.set_view(&mut self.shared, now, agreed),
        }
    }

    /// The replica is at `step` now (start, or a state was loaded): earlier packets are of no use.
    pub fn start_at(&mut self, now: Tick, step: u64) {
        match &mut self.rule {
            Rule::Asynchronous(rule) => rule.start_at(&mut self.shared, step),
            Rule::Synchronous(rule) => rule.start_at(&mut self.shared, now, step),
        }
    }

    /// Takes an own gradient.
    ///
    /// # Errors
    /// [`PackError`]: it is not finite; nothing of it was sent or kept. The step counts as made, so that nobody waits for it.
    pub fn gradient(&mut self, now: Tick, gradient: Gradient<'_>) -> Result<(), PackError> {
        match &mut self.rule {
            Rule::Asynchronous(rule) => rule.gradient(&mut self.shared, now, gradient),
            Rule::Synchronous(rule) => rule.gradient(&mut self.shared, now, gradient),
        }
    }

    /// Takes a packet that arrived at `arrived`, which may be some time ago.
    pub fn packet(&mut self, now: Tick, arrived: Tick, from: PeerId, bytes: &[u8]) {
        let (header, packed) = match split(bytes) {
            Ok(parts) => parts,
            Err(reason) => return self.shared.refuse(from, reason),
        };
        if let Rule::Asynchronous(rule) = &mut self.rule
            && rule.is_early(&self.shared, from, &header)
        {
            return rule.keep(&mut self.shared, from, arrived, bytes);
        }
        let stats = self.shared.stats.entry(from).or_default();
        stats.bytes_in += bytes.len() as u64;
        self.shared.outputs.push_back(Output::Applied {
            to: from,
            seq: header.seq,
            arrived_us: arrived.0,
        });
        let view = self.shared.view.as_ref();
        if !view.is_some_and(|view| view.admits(from, header.view)) {
            // Fenced, not hostile: the sender has not heard of the latest view, or this peer has not.
            return;
        }
        match &mut self.rule {
            Rule::Asynchronous(rule) => rule.packet(&mut self.shared, from, header, packed),
            Rule::Synchronous(rule) => rule.packet(&mut self.shared, now, from, header, packed),
        }
    }

    /// The peer applied packet `seq`, which arrived there at `arrived_us` of its clock.
    pub fn applied(&mut self, now: Tick, from: PeerId, seq: u64, arrived_us: u64) {
        if let Some(meter) = self.shared.meters.get_mut(&from) {
            meter.acknowledged(now, seq, arrived_us);
        }
        if let Rule::Asynchronous(rule) = &mut self.rule {
            rule.applied(&mut self.shared, now, from, seq);
        }
    }

    /// The connection to `peer` was lost and made anew: what was in flight may not have arrived, and is sent again.
    pub fn reconnected(&mut self, now: Tick, peer: PeerId) {
        if let Some(meter) = self.shared.meters.get_mut(&peer) {
            meter.reset();
        }
        match &mut self.rule {
            Rule::Asynchronous(rule) => rule.reconnected(&mut self.shared, now, peer),
            Rule::Synchronous(rule) => rule.resend(&mut self.shared, now, peer),
        }
    }

    /// The packet could not be handed to the lane. It was kept, and is offered again when there is room.
    pub fn returned(&mut self, to: PeerId, seq: u64) {
        if let Rule::Asynchronous(rule) = &mut self.rule {
            rule.returned(&mut self.shared, to, seq);
        }
    }

    /// Time passed: what waits is offered again, and what may have been lost is repeated.
    pub fn tick(&mut self, now: Tick) {
        match &mut self.rule {
            Rule::Asynchronous(rule) => rule.tick(&mut self.shared, now),
            Rule::Synchronous(rule) => rule.tick(&mut self.shared, now),
        }
        self.shared.estimate_links();
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

    /// Counters and estimates per peer.
    pub fn stats(&self) -> &BTreeMap<PeerId, LinkStats> {
        &self.shared.stats
    }

    /// Packets made so far, those for several links counted once.
    pub fn n_packed(&self) -> u64 {
        self.shared.n_packed
    }

    /// Arenas that hold what links have not been told.
    pub fn n_residuals(&self) -> usize {
        match &self.rule {
            Rule::Asynchronous(rule) => rule.n_residuals(),
            Rule::Synchronous(_) => 1,
        }
    }
}

//! The coder: the thread that owns a job's [`Exchange`], so that packing and unpacking never hold up training or the network.
//!
//! In: own gradients from the trainer, packets from the update lanes, membership from the driver. Out: packets and returned
//! credits straight to the lanes, merged gradients to the trainer, notices to the driver.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use skein_gossip::exchange::{Exchange, Gradient, LinkStats, Output};
use skein_gossip::ids::{JobId, PeerId};
use skein_gossip::message::{Message, Receipt};
use skein_gossip::time::Tick;
use skein_gossip::view::View;
use skein_gossip::wire::codec;
use tokio::sync::{mpsc, watch};

use super::trainer::Command;
use crate::net::{Lane, Net};

/// Inputs that wait for the coder. Packets of slow moments wait here, then in the lanes, then with their senders.
pub const INPUTS: usize = 32;

/// Processor time of this thread so far; zero where the system does not tell.
pub(super) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map_or(Duration::ZERO, Duration::from)
}

/// What the coder is told.
#[derive(Debug)]
pub enum Input {
    /// An own gradient, in a buffer that goes back to the trainer.
    Gradient {
        /// The (last) step in it.
        step: u64,
        /// Steps in it.
        n_steps: u32,
        /// Samples in it.
        samples: u64,
        /// One value per parameter.
        values: Vec<f32>,
        /// The parameters, where the exchange has to see them.
        weights: Vec<f32>,
    },
    /// The trainer has merged what it was given; here is the buffer.
    Spare(Vec<f32>),
    /// A packet arrived.
    Packet {
        /// Its sender.
        from: PeerId,
        /// When it was read.
        arrived: Instant,
        /// Header and gradient.
        bytes: Vec<u8>,
    },
    /// A peer applied a packet.
    Applied {
        /// The peer.
        from: PeerId,
        /// Which packet, and when it came.
        receipt: Receipt,
    },
    /// The view, and whether every member is known to hold it.
    View {
        /// `None`: in no view.
        view: Option<Arc<View>>,
        /// See [`Exchange::set_view`].
        agreed: bool,
    },
    /// The replica is at this step.
    StartAt(u64),
    /// The connection to a peer was lost and made again.
    Reconnected(PeerId),
    /// Time passed.
    Tick,
    /// End the thread.
    End,
}

/// What the driver sees of the coder.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Counters per link.
    pub links: BTreeMap<PeerId, LinkStats>,
    /// Arenas that hold what links have not been told.
    pub n_residuals: usize,
    /// The latest refusal.
    pub last_refusal: Option<(PeerId, String)>,
}

/// The thread's state.
#[derive(Debug)]
pub struct CoderThread {
    /// The job.
    pub job: JobId,
    /// The decisions and the float work.
    pub exchange: Exchange,
    /// All wait for all.
    pub synchronous: bool,
    /// Inputs.
    pub inputs: mpsc::Receiver<Input>,
    /// To the trainer.
    pub trainer: mpsc::Sender<Command>,
    /// To the lanes.
    pub net: Net,
    /// Counters for the driver.
    pub report: watch::Sender<Report>,
    /// Where time began.
    pub started: Instant,
    /// How far the trainer may go, where it does not know yet.
    pub limit: Option<u64>,
}

impl CoderThread {
    /// Runs until the input channel closes.
    pub fn run(mut self) {
        // Two gradient buffers circulate; the trainer starts with them, and with none of its own.
        let buffers = if self.synchronous { 0 } else { 2 };
        for _ in 0..buffers {
            let buffer = Command::Buffer {
                values: Vec::new(),
                cost: None,
            };
            if self.trainer.blocking_send(buffer).is_err() {
                return;
            }
        }
        let mut spare = Some(Vec::new());
        let mut ready_step = None;
        // What was spent on updates since the last commit.
        let mut spent = Duration::ZERO;
        while let Some(input) = self.inputs.blocking_recv() {
            let began = thread_time();
            if matches!(input, Input::End) {
                return;
            }
            let is_due = matches!(input, Input::Tick | Input::View { .. });
            let is_packet = matches!(input, Input::Packet { .. });
            let handed_over = self.take(input, &mut spare);
            let refused = self.drain(&mut ready_step);
            if is_packet {
                spent += thread_time().saturating_sub(began);
            }
            if let Some(values) = handed_over {
                let cost = Some(std::mem::take(&mut spent) + thread_time().saturating_sub(began));
                let buffer = Command::Buffer { values, cost };
                if self.trainer.blocking_send(buffer).is_err() {
                    return;
                }
            }
            if !self.deliver(&mut spare, &mut ready_step) {
                return;
            }
            if is_due || refused.is_some() {
                self.report.send_modify(|report| {
                    report.links.clone_from(self.exchange.stats());
                    report.n_residuals = self.exchange.n_residuals();
                    report.last_refusal = refused.or(report.last_refusal.take());
                });
            }
        }
    }

    fn now(&self) -> Tick {
        Tick(self.started.elapsed().as_micros() as u64)
    }

    /// Returns the buffer of an own gradient that was handed over.
    fn take(&mut self, input: Input, spare: &mut Option<Vec<f32>>) -> Option<Vec<f32>> {
        let now = self.now();
        match input {
            Input::Gradient {
                step,
                n_steps,
                samples,
                values,
                weights,
            } => {
                let gradient = Gradient {
                    step,
                    n_steps,
                    samples,
                    values: &values,
                    weights: &weights,
                };
                if let Err(error) = self.exchange.gradient(now, gradient) {
                    tracing::warn!(job = %self.job.short(), step, %error, "own gradient is not sent");
                }
                if !self.synchronous {
                    return Some(values);
                }
                *spare = Some(values);
            }
            Input::Spare(values) => *spare = Some(values),
            Input::Packet {
                from,
                arrived,
                bytes,
            } => {
                let arrived = arrived.saturating_duration_since(self.started);
                let arrived = Tick(arrived.as_micros() as u64);
                self.exchange.packet(now, arrived, from, &bytes);
            }
            Input::Applied { from, receipt } => {
                self.exchange
                    .applied(now, from, receipt.seq, receipt.arrived_us);
            }
            Input::View { view, agreed } => self.exchange.set_view(now, view, agreed),
            Input::StartAt(step) => self.exchange.start_at(now, step),
            Input::Reconnected(peer) => self.exchange.reconnected(now, peer),
            Input::Tick | Input::End => self.exchange.tick(now),
        }
        None
    }

    fn drain(&mut self, ready_step: &mut Option<u64>) -> Option<(PeerId, String)> {
        let mut refused = None;
        while let Some(output) = self.exchange.poll() {
            match output {
                Output::Send { to, seq, packet } => {
                    if let Err(error) = self.net.send(to, Lane::Update, packet) {
                        tracing::debug!(peer = %to.short(), %error, "packet waits for the lane");
                        self.exchange.returned(to, seq);
                    }
                }
                Output::Applied {
                    to,
                    seq,
                    arrived_us,
                } => {
                    let receipt = Receipt { seq, arrived_us };
                    let message = codec::encode(&Message::Applied(self.job, receipt));
                    if let Err(error) = self.net.send(to, Lane::Control, message) {
                        tracing::debug!(peer = %to.short(), %error, "credit is not returned");
                    }
                }
                Output::Refused { from, reason } => {
                    tracing::warn!(job = %self.job.short(), peer = %from.short(), reason, "update refused");
                    refused = Some((from, reason));
                }
                Output::Ready { step } => *ready_step = Some(step),
                Output::Limit { step } => self.limit = Some(step),
            }
        }
        // Only the latest counts, and waiting for room here could be waiting for each other.
        if let Some(step) = self.limit
            && self.trainer.try_send(Command::Limit(step)).is_ok()
        {
            self.limit = None;
        }
        refused
    }

    /// Gives the trainer what is there for it, if it has given back the last buffer.
    fn deliver(&mut self, spare: &mut Option<Vec<f32>>, ready_step: &mut Option<u64>) -> bool {
        if self.synchronous && ready_step.is_none() {
            return true;
        }
        let Some(mut buffer) = spare.take() else {
            return true;
        };
        if !self.exchange.take(&mut buffer) {
            *spare = Some(buffer);
            return true;
        }
        let step = ready_step.take().unwrap_or(0);
        self.trainer
            .blocking_send(Command::Merged {
                step,
                values: buffer,
            })
            .is_ok()
    }
}

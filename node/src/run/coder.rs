//! The coder: the thread that owns a job's [`Exchange`], so that packing and unpacking never hold up training or the network.
//!
//! In: own gradients from the trainer, packets from the update lanes, membership from the driver. Out: packets and returned
//! credits straight to the lanes, merged gradients to the trainer, notices to the driver.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use skein_gossip::exchange::{Exchange, Gradient, LinkStats, Mode, Output};
use skein_gossip::ids::{JobId, PeerId};
use skein_gossip::message::Message;
use skein_gossip::time::Tick;
use skein_gossip::view::View;
use skein_gossip::wire::codec;
use tokio::sync::{mpsc, watch};

use super::trainer::Command;
use crate::net::{Lane, Net};

/// Inputs that wait for the coder. Packets of slow moments wait here, then in the lanes, then with their senders.
pub const INPUTS: usize = 32;

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
    },
    /// The trainer has merged what it was given; here is the buffer.
    Spare(Vec<f32>),
    /// A packet arrived.
    Packet {
        /// Its sender.
        from: PeerId,
        /// Header and gradient.
        bytes: Vec<u8>,
    },
    /// A peer applied a packet.
    Applied {
        /// The peer.
        from: PeerId,
        /// Which packet.
        seq: u64,
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
    /// Waiting or not.
    pub mode: Mode,
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
}

impl CoderThread {
    /// Runs until the input channel closes.
    pub fn run(mut self) {
        // Two gradient buffers circulate; the trainer starts with them, and with none of its own.
        let buffers = if self.mode == Mode::Asynchronous {
            2
        } else {
            0
        };
        for _ in 0..buffers {
            if self
                .trainer
                .blocking_send(Command::Buffer(Vec::new()))
                .is_err()
            {
                return;
            }
        }
        let mut spare = Some(Vec::new());
        let mut ready_step = None;
        while let Some(input) = self.inputs.blocking_recv() {
            if matches!(input, Input::End) {
                return;
            }
            let is_due = matches!(input, Input::Tick | Input::View { .. });
            if !self.take(input, &mut spare) {
                return;
            }
            let refused = self.drain(&mut ready_step);
            if !self.deliver(&mut spare, &mut ready_step) {
                return;
            }
            if is_due || refused.is_some() {
                self.report.send_modify(|report| {
                    report.links.clone_from(self.exchange.stats());
                    report.last_refusal = refused.or(report.last_refusal.take());
                });
            }
        }
    }

    fn now(&self) -> Tick {
        Tick(self.started.elapsed().as_micros() as u64)
    }

    fn take(&mut self, input: Input, spare: &mut Option<Vec<f32>>) -> bool {
        let now = self.now();
        match input {
            Input::Gradient {
                step,
                n_steps,
                samples,
                values,
            } => {
                let gradient = Gradient {
                    step,
                    n_steps,
                    samples,
                    values: &values,
                };
                if let Err(error) = self.exchange.gradient(now, gradient) {
                    tracing::warn!(job = %self.job.short(), step, %error, "own gradient is not sent");
                }
                match self.mode {
                    Mode::Asynchronous => {
                        return self.trainer.blocking_send(Command::Buffer(values)).is_ok();
                    }
                    Mode::Synchronous => *spare = Some(values),
                }
            }
            Input::Spare(values) => *spare = Some(values),
            Input::Packet { from, bytes } => self.exchange.packet(now, from, &bytes),
            Input::Applied { from, seq } => self.exchange.applied(from, seq),
            Input::View { view, agreed } => self.exchange.set_view(now, view, agreed),
            Input::StartAt(step) => self.exchange.start_at(now, step),
            Input::Reconnected(peer) => self.exchange.reconnected(peer),
            Input::Tick | Input::End => self.exchange.tick(now),
        }
        true
    }

    fn drain(&mut self, ready_step: &mut Option<u64>) -> Option<(PeerId, String)> {
        let mut refused = None;
        while let Some(output) = self.exchange.poll() {
            match output {
                Output::Send { to, seq, packet } => {
                    // The lane keeps the bytes only if it takes them; a copy is cheap beside packing them again.
                    if let Err(error) = self.net.send(to, Lane::Update, packet.clone()) {
                        tracing::debug!(peer = %to.short(), %error, "packet goes back into the residual");
                        self.exchange.returned(to, seq, &packet);
                    }
                }
                Output::Applied { to, seq } => {
                    let message = codec::encode(&Message::Applied(self.job, seq));
                    if let Err(error) = self.net.send(to, Lane::Control, message) {
                        tracing::debug!(peer = %to.short(), %error, "credit is not returned");
                    }
                }
                Output::Refused { from, reason } => {
                    tracing::warn!(job = %self.job.short(), peer = %from.short(), reason, "update refused");
                    refused = Some((from, reason));
                }
                Output::Ready { step } => *ready_step = Some(step),
            }
        }
        refused
    }

    /// Gives the trainer what is there for it, if it has given back the last buffer.
    fn deliver(&mut self, spare: &mut Option<Vec<f32>>, ready_step: &mut Option<u64>) -> bool {
        if self.mode == Mode::Synchronous && ready_step.is_none() {
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

//! One simulated peer: the agreement and the exchange of `skein_gossip`, driven as the node drives them, with the trainer's
//! and the coder's threads as virtual time.
//!
//! In: messages that arrived, connections, work that is done. Out: [`Effect`]s for the world. `training` is the trainer,
//! `outputs` carries out what the two
//! machines want, `fetching` are the copies between peers, `ending` is the end of the job.

mod ending;
mod fetching;
mod learning;
mod outputs;
mod handover;
mod looking;
mod saving;
mod training;

use std::sync::Arc;

use skein_gossip::agreement::{Agreement, Input};
use skein_gossip::batching::power::Power;
use skein_gossip::exchange::Exchange;
use skein_gossip::gradient::layout::Layout;
use skein_gossip::guide::Guide;
use skein_gossip::ids::{Digest, JobId, PeerId};
use skein_gossip::message::{Decision, Message as Gossip, Pace};
use skein_gossip::time::Tick;
use skein_gossip::view::{Contribution, Holding};
use skein_node::job::JobFile;
use skein_node::run::journal::Entry;

use super::learner::{Learner, State};
use crate::line::line;
use crate::stream::Lane;
use ending::Judged;
use fetching::{Answer, Ask, Fetching};
use skein_netem::link::Nanos;
use skein_netem::record::Metric;
use skein_netem::scenario::Sim;
use training::Trainer;

/// Core seconds to load data and build a model, as a node needs for Fashion-MNIST.
const PREPARING: f64 = 0.35;
/// Between two looks of the node at what is due.
const DUE_EVERY: Nanos = 500_000_000;

/// What all peers of a run share.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) file: JobFile,
    pub(super) costs: Sim,
}

/// What a peer finds again when it is restarted.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    state: State,
    step: u64,
    samples: u64,
}

/// What peers send each other.
#[derive(Debug)]
pub(super) enum Message {
    Gossip(Gossip),
    Update { seq: u64, packet: Vec<u8> },
    Ask(Ask),
    Answer(Answer),
}

/// What the world does for a peer.
#[derive(Debug)]
pub(super) enum Effect {
    Send {
        to: PeerId,
        lane: Lane,
        bytes: usize,
        message: Message,
    },
    /// Tell this peer in so long, unless it was restarted.
    Later { after: Nanos, work: Work },
}

/// What a peer waits for by itself.
#[derive(Debug)]
pub(super) enum Work {
    Prepared,
    StepDone,
    Looked,
    Judged(Box<Judged>),
    Retry { attempt: u64 },
    Tick,
}

/// One peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: PeerId,
    job: Arc<Job>,
    pub(super) agreement: Agreement,
    pub(super) exchange: Exchange,
    learner: Learner,
    /// Cores it may use; none: as many as it has threads.
    pub(super) share: Option<f64>,
    threads: u32,
    trainer: Trainer,
    guide: Guide,
    power: Power,
    pace: Pace,
    /// Whose replica is fetched to learn from.
    learning: Option<PeerId>,
    /// Samples of the losing side of a partition that this replica holds and the others do not.
    unmerged: u64,
    sketched: Option<Nanos>,
    pace_written: Nanos,
    /// Core microseconds of the coder since the last commit.
    coding_us: f64,
    /// Packs made so far.
    n_packed: u64,
    fetching: Fetching,
    attempts: u64,
    /// Whom the fetch under way asked, and when.
    asked: Option<PeerId>,
    asked_at: Nanos,
    began: Option<Nanos>,
    /// The weights that it offers, and the decided ones that it fetched.
    offered: Option<(Digest, State)>,
    fetched: Option<(Digest, State)>,
    /// The decision it closed with.
    pub(super) closed: Option<Option<Decision>>,
    pub(super) disk: Option<Disk>,
    saved: (Nanos, u64),
    /// Core nanoseconds used so far.
    pub(super) used: u64,
    next_tick: Nanos,
    last_due: Nanos,
    effects: Vec<Effect>,
    pub(super) metrics: Vec<Metric>,
}

impl Peer {
    /// A peer that begins to prepare.
    ///
    /// # Errors
    /// A layout or a zstd level that cannot be, in words.
    pub(super) fn new(
        now: Nanos,
        job: Arc<Job>,
        (id, instance): (PeerId, u64),
        mut learner: Learner,
        (share, threads): (Option<f64>, u32),
        disk: Option<Disk>,
    ) -> Result<Self, String> {
        let file = &job.file;
        let strategy = &file.strategy;
        let layout = Layout::new(&learner.lengths()).map_err(|error| error.to_string())?;
        let exchange = Exchange::new(job.id, id, strategy.exchange.config(), &layout)
            .map_err(|error| error.to_string())?;
        let rate = learner.learning_rate();
        let guide = Guide::new(strategy.guide(), id, file.seed, tick(now));
        let mut step = 0;
        if let Some(disk) = &disk {
            learner.load(&disk.state)?;
            step = disk.step;
        }
        let mut peer = Self {
            id,
            agreement: Agreement::new(file.agreement(), id, instance, tick(now)),
            exchange,
            trainer: Trainer::new(now, step, layout.n_values(), &strategy.exchange, rate),
            guide,
            power: Power::new(),
            pace: Pace::default(),
            learning: None,
            unmerged: 0,
            sketched: None,
            pace_written: now,
            coding_us: 0.0,
            n_packed: 0,
            learner,
            share,
            threads,
            fetching: Fetching::Nothing,
            attempts: 0,
            asked: None,
            asked_at: now,
            began: None,
            offered: None,
            fetched: None,
            closed: None,
            disk,
            saved: (now, step),
            used: 0,
            next_tick: Nanos::MAX,
            last_due: now,
            effects: Vec::new(),
            metrics: Vec::new(),
            job,
        };
        let after = peer.works(PREPARING * 1e6);
        peer.later(after, Work::Prepared);
        Ok(peer)
    }

    /// What the world is to do, since the last call.
    pub(super) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Samples it trained on as this process.
    pub(super) fn samples(&self) -> u64 {
        self.trainer.work.samples
    }

    /// Step of its replica.
    pub(super) fn step(&self) -> u64 {
        self.trainer.step
    }

    /// Hash of its replica's weights.
    pub(super) fn weights_hash(&self) -> [u8; 32] {
        self.learner.state().weights_hash()
    }

    /// Bytes of all arenas: weights, gradient, what is summed, the inbox, and the residuals.
    pub(super) fn arena_bytes(&self) -> u64 {
        let n: usize = self.learner.lengths().iter().sum();
        4 * n as u64 * (4 + self.exchange.n_residuals() as u64)
    }

    /// Whether it could close with these weights.
    pub(super) fn holds(&self, digest: Digest) -> bool {
        self.held(digest).is_some()
    }

    fn held(&self, digest: Digest) -> Option<&State> {
        let mut held = self.offered.iter().chain(&self.fetched);
        let found = held.find(|(held, _)| *held == digest);
        found.map(|(_, state)| state)
    }

    pub(super) fn connected(&mut self, now: Nanos, peer: PeerId) {
        self.input(now, Input::Connected(peer));
        self.exchange.reconnected(tick(now), peer);
        self.drain(now);
    }

    pub(super) fn disconnected(&mut self, now: Nanos, peer: PeerId) {
        self.trainer.copies.retain(|(_, asker)| *asker != peer);
        self.input(now, Input::Disconnected(peer));
        self.lost_holder(peer);
    }

    pub(super) fn received(&mut self, now: Nanos, from: PeerId, message: Message) {
        match message {
            Message::Gossip(Gossip::Beat(_, beat)) => self.input(now, Input::Beat(from, beat)),
            Message::Gossip(Gossip::View(_, view)) => self.input(now, Input::View(from, view)),
            Message::Gossip(Gossip::Change(_, change)) => {
                self.input(now, Input::Change(from, change));
            }
            Message::Gossip(Gossip::Leaving(_)) => self.input(now, Input::Leaving(from)),
            Message::Gossip(Gossip::Applied(_, receipt)) => {
                self.exchange
                    .applied(tick(now), from, receipt.seq, receipt.arrived_us);
                self.drain(now);
            }
            Message::Gossip(Gossip::Stop(_, reason)) => self.input(now, Input::StopHolds(reason)),
            // No simulated job is a pipeline.
            Message::Gossip(Gossip::Job(_) | Gossip::Pipeline(..)) => {}
            Message::Update { packet, .. } => {
                self.spend_on_coding(self.job.costs.us_per_applied);
                self.exchange.packet(tick(now), tick(now), from, &packet);
                self.drain(now);
            }
            Message::Ask(ask) => self.on_ask(from, ask),
            Message::Answer(answer) => self.on_answer(now, from, answer),
        }
    }

    pub(super) fn done(&mut self, now: Nanos, work: Work) {
        match work {
            Work::Prepared => self.on_prepared(now),
            Work::StepDone => self.on_step_done(now),
            Work::Looked => self.on_looked(now),
            Work::Judged(judged) => self.on_judged(now, *judged),
            Work::Retry { attempt } => self.on_retry(now, attempt),
            Work::Tick => {
                self.next_tick = Nanos::MAX;
                if now >= self.last_due + DUE_EVERY {
                    self.last_due = now;
                    self.exchange.tick(tick(now));
                    self.drain(now);
                    self.look_around(now);
                    self.write_pace(now);
                    self.check_stop(now);
                }
                self.input(now, Input::Tick);
            }
        }
    }

    /// The lane would not take a packet.
    pub(super) fn returned(&mut self, to: PeerId, seq: u64) {
        self.exchange.returned(to, seq);
    }

    /// Tells the others and saves, as a clean exit does.
    pub(super) fn leave(&mut self, now: Nanos) {
        let heard: Vec<PeerId> = self.agreement.heard().keys().copied().collect();
        for peer in heard {
            self.tell(peer, Gossip::Leaving(self.job.id));
        }
        self.save(now);
    }

    fn on_prepared(&mut self, now: Nanos) {
        let state = self.learner.state();
        let digest = Digest(state.weights_hash());
        let samples = self.disk.as_ref().map_or(0, |disk| disk.samples);
        let step = self.trainer.step;
        let (peer, file) = (self.id.to_string(), &self.job.clone().file);
        self.write(
            now,
            &Entry::Opened {
                peer,
                name: &file.name,
                step,
                samples,
                digest: digest.to_string(),
                skipped_checkpoints: &[],
            },
        );
        let holding = Holding {
            samples,
            step,
            digest,
        };
        self.agreement.set_train_samples(self.learner.train_len());
        self.input(now, Input::Prepared(holding));
        // The end may have been heard of meanwhile.
        self.try_fetch(now);
    }

    pub(super) fn input(&mut self, now: Nanos, input: Input) {
        self.agreement.handle(tick(now), input);
        while let Some(output) = self.agreement.poll() {
            self.carry_out(now, output);
        }
        let wakeup = self.agreement.next_wakeup().0.saturating_mul(1000);
        if wakeup < self.next_tick {
            self.next_tick = wakeup.max(now);
            self.later(self.next_tick - now, Work::Tick);
        }
    }

    fn later(&mut self, after: Nanos, work: Work) {
        self.effects.push(Effect::Later { after, work });
    }

    /// Uses `core_us` microseconds of one core; how long that takes here.
    fn works(&mut self, core_us: f64) -> Nanos {
        self.used += (core_us * 1000.0) as u64;
        let cores = self.share.unwrap_or(f64::from(self.threads));
        let speed = cores.min(f64::from(self.threads)).max(1e-3);
        (core_us * 1000.0 / speed) as Nanos
    }

    /// Packing and unpacking use the coder's thread, which takes from the trainer only what the share does not give beside it.
    fn spend_on_coding(&mut self, cost: f64) {
        self.coding_us += cost;
        let has_room = self
            .share
            .is_none_or(|share| share >= f64::from(self.threads) + 1.0);
        if has_room {
            self.used += (cost * 1000.0) as u64;
        } else {
            self.trainer.owed_us += cost;
        }
    }

    fn contribution(&self) -> Contribution {
        let stats = self.exchange.stats().values();
        let (bytes_out, dense_bytes_out) = stats.fold((0, 0), |(bytes, dense), link| {
            (bytes + link.bytes_out, dense + link.dense_bytes_out)
        });
        Contribution {
            bytes_out,
            dense_bytes_out,
            ..self.trainer.work
        }
    }

    pub(super) fn write(&mut self, now: Nanos, entry: &Entry<'_>) {
        self.metrics.extend(line(now, entry));
    }
}

/// The agreement's clock counts microseconds.
pub(super) fn tick(now: Nanos) -> Tick {
    Tick(now / 1000)
}

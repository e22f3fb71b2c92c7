//! The work of one stage in one view: its tensors, its flow, its queues to the neighbours.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::flow::Flow;
use skein_gossip::pipeline::frame::{HEAD_BYTES, Head, Kind};
use skein_gossip::pipeline::message::View;
use skein_gossip::pipeline::view_key;
use skein_model::data::Sampler;
use skein_model::stage::{BlockState, Stage};
use tokio::sync::mpsc;

use super::super::disk::Kept;
use super::super::outbox::Outbox;
use super::speed::Speed;
use super::{Command, Stop, Worker};

/// Copying takes one part of the time where the job does not say how often, and this many it does not.
const REST: u32 = 7;
/// Share of the time that looks may take where the job does not say how often.
const LOOK_SHARE: f64 = 0.05;

type Queue = mpsc::Sender<Vec<u8>>;

/// The work in one view.
pub(super) struct Work {
    pub(super) view: Arc<View>,
    pub(super) key: u64,
    pub(super) number: usize,
    pub(super) stage: Stage,
    pub(super) flow: Flow<Vec<u8>>,
    pub(super) outbox: Outbox,
    pub(super) lost: mpsc::Receiver<()>,
    pub(super) is_broken: bool,
    /// The job's last step, as far as the first stage knows.
    pub(super) last: Option<u64>,
    pub(super) sampler: Option<(u64, Sampler)>,
    pub(super) rows: Vec<usize>,
    pub(super) loss: f64,
    /// Sum of losses and number of right labels of the look under way.
    pub(super) looked: (f64, u64),
    pub(super) looked_labels: u64,
    pub(super) speed: Speed,
    /// Bytes of frames since the last step.
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) step_samples: u64,
    pub(super) look_began: Option<Instant>,
    /// When the newest line was copied here, and until when there is none.
    pub(super) copied: Option<Instant>,
    pub(super) rests_until: Option<Instant>,
    pub(super) last_look: Option<(Instant, Duration)>,
}

impl Work {
    pub(super) fn begin(
        worker: &Worker,
        view: Arc<View>,
        states: Option<Vec<(u16, Kept)>>,
    ) -> Result<Self, String> {
        let Some((number, own)) = view.plan.stage_of(worker.me) else {
            return Err("the view names no stage for this peer".into());
        };
        let facts = &worker.facts;
        let blocks = own.blocks.clone();
        let mut stage = facts.stage(blocks.clone())?;
        for (block, kept) in states.into_iter().flatten() {
            let layout = facts
                .blocks
                .get(usize::from(block))
                .ok_or("a copy of a block that the model does not have")?;
            let bytes = kept.load(layout)?;
            let state = BlockState::decode(&bytes, layout).map_err(|error| error.to_string())?;
            stage
                .load_block(&state)
                .map_err(|error| error.to_string())?;
        }
        let n_stages = view.plan.stages.len();
        let shape = facts.pipeline.shape(number, n_stages, facts.looks);
        // One notice of a loss is enough.
        let (lost_sender, lost) = mpsc::channel(1);
        let times = worker
            .times
            .get(usize::from(blocks.start)..usize::from(blocks.end));
        Ok(Self {
            key: view_key(view.stamp),
            number,
            stage,
            flow: Flow::new(shape, view.from),
            outbox: Outbox::new(worker.net.clone(), worker.runtime.clone(), lost_sender),
            lost,
            is_broken: false,
            last: None,
            sampler: None,
            rows: Vec::new(),
            loss: 0.0,
            looked: (0.0, 0),
            looked_labels: 0,
            speed: Speed::new(times.unwrap_or_default(), facts.pipeline.micro_batches),
            bytes_in: 0,
            bytes_out: 0,
            step_samples: 0,
            look_began: None,
            copied: None,
            rests_until: None,
            last_look: None,
            view,
        })
    }

    /// Whether `from` hosts the stage that frames of this kind come from.
    pub(super) fn is_from(&self, from: PeerId, kind: Kind) -> bool {
        let sender = match kind {
            Kind::Forward | Kind::LookForward => self.number.checked_sub(1),
            Kind::Backward => Some(self.number + 1),
            Kind::Labels | Kind::LookLabels => Some(0),
        };
        sender
            .and_then(|stage| self.view.plan.stages.get(stage))
            .is_some_and(|stage| stage.host == from)
    }

    /// The newest line has its copies: by default there is none for seven times as long as that took.
    pub(super) fn copies_made(&mut self, step: u64, worker: &Worker) {
        self.flow.set_safe(step);
        if worker.facts.pipeline.copy_every.is_none()
            && let Some(copied) = self.copied.take()
        {
            self.rests_until = Some(Instant::now() + REST * copied.elapsed());
            self.flow.rest_lines(true);
        }
    }

    /// Lines may be made again.
    pub(super) fn end_rest(&mut self) {
        if self
            .rests_until
            .is_some_and(|until| until <= Instant::now())
        {
            self.rests_until = None;
            self.flow.rest_lines(false);
        }
    }

    /// The first stage judges the model from time to time, and after the last step.
    pub(super) fn want_look(&mut self, worker: &Worker) {
        if self.number > 0 || self.flow.shape().looks == 0 {
            return;
        }
        let Some(next) = self.flow.begins().map(|step| step + 1) else {
            return;
        };
        let is_time = match worker.look_every {
            Some(every) => next % every == 0,
            None => self.last_look.is_none_or(|(at, took)| {
                took.as_secs_f64() <= LOOK_SHARE * at.elapsed().as_secs_f64()
            }),
        };
        if is_time || self.last == Some(next) {
            self.flow.want_look();
        }
    }

    /// Sends what follows the head to the host of `stage`; waits for room, and lets the driver interrupt that.
    pub(super) fn send(
        &mut self,
        worker: &mut Worker,
        stage: usize,
        head: &Head,
        body: &[u8],
        is_exact: bool,
    ) -> Result<(), Stop> {
        let Some(host) = self.view.plan.stages.get(stage).map(|stage| stage.host) else {
            return Ok(());
        };
        let mut frame = Vec::with_capacity(HEAD_BYTES + body.len());
        let precision = worker.facts.pipeline.values.on_the_wire();
        let head = Head {
            values: if is_exact { 0 } else { precision as u8 },
            ..*head
        };
        head.append(&mut frame);
        match is_exact {
            true => frame.extend_from_slice(body),
            false => precision.append(body, &mut frame),
        }
        self.bytes_out += frame.len() as u64;
        let queue = self.outbox.queue(host);
        let began = Instant::now();
        let permit = match queue.try_reserve() {
            Ok(permit) => permit,
            Err(_) => futures::executor::block_on(self.room(worker, &queue))?,
        };
        self.speed.waited(began.elapsed());
        permit.send(frame);
        Ok(())
    }

    /// Waits for room in a queue.
    async fn room<'a>(
        &mut self,
        worker: &mut Worker,
        queue: &'a Queue,
    ) -> Result<mpsc::Permit<'a, Vec<u8>>, Stop> {
        loop {
            tokio::select! {
                biased;
                permit = queue.reserve() => return permit.map_err(|_| Stop::Broken),
                _ = self.lost.recv() => return Err(Stop::Broken),
                command = worker.commands.recv() => {
                    let Some(command) = command else { return Err(Stop::End) };
                    let ends = matches!(command, Command::Halt | Command::Switch { .. } | Command::End);
                    worker.postponed.push_back(command);
                    if ends {
                        return Err(Stop::Interrupted);
                    }
                }
            }
        }
    }
}

//! The work of one stage in one view: its tensors, its flow, its queues to the neighbours.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::flow::Flow;
use skein_gossip::pipeline::frame::{HEAD_BYTES, Head, Kind};
use skein_gossip::pipeline::message::View;
use skein_gossip::pipeline::values::Precision;
use skein_gossip::pipeline::view_key;
use skein_model::data::Sampler;
use skein_model::stage::{Activation, BlockState};
use tokio::sync::mpsc;

use super::super::disk::Kept;
use super::super::outbox::Outbox;
use super::hosted::Hosted;
use super::rest::Rest;
use super::speed::Speed;
use super::{Command, Stop, Worker};

/// Share of the time that looks may take where the job does not say how often.
const LOOK_SHARE: f64 = 0.05;

type Queue = mpsc::Sender<Vec<u8>>;

/// The work in one view.
pub(super) struct Work {
    pub(super) view: Arc<View>,
    pub(super) key: u64,
    pub(super) number: usize,
    pub(super) stage: Hosted,
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
    pub(super) rest: Rest,
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
        let decode = |(block, kept): (u16, Kept)| {
            let layout = facts
                .blocks
                .get(usize::from(block))
                .ok_or("a copy of a block that the model does not have")?;
            let bytes = kept.load(layout)?;
            BlockState::decode(&bytes, layout).map_err(|error| error.to_string())
        };
        let states = states.into_iter().flatten().map(decode);
        let n_stages = view.plan.stages.len();
        let shape = facts.pipeline.shape(number, n_stages, facts.looks);
        let stage = Hosted::new(facts, &shape, blocks.clone(), states)?;
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
            speed: Speed::new(times.unwrap_or_default()),
            bytes_in: 0,
            bytes_out: 0,
            step_samples: 0,
            look_began: None,
            rest: Rest::default(),
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

    /// The newest line has its copies: by default there is none for a while.
    pub(super) fn copies_made(&mut self, step: u64, worker: &Worker) {
        self.flow.set_safe(step);
        if self.rest.copied(Instant::now()) && worker.facts.pipeline.copy_every.is_none() {
            self.flow.rest_lines(true);
        }
    }

    /// Lines may be made again.
    pub(super) fn end_rest(&mut self) {
        if self.rest.ends(Instant::now()) {
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
            None if self.flow.is_to_look() => false,
            None => self.last_look.is_none_or(|(at, took)| {
                took.as_secs_f64() <= LOOK_SHARE * at.elapsed().as_secs_f64()
            }),
        };
        if is_time || self.last == Some(next) {
            self.flow.want_look();
        }
    }

    /// Memory for what the stage makes next: the output of block `behind` for so many samples, or the gradient of it.
    pub(super) fn lend(&mut self, worker: &Worker, behind: Option<u16>, samples: u32) {
        if let Some(behind) = behind {
            let n: i64 = worker.facts.shape_behind(behind, samples).iter().product();
            let memory = worker.net.buffers().take(HEAD_BYTES + 4 * n as usize);
            self.stage.lend(memory, HEAD_BYTES);
        }
    }

    /// Sends labels to the host of `stage`.
    pub(super) fn send_labels(
        &mut self,
        worker: &mut Worker,
        stage: usize,
        head: &Head,
        body: &[u8],
    ) -> Result<(), Stop> {
        let mut frame = Vec::with_capacity(HEAD_BYTES + body.len());
        head.append(&mut frame);
        frame.extend_from_slice(body);
        self.send(worker, stage, frame)
    }

    /// Sends an activation or a gradient to the host of `stage`, in the job's number format.
    pub(super) fn pass(
        &mut self,
        worker: &mut Worker,
        stage: usize,
        head: &Head,
        values: Activation,
    ) -> Result<(), Stop> {
        let precision = worker.facts.pipeline.values.on_the_wire();
        let head = Head {
            values: precision as u8,
            ..*head
        };
        let mut bytes = Vec::with_capacity(HEAD_BYTES);
        head.append(&mut bytes);
        let frame = match precision {
            Precision::F32 => values.into_frame(&bytes),
            _ => {
                let n_bytes = precision.n_bytes(values.bytes().len() / 4);
                let buffers = worker.net.buffers();
                let mut frame = buffers.take(HEAD_BYTES + n_bytes.unwrap_or(0));
                frame.clear();
                frame.extend_from_slice(&bytes);
                precision.append(values.bytes(), &mut frame);
                buffers.give(values.into_bytes());
                frame
            }
        };
        self.send(worker, stage, frame)
    }

    /// Sends a frame to the host of `stage`; waits for room, and lets the driver interrupt that.
    fn send(&mut self, worker: &mut Worker, stage: usize, frame: Vec<u8>) -> Result<(), Stop> {
        let Some(host) = self.view.plan.stages.get(stage).map(|stage| stage.host) else {
            return Ok(());
        };
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

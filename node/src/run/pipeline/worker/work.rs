//! The work of one stage in one view: its tensors and its flow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::flow::Flow;
use skein_gossip::pipeline::frame::{HEAD_BYTES, Head, Kind};
use skein_gossip::pipeline::group::{Piece, Place};
use skein_gossip::pipeline::message::View;
use skein_gossip::pipeline::plan::Stage;
use skein_gossip::pipeline::values::Precision;
use skein_gossip::pipeline::view_key;
use skein_model::data::Sampler;
use skein_model::stage::{Activation, BlockState};

use super::super::facts::Facts;
use super::super::times;
use super::adding::Sum;
use super::hosted::Hosted;
use super::rest::Rest;
use super::speed::Spent;
use super::{Stop, Worker};

/// Share of the time that looks may take where the job does not say how often.
const LOOK_SHARE: f64 = 0.05;

/// The work in one view.
pub(super) struct Work {
    pub(super) view: Arc<View>,
    pub(super) key: u64,
    me: PeerId,
    pub(super) place: Place,
    pub(super) stage: Hosted,
    /// Where other peers host the same stage.
    pub(super) sum: Option<Sum>,
    pub(super) flow: Flow<Vec<u8>>,
    /// The job's last step, as far as the first stage knows.
    pub(super) last: Option<u64>,
    pub(super) sampler: Option<(u64, Sampler)>,
    pub(super) rows: Vec<usize>,
    pub(super) loss: f64,
    /// Sum of losses and number of right labels of the look under way.
    pub(super) looked: (f64, u64),
    pub(super) looked_labels: u64,
    /// Seconds of a micro-batch's passes by the profile, forward and backward.
    pub(super) profiled: [f64; 2],
    pub(super) spent: Spent,
    /// Bytes of frames since the last step.
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) step_samples: u64,
    pub(super) look_began: Option<Instant>,
    pub(super) rest: Rest,
    pub(super) last_look: Option<(Instant, Duration)>,
}

impl Work {
    /// Of the stage where this peer stands, from `states` (none: from the job's seed).
    pub(super) fn begin(
        worker: &Worker,
        view: &Arc<View>,
        place: Place,
        states: impl Iterator<Item = Result<BlockState, String>>,
    ) -> Result<Self, String> {
        let own = view.plan.stages.get(place.stage);
        let own = own.ok_or("the view has no such stage")?;
        let facts = &worker.facts;
        let blocks = own.blocks.clone();
        let shape = facts.pipeline.shape(&place, own.in_flight, facts.looks);
        let mut stage = Hosted::new(facts, &shape, blocks.clone(), states)?;
        let micro = facts.pipeline.samples(facts.batch, 0);
        let rows = place.rows.start..place.rows.end.min(micro);
        let mut sum = None;
        if place.is_shared() {
            let who = (place.member, place.group.len());
            let share = rows.len() as f32 / micro as f32;
            sum = Sum::new(&mut stage, who, own.reduction, share, view.from);
            if let Some(stage) = stage.shared() {
                stage.set_first_row(rows.start);
            }
        }
        let range = usize::from(blocks.start)..usize::from(blocks.end);
        let samples = (rows.len(), micro as usize);
        let profiled = times::seconds(&worker.profile, range, samples);
        Ok(Self {
            key: view_key(view.stamp),
            me: worker.me,
            place,
            stage,
            sum,
            flow: Flow::new(shape, view.from),
            last: None,
            sampler: None,
            rows: Vec::new(),
            loss: 0.0,
            looked: (0.0, 0),
            looked_labels: 0,
            profiled,
            spent: Spent::default(),
            bytes_in: 0,
            bytes_out: 0,
            step_samples: 0,
            look_began: None,
            rest: Rest::default(),
            last_look: None,
            view: Arc::clone(view),
        })
    }

    /// Whether this peer decides what is done when.
    pub(super) fn leads_all(&self) -> bool {
        self.place.stage == 0 && self.place.leads()
    }

    /// The lead of a stage.
    pub(super) fn lead_of(&self, stage: usize) -> Option<PeerId> {
        self.view.plan.stages.get(stage).and_then(Stage::lead)
    }

    /// Whether this host, of a source, passes raw samples on.
    pub(super) fn is_source(&self) -> bool {
        matches!(self.stage, Hosted::Source)
    }

    /// Whether such a frame comes from `from`.
    pub(super) fn is_from(&self, from: PeerId, head: &Head) -> bool {
        let place = &self.place;
        match head.kind {
            Kind::Forward | Kind::Backward | Kind::Labels => {
                let is_it = |piece: &Piece| {
                    let is_whole = piece.rows.end == u32::MAX;
                    piece.peer == from
                        && piece.rows.start == head.row
                        && (is_whole || piece.rows.len() as u32 == head.samples)
                };
                place.senders(head.kind).iter().any(is_it)
            }
            Kind::LookForward => {
                let before = place.stage.checked_sub(1);
                before.and_then(|stage| self.lead_of(stage)) == Some(from)
            }
            Kind::LookLabels => self.lead_of(0) == Some(from),
            Kind::Begin | Kind::Looked => place.group.first() == Some(&from),
            Kind::Gradient | Kind::Sum => place.fellows().any(|(_, fellow)| fellow == from),
        }
    }

    /// Takes a frame that [`Work::is_from`] its sender.
    pub(super) fn arrive(
        &mut self,
        from: PeerId,
        head: &Head,
        body: Vec<u8>,
    ) -> Result<(), String> {
        // What stays here was on no link.
        if from != self.me {
            self.bytes_in += body.len() as u64;
        }
        if let (Kind::Gradient | Kind::Sum, Some(sum)) = (head.kind, &mut self.sum) {
            let mut fellows = self.place.fellows();
            let member = fellows.find(|(_, fellow)| *fellow == from);
            let (member, _) = member.ok_or("its sender hosts another stage")?;
            return sum.arrive(head, member, body);
        }
        let at = (head.step, head.micro, head.row);
        let arrived = self
            .flow
            .arrive(head.kind, at, head.version, head.marks, body);
        arrived.map_err(|error| error.to_string())
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
        if !self.leads_all() || self.flow.shape().looks == 0 {
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

    /// Sends bytes to a peer.
    pub(super) fn send_bytes(
        &mut self,
        worker: &mut Worker,
        to: PeerId,
        head: &Head,
        body: &[u8],
    ) -> Result<(), Stop> {
        let mut frame = Vec::with_capacity(HEAD_BYTES + body.len());
        head.append(&mut frame);
        frame.extend_from_slice(body);
        self.send(worker, to, frame)
    }

    /// Sends an activation or a gradient to those who compute its samples next, in the job's number format.
    pub(super) fn pass(
        &mut self,
        worker: &mut Worker,
        to: &[Piece],
        head: &Head,
        values: Activation,
    ) -> Result<(), Stop> {
        let on_the_wire = worker.facts.pipeline.values.on_the_wire();
        // What stays here is not rounded.
        let me = worker.me;
        let precision_to = |peer: PeerId| match peer == me {
            true => Precision::F32,
            false => on_the_wire,
        };
        let factor_to = |work: &Self, peer: PeerId| match head.kind {
            Kind::Backward => work.mean_factor(&worker.facts, peer),
            _ => 1.0,
        };
        let factors: Vec<f32> = to.iter().map(|piece| factor_to(self, piece.peer)).collect();
        if let ([only], [1.0]) = (to, factors.as_slice())
            && precision_to(only.peer) == Precision::F32
        {
            let mut bytes = Vec::with_capacity(HEAD_BYTES);
            head.append(&mut bytes);
            return self.send(worker, only.peer, values.into_frame(&bytes));
        }
        let per_sample = values.bytes().len() / head.samples.max(1) as usize;
        for (piece, factor) in to.iter().zip(factors) {
            let precision = precision_to(piece.peer);
            let rows = piece.rows.start..piece.rows.end.min(head.row + head.samples);
            let at = |row: u32| (row - head.row) as usize * per_sample;
            let own = &values.bytes()[at(rows.start)..at(rows.end)];
            let n_bytes = precision.n_bytes(own.len() / 4);
            let mut frame = worker.net.buffers().take(HEAD_BYTES + n_bytes.unwrap_or(0));
            frame.clear();
            let head = Head {
                samples: rows.len() as u32,
                row: rows.start,
                values: precision as u8,
                ..*head
            };
            head.append(&mut frame);
            match factor {
                1.0 => precision.append(own, &mut frame),
                factor => precision.append(&scaled(own, factor), &mut frame),
            }
            self.send(worker, piece.peer, frame)?;
        }
        worker.net.buffers().give(values.into_bytes());
        Ok(())
    }

    /// A stage's gradient is that of the mean over its host's samples. Where a host of the stage before has another number of samples, it
    /// is another mean there: by so much is the gradient larger.
    fn mean_factor(&self, facts: &Facts, to: PeerId) -> f32 {
        let micro = facts.pipeline.samples(facts.batch, 0);
        let before = self.place.stage.checked_sub(1);
        let before = before.and_then(|before| Place::of(&self.view.plan, before, to));
        let n = |place: &Place| place.rows.end.min(micro).saturating_sub(place.rows.start);
        match before.as_ref().map(n) {
            Some(theirs) if theirs > 0 && theirs != n(&self.place) => {
                n(&self.place) as f32 / theirs as f32
            }
            _ => 1.0,
        }
    }

    /// Sends a frame.
    pub(super) fn send(
        &mut self,
        worker: &mut Worker,
        to: PeerId,
        frame: Vec<u8>,
    ) -> Result<(), Stop> {
        if to != worker.me {
            self.bytes_out += frame.len() as u64;
        }
        self.spent.waited(worker.send(to, frame)?);
        Ok(())
    }
}

/// Little-endian f32 times `factor`.
fn scaled(values: &[u8], factor: f32) -> Vec<u8> {
    let values = values.as_chunks::<4>().0.iter();
    let scaled = values.map(|value| f32::from_le_bytes(*value) * factor);
    scaled.flat_map(f32::to_le_bytes).collect()
}

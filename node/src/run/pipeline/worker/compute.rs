//! What a stage does with a micro-batch: passes, the update, copies.

use std::sync::Arc;
use std::time::Instant;

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::flow::Op;
use skein_gossip::pipeline::frame::{HEAD_BYTES, Head, Kind};
use skein_gossip::pipeline::group::Place;
use skein_gossip::pipeline::values::Precision;
use skein_model::stage::{Activation, StageError};

use super::super::disk::State;
use super::samples::Given;
use super::speed::{Pass, Spent};
use super::work::Work;
use super::{Stop, Worker};

/// Step, number and version of a micro-batch.
pub(super) type At = (u64, u32, u64);

/// What a stage has made for all to know.
#[derive(Debug)]
pub(super) enum Made {
    /// A step.
    Step {
        step: u64,
        /// Mean loss of its samples, of the last stage.
        loss: Option<f32>,
        samples: u64,
        spent: Spent,
        /// In and out.
        bytes: [u64; 2],
    },
    /// A copy of its blocks.
    Copy {
        step: u64,
        states: Vec<(u16, State)>,
    },
}

impl Work {
    /// Does one thing.
    pub(super) fn perform(
        &mut self,
        op: Op<Vec<u8>>,
        worker: &mut Worker,
    ) -> Result<Option<Made>, Stop> {
        match op {
            Op::Forward {
                step,
                micro,
                version,
                input,
            } => self.forward(worker, (step, micro, version), input)?,
            Op::Loss {
                step,
                micro,
                version,
                input,
                labels,
            } => self.loss(worker, (step, micro, version), input, labels)?,
            Op::Backward {
                step,
                micro,
                gradient,
            } => self.backward(worker, (step, micro, step), gradient)?,
            Op::Add { step } => self.share_gradient(worker, step)?,
            Op::Apply { step } => return self.apply(step).map(Some),
            Op::Copy { step } => return self.copy(step).map(Some),
            Op::Look {
                step,
                micro,
                input,
                labels,
            } => self.look(worker, (step, micro, step), input, labels)?,
        }
        Ok(None)
    }

    /// The first stage's lead tells its fellows that a step begins, and what is done after it.
    fn tell_begin(&mut self, worker: &mut Worker, at: At) -> Result<(), Stop> {
        if !self.leads_all() || at.1 > 0 {
            return Ok(());
        }
        self.tell_fellows(worker, Kind::Begin, at.0)
    }

    pub(super) fn tell_fellows(
        &mut self,
        worker: &mut Worker,
        kind: Kind,
        step: u64,
    ) -> Result<(), Stop> {
        let fellows: Vec<PeerId> = self.place.fellows().map(|(_, fellow)| fellow).collect();
        let head = self.head(worker, (step, 0, step), kind, 0);
        let mut tell = fellows.into_iter();
        tell.try_for_each(|fellow| self.send_bytes(worker, fellow, &head, &[]))
    }

    fn forward(
        &mut self,
        worker: &mut Worker,
        at: At,
        input: Option<Vec<Vec<u8>>>,
    ) -> Result<(), Stop> {
        self.tell_begin(worker, at)?;
        if self.is_source() {
            return self.pass_on(worker, at);
        }
        let began = Instant::now();
        let (samples, part) = self.share(worker, at);
        self.lend(worker, Some(self.blocks().end - 1), samples);
        let mut labels = Vec::new();
        let output = match input {
            None => {
                let batch;
                (batch, labels) = self.draw(worker, at.0, at.1)?;
                self.stage.forward(part, (&batch).into())
            }
            Some(body) => match self.given(worker, body, samples)? {
                Given::Samples(batch) => self.stage.forward(part, (&batch).into()),
                Given::Activation(activation) => {
                    let output = self.stage.forward(part, (&activation).into());
                    worker.net.buffers().give(activation.into_bytes());
                    output
                }
            },
        };
        let output = output.map_err(failed)?;
        self.spent
            .computed(self.profiled, Pass::Forward, began.elapsed());
        let head = self.head(worker, at, Kind::Forward, samples);
        if self.place.stage == 0 {
            self.send_labels(worker, &head, &labels)?;
        }
        let behind = self.place.behind.clone();
        self.pass(worker, &behind, &head, output)
    }

    /// Labels go straight to the hosts of the last stage that compute their samples.
    pub(super) fn send_labels(
        &mut self,
        worker: &mut Worker,
        head: &Head,
        labels: &[i64],
    ) -> Result<(), Stop> {
        let per_sample = labels.len() / head.samples.max(1) as usize;
        for piece in self.place.labels.clone() {
            let rows = piece.rows.start..piece.rows.end.min(head.row + head.samples);
            let at = |row: u32| (row - head.row) as usize * per_sample;
            let own = label_bytes(&labels[at(rows.start)..at(rows.end)]);
            let head = Head {
                kind: Kind::Labels,
                stage: self.goes_to(Kind::Labels),
                samples: rows.len() as u32,
                row: rows.start,
                ..*head
            };
            self.send_bytes(worker, piece.peer, &head, &own)?;
        }
        Ok(())
    }

    fn loss(
        &mut self,
        worker: &mut Worker,
        at: At,
        input: Option<Vec<Vec<u8>>>,
        labels: Option<Vec<Vec<u8>>>,
    ) -> Result<(), Stop> {
        self.tell_begin(worker, at)?;
        let began = Instant::now();
        let (samples, part) = self.share(worker, at);
        self.lend(worker, self.blocks().start.checked_sub(1), samples);
        let loss = match input {
            None => {
                let (batch, labels) = self.draw(worker, at.0, at.1)?;
                self.stage.loss(part, (&batch).into(), &labels)
            }
            Some(body) => {
                let labels = read_labels(labels.unwrap_or_default())?;
                match self.given(worker, body, samples)? {
                    Given::Samples(batch) => self.stage.loss(part, (&batch).into(), &labels),
                    Given::Activation(activation) => {
                        let loss = self.stage.loss(part, (&activation).into(), &labels);
                        worker.net.buffers().give(activation.into_bytes());
                        loss
                    }
                }
            }
        };
        let loss = loss.map_err(failed)?;
        self.loss += f64::from(loss.loss) * f64::from(part.weight);
        self.step_samples += u64::from(samples);
        self.spent
            .computed(self.profiled, Pass::Both, began.elapsed());
        self.pass_back(worker, at, samples, loss.gradient)
    }

    fn backward(&mut self, worker: &mut Worker, at: At, body: Vec<Vec<u8>>) -> Result<(), Stop> {
        if self.is_source() {
            // Samples that it passed on are through; there is nothing in these frames.
            return Ok(());
        }
        let began = Instant::now();
        let (samples, part) = self.share(worker, at);
        self.lend(worker, self.blocks().start.checked_sub(1), samples);
        let upstream = self.activation(worker, body, self.blocks().end - 1, samples)?;
        let gradient = self.stage.backward(part, &upstream).map_err(failed)?;
        worker.net.buffers().give(upstream.into_bytes());
        self.step_samples += u64::from(samples);
        self.spent
            .computed(self.profiled, Pass::Backward, began.elapsed());
        self.pass_back(worker, at, samples, gradient)
    }

    fn pass_back(
        &mut self,
        worker: &mut Worker,
        at: At,
        samples: u32,
        gradient: Option<Activation>,
    ) -> Result<(), Stop> {
        let before = self.place.before.clone();
        let head = self.head(worker, at, Kind::Backward, samples);
        match gradient {
            Some(gradient) => self.pass(worker, &before, &head, gradient),
            // A source has no use for gradients, but is told that its samples are through.
            None => self.pass_raw(worker, &before, &head, &[]),
        }
    }

    fn apply(&mut self, step: u64) -> Result<Made, Stop> {
        let began = Instant::now();
        self.take_sum()?;
        self.stage.apply(step).map_err(failed)?;
        self.spent
            .computed(self.profiled, Pass::Update, began.elapsed());
        self.rest.stepped(Instant::now());
        let loss = std::mem::take(&mut self.loss) as f32;
        Ok(Made::Step {
            step,
            loss: self.stage.is_last().then_some(loss),
            samples: std::mem::take(&mut self.step_samples),
            spent: std::mem::take(&mut self.spent),
            bytes: [
                std::mem::take(&mut self.bytes_in),
                std::mem::take(&mut self.bytes_out),
            ],
        })
    }

    fn copy(&mut self, step: u64) -> Result<Made, Stop> {
        self.rest.copying(Instant::now());
        let state = |block: u16| {
            let mut bytes = Vec::new();
            self.stage.encode_block(block, &mut bytes).map_err(failed)?;
            Ok((block, Arc::new(bytes)))
        };
        let states = self.blocks().map(state).collect::<Result<_, Stop>>()?;
        Ok(Made::Copy { step, states })
    }

    pub(super) fn blocks(&self) -> std::ops::Range<u16> {
        let blocks = self.stage.blocks();
        blocks.start as u16..blocks.end as u16
    }

    /// What frames hold of the output of block `behind`, one after the other. Its memory is to be given back.
    pub(super) fn activation(
        &self,
        worker: &Worker,
        mut frames: Vec<Vec<u8>>,
        behind: u16,
        samples: u32,
    ) -> Result<Activation, Stop> {
        let shape = worker.facts.shape_behind(behind, samples);
        let per_sample = worker.facts.shape_behind(behind, 1).iter().product::<i64>() as usize;
        let buffers = worker.net.buffers();
        let read = || {
            let head = |frame: &[u8]| Head::read(frame).map_err(|error| error.to_string());
            if let [only] = frames.as_slice()
                && head(only)?.values == Precision::F32 as u8
            {
                let only = std::mem::take(&mut frames[0]);
                return Activation::in_frame(shape, only, HEAD_BYTES)
                    .map_err(|error| error.to_string());
            }
            let mut bytes = buffers.take(4 * per_sample * samples as usize);
            bytes.clear();
            for frame in frames {
                let head = head(&frame)?;
                let precision = Precision::of(head.values).map_err(|error| error.to_string())?;
                let n = head.samples.min(samples) as usize;
                let mut piece = buffers.take(4 * per_sample * n);
                precision
                    .read(&frame[HEAD_BYTES..], per_sample * n, &mut piece)
                    .map_err(|error| error.to_string())?;
                bytes.extend_from_slice(&piece);
                buffers.give(piece);
                buffers.give(frame);
            }
            Activation::new(shape, bytes).map_err(|error| error.to_string())
        };
        read().map_err(|reason: String| {
            tracing::warn!(reason, "a frame of a pipeline is damaged");
            Stop::Broken
        })
    }

    /// Number of the stage that such a frame goes to.
    fn goes_to(&self, kind: Kind) -> u8 {
        let Place {
            stage, n_stages, ..
        } = self.place;
        let stage = match kind {
            Kind::Forward | Kind::LookForward => stage + 1,
            Kind::Backward => stage.saturating_sub(1),
            Kind::Labels | Kind::LookLabels => n_stages - 1,
            Kind::Begin | Kind::Looked | Kind::Gradient | Kind::Sum => stage,
        };
        // A plan has 64 at most.
        u8::try_from(stage).unwrap_or(u8::MAX)
    }

    pub(super) fn head(&self, worker: &Worker, at: At, kind: Kind, samples: u32) -> Head {
        Head {
            job: worker.job,
            view: self.key,
            step: at.0,
            version: at.2,
            micro: at.1,
            kind,
            marks: self.flow.marks(at.0),
            values: 0,
            stage: self.goes_to(kind),
            samples,
            row: match kind {
                Kind::Forward | Kind::Backward => self.place.rows.start,
                _ => 0,
            },
        }
    }
}

/// A version that the stage does not keep was named by another's frame: this view cannot be finished, another may.
pub(super) fn failed(error: StageError) -> Stop {
    match error {
        StageError::Version { .. } => {
            tracing::warn!(%error, "a frame of a pipeline asks for other weights");
            Stop::Broken
        }
        _ => Stop::Failed(error.to_string()),
    }
}

pub(super) fn label_bytes(labels: &[i64]) -> Vec<u8> {
    labels
        .iter()
        .flat_map(|label| label.to_le_bytes())
        .collect()
}

pub(super) fn read_labels(frames: Vec<Vec<u8>>) -> Result<Vec<i64>, Stop> {
    let mut all = Vec::new();
    for frame in frames {
        let body = frame.get(HEAD_BYTES..).ok_or(Stop::Broken)?;
        let (labels, rest) = body.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(Stop::Broken);
        }
        all.extend(labels.iter().map(|label| i64::from_le_bytes(*label)));
    }
    Ok(all)
}

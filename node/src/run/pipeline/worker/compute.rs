//! What a stage does with a micro-batch: passes, the update, copies, looks at held-out samples.

use std::sync::Arc;
use std::time::Instant;

use skein_gossip::pipeline::flow::Op;
use skein_gossip::pipeline::frame::{HEAD_BYTES, Head, Kind};
use skein_gossip::pipeline::message::Judged;
use skein_gossip::pipeline::values::Precision;
use skein_model::config::Split;
use skein_model::data::{Batch, Sampler};
use skein_model::stage::{Activation, StageError};

use super::hosted::Part;
use super::speed::Pass;
use super::work::Work;
use super::{Event, Step, Stop, Worker};

/// Step, number and version of a micro-batch.
type At = (u64, u32, u64);

impl Work {
    /// Does one thing.
    pub(super) fn perform(&mut self, op: Op<Vec<u8>>, worker: &mut Worker) -> Result<(), Stop> {
        match op {
            Op::Forward {
                step,
                micro,
                version,
                input,
            } => self.forward(worker, (step, micro, version), input),
            Op::Loss {
                step,
                micro,
                version,
                input,
                labels,
            } => self.loss(worker, (step, micro, version), input, labels),
            Op::Backward {
                step,
                micro,
                gradient,
            } => self.backward(worker, (step, micro, step), gradient),
            Op::Apply { step } => self.apply(worker, step),
            Op::Copy { step } => self.copy(worker, step),
            Op::Look {
                step,
                micro,
                input,
                labels,
            } => self.look(worker, (step, micro, step), input, labels),
        }
    }

    fn forward(&mut self, worker: &mut Worker, at: At, input: Option<Vec<u8>>) -> Result<(), Stop> {
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
            Some(body) => {
                let activation = self.activation(worker, body, self.blocks().start - 1, samples)?;
                let output = self.stage.forward(part, (&activation).into());
                worker.net.buffers().give(activation.into_bytes());
                output
            }
        };
        let output = output.map_err(failed)?;
        self.speed.computed(Pass::Forward, began.elapsed());
        let head = self.head(worker, at, Kind::Forward, samples);
        if self.number == 0 {
            let labels = label_bytes(&labels);
            let last = self.view.plan.stages.len() - 1;
            self.send_labels(
                worker,
                last,
                &Head {
                    kind: Kind::Labels,
                    ..head
                },
                &labels,
            )?;
        }
        self.pass(worker, self.number + 1, &head, output)
    }

    fn loss(
        &mut self,
        worker: &mut Worker,
        at: At,
        input: Option<Vec<u8>>,
        labels: Option<Vec<u8>>,
    ) -> Result<(), Stop> {
        let began = Instant::now();
        let (samples, part) = self.share(worker, at);
        self.lend(worker, self.blocks().start.checked_sub(1), samples);
        let loss = match input {
            None => {
                let (batch, labels) = self.draw(worker, at.0, at.1)?;
                self.stage.loss(part, (&batch).into(), &labels)
            }
            Some(body) => {
                let activation = self.activation(worker, body, self.blocks().start - 1, samples)?;
                let labels = read_labels(labels.as_deref())?;
                let loss = self.stage.loss(part, (&activation).into(), &labels);
                worker.net.buffers().give(activation.into_bytes());
                loss
            }
        };
        let loss = loss.map_err(failed)?;
        self.loss += f64::from(loss.loss) * f64::from(part.weight);
        self.step_samples += u64::from(samples);
        self.speed.computed(Pass::Both, began.elapsed());
        self.pass_back(worker, at, samples, loss.gradient)
    }

    fn backward(&mut self, worker: &mut Worker, at: At, body: Vec<u8>) -> Result<(), Stop> {
        let began = Instant::now();
        let (samples, part) = self.share(worker, at);
        self.lend(worker, self.blocks().start.checked_sub(1), samples);
        let upstream = self.activation(worker, body, self.blocks().end - 1, samples)?;
        let gradient = self.stage.backward(part, &upstream).map_err(failed)?;
        worker.net.buffers().give(upstream.into_bytes());
        self.step_samples += u64::from(samples);
        self.speed.computed(Pass::Backward, began.elapsed());
        self.pass_back(worker, at, samples, gradient)
    }

    fn pass_back(
        &mut self,
        worker: &mut Worker,
        at: At,
        samples: u32,
        gradient: Option<Activation>,
    ) -> Result<(), Stop> {
        let (Some(gradient), Some(before)) = (gradient, self.number.checked_sub(1)) else {
            return Ok(());
        };
        let head = self.head(worker, at, Kind::Backward, samples);
        self.pass(worker, before, &head, gradient)
    }

    fn apply(&mut self, worker: &mut Worker, step: u64) -> Result<(), Stop> {
        let began = Instant::now();
        self.stage.apply(step).map_err(failed)?;
        self.speed.computed(Pass::Update, began.elapsed());
        self.rest.stepped(Instant::now());
        let (computing, waiting, slowdown) = self.speed.stepped();
        let loss = std::mem::take(&mut self.loss) as f32;
        worker.tell(Event::Stepped(Step {
            step,
            view: self.view.stamp.number,
            loss: self.stage.is_last().then_some(loss),
            samples: std::mem::take(&mut self.step_samples),
            computing,
            waiting,
            slowdown,
            bytes_in: std::mem::take(&mut self.bytes_in),
            bytes_out: std::mem::take(&mut self.bytes_out),
        }))
    }

    fn copy(&mut self, worker: &mut Worker, step: u64) -> Result<(), Stop> {
        self.rest.copying(Instant::now());
        let state = |block: u16| {
            let mut bytes = Vec::new();
            self.stage.encode_block(block, &mut bytes).map_err(failed)?;
            Ok((block, Arc::new(bytes)))
        };
        let states = self.blocks().map(state).collect::<Result<_, Stop>>()?;
        let view = self.view.stamp;
        worker.tell(Event::Copied { view, step, states })
    }

    fn look(
        &mut self,
        worker: &mut Worker,
        at: At,
        input: Option<Vec<u8>>,
        labels: Option<Vec<u8>>,
    ) -> Result<(), Stop> {
        let rows = worker.facts.look_rows(at.1);
        let samples = rows.len() as u32;
        let began = Instant::now();
        if at.1 == 0 {
            (self.looked, self.look_began) = ((0.0, 0), Some(began));
        }
        let (batch, activation);
        let (x, labels): (skein_model::stage::Input<'_>, Vec<i64>) = match input {
            None => {
                let Some(data) = &worker.data else {
                    return Err(Stop::Failed("the first stage has no data".into()));
                };
                let rows: Vec<usize> = rows.collect();
                batch = data.validation.batch(&rows);
                ((&batch).into(), batch.labels())
            }
            Some(body) => {
                activation = self.activation(worker, body, self.blocks().start - 1, samples)?;
                let labels = if self.stage.is_last() {
                    read_labels(labels.as_deref())?
                } else {
                    Vec::new()
                };
                ((&activation).into(), labels)
            }
        };
        if !self.stage.is_last() {
            let output = self.stage.evaluate(x).map_err(failed)?;
            let head = self.head(worker, at, Kind::LookForward, samples);
            if self.number == 0 {
                let last = self.view.plan.stages.len() - 1;
                let labels_head = Head {
                    kind: Kind::LookLabels,
                    ..head
                };
                self.send_labels(worker, last, &labels_head, &label_bytes(&labels))?;
            }
            self.pass(worker, self.number + 1, &head, output)?;
        } else {
            let n_labels = labels.len() as u64;
            let (loss, correct) = self.stage.evaluate_loss(x, &labels).map_err(failed)?;
            self.looked.0 += loss;
            self.looked.1 += correct as u64;
            self.looked_labels += n_labels;
        }
        if at.1 + 1 < self.flow.shape().looks {
            return Ok(());
        }
        self.last_look = self
            .look_began
            .map(|began| (Instant::now(), began.elapsed()));
        if !self.stage.is_last() {
            return Ok(());
        }
        let n = std::mem::take(&mut self.looked_labels).max(1) as f64;
        worker.tell(Event::Judged(Judged {
            step: at.0,
            accuracy: (self.looked.1 as f64 / n) as f32,
            loss: (self.looked.0 / n).min(f64::from(f32::MAX)) as f32,
            samples: worker.facts.look_samples,
        }))
    }

    /// Samples of a micro-batch, and its part of the step.
    fn share(&self, worker: &Worker, (step, micro, version): At) -> (u32, Part) {
        let batch = worker.facts.batch;
        let samples = worker.facts.pipeline.samples(batch, micro);
        let part = Part {
            step,
            micro,
            version,
            weight: samples as f32 / batch as f32,
        };
        (samples, part)
    }

    /// The rows of a micro-batch: of step `step` always the same, whoever draws them.
    fn draw(&mut self, worker: &Worker, step: u64, micro: u32) -> Result<(Batch, Vec<i64>), Stop> {
        let Some(data) = &worker.data else {
            return Err(Stop::Failed("the first stage has no data".into()));
        };
        let facts = &worker.facts;
        if self.sampler.as_ref().is_none_or(|(of, _)| *of != step) {
            let next = self.sampler.take().filter(|(of, _)| of + 1 == step);
            let position = step * u64::from(facts.batch);
            let mut sampler = match next {
                Some((_, sampler)) => sampler,
                None => Sampler::new(&Split::All {}, data.train.labels(), facts.seed, 0, position)
                    .map_err(|error| Stop::Failed(error.to_string()))?,
            };
            self.rows = sampler.next_rows(facts.batch as usize);
            self.sampler = Some((step, sampler));
        }
        let before: u32 = (0..micro)
            .map(|micro| facts.pipeline.samples(facts.batch, micro))
            .sum();
        let end = before + facts.pipeline.samples(facts.batch, micro);
        let rows = &self.rows[before as usize..end as usize];
        let batch = data.train.batch(rows);
        let labels = batch.labels();
        Ok((batch, labels))
    }

    fn blocks(&self) -> std::ops::Range<u16> {
        let blocks = self.stage.blocks();
        blocks.start as u16..blocks.end as u16
    }

    /// What a frame holds of the output of block `behind`. Its memory is to be given back.
    fn activation(
        &self,
        worker: &Worker,
        frame: Vec<u8>,
        behind: u16,
        samples: u32,
    ) -> Result<Activation, Stop> {
        let shape = worker.facts.shape_behind(behind, samples);
        let n = shape.iter().product::<i64>() as usize;
        let read = || {
            let head = Head::read(&frame).map_err(|error| error.to_string())?;
            let precision = Precision::of(head.values).map_err(|error| error.to_string())?;
            if precision == Precision::F32 {
                return Activation::in_frame(shape, frame, HEAD_BYTES)
                    .map_err(|error| error.to_string());
            }
            let buffers = worker.net.buffers();
            let mut bytes = buffers.take(4 * n);
            precision
                .read(&frame[HEAD_BYTES..], n, &mut bytes)
                .map_err(|error| error.to_string())?;
            buffers.give(frame);
            Activation::new(shape, bytes).map_err(|error| error.to_string())
        };
        read().map_err(|reason: String| {
            tracing::warn!(reason, "a frame of a pipeline is damaged");
            Stop::Broken
        })
    }

    fn head(&self, worker: &Worker, at: At, kind: Kind, samples: u32) -> Head {
        Head {
            job: worker.job,
            view: self.key,
            step: at.0,
            version: at.2,
            micro: at.1,
            kind,
            marks: self.flow.marks(at.0),
            values: 0,
            samples,
        }
    }
}

/// A version that the stage does not keep was named by another's frame: this view cannot be finished, another may.
fn failed(error: StageError) -> Stop {
    match error {
        StageError::Version { .. } => {
            tracing::warn!(%error, "a frame of a pipeline asks for other weights");
            Stop::Broken
        }
        _ => Stop::Failed(error.to_string()),
    }
}

fn label_bytes(labels: &[i64]) -> Vec<u8> {
    labels
        .iter()
        .flat_map(|label| label.to_le_bytes())
        .collect()
}

fn read_labels(frame: Option<&[u8]>) -> Result<Vec<i64>, Stop> {
    let body = frame
        .and_then(|frame| frame.get(HEAD_BYTES..))
        .ok_or(Stop::Broken)?;
    let (labels, rest) = body.as_chunks::<8>();
    if rest.is_empty() {
        Ok(labels
            .iter()
            .map(|label| i64::from_le_bytes(*label))
            .collect())
    } else {
        Err(Stop::Broken)
    }
}

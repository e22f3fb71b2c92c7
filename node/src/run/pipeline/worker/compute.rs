//! What a stage does with a micro-batch: passes, the update, copies, looks at held-out samples.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::flow::Op;
use skein_gossip::pipeline::frame::{HEAD_BYTES, Head, Kind};
use skein_gossip::pipeline::group::Piece;
use skein_gossip::pipeline::message::Judged;
use skein_gossip::pipeline::values::Precision;
use skein_model::config::Split;
use skein_model::data::{Batch, Sampler};
use skein_model::stage::{Activation, StageError};

use super::super::processor::Spent;
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
            Op::Add { step } => self.share_gradient(worker, step),
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

    /// The first stage's lead tells its fellows that a step begins, and what is done after it.
    fn tell_begin(&mut self, worker: &mut Worker, at: At) -> Result<(), Stop> {
        if !self.leads_all() || at.1 > 0 {
            return Ok(());
        }
        self.tell_fellows(worker, Kind::Begin, at.0)
    }

    fn tell_fellows(&mut self, worker: &mut Worker, kind: Kind, step: u64) -> Result<(), Stop> {
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
        if self.place.stage == 0 {
            self.send_labels(worker, &head, &labels)?;
        }
        let behind = self.place.behind.clone();
        self.pass(worker, &behind, &head, output)
    }

    /// Labels go straight to the hosts of the last stage that compute their samples.
    fn send_labels(
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
                let activation = self.activation(worker, body, self.blocks().start - 1, samples)?;
                let labels = read_labels(labels.unwrap_or_default())?;
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

    fn backward(&mut self, worker: &mut Worker, at: At, body: Vec<Vec<u8>>) -> Result<(), Stop> {
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
        let Some(gradient) = gradient else {
            return Ok(());
        };
        let head = self.head(worker, at, Kind::Backward, samples);
        let before = self.place.before.clone();
        self.pass(worker, &before, &head, gradient)
    }

    fn apply(&mut self, worker: &mut Worker, step: u64) -> Result<(), Stop> {
        let began = Instant::now();
        self.take_sum()?;
        self.stage.apply(step).map_err(failed)?;
        self.speed.computed(Pass::Update, began.elapsed());
        self.rest.stepped(Instant::now());
        let stepped = self.speed.stepped(Spent::now(), Instant::now());
        let loss = std::mem::take(&mut self.loss) as f32;
        worker.tell(Event::Stepped(Step {
            step,
            view: self.view.stamp.number,
            loss: self.stage.is_last().then_some(loss),
            samples: std::mem::take(&mut self.step_samples),
            computing: stepped.computing,
            waiting: stepped.waiting,
            spent: stepped.spent,
            slowdown: stepped.slowdown,
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
                let before = self.blocks().start - 1;
                activation = self.activation(worker, vec![body], before, samples)?;
                let labels = read_labels(labels.into_iter().collect())?;
                ((&activation).into(), labels)
            }
        };
        if !self.stage.is_last() {
            let output = self.stage.evaluate(x).map_err(failed)?;
            let head = Head {
                row: 0,
                ..self.head(worker, at, Kind::LookForward, samples)
            };
            let whole = |peer| Piece {
                peer,
                rows: 0..samples,
            };
            let next = self.lead_of(self.place.stage + 1).map(whole);
            if self.place.stage == 0
                && let Some(last) = self.lead_of(self.place.n_stages - 1)
            {
                let head = Head {
                    kind: Kind::LookLabels,
                    ..head
                };
                self.send_bytes(worker, last, &head, &label_bytes(&labels))?;
            }
            self.pass(worker, next.as_slice(), &head, output)?;
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
        self.tell_fellows(worker, Kind::Looked, at.0)?;
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

    /// The samples of a micro-batch that this host computes.
    fn own_rows(&self, worker: &Worker, micro: u32) -> Range<u32> {
        let facts = &worker.facts;
        let all = facts.pipeline.samples(facts.batch, micro);
        self.place.rows.start.min(all)..self.place.rows.end.min(all)
    }

    /// Number of the own samples of a micro-batch, and their part of the step.
    fn share(&self, worker: &Worker, (step, micro, version): At) -> (u32, Part) {
        let batch = worker.facts.batch;
        let samples = self.own_rows(worker, micro).len() as u32;
        let part = Part {
            step,
            micro,
            version,
            weight: samples as f32 / batch as f32,
        };
        (samples, part)
    }

    /// The own rows of a micro-batch: of step `step` always the same, whoever draws them.
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
        let own = self.own_rows(worker, micro);
        let rows = &self.rows[(before + own.start) as usize..(before + own.end) as usize];
        let batch = data.train.batch(rows);
        let labels = batch.labels();
        Ok((batch, labels))
    }

    fn blocks(&self) -> std::ops::Range<u16> {
        let blocks = self.stage.blocks();
        blocks.start as u16..blocks.end as u16
    }

    /// What frames hold of the output of block `behind`, one after the other. Its memory is to be given back.
    fn activation(
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
            samples,
            row: match kind {
                Kind::Forward | Kind::Backward => self.place.rows.start,
                _ => 0,
            },
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

fn read_labels(frames: Vec<Vec<u8>>) -> Result<Vec<i64>, Stop> {
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

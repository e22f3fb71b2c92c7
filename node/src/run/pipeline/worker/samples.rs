//! The samples of a micro-batch: which are this host's, drawn from the data or come from a source, and what a source passes on.

use std::ops::Range;
use std::sync::Arc;

use skein_gossip::pipeline::frame::{HEAD_BYTES, Head, Kind};
use skein_gossip::pipeline::group::Piece;
use skein_model::config::Split;
use skein_model::data::{Batch, Sampler, Splits};
use skein_model::stage::Activation;

use super::super::facts::Facts;
use super::compute::At;
use super::hosted::Part;
use super::work::Work;
use super::{Stop, Worker};

/// What a stage is given.
pub(super) enum Given {
    /// By a source.
    Samples(Batch),
    /// By a stage that computes.
    Activation(Activation),
}

impl Work {
    /// The samples of a micro-batch that this host computes.
    fn own_rows(&self, facts: &Facts, micro: u32) -> Range<u32> {
        let all = facts.pipeline.samples(facts.batch, micro);
        self.place.rows.start.min(all)..self.place.rows.end.min(all)
    }

    /// Number of the own samples of a micro-batch, and their part of the step.
    pub(super) fn share(&self, worker: &Worker, (step, micro, version): At) -> (u32, Part) {
        let batch = worker.facts.batch;
        let samples = self.own_rows(&worker.facts, micro).len() as u32;
        let part = Part {
            step,
            micro,
            version,
            weight: samples as f32 / batch as f32,
        };
        (samples, part)
    }

    /// The own rows of a micro-batch: of step `step` always the same, whoever draws them.
    fn draw_rows(
        &mut self,
        facts: &Facts,
        data: &Splits,
        (step, micro): (u64, u32),
    ) -> Result<Vec<usize>, Stop> {
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
        let own = self.own_rows(facts, micro);
        Ok(self.rows[(before + own.start) as usize..(before + own.end) as usize].to_vec())
    }

    /// The own samples of a micro-batch, with their labels.
    pub(super) fn draw(
        &mut self,
        worker: &Worker,
        step: u64,
        micro: u32,
    ) -> Result<(Batch, Vec<i64>), Stop> {
        let data = data(worker)?;
        let rows = self.draw_rows(&worker.facts, data, (step, micro))?;
        let batch = data.train.batch(&rows);
        let labels = batch.labels();
        Ok((batch, labels))
    }

    /// A source draws samples and passes them on as they are.
    pub(super) fn pass_on(&mut self, worker: &mut Worker, at: At) -> Result<(), Stop> {
        let (raw, labels) = {
            let data = data(worker)?;
            let rows = self.draw_rows(&worker.facts, data, (at.0, at.1))?;
            (data.train.raw(&rows), data.train.batch(&rows).labels())
        };
        let (samples, _) = self.share(worker, at);
        let head = self.head(worker, at, Kind::Forward, samples);
        self.send_labels(worker, &head, &labels)?;
        let behind = self.place.behind.clone();
        self.pass_raw(worker, &behind, &head, &raw)
    }

    /// Sends each of `to` its part of `raw`, which has as many bytes for each of the samples.
    pub(super) fn pass_raw(
        &mut self,
        worker: &mut Worker,
        to: &[Piece],
        head: &Head,
        raw: &[u8],
    ) -> Result<(), Stop> {
        let per_sample = raw.len() / head.samples.max(1) as usize;
        for piece in to {
            let rows = piece.rows.start..piece.rows.end.min(head.row + head.samples);
            let at = |row: u32| (row - head.row) as usize * per_sample;
            let head = Head {
                samples: rows.len() as u32,
                row: rows.start,
                ..*head
            };
            self.send_bytes(
                worker,
                piece.peer,
                &head,
                &raw[at(rows.start)..at(rows.end)],
            )?;
        }
        Ok(())
    }

    /// What came from the stage before: raw samples where that is a source.
    pub(super) fn given(
        &self,
        worker: &Worker,
        frames: Vec<Vec<u8>>,
        samples: u32,
    ) -> Result<Given, Stop> {
        let Some(behind) = self.blocks().start.checked_sub(1) else {
            return raw_samples(&worker.facts, &frames, samples).map(Given::Samples);
        };
        let activation = self.activation(worker, frames, behind, samples);
        activation.map(Given::Activation)
    }
}

/// The data of a peer that draws samples.
pub(super) fn data(worker: &Worker) -> Result<&Arc<Splits>, Stop> {
    let data = worker.data.as_ref();
    data.ok_or_else(|| Stop::Failed("the first stage has no data".into()))
}

/// What frames of a source hold, one after the other.
fn raw_samples(facts: &Facts, frames: &[Vec<u8>], samples: u32) -> Result<Batch, Stop> {
    let mut raw = Vec::new();
    for frame in frames {
        raw.extend_from_slice(frame.get(HEAD_BYTES..).ok_or(Stop::Broken)?);
    }
    let shape = facts.data.input.map(i64::from);
    let batch = Batch::of_raw(&raw, samples as usize, shape, &facts.normalisation());
    batch.map_err(|error| {
        tracing::warn!(%error, "a frame of a pipeline is damaged");
        Stop::Broken
    })
}

//! Looks at held-out samples, from lead to lead; the last stage judges the model.

use std::time::Instant;

use skein_gossip::pipeline::frame::{Head, Kind};
use skein_gossip::pipeline::group::Piece;
use skein_gossip::pipeline::message::Judged;

use super::compute::{At, failed, label_bytes, read_labels};
use super::samples::{Given, data};
use super::work::Work;
use super::{Event, Stop, Worker};

impl Work {
    pub(super) fn look(
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
        let (given, labels) = match input {
            None => {
                let batch = data(worker)?
                    .validation
                    .batch(&rows.clone().collect::<Vec<_>>());
                let labels = batch.labels();
                (Given::Samples(batch), labels)
            }
            Some(body) => {
                let labels = read_labels(labels.into_iter().collect())?;
                // A source only passes on what it draws.
                (self.given(worker, vec![body], samples)?, labels)
            }
        };
        let x = match &given {
            Given::Samples(batch) => batch.into(),
            Given::Activation(activation) => activation.into(),
        };
        if !self.stage.is_last() {
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
                    row: 0,
                    ..self.head(worker, at, Kind::LookLabels, samples)
                };
                self.send_bytes(worker, last, &head, &label_bytes(&labels))?;
            }
            if self.is_source() {
                let raw = data(worker)?.validation.raw(&rows.collect::<Vec<_>>());
                self.pass_raw(worker, next.as_slice(), &head, &raw)?;
            } else {
                let output = self.stage.evaluate(x).map_err(failed)?;
                self.pass(worker, next.as_slice(), &head, output)?;
            }
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
}

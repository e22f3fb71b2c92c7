//! A stage's gradients, added up with those of its other hosts before each update.

use skein_gossip::pipeline::frame::{HEAD_BYTES, Head, Kind};
use skein_gossip::pipeline::plan::Reduction;
use skein_gossip::pipeline::reduction::{Adding, Piece};

use super::hosted::Hosted;
use super::work::Work;
use super::{Stop, Worker};

/// The gradient of this host, then the sum, with what goes with it.
#[derive(Debug)]
pub(super) struct Sum {
    adding: Adding<Vec<u8>>,
    /// The stage's addend and, last, the sum of losses.
    values: Vec<f32>,
    /// Its part of the samples, in (0, 1].
    share: f32,
}

impl Sum {
    /// Of host `me` of `n`, after `applied` steps.
    pub(super) fn new(
        stage: &mut Hosted,
        who: (usize, usize),
        way: Reduction,
        share: f32,
        applied: u64,
    ) -> Option<Self> {
        let len = stage.shared()?.addend_len() + 1;
        Some(Self {
            adding: Adding::new(who, way, len, applied),
            values: Vec::new(),
            share,
        })
    }

    pub(super) fn arrive(&mut self, head: &Head, from: usize, body: Vec<u8>) -> Result<(), String> {
        let at = (head.step, head.micro);
        let n_values = body.len().saturating_sub(HEAD_BYTES) / 4;
        if n_values != self.adding.values(head.micro).len() || !body.len().is_multiple_of(4) {
            return Err("a piece of a gradient has another size".into());
        }
        let is_sum = head.kind == Kind::Sum;
        let arrived = self.adding.arrive(at, from, is_sum, body);
        arrived.map_err(|error| error.to_string())
    }
}

impl Work {
    /// The own gradient of a step is here: its pieces go to those who add them up.
    pub(super) fn share_gradient(&mut self, worker: &mut Worker, step: u64) -> Result<(), Stop> {
        let Some(mut sum) = self.sum.take() else {
            return Ok(());
        };
        if let Some(stage) = self.stage.shared() {
            sum.values = stage.addend(sum.share);
            sum.values.push(self.loss as f32);
        }
        for piece in 0..sum.adding.n_pieces() {
            let takers: Vec<usize> = sum.adding.takers(piece).collect();
            let values = &sum.values[sum.adding.values(piece)];
            self.send_piece(worker, (Kind::Gradient, step, piece), values, &takers)?;
        }
        sum.adding.begin();
        self.sum = Some(sum);
        self.add_up(worker)
    }

    /// Adds up what is here, and tells the sums where others wait for them.
    pub(super) fn add_up(&mut self, worker: &mut Worker) -> Result<(), Stop> {
        let Some(mut sum) = self.sum.take() else {
            return Ok(());
        };
        let step = self.flow.applied();
        while let Some(piece) = sum.adding.next_piece() {
            let (number, bodies) = match piece {
                Piece::Take { piece, body } => {
                    let values = &mut sum.values[sum.adding.values(piece)];
                    values
                        .iter_mut()
                        .zip(of(&body))
                        .for_each(|(to, value)| *to = value);
                    worker.net.buffers().give(body);
                    continue;
                }
                Piece::Add { piece, bodies } => (piece, bodies),
            };
            let range = sum.adding.values(number);
            let values = &mut sum.values[range.clone()];
            let own = values.to_vec();
            values.fill(0.0);
            for body in bodies {
                match body {
                    None => add(values, own.iter().copied()),
                    Some(body) => {
                        add(values, of(&body));
                        worker.net.buffers().give(body);
                    }
                }
            }
            if sum.adding.tells_sums() {
                let fellows: Vec<usize> = self.place.fellows().map(|(member, _)| member).collect();
                let values = &sum.values[range];
                self.send_piece(worker, (Kind::Sum, step, number), values, &fellows)?;
            }
        }
        if sum.adding.is_done() {
            self.flow.added();
        }
        self.sum = Some(sum);
        Ok(())
    }

    /// The sum takes the place of the own gradient; the update follows. Returns the loss of all samples.
    pub(super) fn take_sum(&mut self) -> Result<(), Stop> {
        let Some(sum) = &mut self.sum else {
            return Ok(());
        };
        let loss = sum.values.pop().unwrap_or_default();
        if let Some(stage) = self.stage.shared() {
            stage
                .put_sum(&sum.values)
                .map_err(|error| Stop::Failed(error.to_string()))?;
        }
        sum.adding.end();
        self.loss = f64::from(loss);
        Ok(())
    }

    fn send_piece(
        &mut self,
        worker: &mut Worker,
        (kind, step, piece): (Kind, u64, u32),
        values: &[f32],
        to: &[usize],
    ) -> Result<(), Stop> {
        let head = self.head(worker, (step, piece, step), kind, 0);
        for member in to {
            let mut frame = worker.net.buffers().take(HEAD_BYTES + 4 * values.len());
            frame.clear();
            head.append(&mut frame);
            frame.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            let Some(peer) = self.place.group.get(*member).copied() else {
                continue;
            };
            self.send(worker, peer, frame)?;
        }
        Ok(())
    }
}

fn add(sums: &mut [f32], values: impl Iterator<Item = f32>) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += value;
    }
}

/// The values in a frame.
fn of(frame: &[u8]) -> impl Iterator<Item = f32> + '_ {
    let (values, _) = frame[HEAD_BYTES.min(frame.len())..].as_chunks::<4>();
    values.iter().map(|value| f32::from_le_bytes(*value))
}

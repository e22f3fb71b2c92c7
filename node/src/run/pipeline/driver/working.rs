//! What the stage's thread reports, and what is saved of it.

use std::time::{Duration, Instant};

use skein_gossip::pipeline::agreement::Input;
use tokio::sync::oneshot;

use super::super::store;
use super::super::worker::{Event, Step};
use super::{Done, Driver};
use crate::job::Every;
use crate::run::journal::Entry;

/// How long leaving waits for the newest copies to be written.
const LAST_SAVE: Duration = Duration::from_millis(1200);

impl Driver {
    pub(super) fn on_worked(&mut self, event: Event) {
        match event {
            Event::InPlace(stamp) => {
                self.journal.write(&Entry::InPlace { view: stamp.number });
                self.input(Input::InPlace(stamp));
            }
            Event::Broken(stamp) => self.input(Input::Broken(stamp)),
            Event::Stepped(step) => self.on_step(&step),
            Event::Copied { view, step, states } => {
                let Some(running) = &mut self.running else {
                    return;
                };
                // Where the work was undone meanwhile, so was this line.
                if !running.counts(view) {
                    return;
                }
                let (first, end) = (
                    states.first().map_or(0, |(block, _)| *block),
                    states.last().map_or(0, |(block, _)| block + 1),
                );
                for (block, state) in states {
                    running.copies.put(step, block, state);
                }
                self.journal.write(&Entry::Line { step });
                self.input(Input::Copied {
                    step,
                    blocks: first..end,
                });
            }
            Event::Judged(judged) => {
                self.journal.write(&Entry::Evaluated {
                    step: judged.step,
                    val_accuracy: f64::from(judged.accuracy),
                    val_loss: Some(f64::from(judged.loss)),
                    samples: judged.samples as usize,
                    samples_mesh: judged.step * u64::from(self.context.file.train.batch),
                });
                let met = self
                    .context
                    .file
                    .stop
                    .target_met(f64::from(judged.accuracy), f64::from(judged.loss));
                self.input(Input::Judged(judged));
                if let Some(reason) = met {
                    self.input(Input::StopHolds(reason));
                }
            }
            Event::LastStep(step) => self.input(Input::LastStep(step)),
            Event::Refused { peer, reason } => {
                self.figures.refused += 1;
                self.journal.write(&Entry::Refused {
                    peer: peer.short(),
                    reason: &reason,
                });
            }
            Event::Failed(reason) => self.fail(reason),
        }
    }

    fn on_step(&mut self, step: &Step) {
        let contribution = self.figures.stepped(step);
        self.journal.write(&Entry::Step {
            step: step.step,
            train_loss: step.loss.filter(|loss| loss.is_finite()),
            samples: step.samples,
            computing_s: step.computing.as_secs_f64(),
            waiting_s: step.waiting.as_secs_f64(),
            communicating_s: 0.0,
            links: Default::default(),
            view: step.view,
        });
        let known = self.running.as_ref();
        let known = known.map_or(1.0, |running| running.agreement.own_beat().slowdown);
        self.input(Input::Stepped {
            step: step.step,
            slowdown: step.slowdown.unwrap_or(known),
            contribution,
        });
    }

    /// Writes the newest safe line to disk when it is time.
    pub(super) fn save_if_due(&mut self) {
        let every = self.context.file.checkpoint.every;
        let Some(running) = &mut self.running else {
            return;
        };
        let safe = running.agreement.safe();
        let (at, last) = running.saved;
        let is_due = match every {
            Every::Time(every) => at.elapsed() >= every,
            Every::Steps(every) => safe >= last + every,
        };
        if !is_due || running.saving || safe <= last || self.closed {
            return;
        }
        running.saving = true;
        running.saved = (Instant::now(), safe);
        let (states, folder, done) = (
            running.copies.line(safe),
            self.context.folder.copies(),
            self.done.clone(),
        );
        tokio::task::spawn_blocking(move || {
            let saved = store::save(&folder, safe, &states)
                .map(|()| safe)
                .map_err(|error| error.to_string());
            let _ = done.blocking_send(Done::Saved(saved));
        });
    }

    pub(super) fn on_saved(&mut self, outcome: Result<u64, String>) {
        if let Some(running) = &mut self.running {
            running.saving = false;
        }
        match outcome {
            Ok(step) => self.journal.write(&Entry::Checkpoint { step }),
            Err(reason) => {
                tracing::error!(job = %self.context.id.short(), reason, "copies not written");
                self.journal
                    .write(&Entry::CheckpointFailed { reason: &reason });
            }
        }
    }

    /// Writes the newest line that others may need, if it can be done in time.
    pub(super) async fn save_and_wait(&mut self) {
        let Some(running) = self.running.as_ref().filter(|_| !self.closed) else {
            return;
        };
        let safe = running.agreement.safe();
        if safe <= running.saved.1 {
            return;
        }
        let (states, folder) = (running.copies.line(safe), self.context.folder.copies());
        let (reply, saved) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            let _ = reply.send(store::save(&folder, safe, &states));
        });
        match tokio::time::timeout(LAST_SAVE, saved).await {
            Ok(Ok(Ok(()))) => tracing::info!(step = safe, "copies written"),
            Ok(Ok(Err(error))) => tracing::error!(%error, "copies not written"),
            _ => tracing::warn!("no time to write copies; those of before count"),
        }
    }
}

//! What the stage's thread reports.

use skein_gossip::pipeline::agreement::Input;

use super::super::disk::Kept;
use super::super::worker::{Event, Step};
use super::Driver;
use crate::run::journal::{Entry, StageStep};

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
                    running.copies.put(step, block, Kept::Memory(state));
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
            stage: Some(StageStep {
                processor_s: step.processor.process.as_secs_f64(),
                stage_processor_s: step.processor.thread.as_secs_f64(),
                bytes_in: step.bytes_in,
                bytes_out: step.bytes_out,
            }),
        });
        let known = self.running.as_ref();
        let known = known.map_or(1.0, |running| running.agreement.own_beat().slowdown);
        self.input(Input::Stepped {
            step: step.step,
            slowdown: step.slowdown.unwrap_or(known),
            contribution,
        });
    }
}

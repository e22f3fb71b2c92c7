//! Looks at the validation set, and the candidate for the end of the job.

use std::time::{Duration, Instant};

use skein_model::snapshot::Snapshot;
use skein_model::train::Evaluation;

use super::{EVALUATION_BATCH, Event, State};

/// Looks take one part in so many (and one) of the time, unless the job says how often to look.
pub const LOOK_ONE_IN: u32 = 19;
/// When the first look is due.
pub const FIRST_LOOK: Duration = Duration::from_secs(2);

impl State {
    pub(super) fn evaluate(&mut self, rows: usize) -> Result<Evaluation, String> {
        let data = self.thread.data.clone();
        let rows = rows.min(data.validation.len());
        self.thread
            .trainer
            .evaluate(&data.validation, 0..rows, EVALUATION_BATCH)
            .map_err(|error| error.to_string())
    }

    /// Whether it is time for a look.
    pub(super) fn must_look(&self) -> bool {
        match (self.thread.settings.evaluate_every, self.looked) {
            (Some(every), _) => self.thread.step.is_multiple_of(every),
            (None, Some((ended, took))) => ended.elapsed() >= took * LOOK_ONE_IN,
            (None, None) => self.thread.started.elapsed() >= FIRST_LOOK,
        }
    }

    /// Looks at a part of the validation set; at all of it where the part says that a target is met.
    pub(super) fn look(&mut self) -> bool {
        let began = Instant::now();
        self.swap_average();
        let goes_on = self.look_now();
        self.swap_average();
        self.looked = Some((Instant::now(), began.elapsed()));
        goes_on
    }

    /// The replica's weights change places with their running mean, where there is one.
    fn swap_average(&mut self) {
        if let Some(average) = &mut self.average {
            average.swap(self.thread.trainer.model_mut());
        }
    }

    fn look_now(&mut self) -> bool {
        let settings = self.thread.settings;
        let all = self.thread.data.validation.len();
        let Ok(evaluation) = self.evaluate(settings.evaluate_samples) else {
            return self.fail("the validation set cannot be evaluated");
        };
        let step = self.thread.step;
        let whole = evaluation.samples >= all;
        let better = self
            .best_look
            .as_ref()
            .is_none_or(|(best, ..)| evaluation.accuracy > best.accuracy);
        if better {
            // Only the weights: the optimiser's state of then is of no use at the end.
            let snapshot = Snapshot {
                optimiser: Vec::new(),
                ..self.thread.trainer.snapshot()
            };
            self.best_look = Some((evaluation, step, snapshot));
        }
        if self
            .thread
            .events
            .blocking_send(Event::Evaluated {
                step,
                evaluation,
                whole,
            })
            .is_err()
        {
            return false;
        }
        let meets = settings
            .target_accuracy
            .is_some_and(|target| evaluation.accuracy >= target)
            || settings
                .target_loss
                .is_some_and(|target| evaluation.loss <= target);
        if !meets || whole {
            return true;
        }
        match self.evaluate(all) {
            Ok(evaluation) => self
                .thread
                .events
                .blocking_send(Event::Evaluated {
                    step,
                    evaluation,
                    whole: true,
                })
                .is_ok(),
            Err(_) => self.fail("the validation set cannot be evaluated"),
        }
    }

    /// The better of the replica, or the mean of its weights, and the best that was seen on the way: the rows of a look choose, the whole validation set judges
    /// the chosen one, because on a slow device that takes long.
    ///
    /// # Errors
    /// Neither has a finite loss: weights that are not finite could be no peer's model.
    pub(super) fn candidate(&mut self) -> Result<(u64, Evaluation, Snapshot), String> {
        // Training is over, so the mean stays in the replica's place.
        self.swap_average();
        if let Some(average) = &mut self.average {
            average.forget();
        }
        let mut step = self.thread.step;
        if let Some((then, best_step, best)) = self.best_look.take()
            && best_step != step
        {
            let now = self.evaluate(self.thread.settings.evaluate_samples)?;
            let rank = |of: &Evaluation| (of.loss.is_finite(), of.accuracy, -of.loss);
            if rank(&then) > rank(&now) {
                let mut snapshot = best;
                snapshot.optimiser = self.thread.trainer.snapshot().optimiser;
                let restored = self.thread.trainer.restore(&snapshot);
                restored.map_err(|error| error.to_string())?;
                step = best_step;
            }
        }
        let all = self.thread.data.validation.len();
        let evaluation = self.evaluate(all)?;
        if evaluation.loss.is_finite() {
            Ok((step, evaluation, self.thread.trainer.snapshot()))
        } else {
            Err("the loss of the trained model is not finite; lower train.optimiser.lr".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use skein_model::config::{DataConfig, ModelConfig, OptimiserConfig, Split};
    use skein_model::data;
    use skein_model::model::Model;
    use skein_model::train::Trainer;
    use tokio::sync::{mpsc, oneshot};

    use super::super::{Command, Replica, Settings, TrainingThread};
    use super::*;
    use crate::job::strategy::Exchange;

    const STEPS: u64 = 300;

    /// A peer alone after its last step: its replica, and the candidate it names.
    fn trained(averages: bool) -> (Replica, Evaluation, Snapshot) {
        let data = Arc::new(data::load(&DataConfig::default(), &BTreeMap::new()).unwrap());
        let (shape, n_classes) = (data.train.input_shape(), data.train.n_classes());
        let model = Model::new(&ModelConfig::default(), shape, n_classes, 1).unwrap();
        let (commands, command_queue) = mpsc::channel(8);
        let (coder, _coder_inputs) = mpsc::channel(8);
        let (events, mut event_queue) = mpsc::channel(8);
        let thread = TrainingThread {
            trainer: Trainer::new(model, OptimiserConfig::default()).unwrap(),
            data,
            split: Split::All {},
            settings: Settings {
                batch: 4,
                exchange: Exchange::default(),
                last_step: Some(STEPS),
                evaluate_every: Some(50),
                evaluate_samples: 100,
                averages,
                target_accuracy: None,
                target_loss: None,
                seed: 1,
            },
            step: 0,
            position: 0,
            shard: 0,
            commands: command_queue,
            coder,
            events,
            started: Instant::now(),
        };
        let (copy, replica) = oneshot::channel();
        commands
            .blocking_send(Command::Copy {
                from_step: STEPS,
                reply: copy,
            })
            .unwrap();
        commands.blocking_send(Command::Train).unwrap();
        let running = std::thread::spawn(|| thread.run());
        let is_last =
            |event: &Event| matches!(event, Event::Evaluated { step, .. } if *step == STEPS);
        while !is_last(&event_queue.blocking_recv().unwrap()) {}
        let (reply, candidate) = oneshot::channel();
        commands
            .blocking_send(Command::Candidate { reply })
            .unwrap();
        let (_, evaluation, snapshot) = candidate.blocking_recv().unwrap().unwrap();
        commands.blocking_send(Command::End).unwrap();
        running.join().unwrap();
        (replica.blocking_recv().unwrap(), evaluation, snapshot)
    }

    #[test]
    fn the_mean_of_the_weights_is_handed_out_and_training_does_not_notice() {
        let (replica, averaged, mean) = trained(true);
        let (plain_replica, plain, _) = trained(false);
        assert_eq!(replica.step, STEPS);
        assert!(
            replica.snapshot == plain_replica.snapshot,
            "looks changed what is trained"
        );
        assert!(mean.parameters != replica.snapshot.parameters);
        assert!(averaged.loss < plain.loss, "{averaged:?} {plain:?}");
    }
}

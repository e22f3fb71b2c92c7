//! Peers that were not there when the job ended: those that were are asked by nobody, and tell whoever comes. A latecomer fetches
//! the finished model, checks it, and closes the job as the others did.

use std::sync::Arc;

use skein_gossip::ids::{Digest, PeerId};
use skein_gossip::message::{self, StateRequest};
use skein_gossip::pipeline::agreement::Input;
use skein_gossip::pipeline::message::{Beat, Final, Message, Over, Standing};
use skein_model::checkpoint;

use super::{Done, Driver};
use crate::control::{Best, Hex};
use crate::run::fetch::{self, Haste};
use crate::run::folder::JobResult;
use crate::run::journal::Entry;

/// What a latecomer was told.
#[derive(Debug, Default)]
pub(super) struct Late {
    over: Option<Arc<Over>>,
    /// Who told it and holds the model; at most those that are connected.
    holders: Vec<PeerId>,
    fetching: bool,
}

impl Driver {
    /// The job is over here, and `peer` may not know it.
    pub(super) fn tell_over(&self, peer: PeerId) {
        let Some(result) = self.figures.result().filter(|_| self.is_closed()) else {
            return;
        };
        let model = result.best.as_ref().map(|best| Final {
            digest: best.hash.0,
            judged: best.accuracy.zip(best.loss),
        });
        let over = Arc::new(Over {
            reason: result.reason.clone(),
            model,
            samples: result.samples_mesh,
        });
        self.send(
            peer,
            &message::Message::Pipeline(self.context.id, Message::Over(over)),
        );
    }

    /// Whoever still takes part in a job that is over here is told so.
    pub(super) fn tell_over_if_it_works(&self, peer: PeerId, beat: &Beat) {
        if matches!(beat.standing, Standing::Preparing | Standing::Ready) {
            self.tell_over(peer);
        }
    }

    pub(super) fn on_over(&mut self, from: PeerId, over: Arc<Over>) {
        if self.is_closed() || self.figures.has_model() || !over.is_sound() {
            return;
        }
        let model = |over: &Arc<Over>| over.model.map(|model| model.digest);
        let late = &mut self.late;
        let is_another = |told: &Arc<Over>| model(told) != model(&over);
        // One model at a time; if nobody gives that any more, this one.
        let is_given = late.fetching || !late.holders.is_empty();
        if is_given && late.over.as_ref().is_some_and(is_another) {
            return;
        }
        if !late.holders.contains(&from) {
            late.holders.push(from);
        }
        late.over = Some(over);
        self.come_late();
    }

    /// A holder of the finished model is gone.
    pub(super) fn lost_holder(&mut self, peer: PeerId) {
        self.late.holders.retain(|holder| *holder != peer);
    }

    /// Fetches the finished model, or closes at once where there is none.
    pub(super) fn come_late(&mut self) {
        if self.is_closed() || self.late.fetching || self.late.holders.is_empty() {
            return;
        }
        let Some(over) = self.late.over.clone() else {
            return;
        };
        let Some(model) = over.model else {
            return self.close_late(&over);
        };
        self.late.fetching = true;
        let (net, job, holders) = (
            self.context.net.clone(),
            self.context.id,
            self.late.holders.clone(),
        );
        let (path, config) = (self.context.folder.model(), self.context.file.model.clone());
        let (digest, done) = (model.digest, self.done());
        tokio::spawn(async move {
            let what = StateRequest::Weights { job, digest };
            let bound = checkpoint::MAX_MODEL_BYTES;
            let outcome = fetch::fetch(net, holders, what, bound, None, Haste::Needed).await;
            let adopted = match outcome.done {
                None => Err(outcome.failures.join("; ")),
                Some((_, bytes)) => {
                    let adopt = move || checkpoint::adopt(&path, &bytes, &config, digest.0);
                    let adopted = tokio::task::spawn_blocking(adopt).await;
                    match adopted {
                        Ok(adopted) => adopted.map_err(|error| error.to_string()),
                        Err(error) => Err(error.to_string()),
                    }
                }
            };
            let _ = done.send(Done::CameLate(digest, adopted)).await;
        });
    }

    pub(super) fn on_came_late(&mut self, digest: Digest, adopted: Result<(), String>) {
        self.late.fetching = false;
        let told = self.late.over.clone();
        let is_it = |over: &Arc<Over>| over.model.is_some_and(|model| model.digest == digest);
        match (adopted, told.filter(is_it)) {
            (Ok(()), Some(over)) if !self.is_closed() => self.close_late(&over),
            (Ok(()), _) => {}
            // Tried again every half second, with who has told it since.
            (Err(reason), _) => {
                tracing::debug!(reason, "the finished model was not fetched");
                self.journal
                    .write(&Entry::FetchFailed { reasons: &[reason] });
            }
        }
    }

    /// The job is over for this peer too.
    fn close_late(&mut self, over: &Over) {
        let me = self.context.net.local();
        let best = over.model.map(|model| Best {
            peer: Hex(me),
            accuracy: model.judged.map(|(accuracy, _)| accuracy),
            loss: model.judged.map(|(_, loss)| loss),
            hash: Hex(model.digest),
        });
        let agreement = self.running.as_ref().map(|running| &running.agreement);
        let contributions = agreement.map(|agreement| self.figures.contributions(agreement, me));
        let result = JobResult {
            reason: over.reason.clone(),
            best,
            samples_mesh: over.samples,
            contributions: contributions.unwrap_or_default(),
        };
        if let Some(model) = over.model {
            self.input(Input::Finished(model.digest));
        }
        self.figures.closed_before(result.clone());
        super::super::finish::close_with(self, &result);
    }
}

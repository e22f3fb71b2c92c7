//! What this peer takes from the beats of the others while it trains: copies of better replicas, and a commit rate.

use skein_gossip::agreement::Input;
use skein_gossip::guide::Output;
use skein_gossip::ids::PeerId;
use skein_gossip::membership::FEW;
use skein_gossip::message::StateRequest;

use super::super::journal::Entry;
use super::super::trainer::{Command, Lesson};
use super::super::{fetch, threads};
use super::{Done, Driver};

impl Driver {
    /// Looks at what the others said, and says what they may plan with.
    pub(super) fn look_around(&mut self) {
        let now = self.now();
        self.pace.fit = self.power.fit();
        self.pace.search = self.guide.search_state();
        let n_members = self.agreement.view().map_or(0, |view| view.members.len());
        if n_members > FEW {
            // They would be most of all beats.
            self.pace.sketch = None;
        }
        for output in self.guide.look(now, &self.agreement, &self.pace) {
            match output {
                Output::Learn { from } => self.fetch_teacher(from),
                Output::GiveUp { from } => {
                    self.learning = self.learning.filter(|teacher| *teacher != from);
                }
                Output::Rate {
                    commits,
                    period,
                    implicit_momentum,
                } => self.tell_trainer(Command::Rate {
                    commits,
                    period,
                    implicit_momentum,
                }),
            }
        }
        self.figures.learnt(&self.guide, self.pace.commits);
        self.input(Input::Pace(Box::new(self.pace.clone())));
    }

    fn fetch_teacher(&mut self, from: PeerId) {
        let Some(threads) = &self.threads else { return };
        self.learning = Some(from);
        let (net, done, cap) = (
            self.context.net.clone(),
            self.done.clone(),
            threads.replica_bytes,
        );
        let what = StateRequest::Replica {
            job: self.context.id,
            from_step: 0,
        };
        tokio::spawn(async move {
            let holders = vec![from];
            let outcome =
                fetch::fetch(net, holders, what, cap, None, fetch::Haste::Background).await;
            let _ = done.send(Done::Taught(from, outcome)).await;
        });
    }

    /// A replica to learn from is here, or could not be fetched.
    pub(super) fn on_taught(&mut self, from: PeerId, outcome: fetch::Try) {
        let now = self.now();
        let is_wanted = self.learning == Some(from);
        if is_wanted {
            self.learning = None;
        }
        let whole = outcome.done.filter(|_| is_wanted);
        let wanted = self.guide.fetched(now, from, whole.is_some());
        match (wanted, whole) {
            (Some((weight, gated)), Some((_, bytes))) => {
                threads::learn(self, from, bytes, weight, gated);
            }
            _ if !outcome.failures.is_empty() => self.journal.write(&Entry::FetchFailed {
                reasons: &outcome.failures,
            }),
            _ => {}
        }
    }

    /// The trainer has tried it.
    pub(super) fn on_learnt(&mut self, from: PeerId, lesson: Result<Lesson, String>) {
        let now = self.now();
        match lesson {
            Ok(lesson) => {
                self.guide
                    .judged(now, lesson.own_loss as f32, lesson.merged_loss as f32);
                self.journal.write(&Entry::Learnt {
                    from: from.short(),
                    own_loss: lesson.own_loss.is_finite().then_some(lesson.own_loss),
                    merged_loss: lesson.merged_loss.is_finite().then_some(lesson.merged_loss),
                    moved: lesson.moved,
                });
            }
            Err(reason) => {
                self.guide.judged(now, 0.0, f32::INFINITY);
                self.journal.write(&Entry::Refused {
                    peer: from.short(),
                    reason: &format!("its replica cannot be used: {reason}"),
                });
            }
        }
    }
}

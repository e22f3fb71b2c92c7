//! Carries out what the agreement wants, up to the end of the job.

use std::time::{Duration, Instant};

use skein_gossip::agreement::Output;
use skein_gossip::ids::PeerId;
use skein_gossip::message::{Decision, Message};

use super::super::journal::Entry;
use super::super::trainer::{Command, Share};
use super::super::{coder, threads};
use super::{Driver, Fetching, Order};

/// Between two statuses that only count steps.
const STATUS_EVERY: Duration = Duration::from_millis(250);

impl Driver {
    /// Carries out what the agreement wants, and says how the job stands: after a mere step, which changes a few numbers, not more
    /// often than people can read.
    pub(super) fn carry_out(&mut self, after_a_step: bool) {
        let mut is_news = !after_a_step || self.status_sent.elapsed() >= STATUS_EVERY;
        while let Some(output) = self.agreement.poll() {
            is_news |= !matches!(output, Output::SendBeat(..));
            match output {
                Output::SendBeat(to, beat) => self.send(to, &Message::Beat(self.context.id, beat)),
                Output::SendView(to, view) => self.send(to, &Message::View(self.context.id, view)),
                Output::SendChange(to, change) => {
                    self.send(to, &Message::Change(self.context.id, change));
                }
                Output::Adopted(view) => {
                    self.compare_weights(&view);
                    self.figures.adopted();
                    let me = self.context.net.local();
                    self.journal.write(&Entry::View {
                        number: view.stamp.number,
                        steward: view.stamp.steward.short(),
                        members: view
                            .members
                            .iter()
                            .map(|member| member.peer.short())
                            .collect(),
                        global_batch: view.global_batch(),
                        batches: view.members.iter().map(|member| member.batch).collect(),
                    });
                    if let Some(member) = view.member(me).copied() {
                        self.tell_trainer(Command::Membership(Share {
                            member,
                            global_batch: view.global_batch().max(1),
                            others: view.members.len() - 1,
                            rate: self.agreement.rate_factor(&view),
                        }));
                    }
                    self.tell_coder(coder::Input::View {
                        view: Some(view),
                        agreed: false,
                    });
                }
                Output::Agreed => {
                    let view = self.agreement.view().cloned();
                    self.tell_coder(coder::Input::View { view, agreed: true });
                }
                Output::Sync { from_step } => {
                    self.pause_training();
                    self.fetching = Fetching::Replica {
                        from_step,
                        partial: None,
                    };
                    self.try_fetch();
                }
                Output::Train => {
                    self.tell_coder(coder::Input::StartAt(self.figures.step));
                    self.orders.push_back(Order::Train);
                    self.give_orders();
                }
                Output::Pause { lost_samples } => {
                    self.fetching = Fetching::Nothing;
                    self.pause_training();
                    self.tell_coder(coder::Input::View {
                        view: None,
                        agreed: false,
                    });
                    // Falling out once more before the state is here takes nothing away.
                    self.unmerged = self.unmerged.max(lost_samples);
                    self.journal.write(&Entry::Paused { lost_samples });
                }
                Output::End { reason, abstain } => {
                    self.journal.write(&Entry::Ending { reason: &reason });
                    self.reason = reason;
                    self.fetching = Fetching::Nothing;
                    self.pause_training();
                    self.tell_coder(coder::Input::View {
                        view: None,
                        agreed: false,
                    });
                    if !abstain {
                        threads::candidate(self);
                    }
                }
                Output::Fetch(decision) => {
                    self.fetching = Fetching::Weights {
                        decision,
                        partial: None,
                    };
                    self.try_fetch();
                }
                Output::Closed(decision) => self.close(decision),
            }
        }
        if !is_news {
            return;
        }
        self.status_sent = Instant::now();
        self.status.send_replace(
            self.figures
                .status(&self.context, &self.agreement, &self.reason),
        );
    }

    /// A start that still waits for the coder is called off with it.
    fn pause_training(&mut self) {
        self.orders.retain(|order| !matches!(order, Order::Train));
        self.tell_trainer(Command::Pause);
    }

    /// Writes the agreed model and the result; the threads end, memory is given back.
    pub(super) fn close(&mut self, decision: Option<Decision>) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        if let (None, Some(why)) = (decision, self.no_candidate.take()) {
            self.reason = format!("{}, but there is no model: {why}", self.reason);
        }
        let result = self.figures.result(&self.agreement, decision, &self.reason);
        let digest = decision.map(|decision| decision.candidate.digest);
        let held = [self.offered.take(), self.fetched.take()];
        let mut held = held.into_iter().flatten();
        let snapshot = held.find(|(held, _)| Some(*held) == digest);
        let snapshot = snapshot.map(|(_, snapshot)| snapshot);
        if let Err(error) = threads::save_result(self, &result, snapshot) {
            tracing::error!(job = %self.context.id.short(), error, "result not written");
            self.figures.failure = Some(error);
        }
        self.journal.write(&Entry::Closed {
            reason: &self.reason,
            digest: decision.map(|decision| decision.candidate.digest.to_string()),
            winner: decision.map(|decision| decision.winner.short()),
            val_accuracy: decision.map(|decision| decision.candidate.accuracy),
        });
        self.figures.closed(decision);
        if let Some(threads) = self.threads.take() {
            threads.end(&self.coder);
        }
        self.fetching = Fetching::Nothing;
    }

    /// Tells the others, and saves what is held.
    pub(super) async fn leave(&mut self) {
        let peers: Vec<PeerId> = self.agreement.heard().keys().copied().collect();
        for peer in peers {
            self.send(peer, &Message::Leaving(self.context.id));
        }
        if !self.closed {
            threads::checkpoint_and_wait(self).await;
        }
        self.journal.flush();
    }
}

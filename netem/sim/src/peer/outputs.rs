//! Carries out what the agreement and the exchange want, as the node's driver and coder do.

use skein_gossip::agreement::Output;
use skein_gossip::exchange;
use skein_gossip::ids::PeerId;
use skein_gossip::message::{Message as Gossip, Receipt};
use skein_gossip::wire::codec;
use skein_node::run::journal::Entry;
use skein_node::run::trainer::Share;

use super::{Effect, Fetching, Message, Peer, tick};
use crate::stream::Lane;
use skein_netem::link::Nanos;

/// Members that a line about a view names: a thousand lines of a thousand names would be most of a record.
const MOST_NAMED: usize = 64;

impl Peer {
    pub(super) fn carry_out(&mut self, now: Nanos, output: Output) {
        let id = self.job.id;
        match output {
            Output::SendBeat(to, beat) => self.tell(to, Gossip::Beat(id, beat)),
            Output::SendView(to, view) => self.tell(to, Gossip::View(id, view)),
            Output::SendChange(to, change) => self.tell(to, Gossip::Change(id, change)),
            Output::Adopted(view) => {
                self.began.get_or_insert(now);
                let named = if view.members.len() > MOST_NAMED {
                    &[][..]
                } else {
                    &view.members
                };
                let members = named.iter().map(|member| member.peer.short());
                let entry = Entry::View {
                    number: view.stamp.number,
                    steward: view.stamp.steward.short(),
                    members: members.collect(),
                    global_batch: view.global_batch(),
                    batches: named.iter().map(|member| member.batch).collect(),
                };
                self.write(now, &entry);
                if let Some(member) = view.member(self.id).copied() {
                    self.join(Share {
                        member,
                        global_batch: view.global_batch().max(1),
                        others: view.members.len() - 1,
                        rate: self.agreement.rate_factor(&view),
                    });
                }
                self.exchange.set_view(tick(now), Some(view), false);
                self.drain(now);
            }
            Output::Agreed => {
                let view = self.agreement.view().cloned();
                self.exchange.set_view(tick(now), view, true);
                self.drain(now);
            }
            Output::Sync { from_step } => {
                self.pause(now);
                self.fetching = Fetching::Replica { from_step };
                self.try_fetch(now);
            }
            Output::Train => {
                self.exchange.start_at(tick(now), self.trainer.step);
                self.drain(now);
                self.train(now);
            }
            Output::Pause { lost_samples } => {
                self.fetching = Fetching::Nothing;
                self.pause(now);
                self.exchange.set_view(tick(now), None, false);
                self.drain(now);
                self.unmerged = self.unmerged.max(lost_samples);
                self.write(now, &Entry::Paused { lost_samples });
            }
            Output::End { reason, abstain } => {
                self.write(now, &Entry::Ending { reason: &reason });
                self.fetching = Fetching::Nothing;
                self.pause(now);
                self.exchange.set_view(tick(now), None, false);
                self.drain(now);
                if !abstain {
                    self.judge_at_boundary(now);
                }
            }
            Output::Fetch(decision) => {
                self.fetching = Fetching::Weights { decision };
                self.try_fetch(now);
            }
            Output::Closed(decision) => self.close(now, decision),
        }
    }

    /// What the exchange wants.
    pub(super) fn drain(&mut self, now: Nanos) {
        let mut ready = None;
        let mut limit = None;
        let n_packed = self.exchange.n_packed();
        let packs = n_packed - std::mem::replace(&mut self.n_packed, n_packed);
        self.spend_on_coding(self.job.costs.us_per_packet * packs as f64);
        while let Some(output) = self.exchange.poll() {
            match output {
                exchange::Output::Send { to, seq, packet } => {
                    self.spend_on_coding(self.job.costs.us_per_sent);
                    self.effects.push(Effect::Send {
                        to,
                        lane: Lane::Update,
                        bytes: packet.len(),
                        message: Message::Update { seq, packet },
                    });
                }
                exchange::Output::Applied {
                    to,
                    seq,
                    arrived_us,
                } => {
                    let receipt = Receipt { seq, arrived_us };
                    self.tell(to, Gossip::Applied(self.job.id, receipt));
                }
                exchange::Output::Limit { step } => limit = Some(step),
                exchange::Output::Refused { from, reason } => {
                    let peer = from.short();
                    self.write(
                        now,
                        &Entry::Refused {
                            peer,
                            reason: &reason,
                        },
                    );
                }
                exchange::Output::Ready { step } => ready = Some(step),
            }
        }
        if let Some(step) = limit {
            self.on_limit(now, step);
        }
        if let Some(step) = ready {
            self.on_ready(now, step);
        }
    }

    pub(super) fn tell(&mut self, to: PeerId, message: Gossip) {
        self.effects.push(Effect::Send {
            to,
            lane: Lane::Control,
            bytes: codec::encode(&message).len(),
            message: Message::Gossip(message),
        });
    }
}

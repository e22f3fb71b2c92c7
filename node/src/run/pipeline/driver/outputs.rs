//! Carries out what the agreement decides.

use std::sync::Arc;

use skein_gossip::message;
use skein_gossip::pipeline::agreement::Output;
use skein_gossip::pipeline::message::{Message, View};
use skein_gossip::wire::codec;

use super::super::finish;
use super::super::worker::Command;
use super::Driver;
use crate::net::Lane;
use crate::run::journal::{Cut, Entry, Share};

impl Driver {
    /// Everything that has come out of the agreement.
    pub(super) fn carry_out(&mut self) {
        loop {
            let Some(running) = &mut self.running else {
                return;
            };
            let Some(output) = running.agreement.poll() else {
                break;
            };
            let job = self.context.id;
            match output {
                Output::SendBeat(peers, beat) => {
                    let bytes =
                        codec::encode(&message::Message::Pipeline(job, Message::Beat(beat)));
                    for peer in peers {
                        if let Err(error) =
                            self.context.net.send(peer, Lane::Control, bytes.clone())
                        {
                            tracing::debug!(peer = %peer.short(), %error, "beat not sent");
                        }
                    }
                }
                Output::SendView(peer, view) => {
                    self.send(peer, &message::Message::Pipeline(job, Message::View(view)))
                }
                Output::SendProfile(peer, profile) => {
                    self.send(
                        peer,
                        &message::Message::Pipeline(job, Message::Profile(profile)),
                    );
                }
                Output::Halt(view) => {
                    running.undo(&view);
                    self.order(Command::Halt);
                    self.write_view(&view);
                    self.write_setback(&view);
                }
                Output::Restart => self.restart(),
                Output::Until(view) => {
                    let (next, step) = (view.stamp, view.from);
                    self.order(Command::Until { next, step });
                    self.write_view(&view);
                }
                Output::Switch(view) => self.switch(view),
                Output::Feed { stamp, until } => {
                    self.order(Command::Feed { until });
                    self.journal.write(&Entry::Fed { view: stamp.number });
                }
                Output::Safe(step) => {
                    self.order(Command::Safe(step));
                    self.journal.write(&Entry::Recoverable { step });
                }
                Output::Forget { before, but } => self.forget(before, &but),
                Output::Fetch(want) => self.fetch(want),
                Output::ChooseLastStep => self.order(Command::ChooseLastStep),
                Output::Finish(step) => finish::make(self, step),
                Output::Closed => finish::close(self),
            }
        }
        self.give_orders();
    }

    /// Puts a command into the line for the stage's thread.
    pub(super) fn order(&mut self, command: Command) {
        if let Some(running) = &mut self.running {
            running.orders.push_back(command);
        }
    }

    pub(super) fn give_orders(&mut self) {
        let Some(running) = &mut self.running else {
            return;
        };
        while let Some(command) = running.orders.pop_front() {
            if let Err(error) = running.commands.try_send(command) {
                running.orders.push_front(error.into_inner());
                return;
            }
        }
    }

    fn switch(&mut self, view: Arc<View>) {
        let Some(running) = &self.running else { return };
        let Some(blocks) = view.plan.blocks_of(self.context.net.local()) else {
            return;
        };
        let is_drawn = view.from == 0 && !self.context.file.start.is_given();
        let states = (!is_drawn).then(|| {
            let state = |block: u16| Some((block, running.copies.get(view.from, block)?));
            blocks.filter_map(state).collect()
        });
        self.order(Command::Switch { view, states });
    }

    /// Says what a view costs that goes back, and what is lost where that is more than the copies were to prevent.
    fn write_setback(&mut self, view: &View) {
        let setback = self
            .running
            .as_ref()
            .and_then(|running| running.agreement.setback());
        let Some(setback) =
            setback.filter(|setback| setback.from == view.from && setback.reached > view.from)
        else {
            return;
        };
        if setback.from < setback.safe {
            tracing::warn!(
                job = %self.context.id.short(),
                blocks = ?setback.lacking,
                from_step = setback.from,
                steps_lost = setback.reached - setback.from,
                "no newer copy of these blocks is left: training goes back"
            );
        }
        self.journal.write(&Entry::Setback {
            reached: setback.reached,
            recoverable: setback.safe,
            from_step: setback.from,
            lost_blocks: &setback.lacking,
        });
    }

    fn write_view(&mut self, view: &View) {
        self.figures.adopted();
        let members = view.members.iter().map(|member| member.short()).collect();
        self.journal.write(&Entry::View {
            number: view.stamp.number,
            steward: view.stamp.steward.short(),
            members,
            global_batch: u64::from(self.context.file.train.batch),
            batches: Vec::new(),
        });
        let running = self.running.as_ref();
        let candidates = running.map(|running| running.agreement.candidates());
        let candidates = candidates.unwrap_or_default();
        let promised = running.and_then(|running| running.planner.predict(&view.plan, &candidates));
        let share = |member: &skein_gossip::pipeline::plan::Member| Share {
            host: member.peer.short(),
            samples: member.samples,
        };
        let busy = promised.as_ref().map(|promised| promised.busy.as_slice());
        let mut busy = busy.unwrap_or_default().iter().copied();
        let cut = |stage: &skein_gossip::pipeline::plan::Stage| {
            let lead = stage.lead();
            let host = candidates.iter().find(|host| Some(host.peer) == lead);
            Cut {
                host: lead.map(|lead| lead.short()).unwrap_or_default(),
                shares: match stage.is_shared() {
                    true => stage.members.iter().map(share).collect(),
                    false => Vec::new(),
                },
                first: stage.blocks.start,
                end: stage.blocks.end,
                slowdown: host.map_or(1.0, |host| host.slowdown),
                busy: busy.by_ref().take(stage.members.len()).collect(),
            }
        };
        self.journal.write(&Entry::Cut {
            view: view.stamp.number,
            from_step: view.from,
            step_s: promised.as_ref().map(|promised| promised.step_seconds),
            stages: view.plan.stages.iter().map(cut).collect(),
        });
        self.report();
    }
}

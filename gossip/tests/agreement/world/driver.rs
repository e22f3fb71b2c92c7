//! What the driver of a peer does with what its agreement wants, and the slow work that comes of it.

use std::time::Duration;

use skein_gossip::agreement::{Input, Output};
use skein_gossip::ids::{Digest, PeerId};
use skein_gossip::message::{Candidate, Pace};
use skein_gossip::time::Tick;
use skein_gossip::view::Contribution;

use super::{Event, Process, Work, World};
use crate::network::MS;

impl World {
    pub(super) fn carry_out(&mut self, process: Process, output: Output) {
        let peer = process.0;
        match &output {
            Output::SendBeat(to, _) | Output::SendView(to, _) | Output::SendChange(to, _)
                if self.network.linked(peer, *to) =>
            {
                self.network.weigh(&output);
            }
            _ => {}
        }
        match output {
            Output::SendBeat(to, beat) => self.send(process, to, Input::Beat(peer, beat)),
            Output::SendView(to, view) => self.send(process, to, Input::View(peer, view)),
            Output::SendChange(to, change) => self.send(process, to, Input::Change(peer, change)),
            Output::Adopted(view) => self.adopted(&view),
            Output::Agreed => {
                let view = self.peers[&peer].agreement.view();
                let number = view.map_or(0, |view| view.stamp.number);
                if let Some(spread) = self.spread.get_mut(&number) {
                    spread.agreed_last = self.now;
                    spread.n_agreed += 1;
                }
            }
            Output::Sync { .. } => {
                self.trains(peer, false);
                let done = self.later(50, 1500);
                self.at(done, Event::Work(process, Work::Sync));
            }
            Output::Train => {
                self.trains(peer, true);
                let done = self.later(1, 30);
                self.at(done, Event::Work(process, Work::Step));
            }
            Output::Pause { lost_samples } => {
                self.trains(peer, false);
                self.lost_samples += lost_samples;
            }
            Output::End { abstain, .. } => {
                self.trains(peer, false);
                if !abstain {
                    let mut done = self.later(10, 800);
                    if self.slow.contains(&peer) {
                        done = self.now + 60_000 * MS;
                    }
                    self.at(done, Event::Work(process, Work::Evaluate));
                }
            }
            Output::Fetch(decision) => {
                let done = self.later(10, 1000);
                self.at(done, Event::Work(process, Work::Fetch(decision)));
            }
            Output::Closed(decision) => self.closed(peer, decision),
        }
    }

    pub(super) fn work(&mut self, process: Process, work: Work) {
        let peer = process.0;
        if !self.is_up(process) {
            return;
        }
        let state = &self.peers[&peer];
        let reaches = |other: &&PeerId| {
            self.peers.contains_key(other)
                && self.network.linked(peer, **other)
                && !self.network.is_cut(peer, **other)
        };
        let retry = self.now + 300 * MS;
        let input = match work.clone() {
            Work::Sync => {
                if state.training || state.closed.is_some() {
                    return;
                }
                let donors = state.agreement.donors(Tick(self.now));
                let Some(donor) = donors.iter().find(reaches) else {
                    return self.at(retry, Event::Work(process, work));
                };
                let step = self.peers[donor].step;
                self.peers.get_mut(&peer).unwrap().step = step;
                Input::Synced { step }
            }
            Work::Evaluate if self.diverged.contains(&peer) => Input::NoCandidate,
            Work::Evaluate => {
                let candidate = Candidate {
                    accuracy: (state.step % 97) as f32 / 97.0,
                    loss: 1.0,
                    digest: Digest::of(&[&peer.0[..], &state.step.to_le_bytes()].concat()),
                    step: state.step,
                };
                let state = self.peers.get_mut(&peer).unwrap();
                state.weights.insert(candidate.digest);
                Input::Evaluated(candidate)
            }
            Work::Fetch(decision) => {
                let digest = decision.candidate.digest;
                let holders = state.agreement.holders(Tick(self.now), digest);
                let has = |holder: &PeerId| self.peers[holder].weights.contains(&digest);
                if !holders.iter().filter(reaches).any(has) {
                    return self.at(retry, Event::Work(process, work));
                }
                self.peers.get_mut(&peer).unwrap().weights.insert(digest);
                Input::Fetched(digest)
            }
            Work::Step => {
                if !state.training {
                    return;
                }
                let state = self.peers.get_mut(&peer).unwrap();
                let member = state.agreement.view().and_then(|view| view.member(peer));
                let batch = member.map_or(32, |member| member.batch);
                let per_sample = self.speeds.get(&peer).copied();
                let takes = per_sample.map_or(self.step_every * MS, |us| us * u64::from(batch));
                let next = self.now + takes;
                state.power.observe(batch, Duration::from_micros(takes));
                let fit = self.lies.get(&peer).copied().or_else(|| state.power.fit());
                state.step += 1;
                state.samples += u64::from(batch);
                let progress = Input::Progress {
                    step: state.step,
                    train_loss: 1.0,
                    contribution: Contribution {
                        steps: state.step,
                        samples: state.samples,
                        ..Default::default()
                    },
                };
                self.at(next, Event::Work(process, Work::Step));
                let pace = Pace {
                    fit,
                    ..Pace::default()
                };
                self.handle(peer, Input::Pace(Box::new(pace)));
                progress
            }
        };
        self.handle(peer, input);
    }
}

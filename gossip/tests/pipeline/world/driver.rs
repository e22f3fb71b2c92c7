//! What the driver of a peer does with what its agreement wants, as the node does it.

use std::collections::BTreeMap;

use skein_gossip::ids::{Digest, PeerId};
use skein_gossip::pipeline::agreement::{Input, Output, Want};
use skein_gossip::time::Tick;

use super::{Event, Life, Point, Process, World};
use crate::maths;
use crate::network::{Lane, MS, SECOND};

/// How long a fetch from a peer that does not answer is waited for.
const FETCH_TIMEOUT: u64 = 2 * SECOND;

impl World {
    pub(super) fn happen(&mut self, event: Event) {
        if let Some(until) = self.frozen_until(&event) {
            if let Event::Tick(peer) = event {
                self.peers.get_mut(&peer).unwrap().tick_at = until;
            }
            return self.at(until, event);
        }
        match event {
            Event::Input(process, input) => {
                if self.is_up(process) {
                    if let Input::InPlace(_) = &input {
                        self.handle(process.0, input);
                        self.pass(process.0, Point::InPlace);
                    } else if let Input::Finished(_) = &input {
                        self.handle(process.0, input);
                        self.pass(process.0, Point::Finished);
                    } else {
                        self.handle(process.0, input);
                    }
                }
            }
            Event::Message(from, to, connection, input) => {
                if self.is_up(to) && self.network.connection(from, to.0) == Some(connection) {
                    self.handle(to.0, input);
                }
            }
            Event::Frame(from, to, connection, frame) => {
                if self.is_up(to) && self.network.connection(from, to.0) == Some(connection) {
                    self.arrive(to.0, from, frame);
                }
            }
            Event::Break(a, b, connection) => self.break_off(a, b, connection),
            Event::Connect(a, b) => self.connect(a, b),
            Event::Tick(peer) => self.tick(peer),
            Event::Done(process, stage, op) => {
                if self.is_up(process) {
                    self.done(process.0, stage, op);
                }
            }
            Event::Fetched(process, want, asked, holder, connection) => {
                if self.is_up(process) {
                    self.fetch_ends(process.0, &want, asked, (holder, connection));
                }
            }
            Event::Kill(peer) => self.kill(peer),
            Event::Freeze(peer, until) => {
                self.trace(|| format!("{} is frozen until {}", peer.0[0], until / 1000));
                if let Some(state) = self.peers.get_mut(&peer) {
                    state.frozen_until = until;
                }
            }
            Event::Start(peer, from_disk) => self.start(peer, from_disk),
            Event::Split(apart, heals) => {
                self.trace(|| format!("split until {}", heals / 1000));
                self.split(apart, heals);
            }
            Event::Heal => self.heal(),
            Event::Slow(peer, slowdown) => {
                self.devices.get_mut(&peer).unwrap().slowdown = slowdown;
                // One that works shows it by its steps, one that stands by has timed its blocks.
                let view = self.peers.get(&peer).map(|peer| peer.agreement.view());
                if view.flatten().is_some_and(|view| !view.plan.is_host(peer)) {
                    self.handle(peer, Input::Slowdown(slowdown as f32));
                }
            }
            Event::Stop(peer) => {
                if self.peers.contains_key(&peer) {
                    self.handle(peer, Input::StopHolds("enough".into()));
                }
            }
        }
    }

    /// Until when the peer that an event happens to is frozen, if it is.
    fn frozen_until(&self, event: &Event) -> Option<u64> {
        let peer = match event {
            Event::Input(process, _)
            | Event::Message(_, process, _, _)
            | Event::Frame(_, process, _, _)
            | Event::Done(process, _, _)
            | Event::Fetched(process, _, _, _, _) => process.0,
            Event::Tick(peer) | Event::Stop(peer) => *peer,
            _ => return None,
        };
        let until = self.peers.get(&peer)?.frozen_until;
        (until > self.now).then_some(until)
    }

    fn tick(&mut self, peer: PeerId) {
        // One that was planned anew comes at another time.
        let Some(state) = self
            .peers
            .get_mut(&peer)
            .filter(|state| state.tick_at == self.now)
        else {
            return;
        };
        state.tick_at = u64::MAX;
        match state.agreement.next_wakeup().0 <= self.now {
            true => self.handle(peer, Input::Tick),
            false => self.plan_tick(peer),
        }
    }

    fn plan_tick(&mut self, peer: PeerId) {
        if let Some(state) = self.peers.get_mut(&peer) {
            let wakeup = state.agreement.next_wakeup().0.max(self.now + 1);
            if wakeup < state.tick_at {
                state.tick_at = wakeup;
                self.at(wakeup, Event::Tick(peer));
            }
        }
    }

    pub(super) fn handle(&mut self, peer: PeerId, input: Input) {
        if !matches!(
            input,
            Input::Beat(..) | Input::Tick | Input::Profile(..) | Input::Stepped { .. }
        ) {
            self.trace(|| format!("{} <- {input:?}", peer.0[0]));
        }
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        let process = (peer, state.process);
        state.agreement.handle(Tick(self.now), input);
        let mut n_outputs = 0;
        while let Some(state) = self.peers.get_mut(&peer)
            && let Some(output) = state.agreement.poll()
        {
            n_outputs += 1;
            assert!(n_outputs < 1000, "no end of outputs");
            self.carry_out(process, output);
        }
        self.plan_tick(peer);
    }

    /// A peer has passed a point at which it may have to be killed.
    pub(super) fn pass(&mut self, peer: PeerId, point: Point) {
        let times = self.passed.entry((peer, point)).or_insert(0);
        *times += 1;
        let here = (peer, point, *times);
        if self.kill_points.contains(&here) {
            self.kill(peer);
        }
    }

    fn carry_out(&mut self, process: Process, output: Output) {
        let peer = process.0;
        if !matches!(output, Output::SendBeat(..) | Output::SendProfile(..)) {
            self.trace(|| format!("{} -> {output:?}", peer.0[0]));
        }
        match output {
            Output::SendBeat(to, beat) => {
                for to in to {
                    let input = Input::Beat(peer, beat.clone());
                    self.tell(peer, to, input);
                }
            }
            Output::SendView(to, view) => {
                self.tell(peer, to, Input::View(peer, view));
                self.pass(peer, Point::SendView);
            }
            Output::SendProfile(to, profile) => self.tell(peer, to, Input::Profile(peer, profile)),
            Output::Halt(view) => {
                self.adopted(&view);
                let state = self.peers.get_mut(&peer).unwrap();
                (state.working, state.is_busy) = (Vec::new(), false);
                if !self.config.is_exact && view.after.is_none() {
                    state.store.retain(|(_, step), _| *step <= view.from);
                    state.undone = self.now;
                }
                self.pass(peer, Point::Halt);
            }
            Output::Restart => {
                let state = self.peers.get_mut(&peer).unwrap();
                (state.working, state.is_busy) = (Vec::new(), false);
                state.store = state.saved.clone();
                let measured = self.now + 300 * MS;
                let prepared = self.prepared(peer);
                self.at(measured, Event::Input(process, prepared));
            }
            Output::Until(view) => {
                self.adopted(&view);
                let working = self.peers.get_mut(&peer).unwrap().working.first_mut();
                if let Some(working) = working.filter(|working| working.leads_all())
                    && !working.flow.set_until(view.from)
                {
                    self.at(self.now, Event::Input(process, Input::Broken(view.stamp)));
                }
                self.pass(peer, Point::Until);
            }
            Output::Switch(view) => {
                self.switch(peer, &view);
                let loaded = self.now + self.between(1, 10) * MS;
                self.at(loaded, Event::Input(process, Input::InPlace(view.stamp)));
                self.pass(peer, Point::Switch);
            }
            Output::Feed { stamp, until } => {
                let now = self.now;
                let life = self.views.entry((stamp.number, stamp.steward)).or_default();
                life.fed = now;
                let working = self.peers.get_mut(&peer).unwrap().working.first_mut();
                let working = working.unwrap();
                assert!(working.stamp == stamp);
                working.flow.feed();
                if let Some(until) = until {
                    assert!(working.flow.set_until(until), "fed beyond the end");
                }
                self.pump(peer);
                self.pass(peer, Point::Feed);
            }
            Output::Safe(step) => {
                self.save(peer, step);
                for working in &mut self.peers.get_mut(&peer).unwrap().working {
                    working.flow.set_safe(step);
                }
                self.pump(peer);
                self.pass(peer, Point::Safe);
            }
            Output::Forget { before, but } => {
                let store = &mut self.peers.get_mut(&peer).unwrap().store;
                store.retain(|(block, step), _| {
                    let mut but = but.iter();
                    *step >= before
                        || but.any(|held| held.step == *step && held.blocks().contains(block))
                });
                self.pass(peer, Point::Forget);
            }
            Output::Fetch(want) => {
                self.fetch(process, want);
                self.pass(peer, Point::Fetch);
            }
            Output::ChooseLastStep => {
                let working = self.peers.get_mut(&peer).unwrap().working.first_mut();
                let flow = &mut working.unwrap().flow;
                let last = flow.first_free();
                assert!(flow.set_until(last), "the first that is free");
                self.at(self.now, Event::Input(process, Input::LastStep(last)));
                self.pump(peer);
                self.pass(peer, Point::ChooseLastStep);
            }
            Output::Finish(step) => {
                let n_blocks = self.config.n_blocks;
                let state = self.peers.get_mut(&peer).unwrap();
                let blocks: Vec<u64> = (0..n_blocks)
                    .map(|block| state.store[&(block, step)])
                    .collect();
                let bytes: Vec<u8> = blocks
                    .iter()
                    .flat_map(|block| block.to_le_bytes())
                    .collect();
                state.finished = Some((step, blocks));
                let done = self.now + self.between(1, 20) * MS;
                let input = Input::Finished(Digest::of(&bytes));
                self.at(done, Event::Input(process, input));
                self.pass(peer, Point::Finish);
            }
            Output::Closed => {
                assert!(self.peers[&peer].finished.is_some(), "closed with no model");
                self.peers.get_mut(&peer).unwrap().closed = true;
            }
        }
    }

    fn tell(&mut self, from: PeerId, to: PeerId, input: Input) {
        self.send(from, to, Lane::Control, |process, connection| {
            Event::Message(from, process, connection, input)
        });
    }

    fn adopted(&mut self, view: &skein_gossip::pipeline::message::View) {
        let life = Life {
            adopted: self.now,
            from: view.from,
            ..Life::default()
        };
        self.views
            .entry((view.stamp.number, view.stamp.steward))
            .or_insert(life);
    }

    fn fetch(&mut self, process: Process, want: Want) {
        self.fetched.push((self.now, process.0, want.clone()));
        let linked = |holder: &&PeerId| self.network.connection(process.0, **holder).is_some();
        let Some(holder) = want.holders.iter().find(linked).copied() else {
            let input = Input::FetchFailed(want);
            return self.at(self.now + MS, Event::Input(process, input));
        };
        let connection = self.network.connection(process.0, holder);
        let n_blocks = u64::from(want.blocks.end - want.blocks.start);
        let takes = n_blocks * self.block_bytes * SECOND / self.link_rate;
        let at = self.now + takes + self.between(1, 5) * MS;
        let asked = self.now;
        self.at(at, Event::Fetched(process, want, asked, holder, connection));
    }

    fn fetch_ends(
        &mut self,
        peer: PeerId,
        want: &Want,
        asked: u64,
        (holder, connection): (PeerId, Option<u64>),
    ) {
        let process = (peer, self.peers[&peer].process);
        let is_open = connection.is_some() && self.network.connection(peer, holder) == connection;
        let answers = self
            .peers
            .get(&holder)
            .filter(|state| state.frozen_until <= self.now && self.network.reaches(peer, holder));
        let failed = Input::FetchFailed(want.clone());
        if asked < self.peers[&peer].undone {
            return self.handle(peer, failed);
        }
        let Some(state) = answers.filter(|_| is_open) else {
            if is_open && self.now < asked + FETCH_TIMEOUT {
                let again = Event::Fetched(process, want.clone(), asked, holder, connection);
                return self.at(self.now + 20 * MS, again);
            }
            return self.handle(peer, failed);
        };
        let copy = |block: u16| {
            let is_drawn = want.step == 0 && self.config.is_seeded;
            let initial = is_drawn.then(|| maths::initial(self.seed, block));
            let held = state.store.get(&(block, want.step)).copied();
            Some(((block, want.step), held.or(initial)?))
        };
        let copies: Option<BTreeMap<_, _>> = want.blocks.clone().map(copy).collect();
        match copies {
            Some(copies) => {
                self.peers.get_mut(&peer).unwrap().store.extend(copies);
                let (step, blocks) = (want.step, want.blocks.clone());
                self.handle(peer, Input::Copied { step, blocks });
                self.pass(peer, Point::Fetched);
            }
            None => self.handle(peer, failed),
        }
    }
}

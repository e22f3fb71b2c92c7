//! A stage at work: its operations take time, and what they give goes to the stages beside it.

use std::collections::BTreeMap;
use std::sync::Arc;

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::agreement::Input;
use skein_gossip::pipeline::flow::{self, Flow, Op, Shape};
use skein_gossip::pipeline::frame::{Kind, Marks};
use skein_gossip::pipeline::message::View;
use skein_gossip::pipeline::view_key;
use skein_gossip::view::{Contribution, Stamp};

use super::{Event, Point, World};
use crate::maths::{self, Blocks, Kept};
use crate::network::Lane;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    key: u64,
    kind: Kind,
    step: u64,
    micro: u32,
    version: u64,
    marks: Marks,
    body: u64,
}

/// The stage that a peer works on.
pub(crate) struct Working {
    key: u64,
    pub(super) stamp: Stamp,
    view: Arc<View>,
    pub(super) first: u16,
    pub(crate) flow: Flow<u64>,
    blocks: Blocks,
    kept: BTreeMap<(u64, u32), (u64, Kept)>,
    is_busy: bool,
}

impl World {
    pub(super) fn switch(&mut self, peer: PeerId, view: &Arc<View>) {
        let (stage, part) = view.plan.stage_of(peer).unwrap();
        let n_stages = view.plan.stages.len();
        let shape = Shape {
            stage,
            n_stages,
            micro: self.micro,
            depth: match self.asynchronous {
                true => flow::asynchronous_depth(stage, n_stages, false),
                false => flow::depth(stage, n_stages, self.micro),
            },
            asynchronous: self.asynchronous,
            looks: 0,
            line_every: self.line_every,
        };
        let state = self.peers.get_mut(&peer).unwrap();
        let load = |block: u16| match view.from {
            0 => maths::initial(self.seed, block),
            step => state.store[&(block, step)],
        };
        let states = part.blocks.clone().map(load).collect();
        state.working = Some(Working {
            key: view_key(view.stamp),
            stamp: view.stamp,
            view: Arc::clone(view),
            first: part.blocks.start,
            flow: Flow::new(shape, view.from),
            blocks: Blocks::new(states),
            kept: BTreeMap::new(),
            is_busy: false,
        });
    }

    pub(super) fn arrive(&mut self, peer: PeerId, frame: Frame) {
        let working = self.peers.get_mut(&peer).unwrap().working.as_mut();
        let Some(working) = working.filter(|working| working.key == frame.key) else {
            return;
        };
        let Frame {
            kind, step, micro, ..
        } = frame;
        let arrived =
            working
                .flow
                .arrive(kind, step, micro, frame.version, frame.marks, frame.body);
        if let Err(why) = arrived {
            self.trace(|| format!("{} refuses {frame:?}: {why}", peer.0[0]));
            self.refused += 1;
        }
        self.pump(peer);
    }

    /// Begins the next operation, if there is one and none is under way.
    pub(super) fn pump(&mut self, peer: PeerId) {
        let device = self.devices[&peer];
        let state = self.peers.get_mut(&peer).unwrap();
        let process = (peer, state.process);
        let Some(working) = state.working.as_mut().filter(|working| !working.is_busy) else {
            return;
        };
        let Some(op) = working.flow.next_op() else {
            return;
        };
        working.is_busy = true;
        let key = working.key;
        let whole = working.blocks.states.len() as u64 * device.block_us;
        let takes = match &op {
            Op::Forward { .. } | Op::Look { .. } => whole / 3,
            Op::Backward { .. } => whole * 2 / 3,
            Op::Loss { .. } => whole,
            Op::Apply { .. } => 100,
            Op::Copy { .. } => 50,
        };
        let percent = self.between(100 - self.jitter, 100 + self.jitter);
        let takes = takes as f64 * device.slowdown * percent as f64 / 100.0;
        self.at(self.now + takes as u64, Event::Done(process, key, op));
    }

    pub(super) fn done(&mut self, peer: PeerId, key: u64, op: Op<u64>) {
        let (seed, stalest) = (self.seed, self.stalest);
        let working = self.peers.get_mut(&peer).unwrap().working.as_mut();
        let Some(working) = working.filter(|working| working.key == key) else {
            return;
        };
        working.is_busy = false;
        let hosts: Vec<PeerId> = working.view.plan.hosts().collect();
        let at = working.flow.shape().stage;
        let mut sends = Vec::new();
        let mut send = |to: usize, kind, step, micro, version, marks, body| {
            let frame = Frame {
                key,
                kind,
                step,
                micro,
                version,
                marks,
                body,
            };
            sends.push((hosts[to], frame));
        };
        let point = match op {
            Op::Forward {
                step,
                micro,
                version,
                input,
            } => {
                let value = input.unwrap_or_else(|| maths::sample(seed, step, micro));
                let (output, kept) = working.blocks.forward(value);
                let applied = working.flow.applied();
                working.kept.insert((step, micro), (applied, kept));
                let marks = working.flow.marks(step);
                send(at + 1, Kind::Forward, step, micro, version, marks, output);
                if at == 0 {
                    let label = maths::label(seed, step, micro);
                    let last = hosts.len() - 1;
                    send(last, Kind::Labels, step, micro, version, marks, label);
                }
                Point::Forward
            }
            Op::Loss {
                step,
                micro,
                version,
                input,
                labels,
            } => {
                let value = input.unwrap_or_else(|| maths::sample(seed, step, micro));
                let label = labels.unwrap_or_else(|| maths::label(seed, step, micro));
                let (output, kept) = working.blocks.forward(value);
                let gradient = working.blocks.backward(&kept, maths::loss(output, label));
                if at > 0 {
                    let marks = working.flow.marks(step);
                    send(
                        at - 1,
                        Kind::Backward,
                        step,
                        micro,
                        version,
                        marks,
                        gradient,
                    );
                }
                Point::Loss
            }
            Op::Backward {
                step,
                micro,
                gradient,
            } => {
                let (then, kept) = working.kept.remove(&(step, micro)).unwrap();
                let age = working.flow.applied() - then;
                assert!(!self.asynchronous || age < u64::from(working.flow.shape().depth));
                self.stalest = stalest.max(age);
                let gradient = working.blocks.backward(&kept, gradient);
                if at > 0 {
                    let marks = working.flow.marks(step);
                    send(at - 1, Kind::Backward, step, micro, step, marks, gradient);
                }
                Point::Backward
            }
            Op::Apply { step } => {
                working.blocks.apply();
                let stamp = working.stamp;
                self.stepped(peer, at, stamp, step);
                Point::Apply
            }
            Op::Copy { step } => {
                self.lines.insert(step);
                let first = working.first;
                let states = working.blocks.states.clone();
                let end = first + states.len() as u16;
                let blocks = (first..end).map(|block| (block, step)).zip(states);
                self.peers.get_mut(&peer).unwrap().store.extend(blocks);
                let blocks = first..end;
                self.handle(peer, Input::Copied { step, blocks });
                Point::Copy
            }
            Op::Look { .. } => unreachable!("no samples are held out"),
        };
        for (to, frame) in sends {
            self.send(peer, to, Lane::Frames, |process, connection| {
                Event::Frame(peer, process, connection, frame)
            });
        }
        self.pass(peer, point);
        if self.peers.contains_key(&peer) {
            self.pump(peer);
        }
    }

    fn stepped(&mut self, peer: PeerId, stage: usize, stamp: Stamp, step: u64) {
        self.steps_made += u64::from(stage == 0);
        if stage == 0 {
            let now = self.now;
            let life = self.views.entry((stamp.number, stamp.steward)).or_default();
            if life.stepped == 0 {
                life.stepped = now;
            }
        }
        let percent = self.between(100 - self.jitter, 100 + self.jitter);
        let input = Input::Stepped {
            step,
            slowdown: (self.devices[&peer].slowdown * percent as f64 / 100.0) as f32,
            contribution: Contribution::default(),
        };
        self.handle(peer, input);
    }
}

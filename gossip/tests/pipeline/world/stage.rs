//! A stage at work: its operations take time, and what they give goes to the stages beside it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::agreement::Input;
use skein_gossip::pipeline::flow::{self, Flow, Op, Pieces, Shape};
use skein_gossip::pipeline::frame::{Kind, Marks};
use skein_gossip::pipeline::group::{Piece, Place};
use skein_gossip::pipeline::message::View;
use skein_gossip::pipeline::reduction::{self, Adding};
use skein_gossip::pipeline::view_key;
use skein_gossip::view::{Contribution, Stamp};

use super::{Event, Point, World};
use crate::maths::{self, Blocks, Kept};
use crate::network::Lane;

/// One value per sample.
pub(crate) type Rows = Vec<u64>;

#[derive(Clone, Debug)]
pub(crate) struct Frame {
    key: u64,
    /// The stage that it is for.
    stage: usize,
    kind: Kind,
    step: u64,
    micro: u32,
    row: u32,
    version: u64,
    marks: Marks,
    body: Rows,
}

/// A stage that a peer works on.
pub(crate) struct Working {
    key: u64,
    pub(super) stamp: Stamp,
    place: Place,
    /// Its samples of each micro-batch.
    rows: Range<u32>,
    pub(super) first: u16,
    pub(crate) flow: Flow<Rows>,
    adding: Adding<Rows>,
    blocks: Blocks,
    kept: BTreeMap<(u64, u32), (u64, Vec<Kept>)>,
}

impl Working {
    /// Whether this peer decides what is done when.
    pub(crate) fn leads_all(&self) -> bool {
        self.place.stage == 0 && self.place.leads()
    }

    /// One past its last block.
    fn end(&self) -> u16 {
        self.first + self.blocks.states.len() as u16
    }

    fn samples(&self, seed: u64, step: u64, micro: u32) -> Rows {
        let rows = self.rows.clone();
        rows.map(|row| maths::sample_in(seed, step, micro, row))
            .collect()
    }

    fn forward(&mut self, (step, micro): (u64, u32), values: Rows) -> Rows {
        let (outputs, kept) = values
            .into_iter()
            .map(|value| self.blocks.forward(value))
            .unzip();
        let applied = self.flow.applied();
        self.kept.insert((step, micro), (applied, kept));
        outputs
    }

    /// The gradients on their way back, and how many updates old the weights of the forward pass are.
    fn backward(&mut self, at: (u64, u32), gradients: Rows) -> (Rows, u64) {
        let (then, kept) = self.kept.remove(&at).unwrap();
        assert_eq!(kept.len(), gradients.len());
        let each = kept.iter().zip(gradients);
        let back = each.map(|(kept, gradient)| self.blocks.backward(kept, gradient));
        (back.collect(), self.flow.applied() - then)
    }

    /// Those of `values` that belong to `piece`.
    fn part(&self, piece: &Piece, values: &[u64]) -> Rows {
        let at = |row: u32| (row.min(self.rows.end) - self.rows.start) as usize;
        values[at(piece.rows.start)..at(piece.rows.end)].to_vec()
    }

    /// Adds up what is here of the gradients; returns the sums that go to all fellows.
    fn add(&mut self) -> Vec<(u32, Rows)> {
        let mut sums = Vec::new();
        while let Some(piece) = self.adding.next_piece() {
            match piece {
                reduction::Piece::Take { piece, body } => {
                    self.blocks.gradients[self.adding.values(piece)].copy_from_slice(&body);
                }
                reduction::Piece::Add { piece, bodies } => {
                    let range = self.adding.values(piece);
                    for body in bodies.into_iter().flatten() {
                        let own = self.blocks.gradients[range.clone()].iter_mut();
                        own.zip(body)
                            .for_each(|(sum, value)| *sum = sum.wrapping_add(value));
                    }
                    if self.adding.tells_sums() {
                        sums.push((piece, self.blocks.gradients[range].to_vec()));
                    }
                }
            }
        }
        if self.adding.is_done() {
            self.flow.added();
        }
        sums
    }
}

/// What goes to whom.
#[derive(Default)]
struct Sends(Vec<(PeerId, Frame)>);

impl World {
    pub(super) fn switch(&mut self, peer: PeerId, view: &Arc<View>) {
        let places = Place::all(&view.plan, peer).into_iter();
        let working = places.map(|place| self.begin(peer, view, place)).collect();
        let state = self.peers.get_mut(&peer).unwrap();
        (state.working, state.is_busy) = (working, false);
        state.copied.clear();
    }

    fn begin(&self, peer: PeerId, view: &View, place: Place) -> Working {
        let part = &view.plan.stages[place.stage];
        let (stage, n_stages) = (place.stage, place.n_stages);
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
            member: place.member,
            n_members: place.group.len(),
            pieces: Pieces::of(&place),
        };
        let state = &self.peers[&peer];
        let load = |block: u16| match view.from {
            0 => maths::initial(self.seed, block),
            step => state.store[&(block, step)],
        };
        let states: Vec<u64> = part.blocks.clone().map(load).collect();
        let who = (place.member, place.group.len());
        Working {
            key: view_key(view.stamp),
            stamp: view.stamp,
            rows: place.rows.start..place.rows.end.min(self.rows),
            place,
            first: part.blocks.start,
            flow: Flow::new(shape, view.from),
            adding: Adding::new(who, part.reduction, states.len(), view.from),
            blocks: Blocks::new(states, self.rows > 1),
            kept: BTreeMap::new(),
        }
    }

    /// The stage of this number in the view of this key that a peer works on.
    fn working(&mut self, peer: PeerId, (key, stage): (u64, usize)) -> Option<&mut Working> {
        let mut own = self.peers.get_mut(&peer)?.working.iter_mut();
        own.find(|working| working.key == key && working.place.stage == stage)
    }

    pub(super) fn arrive(&mut self, peer: PeerId, from: PeerId, frame: Frame) {
        self.take(peer, from, frame);
        self.pump(peer);
    }

    fn take(&mut self, peer: PeerId, from: PeerId, frame: Frame) {
        let at = (frame.key, frame.stage);
        let Some(working) = self.working(peer, at) else {
            let mut own = self.peers[&peer].working.iter();
            assert!(
                own.all(|working| working.key != frame.key),
                "{frame:?} goes nowhere"
            );
            return;
        };
        let said = format!("{} refuses {frame:?}", peer.0[0]);
        let Frame {
            kind,
            step,
            micro,
            row,
            version,
            marks,
            body,
            ..
        } = frame;
        let mut sums = Vec::new();
        let arrived = match kind {
            Kind::Gradient | Kind::Sum => {
                let mut group = working.place.group.iter();
                let member = group.position(|host| *host == from).unwrap();
                let is_sum = kind == Kind::Sum;
                let arrived = working.adding.arrive((step, micro), member, is_sum, body);
                sums = working.add();
                arrived.map_err(|why| why.to_string())
            }
            _ => {
                let at = (step, micro, row);
                let arrived = working.flow.arrive(kind, at, version, marks, body);
                arrived.map_err(|why| why.to_string())
            }
        };
        if let Err(why) = arrived {
            self.trace(|| format!("{said}: {why}"));
            self.refused += 1;
        }
        self.tell_sums(peer, at, step, sums);
    }

    fn tell_sums(&mut self, peer: PeerId, at: (u64, usize), step: u64, sums: Vec<(u32, Rows)>) {
        let Some(working) = self.working(peer, at) else {
            return;
        };
        let mut sends = Sends::default();
        for (piece, values) in sums {
            for (_, fellow) in working.place.fellows() {
                sends.tell(working, fellow, Kind::Sum, (step, piece), values.clone());
            }
        }
        self.send_all(peer, sends);
    }

    fn send_all(&mut self, peer: PeerId, sends: Sends) {
        for (to, frame) in sends.0 {
            // From stage to stage of one peer.
            if to == peer {
                self.take(peer, peer, frame);
                continue;
            }
            self.send(peer, to, Lane::Frames, |process, connection| {
                Event::Frame(peer, process, connection, frame)
            });
        }
    }

    /// Begins the next operation, if there is one and none is under way.
    pub(super) fn pump(&mut self, peer: PeerId) {
        let device = self.devices[&peer];
        let state = self.peers.get_mut(&peer).unwrap();
        let process = (peer, state.process);
        if state.is_busy {
            return;
        }
        // Backward before forward, later stages first, as the node has it.
        let all = 0..state.working.len();
        let back = all
            .clone()
            .filter(|at| state.working[*at].flow.can_go_back());
        let order: Vec<usize> = back.rev().chain(all.clone().rev()).collect();
        let next = |at: usize| Some((at, state.working[at].flow.next_op()?));
        let Some((at, op)) = order.into_iter().find_map(next) else {
            return;
        };
        state.is_busy = true;
        let working = &state.working[at];
        let stage = (working.key, working.place.stage);
        let share = working.rows.len() as u64;
        let whole =
            working.blocks.states.len() as u64 * device.block_us * share / u64::from(self.rows);
        let takes = match &op {
            Op::Forward { .. } | Op::Look { .. } => whole / 3,
            Op::Backward { .. } => whole * 2 / 3,
            Op::Loss { .. } => whole,
            Op::Apply { .. } | Op::Add { .. } => 100,
            Op::Copy { .. } => 50,
        };
        let percent = self.between(100 - self.jitter, 100 + self.jitter);
        let takes = takes as f64 * device.slowdown * percent as f64 / 100.0;
        self.at(self.now + takes as u64, Event::Done(process, stage, op));
    }

    pub(super) fn done(&mut self, peer: PeerId, stage: (u64, usize), op: Op<Rows>) {
        let (seed, stalest) = (self.seed, self.stalest);
        if self.working(peer, stage).is_none() {
            return;
        }
        self.peers.get_mut(&peer).unwrap().is_busy = false;
        let Some(working) = self.working(peer, stage) else {
            return;
        };
        let mut sends = Sends::default();
        let point = match op {
            Op::Forward {
                step,
                micro,
                version,
                input,
            } => {
                sends.begin(working, step, micro);
                let values =
                    input.map_or_else(|| working.samples(seed, step, micro), |all| all.concat());
                let labels = values
                    .iter()
                    .map(|sample| maths::label(*sample))
                    .collect::<Rows>();
                let outputs = working.forward((step, micro), values);
                let place = working.place.clone();
                sends.pieces(
                    working,
                    &place.behind,
                    Kind::Forward,
                    (step, micro, version),
                    &outputs,
                );
                if place.stage == 0 {
                    sends.pieces(
                        working,
                        &place.labels,
                        Kind::Labels,
                        (step, micro, version),
                        &labels,
                    );
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
                sends.begin(working, step, micro);
                let values =
                    input.map_or_else(|| working.samples(seed, step, micro), |all| all.concat());
                let own = || values.iter().map(|sample| maths::label(*sample)).collect();
                let labels: Rows = labels.map_or_else(own, |all| all.concat());
                let outputs = working.forward((step, micro), values);
                let losses = outputs.iter().zip(&labels);
                let losses = losses.map(|(output, label)| maths::loss(*output, *label));
                let (back, _) = working.backward((step, micro), losses.collect());
                let before = working.place.before.clone();
                sends.pieces(
                    working,
                    &before,
                    Kind::Backward,
                    (step, micro, version),
                    &back,
                );
                Point::Loss
            }
            Op::Backward {
                step,
                micro,
                gradient,
            } => {
                let (back, age) = working.backward((step, micro), gradient.concat());
                let before = working.place.before.clone();
                sends.pieces(working, &before, Kind::Backward, (step, micro, step), &back);
                let depth = u64::from(working.flow.shape().depth);
                assert!(!self.asynchronous || age < depth);
                self.stalest = stalest.max(age);
                Point::Backward
            }
            Op::Add { step } => {
                let group = working.place.group.clone();
                for piece in 0..working.adding.n_pieces() {
                    let values = working.blocks.gradients[working.adding.values(piece)].to_vec();
                    for taker in working.adding.takers(piece) {
                        let at = (step, piece);
                        sends.tell(working, group[taker], Kind::Gradient, at, values.clone());
                    }
                }
                working.adding.begin();
                let sums = working.add();
                self.tell_sums(peer, stage, step, sums);
                Point::Add
            }
            Op::Apply { step } => {
                if working.place.is_shared() {
                    working.adding.end();
                }
                working.blocks.apply();
                let (is_first, stamp) = (working.leads_all(), working.stamp);
                let mut own = self.peers[&peer].working.iter();
                let is_made = own.all(|working| working.flow.applied() >= step);
                self.stepped(peer, (is_first, is_made), stamp, step);
                Point::Apply
            }
            Op::Copy { step } => {
                let first = working.first;
                let states = working.blocks.states.clone();
                let end = working.end();
                self.lines.insert(step);
                let blocks = (first..end).map(|block| (block, step)).zip(states);
                let state = self.peers.get_mut(&peer).unwrap();
                state.store.extend(blocks);
                // It is told once all stages have one.
                let n_made = state.copied.entry(step).or_insert(0);
                *n_made += 1;
                let own = &state.working;
                let all = own.first().unwrap().first..own.last().unwrap().end();
                if *n_made == own.len() && !all.is_empty() {
                    self.handle(peer, Input::Copied { step, blocks: all });
                }
                Point::Copy
            }
            Op::Look { .. } => unreachable!("no samples are held out"),
        };
        self.send_all(peer, sends);
        self.pass(peer, point);
        if self.peers.contains_key(&peer) {
            self.pump(peer);
        }
    }

    /// A stage made a step: that of the lead of all, and all stages of the peer have made it.
    fn stepped(
        &mut self,
        peer: PeerId,
        (is_first, is_made): (bool, bool),
        stamp: Stamp,
        step: u64,
    ) {
        self.steps_made += u64::from(is_first);
        if is_first {
            let now = self.now;
            let life = self.views.entry((stamp.number, stamp.steward)).or_default();
            if life.stepped == 0 {
                life.stepped = now;
            }
        }
        let percent = self.between(100 - self.jitter, 100 + self.jitter);
        if !is_made {
            return;
        }
        let input = Input::Stepped {
            step,
            slowdown: (self.devices[&peer].slowdown * percent as f64 / 100.0) as f32,
            contribution: Contribution::default(),
        };
        self.handle(peer, input);
    }
}

impl Sends {
    /// Says that a step begins, where the first stage is shared.
    fn begin(&mut self, working: &Working, step: u64, micro: u32) {
        if working.leads_all() && micro == 0 {
            for (_, fellow) in working.place.fellows() {
                self.tell(working, fellow, Kind::Begin, (step, 0), Vec::new());
            }
        }
    }

    fn tell(
        &mut self,
        working: &Working,
        to: PeerId,
        kind: Kind,
        (step, micro): (u64, u32),
        body: Rows,
    ) {
        let place = &working.place;
        let stage = match kind {
            Kind::Forward => place.stage + 1,
            Kind::Backward => place.stage - 1,
            Kind::Labels => place.n_stages - 1,
            _ => place.stage,
        };
        let frame = Frame {
            key: working.key,
            stage,
            kind,
            step,
            micro,
            row: 0,
            version: step,
            marks: working.flow.marks(step),
            body,
        };
        self.0.push((to, frame));
    }

    /// Each of `to` gets its samples of `values`, which are those of this host.
    fn pieces(
        &mut self,
        working: &Working,
        to: &[Piece],
        kind: Kind,
        (step, micro, version): (u64, u32, u64),
        values: &[u64],
    ) {
        for piece in to {
            let body = working.part(piece, values);
            self.tell(working, piece.peer, kind, (step, micro), body);
            if let Some((_, frame)) = self.0.last_mut() {
                (frame.row, frame.version) = (piece.rows.start, version);
            }
        }
    }
}

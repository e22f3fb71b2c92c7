//! The one-forward-one-backward schedule, run event by event with times instead of tensors: synchronous (Narayanan et al. 2021,
//! "PipeDream-2BW", arXiv:2006.09503, section 2.2: 1F1B with a flush per step), for stages of one device or of groups (Asteroid:
//! Ye et al., MobiCom 2024, "hybrid pipeline parallelism"); or asynchronous (PipeDream, FTPipeHD: an update with every backward
//! pass, no flush), for stages of one device.
//!
//! A device makes a backward pass where one is due, else a forward pass if its stage may have one more micro-batch in flight,
//! where steps overlap the other way round; the last stage makes both at once. Between groups samples are scattered by their number: a member sends each member of the
//! next group the samples that both have, and begins when its samples have come from all their senders. Sending overlaps
//! computing; a device sends, and receives, one message at a time in each direction of the pipeline; where directions share a
//! rate, one message at a time passes between two groups. When all members have made their last backward pass the gradients
//! are reduced, then each updates its weights. Raw samples take the time of their transfer, but do not hold up other messages.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::costs::Costs;
use super::group::Group;
use super::work::Data;

/// What a device does for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// The forward pass of a micro-batch.
    Forward,
    /// Its backward pass; of the last stage, both.
    Backward,
    /// The group's gradients are added up.
    Reduce,
    /// The optimiser's update.
    Update,
}

/// One device of a stage.
struct Member {
    stage: usize,
    forward: f64,
    backward: f64,
    update: f64,
    /// Whom it sends parts of a micro-batch to, onwards and backwards: how long each takes, and the way after that.
    parts: [Vec<(usize, [f64; 2])>; 2],
    /// How many send it parts, onwards and backwards.
    senders: [u32; 2],
}

/// Groups as the schedule sees them.
struct Stages {
    /// Members of each stage.
    numbers: Vec<Range<usize>>,
    depth: Vec<usize>,
    reduction: Vec<f64>,
}

/// The members of all groups, with what they send each other.
fn members(costs: &Costs<'_>, groups: &[Group]) -> (Vec<Member>, Stages) {
    let mut members: Vec<Member> = Vec::new();
    let mut stages = Stages {
        numbers: Vec::with_capacity(groups.len()),
        depth: groups.iter().map(|group| group.in_flight).collect(),
        reduction: groups
            .iter()
            .map(|group| group.reduction(costs).map_or(0.0, |(_, seconds)| seconds))
            .collect(),
    };
    for (stage, group) in groups.iter().enumerate() {
        let first = members.len();
        for share in &group.shares {
            let [forward, backward, update] =
                costs.seconds(share.device, &group.blocks, share.samples);
            members.push(Member {
                stage,
                forward,
                backward,
                update,
                parts: [Vec::new(), Vec::new()],
                senders: [0; 2],
            });
        }
        stages.numbers.push(first..members.len());
        let Some(before) = stage.checked_sub(1) else {
            continue;
        };
        for (from, to, samples) in overlaps(&groups[before], group) {
            let (a, b) = (groups[before].shares[from].device, group.shares[to].device);
            let bytes = costs.bytes_into(group.blocks.start, samples);
            let (from, to) = (stages.numbers[before].start + from, first + to);
            members[from].parts[0].push((to, costs.links.message(a, b, bytes)));
            members[from].senders[1] += 1;
            members[to].parts[1].push((from, costs.links.message(b, a, bytes)));
            members[to].senders[0] += 1;
        }
    }
    (members, stages)
}

/// Who of one group sends how many samples to whom of the next.
pub(crate) fn overlaps(from: &Group, to: &Group) -> Vec<(usize, usize, usize)> {
    let mut all = Vec::with_capacity(from.shares.len() + to.shares.len());
    let (mut sender, mut receiver) = (0, 0);
    let (mut has, mut takes) = (0, 0);
    loop {
        if has == 0 {
            let Some(share) = from.shares.get(sender) else {
                return all;
            };
            has = share.samples;
        }
        if takes == 0 {
            let Some(share) = to.shares.get(receiver) else {
                return all;
            };
            takes = share.samples;
        }
        let samples = has.min(takes);
        all.push((sender, receiver, samples));
        has -= samples;
        takes -= samples;
        sender += usize::from(has == 0);
        receiver += usize::from(takes == 0);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The member has made its next operation.
    Done { member: usize },
    /// Part of a micro-batch has come, or of a gradient.
    Part {
        member: usize,
        direction: usize,
        micro: usize,
    },
    /// The group of this stage has reduced its gradients.
    Reduced { stage: usize },
}

/// A moment that orders as numbers do; times are finite and not negative.
#[derive(Clone, Copy, PartialEq)]
struct Moment(f64);

impl Eq for Moment {}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Doing {
    Nothing,
    Forward,
    Backward,
    /// Forward and backward pass of the last stage.
    Both,
    /// All backward passes are made; the others' are waited for.
    Reduce,
    Update,
    Finished,
}

/// Where one member is.
struct State {
    doing: Doing,
    /// Micro-batches and gradients that have come whole, passes made.
    come: [usize; 2],
    forwards: usize,
    backwards: usize,
    /// When it can send again, and receive, onwards and backwards.
    sends: [f64; 2],
    receives: [f64; 2],
}

/// What is told of each operation: the member, what it does with which micro-batch from when on, and for how long.
pub(crate) type Tell<'t> = dyn FnMut(usize, (Pass, usize, f64), f64) + 't;

/// A step under way.
pub(crate) struct Run {
    members: Vec<Member>,
    stages: Stages,
    states: Vec<State>,
    n_micro: usize,
    /// Whether forward passes go first.
    overlaps: bool,
    shared: bool,
    /// When the border behind each stage is free again, where both directions share it.
    borders: Vec<f64>,
    /// Parts that have come of each member's micro-batches, onwards and backwards.
    parts: [Vec<u32>; 2],
    /// Members of each stage that wait for the reduction.
    waiting: Vec<usize>,
    events: BinaryHeap<Reverse<(Moment, u64, Event)>>,
    n_events: u64,
    n_finished: usize,
}

impl Run {
    pub(crate) fn new(costs: &Costs<'_>, groups: &[Group], n_micro: usize) -> Self {
        let (mut members, stages) = members(costs, groups);
        let overlaps = costs.work.overlaps();
        for member in members.iter_mut().filter(|_| overlaps) {
            member.backward += std::mem::take(&mut member.update);
        }
        let mut raw = Vec::new();
        if let (Data::At(source), Some(first)) = (costs.data, groups.first()) {
            let mut free = 0.0;
            for micro in 0..n_micro {
                for (member, share) in first.shares.iter().enumerate() {
                    if share.device != source {
                        members[member].senders[0] = 1;
                        let bytes = costs.bytes_into(0, share.samples);
                        let [seconds, delay] = costs.links.message(source, share.device, bytes);
                        free += seconds;
                        raw.push((free + delay, member, micro));
                    }
                }
            }
        }
        let state = |member: &Member| State {
            doing: Doing::Nothing,
            come: [if member.senders[0] == 0 { n_micro } else { 0 }, 0],
            forwards: 0,
            backwards: 0,
            sends: [0.0; 2],
            receives: [0.0; 2],
        };
        let none = vec![0; members.len() * n_micro];
        let mut run = Self {
            states: members.iter().map(state).collect(),
            borders: vec![0.0; groups.len()],
            parts: [none.clone(), none],
            waiting: vec![0; groups.len()],
            n_micro,
            overlaps,
            shared: costs.links.shared,
            events: BinaryHeap::new(),
            n_events: 0,
            n_finished: 0,
            members,
            stages,
        };
        for (at, member, micro) in raw {
            let part = Event::Part {
                member,
                direction: 0,
                micro,
            };
            run.push(at, part);
        }
        run
    }

    /// The moment at which the last update is made; without end if it never is.
    pub(crate) fn finish(mut self, tell: &mut Tell<'_>) -> f64 {
        self.begin(tell);
        let mut end = 0.0;
        while let Some(now) = self.proceed(tell) {
            end = now;
        }
        if self.n_finished == self.members.len() {
            end
        } else {
            f64::INFINITY
        }
    }

    pub(crate) fn begin(&mut self, tell: &mut Tell<'_>) {
        for member in 0..self.members.len() {
            self.start(0.0, member, tell);
        }
    }

    /// Backward passes that the first device has made.
    pub(crate) fn n_through(&self) -> usize {
        self.states[0].backwards
    }

    /// Lets the next event happen and returns its moment; none once nothing happens any more.
    pub(crate) fn proceed(&mut self, tell: &mut Tell<'_>) -> Option<f64> {
        let Reverse((Moment(now), _, event)) = self.events.pop()?;
        match event {
            Event::Part {
                member,
                direction,
                micro,
            } => {
                self.parts[direction][member * self.n_micro + micro] += 1;
                let senders = self.members[member].senders[direction];
                let come = &mut self.states[member].come[direction];
                let all = &self.parts[direction][member * self.n_micro..][..self.n_micro];
                while all.get(*come) == Some(&senders) {
                    *come += 1;
                }
                self.start(now, member, tell);
            }
            Event::Done { member } => {
                self.done(now, member);
                self.start(now, member, tell);
            }
            Event::Reduced { stage } => {
                for member in self.stages.numbers[stage].clone() {
                    self.start_pass(now, member, (Doing::Update, Pass::Update), tell);
                }
            }
        }
        Some(now)
    }

    /// What follows from an operation that is made.
    fn done(&mut self, now: f64, member: usize) {
        let state = &mut self.states[member];
        let made = std::mem::replace(&mut state.doing, Doing::Nothing);
        let (forward, backward) = match made {
            Doing::Forward => (true, false),
            Doing::Backward => (false, true),
            Doing::Both => (true, true),
            Doing::Update => {
                state.doing = Doing::Finished;
                self.n_finished += 1;
                (false, false)
            }
            Doing::Nothing | Doing::Reduce | Doing::Finished => (false, false),
        };
        let micro = [state.forwards, state.backwards];
        state.forwards += usize::from(forward);
        state.backwards += usize::from(backward);
        if forward {
            self.send(now, member, 0, micro[0]);
        }
        if backward {
            self.send(now, member, 1, micro[1]);
        }
    }

    /// Hands all parts of a micro-batch to the links, one after the other.
    fn send(&mut self, now: f64, member: usize, direction: usize, micro: usize) {
        for part in 0..self.members[member].parts[direction].len() {
            let (to, [seconds, delay]) = self.members[member].parts[direction][part];
            let end = if self.shared {
                let border = self.members[member].stage.min(self.members[to].stage);
                let free = &mut self.borders[border];
                *free = free.max(now) + seconds;
                *free
            } else {
                let free =
                    self.states[member].sends[direction].max(self.states[to].receives[direction]);
                let end = free.max(now) + seconds;
                self.states[member].sends[direction] = end;
                self.states[to].receives[direction] = end;
                end
            };
            let member = to;
            self.push(
                end + delay,
                Event::Part {
                    member,
                    direction,
                    micro,
                },
            );
        }
    }

    /// Begins the member's next operation, if it is free and has what that needs.
    fn start(&mut self, now: f64, member: usize, tell: &mut Tell<'_>) {
        let stage = self.members[member].stage;
        let is_last = stage + 1 == self.stages.numbers.len();
        let state = &self.states[member];
        if state.doing != Doing::Nothing {
            return;
        }
        let has_come = state.come[0] > state.forwards;
        let in_flight = state.forwards - state.backwards;
        let may_go = !is_last && has_come && in_flight < self.stages.depth[stage];
        let next = if state.backwards == self.n_micro {
            return self.reduce(now, member, tell);
        } else if is_last && has_come {
            (Doing::Both, Pass::Backward)
        } else if may_go && self.overlaps {
            (Doing::Forward, Pass::Forward)
        } else if state.come[1] > state.backwards {
            (Doing::Backward, Pass::Backward)
        } else if may_go {
            (Doing::Forward, Pass::Forward)
        } else {
            return;
        };
        self.start_pass(now, member, next, tell);
    }

    fn start_pass(
        &mut self,
        now: f64,
        member: usize,
        (doing, pass): (Doing, Pass),
        tell: &mut Tell<'_>,
    ) {
        let (state, times) = (&mut self.states[member], &self.members[member]);
        let (micro, seconds) = match doing {
            Doing::Forward => (state.forwards, times.forward),
            Doing::Both => (state.backwards, times.forward + times.backward),
            Doing::Backward => (state.backwards, times.backward),
            Doing::Nothing | Doing::Reduce | Doing::Update | Doing::Finished => {
                (self.n_micro, times.update)
            }
        };
        state.doing = doing;
        tell(member, (pass, micro, now), seconds);
        self.push(now + seconds, Event::Done { member });
    }

    /// A member has made all its passes: it updates, or its group reduces its gradients when it is the last one.
    fn reduce(&mut self, now: f64, member: usize, tell: &mut Tell<'_>) {
        let stage = self.members[member].stage;
        let group = self.stages.numbers[stage].clone();
        if group.len() == 1 {
            return self.start_pass(now, member, (Doing::Update, Pass::Update), tell);
        }
        self.states[member].doing = Doing::Reduce;
        self.waiting[stage] += 1;
        if self.waiting[stage] == group.len() {
            let seconds = self.stages.reduction[stage];
            for member in group {
                tell(member, (Pass::Reduce, self.n_micro, now), seconds);
            }
            let at = now + seconds;
            self.push(at, Event::Reduced { stage });
        }
    }

    /// What never happens is not waited for.
    fn push(&mut self, at: f64, event: Event) {
        if at.is_finite() {
            self.n_events += 1;
            self.events
                .push(Reverse((Moment(at), self.n_events, event)));
        }
    }
}

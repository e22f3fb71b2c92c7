//! The flow of micro-batches through one stage: what it does next, given what has arrived.
//!
//! ```text
//! first stage   forward ─▶ … ─▶ last stage: forward, loss, backward
//!               backward ◀─ … ◀─┘                    then, on each: apply, copy if it is a line, look if it is time
//! ```
//!
//! *Synchronous* (the default): one step is `micro` micro-batches; the weights change when all have come back. Backward goes
//! first where both could be done (1F1B), and at most `depth` micro-batches are kept for their way back. Gradients are added up
//! in the order of the micro-batches, so a step's result does not depend on timing, on the cut, nor on who computes it.
//! *Asynchronous* (FTPipeHD): a step is one micro-batch, and the next goes forward before it has come back, before all else as
//! long as fewer than `depth` are on their way; its backward uses the weights of its forward (weight stashing), which the head
//! of a frame names (vertical sync). An update follows each backward at once, so copies of one step are the weights after as
//! many updates on all stages, and so is what looks judge: each stage waits for a look with those weights.
//!
//! *Shared stages* (synchronous alone): each host takes its samples of every micro-batch, in pieces from whoever computed them.
//! Before the update the gradients of all are added up. The lead of the first stage tells its fellows what is done after a step
//! ([`Kind::Begin`]); held-out samples go from lead to lead, and fellows make no copy before theirs is through
//! ([`Kind::Looked`]), so that a job does not end before its model is judged.
//!
//! Bound: what has arrived and is not used yet is at most [`Shape::window`] micro-batches per kind; frames beyond are refused, and
//! with them every frame that does not belong to the steps in work.

mod shape;
mod op;
mod arrivals;
#[cfg(test)]
mod shared;

use std::collections::{BTreeMap, VecDeque};

use super::frame::{Kind, Marks};
use arrivals::Arrived;

pub use arrivals::Refused;
pub use op::Op;
pub use shape::{Pieces, Shape, asynchronous_depth, depth};

/// See the module's header.
#[derive(Debug)]
pub struct Flow<P> {
    shape: Shape,
    /// Global numbers of the next micro-batches: step times `micro` plus number.
    forward: u64,
    backward: u64,
    applied: u64,
    /// By kind and global number.
    arrived: BTreeMap<(Kind, u64), Arrived<P>>,
    marks: BTreeMap<u64, Marks>,
    /// How far adding up is, of the step that all micro-batches are back of.
    adding: Adding,
    /// Steps after which the lead has looked.
    looked: u64,
    /// Copies and looks that are due, in order.
    due: VecDeque<Due>,
    may_feed: bool,
    until: Option<u64>,
    look_wanted: bool,
    last_line: u64,
    /// Newest line that has enough copies elsewhere.
    safe: u64,
    lines_rest: bool,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    Copy(u64),
    Look {
        step: u64,
        next: u32,
    },
    /// The lead looks after this step.
    LeadsLook(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adding {
    NotBegun,
    UnderWay,
    Done,
}

impl<P> Flow<P> {
    /// A stage that goes on after `from` steps. The first one draws nothing before [`Flow::feed`].
    pub fn new(shape: Shape, from: u64) -> Self {
        let at = from.saturating_mul(u64::from(shape.micro));
        Self {
            forward: at,
            backward: at,
            applied: from,
            arrived: BTreeMap::new(),
            marks: BTreeMap::new(),
            adding: Adding::NotBegun,
            looked: from,
            due: VecDeque::new(),
            may_feed: false,
            until: None,
            look_wanted: false,
            last_line: from,
            safe: from,
            lines_rest: false,
            shape,
        }
    }

    /// What kind of pipeline it is.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Steps made.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// All hosts are in place: the first stage may draw micro-batches.
    pub fn feed(&mut self) {
        self.may_feed = true;
    }

    /// The first stage makes no step beyond `step`, and makes it a line. False where that cannot be: the step before it is on its
    /// way without the mark, or it is to end earlier.
    #[must_use]
    pub fn set_until(&mut self, step: u64) -> bool {
        let is_marked = self
            .marks
            .get(&step.saturating_sub(1))
            .is_some_and(|marks| marks.line);
        let is_beyond = self.until.is_some_and(|until| until < step);
        if is_beyond || (step < self.first_free() && !is_marked) {
            return false;
        }
        self.until = Some(step);
        true
    }

    /// The step that begins with the next micro-batch to go forward: how many precede it; none in the middle of a step.
    pub fn begins(&self) -> Option<u64> {
        let micro = u64::from(self.shape.micro);
        self.forward
            .is_multiple_of(micro)
            .then(|| self.forward / micro)
    }

    /// The first step boundary that can still be made a line on purpose.
    pub fn first_free(&self) -> u64 {
        let micro = u64::from(self.shape.micro);
        self.forward.div_ceil(micro) + 1
    }

    /// The newest line with enough copies is `step`: the next one may be made.
    pub fn set_safe(&mut self, step: u64) {
        self.safe = self.safe.max(step);
    }

    /// Whether the first stage marks no lines for now, but for the last step of a view: copying costs the stages time.
    pub fn rest_lines(&mut self, rest: bool) {
        self.lines_rest = rest;
    }

    /// The first stage lets the model be judged after the next step it begins.
    pub fn want_look(&mut self) {
        self.look_wanted = true;
    }

    /// Whether the model is to be judged after a step that is on its way, or is being judged.
    pub fn is_to_look(&self) -> bool {
        self.look_wanted
            || self.marks.values().any(|marks| marks.look)
            || self.due.iter().any(|due| matches!(due, Due::Look { .. }))
    }

    /// The gradients of all hosts are added up.
    pub fn added(&mut self) {
        self.adding = Adding::Done;
    }

    /// What is done after the step that `step` steps precede, for the head of its frames.
    pub fn marks(&self, step: u64) -> Marks {
        self.marks.get(&step).copied().unwrap_or_default()
    }

    /// Whether [`Flow::next_op`] gives something that ends what is under way and begins nothing: a backward pass, or what follows
    /// the last of them. A host of several stages does that first.
    pub fn can_go_back(&self) -> bool {
        let micro = u64::from(self.shape.micro);
        !self.due.is_empty()
            || self.backward / micro > self.applied
            || (self.backward < self.forward && self.is_here(Kind::Backward, self.backward))
    }

    /// What can be done now, if anything. The caller does it before it asks again.
    pub fn next_op(&mut self) -> Option<Op<P>> {
        if let Some(due) = self.due.front().copied() {
            match due {
                Due::Copy(step) => {
                    self.due.pop_front();
                    return Some(Op::Copy { step });
                }
                // Nothing else is done until all of it has come: what is judged, and copied then, is of this step.
                Due::Look { step, next } => return self.look(step, next),
                Due::LeadsLook(step) if self.looked >= step => {
                    self.due.pop_front();
                    return self.next_op();
                }
                Due::LeadsLook(_) => return None,
            }
        }
        let micro = u64::from(self.shape.micro);
        if self.backward / micro > self.applied {
            if self.shape.is_shared() && self.adding != Adding::Done {
                let has_begun = std::mem::replace(&mut self.adding, Adding::UnderWay);
                let step = self.applied;
                return (has_begun == Adding::NotBegun).then_some(Op::Add { step });
            }
            self.adding = Adding::NotBegun;
            self.step_made();
            return Some(Op::Apply { step: self.applied });
        }
        // Where steps overlap those behind are kept busy first: FTPipeHD goes backward only when there is no room for more.
        if self.shape.asynchronous
            && let Some(op) = self.go_forward()
        {
            return Some(op);
        }
        if self.backward < self.forward
            && let Some((_, gradient)) = self.take(Kind::Backward, self.backward)
        {
            let (step, number) = (self.backward / micro, (self.backward % micro) as u32);
            self.backward += 1;
            return Some(Op::Backward {
                step,
                micro: number,
                gradient,
            });
        }
        self.go_forward()
    }

    fn go_forward(&mut self) -> Option<Op<P>> {
        let per_step = u64::from(self.shape.micro);
        let (step, micro) = (self.forward / per_step, (self.forward % per_step) as u32);
        let in_flight = self.forward - self.backward;
        if in_flight >= u64::from(self.shape.depth)
            || (!self.shape.asynchronous && step != self.applied)
        {
            return None;
        }
        let (version, input) = if self.shape.is_first() {
            match self.shape.leads() {
                true if !self.may_feed || self.until.is_some_and(|until| step >= until) => {
                    return None;
                }
                true if micro == 0 => self.begin_step(step),
                true => {}
                // The lead has not begun it.
                false if !self.marks.contains_key(&step) => return None,
                false => {}
            }
            (self.applied, None)
        } else {
            if self.shape.is_last() && !self.is_here(Kind::Labels, self.forward) {
                return None;
            }
            let (version, input) = self.take(Kind::Forward, self.forward)?;
            (version, Some(input))
        };
        let labels = self.take(Kind::Labels, self.forward);
        let labels = labels.map(|(_, labels)| labels);
        self.forward += 1;
        if !self.shape.is_last() {
            return Some(Op::Forward {
                step,
                micro,
                version,
                input,
            });
        }
        self.backward += 1;
        Some(Op::Loss {
            step,
            micro,
            version,
            input,
            labels,
        })
    }

    /// The first stage decides what is done after a step, before its first micro-batch leaves.
    fn begin_step(&mut self, step: u64) {
        let made = step + 1;
        let is_due = !self.lines_rest
            && made >= self.last_line.saturating_add(self.shape.line_every)
            && self.safe >= self.last_line;
        let line = is_due || self.until == Some(made);
        if line {
            self.last_line = made;
        }
        let look = std::mem::take(&mut self.look_wanted);
        self.marks.insert(step, Marks { line, look });
    }

    fn step_made(&mut self) {
        let marks = self.marks.remove(&self.applied).unwrap_or_default();
        self.applied += 1;
        // A look comes first: once the last line is copied everywhere, the job is over.
        if marks.look && self.shape.looks > 0 {
            let step = self.applied;
            self.due.push_back(match self.shape.leads() {
                true => Due::Look { step, next: 0 },
                false => Due::LeadsLook(step),
            });
        }
        if marks.line {
            self.due.push_back(Due::Copy(self.applied));
        }
    }

    fn look(&mut self, step: u64, next: u32) -> Option<Op<P>> {
        let number = step * u64::from(self.shape.looks) + u64::from(next);
        let (mut input, mut labels) = (None, None);
        if !self.shape.is_first() {
            let has_labels = !self.shape.is_last() || self.is_here(Kind::LookLabels, number);
            if !has_labels {
                return None;
            }
            // It comes in one piece.
            let whole = |taken: Option<(u64, Vec<P>)>| taken.and_then(|(_, mut all)| all.pop());
            input = Some(whole(self.take(Kind::LookForward, number))?);
            labels = whole(self.take(Kind::LookLabels, number));
        }
        if next + 1 == self.shape.looks {
            self.due.pop_front();
        } else if let Some(front) = self.due.front_mut() {
            let next = next + 1;
            *front = Due::Look { step, next };
        }
        Some(Op::Look {
            step,
            micro: next,
            input,
            labels,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(stage: usize, n_stages: usize, micro: u32) -> Shape {
        Shape {
            stage,
            n_stages,
            micro,
            depth: depth(stage, n_stages, micro),
            asynchronous: false,
            looks: 2,
            line_every: 2,
            member: 0,
            n_members: 1,
            pieces: Pieces::default(),
        }
    }

    const NONE: Marks = Marks {
        line: false,
        look: false,
    };

    /// Runs all stages in one thread; returns what each did, and checks the bound on what is kept.
    fn run(mut flows: Vec<Flow<u64>>, n_steps: u64) -> Vec<Vec<String>> {
        let n = flows.len();
        let mut did = vec![Vec::new(); n];
        flows[0].feed();
        assert!(flows[0].set_until(n_steps));
        loop {
            let mut idle = true;
            for i in 0..n {
                let Some(op) = flows[i].next_op() else {
                    continue;
                };
                idle = false;
                let step_of = |op: &Op<u64>| match op {
                    Op::Forward {
                        step,
                        micro,
                        version,
                        ..
                    }
                    | Op::Loss {
                        step,
                        micro,
                        version,
                        ..
                    } => (*step, *micro, *version),
                    Op::Backward { step, micro, .. } | Op::Look { step, micro, .. } => {
                        (*step, *micro, 0)
                    }
                    Op::Apply { step } | Op::Copy { step } | Op::Add { step } => (*step, 0, 0),
                };
                let (step, micro, version) = step_of(&op);
                let marks = flows[i].marks(step);
                let mut send = |to: usize, kind| {
                    flows[to]
                        .arrive(kind, (step, micro, 0), version, marks, 0)
                        .unwrap()
                };
                match &op {
                    Op::Forward { .. } => {
                        send(i + 1, Kind::Forward);
                        if i == 0 {
                            send(n - 1, Kind::Labels);
                        }
                        did[i].push(format!("F{step}.{micro}"));
                    }
                    Op::Loss { .. } | Op::Backward { .. } => {
                        if i > 0 {
                            send(i - 1, Kind::Backward);
                        }
                        did[i].push(format!("B{step}.{micro}"));
                    }
                    Op::Look { .. } => {
                        if i + 1 < n {
                            send(i + 1, Kind::LookForward);
                        }
                        if i == 0 && n > 1 {
                            send(n - 1, Kind::LookLabels);
                        }
                        did[i].push(format!("L{step}.{micro}"));
                    }
                    Op::Apply { step } => {
                        flows[i].set_safe(*step);
                        did[i].push(format!("A{step}"));
                    }
                    Op::Copy { step } => did[i].push(format!("C{step}")),
                    Op::Add { .. } => unreachable!("no stage is shared"),
                }
            }
            if idle {
                return did;
            }
        }
    }

    #[test]
    fn every_stage_makes_every_micro_batch_once_and_in_order() {
        for n in 1..5 {
            for micro in [1, 3, 8] {
                let mut flows: Vec<Flow<u64>> =
                    (0..n).map(|i| Flow::new(shape(i, n, micro), 0)).collect();
                flows[0].want_look();
                for (i, did) in run(flows, 3).into_iter().enumerate() {
                    let only = |letter: char| {
                        did.iter()
                            .filter(|op| op.starts_with(letter))
                            .cloned()
                            .collect::<Vec<_>>()
                    };
                    let all: Vec<String> = (0..3)
                        .flat_map(|s| (0..micro).map(move |m| format!("{s}.{m}")))
                        .collect();
                    assert_eq!(
                        only('B'),
                        all.iter().map(|at| format!("B{at}")).collect::<Vec<_>>()
                    );
                    if i + 1 < n {
                        assert_eq!(
                            only('F'),
                            all.iter().map(|at| format!("F{at}")).collect::<Vec<_>>()
                        );
                    }
                    assert_eq!(only('A'), ["A1", "A2", "A3"]);
                    assert_eq!(only('L'), ["L1.0", "L1.1"]);
                    assert_eq!(only('C'), ["C2", "C3"], "every second step, and the last");
                }
            }
        }
    }

    #[test]
    fn no_more_than_the_depth_is_on_its_way() {
        let mut first: Flow<u64> = Flow::new(shape(0, 3, 8), 4);
        first.feed();
        let forwards = std::iter::from_fn(|| first.next_op()).count();
        assert_eq!(forwards, 5);
        for micro in 0..3 {
            first
                .arrive(Kind::Backward, (4, micro, 0), 4, NONE, 0)
                .unwrap();
        }
        assert!(
            matches!(
                first.next_op(),
                Some(Op::Backward {
                    step: 4,
                    micro: 0,
                    ..
                })
            ),
            "backward goes first"
        );
    }

    #[test]
    fn what_ends_work_under_way_is_known_before_it_is_done() {
        let mut first: Flow<u64> = Flow::new(shape(0, 2, 2), 1);
        first.feed();
        assert!(first.set_until(2) && !first.can_go_back());
        while first.next_op().is_some() {}
        for micro in 0..2 {
            let at = (1, micro, 0);
            first.arrive(Kind::Backward, at, 1, NONE, 0).unwrap();
            assert!(first.can_go_back());
            assert!(matches!(first.next_op(), Some(Op::Backward { .. })));
        }
        assert!(first.can_go_back());
        assert_eq!(first.next_op(), Some(Op::Apply { step: 2 }));
        assert!(first.can_go_back(), "a line is due");
        assert_eq!(first.next_op(), Some(Op::Copy { step: 2 }));
        assert!(!first.can_go_back());
    }

    #[test]
    fn a_first_stage_stops_at_the_line_it_was_told_in_time() {
        let mut first: Flow<u64> = Flow::new(shape(0, 2, 2), 0);
        first.feed();
        assert_eq!(first.first_free(), 1);
        assert!(matches!(
            first.next_op(),
            Some(Op::Forward {
                step: 0,
                micro: 0,
                ..
            })
        ));
        assert!(!first.set_until(1), "step 0 is on its way without the mark");
        assert!(first.set_until(2));
        assert_eq!(first.first_free(), 2);
        assert!(!first.set_until(3), "it ends before");
    }

    #[test]
    fn labels_may_be_as_far_ahead_as_the_first_stage_is() {
        let shape = |stage| Shape {
            asynchronous: true,
            depth: 6 - stage as u32,
            ..shape(stage, 6, 1)
        };
        let mut first: Flow<u64> = Flow::new(shape(0), 0);
        let mut last: Flow<u64> = Flow::new(shape(5), 0);
        first.feed();
        let mut n_labels = 0;
        while let Some(Op::Forward { step, .. }) = first.next_op() {
            last.arrive(Kind::Labels, (step, 0, 0), 0, NONE, 0).unwrap();
            n_labels += 1;
        }
        assert_eq!(n_labels, 6);
    }

    #[test]
    fn the_next_line_waits_until_the_last_one_has_its_copies() {
        let mut only: Flow<u64> = Flow::new(shape(0, 1, 1), 0);
        only.feed();
        let mut lines = Vec::new();
        for _ in 0..100 {
            match only.next_op() {
                Some(Op::Copy { step }) => {
                    lines.push(step);
                    if step == 2 {
                        continue;
                    }
                    only.set_safe(step);
                }
                Some(Op::Apply { step: 9 }) => only.set_safe(2),
                _ => {}
            }
        }
        assert_eq!(&lines[..3], [2, 10, 12]);
    }

    #[test]
    fn lines_that_rest_are_made_for_the_last_step_all_the_same() {
        let mut only: Flow<u64> = Flow::new(shape(0, 1, 1), 0);
        only.feed();
        only.rest_lines(true);
        assert!(only.set_until(7));
        let lines = |flow: &mut Flow<u64>| -> Vec<u64> {
            let ops = std::iter::from_fn(|| flow.next_op());
            ops.filter_map(|op| {
                if let Op::Copy { step } = op {
                    Some(step)
                } else {
                    None
                }
            })
            .collect()
        };
        assert_eq!(lines(&mut only), [7]);
    }

    #[test]
    fn frames_that_do_not_belong_are_refused() {
        let mut last: Flow<u64> = Flow::new(shape(1, 2, 2), 7);
        let mut arrive = |kind, step, micro| last.arrive(kind, (step, micro, 0), step, NONE, 0);
        assert_eq!(arrive(Kind::Forward, 7, 0), Ok(()));
        assert_eq!(arrive(Kind::Forward, 7, 0), Err(Refused::Twice));
        assert_eq!(
            arrive(Kind::Forward, 7, 2),
            Err(Refused::Micro { micro: 2 })
        );
        assert_eq!(
            arrive(Kind::Forward, 6, 1),
            Err(Refused::Step {
                step: 6,
                applied: 7
            })
        );
        assert_eq!(
            arrive(Kind::Forward, u64::MAX, 1),
            Err(Refused::Step {
                step: u64::MAX,
                applied: 7
            })
        );
        assert_eq!(
            arrive(Kind::Forward, 60, 1),
            Err(Refused::Step {
                step: 60,
                applied: 7
            })
        );
        assert_eq!(arrive(Kind::Backward, 7, 0), Err(Refused::Kind));
        assert_eq!(arrive(Kind::Begin, 7, 0), Err(Refused::Kind));
        let row = Err(Refused::Row { row: 3 });
        assert_eq!(last.arrive(Kind::Forward, (7, 1, 3), 7, NONE, 0), row);
    }

    #[test]
    fn an_asynchronous_pipeline_overlaps_steps_within_its_depth() {
        let asynchronous = |stage| Shape {
            asynchronous: true,
            depth: 3 - stage as u32,
            ..shape(stage, 3, 1)
        };
        let mut first: Flow<u64> = Flow::new(asynchronous(0), 0);
        first.feed();
        let versions: Vec<u64> = std::iter::from_fn(|| match first.next_op() {
            Some(Op::Forward { version, .. }) => Some(version),
            _ => None,
        })
        .collect();
        assert_eq!(versions, [0, 0, 0], "three go forward before one is back");
        first.arrive(Kind::Backward, (0, 0, 0), 0, NONE, 0).unwrap();
        assert!(matches!(
            first.next_op(),
            Some(Op::Backward { step: 0, .. })
        ));
        assert!(matches!(first.next_op(), Some(Op::Apply { step: 1 })));
        assert!(matches!(
            first.next_op(),
            Some(Op::Forward {
                step: 3,
                version: 1,
                ..
            })
        ));
        let flows = (0..3).map(|i| Flow::new(asynchronous(i), 0)).collect();
        for did in run(flows, 20) {
            assert_eq!(did.iter().filter(|op| op.starts_with('A')).count(), 20);
        }
    }

    #[test]
    fn lines_and_looks_of_an_asynchronous_pipeline_are_of_one_step_on_all_stages() {
        for (n, hides_transfers) in [(1, false), (3, false), (4, true), (6, true)] {
            let asynchronous = |stage| Shape {
                asynchronous: true,
                depth: asynchronous_depth(stage, n, hides_transfers),
                line_every: 3,
                ..shape(stage, n, 1)
            };
            let mut flows: Vec<Flow<u64>> = (0..n).map(|i| Flow::new(asynchronous(i), 0)).collect();
            flows[0].want_look();
            assert!(flows[0].is_to_look());
            for did in run(flows, 12) {
                let after = |step: u64, expected: &[&str]| {
                    let applied = format!("A{step}");
                    let at = did.iter().position(|op| *op == applied).unwrap();
                    assert_eq!(did[at - 1], format!("B{}.0", step - 1));
                    assert_eq!(did[at + 1..][..expected.len()], *expected, "{did:?}");
                };
                after(1, &["L1.0", "L1.1"]);
                after(3, &["C3"]);
                after(12, &["C12"]);
            }
        }
    }

    #[test]
    fn asynchronous_stages_have_as_many_batches_on_their_way_as_stages_follow() {
        let depths = |hides_transfers| [0, 1, 2].map(|i| asynchronous_depth(i, 3, hides_transfers));
        assert_eq!((depths(false), depths(true)), ([3, 2, 1], [5, 3, 1]));
        assert_eq!(asynchronous_depth(9, 3, false), 1);
    }
}

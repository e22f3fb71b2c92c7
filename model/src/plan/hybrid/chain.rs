//! Algorithm 2: dynamic programming over where stages begin and which groups host them, from the last stage to the first
//! (Asteroid: Ye et al., MobiCom 2024, "planner").
//!
//! `Q(l, n, p)` of the paper is the best tail of l layers on n devices in p stages. Here a state is the devices used so far, the
//! group at its head, the number of its stages and where it begins, and keeps not only the fastest tail but a few that are
//! better in latency, reduction or the way of one micro-batch: latency alone does not add up. The head's group is part of the state, because the
//! transfer into it depends on it.

use std::collections::BTreeMap;

use super::cells::{Cell, Cells};
use crate::plan::steps::{Tail, Transfer};

/// Which groups may stand before which: devices used so far are a number, 0 for none; adding a group leads to a higher one.
pub(super) struct Space {
    /// Devices of each group, ascending.
    pub(super) groups: Vec<Vec<usize>>,
    /// Per number of used devices, which group may come before and what is used then.
    pub(super) heads: Vec<Vec<(usize, usize)>>,
    /// Most stages.
    pub(super) most_stages: usize,
    /// A tail of more than this many times the best known step is given up; closed form and schedule differ.
    pub(super) hopeless: f64,
}

/// One stage of a way to host the blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Its first block.
    pub(super) start: usize,
    /// Who hosts it.
    pub(super) group: usize,
    /// For how many micro-batches in flight its samples are divided.
    pub(super) depth: usize,
}

/// Most tails that a state keeps.
const FRONT: usize = 3;

/// A tail that was found.
struct Entry {
    tail: Tail,
    /// Where its head begins, on the grid.
    start: usize,
    group: usize,
    depth: usize,
    next: Option<usize>,
}

/// Tails with the same devices, head and number of stages, by where they begin.
type Fronts = Vec<Vec<usize>>;

/// What a stage is put before: nothing, or tails.
struct Behind {
    head: Option<usize>,
    stages: usize,
    fronts: Fronts,
}

struct Search<'s, 'a> {
    cells: &'s mut Cells<'a>,
    space: &'s Space,
    arena: Vec<Entry>,
    /// Whole pipelines, with their seconds, and the least of these.
    answers: Vec<(f64, usize)>,
    best: f64,
    /// Per number of used devices: tails by head and number of stages.
    states: Vec<BTreeMap<(usize, usize), Fronts>>,
    n_tails: usize,
}

/// Chains with the shortest steps in closed form, at most `most` of them, with their seconds, the shortest first; and how many
/// tails were looked at.
pub(super) fn chains(
    cells: &mut Cells<'_>,
    space: &Space,
    most: usize,
) -> (Vec<(f64, Vec<Part>)>, usize) {
    let mut search = Search {
        cells,
        space,
        arena: Vec::new(),
        answers: Vec::new(),
        best: f64::INFINITY,
        states: vec![BTreeMap::new(); space.heads.len()],
        n_tails: 0,
    };
    search.one_group();
    for used in 0..space.heads.len() {
        search.before(used);
    }
    (search.told(most), search.n_tails)
}

impl Search<'_, '_> {
    /// One group for everything, to have something that all else has to beat.
    fn one_group(&mut self) {
        let (work, n) = (self.cells.costs.work, self.cells.grid.len() - 1);
        for (group, _) in self.space.heads.iter().flatten() {
            let options = self.cells.options(*group, 0..n, work.in_flight(0, 1));
            for cell in options.into_iter().flatten() {
                let seconds = headed_by(Tail::END, work.n_micro, &cell).seconds();
                self.best = self.best.min(seconds);
            }
        }
    }

    /// All stages that may come before what uses these devices.
    fn before(&mut self, used: usize) {
        let states = std::mem::take(&mut self.states[used]).into_iter();
        let mut all: Vec<Behind> = states
            .map(|((head, stages), fronts)| Behind {
                head: Some(head),
                stages,
                fronts,
            })
            .filter(|behind| behind.stages < self.space.most_stages)
            .collect();
        if used == 0 {
            all.push(Behind {
                head: None,
                stages: 0,
                fronts: Vec::new(),
            });
        }
        let n = self.cells.grid.len() - 1;
        let space = self.space;
        for (group, then) in &space.heads[used] {
            for behind in &all {
                let per_byte = behind.head.map(|head| between(self.cells, *group, head));
                let ends = if per_byte.is_none() { n..n + 1 } else { 1..n };
                for end in ends {
                    let tails = self.sent_to(behind, end, per_byte);
                    self.grow((*group, *then), behind.stages, end, &tails);
                }
            }
        }
    }

    /// The tails that begin at `end`, with the transfer into them, as far as there is hope.
    fn sent_to(
        &self,
        behind: &Behind,
        end: usize,
        per_byte: Option<Transfer>,
    ) -> Vec<(Tail, Option<usize>)> {
        let Some(per_byte) = per_byte else {
            return vec![(Tail::END, None)];
        };
        let costs = self.cells.costs;
        let (n_micro, links) = (costs.work.n_micro, costs.links);
        let bytes = costs.bytes_into(self.cells.grid[end], costs.work.micro_batch) as f64;
        let transfer = Transfer {
            seconds: per_byte.seconds.map(|seconds| seconds * bytes),
            ..per_byte
        };
        let with = |id: &usize| {
            let tail = self.arena[*id].tail;
            let tail = tail.behind_transfer(n_micro, transfer, links.shared);
            (tail, Some(*id))
        };
        let tails = behind.fronts[end].iter().map(with);
        tails
            .filter(|(tail, _)| tail.latency <= self.limit())
            .collect()
    }

    fn limit(&self) -> f64 {
        self.best * self.space.hopeless
    }

    /// Stages of a group that end at `end`, before each of these tails.
    fn grow(
        &mut self,
        (group, then): (usize, usize),
        stages: usize,
        end: usize,
        tails: &[(Tail, Option<usize>)],
    ) {
        if tails.is_empty() {
            return;
        }
        let work = self.cells.costs.work;
        let rule = work.in_flight(0, stages + 1);
        for start in (0..end).rev() {
            let options = self.cells.options(group, start..end, rule);
            let own = |cell: &Cell| work.n_micro as f64 * (cell.passes[0] + cell.passes[1]);
            if options[0].is_some_and(|cell| own(&cell) > self.limit()) {
                // More blocks only take longer.
                break;
            }
            for cell in options.into_iter().flatten() {
                for (tail, next) in tails {
                    self.n_tails += 1;
                    let tail = headed_by(*tail, work.n_micro, &cell);
                    if tail.latency > self.limit() || !tail.latency.is_finite() {
                        continue;
                    }
                    let entry = Entry {
                        tail,
                        start,
                        group,
                        depth: cell.depth,
                        next: *next,
                    };
                    if start == 0 {
                        self.best = self.best.min(tail.seconds());
                        self.answers.push((tail.seconds(), self.arena.len()));
                        self.arena.push(entry);
                        continue;
                    }
                    let n = self.cells.grid.len() - 1;
                    let fronts = self.states[then].entry((group, stages + 1));
                    let fronts = fronts.or_insert_with(|| vec![Vec::new(); n]);
                    keep(&mut self.arena, &mut fronts[start], entry);
                }
            }
        }
    }

    fn told(&mut self, most: usize) -> Vec<(f64, Vec<Part>)> {
        let limit = self.limit();
        self.answers.retain(|(seconds, _)| *seconds <= limit);
        self.answers.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.answers.truncate(most);
        let chain = |(seconds, id): &(f64, usize)| {
            let mut chain = Vec::new();
            let mut at = Some(*id);
            while let Some(id) = at {
                let entry = &self.arena[id];
                chain.push(Part {
                    start: self.cells.grid[entry.start],
                    group: entry.group,
                    depth: entry.depth,
                });
                at = entry.next;
            }
            (*seconds, chain)
        };
        self.answers.iter().map(chain).collect()
    }
}

/// A tail with a stage before it.
fn headed_by(tail: Tail, n_micro: usize, cell: &Cell) -> Tail {
    let tail = tail.behind_stage(n_micro, cell.passes, cell.reduce, cell.in_flight);
    tail.behind_samples(n_micro, cell.raw)
}

/// Puts a tail into a front, if none there is as good in both parts; those that it beats leave.
fn keep(arena: &mut Vec<Entry>, front: &mut Vec<usize>, entry: Entry) {
    let beaten = |id: &usize| arena[*id].tail.is_as_good_as(&entry.tail);
    if front.iter().any(beaten) {
        return;
    }
    front.retain(|id| !entry.tail.is_as_good_as(&arena[*id].tail));
    front.push(arena.len());
    arena.push(entry);
    if front.len() > FRONT {
        let worst = (0..front.len()).max_by(|a, b| {
            let value = |at: &usize| arena[front[*at]].tail.seconds();
            value(a).total_cmp(&value(b))
        });
        front.remove(worst.unwrap_or(0));
    }
}

/// Seconds per byte of a whole micro-batch from one group to the next and back: as many pairs send at once as the smaller group
/// has members, over links like those between them on average, with their average delay.
fn between(cells: &Cells<'_>, from: usize, to: usize) -> Transfer {
    let (from, to) = (&cells.groups[from], &cells.groups[to]);
    let links = cells.costs.links;
    let (mut sum, mut delays) = ([0.0f64; 2], [0.0f64; 2]);
    for a in from {
        for b in to {
            delays[0] += links.delay(*a, *b);
            delays[1] += links.delay(*b, *a);
            sum[0] += links.seconds(*a, *b, 1);
            sum[1] += links.seconds(*b, *a, 1);
        }
    }
    let pairs = from.len() * to.len();
    let at_once = if links.shared {
        1
    } else {
        from.len().min(to.len())
    };
    Transfer {
        seconds: sum.map(|seconds| seconds / (pairs * at_once) as f64),
        delay: delays.map(|delay| delay / pairs as f64),
    }
}

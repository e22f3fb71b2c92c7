//! Algorithm 2: dynamic programming over where stages begin and which groups host them, from the last stage to the first
//! (Asteroid: Ye et al., MobiCom 2024, "planner").
//!
//! `Q(l, n, p)` of the paper is the best tail of l layers on n devices in p stages. Here a state is the devices used so far, the
//! group at its head, the number of its stages and where it begins, and keeps not only the fastest tail but a few that are
//! better in latency, reduction or the way of one micro-batch: latency alone does not add up. The head's group is part of the state, because the
//! transfer into it depends on it.

use std::collections::BTreeMap;

use super::cells::{Cell, Cells};
use crate::plan::steps::Tail;

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

struct Entry {
    tail: Tail,
    start: usize,
    group: usize,
    depth: usize,
    next: Option<usize>,
}

/// Chains with the shortest steps in closed form, at most `most` of them, with their seconds, the shortest first; and how many
/// tails were looked at.
pub(super) fn chains(
    cells: &mut Cells<'_>,
    space: &Space,
    most: usize,
) -> (Vec<(f64, Vec<Part>)>, usize) {
    let costs = cells.costs;
    let (n_micro, links) = (costs.work.n_micro, costs.links);
    let n = cells.grid.len() - 1;
    let mut arena: Vec<Entry> = Vec::new();
    let mut answers: Vec<(f64, usize)> = Vec::new();
    let mut best = f64::INFINITY;
    // One group for everything, to begin with.
    for (group, _) in space.heads.iter().flatten() {
        let options = cells.options(*group, 0..n, costs.work.in_flight(0, 1));
        for cell in options.into_iter().flatten() {
            let tail = Tail::END.behind_stage(n_micro, cell.passes, cell.reduce, cell.in_flight);
            let tail = tail.behind_samples(n_micro, cell.raw);
            best = best.min(tail.seconds());
        }
    }
    let mut n_tails = 0;
    // Per number of used devices: per head and number of stages, the tails by where they begin.
    let mut states: Vec<BTreeMap<(usize, usize), Vec<Vec<usize>>>> = Vec::new();
    states.resize_with(space.heads.len(), BTreeMap::new);
    for used in 0..space.heads.len() {
        let here = std::mem::take(&mut states[used]);
        for (group, then) in &space.heads[used] {
            let mut sources: Vec<(Option<usize>, usize, &[Vec<usize>])> = Vec::new();
            if used == 0 {
                sources.push((None, 0, &[]));
            }
            sources.extend(
                here.iter()
                    .map(|((head, stages), fronts)| (Some(*head), *stages, fronts.as_slice())),
            );
            for (head, stages, fronts) in sources {
                if stages == space.most_stages {
                    continue;
                }
                let rule = costs.work.in_flight(0, stages + 1);
                let per_byte = head.map(|head| between(cells, *group, head));
                let ends = if head.is_none() { n..n + 1 } else { 1..n };
                for end in ends {
                    let tails: Vec<(Tail, Option<usize>)> = match per_byte {
                        None => vec![(Tail::END, None)],
                        Some(per_byte) => {
                            let bytes = costs.bytes_into(cells.grid[end], costs.work.micro_batch);
                            let seconds = per_byte.map(|per_byte| per_byte * bytes as f64);
                            let with = |id: &usize| {
                                let tail = arena[*id].tail;
                                let tail = tail.behind_transfer(
                                    n_micro,
                                    seconds,
                                    links.latency,
                                    links.shared,
                                );
                                (tail, Some(*id))
                            };
                            fronts[end].iter().map(with).collect()
                        }
                    };
                    if tails
                        .iter()
                        .all(|(tail, _)| tail.latency > best * space.hopeless)
                    {
                        continue;
                    }
                    for start in (0..end).rev() {
                        let options = cells.options(*group, start..end, rule);
                        let own = |cell: &Cell| n_micro as f64 * (cell.passes[0] + cell.passes[1]);
                        if options[0]
                            .as_ref()
                            .is_some_and(|cell| own(cell) > best * space.hopeless)
                        {
                            // More blocks only take longer.
                            break;
                        }
                        let options = options.into_iter().flatten();
                        for cell in options {
                            if own(&cell) > best * space.hopeless {
                                continue;
                            }
                            for (tail, next) in &tails {
                                let (passes, reduce) = (cell.passes, cell.reduce);
                                let tail =
                                    tail.behind_stage(n_micro, passes, reduce, cell.in_flight);
                                let tail = tail.behind_samples(n_micro, cell.raw);
                                n_tails += 1;
                                if tail.latency > best * space.hopeless || !tail.latency.is_finite()
                                {
                                    continue;
                                }
                                let entry = Entry {
                                    tail,
                                    start,
                                    group: *group,
                                    depth: cell.depth,
                                    next: *next,
                                };
                                if start == 0 {
                                    best = best.min(tail.seconds());
                                    answers.push((tail.seconds(), arena.len()));
                                    arena.push(entry);
                                    continue;
                                }
                                let fronts = states[*then]
                                    .entry((*group, stages + 1))
                                    .or_insert_with(|| vec![Vec::new(); n]);
                                keep(&mut arena, &mut fronts[start], entry);
                            }
                        }
                    }
                }
            }
        }
    }
    answers.retain(|(seconds, _)| *seconds <= best * space.hopeless);
    answers.sort_by(|a, b| a.0.total_cmp(&b.0));
    answers.truncate(most);
    let chain = |(seconds, id): &(f64, usize)| {
        let mut chain = Vec::new();
        let mut at = Some(*id);
        while let Some(id) = at {
            chain.push(Part {
                start: cells.grid[arena[id].start],
                group: arena[id].group,
                depth: arena[id].depth,
            });
            at = arena[id].next;
        }
        (*seconds, chain)
    };
    (answers.iter().map(chain).collect(), n_tails)
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
/// has members, over links like those between them on average.
fn between(cells: &Cells<'_>, from: usize, to: usize) -> [f64; 2] {
    let (from, to) = (&cells.groups[from], &cells.groups[to]);
    let links = cells.costs.links;
    let mut sum = [0.0f64; 2];
    for a in from {
        for b in to {
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
    sum.map(|seconds| seconds / (pairs * at_once) as f64)
}

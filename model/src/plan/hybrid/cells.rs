//! What groups of devices take for runs of blocks between candidate borders, remembered: planners ask for the same ones again
//! and again.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::plan::costs::Costs;
use crate::plan::group::{Pace, allocate, raw};
use crate::plan::steps::reduce_and_update;

/// Seconds of a group for a run of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    /// Of the slowest member, forward and backward.
    pub(super) passes: [f64; 2],
    /// Of the reduction and the slowest update.
    pub(super) reduce: f64,
    /// Of the raw samples of a micro-batch, of a group that begins.
    pub(super) raw: f64,
    /// Micro-batches in flight for which there is room, up to the rule.
    pub(super) in_flight: usize,
    /// For how many samples were divided: [`usize::MAX`] where memory makes no difference.
    pub(super) depth: usize,
}

/// See the module's header.
pub(super) struct Cells<'a> {
    pub(super) costs: &'a Costs<'a>,
    /// Candidate borders, from 0 to all blocks.
    pub(super) grid: &'a [usize],
    /// Devices of each group, ascending.
    pub(super) groups: &'a [Vec<usize>],
    /// Whether the members of each group are linked.
    linked: Vec<bool>,
    /// Per group and run, where asked before: the fastest division there is, and its room.
    fastest: Vec<Vec<Option<Option<Cell>>>>,
    /// Per group, run and rule, where memory makes a difference: the divisions for fewer and for more in flight.
    limited: BTreeMap<(usize, usize, usize), Vec<Cell>>,
    most_in_flight: usize,
    /// Times algorithm 1 ran.
    pub(super) n_divided: usize,
}

/// Most divisions between the fastest and the deepest one.
const MOST_DEPTHS: usize = 4;

impl<'a> Cells<'a> {
    pub(super) fn new(costs: &'a Costs<'a>, grid: &'a [usize], groups: &'a [Vec<usize>]) -> Self {
        let runs = grid.len() * grid.len();
        let linked = |devices: &Vec<usize>| Pace::of(costs, devices).reduction(1).1.is_finite();
        Self {
            costs,
            grid,
            groups,
            linked: groups.iter().map(linked).collect(),
            fastest: vec![vec![None; runs]; groups.len()],
            limited: BTreeMap::new(),
            most_in_flight: costs.work.in_flight(0, costs.devices.len()),
            n_divided: 0,
        }
    }

    /// What the group may take for the blocks between two borders of the grid, by `rule` for the micro-batches in flight: one
    /// cell where memory lets all do what is fastest, else from the fastest to that for most in flight. None if it does not
    /// fit.
    pub(super) fn options(
        &mut self,
        group: usize,
        run: Range<usize>,
        rule: usize,
    ) -> [Option<Cell>; MOST_DEPTHS] {
        let at = run.start * self.grid.len() + run.end;
        let most = self.most_in_flight;
        let fastest = match self.fastest[group][at] {
            Some(cell) => cell,
            None => {
                let cell = self.divide(group, &run, (1, most));
                self.fastest[group][at] = Some(cell);
                cell
            }
        };
        let mut options = [None; MOST_DEPTHS];
        let Some(fastest) = fastest else {
            return options;
        };
        options[0] = Some(Cell {
            in_flight: fastest.in_flight.min(rule),
            depth: if fastest.in_flight < rule {
                1
            } else {
                usize::MAX
            },
            ..fastest
        });
        if fastest.in_flight >= rule {
            return options;
        }
        let key = (group, at, rule);
        if !self.limited.contains_key(&key) {
            let mut deeper: Vec<Cell> = Vec::new();
            let mut so_far = fastest.in_flight;
            while so_far < rule && deeper.len() + 1 < MOST_DEPTHS {
                let depth = if deeper.len() + 2 == MOST_DEPTHS {
                    rule
                } else {
                    so_far + 1
                };
                let cell = self.divide(group, &run, (depth, rule));
                let Some(cell) = cell.filter(|cell| cell.in_flight > so_far) else {
                    break;
                };
                so_far = cell.in_flight;
                deeper.push(Cell { depth, ..cell });
            }
            self.limited.insert(key, deeper);
        }
        let deeper = self.limited.get(&key).map_or(&[][..], Vec::as_slice);
        for (option, cell) in options[1..].iter_mut().zip(deeper) {
            *option = Some(*cell);
        }
        options
    }

    fn divide(&mut self, group: usize, run: &Range<usize>, depth: (usize, usize)) -> Option<Cell> {
        if !self.linked[group] {
            return None;
        }
        self.n_divided += 1;
        let blocks = self.grid[run.start]..self.grid[run.end];
        let divided = allocate(self.costs, &blocks, &self.groups[group], depth)?;
        Some(Cell {
            passes: divided.seconds(self.costs),
            reduce: reduce_and_update(self.costs, &divided),
            raw: raw(self.costs, &blocks, &divided.shares),
            in_flight: divided.in_flight,
            depth: depth.0,
        })
    }
}

/// Candidate borders for stages: all of them, or of more than `most` blocks those with the least to send in each of `most` runs
/// that take about as long as each other.
pub(super) fn grid(costs: &Costs<'_>, most: usize) -> Vec<usize> {
    let n = costs.n_blocks();
    if n <= most {
        return (0..=n).collect();
    }
    let micro_batch = costs.work.micro_batch;
    let until = |end: usize| {
        let [forward, backward, _] = costs.seconds(0, &(0..end), micro_batch);
        forward + backward
    };
    let total = until(n);
    let mut grid = vec![0];
    for part in 1..=most {
        let first = grid.last().map_or(1, |last| last + 1);
        let goal = total * part as f64 / most as f64;
        let last = (first..n).rev().find(|end| until(*end) <= goal);
        let borders = first..=last.unwrap_or(first).min(n - 1);
        let cheapest =
            borders.min_by_key(|border| (costs.bytes_into(*border, 1), usize::MAX - border));
        grid.extend(cheapest.filter(|border| *border < n && part < most));
    }
    grid.push(n);
    grid.dedup();
    grid
}

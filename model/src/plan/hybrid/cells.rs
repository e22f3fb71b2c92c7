//! What groups of devices take for runs of blocks between candidate borders, remembered: planners ask for the same ones again
//! and again.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::plan::costs::Costs;
use crate::plan::group::{Pace, allocate};
use crate::plan::steps::reduce_and_update;

/// Seconds of a group for a run of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    /// Of the slowest member, forward and backward.
    pub(super) passes: [f64; 2],
    /// Of the reduction and the slowest update.
    pub(super) reduce: f64,
    /// Micro-batches in flight for which there is room.
    in_flight: usize,
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
    /// Per group and run, where asked before: with the deepest warm-up there is.
    deepest: Vec<Vec<Option<Option<Cell>>>>,
    /// Per group, run and depth, where memory makes a difference.
    limited: BTreeMap<(usize, usize, usize), Option<Cell>>,
    most_in_flight: usize,
    /// Times algorithm 1 ran.
    pub(super) n_divided: usize,
}

impl<'a> Cells<'a> {
    pub(super) fn new(costs: &'a Costs<'a>, grid: &'a [usize], groups: &'a [Vec<usize>]) -> Self {
        let runs = grid.len() * grid.len();
        let linked = |devices: &Vec<usize>| Pace::of(costs, devices).reduction(1).1.is_finite();
        Self {
            costs,
            grid,
            groups,
            linked: groups.iter().map(linked).collect(),
            deepest: vec![vec![None; runs]; groups.len()],
            limited: BTreeMap::new(),
            most_in_flight: costs.work.in_flight(0, costs.devices.len()),
            n_divided: 0,
        }
    }

    /// The group's seconds for the blocks between two borders of the grid, with room for up to `rule` micro-batches in flight
    /// if memory lets it. None if it does not fit.
    pub(super) fn cell(&mut self, group: usize, run: Range<usize>, rule: usize) -> Option<Cell> {
        let at = run.start * self.grid.len() + run.end;
        let most = self.most_in_flight;
        let deepest = match self.deepest[group][at] {
            Some(cell) => cell,
            None => {
                let cell = self.divide(group, &run, most);
                self.deepest[group][at] = Some(cell);
                cell
            }
        }?;
        if deepest.in_flight == most || rule == most {
            return Some(deepest);
        }
        let key = (group, at, rule);
        if let Some(cell) = self.limited.get(&key) {
            return *cell;
        }
        let cell = self.divide(group, &run, rule);
        self.limited.insert(key, cell);
        cell
    }

    fn divide(&mut self, group: usize, run: &Range<usize>, rule: usize) -> Option<Cell> {
        if !self.linked[group] {
            return None;
        }
        self.n_divided += 1;
        let blocks = self.grid[run.start]..self.grid[run.end];
        let divided = allocate(self.costs, &blocks, &self.groups[group], rule)?;
        Some(Cell {
            passes: divided.seconds(self.costs),
            reduce: reduce_and_update(self.costs, &divided),
            in_flight: divided.in_flight,
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

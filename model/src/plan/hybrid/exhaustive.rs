//! Every hybrid pipeline of a problem, where it is so small that all can be tried.

use super::spaces::MAX_SETS;
use crate::plan::costs::Costs;
use crate::plan::group::{Group, Share};
use crate::plan::schedule::seconds;
use crate::plan::steps::bound;

/// Most passes that all plans together may have, run through the schedule.
const MOST_PASSES: usize = 500_000;

/// A better plan is shorter by more than this share; else the one that was tried before stays.
const NOTICEABLE: f64 = 1e-9;

/// Whether there are few enough plans to try them all.
pub(super) fn is_small(costs: &Costs<'_>) -> bool {
    let n = costs.devices.len();
    let per_plan = n * costs.work.n_micro;
    n <= MAX_SETS && n_plans(costs, MOST_PASSES / per_plan).is_some()
}

/// The number of plans, if there are no more than `most`.
fn n_plans(costs: &Costs<'_>, most: usize) -> Option<usize> {
    let (n, n_blocks) = (costs.devices.len(), costs.n_blocks());
    // Ways to choose and divide the first stages, by the devices that are left.
    let mut ways = vec![0usize; n + 1];
    ways[n] = 1;
    let mut plans = 0usize;
    for stages in 1..=n.min(n_blocks) {
        let mut next = vec![0usize; n + 1];
        for (left, ways) in ways.iter().enumerate() {
            for size in 1..=left {
                let divisions = choose(costs.work.micro_batch - 1, size - 1, most)?;
                let more = ways
                    .checked_mul(choose(left, size, most)?)?
                    .checked_mul(divisions)?;
                next[left - size] = next[left - size].checked_add(more)?;
            }
        }
        let sum = next
            .iter()
            .try_fold(0usize, |sum, ways| sum.checked_add(*ways))?;
        let cuts = if sum == 0 {
            0
        } else {
            choose(n_blocks - 1, stages - 1, most)?
        };
        plans = plans.checked_add(sum.checked_mul(cuts)?)?;
        if plans > most {
            return None;
        }
        ways = next;
    }
    Some(plans)
}

/// Ways to choose `chosen` of `n`, if there are no more than `most`.
fn choose(n: usize, chosen: usize, most: usize) -> Option<usize> {
    let Some(rest) = n.checked_sub(chosen) else {
        return Some(0);
    };
    (0..chosen.min(rest)).try_fold(1usize, |ways, i| {
        let ways = ways * (n - i) / (i + 1);
        (ways <= most).then_some(ways)
    })
}

/// The shortest step of all: every choice and order of groups, every cut, every division of samples, each stage as deep as
/// memory lets it.
pub(super) fn optimum(costs: &Costs<'_>) -> Option<(f64, Vec<Group>)> {
    let n = costs.devices.len();
    let mut best = (f64::INFINITY, Vec::new());
    let mut chosen = Vec::new();
    every_order((1 << n) - 1, n, &mut chosen, &mut |sets| {
        if sets.len() <= costs.n_blocks() {
            every_cut(costs, sets, &mut vec![0], &mut best);
        }
    });
    best.0.is_finite().then_some(best)
}

fn every_order(
    left: usize,
    n: usize,
    chosen: &mut Vec<Vec<usize>>,
    visit: &mut dyn FnMut(&[Vec<usize>]),
) {
    if !chosen.is_empty() {
        visit(chosen);
    }
    for set in 1usize..1 << n {
        if set & left == set {
            chosen.push((0..n).filter(|device| set >> device & 1 == 1).collect());
            every_order(left & !set, n, chosen, visit);
            chosen.pop();
        }
    }
}

fn every_cut(
    costs: &Costs<'_>,
    sets: &[Vec<usize>],
    starts: &mut Vec<usize>,
    best: &mut (f64, Vec<Group>),
) {
    if starts.len() < sets.len() {
        let first = starts.last().copied().unwrap_or(0) + 1;
        for start in first..=costs.n_blocks() - (sets.len() - starts.len()) {
            starts.push(start);
            every_cut(costs, sets, starts, best);
            starts.pop();
        }
        return;
    }
    every_division(costs, sets, starts, &mut Vec::new(), best);
}

fn every_division(
    costs: &Costs<'_>,
    sets: &[Vec<usize>],
    starts: &[usize],
    groups: &mut Vec<Group>,
    best: &mut (f64, Vec<Group>),
) {
    let position = groups.len();
    let Some(devices) = sets.get(position) else {
        if bound(costs, groups) < best.0 {
            let seconds = seconds(costs, groups, costs.work.n_micro);
            if seconds < best.0 * (1.0 - NOTICEABLE) {
                *best = (seconds, groups.clone());
            }
        }
        return;
    };
    let end = starts
        .get(position + 1)
        .copied()
        .unwrap_or(costs.n_blocks());
    let blocks = starts[position]..end;
    let rule = costs.work.in_flight(position, sets.len());
    for samples in compositions(costs.work.micro_batch, devices.len(), costs.least_samples) {
        let shares = devices.iter().zip(&samples);
        let group = Group {
            blocks: blocks.clone(),
            shares: shares
                .map(|(device, samples)| Share {
                    device: *device,
                    samples: *samples,
                })
                .collect(),
            in_flight: 0,
        };
        if let Some(group) = group.warmed_up(costs, rule) {
            let [forward, backward] = group.seconds(costs);
            let own = costs.work.n_micro as f64 * forward.max(backward);
            if own < best.0 {
                groups.push(group);
                every_division(costs, sets, starts, groups, best);
                groups.pop();
            }
        }
    }
}

fn compositions(sum: usize, parts: usize, least: usize) -> Vec<Vec<usize>> {
    if parts == 1 {
        return if sum >= least {
            vec![vec![sum]]
        } else {
            Vec::new()
        };
    }
    let firsts = least..=sum.saturating_sub(least * (parts - 1));
    let all = firsts.flat_map(|first| {
        let rest = compositions(sum - first, parts - 1, least);
        rest.into_iter()
            .map(move |rest| [vec![first], rest].concat())
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::hybrid::drawn;

    #[test]
    fn plans_are_counted_before_they_are_tried() {
        // Two devices, three blocks, four samples: 2 + 3 plans of one stage, 2 orders x 2 cuts of two.
        let problem = drawn(1, 2, 3, 4, 6);
        let costs = problem.costs();
        assert_eq!(n_plans(&costs, 100), Some(9));
        assert_eq!((n_plans(&costs, 9), n_plans(&costs, 8)), (Some(9), None));
        let problem = drawn(1, 4, 4, 4, 3);
        let costs = problem.costs();
        let mut n = 0;
        every_order(0b1111, 4, &mut Vec::new(), &mut |sets| {
            let divisions = sets.iter().map(|set| compositions(4, set.len(), 1).len());
            let cuts = [1, 3, 3, 1][sets.len() - 1];
            n += cuts * divisions.product::<usize>();
        });
        assert_eq!(n_plans(&costs, 10_000), Some(n));
        for (devices, blocks, micro_batch) in [(6, 60, 64), (64, 60, 64), (3, 60, 4096)] {
            assert!(!is_small(
                &drawn(1, devices, blocks, micro_batch, 8).costs()
            ));
        }
    }
}

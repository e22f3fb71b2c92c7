//! More micro-batches in flight than Asteroid's rule has, where transfers take so long that the rule does not hide them; all of them
//! is what GPipe has in flight.

use super::layout::{Stage, layout, moved};
use crate::plan::costs::Costs;
use crate::plan::group::Group;
use crate::plan::search::judged;

/// Share of a step that more micro-batches in flight must save: they take memory.
const WORTH: f64 = 0.03;

/// Most steps in which borders are moved for each depth, the most stages with borders that are, and how far a plan may be above the
/// best for that.
const MOST_STEPS: usize = 8;
const FEW_STAGES: usize = 8;
const NEAR: f64 = 1.05;

/// The best of `plans`, of which the first is that with as many micro-batches in flight as the rule has; another, with more in
/// flight as far as memory goes, where that shortens the step by enough.
pub(crate) fn deeper(costs: &Costs<'_>, plans: Vec<Vec<Group>>) -> Option<Vec<Group>> {
    let first = plans.first()?;
    let own = judged(costs, first);
    let mut best = (own, first.clone());
    for groups in &plans {
        let n = groups.len();
        let mut factor = 1;
        // The last stage makes both passes of a micro-batch at once. Where transfers are not to be hidden the rule stays.
        while costs.work.hides_transfers
            && n > 1
            && factor * costs.work.in_flight(n - 2, n) < costs.work.n_micro
        {
            factor *= 2;
            let Some(found) = at_best(costs, groups, factor, best.0) else {
                break;
            };
            if found.0 < best.0 && found.0 < own * (1.0 - WORTH) {
                best = found;
            }
        }
    }
    Some(best.1)
}

/// These groups with `factor` times as many in flight as by the rule; near `least` with borders moved while that helps.
fn at_best(
    costs: &Costs<'_>,
    groups: &[Group],
    factor: usize,
    least: f64,
) -> Option<(f64, Vec<Group>)> {
    let priced = |stages: &[Stage]| {
        let groups = deep(costs, groups, stages, factor)?;
        Some((judged(costs, &groups), groups))
    };
    let mut best = priced(&layout(groups))?;
    let n = match best.0 < NEAR * least && groups.len() <= FEW_STAGES {
        true => MOST_STEPS,
        false => 0,
    };
    for _ in 0..n {
        let stages = layout(&best.1);
        let borders = 1..stages.len();
        let steps = borders.flat_map(|border| [1, -1].map(|by| moved(&stages, border, by)));
        let steps = steps.flatten().filter_map(|stages| priced(&stages));
        match steps.min_by(|a, b| a.0.total_cmp(&b.0)) {
            Some(found) if found.0 < best.0 => best = found,
            _ => break,
        }
    }
    Some(best)
}

/// The hosts and samples of `groups` with the blocks of `stages`, that deep.
fn deep(
    costs: &Costs<'_>,
    groups: &[Group],
    stages: &[Stage],
    factor: usize,
) -> Option<Vec<Group>> {
    let n = groups.len();
    let group = |(position, (group, stage)): (usize, (&Group, &Stage))| {
        let rule = costs.work.in_flight(position, n);
        let most = match position + 1 == n {
            true => rule,
            false => (factor * rule).min(costs.work.n_micro),
        };
        let group = Group {
            blocks: stage.blocks.clone(),
            ..group.clone()
        };
        group.warmed_up(costs, most)
    };
    groups.iter().zip(stages).enumerate().map(group).collect()
}

//! A plan as it is changed: stages with their blocks and devices, whose samples are divided anew where either changes.

use std::ops::Range;

use crate::plan::costs::Costs;
use crate::plan::group::{Group, Share, allocate};

/// Blocks and devices of a stage, devices ascending.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stage {
    pub(crate) blocks: Range<usize>,
    pub(crate) devices: Vec<usize>,
    /// For how many micro-batches in flight its samples are divided, if memory makes a difference.
    pub(crate) depth: usize,
}

/// The stages of groups.
pub(crate) fn layout(groups: &[Group]) -> Vec<Stage> {
    let stage = |group: &Group| {
        let mut devices: Vec<usize> = group.devices().collect();
        devices.sort_unstable();
        Stage {
            blocks: group.blocks.clone(),
            devices,
            depth: group.in_flight,
        }
    };
    groups.iter().map(stage).collect()
}

/// Groups for these stages; those that stay as they are in `old` keep their samples. None where something does not fit.
pub(crate) fn build(costs: &Costs<'_>, stages: &[Stage], old: &[Group]) -> Option<Vec<Group>> {
    let n = stages.len();
    let group = |(position, stage): (usize, &Stage)| {
        let rule = costs.work.in_flight(position, n);
        let same = old.iter().find(|group| {
            group.blocks == stage.blocks
                && group.shares.len() == stage.devices.len()
                && group
                    .devices()
                    .all(|device| stage.devices.contains(&device))
        });
        if let Some(same) = same
            && let Some(group) = same.clone().warmed_up(costs, rule)
            && group.in_flight >= same.in_flight.min(rule)
        {
            return Some(group);
        }
        if stage.blocks.is_empty() || stage.devices.is_empty() {
            return None;
        }
        allocate(costs, &stage.blocks, &stage.devices, (stage.depth, rule))
    };
    stages.iter().enumerate().map(group).collect()
}

/// One border moved by `by` blocks, on if that is above 0; none if a stage would be empty.
pub(crate) fn moved(stages: &[Stage], border: usize, by: isize) -> Option<Vec<Stage>> {
    let at = stages[border].blocks.start.checked_add_signed(by)?;
    if at <= stages[border - 1].blocks.start || at >= stages[border].blocks.end {
        return None;
    }
    let mut stages = stages.to_vec();
    stages[border - 1].blocks.end = at;
    stages[border].blocks.start = at;
    Some(stages)
}

/// The borders `first..=last` all moved by one block: one block passes on through the stages between.
pub(crate) fn passed_on(
    stages: &[Stage],
    (first, last): (usize, usize),
    by: isize,
) -> Option<Vec<Stage>> {
    let mut stages = stages.to_vec();
    for border in first..=last {
        let at = stages[border].blocks.start.checked_add_signed(by)?;
        stages[border - 1].blocks.end = at;
        stages[border].blocks.start = at;
    }
    let filled = stages
        .iter()
        .all(|stage| stage.blocks.start < stage.blocks.end);
    filled.then_some(stages)
}

/// All ways to move `by` samples from one member of a group to another, or to one of `idle` that joins it.
pub(crate) fn shifted(
    costs: &Costs<'_>,
    groups: &[Group],
    position: usize,
    by: usize,
    idle: &[usize],
) -> Vec<Vec<Group>> {
    let group = &groups[position];
    let rule = costs.work.in_flight(position, groups.len());
    let targets = group.devices().chain(idle.iter().copied());
    let pairs = targets.flat_map(|to| group.devices().map(move |from| (from, to)));
    let changed = |(from, to): (usize, usize)| {
        let mut shares: Vec<Share> = group.shares.clone();
        let giving = shares.iter_mut().find(|share| share.device == from)?;
        giving.samples = giving.samples.checked_sub(by)?;
        match shares.iter_mut().find(|share| share.device == to) {
            Some(taking) => taking.samples += by,
            None => {
                let at = shares.partition_point(|share| share.device < to);
                let samples = by;
                shares.insert(
                    at,
                    Share {
                        device: to,
                        samples,
                    },
                );
            }
        }
        shares.retain(|share| share.samples > 0);
        let group = Group {
            shares,
            ..group.clone()
        };
        let mut all = groups.to_vec();
        all[position] = group.warmed_up(costs, rule)?;
        Some(all)
    };
    pairs
        .filter(|(from, to)| from != to)
        .filter_map(changed)
        .collect()
}

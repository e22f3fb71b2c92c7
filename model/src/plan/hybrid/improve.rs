//! A plan moved on in small steps, each priced by the schedule: what dynamic programming does not see. Borders, samples, devices
//! from group to group or to and from standing by, pairs that change places, stages that part, join or change places.

use super::layout::{Stage, build, layout, moved, passed_on, shifted};
use crate::plan::costs::Costs;
use crate::plan::group::{Group, allocate};
use crate::plan::search::judged;
use crate::plan::steps::{bound, estimate};

/// Counts on a better plan being shorter by more than this share.
const NOTICEABLE: f64 = 1e-6;

/// Most devices of which the best of all steps of a kind is looked for.
const FEW: usize = 8;

/// Largest group of which samples are moved between all pairs.
const MOST_PAIRED: usize = 12;

/// What a plan is judged with: the schedule, as long as there is patience.
pub(super) struct Judge<'a> {
    pub(super) costs: &'a Costs<'a>,
    /// Passes that may still be run through a schedule.
    pub(super) patience: usize,
    /// Plans that were run through it.
    pub(super) n_judged: usize,
}

impl Judge<'_> {
    /// Seconds of a step.
    pub(super) fn seconds(&mut self, groups: &[Group]) -> f64 {
        let members: usize = groups.iter().map(|group| group.shares.len()).sum();
        self.patience = self
            .patience
            .saturating_sub(members * self.costs.work.n_micro.min(48));
        self.n_judged += 1;
        judged(self.costs, groups)
    }

    /// Seconds of a step, if they can be less than `best`; how far the closed form may be above that of the best plan is
    /// `slack` times.
    fn better(&mut self, groups: &[Group], best: (f64, f64), slack: f64) -> Option<f64> {
        let hopeless =
            bound(self.costs, groups) >= best.0 || estimate(self.costs, groups) > slack * best.1;
        if hopeless || self.patience == 0 {
            return None;
        }
        let seconds = self.seconds(groups);
        (seconds < best.0 * (1.0 - NOTICEABLE)).then_some(seconds)
    }
}

/// A small step from a plan.
enum Step {
    /// Stages with other blocks or devices: samples are divided anew.
    Stages(Vec<Stage>),
    Groups(Vec<Group>),
}

impl Step {
    fn take(self, costs: &Costs<'_>, old: &[Group]) -> Option<Vec<Group>> {
        match self {
            Self::Stages(stages) => build(costs, &stages, old),
            Self::Groups(groups) => Some(groups),
        }
    }
}

/// Moves on from `groups` as long as any small step helps.
pub(super) fn improve(judge: &mut Judge<'_>, groups: Vec<Group>) -> (f64, Vec<Group>) {
    let mut best = (judge.seconds(&groups), groups);
    // Of few devices the best step is taken, of many any that helps.
    let (all, slack) = if judge.costs.devices.len() > FEW {
        (false, 1.05)
    } else {
        (true, 1.25)
    };
    loop {
        let before = best.0;
        for kind in [borders, samples, devices, places, stages] {
            // The same kind again while it helps, from where it last did.
            let mut from = 0;
            loop {
                let known = estimate(judge.costs, &best.1);
                let mut steps = kind(judge.costs, &best.1);
                let n = steps.len();
                steps.rotate_left(from % n.max(1));
                let mut found: Option<(f64, Vec<Group>)> = None;
                for (at, step) in steps.into_iter().enumerate() {
                    judge.patience = judge.patience.saturating_sub(best.1.len());
                    let least = found.as_ref().map_or(best.0, |(seconds, _)| *seconds);
                    let Some(groups) = step.take(judge.costs, &best.1) else {
                        continue;
                    };
                    if let Some(seconds) = judge.better(&groups, (least, known), slack) {
                        found = Some((seconds, groups));
                        if !all {
                            from += at;
                            break;
                        }
                    }
                }
                match found {
                    Some(found) => best = found,
                    None => break,
                }
            }
        }
        if best.0 >= before * (1.0 - NOTICEABLE) || judge.patience == 0 {
            return best;
        }
    }
}

/// Borders moved by a few blocks, and blocks passed on through several stages.
fn borders(costs: &Costs<'_>, groups: &[Group]) -> Vec<Step> {
    let stages = layout(groups);
    let n = stages.len();
    let mut all = Vec::new();
    for by in [1, -1, 2, -2, 4, -4] {
        all.extend((1..n).filter_map(|border| moved(&stages, border, by)));
    }
    for first in 1..n {
        for last in first + 1..n {
            all.extend(
                [1, -1]
                    .into_iter()
                    .filter_map(|by| passed_on(&stages, (first, last), by)),
            );
        }
    }
    let kept = (1..n).flat_map(|border| [1, -1].map(|by| kept(costs, groups, border, by)));
    let kept: Vec<Step> = kept.flatten().map(Step::Groups).collect();
    all.into_iter().map(Step::Stages).chain(kept).collect()
}

/// One border moved, and samples divided as before on both sides.
fn kept(costs: &Costs<'_>, groups: &[Group], border: usize, by: isize) -> Option<Vec<Group>> {
    let stages = moved(&layout(groups), border, by)?;
    let mut groups = groups.to_vec();
    let n = groups.len();
    for position in [border - 1, border] {
        let group = Group {
            blocks: stages[position].blocks.clone(),
            ..groups[position].clone()
        };
        groups[position] = group.warmed_up(costs, costs.work.in_flight(position, n))?;
    }
    Some(groups)
}

/// Samples that move within a group, or to a device standing by that joins it; and divisions for fewer micro-batches in
/// flight, where memory would have them otherwise.
fn samples(costs: &Costs<'_>, groups: &[Group]) -> Vec<Step> {
    let idle = standby(costs, &layout(groups));
    let mut all = Vec::new();
    for (position, group) in groups.iter().enumerate() {
        let mut steps = vec![1, costs.least_samples, costs.work.micro_batch / 8];
        steps.retain(|step| *step > 0);
        steps.dedup();
        if group.shares.len() <= MOST_PAIRED {
            for by in steps {
                all.extend(shifted(costs, groups, position, by, &idle));
            }
        }
        let devices: Vec<usize> = layout(std::slice::from_ref(group))
            .into_iter()
            .flat_map(|stage| stage.devices)
            .collect();
        let rule = costs.work.in_flight(position, groups.len());
        let mut depth = rule;
        while depth > 1 {
            depth = if depth <= 4 { depth - 1 } else { depth / 2 };
            if let Some(other) = allocate(costs, &group.blocks, &devices, (depth, rule))
                && other.shares != group.shares
            {
                let mut with = groups.to_vec();
                with[position] = other;
                all.push(with);
            }
        }
    }
    all.into_iter().map(Step::Groups).collect()
}

/// Who is in no group.
fn standby(costs: &Costs<'_>, stages: &[Stage]) -> Vec<usize> {
    let used = |device: &usize| stages.iter().any(|stage| stage.devices.contains(device));
    (0..costs.devices.len())
        .filter(|device| !used(device))
        .collect()
}

fn insert(devices: &mut Vec<usize>, device: usize) {
    let at = devices.partition_point(|other| *other < device);
    devices.insert(at, device);
}

/// Devices that leave their group for another or stand by, or join one.
fn devices(costs: &Costs<'_>, groups: &[Group]) -> Vec<Step> {
    let stages = layout(groups);
    let mut all = Vec::new();
    for (from, stage) in stages
        .iter()
        .enumerate()
        .filter(|(_, stage)| stage.devices.len() > 1)
    {
        for device in &stage.devices {
            let mut without = stages.clone();
            without[from].devices.retain(|other| other != device);
            for to in (0..stages.len()).filter(|to| *to != from) {
                let mut other = without.clone();
                insert(&mut other[to].devices, *device);
                all.push(other);
            }
            all.push(without);
        }
    }
    for device in standby(costs, &stages) {
        for to in 0..stages.len() {
            let mut with = stages.clone();
            insert(&mut with[to].devices, device);
            all.push(with);
        }
    }
    all.into_iter().map(Step::Stages).collect()
}

/// Pairs of devices that change places, one of which may stand by.
fn places(costs: &Costs<'_>, groups: &[Group]) -> Vec<Step> {
    let stages = layout(groups);
    let mut all = Vec::new();
    let swap = |a: usize, b: usize, one: usize, other: usize| {
        let mut swapped = stages.clone();
        swapped[a].devices.retain(|device| *device != one);
        insert(&mut swapped[a].devices, other);
        if b < stages.len() {
            swapped[b].devices.retain(|device| *device != other);
            insert(&mut swapped[b].devices, one);
        }
        swapped
    };
    let idle = standby(costs, &stages);
    for (a, stage) in stages.iter().enumerate() {
        for one in &stage.devices {
            for (b, behind) in stages.iter().enumerate().skip(a + 1) {
                all.extend(behind.devices.iter().map(|other| swap(a, b, *one, *other)));
            }
            all.extend(idle.iter().map(|other| swap(a, stages.len(), *one, *other)));
        }
    }
    all.into_iter().map(Step::Stages).collect()
}

/// Stages that join the next one or change places with it, that part in two, and devices standing by or of a group that begin a
/// stage of their own.
fn stages(costs: &Costs<'_>, groups: &[Group]) -> Vec<Step> {
    let stages = layout(groups);
    let mut all = Vec::new();
    for position in 1..stages.len() {
        let mut joined = stages.clone();
        let behind = joined.remove(position);
        joined[position - 1].blocks.end = behind.blocks.end;
        for device in behind.devices {
            insert(&mut joined[position - 1].devices, device);
        }
        all.push(joined);
        let mut turned = stages.clone();
        let other = turned[position].devices.clone();
        turned[position].devices = std::mem::replace(&mut turned[position - 1].devices, other);
        all.push(turned);
        // A stage gives its blocks to a neighbour, and its devices stand by.
        for to_before in [true, false] {
            let mut dropped = stages.clone();
            let gone = dropped.remove(if to_before { position } else { position - 1 });
            if to_before {
                dropped[position - 1].blocks.end = gone.blocks.end;
            } else {
                dropped[position - 1].blocks.start = gone.blocks.start;
            }
            all.push(dropped);
        }
    }
    let idle = standby(costs, &stages);
    for (position, stage) in stages.iter().enumerate() {
        let at = cuts_in(costs, stage);
        let alone = stage.devices.iter().filter(|_| stage.devices.len() > 1);
        for device in alone.chain(&idle) {
            for at in &at {
                let mut rest = stage.devices.clone();
                rest.retain(|other| other != device);
                for first in [true, false] {
                    let (front, back) = (stage.blocks.start..*at, *at..stage.blocks.end);
                    let own = Stage {
                        blocks: if first { front.clone() } else { back.clone() },
                        devices: vec![*device],
                        depth: stage.depth,
                    };
                    let others = Stage {
                        blocks: if first { back } else { front },
                        devices: rest.clone(),
                        depth: stage.depth,
                    };
                    let mut parted = stages.clone();
                    let pair = if first { [own, others] } else { [others, own] };
                    parted.splice(position..=position, pair);
                    all.push(parted);
                }
            }
        }
    }
    all.into_iter().map(Step::Stages).collect()
}

/// Where a stage may part: everywhere if it has few blocks, else where a quarter, half and three quarters of its time are over.
fn cuts_in(costs: &Costs<'_>, stage: &Stage) -> Vec<usize> {
    let (start, end) = (stage.blocks.start, stage.blocks.end);
    if end - start <= 6 {
        return (start + 1..end).collect();
    }
    let until =
        |end: usize| costs.seconds(stage.devices[0], &(start..end), costs.work.micro_batch)[0];
    let total = until(end);
    let mut cuts: Vec<usize> = [0.25, 0.5, 0.75]
        .into_iter()
        .filter_map(|part| (start + 1..end).find(|at| until(*at) >= part * total))
        .collect();
    cuts.dedup();
    cuts
}

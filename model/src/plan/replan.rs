//! Lightweight re-planning after a device is lost: stages keep their order and their groups, and only borders near the one that
//! lost it move (Asteroid: Ye et al., MobiCom 2024, "layer-wise lightweight re-planning").
//!
//! If the device had peers in its group, its samples are theirs now; if it was alone, its blocks go to its neighbours; or one
//! that stands by takes its place, or, where that is much better, one of another group. Then the blocks of the stages around are cut
//! anew, as few of them as come close to what cutting all anew would bring, and borders near them are moved on in small steps priced
//! by the schedule. What moves is little, and finding it takes milliseconds; the full planner can follow in the background.

use std::ops::Range;

use super::costs::Costs;
use super::group::{Group, allocate, raw};
use super::hybrid::{Hybrid, Stage, build, deeper, hybrid, layout, moved, price, promised};
use super::problem::Problem;
use super::search::judged;
use super::steps::{Tail, reduce_and_update, transfer};
use super::work::{Data, PlanError};

/// More stages around the lost device are cut anew where that makes the step shorter by more than this share.
const WIDER: f64 = 0.03;

/// Most devices standing by, and most of other groups, that are tried in the place of the lost one.
const MOST_TRIED: usize = 4;

/// Stages on either side of those cut anew whose borders are moved on, the most steps, and the least gain of each.
const NEAR: usize = 2;
const MOST_STEPS: usize = 8;
const STEP_GAIN: f64 = 0.01;

/// Most tails kept for each border.
const FRONT: usize = 3;

/// The plan without the device `lost`, with little to move. Devices keep their numbers; `problem` is the one the groups were
/// planned for, or the same with newer figures.
///
/// # Errors
/// Figures that cannot be; data that is lost with the device; nothing that fits even if all is planned anew.
pub fn replan(problem: &Problem, groups: &[Group], lost: usize) -> Result<Hybrid, PlanError> {
    price(problem, groups)?;
    if problem.data == Data::At(lost) {
        let what = "the data was on it alone";
        return Err(PlanError::Device { device: lost, what });
    }
    let costs = problem.costs();
    let stages = layout(groups);
    let Some(position) = stages
        .iter()
        .position(|stage| stage.devices.contains(&lost))
    else {
        return Ok(promised(&costs, groups.to_vec()));
    };
    let mut best: Option<(f64, Vec<Group>, Range<usize>)> = None;
    let others = moved_in(&costs, &stages, position, lost);
    let alternatives = alternatives(&costs, &stages, position, lost).into_iter();
    // One that leaves its group for another fetches a whole stage: it must be worth it.
    let all = alternatives.map(|way| (way, 1.0));
    for ((stages, around), most) in all.chain(others.into_iter().map(|way| (way, 1.0 - WIDER))) {
        if let Some(groups) = cut_anew(&costs, &stages, around.clone(), groups) {
            let seconds = judged(&costs, &groups);
            let least = best.as_ref().map_or(f64::INFINITY, |(least, ..)| *least);
            if seconds.is_finite() && seconds < most * least {
                best = Some((seconds, groups, around));
            }
        }
    }
    match best {
        Some((_, groups, around)) => {
            let near = moved_on(&costs, groups, &around);
            let deep = deeper(&costs, vec![near.clone()]);
            Ok(promised(&costs, deep.unwrap_or(near)))
        }
        None => anew(problem, lost),
    }
}

/// Borders around these stages moved block by block, as long as the step becomes shorter by enough.
fn moved_on(costs: &Costs<'_>, groups: Vec<Group>, around: &Range<usize>) -> Vec<Group> {
    let first = around.start.saturating_sub(NEAR) + 1;
    let end = (around.end + NEAR).min(groups.len());
    let mut best = (judged(costs, &groups), groups);
    for _ in 0..MOST_STEPS {
        let stages = layout(&best.1);
        let steps = (first..end).flat_map(|border| [1, -1].map(|by| moved(&stages, border, by)));
        let built = steps.flatten();
        let built = built.filter_map(|stages| build(costs, &stages, &best.1));
        let judged = built.map(|groups| (judged(costs, &groups), groups));
        match judged.min_by(|a, b| a.0.total_cmp(&b.0)) {
            Some(found) if found.0 < best.0 * (1.0 - STEP_GAIN) => best = found,
            _ => break,
        }
    }
    best.1
}

/// Nothing near fits: everything anew, with the numbers that devices had.
fn anew(problem: &Problem, lost: usize) -> Result<Hybrid, PlanError> {
    let what = "it was the only one";
    let rest = problem
        .without(lost)
        .ok_or(PlanError::Device { device: lost, what })?;
    let mut plan = hybrid(&rest)?;
    for share in plan.groups.iter_mut().flat_map(|group| &mut group.shares) {
        share.device += usize::from(share.device >= lost);
    }
    Ok(plan)
}

/// Bytes of parameters and state that devices have to fetch to go from some groups to others: of blocks that they did not host
/// before.
///
/// # Errors
/// Figures that cannot be, or groups that are not all blocks in order on devices that there are.
pub fn moved_bytes(problem: &Problem, from: &[Group], to: &[Group]) -> Result<u64, PlanError> {
    price(problem, from)?;
    price(problem, to)?;
    let costs = problem.costs();
    let mut bytes = 0u64;
    for group in to {
        for device in group.devices() {
            let before = from
                .iter()
                .find(|group| group.devices().any(|other| other == device));
            let before = before.map_or(0..0, |group| group.blocks.clone());
            let missing = group.blocks.clone().filter(|block| !before.contains(block));
            let missing = missing.map(|block| costs.state_bytes(&(block..block + 1)));
            bytes = missing.fold(bytes, u64::saturating_add);
        }
    }
    Ok(bytes)
}

/// What can be done without the lost device, and the stages that this concerns first.
fn alternatives(
    costs: &Costs<'_>,
    stages: &[Stage],
    position: usize,
    lost: usize,
) -> Vec<(Vec<Stage>, Range<usize>)> {
    let mut without = stages.to_vec();
    without[position].devices.retain(|device| *device != lost);
    let mut all = Vec::new();
    let used = |device: &usize| stages.iter().any(|stage| stage.devices.contains(device));
    let mut idle: Vec<usize> = (0..costs.devices.len())
        .filter(|device| !used(device))
        .collect();
    let seconds = |device: usize| {
        let [forward, backward, _] =
            costs.seconds(device, &stages[position].blocks, costs.work.micro_batch);
        forward + backward
    };
    idle.sort_by(|a, b| seconds(*a).total_cmp(&seconds(*b)));
    for device in idle.into_iter().take(MOST_TRIED) {
        let mut with = without.clone();
        with[position].devices.push(device);
        with[position].devices.sort_unstable();
        all.push((with, position..position + 1));
    }
    if !without[position].devices.is_empty() {
        all.push((without, position..position + 1));
    } else if without.len() > 1 {
        let gone = without.remove(position);
        let around = match position.checked_sub(1) {
            Some(before) => {
                without[before].blocks.end = gone.blocks.end;
                before..(position + 1).min(without.len())
            }
            None => {
                without[0].blocks.start = gone.blocks.start;
                0..1
            }
        };
        all.push((without, around));
    }
    all
}

/// Devices of other groups, the fastest first, each in the place of the lost one.
fn moved_in(
    costs: &Costs<'_>,
    stages: &[Stage],
    position: usize,
    lost: usize,
) -> Vec<(Vec<Stage>, Range<usize>)> {
    let seconds = |device: usize| {
        let [forward, backward, _] =
            costs.seconds(device, &stages[position].blocks, costs.work.micro_batch);
        forward + backward
    };
    let shared = stages.iter().enumerate();
    let shared = shared.filter(|(number, stage)| *number != position && stage.devices.len() > 1);
    let mut movers: Vec<(usize, usize)> = shared
        .flat_map(|(number, stage)| stage.devices.iter().map(move |device| (number, *device)))
        .collect();
    movers.sort_by(|a, b| seconds(a.1).total_cmp(&seconds(b.1)));
    let way = |(from, device): (usize, usize)| {
        let mut with = stages.to_vec();
        with[from].devices.retain(|other| *other != device);
        let place = &mut with[position].devices;
        place.retain(|other| *other != lost);
        place.push(device);
        place.sort_unstable();
        (with, position..position + 1)
    };
    movers.into_iter().take(MOST_TRIED).map(way).collect()
}

/// The stages `around`, and so many more on either side as pay, cut anew. None if nothing fits.
fn cut_anew(
    costs: &Costs<'_>,
    stages: &[Stage],
    around: Range<usize>,
    old: &[Group],
) -> Option<Vec<Group>> {
    let mut found: Vec<(f64, Vec<Group>)> = Vec::new();
    for reach in 0..=stages.len() {
        let window = around.start.saturating_sub(reach)..(around.end + reach).min(stages.len());
        let cut = best_cut(costs, stages, &window, old);
        found.extend(cut.map(|groups| (judged(costs, &groups), groups)));
        if window == (0..stages.len()) {
            break;
        }
    }
    let least = found.iter().map(|(seconds, _)| *seconds).reduce(f64::min)?;
    let near = |(seconds, _): &(f64, Vec<Group>)| *seconds <= least * (1.0 + WIDER);
    found.into_iter().find(near).map(|(_, groups)| groups)
}

/// Part of a pipeline from some stage on.
struct Part {
    tail: Tail,
    /// The last stage first.
    groups: Vec<Group>,
}

/// The fastest cut, in closed form, of the blocks of the stages in `window` among them; all others keep theirs.
fn best_cut(
    costs: &Costs<'_>,
    stages: &[Stage],
    window: &Range<usize>,
    old: &[Group],
) -> Option<Vec<Group>> {
    let n = stages.len();
    let mut parts = vec![Part {
        tail: Tail::END,
        groups: Vec::new(),
    }];
    for position in (0..n).rev() {
        let stage = &stages[position];
        let rule = costs.work.in_flight(position, n);
        let mut next: Vec<Vec<Part>> = Vec::new();
        next.resize_with(costs.n_blocks(), Vec::new);
        let is_free = window.contains(&position);
        // Borders of the window stay.
        let starts = if is_free && position > window.start {
            let first = stages[window.start].blocks.start + position - window.start;
            first..costs.n_blocks()
        } else {
            stage.blocks.start..stage.blocks.start + 1
        };
        let mut end = usize::MAX;
        let mut divided: Vec<Option<Group>> = Vec::new();
        parts.sort_by_key(|part| {
            part.groups
                .last()
                .map_or(costs.n_blocks(), |group| group.blocks.start)
        });
        for part in &parts {
            let behind = part.groups.last();
            let until = behind.map_or(costs.n_blocks(), |group| group.blocks.start);
            if until != end {
                end = until;
                let group = |start: usize| {
                    if start >= end {
                        return None;
                    }
                    let blocks = start..end;
                    let hosts = |group: &&Group| group.devices().eq(stage.devices.iter().copied());
                    let kept = old
                        .iter()
                        .find(|group| group.blocks == blocks && hosts(group));
                    if let Some(kept) = kept {
                        return kept.clone().warmed_up(costs, rule);
                    }
                    allocate(costs, &blocks, &stage.devices, (rule, rule))
                };
                divided = starts.clone().map(group).collect();
            }
            for group in divided.iter().flatten() {
                let n_micro = costs.work.n_micro;
                let mut tail = part.tail;
                if let Some(behind) = behind {
                    let transfer = transfer(costs, group, behind);
                    tail = tail.behind_transfer(n_micro, transfer, costs.links.shared);
                }
                let reduce = reduce_and_update(costs, group);
                let passes = group.seconds(costs);
                tail = tail.behind_stage(n_micro, passes, reduce, group.in_flight);
                tail = tail.behind_samples(n_micro, raw(costs, &group.blocks, &group.shares));
                if tail.latency.is_finite() {
                    keep(&mut next[group.blocks.start], (tail, &part.groups, group));
                }
            }
        }
        parts = next.into_iter().flatten().collect();
    }
    let best = parts
        .into_iter()
        .min_by(|a, b| a.tail.seconds().total_cmp(&b.tail.seconds()))?;
    Some(best.groups.into_iter().rev().collect())
}

fn keep(front: &mut Vec<Part>, (tail, behind, group): (Tail, &[Group], &Group)) {
    if front.iter().any(|part| part.tail.is_as_good_as(&tail)) {
        return;
    }
    front.retain(|part| !tail.is_as_good_as(&part.tail));
    front.push(Part {
        tail,
        groups: behind.iter().chain([group]).cloned().collect(),
    });
    if front.len() > FRONT {
        let worst = (0..front.len()).max_by(|a, b| {
            front[*a]
                .tail
                .seconds()
                .total_cmp(&front[*b].tail.seconds())
        });
        front.remove(worst.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::hybrid::drawn;
    use crate::plan::work::tests::{even, work};
    use crate::plan::{Placement, Share, Work};

    /// Stages of one device each on equal devices, four blocks each.
    fn chain_of(n: usize) -> (Problem, Vec<Group>) {
        let (devices, links) = even(n);
        let problem = Problem {
            data: Data::Everywhere,
            least_samples: 1,
            work: Work {
                micro_batch: 4,
                ..work(&vec![1.0; 4 * n], 16)
            },
            devices,
            links,
        };
        let placement = |device: usize| Placement {
            device,
            blocks: 4 * device..4 * device + 4,
        };
        let placements: Vec<Placement> = (0..n).map(placement).collect();
        let groups = Group::alone(&problem.costs(), &placements);
        (problem, groups)
    }

    #[test]
    fn blocks_of_a_device_that_was_alone_go_to_its_neighbours() {
        let (problem, groups) = chain_of(3);
        let plan = replan(&problem, &groups, 1).unwrap();
        let got: Vec<_> = plan
            .groups
            .iter()
            .map(|group| (group.shares[0].device, group.blocks.clone()))
            .collect();
        assert_eq!(got, [(0, 0..6), (2, 6..12)]);
        // Two blocks of 30 bytes to either side.
        assert_eq!(moved_bytes(&problem, &groups, &plan.groups), Ok(4 * 30));
        let last = replan(&problem, &groups, 2).unwrap();
        assert_eq!(last.groups.len(), 2);
        assert_eq!(last.groups[1].blocks, 6..12);
    }

    #[test]
    fn far_borders_stay_where_they_are() {
        let (mut problem, mut groups) = chain_of(9);
        // The last stage has two devices and loses one: it had half a step to spare, and keeps its blocks.
        problem.devices.push(problem.devices[0].clone());
        let n = problem.devices.len();
        problem.links = crate::plan::Links::uniform(n, 1e12, 0.0);
        groups[8].shares = vec![
            Share {
                device: 8,
                samples: 2,
            },
            Share {
                device: 9,
                samples: 2,
            },
        ];
        let plan = replan(&problem, &groups, 9).unwrap();
        let blocks = |groups: &[Group]| {
            groups
                .iter()
                .map(|group| group.blocks.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(blocks(&plan.groups), blocks(&groups));
        assert_eq!(moved_bytes(&problem, &groups, &plan.groups), Ok(0));
        assert_eq!(
            plan.groups[8].shares,
            [Share {
                device: 8,
                samples: 4
            }]
        );
        // One that stands by changes nothing.
        let same = replan(&problem, &plan.groups, 9).unwrap();
        assert_eq!(same.groups, plan.groups);
    }

    #[test]
    fn one_that_stands_by_takes_the_place_of_the_only_one() {
        let (mut problem, _) = chain_of(2);
        let groups = vec![Group {
            blocks: 0..8,
            shares: vec![Share {
                device: 0,
                samples: 4,
            }],
            in_flight: 1,
        }];
        let plan = replan(&problem, &groups, 0).unwrap();
        assert_eq!(
            plan.groups[0].shares,
            [Share {
                device: 1,
                samples: 4
            }]
        );
        problem.data = Data::At(0);
        let error = replan(&problem, &groups, 0).unwrap_err().to_string();
        assert!(error.contains("device 0: the data"), "{error}");
        let alone = chain_of(1);
        assert!(
            replan(&alone.0, &alone.1, 0)
                .unwrap_err()
                .to_string()
                .contains("the only one")
        );
    }

    #[test]
    fn one_of_a_group_takes_the_place_of_a_device_whose_blocks_are_dear_to_share() {
        // Three share a block that is hard to compute, the fourth has one whose gradient is dear to add up.
        let (devices, mut links) = even(4);
        links.rate = vec![vec![100.0; 4]; 4];
        let mut work = Work {
            micro_batch: 6,
            ..work(&[3.0, 1.0], 8)
        };
        work.profile.blocks[1].parameter_bytes = 100_000;
        let problem = Problem {
            data: Data::Everywhere,
            least_samples: 1,
            work,
            devices,
            links,
        };
        let group = |blocks, shares: &[usize]| Group {
            blocks,
            shares: shares
                .iter()
                .map(|device| Share {
                    device: *device,
                    samples: 6 / shares.len(),
                })
                .collect(),
            in_flight: 1,
        };
        let groups = [group(0..1, &[0, 1, 2]), group(1..2, &[3])];
        let plan = replan(&problem, &groups, 3).unwrap();
        let hosts: Vec<usize> = plan.groups.iter().map(|group| group.shares.len()).collect();
        assert_eq!(hosts, [2, 1], "{:?}", plan.groups);
    }

    #[test]
    fn little_moves_and_throughput_is_that_of_planning_anew() {
        let (mut ratios, mut light, mut full) = (Vec::new(), 0u64, 0u64);
        for seed in 0..24 {
            let problem = drawn(seed, 5, 12, 8, 8);
            let Ok(plan) = hybrid(&problem) else {
                continue;
            };
            for lost in plan.groups.iter().flat_map(Group::devices) {
                if problem.data == Data::At(lost) {
                    continue;
                }
                let (Ok(light_plan), Ok(anew)) =
                    (replan(&problem, &plan.groups, lost), anew(&problem, lost))
                else {
                    continue;
                };
                ratios.push(anew.prediction.step_seconds / light_plan.prediction.step_seconds);
                light += moved_bytes(&problem, &plan.groups, &light_plan.groups).unwrap();
                full += moved_bytes(&problem, &plan.groups, &anew.groups).unwrap();
            }
        }
        ratios.sort_by(f64::total_cmp);
        let (low, median) = (ratios[ratios.len() / 10], ratios[ratios.len() / 2]);
        assert!(
            ratios.len() > 40 && median > 0.95 && low > 0.8,
            "{ratios:?}"
        );
        assert!(light < full, "{light} {full}");
    }
}

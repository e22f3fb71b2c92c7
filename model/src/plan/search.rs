//! The whole plan: which of the devices, in which order, with which cut. Device 0 has the data and always begins.
//!
//! For a few blocks and devices every cut is tried; for more, dynamic programming gives cuts for the slowest stage and for
//! the sum of all, and the best is moved on block by block while that helps. What counts is the step that the schedule takes
//! with a cut. A device that would only slow the others down gets nothing: it stands by.

use serde::{Deserialize, Serialize};

use super::costs::Costs;
use super::group::{Group, fit};
use super::partition::{Aim, Cut, best_cut, too_large};
use super::schedule::{Prediction, run, seconds};
use super::work::{Device, Links, Placement, PlanError, Work};

/// Most devices of which all orders are tried; more are ordered by speed.
pub const MAX_PERMUTED: usize = 6;

/// Most devices of which all subsets are tried; of more, the slowest are left out one by one.
const MAX_SUBSETS: usize = 10;

/// Most micro-batches that candidates are judged by; longer steps are continued in a straight line.
const JUDGED: usize = 32;

/// Most cuts of one order that are all tried.
const MAX_TRIED: usize = 1000;

/// How much slower than it need be the slowest stage may be where the sum is made small.
const SLACK: [f64; 6] = [1.001, 1.1, 1.25, 1.5, 2.0, f64::INFINITY];

/// A better plan is shorter by more than this share; else the one with fewer devices, which was tried before, stays.
const NOTICEABLE: f64 = 1e-6;

/// Which device gets which blocks, and what that promises.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Stages in order; a device that is not named stands by.
    pub placements: Vec<Placement>,
    /// Step, bubbles, memory.
    pub prediction: Prediction,
}

/// The best plan in any order that begins with device 0; of more than [`MAX_PERMUTED`] devices in the order of their speed,
/// the fastest first.
///
/// # Errors
/// Figures that cannot be; a model that does not fit, with what does not.
pub fn search(work: &Work, devices: &[Device], links: &Links) -> Result<Plan, PlanError> {
    work.check_linked(devices, links)?;
    begin_at(&Costs::new(work, devices, links), 0)
}

/// The best plan in any order that begins with device `first`; links may be missing, figures are known to be sound.
pub(crate) fn begin_at(costs: &Costs<'_>, first: usize) -> Result<Plan, PlanError> {
    let n = costs.devices.len();
    let mut everyone: Vec<usize> = (0..n).collect();
    everyone[..=first].rotate_right(1);
    if n > MAX_PERMUTED {
        let mut order = everyone.clone();
        order[1..].sort_by(|a, b| whole(costs, *a).total_cmp(&whole(costs, *b)));
        return best_of(costs, shorter(costs, order), &everyone);
    }
    let mut orders = vec![vec![first]];
    let mut grown = 0;
    while grown < orders.len() {
        let others = everyone[1..]
            .iter()
            .copied()
            .filter(|device| !orders[grown].contains(device));
        let longer = others.map(|device| [orders[grown].as_slice(), &[device]].concat());
        let longer: Vec<_> = longer.collect();
        orders.extend(longer);
        grown += 1;
    }
    best_of(costs, orders, &everyone)
}

/// `order` and what is left of it without the slowest devices but the first, the shortest first; or without any of them where
/// there are few.
fn shorter(costs: &Costs<'_>, order: Vec<usize>) -> Vec<Vec<usize>> {
    let mut left = order;
    if left.len() <= MAX_SUBSETS {
        let mut masks: Vec<u32> = (0..1 << (left.len() - 1)).collect();
        masks.sort_by_key(|mask| mask.count_ones());
        let subset = |mask: u32| {
            let chosen = left.iter().enumerate();
            let chosen = chosen.filter(|(at, _)| *at == 0 || mask >> (at - 1) & 1 == 1);
            chosen.map(|(_, device)| *device).collect()
        };
        return masks.into_iter().map(subset).collect();
    }
    let mut orders = vec![left.clone()];
    while left.len() > 1 {
        let slowest = (1..left.len())
            .max_by(|a, b| whole(costs, left[*a]).total_cmp(&whole(costs, left[*b])));
        left.remove(slowest.unwrap_or(left.len() - 1));
        orders.push(left.clone());
    }
    orders.reverse();
    orders
}

/// Seconds of a micro-batch through the whole model on one device.
pub(crate) fn whole(costs: &Costs<'_>, device: usize) -> f64 {
    let samples = costs.work.micro_batch;
    let [forward, backward, _] = costs.seconds(device, &(0..costs.n_blocks()), samples);
    forward + backward
}

fn best_of(
    costs: &Costs<'_>,
    orders: Vec<Vec<usize>>,
    everyone: &[usize],
) -> Result<Plan, PlanError> {
    let (n_blocks, n_micro) = (costs.n_blocks(), costs.work.n_micro);
    let mut best: Option<(f64, Vec<Placement>)> = None;
    for order in orders {
        if order.len() > n_blocks {
            continue;
        }
        let Some(cut) = best_cut(costs, &order, Aim::Slowest) else {
            continue;
        };
        // Whatever the cut, each micro-batch passes the slowest stage or link of the best one.
        let bound = best.as_ref().map_or(f64::INFINITY, |(seconds, _)| *seconds);
        if cut.cost * n_micro as f64 >= bound {
            continue;
        }
        let n_cuts = cuts_up_to(n_blocks, order.len(), MAX_TRIED);
        let (seconds, placements) = match n_cuts {
            Some(_) => all_cuts(costs, cut.placements),
            None => begun_well(costs, (cut, &order)),
        };
        if seconds < bound * (1.0 - NOTICEABLE) || bound.is_infinite() {
            best = Some((seconds, placements));
        }
    }
    let Some((_, placements)) = best else {
        return Err(too_large(costs, everyone));
    };
    Ok(Plan {
        prediction: run(costs, &Group::alone(costs, &placements)),
        placements,
    })
}

/// The number of cuts of `n_blocks` blocks into `n_stages`, if there are no more than `most`.
fn cuts_up_to(n_blocks: usize, n_stages: usize, most: usize) -> Option<usize> {
    let (borders, chosen) = (n_blocks - 1, n_stages - 1);
    (0..chosen.min(borders - chosen)).try_fold(1usize, |n, i| {
        let n = n * (borders - i) / (i + 1);
        (n <= most).then_some(n)
    })
}

/// The best of all cuts, of which `placements` is one.
fn all_cuts(costs: &Costs<'_>, placements: Vec<Placement>) -> (f64, Vec<Placement>) {
    let n_blocks = costs.n_blocks();
    let mut best = (step_seconds(costs, &placements), placements.clone());
    let mut cut = placements;
    let n = cut.len();
    // Borders as far in front as they go, then one after the other on.
    let mut borders: Vec<usize> = (1..n).collect();
    loop {
        let start = |position: usize| position.checked_sub(1).map_or(0, |at| borders[at]);
        for (position, placement) in cut.iter_mut().enumerate() {
            let end = borders.get(position).copied().unwrap_or(n_blocks);
            placement.blocks = start(position)..end;
        }
        if fits(costs, &cut) {
            let seconds = step_seconds(costs, &cut);
            if seconds < best.0 * (1.0 - NOTICEABLE) {
                best = (seconds, cut.clone());
            }
        }
        let last = |at: usize| n_blocks - (borders.len() - at);
        let Some(movable) = (0..borders.len()).rev().find(|at| borders[*at] < last(*at)) else {
            return best;
        };
        let first = borders[movable] + 1;
        for (at, border) in borders[movable..].iter_mut().enumerate() {
            *border = first + at;
        }
    }
}

/// The best of the cuts that dynamic programming finds for several aims, moved on block by block.
fn begun_well(costs: &Costs<'_>, (slowest, order): (Cut, &[usize])) -> (f64, Vec<Placement>) {
    let sums = SLACK.into_iter().filter_map(|slack| {
        let none_above = slowest.cost * slack;
        best_cut(costs, order, Aim::Sum { none_above })
    });
    let mut best = slowest.placements.clone();
    let mut seconds = step_seconds(costs, &best);
    for cut in sums {
        let other = step_seconds(costs, &cut.placements);
        if other < seconds {
            (seconds, best) = (other, cut.placements);
        }
    }
    refine(costs, best)
}

/// Moves one block at a time to another stage, while that shortens the step.
fn refine(costs: &Costs<'_>, mut placements: Vec<Placement>) -> (f64, Vec<Placement>) {
    let mut seconds = step_seconds(costs, &placements);
    loop {
        let mut better = None;
        // One block from a stage to the next, or on through those between to another.
        let borders = (1..placements.len()).flat_map(|first| {
            let last = first..placements.len();
            last.map(move |last| first..=last)
        });
        for borders in borders {
            for onwards in [false, true] {
                let mut moved = placements.clone();
                for border in borders.clone() {
                    let at = moved[border].blocks.start;
                    let at = if onwards { at + 1 } else { at - 1 };
                    moved[border - 1].blocks.end = at;
                    moved[border].blocks.start = at;
                }
                if !fits(costs, &moved) {
                    continue;
                }
                let changed = step_seconds(costs, &moved);
                if changed < seconds * (1.0 - NOTICEABLE) {
                    seconds = changed;
                    better = Some(moved);
                }
            }
        }
        match better {
            Some(moved) => placements = moved,
            None => return (seconds, placements),
        }
    }
}

/// Whether all stages have blocks and room for them.
fn fits(costs: &Costs<'_>, placements: &[Placement]) -> bool {
    placements
        .iter()
        .all(|placement| !placement.blocks.is_empty())
        && fit(costs, &Group::alone(costs, placements))
}

fn step_seconds(costs: &Costs<'_>, placements: &[Placement]) -> f64 {
    judged(costs, &Group::alone(costs, placements))
}

/// The step, from its first micro-batches if it has many.
pub(crate) fn judged(costs: &Costs<'_>, groups: &[Group]) -> f64 {
    let n_micro = costs.work.n_micro;
    let judged = JUDGED.max(4 * groups.len());
    if n_micro <= judged {
        return seconds(costs, groups, n_micro);
    }
    let (half, whole) = (
        seconds(costs, groups, judged / 2),
        seconds(costs, groups, judged),
    );
    let per_micro = (whole - half) / (judged - judged / 2) as f64;
    whole + per_micro * (n_micro - judged) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::partition::tests::{every_cut, fits as cut_fits};
    use crate::plan::work::tests::{even, work};
    use crate::plan::{partition, predict};

    #[test]
    fn a_device_that_would_slow_the_others_down_stands_by() {
        let work = work(&[1.0; 4], 8);
        let (mut devices, links) = even(3);
        devices[1].capacity = 100.0;
        let plan = search(&work, &devices, &links).unwrap();
        let used: Vec<usize> = plan
            .placements
            .iter()
            .map(|placement| placement.device)
            .collect();
        assert_eq!(used, [0, 2]);
        let far = Links::uniform(3, 0.1, 0.0);
        let plan = search(&work, &devices, &far).unwrap();
        assert_eq!(plan.placements.len(), 1, "over such links nobody helps");
    }

    #[test]
    fn a_large_model_on_six_devices_is_planned() {
        let seconds: Vec<f64> = (0..96).map(|i| 1.0 + f64::from(i * 7 % 5)).collect();
        let work = work(&seconds, 24);
        let (mut devices, links) = even(6);
        for (number, device) in devices.iter_mut().enumerate() {
            device.capacity = 1.0 + number as f64 / 3.0;
        }
        let plan = search(&work, &devices, &links).unwrap();
        let speeds: f64 = devices.iter().map(|device| 1.0 / device.capacity).sum();
        let bound = 3.0 * seconds.iter().sum::<f64>() * 24.0 / speeds;
        // Filling and emptying takes 5 of 29 turns.
        assert!(
            plan.prediction.step_seconds < bound * 29.0 / 24.0 * 1.05,
            "{plan:?} {bound}"
        );
    }

    #[test]
    fn the_order_puts_the_fast_link_where_the_data_is_large() {
        let mut work = work(&[1.0; 3], 16);
        work.profile.blocks[0].output_bytes = 1000;
        let (devices, mut links) = even(3);
        links.rate = vec![vec![1000.0; 3]; 3];
        // Between 0 and 1 the large border would be slow.
        (links.rate[0][1], links.rate[1][0]) = (1.0, 1.0);
        let plan = search(&work, &devices, &links).unwrap();
        let used: Vec<usize> = plan
            .placements
            .iter()
            .map(|placement| placement.device)
            .collect();
        assert_eq!(used, [0, 2, 1]);
        let in_order = partition(&work, &devices, &links, &[0, 1, 2]).unwrap();
        let in_order = predict(&work, &devices, &links, &in_order).unwrap();
        assert!(in_order.step_seconds > plan.prediction.step_seconds);
    }

    #[test]
    fn many_devices_are_ordered_by_speed() {
        let work = work(&[1.0; 30], 64);
        let (mut devices, links) = even(12);
        for (number, device) in devices.iter_mut().enumerate() {
            device.capacity = 1.0 + (number * 7 % 12) as f64 / 10.0;
        }
        devices[5].capacity = 1000.0;
        let plan = search(&work, &devices, &links).unwrap();
        assert_eq!(plan.placements[0].device, 0);
        assert!(
            plan.placements
                .iter()
                .all(|placement| placement.device != 5)
        );
        let speeds: Vec<f64> = plan.placements[1..]
            .iter()
            .map(|p| devices[p.device].capacity)
            .collect();
        assert!(speeds.is_sorted(), "{speeds:?}");
    }

    #[test]
    fn a_model_that_fits_nowhere_names_what_is_too_large() {
        let work = work(&[1.0; 6], 4);
        let (mut devices, links) = even(2);
        devices
            .iter_mut()
            .for_each(|device| device.memory_bytes = 150);
        let error = search(&work, &devices, &links).unwrap_err();
        assert!(matches!(error, PlanError::ModelTooLarge { .. }), "{error}");
        // Recomputation makes it fit.
        let again = Work {
            recompute: true,
            ..work
        };
        devices
            .iter_mut()
            .for_each(|device| device.memory_bytes = 250);
        let plan = search(&again, &devices, &links).unwrap();
        assert!(
            plan.prediction
                .memory_bytes
                .iter()
                .all(|bytes| *bytes <= 250)
        );
    }

    proptest! {
        #[test]
        fn no_plan_is_better_than_that_of_the_search(
            seconds in proptest::collection::vec(0.01f64..2.0, 3..7),
            capacities in proptest::collection::vec(0.2f64..10.0, 3),
            rate in 5.0f64..5000.0,
            memory in 200u64..2000,
            n_micro in 1usize..12,
        ) {
            let work = work(&seconds, n_micro);
            let devices: Vec<Device> = capacities.iter().map(|capacity| Device {
                capacity: *capacity,
                memory_bytes: memory,
                ..Device::default()
            }).collect();
            let links = Links::uniform(3, rate, 0.001);
            let orders: [&[usize]; 5] = [&[0], &[0, 1], &[0, 2], &[0, 1, 2], &[0, 2, 1]];
            let cuts = orders.iter().flat_map(|order| every_cut(seconds.len(), order));
            let fitting = cuts.filter(|cut| cut_fits(&work, &devices, cut));
            let step = |cut: Vec<Placement>| predict(&work, &devices, &links, &cut).unwrap().step_seconds;
            let best = fitting.map(step).reduce(f64::min);
            let plan = search(&work, &devices, &links);
            let Some(best) = best else {
                prop_assert!(plan.is_err());
                return Ok(());
            };
            let plan = plan.unwrap();
            prop_assert!(cut_fits(&work, &devices, &plan.placements));
            let again = predict(&work, &devices, &links, &plan.placements).unwrap();
            prop_assert_eq!(&again, &plan.prediction);
            prop_assert!(plan.prediction.step_seconds <= best * 1.0001, "{:?} {}", plan, best);
        }

        #[test]
        fn a_cut_that_is_only_begun_well_is_nearly_as_good(
            seconds in proptest::collection::vec(0.1f64..2.0, 16..20),
            capacities in proptest::collection::vec(0.5f64..5.0, 3),
            rate in 50.0f64..5000.0,
            n_micro in 4usize..16,
        ) {
            let work = work(&seconds, n_micro);
            let device = |capacity: &f64| Device { capacity: *capacity, memory_bytes: 1 << 20, ..Device::default() };
            let devices: Vec<Device> = capacities.iter().map(device).collect();
            let links = Links::uniform(3, rate, 0.001);
            let costs = Costs::new(&work, &devices, &links);
            let order = [0, 1, 2];
            let cut = best_cut(&costs, &order, Aim::Slowest).unwrap();
            let (exact, _) = all_cuts(&costs, cut.placements.clone());
            let (near, placements) = begun_well(&costs, (cut, &order));
            prop_assert!(near >= exact * 0.9999 && near <= exact * 1.15, "{} {}", near, exact);
            let n_blocks: usize = placements.iter().map(|placement| placement.blocks.len()).sum();
            prop_assert_eq!(n_blocks, seconds.len());
        }
    }
}

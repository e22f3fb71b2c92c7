//! What hybrid pipelines are compared with, as plans of the same kind, so that the same schedule prices them all: data
//! parallelism by speed (EDDL), an equal pipeline, and the plans of GPipe (Huang et al. 2019, arXiv:1811.06965), PipeDream
//! (Narayanan et al. 2019, arXiv:1806.03377), DAPPLE (Fan et al. 2021, arXiv:2007.01045) and HetPipe (Park et al. 2020,
//! arXiv:2005.14038).
//!
//! All train synchronously here, so that only the plans differ. Those planners take devices for equally fast, or know nothing of
//! memory: their plans are made so, then priced, and refused where they do not fit.

use serde::{Deserialize, Serialize};

use super::costs::Costs;
use super::group::{Group, Pace, Share, allocate};
use super::hybrid::{Hybrid, alike, closed_form, promised};
use super::partition::{Aim, best_cut, equal, pipedream};
use super::problem::Problem;
use super::schedule::{check, seconds};
use super::work::{Device, PlanError, Work};

/// Another planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Baseline {
    /// Every device a replica of the whole model, samples by speed and memory, dense gradients.
    DataParallel,
    /// As many blocks for each device as for the others, one device per stage.
    Equal,
    /// One device per stage, cut for equally fast devices, all micro-batches forward before the first goes back.
    GPipe,
    /// Stages of equally fast devices such that the slowest stage or transfer is fast, gradients included.
    PipeDream,
    /// Algorithm 2 in closed form for equally fast devices with any memory, samples divided evenly.
    Dapple,
    /// Pipelines of devices of all speeds side by side, which add their gradients up stage by stage.
    HetPipe,
}

impl Baseline {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::DataParallel,
        Self::Equal,
        Self::GPipe,
        Self::PipeDream,
        Self::Dapple,
        Self::HetPipe,
    ];
}

/// The plan of another planner, priced by the same schedule.
///
/// # Errors
/// Figures that cannot be; a plan that does not fit into a device's memory or needs a link that is missing.
pub fn baseline(problem: &Problem, which: Baseline) -> Result<Hybrid, PlanError> {
    problem.check()?;
    let costs = problem.costs();
    let groups = match which {
        Baseline::DataParallel => {
            let all: Vec<usize> = (0..problem.devices.len()).collect();
            let group = allocate(&costs, &(0..costs.n_blocks()), &all, (1, 1));
            vec![group.ok_or_else(|| refused(0))?]
        }
        Baseline::Equal | Baseline::GPipe => in_a_row(problem, &costs, which)?,
        Baseline::PipeDream => of_equals(problem, &slowest_stage)?,
        Baseline::Dapple => of_equals(problem, &|costs| {
            let groups = closed_form(costs)?;
            Some(
                groups
                    .iter()
                    .map(|group| (group.blocks.end, group.shares.len()))
                    .collect(),
            )
        })?,
        Baseline::HetPipe => side_by_side(problem, &costs)?,
    };
    check(&costs, &groups)?;
    let of_first = groups.first().map_or(0, |first| first.in_flight);
    for group in &groups {
        let misfit = group.shares.iter().find(|share| {
            let memory = group.memory(&costs, share, of_first);
            memory > problem.devices[share.device].memory_bytes
        });
        if let Some(share) = misfit {
            return Err(refused(share.device));
        }
    }
    let plan = promised(&costs, groups);
    if plan.prediction.step_seconds.is_finite() {
        Ok(plan)
    } else {
        Err(PlanError::Unlinked)
    }
}

fn refused(device: usize) -> PlanError {
    let what = "the plan does not fit into its memory";
    PlanError::Device { device, what }
}

/// One device per stage, in the order that they have.
fn in_a_row(
    problem: &Problem,
    costs: &Costs<'_>,
    which: Baseline,
) -> Result<Vec<Group>, PlanError> {
    let n = problem.devices.len().min(costs.n_blocks());
    let order: Vec<usize> = (0..n).collect();
    let Problem { work, links, .. } = problem;
    if which == Baseline::Equal {
        let placements = equal(work, &problem.devices, links, &order)?;
        return Ok(Group::alone(costs, &placements));
    }
    let boundless = vec![Device::default(); problem.devices.len()];
    let placements = pipedream(work, &boundless, links, &order)?;
    let mut groups = Group::alone(costs, &placements);
    for group in &mut groups {
        group.in_flight = work.n_micro;
    }
    Ok(groups)
}

/// Where each stage ends, and how many devices host it.
type Shape = Vec<(usize, usize)>;

/// Groups of neighbours with samples divided evenly, of the shape that a planner makes for equally fast devices.
fn of_equals(
    problem: &Problem,
    planner: &dyn Fn(&Costs<'_>) -> Option<Shape>,
) -> Result<Vec<Group>, PlanError> {
    let same = alike(problem);
    let shape = planner(&same.costs()).ok_or(PlanError::Unlinked)?;
    let (mut start, mut device) = (0, 0);
    let mut groups = Vec::new();
    for (position, (end, n)) in shape.iter().enumerate() {
        let devices: Vec<usize> = (device..device + n).collect();
        groups.push(Group {
            blocks: start..*end,
            shares: evenly(problem.work.micro_batch, &devices),
            in_flight: problem.work.in_flight(position, shape.len()),
        });
        (start, device) = (*end, device + n);
    }
    Ok(groups)
}

fn evenly(samples: usize, devices: &[usize]) -> Vec<Share> {
    let n = devices.len();
    let share = |(at, device): (usize, &usize)| Share {
        device: *device,
        samples: samples / n + usize::from(at < samples % n),
    };
    devices
        .iter()
        .enumerate()
        .map(share)
        .filter(|share| share.samples > 0)
        .collect()
}

/// PipeDream's dynamic programming: `A(j, m) = min over i, m' of max(A(i, m - m'), transfer into i, T(i..j, m'))`, with T the
/// time of a micro-batch on m' devices and their reduction's share of it.
fn slowest_stage(costs: &Costs<'_>) -> Option<Shape> {
    let (n_blocks, n_devices) = (costs.n_blocks(), costs.devices.len());
    let (samples, n_micro) = (costs.work.micro_batch, costs.work.n_micro as f64);
    let most = n_devices.min(samples / costs.least_samples);
    let mut best = vec![vec![f64::INFINITY; n_devices + 1]; n_blocks + 1];
    let mut from = vec![vec![(0, 0); n_devices + 1]; n_blocks + 1];
    best[0][0] = 0.0;
    for end in 1..=n_blocks {
        for used in 1..=n_devices {
            for hosts in 1..=used.min(most) {
                let devices: Vec<usize> = (used - hosts..used).collect();
                let pace = Pace::of(costs, &devices);
                for start in 0..end {
                    let before = best[start][used - hosts];
                    if before.is_infinite() {
                        continue;
                    }
                    let transfer = if start == 0 {
                        0.0
                    } else {
                        let bytes = costs.bytes_into(start, samples);
                        costs.links.seconds(used - hosts - 1, used - hosts, bytes)
                    };
                    let blocks = start..end;
                    let [forward, backward, _] =
                        costs.seconds(devices[0], &blocks, samples.div_ceil(hosts));
                    let (_, reduction) = pace.reduction(costs.parameter_bytes(&blocks));
                    let stage = forward + backward + reduction / n_micro;
                    let slowest = before.max(transfer).max(stage);
                    if slowest < best[end][used] {
                        best[end][used] = slowest;
                        from[end][used] = (start, hosts);
                    }
                }
            }
        }
    }
    let value = |used: &usize| best[n_blocks][*used];
    let mut used = (1..=n_devices).min_by(|a, b| value(a).total_cmp(&value(b)))?;
    if value(&used).is_infinite() {
        return None;
    }
    let (mut end, mut shape) = (n_blocks, Vec::new());
    while end > 0 {
        let (start, hosts) = from[end][used];
        shape.push((end, hosts));
        (end, used) = (start, used - hosts);
    }
    // Devices are taken from the front: those of the tail that are left over stand by.
    shape.reverse();
    Some(shape)
}

/// HetPipe: of `k` stages, each pipeline has one device of each k-th part of all by speed; the number of stages is that with the
/// shortest step.
fn side_by_side(problem: &Problem, costs: &Costs<'_>) -> Result<Vec<Group>, PlanError> {
    let n = problem.devices.len();
    let (n_blocks, micro_batch) = (costs.n_blocks(), problem.work.micro_batch);
    let whole = |device: usize| {
        let [forward, backward, _] = costs.seconds(device, &(0..n_blocks), micro_batch);
        forward + backward
    };
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| whole(*a).total_cmp(&whole(*b)));
    let of_stages = |n_stages: usize| {
        let n_pipelines = (n / n_stages).min(micro_batch / costs.least_samples);
        let stage = |position: usize| &order[position * n_pipelines..(position + 1) * n_pipelines];
        // Each stage is as fast as its slowest device.
        let slowest: Option<Vec<usize>> =
            (0..n_stages).map(|at| stage(at).last().copied()).collect();
        let work = Work {
            micro_batch: micro_batch.div_ceil(n_pipelines),
            ..problem.work.clone()
        };
        let part = Costs::new(&work, &problem.devices, &problem.links);
        let cut = best_cut(&part, &slowest?, Aim::Slowest)?;
        let group = |(position, placement): (usize, &super::work::Placement)| {
            let group = Group {
                blocks: placement.blocks.clone(),
                shares: evenly(micro_batch, stage(position)),
                in_flight: 0,
            };
            group.warmed_up(costs, problem.work.in_flight(position, n_stages))
        };
        let groups: Option<Vec<Group>> = cut.placements.iter().enumerate().map(group).collect();
        let groups = groups?;
        Some((seconds(costs, &groups, problem.work.n_micro), groups))
    };
    let best = (1..=n.min(n_blocks)).filter_map(of_stages);
    let best = best.min_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, groups)| groups).ok_or_else(|| refused(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::group::fit;
    use crate::plan::hybrid;
    use crate::plan::hybrid::drawn;

    #[test]
    fn no_baseline_beats_a_hybrid_by_more_than_rounding() {
        let mut n_planned = [0; 6];
        for (n, devices, blocks) in [(60, 4, 8), (10, 8, 16)] {
            for seed in 0..n {
                let problem = drawn(seed, devices, blocks, 8, 6);
                let Ok(plan) = hybrid(&problem) else {
                    continue;
                };
                for (count, which) in n_planned.iter_mut().zip(Baseline::ALL) {
                    let Ok(other) = baseline(&problem, which) else {
                        continue;
                    };
                    *count += 1;
                    let costs = problem.costs();
                    let fits = fit(&costs, &other.groups);
                    let ratio = plan.prediction.step_seconds / other.prediction.step_seconds;
                    assert!(!fits || ratio < 1.005, "{seed} {which:?} {ratio}");
                }
            }
        }
        assert!(n_planned.iter().all(|n| *n >= 20), "{n_planned:?}");
    }

    #[test]
    fn on_equal_devices_the_planners_agree() {
        // No time to send, nothing to reduce: eight blocks in four stages or all together take as long per micro-batch.
        let mut problem = drawn(0, 4, 8, 8, 16);
        problem.devices = vec![Device::default(); 4];
        problem.least_samples = 1;
        problem.data = super::super::work::Data::Everywhere;
        problem.links = super::super::work::Links::uniform(4, 1e15, 0.0);
        let block = problem.work.profile.blocks[0].clone();
        problem.work.profile.blocks = vec![block; 8];
        let step = |which| baseline(&problem, which).unwrap().prediction.step_seconds;
        let best = hybrid(&problem).unwrap().prediction.step_seconds;
        let [data, equal, gpipe] =
            [Baseline::DataParallel, Baseline::Equal, Baseline::GPipe].map(step);
        assert!((equal / gpipe - 1.0).abs() < 0.3, "{equal} {gpipe}");
        assert!(best <= data.min(equal) * 1.000001);
        let shapes = [Baseline::PipeDream, Baseline::Dapple, Baseline::HetPipe];
        for which in shapes {
            assert!(step(which) < 1.5 * best, "{which:?} {} {best}", step(which));
        }
    }
}

//! Hybrid pipelines: stages hosted by groups of devices that work data-parallel inside (Asteroid: Ye et al., MobiCom 2024).
//!
//! ```text
//! Problem ─> spaces: which groups in which order ─> chain: algorithm 2 over cells (algorithm 1) in closed form
//!         ─> the best chains, priced by the schedule ─> improve: small steps, priced by the schedule ─> Hybrid
//! ```
//!
//! The paper sorts devices by memory and stops at its closed form. Here, of up to six devices every group is tried in every
//! place, of more the neighbours in several orders; candidates are priced by the schedule, event by event, and moved on from. Of
//! large models cuts are looked for at some thirty borders first. How much is tried is limited by counts, never by a clock, so
//! the same problem always has the same plan.

mod cells;
mod chain;
mod spaces;
mod layout;
mod improve;
#[cfg(test)]
mod exhaustive;

use serde::{Deserialize, Serialize};

use super::costs::Costs;
use super::group::Group;
use super::partition::too_large;
use super::problem::Problem;
use super::schedule::{Prediction, Span, check, run, timeline};
use super::work::{Links, PlanError, Work};
use cells::{Cells, grid};
use chain::{Chain, Space, chains};
use improve::{Judge, improve};
pub(crate) use layout::{Stage, build, layout, moved};
pub use spaces::MAX_HYBRID;
use spaces::{MAX_SETS, every_group, neighbours, orders};

/// Stages, who hosts them, and what that promises. Who is in no group stands by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hybrid {
    /// Stages in order.
    pub groups: Vec<Group>,
    /// Step, bubbles, memory, bytes.
    pub prediction: Prediction,
}

/// Most candidate borders of a few devices, and of many.
const BORDERS: [usize; 2] = [30, 20];

/// Chains that are priced by the schedule.
const PRICED: usize = 64;

/// Plans that are moved on from, of a few devices and of more.
const MOVED_ON: [usize; 2] = [6, 3];

/// Passes run through a schedule, of up to 16 devices and of more.
const PATIENCE: [usize; 2] = [1_500_000, 6_000_000];

/// What planning took.
#[derive(Clone, Copy, Debug, Default)]
struct Effort {
    /// Divisions of a micro-batch in a group.
    divided: usize,
    /// Tails of pipelines in dynamic programming.
    tails: usize,
    /// Plans run through the schedule.
    judged: usize,
}

/// The best hybrid pipeline that is found.
///
/// # Errors
/// Figures that cannot be; a model that does not fit, with what does not; links that are missing.
pub fn hybrid(problem: &Problem) -> Result<Hybrid, PlanError> {
    problem.check()?;
    let costs = problem.costs();
    match search(&costs).0 {
        Some(groups) => Ok(promised(&costs, groups)),
        None => Err(nothing_fits(problem)),
    }
}

/// What these groups promise.
///
/// # Errors
/// Figures that cannot be; groups that are not all blocks in order on devices that there are, with whole micro-batches.
pub fn price(problem: &Problem, groups: &[Group]) -> Result<Prediction, PlanError> {
    problem.check()?;
    let costs = problem.costs();
    check(&costs, groups)?;
    Ok(run(&costs, groups))
}

/// What each device of these groups does when in a step, to draw it.
///
/// # Errors
/// As [`price`].
pub fn spans(problem: &Problem, groups: &[Group]) -> Result<Vec<Span>, PlanError> {
    problem.check()?;
    let costs = problem.costs();
    check(&costs, groups)?;
    Ok(timeline(&costs, groups))
}

pub(crate) fn promised(costs: &Costs<'_>, groups: Vec<Group>) -> Hybrid {
    Hybrid {
        prediction: run(costs, &groups),
        groups,
    }
}

/// Why nothing was found.
pub(crate) fn nothing_fits(problem: &Problem) -> PlanError {
    let n = problem.devices.len();
    let linked = Links {
        rate: vec![vec![1e9; n]; n],
        ..problem.links.clone()
    };
    let is_missing = |rate: &f64| *rate == 0.0;
    let missing = problem.links.rate.iter().flatten().any(is_missing);
    let costs = Costs::new(&problem.work, &problem.devices, &linked);
    if missing && search(&costs).0.is_some() {
        return PlanError::Unlinked;
    }
    // A group may divide a micro-batch down to the fewest samples.
    let divided = Work {
        micro_batch: problem.least_samples,
        ..problem.work.clone()
    };
    let order: Vec<usize> = (0..n).collect();
    too_large(
        &Costs::new(&divided, &problem.devices, &problem.links),
        &order,
    )
}

fn search(costs: &Costs<'_>) -> (Option<Vec<Group>>, Effort) {
    let n = costs.devices.len();
    let few = usize::from(n > 16);
    let grid = grid(costs, BORDERS[few]);
    let spaces: Vec<Space> = if n <= MAX_SETS {
        vec![every_group(n)]
    } else {
        orders(costs)
            .iter()
            .map(|order| neighbours(order))
            .collect()
    };
    let mut effort = Effort::default();
    let mut found: Vec<(f64, Vec<Stage>)> = Vec::new();
    for space in &spaces {
        let mut cells = Cells::new(costs, &grid, &space.groups);
        let (best, n_tails) = chains(&mut cells, space, PRICED);
        effort.tails += n_tails;
        effort.divided += cells.n_divided;
        found.extend(
            best.iter()
                .map(|(seconds, chain)| (*seconds, stages(costs, space, chain))),
        );
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut judge = Judge {
        costs,
        patience: PATIENCE[few],
        n_judged: 0,
    };
    let mut priced: Vec<(f64, Vec<Group>)> = Vec::new();
    for (_, stages) in found.iter().take(PRICED) {
        let groups = build(costs, stages, &[]);
        if let Some(groups) = groups
            && priced.iter().all(|(_, other)| *other != groups)
        {
            priced.push((judge.seconds(&groups), groups));
        }
    }
    priced.sort_by(|a, b| a.0.total_cmp(&b.0));
    let moved_on = priced.into_iter().take(MOVED_ON[usize::from(n > MAX_SETS)]);
    let improved: Vec<_> = moved_on
        .map(|(_, groups)| improve(&mut judge, groups))
        .collect();
    effort.judged = judge.n_judged;
    let best = improved.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    let best = best.filter(|(seconds, _)| seconds.is_finite());
    (best.map(|(_, groups)| groups), effort)
}

fn stages(costs: &Costs<'_>, space: &Space, chain: &Chain) -> Vec<Stage> {
    let end = |position: usize| {
        chain
            .get(position + 1)
            .map_or(costs.n_blocks(), |next| next.0)
    };
    let stage = |(position, (start, group)): (usize, &(usize, usize))| Stage {
        blocks: *start..end(position),
        devices: space.groups[*group].clone(),
    };
    chain.iter().enumerate().map(stage).collect()
}

#[cfg(test)]
mod tests {
    use super::exhaustive::{drawn, optimum};
    use super::*;

    /// How much longer than the optimum plans are, over many problems; each size of problem with its own seeds.
    fn ratios(
        n: u64,
        (devices, blocks, micro_batch, n_micro): (usize, usize, usize, usize),
    ) -> Vec<(f64, u64)> {
        let mut ratios = Vec::new();
        for seed in 0..n {
            let problem = drawn(seed, devices, blocks, micro_batch, n_micro);
            let costs = problem.costs();
            match (optimum(&costs), hybrid(&problem)) {
                (Some(best), Ok(plan)) => {
                    check(&costs, &plan.groups).unwrap();
                    assert!(plan.groups.iter().all(|group| group.fits(&costs)), "{seed}");
                    ratios.push((plan.prediction.step_seconds / best, seed));
                }
                (None, Err(_)) => {}
                (best, plan) => panic!("seed {seed}: {best:?} {plan:?}"),
            }
        }
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        ratios
    }

    #[test]
    fn plans_are_near_the_optimum() {
        for (n, size) in [
            (150, (2, 5, 4, 6)),
            (150, (3, 4, 4, 4)),
            (60, (3, 6, 3, 8)),
            (20, (4, 4, 4, 3)),
        ] {
            let ratios = ratios(n, size);
            let above = ratios.iter().filter(|(ratio, _)| *ratio > 1.02).count();
            let worst: Vec<_> = ratios.iter().rev().take(5).collect();
            println!(
                "{size:?}: {} planned, {above} above 1.02, worst {worst:?}",
                ratios.len()
            );
        }
    }
}

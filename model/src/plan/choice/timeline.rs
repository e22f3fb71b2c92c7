//! One step of an offer as bars: what each device computes when.

use super::offer::{Arrangement, Offer};
use super::settings::Settings;
use super::tiered;
use crate::plan::events::Pass;
use crate::plan::group::{Group, Share};
use crate::plan::problem::Problem;
use crate::plan::schedule::{Span, check, timeline};
use crate::plan::work::PlanError;

/// What each device does when. Where steps overlap: the first micro-batches until the pipeline is full and one more turn.
///
/// # Errors
/// Figures that cannot be, or an offer that was made for another problem.
pub fn of_step(
    problem: &Problem,
    settings: &Settings,
    offer: &Offer,
) -> Result<Vec<Span>, PlanError> {
    problem.check_figures()?;
    match &offer.arrangement {
        Arrangement::Stages(groups) if problem.work.overlaps() => {
            let depth = groups.first().map_or(1, |first| first.in_flight);
            pipeline(problem, groups, 2 * depth + 1)
        }
        Arrangement::Stages(groups) => pipeline(problem, groups, problem.work.n_micro),
        Arrangement::Islands(islands) => {
            let mut all = Vec::new();
            for island in islands {
                all.extend(pipeline(problem, &island.groups, island.n_micro)?);
            }
            Ok(all)
        }
        Arrangement::Replicas(shares) => replicas(problem, shares),
        Arrangement::Tiers(plan) => Ok(tiered::spans(problem, settings, plan)),
    }
}

fn pipeline(problem: &Problem, groups: &[Group], n_micro: usize) -> Result<Vec<Span>, PlanError> {
    let mut problem = problem.clone();
    problem.work.n_micro = n_micro;
    let costs = problem.costs();
    check(&costs, groups)?;
    Ok(timeline(&costs, groups))
}

/// Replicas compute all their samples at once; sending goes on beside that.
fn replicas(problem: &Problem, shares: &[Share]) -> Result<Vec<Span>, PlanError> {
    let costs = problem.costs();
    let mut all = Vec::new();
    for Share { device, samples } in shares {
        let device = *device;
        if device >= problem.devices.len() {
            let what = "it is none of the devices";
            return Err(PlanError::Device { device, what });
        }
        let seconds = costs.seconds(device, &(0..costs.n_blocks()), *samples);
        let passes = [Pass::Forward, Pass::Backward, Pass::Update];
        let mut from = 0.0;
        for (pass, seconds) in passes.into_iter().zip(seconds) {
            all.push(Span {
                device,
                pass,
                micro: usize::from(pass == Pass::Update),
                from,
                to: from + seconds,
            });
            from += seconds;
        }
    }
    Ok(all)
}

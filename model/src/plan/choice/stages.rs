//! Families of one pipeline: a single device, one device per stage, and groups.

use super::offer::{Offer, Refusal};
use super::settings::Settings;
use crate::plan::costs::Costs;
use crate::plan::group::{Group, fit};
use crate::plan::hybrid::{self, nothing_fits};
use crate::plan::problem::Problem;
use crate::plan::search::{begin_at, whole};
use crate::plan::work::{Data, Held, Links, Placement, PlanError};

/// Most devices of which each is tried as the first of a pipeline, the fastest of those that have the data.
const MOST_BEGINNINGS: usize = 8;

/// The fastest device that has room for the whole model. Where one device has the data it sends the samples to the one that
/// trains.
pub(super) fn single(problem: &Problem, settings: &Settings) -> Result<Offer, Refusal> {
    let costs = problem.costs();
    let n_blocks = costs.n_blocks();
    let offer = |device: usize| {
        let placement = Placement {
            device,
            blocks: 0..n_blocks,
        };
        let groups = Group::alone(&costs, &[placement]);
        fit(&costs, &groups)
            .then(|| Offer::of_stages(&costs, groups))
            .flatten()
    };
    let may = |device: &usize| !settings.private || has_samples(problem, *device);
    let offers = (0..problem.devices.len()).filter(may).filter_map(offer);
    let best = offers.min_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds));
    best.ok_or_else(|| no_room(&costs))
}

/// Whether samples begin on this device.
fn has_samples(problem: &Problem, device: usize) -> bool {
    problem.data == Data::Everywhere || problem.data == Data::At(device)
}

/// What the whole model takes on one device.
fn no_room(costs: &Costs<'_>) -> Refusal {
    let whole = 0..costs.n_blocks();
    let samples = costs.least_samples;
    Refusal::NoRoom {
        needs: costs.memory(&whole, samples, Held::LEAST, false),
    }
}

/// One device per stage, the first of which has the data.
pub(super) fn pipeline(problem: &Problem, _: &Settings) -> Result<Offer, Refusal> {
    let costs = problem.costs();
    let mut first: Vec<usize> = (0..problem.devices.len())
        .filter(|device| has_samples(problem, *device))
        .collect();
    first.sort_by(|a, b| whole(&costs, *a).total_cmp(&whole(&costs, *b)));
    first.truncate(MOST_BEGINNINGS);
    let mut best: Option<Offer> = None;
    let mut why = None;
    for device in first {
        let found = begin_at(&costs, device);
        let offer = found.map(|plan| {
            let groups = Group::alone(&costs, &plan.placements);
            Offer::of_stages(&costs, groups)
        });
        match offer {
            Ok(Some(offer)) => {
                let least = best
                    .as_ref()
                    .map_or(f64::INFINITY, |best| best.step_seconds);
                if offer.step_seconds < least {
                    best = Some(offer);
                }
            }
            Ok(None) => why = Some(PlanError::Unlinked),
            Err(error) => why = Some(error),
        }
    }
    let nothing = || Refusal::Plan(unlinked(problem).or(why).unwrap_or(PlanError::Unlinked));
    best.ok_or_else(nothing)
}

/// That links are missing, if with them there would be a plan.
fn unlinked(problem: &Problem) -> Option<PlanError> {
    let n = problem.devices.len();
    let row = |(from, row): (usize, &Vec<f64>)| {
        let mut to = row.iter().enumerate();
        to.any(|(to, rate)| to != from && *rate == 0.0)
    };
    let mut rows = problem.links.rate.iter().enumerate();
    if !rows.any(row) {
        return None;
    }
    let linked = Problem {
        links: Links {
            rate: vec![vec![1e9; n]; n],
            ..problem.links.clone()
        },
        ..problem.clone()
    };
    let mut first = (0..n).filter(|device| has_samples(problem, *device));
    let costs = linked.costs();
    let is_planned = |device: usize| begin_at(&costs, device).is_ok();
    first.any(is_planned).then_some(PlanError::Unlinked)
}

/// Stages that may be hosted by groups.
pub(super) fn hybrid(problem: &Problem, settings: &Settings) -> Result<Offer, Refusal> {
    problem.check()?;
    let costs = problem.costs();
    let Some(groups) = hybrid::best(&costs) else {
        return Err(nothing_fits(problem).into());
    };
    if let Data::At(device) = problem.data
        && settings.private
        && groups[0].devices().any(|member| member != device)
    {
        return Err(Refusal::Private { device });
    }
    Offer::of_stages(&costs, groups).ok_or(Refusal::Plan(PlanError::Unlinked))
}

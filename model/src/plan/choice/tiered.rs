//! The family of tiers: where every device of the problem says where it stands.

use super::offer::{Arrangement, Offer, Refusal, Role, samples_of};
use super::settings::Settings;
use crate::plan::problem::Problem;
use crate::plan::schedule::Span;
use crate::plan::tier::Tier;
use crate::plan::tiers::{TierRole, Tiered, roles, tiers};
use crate::plan::work::PlanError;

/// The best plan over tiers.
pub(super) fn plan(problem: &Problem, settings: &Settings) -> Result<Offer, Refusal> {
    problem.check()?;
    let of = of_devices(problem).ok_or(Refusal::NoTiers)?;
    if of.iter().all(|tier| *tier == of[0]) {
        return Err(Refusal::OneTier);
    }
    let plan = tiers(problem, &of, settings.private)?;
    let nothing = || Refusal::Plan(PlanError::Unlinked);
    let parts = parts(problem, settings, &plan).ok_or_else(nothing)?;
    let step = plan.step_seconds;
    let role = |part: &TierRole| {
        let computes = part
            .spans
            .iter()
            .filter(|span| span.pass != crate::plan::Pass::Reduce);
        let seconds: f64 = computes.map(|span| span.to - span.from).sum();
        Role {
            device: part.device,
            blocks: part.blocks.clone(),
            samples: part.samples,
            busy: if step > 0.0 { seconds / step } else { 0.0 },
            memory_bytes: part.memory_bytes,
            sent_bytes: part.sent_bytes,
        }
    };
    // A device of a tier that gets no sample only keeps its tier's blocks.
    let taking = parts.iter().filter(|part| part.samples > 0);
    let roles = taking.map(role).collect();
    let made = (step, samples_of(&problem.costs()));
    Offer::new(Arrangement::Tiers(plan), roles, made, 1.0).ok_or_else(nothing)
}

/// When each device computes.
pub(super) fn spans(problem: &Problem, settings: &Settings, plan: &Tiered) -> Vec<Span> {
    let parts = parts(problem, settings, plan).unwrap_or_default();
    let taking = parts.into_iter().filter(|part| part.samples > 0);
    taking.flat_map(|part| part.spans).collect()
}

fn of_devices(problem: &Problem) -> Option<Vec<Tier>> {
    problem.devices.iter().map(|device| device.tier).collect()
}

fn parts(problem: &Problem, settings: &Settings, plan: &Tiered) -> Option<Vec<TierRole>> {
    let of = of_devices(problem)?;
    roles(&problem.costs(), &of, settings.private, plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::hybrid::drawn;

    #[test]
    fn tiers_are_planned_where_all_devices_have_one_and_not_the_same() {
        let mut problem = drawn(4, 3, 4, 6, 1);
        for device in &mut problem.devices {
            device.memory_bytes = u64::MAX;
        }
        let settings = Settings::default();
        assert_eq!(plan(&problem, &settings), Err(Refusal::NoTiers));
        for device in &mut problem.devices {
            device.tier = Some(Tier::Edge);
        }
        assert_eq!(plan(&problem, &settings), Err(Refusal::OneTier));
        problem.devices[0].tier = Some(Tier::Device);
        let offer = plan(&problem, &settings).unwrap();
        let Arrangement::Tiers(tiered) = &offer.arrangement else {
            panic!("{offer:?}")
        };
        assert_eq!(tiered.step_seconds, offer.step_seconds);
        let ends = spans(&problem, &settings, tiered).into_iter();
        let end = ends.map(|span| span.to).fold(0.0, f64::max);
        assert!((end - offer.step_seconds).abs() <= 1e-9 * end);
    }
}

//! The choice among the ways in which the devices of a problem can train together, by one objective.
//!
//! ```text
//! Problem ─┬> single, pipeline, hybrid   stages hosted by one device or by groups ─┐
//!          ├> exchange                   a replica on every device                 ├> Offer: seconds per sample, divided by the
//!          ├> tiers                      first blocks at other tiers               │  family's statistical efficiency ─> Choice
//!          └> islands                    pipelines that exchange like replicas    ─┘
//! ```
//!
//! All families make the same step: `n_micro` times `micro_batch` samples behind one update. A family that cannot be had says why
//! ([`Refusal`]); of those that can, the one that takes the least time for a sample's worth of progress is the best. Equal offers
//! keep the order of [`Family`], simple ones first. All is counted and nothing is timed, so equal problems have equal choices.

mod settings;
mod offer;
mod stages;
mod exchange;
mod tiered;
mod islands;
mod changes;
mod timeline;

use super::problem::Problem;
use super::work::PlanError;
pub use changes::{Idle, Left, Loss, MOST_ANEW, WhyIdle, idle, losses};
pub use offer::{Arrangement, Family, Island, Offer, Refusal, Role};
pub use settings::{ExchangeCosts, Settings};
pub use timeline::of_step;

/// One family: what it offers, or why it does not.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Which.
    pub family: Family,
    /// Its best plan.
    pub outcome: Result<Offer, Refusal>,
}

/// All families, the best first, those that cannot be had last.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// See above.
    pub ranked: Vec<Candidate>,
}

impl Choice {
    /// The best offer with its family; [`choose`] gives no choice without one.
    pub fn best(&self) -> Option<(Family, &Offer)> {
        let first = self.ranked.first()?;
        Some((first.family, first.outcome.as_ref().ok()?))
    }

    /// What a family offers, if it does.
    pub fn offer(&self, family: Family) -> Option<&Offer> {
        let mut ranked = self.ranked.iter();
        let candidate = ranked.find(|candidate| candidate.family == family)?;
        candidate.outcome.as_ref().ok()
    }
}

/// Plans every family and ranks them.
///
/// # Errors
/// Figures or settings that cannot be; if no family can be had, why the most flexible one cannot: what does not fit, or which
/// links are missing.
pub fn choose(problem: &Problem, settings: &Settings) -> Result<Choice, PlanError> {
    problem.check_figures()?;
    settings.check()?;
    let candidate = |family| Candidate {
        family,
        outcome: match family {
            Family::Single => stages::single(problem, settings),
            Family::Pipeline => stages::pipeline(problem, settings),
            Family::Hybrid => stages::hybrid(problem, settings),
            Family::Exchange => exchange::plan(problem, settings),
            Family::Tiers => tiered::plan(problem, settings),
            Family::Islands => islands::plan(problem, settings),
        },
    };
    let mut ranked: Vec<Candidate> = Family::ALL.into_iter().map(candidate).collect();
    let price = |candidate: &Candidate| match &candidate.outcome {
        Ok(offer) => offer.seconds_per_sample,
        Err(_) => f64::INFINITY,
    };
    // Stable: equal ones keep their order.
    ranked.sort_by(|a, b| price(a).total_cmp(&price(b)));
    if ranked[0].outcome.is_ok() {
        return Ok(Choice { ranked });
    }
    let why = |family| {
        let mut ranked = ranked.iter();
        let candidate = ranked.find(|candidate| candidate.family == family)?;
        match &candidate.outcome {
            Err(Refusal::Plan(PlanError::Overlapping)) => None,
            Err(Refusal::Plan(error)) => Some(error.clone()),
            _ => None,
        }
    };
    let reasons = [Family::Hybrid, Family::Pipeline].into_iter();
    Err(reasons
        .filter_map(why)
        .next()
        .unwrap_or(PlanError::Unlinked))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::hybrid::{drawn, seeds};
    use crate::plan::tier::Tier;
    use crate::plan::{Data, Device, Stashing};

    /// What has to hold of every choice.
    pub(super) fn check_choice(problem: &Problem, settings: &Settings, choice: &Choice) {
        let (_, best) = choice.best().unwrap();
        let n = problem.work.profile.blocks.len();
        let mut families: Vec<Family> = choice.ranked.iter().map(|c| c.family).collect();
        families.sort_unstable();
        assert_eq!(families, Family::ALL);
        for candidate in &choice.ranked {
            let Ok(offer) = &candidate.outcome else {
                continue;
            };
            let family = candidate.family;
            assert!(
                best.seconds_per_sample <= offer.seconds_per_sample,
                "{family:?}"
            );
            assert!(offer.step_seconds >= 0.0 && offer.step_seconds.is_finite());
            let mut seen = Vec::new();
            for role in &offer.roles {
                let device = &problem.devices[role.device];
                assert!(
                    role.memory_bytes <= device.memory_bytes,
                    "{family:?} {role:?}"
                );
                assert!(role.samples >= 1 && !role.blocks.is_empty() && role.blocks.end <= n);
                assert!(
                    (0.0..=1.0 + 1e-9).contains(&role.busy),
                    "{family:?} {role:?}"
                );
                assert!(!seen.contains(&role.device), "{family:?} {role:?}");
                seen.push(role.device);
            }
            let spans = of_step(problem, settings, offer).unwrap();
            for span in &spans {
                assert!(
                    seen.contains(&span.device) && span.from <= span.to,
                    "{span:?}"
                );
            }
            for idle in idle(problem, settings, offer).unwrap() {
                assert!(!seen.contains(&idle.device));
            }
        }
    }

    fn with_tiers(mut problem: Problem) -> Problem {
        let tiers = [Tier::Device, Tier::Edge, Tier::Cloud];
        for (number, device) in problem.devices.iter_mut().enumerate() {
            device.tier = Some(tiers[number % 3]);
        }
        problem
    }

    #[test]
    fn the_chosen_family_is_never_worse_than_another_and_all_plans_fit() {
        let mut won = std::collections::BTreeMap::new();
        for (n, devices, blocks, n_micro) in [(40, 3, 4, 4), (25, 4, 6, 8), (2, 8, 12, 4)] {
            for seed in seeds(n) {
                let mut problem = drawn(seed, devices, blocks, 4, n_micro);
                if seed % 2 == 0 {
                    problem = with_tiers(problem);
                }
                let settings = Settings {
                    private: seed % 5 == 0,
                    ..Settings::default()
                };
                match choose(&problem, &settings) {
                    Ok(choice) => {
                        check_choice(&problem, &settings, &choice);
                        *won.entry(choice.best().unwrap().0).or_insert(0) += 1;
                        assert_eq!(choose(&problem, &settings).as_ref(), Ok(&choice));
                    }
                    Err(error) => {
                        let plan = super::super::hybrid(&problem);
                        assert!(plan.is_err() || settings.private, "{seed}: {error}");
                    }
                }
            }
        }
        assert!(won.len() >= 4, "{won:?}");
    }

    #[test]
    fn steps_that_overlap_are_planned_for_one_device_per_stage() {
        let mut problem = drawn(3, 3, 6, 4, 1);
        problem.work.stashing = Stashing::Own;
        for device in &mut problem.devices {
            device.memory_bytes = u64::MAX;
        }
        let settings = Settings::default();
        let choice = choose(&problem, &settings).unwrap();
        check_choice(&problem, &settings, &choice);
        assert!(choice.offer(Family::Pipeline).is_some());
        assert!(choice.offer(Family::Hybrid).is_none());
        let offer = choice.offer(Family::Pipeline).unwrap();
        let rate = offer.samples_per_second * offer.step_seconds;
        assert!((rate - 4.0).abs() < 1e-9, "a step is one micro-batch");
    }

    #[test]
    fn what_cannot_be_is_a_clear_error_and_all_else_a_plan() {
        let settings = Settings::default();
        let mut problem = drawn(0, 3, 1, 4, 4);
        (problem.data, problem.least_samples) = (Data::Everywhere, 1);
        for device in &mut problem.devices {
            device.memory_bytes = u64::MAX;
        }
        // One block.
        let choice = choose(&problem, &settings).unwrap();
        check_choice(&problem, &settings, &choice);
        // No links.
        let mut apart = problem.clone();
        apart.links.rate = vec![vec![0.0; 3]; 3];
        let choice = choose(&apart, &settings).unwrap();
        check_choice(&apart, &settings, &choice);
        assert_eq!(choice.best().unwrap().0, Family::Single);
        assert!(choice.offer(Family::Exchange).is_none());
        // A device without memory has no part, all without it no plan.
        problem.devices[1].memory_bytes = 0;
        let choice = choose(&problem, &settings).unwrap();
        for candidate in &choice.ranked {
            let roles = candidate.outcome.iter().flat_map(|offer| &offer.roles);
            assert!(roles.into_iter().all(|role| role.device != 1));
        }
        let mut none = problem.clone();
        for device in &mut none.devices {
            device.memory_bytes = 0;
        }
        let error = choose(&none, &settings).unwrap_err();
        assert!(matches!(error, PlanError::BlockTooLarge { .. }), "{error}");
        // Zeros.
        let mut nothing = problem.clone();
        nothing.devices[0].capacity = 0.0;
        let error = choose(&nothing, &settings).unwrap_err();
        assert!(matches!(error, PlanError::Device { device: 0, .. }));
        let mut nothing = problem.clone();
        nothing.work.n_micro = 0;
        assert!(matches!(
            choose(&nothing, &settings),
            Err(PlanError::Step { n_micro: 0, .. })
        ));
        nothing.devices.clear();
        assert!(choose(&nothing, &settings).is_err());
        // What takes no time is not divided by.
        let mut timeless = problem.clone();
        for block in &mut timeless.work.profile.blocks {
            *block = crate::plan::BlockProfile::default();
        }
        timeless.devices = vec![Device::default(); 3];
        let choice = choose(&timeless, &settings).unwrap();
        check_choice(&timeless, &settings, &choice);
        assert_eq!(choice.best().unwrap().1.seconds_per_sample, 0.0);
        for factor in [0.0, -1.0, f64::NAN, 1.5] {
            let mut wrong = Settings::default();
            wrong.exchange.efficiency = factor;
            let error = choose(&problem, &wrong).unwrap_err();
            assert!(matches!(error, PlanError::Setting(_)), "{error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn missing_links_and_scarce_memory_never_panic(
            seed in 0u64..10_000,
            missing in proptest::collection::vec(any::<bool>(), 9),
            memory in proptest::collection::vec(0u64..2_000, 3),
        ) {
            let mut problem = with_tiers(drawn(seed, 3, 3, 4, 2));
            for (at, gone) in missing.iter().enumerate() {
                if *gone {
                    problem.links.rate[at / 3][at % 3] = 0.0;
                }
            }
            for (device, memory) in problem.devices.iter_mut().zip(memory) {
                device.memory_bytes = device.memory_bytes.min(memory);
            }
            let settings = Settings::default();
            if let Ok(choice) = choose(&problem, &settings) {
                check_choice(&problem, &settings, &choice);
                losses(&problem, &settings, &choice).unwrap();
            }
        }
    }
}

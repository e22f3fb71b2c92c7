//! What devices are worth: why one has no part in a plan, and what is left without one that has.

use super::offer::{Arrangement, Family, Offer, Refusal};
use super::settings::Settings;
use super::{Choice, choose, exchange, tiered};
use crate::plan::costs::Costs;
use crate::plan::group::{Group, fit};
use crate::plan::hybrid::{Stage, build, layout};
use crate::plan::problem::Problem;
use crate::plan::replan::replan;
use crate::plan::search::judged;
use crate::plan::work::{Data, Held, PlanError};

/// Most devices of which all families are planned anew without each of them.
pub const MOST_ANEW: usize = 8;

/// Most places in a stage at which a further one is tried to begin or end.
const MOST_BORDERS: usize = 32;

/// A device without a part.
#[derive(Clone, Debug, PartialEq)]
pub struct Idle {
    /// Its number.
    pub device: usize,
    /// Why.
    pub why: WhyIdle,
}

/// Why a device has no part. It stands by and keeps copies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WhyIdle {
    /// Samples per second of the best plan found that is like this one but gives it a part, and without it.
    Slower {
        /// With it.
        with: f64,
        /// Without it.
        without: f64,
    },
    /// What it would hold at least has no room in its memory.
    NoRoom {
        /// Bytes of that.
        needs: u64,
        /// Its memory.
        has: u64,
    },
    /// It has no link to any other device.
    Unlinked,
    /// No plan like this one gives it a part.
    NoPlace,
}

/// The devices that have no part in a plan, with the reason.
///
/// # Errors
/// Figures that cannot be.
pub fn idle(problem: &Problem, settings: &Settings, offer: &Offer) -> Result<Vec<Idle>, PlanError> {
    problem.check_figures()?;
    let has_part = |device: usize| offer.roles.iter().any(|role| role.device == device);
    let idle = (0..problem.devices.len()).filter(|device| !has_part(*device));
    let why = |device| Idle {
        device,
        why: why_idle(problem, settings, offer, device),
    };
    Ok(idle.map(why).collect())
}

fn why_idle(problem: &Problem, settings: &Settings, offer: &Offer, device: usize) -> WhyIdle {
    let costs = problem.costs();
    let has = problem.devices[device].memory_bytes;
    let least = match &offer.arrangement {
        Arrangement::Replicas(_) => exchange::least_bytes(problem, settings),
        _ => {
            let alone = |block| {
                let samples = costs.least_samples;
                costs.memory(&(block..block + 1), samples, Held::LEAST, false)
            };
            (0..costs.n_blocks()).map(alone).min().unwrap_or(0)
        }
    };
    if least > has {
        return WhyIdle::NoRoom { needs: least, has };
    }
    let rate = &problem.links.rate;
    let is_linked = |other: usize| rate[device][other] > 0.0 && rate[other][device] > 0.0;
    if !(0..problem.devices.len()).any(|other| other != device && is_linked(other)) {
        return WhyIdle::Unlinked;
    }
    let without = offer.samples_per_second;
    let with = match &offer.arrangement {
        Arrangement::Stages(groups) => with_stage(problem, settings, (&costs, groups), device)
            .filter(|seconds| *seconds > 0.0)
            .map(|seconds| offer.step_seconds * without / seconds),
        Arrangement::Replicas(shares) => {
            let own = shares.iter().map(|share| share.device).chain([device]);
            exchange::samples_per_second(problem, settings, &own.collect::<Vec<_>>())
        }
        Arrangement::Tiers(_) | Arrangement::Islands(_) => None,
    };
    match with {
        Some(with) => WhyIdle::Slower { with, without },
        None => WhyIdle::NoPlace,
    }
}

/// The shortest step of these stages with the device in one of them, or as one more.
fn with_stage(
    problem: &Problem,
    settings: &Settings,
    (costs, groups): (&Costs<'_>, &[Group]),
    device: usize,
) -> Option<f64> {
    let stages = layout(groups);
    let begins = match problem.data {
        Data::At(source) => !settings.private || source == device,
        Data::Everywhere => true,
    };
    let mut all: Vec<Vec<Stage>> = Vec::new();
    for position in 0..stages.len() {
        if !costs.work.overlaps() && (position > 0 || begins) {
            let mut with = stages.clone();
            with[position].devices.push(device);
            with[position].devices.sort_unstable();
            all.push(with);
        }
        let blocks = stages[position].blocks.clone();
        let stride = blocks.len().div_ceil(MOST_BORDERS);
        for border in blocks.clone().skip(1).step_by(stride) {
            for before in [true, false] {
                if before && position == 0 && !begins {
                    continue;
                }
                let mut with = stages.clone();
                let new = Stage {
                    blocks: if before {
                        blocks.start..border
                    } else {
                        border..blocks.end
                    },
                    devices: vec![device],
                    depth: usize::MAX,
                };
                if before {
                    with[position].blocks.start = border;
                } else {
                    with[position].blocks.end = border;
                }
                with.insert(position + usize::from(!before), new);
                all.push(with);
            }
        }
    }
    let seconds = all.iter().filter_map(|stages| {
        let groups = build(costs, stages, groups)?;
        let takes_part = groups.iter().flat_map(Group::devices).any(|d| d == device);
        (takes_part && fit(costs, &groups)).then(|| judged(costs, &groups))
    });
    let best = seconds.min_by(f64::total_cmp);
    best.filter(|seconds| seconds.is_finite())
}

/// What is left without a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// Its number.
    pub device: usize,
    /// What is best then; or why there is no plan.
    pub then: Result<Left, PlanError>,
}

/// The best plan without a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Left {
    /// Its family.
    pub family: Family,
    /// Samples per second.
    pub samples_per_second: f64,
    /// The objective.
    pub seconds_per_sample: f64,
}

impl Left {
    fn of(family: Family, offer: &Offer) -> Self {
        Self {
            family,
            samples_per_second: offer.samples_per_second,
            seconds_per_sample: offer.seconds_per_sample,
        }
    }
}

/// What is left without each of the devices. Of more than [`MOST_ANEW`] devices only the family that is the best is planned without
/// one: a pipeline near the lost device; nothing is said of islands.
///
/// # Errors
/// Figures that cannot be.
pub fn losses(
    problem: &Problem,
    settings: &Settings,
    choice: &Choice,
) -> Result<Vec<Loss>, PlanError> {
    problem.check_figures()?;
    let Some((family, offer)) = choice.best() else {
        return Ok(Vec::new());
    };
    let n = problem.devices.len();
    let then = |device: usize| {
        if offer.roles.iter().all(|role| role.device != device) {
            return Ok(Left::of(family, offer));
        }
        let Some(rest) = problem.without(device) else {
            let what = "it is the only device, or the data is on it alone";
            return Err(PlanError::Device { device, what });
        };
        if n <= MOST_ANEW {
            let choice = choose(&rest, settings)?;
            let (family, offer) = choice.best().ok_or(PlanError::Unlinked)?;
            return Ok(Left::of(family, offer));
        }
        let left = match &offer.arrangement {
            Arrangement::Stages(groups) => {
                let near = replan(problem, groups, device)?.prediction;
                let samples = near.samples_per_second * near.step_seconds;
                return Ok(Left {
                    family,
                    samples_per_second: near.samples_per_second,
                    seconds_per_sample: near.step_seconds / samples.max(1.0),
                });
            }
            Arrangement::Tiers(_) => tiered::plan(&rest, settings),
            _ => exchange::plan(&rest, settings),
        };
        let offer = left.map_err(|refusal| match refusal {
            Refusal::Plan(error) => error,
            _ => PlanError::Unlinked,
        })?;
        Ok(Left::of(family, &offer))
    };
    let is_told = n <= MOST_ANEW || !matches!(offer.arrangement, Arrangement::Islands(_));
    let loss = |device| Loss {
        device,
        then: then(device),
    };
    Ok((0..n).filter(|_| is_told).map(loss).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Work;
    use crate::plan::work::tests::{even, work};

    /// Two equal devices and one a hundred times slower; four blocks with little to send and much to reduce.
    fn problem() -> Problem {
        let (mut devices, links) = even(3);
        devices[2].capacity = 100.0;
        let mut problem = Problem {
            data: Data::Everywhere,
            least_samples: 1,
            work: Work {
                micro_batch: 2,
                ..work(&[1.0; 4], 8)
            },
            devices,
            links,
        };
        problem.links.rate = vec![vec![100.0; 3]; 3];
        for block in &mut problem.work.profile.blocks {
            block.parameter_bytes = 100_000;
        }
        problem
    }

    fn best(problem: &Problem) -> (Choice, Vec<Idle>) {
        let choice = choose(problem, &Settings::default()).unwrap();
        let (_, offer) = choice.best().unwrap();
        let idle = idle(problem, &Settings::default(), offer).unwrap();
        (choice, idle)
    }

    #[test]
    fn a_device_that_would_slow_the_mesh_is_told_by_how_much() {
        let (choice, idle) = best(&problem());
        let (family, offer) = choice.best().unwrap();
        assert_eq!(family, Family::Pipeline, "{choice:?}");
        let [Idle { device: 2, why }] = idle[..] else {
            panic!("{idle:?}")
        };
        let WhyIdle::Slower { with, without } = why else {
            panic!("{why:?}")
        };
        assert_eq!(without, offer.samples_per_second);
        assert!(with > 0.0 && with < without / 5.0, "{with} {without}");
    }

    #[test]
    fn one_without_memory_or_links_is_told_so() {
        let mut problem = problem();
        problem.devices[2].memory_bytes = 40;
        let (_, idle) = best(&problem);
        assert!(
            matches!(idle[0].why, WhyIdle::NoRoom { has: 40, needs } if needs > 40),
            "{idle:?}"
        );
        problem.devices[2].memory_bytes = u64::MAX;
        for other in 0..2 {
            (problem.links.rate[other][2], problem.links.rate[2][other]) = (0.0, 0.0);
        }
        let (_, idle) = best(&problem);
        assert_eq!(idle[0].why, WhyIdle::Unlinked);
    }

    #[test]
    fn what_is_left_without_a_device_is_the_best_plan_of_the_others() {
        let problem = problem();
        let (choice, _) = best(&problem);
        let (family, offer) = choice.best().unwrap();
        let losses = losses(&problem, &Settings::default(), &choice).unwrap();
        assert_eq!(losses[2].then, Ok(Left::of(family, offer)));
        let rest = choose(&problem.without(0).unwrap(), &Settings::default()).unwrap();
        let (family, offer) = rest.best().unwrap();
        assert_eq!(losses[0].then, Ok(Left::of(family, offer)));
        // Of many devices a pipeline is planned anew near the lost one.
        let mut many = problem.clone();
        for _ in 0..MOST_ANEW {
            let n = many.devices.len();
            let slow = many.devices[2].clone();
            many = many
                .with(slow, &vec![[100.0; 2]; n], &vec![[0.0; 2]; n])
                .unwrap();
        }
        let (choice, _) = best(&many);
        let losses = super::losses(&many, &Settings::default(), &choice).unwrap();
        assert_eq!(losses.len(), 3 + MOST_ANEW);
        let now = choice.best().unwrap().1.seconds_per_sample;
        assert!(losses[0].then.as_ref().unwrap().seconds_per_sample > now);
        let mut alone = problem.without(2).unwrap().without(1).unwrap();
        alone.devices[0].name = "last".into();
        let choice = choose(&alone, &Settings::default()).unwrap();
        let losses = super::losses(&alone, &Settings::default(), &choice).unwrap();
        assert!(losses[0].then.is_err());
    }
}

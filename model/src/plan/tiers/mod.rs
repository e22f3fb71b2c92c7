//! Layers and samples over three tiers (HierTrain: Liu, Chen, Zhou and Ling 2020, "hybrid parallelism"): one tier holds the whole
//! model, the two others only its first blocks, and each takes part of the samples.
//!
//! ```text
//! long   b_l samples: blocks 0..m_l ─────────────┐
//! short  b_s samples: blocks 0..m_s ─┐           │
//! whole  b_o samples: blocks 0..m_s ─┴ m_s..m_l ─┴ m_l..N, loss, and the same way back
//! ```
//!
//! The cost is the paper's: three phases forward, three backward, then gradients of shared blocks go to the whole model and come
//! back. It is minimised exactly over all integers: which tier has which role, `m_s <= m_l`, and the samples. Whatever is left
//! out is so because a bound on it is no shorter than what is known, but of large problems, where trying ends after some three
//! million ways. Deviation: a tier may have several peers, which divide its
//! samples by speed and reduce gradients among each other; what passes between peers of one tier in a phase costs nothing. All
//! samples of a step are computed at once, as in the paper.

mod cost;
mod search;
mod roles;
mod stages;

use serde::{Deserialize, Serialize};

use super::costs::Costs;
use super::problem::Problem;
use super::tier::Tier;
use super::work::{Held, PlanError};
use cost::{Mesh, Way};
pub(crate) use roles::{TierRole, roles};
pub use stages::tier_stages;

/// What a tier does that does not hold the whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begins {
    /// Which tier.
    pub tier: Tier,
    /// It trains so many first blocks, at least one,
    pub n_blocks: usize,
    /// with so many samples of a step, at least one.
    pub samples: usize,
}

/// Roles, blocks and samples of a step, and its time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tiered {
    /// The tier that holds the whole model (worker_o).
    pub whole: Tier,
    /// Samples that begin there.
    pub samples: usize,
    /// The tier that trains fewer blocks (worker_s).
    pub short: Option<Begins>,
    /// The tier that trains more (worker_l); if only one does, this one.
    pub long: Option<Begins>,
    /// Seconds of a step.
    pub step_seconds: f64,
}

/// What plans over tiers are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierBaseline {
    /// All samples go to one tier, which trains alone.
    AllAt(Tier),
    /// First blocks where the data is, the others in the cloud (JointDNN).
    JointDnn,
    /// First blocks at the edge, the others in the cloud, activations and gradients between them in 8 bits (JALAD).
    Jalad,
    /// Blocks and samples divided evenly, without regard to what they take: of three tiers the first trains a third of the blocks, the
    /// second two thirds and the third all, on a third of the samples each.
    Equal,
}

/// The fastest step. `tiers` says where each device stands; `private` keeps raw samples on the one that has them.
///
/// # Errors
/// Figures that cannot be; tiers not of every device; no way that fits into memory.
pub fn tiers(problem: &Problem, tiers: &[Tier], private: bool) -> Result<Tiered, PlanError> {
    let costs = checked(problem, tiers)?;
    let mesh = Mesh::new(&costs, tiers, private);
    mesh.search().ok_or_else(|| nothing(problem))
}

/// The plan of a baseline, by the same cost; as fast as its family can be.
///
/// # Errors
/// As [`tiers`], or a tier that nobody is of.
pub fn tier_baseline(
    problem: &Problem,
    tiers: &[Tier],
    baseline: TierBaseline,
) -> Result<Tiered, PlanError> {
    let costs = checked(problem, tiers)?;
    let mesh = Mesh::new(&costs, tiers, false);
    let pool = |tier: Tier| mesh.pools.iter().position(|pool| pool.tier == tier);
    let cut = |from: Option<usize>, bits: f64| {
        let (from, to) = (from?, pool(Tier::Cloud)?);
        let ways = (0..=costs.n_blocks()).filter_map(|n_blocks| {
            let way = if from == to || n_blocks == 0 {
                Way::alone(to)
            } else if n_blocks == costs.n_blocks() {
                Way::alone(from)
            } else {
                let samples = mesh.batch;
                Way {
                    long: Some((from, n_blocks, samples)),
                    ..Way::alone(to)
                }
            };
            Some((mesh.seconds(&way, bits / 32.0)?, way))
        });
        ways.min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let found = match baseline {
        TierBaseline::AllAt(tier) => pool(tier)
            .map(Way::alone)
            .and_then(|way| Some((mesh.seconds(&way, 1.0)?, way))),
        TierBaseline::Equal => {
            let way = mesh.equal();
            mesh.seconds(&way, 1.0).map(|seconds| (seconds, way))
        }
        TierBaseline::JointDnn => cut(mesh.source.or_else(|| pool(Tier::Device)), 32.0),
        TierBaseline::Jalad => cut(pool(Tier::Edge), 8.0),
    };
    let found = found.filter(|(seconds, _)| seconds.is_finite());
    found
        .map(|(seconds, way)| mesh.told(&way, seconds))
        .ok_or_else(|| nothing(problem))
}

/// A plan by numbers of pools; none if a tier of it has no devices, or it has too many blocks.
fn way_of(mesh: &Mesh<'_>, plan: &Tiered) -> Option<Way> {
    let pool = |tier: Tier| mesh.pools.iter().position(|pool| pool.tier == tier);
    let begins = |begins: Option<Begins>| match begins {
        None => Some(None),
        Some(begins) => pool(begins.tier)
            .filter(|_| begins.n_blocks <= mesh.costs.n_blocks())
            .map(|pool| Some((pool, begins.n_blocks, begins.samples))),
    };
    Some(Way {
        whole: pool(plan.whole)?,
        short: begins(plan.short)?,
        long: begins(plan.long)?,
    })
}

fn checked<'p>(problem: &'p Problem, tiers: &[Tier]) -> Result<Costs<'p>, PlanError> {
    problem.check()?;
    if tiers.len() != problem.devices.len() {
        let what = "the tiers do not name one for every device";
        return Err(PlanError::Device {
            device: tiers.len(),
            what,
        });
    }
    Ok(problem.costs())
}

fn nothing(problem: &Problem) -> PlanError {
    let costs = problem.costs();
    let n_blocks = costs.n_blocks();
    let memory = problem.devices.iter().map(|device| device.memory_bytes);
    PlanError::ModelTooLarge {
        needs: costs.memory(&(0..n_blocks), problem.least_samples, Held::LEAST, false),
        available: memory.fold(0, u64::saturating_add),
        block: n_blocks - 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::Data;
    use crate::plan::hybrid::drawn;

    const THREE: [Tier; 3] = [Tier::Device, Tier::Edge, Tier::Cloud];

    /// Every way there is.
    fn brute(mesh: &Mesh<'_>) -> Option<f64> {
        let (n, batch) = (mesh.costs.n_blocks(), mesh.batch);
        let pools = 0..mesh.pools.len();
        let mut best = f64::INFINITY;
        for whole in pools.clone() {
            best = best.min(
                mesh.seconds(&Way::alone(whole), 1.0)
                    .unwrap_or(f64::INFINITY),
            );
            for long in pools.clone().filter(|long| *long != whole) {
                for (m_l, b_l) in (1..=n).flat_map(|m| (1..=batch).map(move |b| (m, b))) {
                    let way = Way {
                        long: Some((long, m_l, b_l)),
                        ..Way::alone(whole)
                    };
                    best = best.min(mesh.seconds(&way, 1.0).unwrap_or(f64::INFINITY));
                    for short in pools
                        .clone()
                        .filter(|short| *short != whole && *short != long)
                    {
                        for (m_s, b_s) in
                            (1..=m_l).flat_map(|m| (1..=batch - b_l).map(move |b| (m, b)))
                        {
                            let way = Way {
                                short: Some((short, m_s, b_s)),
                                ..way
                            };
                            best = best.min(mesh.seconds(&way, 1.0).unwrap_or(f64::INFINITY));
                        }
                    }
                }
            }
        }
        best.is_finite().then_some(best)
    }

    /// A slow device with the data, an edge seven times and a cloud seventeen times as fast, `mbit` between the last two.
    fn paper(mbit: f64) -> Problem {
        let mut problem = drawn(1, 3, 6, 8, 1);
        problem.data = Data::At(0);
        problem.least_samples = 1;
        for (device, capacity) in problem.devices.iter_mut().zip([16.7, 2.5, 1.0]) {
            (device.capacity, device.times, device.memory_bytes) = (capacity, None, u64::MAX);
        }
        let (lan, wan) = (1000.0, 20.0 * mbit);
        problem.links.rate = vec![
            vec![0.0, lan, wan],
            vec![lan, 0.0, wan],
            vec![wan, wan, 0.0],
        ];
        problem.links.latency.clear();
        problem
    }

    #[test]
    fn no_baseline_is_ever_better() {
        for mbit in [0.1, 1.0, 5.0, 20.0, 100.0, 1000.0] {
            let problem = paper(mbit);
            let plan = tiers(&problem, &THREE, false).unwrap();
            let all = THREE.map(TierBaseline::AllAt);
            for baseline in all.into_iter().chain([TierBaseline::JointDnn]) {
                let other = tier_baseline(&problem, &THREE, baseline).unwrap();
                assert!(
                    plan.step_seconds <= other.step_seconds * 1.000001,
                    "{mbit} {baseline:?} {other:?} {plan:?}"
                );
            }
        }
        let slow = tiers(&paper(0.01), &THREE, false).unwrap();
        let uses_cloud = |plan: &Tiered| {
            let begins = plan.short.iter().chain(&plan.long);
            plan.whole == Tier::Cloud || begins.into_iter().any(|begins| begins.tier == Tier::Cloud)
        };
        assert!(!uses_cloud(&slow), "{slow:?}");
        assert!(uses_cloud(&tiers(&paper(10_000.0), &THREE, false).unwrap()));
    }

    #[test]
    fn private_samples_stay_where_they_are_and_that_costs() {
        let mut problem = paper(5.0);
        let open = tiers(&problem, &THREE, false).unwrap();
        let private = tiers(&problem, &THREE, true).unwrap();
        assert!(private.step_seconds > open.step_seconds);
        let begins: usize = [private.short, private.long]
            .into_iter()
            .flatten()
            .map(|begins| {
                assert_eq!(begins.tier, Tier::Device);
                begins.samples
            })
            .sum();
        let at_device = if private.whole == Tier::Device {
            private.samples
        } else {
            0
        };
        assert_eq!(begins + at_device, 8);
        // Nor to another peer of the same tier.
        let with_peer = [Tier::Device, Tier::Device, Tier::Cloud];
        problem.devices[1].capacity = 0.1;
        let alone = tiers(&problem, &with_peer, true).unwrap();
        let together = tiers(&problem, &with_peer, false).unwrap();
        assert!(alone.step_seconds > together.step_seconds);
    }

    #[test]
    fn tiers_that_do_not_fit_are_an_error() {
        let mut problem = paper(5.0);
        assert!(tiers(&problem, &THREE[..2], false).is_err());
        for device in &mut problem.devices {
            device.memory_bytes = 1;
        }
        let error = tiers(&problem, &THREE, false).unwrap_err();
        assert!(matches!(error, PlanError::ModelTooLarge { .. }));
        let edge = TierBaseline::AllAt(Tier::Edge);
        let nobody = [Tier::Device, Tier::Device, Tier::Cloud];
        assert!(tier_baseline(&paper(5.0), &nobody, edge).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn nothing_is_better_than_what_is_found(
            seed in 0u64..100_000,
            n_devices in 2usize..5,
            private: bool,
        ) {
            let problem = drawn(seed, n_devices, 4, 5, 1);
            let of: Vec<Tier> = (0..n_devices).map(|device| THREE[device.min(2)]).collect();
            let costs = problem.costs();
            let mesh = Mesh::new(&costs, &of, private);
            match (brute(&mesh), tiers(&problem, &of, private)) {
                (Some(best), Ok(plan)) => prop_assert!((plan.step_seconds - best).abs() < 1e-9 * best, "{} {:?}", best, plan),
                (None, Err(_)) => {}
                (best, plan) => prop_assert!(false, "{:?} {:?}", best, plan),
            }
        }
    }
}

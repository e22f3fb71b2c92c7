//! A plan over tiers as stages of groups, which the runtime of hybrids runs: the device that holds the whole model hosts all of them.
//!
//! ```text
//! 0..m_s     long, short, whole      each its own samples
//! m_s..m_l   long, whole             the short tier's samples go on with the whole model
//! m_l..N     whole
//! ```
//!
//! In this order every sample stays with its device where it can.

use super::cost::{Mesh, Way};
use super::{Tiered, checked, nothing, way_of};
use crate::plan::group::{Group, Share};
use crate::plan::problem::Problem;
use crate::plan::tier::Tier;
use crate::plan::work::PlanError;

/// The stages of `plan`, as [`price`](crate::plan::price) takes them: one micro-batch is all samples of a step.
///
/// # Errors
/// A step of several micro-batches, tiers not of every device, a plan that is none of this problem.
pub fn tier_stages(
    problem: &Problem,
    tiers: &[Tier],
    private: bool,
    plan: &Tiered,
) -> Result<Vec<Group>, PlanError> {
    let costs = checked(problem, tiers)?;
    if costs.work.n_micro != 1 {
        return Err(PlanError::Step {
            n_micro: costs.work.n_micro,
            micro_batch: costs.work.micro_batch,
        });
    }
    let mesh = Mesh::new(&costs, tiers, private);
    let way = way_of(&mesh, plan).filter(|way| mesh.seconds(way, 1.0).is_some());
    let way = way.ok_or_else(|| nothing(problem))?;
    Ok(mesh.stages(&way))
}

impl Mesh<'_> {
    fn stages(&self, way: &Way) -> Vec<Group> {
        let n = self.costs.n_blocks();
        let (m_s, b_s) = way.short.map_or((0, 0), |(_, blocks, n)| (blocks, n));
        let (m_l, b_l) = way.long.map_or((m_s, 0), |(_, blocks, n)| (blocks, n));
        let b_o = self.batch - b_s - b_l;
        let long = way.long.map(|(pool, _, samples)| (pool, samples));
        let short = way.short.map(|(pool, _, samples)| (pool, samples));
        let whole = |samples: usize| Some((way.whole, samples));
        let stages = [
            (0..m_s, vec![long, short, whole(b_o)]),
            (m_s..m_l, vec![long, whole(b_o + b_s)]),
            (m_l..n, vec![whole(self.batch)]),
        ];
        let shares = |(pool, samples): (usize, usize)| {
            let pool = &self.pools[pool];
            let each = pool.devices.iter().zip(&pool.divided[samples]);
            each.filter(|(_, samples)| **samples > 0)
                .map(|(device, samples)| Share {
                    device: *device,
                    samples: *samples,
                })
        };
        let stages = stages.into_iter().filter(|(blocks, _)| !blocks.is_empty());
        stages
            .map(|(blocks, hosts)| Group {
                blocks,
                shares: hosts.into_iter().flatten().flat_map(shares).collect(),
                in_flight: 1,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::hybrid::drawn;
    use crate::plan::tiers::{Begins, tiers};
    use crate::plan::{TierBaseline, price, tier_baseline};

    #[test]
    fn the_stages_of_every_plan_can_be_priced_and_take_about_as_long() {
        let (mut n_planned, mut n_shared) = (0, 0);
        for seed in 0..80 {
            let problem = drawn(seed, 4, 5, 12, 1);
            let of = [Tier::Device, Tier::Edge, Tier::Edge, Tier::Cloud];
            let Ok(plan) = tiers(&problem, &of, seed % 3 == 0) else {
                continue;
            };
            n_planned += 1;
            let stages = tier_stages(&problem, &of, seed % 3 == 0, &plan).unwrap();
            let priced = price(&problem, &stages).unwrap();
            n_shared += usize::from(stages.len() > 1);
            // The whole model's tier hosts the last blocks.
            let last = stages.last().unwrap();
            assert!(
                last.shares
                    .iter()
                    .all(|share| of[share.device] == plan.whole
                        || stages.len() == 1
                        || last.blocks.end == 5)
            );
            let ratio = priced.step_seconds / plan.step_seconds;
            // Gradients are added up otherwise than in the paper, and raw samples of a tier are not all sent by one device.
            assert!((0.3..3.0).contains(&ratio), "{seed} {ratio} {plan:?}");
        }
        assert!(n_planned > 40 && n_shared > 10, "{n_planned} {n_shared}");
    }

    #[test]
    fn samples_stay_with_their_device_where_they_can() {
        let mut problem = drawn(3, 3, 6, 8, 1);
        problem.least_samples = 1;
        for device in &mut problem.devices {
            device.memory_bytes = u64::MAX;
        }
        let of = [Tier::Device, Tier::Edge, Tier::Cloud];
        let begins = |tier, n_blocks, samples| {
            Some(Begins {
                tier,
                n_blocks,
                samples,
            })
        };
        let plan = Tiered {
            whole: Tier::Cloud,
            samples: 3,
            short: begins(Tier::Device, 1, 2),
            long: begins(Tier::Edge, 4, 3),
            step_seconds: 1.0,
        };
        let stages = tier_stages(&problem, &of, false, &plan).unwrap();
        let told = |group: &Group| {
            let shares = group
                .shares
                .iter()
                .map(|share| (share.device, share.samples));
            (group.blocks.clone(), shares.collect::<Vec<_>>())
        };
        let told: Vec<_> = stages.iter().map(told).collect();
        let expected = [
            (0..1, vec![(1, 3), (0, 2), (2, 3)]),
            (1..4, vec![(1, 3), (2, 5)]),
            (4..6, vec![(2, 8)]),
        ];
        assert_eq!(told, expected);
        let all_edge = tier_baseline(&problem, &of, TierBaseline::AllAt(Tier::Edge)).unwrap();
        let alone = tier_stages(&problem, &of, false, &all_edge).unwrap();
        assert_eq!((alone.len(), alone[0].shares[0].device), (1, 1));
        problem.work.n_micro = 2;
        assert!(tier_stages(&problem, &of, false, &plan).is_err());
    }
}

//! Plans over tiers ([`skein_model::plan::tiers`], HierTrain): where candidates stand, and the stages of the best plan, or of one that it
//! is compared with.

use skein_gossip::pipeline::agreement::Candidate;
use skein_gossip::pipeline::message;
use skein_model::plan::{self, Data, Group, PlanError, Problem, Tier, TierBaseline, Tiered};

use super::times;

/// A peer of which nobody says where it stands is in the cloud if it takes at most so many times what the fastest one takes,
const CLOUD: f32 = 2.0;
/// and at the edge if it takes at most so many times that; the paper's are some 1 : 3 : 17.
const EDGE: f32 = 8.0;

/// What every plan is at least as good as.
const SIMPLE: [TierBaseline; 4] = [
    TierBaseline::AllAt(Tier::Device),
    TierBaseline::AllAt(Tier::Edge),
    TierBaseline::AllAt(Tier::Cloud),
    TierBaseline::JointDnn,
];

/// Where each of these stands: as its user says; else with the devices if it holds the data and others do not; else by its speed. Where
/// nobody says anything and all come out alike, the slowest is a device, the fastest the cloud.
pub(super) fn standing(candidates: &[&Candidate]) -> Vec<Tier> {
    let paces: Vec<f32> = candidates.iter().map(|one| times::pace(one)).collect();
    let fastest = paces.iter().copied().fold(f32::INFINITY, f32::min);
    let all_draw = candidates.iter().all(|one| one.has_data);
    let stands = |(candidate, pace): (&&Candidate, &f32)| match named(candidate) {
        Some(message::Tier::Device) => Tier::Device,
        Some(message::Tier::Edge) => Tier::Edge,
        Some(message::Tier::Cloud) => Tier::Cloud,
        None if candidate.has_data && !all_draw => Tier::Device,
        None if *pace <= CLOUD * fastest => Tier::Cloud,
        None if *pace <= EDGE * fastest => Tier::Edge,
        None => Tier::Device,
    };
    let mut all: Vec<Tier> = candidates.iter().zip(&paces).map(stands).collect();
    let is_named = candidates.iter().any(|one| named(one).is_some());
    let are_alike = all.iter().all(|tier| Some(tier) == all.first());
    if !is_named && are_alike && all.len() > 1 {
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by(|a, b| paces[*b].total_cmp(&paces[*a]));
        all.fill(Tier::Edge);
        all[order[0]] = Tier::Device;
        all[order[order.len() - 1]] = Tier::Cloud;
    }
    all
}

/// Where its user says that a peer stands.
pub(super) fn named(candidate: &Candidate) -> Option<message::Tier> {
    candidate.profile.as_ref()?.tier
}

/// Seconds of a step and stages of the best plan, or of `baseline`. With `private` no raw sample leaves its peer.
///
/// # Errors
/// In words for the user: why there is none.
pub(super) fn stages(
    problem: &Problem,
    baseline: Option<TierBaseline>,
    private: bool,
) -> Result<(f64, Vec<Group>), String> {
    let tiers: Option<Vec<Tier>> = problem.devices.iter().map(|device| device.tier).collect();
    let tiers = tiers.ok_or("not every peer has a tier")?;
    let words = |error: PlanError| error.to_string();
    let priced = |plan: Result<Tiered, PlanError>| {
        let groups = plan::tier_stages(problem, &tiers, false, &plan.map_err(words)?);
        let groups = groups.map_err(words)?;
        if private && sends_samples(problem, &groups) {
            return Err("it would send private samples away from the peer that has them".into());
        }
        let seconds = plan::price(problem, &groups).map_err(words)?.step_seconds;
        Ok((seconds, groups))
    };
    match baseline {
        // The paper's cost is not the schedule's, by which simple plans may be as good.
        None => {
            let simple = SIMPLE.map(|simple| plan::tier_baseline(problem, &tiers, simple));
            let all = [plan::tiers(problem, &tiers, private)].into_iter();
            let all: Vec<_> = all.chain(simple).map(priced).collect();
            let best = all.iter().filter_map(|found| found.as_ref().ok());
            let best = best.min_by(|a, b| a.0.total_cmp(&b.0)).cloned();
            let first = all.into_iter().next();
            best.map_or_else(|| first.unwrap_or_else(|| Err("no plan".into())), Ok)
        }
        Some(TierBaseline::Jalad) => {
            // It counts bytes of f32, and these are of int8 already.
            let mut unpacked = problem.clone();
            for block in &mut unpacked.work.profile.blocks {
                block.output_bytes = block.output_bytes.saturating_mul(4);
            }
            priced(plan::tier_baseline(&unpacked, &tiers, TierBaseline::Jalad))
        }
        Some(other) => priced(plan::tier_baseline(problem, &tiers, other)),
    }
}

/// Whether raw samples go from the peer that has them to another.
pub(super) fn sends_samples(problem: &Problem, groups: &[Group]) -> bool {
    let Data::At(source) = problem.data else {
        return false;
    };
    let mut first = groups.iter().take(1).flat_map(Group::devices);
    first.any(|device| device != source)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use skein_gossip::ids::PeerId;
    use skein_gossip::pipeline::message::{BlockTime, Profile};

    use super::*;

    fn candidate(us: f32, has_data: bool, tier: Option<message::Tier>) -> Candidate {
        let time = BlockTime {
            forward_us: us,
            backward_us: us,
        };
        Candidate {
            peer: PeerId([us as u8; 32]),
            has_data,
            profile: Some(Arc::new(Profile {
                blocks: vec![time; 2],
                tier,
                ..Profile::default()
            })),
            slowdown: 1.0,
        }
    }

    fn stands(all: &[(f32, bool, Option<message::Tier>)]) -> Vec<Tier> {
        let all = all
            .iter()
            .map(|(us, has_data, tier)| candidate(*us, *has_data, *tier));
        let all: Vec<Candidate> = all.collect();
        standing(&all.iter().collect::<Vec<_>>())
    }

    #[test]
    fn peers_stand_where_their_users_say_else_by_data_and_speed() {
        use message::Tier as Said;
        let said = stands(&[
            (1.0, true, Some(Said::Device)),
            (9.0, true, Some(Said::Cloud)),
        ]);
        assert_eq!(said, [Tier::Device, Tier::Cloud]);
        let inferred = stands(&[(1.0, true, None), (6.0, true, None), (17.0, true, None)]);
        assert_eq!(inferred, [Tier::Cloud, Tier::Edge, Tier::Device]);
        let holder = stands(&[(1.0, true, None), (2.0, false, None)]);
        assert_eq!(holder, [Tier::Device, Tier::Cloud]);
        let alike = stands(&[(1.0, true, None), (1.2, true, None), (1.1, true, None)]);
        assert_eq!(alike, [Tier::Cloud, Tier::Device, Tier::Edge]);
        let mixed = stands(&[(1.0, true, Some(Said::Edge)), (1.0, true, Some(Said::Edge))]);
        assert_eq!(mixed, [Tier::Edge, Tier::Edge]);
        assert_eq!(stands(&[(1.0, true, None)]), [Tier::Cloud]);
    }

    /// A device, an edge and a cloud with 1, 4 and 16 times its speed; the device has the data.
    fn three(wan: f64) -> Problem {
        let block = plan::BlockProfile {
            forward: plan::Time::measured([(1, 0.001), (32, 0.032)]),
            backward: plan::Time::measured([(1, 0.002), (32, 0.064)]),
            output_bytes: 4096,
            parameter_bytes: 20_000,
            ..plan::BlockProfile::default()
        };
        let device = |(capacity, tier)| plan::Device {
            capacity,
            tier: Some(tier),
            ..plan::Device::default()
        };
        let lan = 6e6;
        Problem {
            data: Data::At(0),
            least_samples: 1,
            work: plan::Work {
                profile: plan::Profile {
                    input_bytes: 1024,
                    blocks: vec![block; 4],
                },
                micro_batch: 32,
                n_micro: 1,
                recompute: false,
                hides_transfers: true,
                stashing: plan::Stashing::None,
            },
            devices: [(16.0, Tier::Device), (4.0, Tier::Edge), (1.0, Tier::Cloud)]
                .map(device)
                .to_vec(),
            links: plan::Links {
                rate: vec![
                    vec![0.0, lan, wan],
                    vec![lan, 0.0, wan],
                    vec![wan, wan, 0.0],
                ],
                latency: Vec::new(),
                shared: false,
            },
        }
    }

    #[test]
    fn no_plan_is_slower_than_those_it_is_compared_with() {
        let mut used = Vec::new();
        for wan in [1e3, 1e4, 1e5, 1e6, 1e7] {
            let problem = three(wan);
            let (own, groups) = stages(&problem, None, false).unwrap();
            let all = SIMPLE.into_iter().chain([TierBaseline::Equal]);
            for baseline in all {
                let (seconds, _) = stages(&problem, Some(baseline), false).unwrap();
                assert!(
                    own <= seconds * 1.000001,
                    "{wan} {baseline:?}: {own} {seconds}"
                );
            }
            stages(&problem, Some(TierBaseline::Jalad), false).unwrap();
            used.push(
                groups
                    .iter()
                    .flat_map(Group::devices)
                    .any(|device| device == 2),
            );
        }
        assert!(
            !used[0] && used[4],
            "the cloud is of use where it can be reached: {used:?}"
        );
    }

    #[test]
    fn private_samples_are_sent_by_no_plan() {
        let problem = three(1e7);
        let (open, groups) = stages(&problem, None, false).unwrap();
        assert!(sends_samples(&problem, &groups));
        let (private, groups) = stages(&problem, None, true).unwrap();
        assert!(!sends_samples(&problem, &groups) && private > open);
        let all_cloud = Some(TierBaseline::AllAt(Tier::Cloud));
        assert!(
            stages(&problem, all_cloud, true)
                .unwrap_err()
                .contains("private")
        );
    }
}

//! A stage hosted by a group of devices that work data-parallel inside: who computes how many samples of each micro-batch, how
//! deep it may warm up, and what reducing its gradients takes (Asteroid: Ye et al., MobiCom 2024, section "planner": algorithm
//! 1, equations 3 and 9).
//!
//! Samples lie in the group in the order of its shares: the first member has the first ones. Deviations from the paper: shares
//! are moved one sample at a time, which is exact where any number of samples will do; the memory check is that of the stage's
//! true position; a device for which no sample is left is not in the group.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::costs::Costs;
use super::work::Placement;

/// What one member of a group computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Share {
    /// Number of the device.
    pub device: usize,
    /// Its samples of each micro-batch, at least one.
    pub samples: usize,
}

/// A stage and its hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its blocks, at least one.
    pub blocks: Range<usize>,
    /// Who computes how much, at least one; together a micro-batch.
    pub shares: Vec<Share>,
    /// Micro-batches in flight at most: the depth of its warm-up (K_p).
    pub in_flight: usize,
}

/// How a group adds its gradients up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Pieces go around: 2 (n - 1) / n of the gradient over every link, and as many delays as pieces.
    Ring,
    /// Every member sends all others its whole gradient: more bytes, one delay.
    Direct,
}

impl Group {
    /// Stages of one device each.
    pub(crate) fn alone(costs: &Costs<'_>, placements: &[Placement]) -> Vec<Self> {
        let n = placements.len();
        let group = |(position, placement): (usize, &Placement)| Self {
            blocks: placement.blocks.clone(),
            shares: vec![Share {
                device: placement.device,
                samples: costs.work.micro_batch,
            }],
            in_flight: costs.work.in_flight(position, n),
        };
        placements.iter().enumerate().map(group).collect()
    }

    /// The devices, in the order of their samples.
    pub fn devices(&self) -> impl Iterator<Item = usize> {
        self.shares.iter().map(|share| share.device)
    }

    /// Seconds that the slowest member takes forward and backward.
    pub(crate) fn seconds(&self, costs: &Costs<'_>) -> [f64; 2] {
        let mut most = [0.0f64; 2];
        for share in &self.shares {
            let [forward, backward, _] = costs.seconds(share.device, &self.blocks, share.samples);
            most = [most[0].max(forward), most[1].max(backward)];
        }
        most
    }

    /// Bytes that a member takes.
    pub(crate) fn memory(&self, costs: &Costs<'_>, share: &Share) -> u64 {
        let in_group = self.shares.len() > 1;
        costs.memory(&self.blocks, share.samples, self.in_flight, in_group)
    }

    /// Whether all members have room and samples enough.
    pub(crate) fn fits(&self, costs: &Costs<'_>) -> bool {
        self.shares.iter().all(|share| {
            share.samples >= costs.least_samples
                && self.memory(costs, share) <= costs.devices[share.device].memory_bytes
        })
    }

    /// As deep as memory lets it, up to `rule`; none if it does not fit at all.
    pub(crate) fn warmed_up(mut self, costs: &Costs<'_>, rule: usize) -> Option<Self> {
        let in_group = self.shares.len() > 1;
        let room = |share: &Share| {
            if share.samples < costs.least_samples {
                return 0;
            }
            costs.most_in_flight(share.device, (&self.blocks, share.samples), in_group, rule)
        };
        self.in_flight = self.shares.iter().map(room).min()?;
        (self.in_flight > 0).then_some(self)
    }

    /// What reducing its gradients takes, and how; nothing for one device.
    pub(crate) fn reduction(&self, costs: &Costs<'_>) -> Option<(Reduction, f64)> {
        let devices: Vec<usize> = self.devices().collect();
        let pace = Pace::of(costs, &devices);
        (devices.len() > 1).then(|| pace.reduction(costs.parameter_bytes(&self.blocks)))
    }
}

/// What the links inside a group let through, whatever the bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    n: usize,
    latency: f64,
    /// Seconds per byte over its slowest link, and for one device to send all others one.
    slowest: f64,
    to_all: f64,
}

impl Pace {
    pub(crate) fn of(costs: &Costs<'_>, devices: &[usize]) -> Self {
        let (mut slowest, mut to_all) = (0.0f64, 0.0f64);
        for device in devices {
            let others = || devices.iter().filter(|other| *other != device);
            let sends = |other: &usize| costs.links.seconds(*device, *other, 1);
            let receives = |other: &usize| costs.links.seconds(*other, *device, 1);
            slowest = others().map(sends).fold(slowest, f64::max);
            to_all = to_all.max(others().map(sends).sum());
            to_all = to_all.max(others().map(receives).sum());
        }
        Self {
            n: devices.len(),
            latency: costs.links.latency,
            slowest,
            to_all,
        }
    }

    /// The faster way to reduce so many bytes, and its seconds.
    pub(crate) fn reduction(&self, bytes: u64) -> (Reduction, f64) {
        if self.n < 2 {
            return (Reduction::Direct, 0.0);
        }
        let others = (self.n - 1) as f64;
        let bytes = bytes as f64;
        let ring = 2.0 * others * (self.latency + bytes / self.n as f64 * self.slowest);
        let direct = self.latency + bytes * self.to_all;
        if ring < direct {
            (Reduction::Ring, ring)
        } else {
            (Reduction::Direct, direct)
        }
    }
}

/// Algorithm 1: `blocks` on these devices, a micro-batch divided such that the slowest is as fast as can be and all have room
/// for up to `rule` micro-batches in flight; of fewer where memory asks for it. None if it does not fit.
pub(crate) fn allocate(
    costs: &Costs<'_>,
    blocks: &Range<usize>,
    devices: &[usize],
    rule: usize,
) -> Option<Group> {
    let in_group = devices.len() > 1;
    let divided = |most: &dyn Fn(usize) -> usize| {
        let shares = divide(costs, blocks, devices, most)?;
        Some(Group {
            blocks: blocks.clone(),
            shares,
            in_flight: 0,
        })
    };
    let free = divided(&|_| usize::MAX)?.warmed_up(costs, rule);
    if let Some(group) = free
        && group.in_flight == rule
    {
        return Some(group);
    }
    let limited = |in_flight: usize| {
        let most = |device| costs.most_samples(device, blocks, in_flight, in_group);
        divided(&most)?.warmed_up(costs, rule)
    };
    (1..=rule).rev().find_map(limited)
}

/// A micro-batch divided by speed (equation 9) below `most` samples per device, then sample by sample from the slowest to the
/// one that is fastest with one more, while the slowest gets faster. None if there is no room for all samples.
fn divide(
    costs: &Costs<'_>,
    blocks: &Range<usize>,
    devices: &[usize],
    most: &dyn Fn(usize) -> usize,
) -> Option<Vec<Share>> {
    let (whole, least) = (costs.work.micro_batch, costs.least_samples);
    let seconds = |device: usize, samples: usize| {
        let [forward, backward, _] = costs.seconds(device, blocks, samples);
        forward + backward
    };
    let mut members: Vec<Member> = devices
        .iter()
        .map(|device| Member {
            device: *device,
            samples: 0,
            most: most(*device).min(whole),
            speed: 1.0 / seconds(*device, whole).max(f64::MIN_POSITIVE),
        })
        .filter(|member| member.most >= least)
        .collect();
    // Phase 1: in proportion to speed, those that are full drop out of the next round.
    let mut left = whole;
    while left > 0 {
        let total: f64 = open(&members).map(|member| member.speed).sum();
        let before = left;
        for member in members
            .iter_mut()
            .filter(|member| member.samples < member.most)
        {
            let fair = (before as f64 * (member.speed / total)) as usize;
            let more = fair.min(member.most - member.samples).min(left);
            member.samples += more;
            left -= more;
        }
        if left == before {
            // Less than one sample for each: one by one to whoever is fastest with it.
            let next = open(&members)
                .map(|member| (seconds(member.device, member.samples + 1), member.device))
                .min_by(|a, b| a.0.total_cmp(&b.0))?;
            let chosen = members.iter_mut().find(|member| member.device == next.1)?;
            chosen.samples += 1;
            left -= 1;
        }
    }
    // Who is left with fewer samples than it can train with gives them up.
    while let Some(at) = members
        .iter()
        .position(|member| (1..least).contains(&member.samples))
    {
        let given = members.remove(at).samples;
        for _ in 0..given {
            let next = open(&members)
                .filter(|member| member.samples >= least)
                .map(|member| (seconds(member.device, member.samples + 1), member.device))
                .min_by(|a, b| a.0.total_cmp(&b.0))?;
            let chosen = members.iter_mut().find(|member| member.device == next.1)?;
            chosen.samples += 1;
        }
    }
    // Phase 2.
    let mut times: Vec<f64> = members
        .iter()
        .map(|member| seconds(member.device, member.samples))
        .collect();
    while let Some(slowest) = (0..members.len()).max_by(|a, b| times[*a].total_cmp(&times[*b])) {
        let of_slowest = members[slowest].samples;
        let may_give = of_slowest > least || (least == 1 && of_slowest == 1);
        let takers = members.iter().enumerate().filter(|(at, member)| {
            *at != slowest
                && member.samples < member.most
                && (member.samples >= least || least == 1)
        });
        let next = takers
            .map(|(at, member)| (seconds(member.device, member.samples + 1), at))
            .min_by(|a, b| a.0.total_cmp(&b.0));
        match next {
            Some((then, at)) if may_give && then < times[slowest] => {
                members[at].samples += 1;
                times[at] = then;
                members[slowest].samples -= 1;
                times[slowest] = seconds(members[slowest].device, of_slowest - 1);
            }
            _ => break,
        }
    }
    let taking = members.iter().filter(|member| member.samples > 0);
    Some(
        taking
            .map(|member| Share {
                device: member.device,
                samples: member.samples,
            })
            .collect(),
    )
}

/// A device while samples are divided.
struct Member {
    device: usize,
    samples: usize,
    most: usize,
    speed: f64,
}

fn open(members: &[Member]) -> impl Iterator<Item = &Member> {
    members.iter().filter(|member| member.samples < member.most)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::time::Time;
    use crate::plan::work::tests::{even, work};
    use crate::plan::{Device, Links, Work};

    fn samples(group: &Group) -> Vec<usize> {
        group.shares.iter().map(|share| share.samples).collect()
    }

    #[test]
    fn samples_follow_speed_and_memory() {
        let work = Work {
            micro_batch: 12,
            ..work(&[1.0; 2], 4)
        };
        let (mut devices, links) = even(3);
        devices[1].capacity = 2.0;
        devices[2].capacity = 4.0;
        let group = allocate(&Costs::new(&work, &devices, &links), &(0..2), &[0, 1, 2], 3).unwrap();
        assert_eq!((samples(&group), group.in_flight), (vec![8, 3, 1], 3));
        // 80 whatever the samples, 40 per sample and micro-batch, 32 per sample: room for three of three.
        devices[0].memory_bytes = 80 + 3 * (3 * 40 + 32);
        let group = allocate(&Costs::new(&work, &devices, &links), &(0..2), &[0, 1, 2], 3).unwrap();
        assert_eq!((samples(&group), group.in_flight), (vec![3, 6, 3], 3));
        // Together they have room for all samples of one micro-batch only.
        devices
            .iter_mut()
            .for_each(|device| device.memory_bytes = 80 + 4 * (2 * 40 + 32));
        let group = allocate(&Costs::new(&work, &devices, &links), &(0..2), &[0, 1, 2], 3).unwrap();
        assert_eq!((samples(&group), group.in_flight), (vec![4, 4, 4], 2));
        devices[0].memory_bytes = 70;
        let costs = Costs::new(&work, &devices, &links);
        assert_eq!(allocate(&costs, &(0..2), &[0, 1, 2], 3), None);
    }

    #[test]
    fn small_gradients_are_reduced_directly_and_large_ones_around_a_ring() {
        let mut work = work(&[1.0; 1], 4);
        let (devices, mut links) = even(4);
        links = Links {
            latency: 0.5,
            ..Links::uniform(links.rate.len(), 100.0, 0.0)
        };
        work.micro_batch = 4;
        let reduced = |work: &Work| {
            let costs = Costs::new(work, &devices, &links);
            let group = allocate(&costs, &(0..1), &[0, 1, 2, 3], 1).unwrap();
            group.reduction(&costs).unwrap()
        };
        // 10 bytes to three others at 100 per second, and one delay.
        assert_eq!(reduced(&work), (Reduction::Direct, 0.8));
        work.profile.blocks[0].parameter_bytes = 1000;
        let (way, seconds) = reduced(&work);
        assert_eq!((way, seconds), (Reduction::Ring, 6.0 * (0.5 + 2.5)));
    }

    #[test]
    fn who_cannot_train_with_the_samples_left_for_it_is_left_out() {
        let work = Work {
            micro_batch: 8,
            ..work(&[1.0; 2], 4)
        };
        let (mut devices, links) = even(3);
        devices[2].capacity = 20.0;
        devices[1].capacity = 3.0;
        let mut costs = Costs::new(&work, &devices, &links);
        costs.least_samples = 2;
        let group = allocate(&costs, &(0..2), &[0, 1, 2], 3).unwrap();
        assert_eq!(samples(&group), [6, 2]);
    }

    proptest! {
        #[test]
        fn no_division_is_faster(
            capacities in proptest::collection::vec(0.5f64..8.0, 3),
            memory in proptest::collection::vec(60u64..700, 3),
            curve in proptest::collection::vec(0.0f64..2.0, 4),
            micro_batch in 1usize..9,
        ) {
            let mut work = Work { micro_batch, ..work(&[1.0; 2], 4) };
            let points = curve.iter().scan(0.0, |sum, more| { *sum += more; Some(*sum) });
            work.profile.blocks[1].forward = Time::measured([1, 2, 4, 8].into_iter().zip(points));
            let (_, links) = even(3);
            let devices: Vec<Device> = capacities.iter().zip(&memory).map(|(capacity, memory_bytes)| Device {
                capacity: *capacity, memory_bytes: *memory_bytes, ..Device::default()
            }).collect();
            let costs = Costs::new(&work, &devices, &links);
            let slowest = |shares: [usize; 3]| {
                let times = shares.iter().enumerate().map(|(device, samples)| {
                    let [forward, backward, _] = costs.seconds(device, &(0..2), *samples);
                    forward + backward
                });
                times.fold(0.0, f64::max)
            };
            let fits = |shares: [usize; 3]| shares.iter().enumerate().all(|(device, samples)| {
                *samples == 0 || costs.memory(&(0..2), *samples, 2, true) <= memory[device]
            });
            let all = (0..=micro_batch).flat_map(|a| (0..=micro_batch - a).map(move |b| [a, b, micro_batch - a - b]));
            let best = all.filter(|shares| fits(*shares)).map(slowest).reduce(f64::min);
            let most = |device| costs.most_samples(device, &(0..2), 2, true);
            let got = divide(&costs, &(0..2), &[0, 1, 2], &most).map(|shares| {
                let mut all = [0; 3];
                shares.iter().for_each(|share| all[share.device] = share.samples);
                assert!(fits(all) && all.iter().sum::<usize>() == micro_batch);
                slowest(all)
            });
            match (best, got) {
                (Some(best), Some(got)) => prop_assert!((got - best).abs() < 1e-9, "{} {}", got, best),
                (best, got) => prop_assert_eq!(best, got),
            }
        }
    }
}

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
use super::work::{Data, Held, Placement};

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
    /// Each member adds up its part of the gradient, and sends the sum to the others: 2 (n - 1) / n of the gradient sent by each, two
    /// delays. A ring sends as much, waits for its slowest link 2 (n - 1) times, and is never faster.
    Shards,
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

    /// Bytes that a member takes, where the first stage has so many micro-batches in flight.
    pub(crate) fn memory(&self, costs: &Costs<'_>, share: &Share, of_first: usize) -> u64 {
        let in_group = self.shares.len() > 1;
        let held = Held {
            in_flight: self.in_flight,
            stashed: costs.work.stashed(self.in_flight, of_first),
        };
        costs.memory(&self.blocks, share.samples, held, in_group)
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

/// Whether all members have room and samples enough.
pub(crate) fn fit(costs: &Costs<'_>, groups: &[Group]) -> bool {
    let of_first = groups.first().map_or(0, |first| first.in_flight);
    let fits = |group: &Group| {
        group.shares.iter().all(|share| {
            share.samples >= costs.least_samples
                && group.memory(costs, share, of_first) <= costs.devices[share.device].memory_bytes
        })
    };
    groups.iter().all(fits)
}

/// What the links inside a group let through, whatever the bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    n: usize,
    /// The longest delay between two of its devices.
    latency: f64,
    /// Seconds for one device to send all others a byte, or to get one from each.
    to_all: f64,
}

impl Pace {
    pub(crate) fn of(costs: &Costs<'_>, devices: &[usize]) -> Self {
        let (mut to_all, mut latency) = (0.0f64, 0.0f64);
        for device in devices {
            let others = || devices.iter().filter(|other| *other != device);
            let sends = |other: &usize| costs.links.seconds(*device, *other, 1);
            let receives = |other: &usize| costs.links.seconds(*other, *device, 1);
            let delays = others().map(|other| costs.links.delay(*device, *other));
            latency = delays.fold(latency, f64::max);
            to_all = to_all.max(others().map(sends).sum());
            to_all = to_all.max(others().map(receives).sum());
        }
        Self {
            n: devices.len(),
            latency,
            to_all,
        }
    }

    /// The faster way to reduce so many bytes, and its seconds.
    pub(crate) fn reduction(&self, bytes: u64) -> (Reduction, f64) {
        if self.n < 2 {
            return (Reduction::Direct, 0.0);
        }
        let bytes = bytes as f64;
        let shards = 2.0 * (self.latency + bytes / self.n as f64 * self.to_all);
        let direct = self.latency + bytes * self.to_all;
        if shards < direct {
            (Reduction::Shards, shards)
        } else {
            (Reduction::Direct, direct)
        }
    }
}

/// Algorithm 1: `blocks` on these devices, a micro-batch divided such that the slowest is as fast as can be and all have room
/// for `depth` micro-batches in flight, or for as many fewer as memory asks for; of `rule` where there is room for more. None if
/// it does not fit.
pub(crate) fn allocate(
    costs: &Costs<'_>,
    blocks: &Range<usize>,
    devices: &[usize],
    (depth, rule): (usize, usize),
) -> Option<Group> {
    let in_group = devices.len() > 1;
    let divided = |most: &dyn Fn(usize) -> usize| {
        let group = Group {
            blocks: blocks.clone(),
            shares: divide(costs, blocks, devices, most)?,
            in_flight: 0,
        };
        group.warmed_up(costs, rule)
    };
    let depth = depth.min(rule);
    // Mostly memory makes no difference.
    let free = divided(&|_| usize::MAX).filter(|group| group.in_flight >= depth);
    let limited = |in_flight: usize| {
        divided(&|device| costs.most_samples(device, blocks, in_flight, in_group))
    };
    free.or_else(|| (1..=depth).rev().find_map(limited))
}

/// A micro-batch divided such that the slowest is as fast as can be, below `most` samples per device. None if there is no room
/// for all samples.
fn divide(
    costs: &Costs<'_>,
    blocks: &Range<usize>,
    devices: &[usize],
    most: &dyn Fn(usize) -> usize,
) -> Option<Vec<Share>> {
    let (whole, least) = (costs.work.micro_batch, costs.least_samples);
    let division = Division { costs, blocks };
    let members: Vec<Member> = devices
        .iter()
        .map(|device| Member {
            device: *device,
            samples: 0,
            most: most(*device).min(whole),
            speed: 1.0 / division.seconds(*device, whole).max(f64::MIN_POSITIVE),
        })
        .filter(|member| member.most >= least)
        .collect();
    if least == 1 {
        return division.divide(members, 0).map(|(_, shares)| shares);
    }
    // Each member takes as many as it must, so not all may be needed: the fastest, as many of them as is best.
    let mut fastest: Vec<usize> = (0..members.len()).collect();
    fastest.sort_by(|a, b| members[*b].speed.total_cmp(&members[*a].speed));
    let among = |n: usize| {
        let chosen = members.iter().enumerate();
        let chosen = chosen.filter(|(at, _)| fastest[..n].contains(at));
        division.divide(chosen.map(|(_, member)| member.clone()).collect(), least)
    };
    let divided = (1..=members.len().min(whole / least)).filter_map(among);
    let best = divided.min_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, shares)| shares)
}

/// A device while samples are divided.
#[derive(Clone)]
struct Member {
    device: usize,
    samples: usize,
    most: usize,
    speed: f64,
}

/// For which blocks a micro-batch is divided.
struct Division<'a> {
    costs: &'a Costs<'a>,
    blocks: &'a Range<usize>,
}

impl Division<'_> {
    fn seconds(&self, device: usize, samples: usize) -> f64 {
        let [forward, backward, _] = self.costs.seconds(device, self.blocks, samples);
        forward + backward
    }

    /// Every member gets `floor` samples, the rest is divided by speed (equation 9), then samples move one by one from the
    /// slowest to the one that is fastest with one more, while the slowest gets faster. Seconds of the slowest, and who has
    /// any.
    fn divide(&self, mut members: Vec<Member>, floor: usize) -> Option<(f64, Vec<Share>)> {
        let mut left = self.costs.work.micro_batch;
        for member in &mut members {
            member.samples = floor;
            left = left.checked_sub(floor)?;
        }
        // Phase 1: in proportion to speed; those that are full drop out of the next turn.
        while left > 0 {
            let has_room = |member: &&mut Member| member.samples < member.most;
            let total: f64 = members.iter_mut().filter(has_room).map(|m| m.speed).sum();
            let before = left;
            for member in members.iter_mut().filter(has_room) {
                let fair = (before as f64 * (member.speed / total)) as usize;
                let more = fair.min(member.most - member.samples).min(left);
                member.samples += more;
                left -= more;
            }
            if left == before {
                // Less than one sample for each.
                let (_, at) = self.taker(&members, None)?;
                members[at].samples += 1;
                left -= 1;
            }
        }
        // Phase 2.
        let of = |member: &Member| self.seconds(member.device, member.samples);
        let mut times: Vec<f64> = members.iter().map(of).collect();
        while let Some(slowest) = (0..members.len()).max_by(|a, b| times[*a].total_cmp(&times[*b]))
        {
            let taker = self.taker(&members, Some(slowest));
            match taker {
                Some((then, at)) if members[slowest].samples > floor && then < times[slowest] => {
                    members[at].samples += 1;
                    times[at] = then;
                    members[slowest].samples -= 1;
                    times[slowest] = of(&members[slowest]);
                }
                _ => break,
            }
        }
        self.near_the_data(&mut members, &mut times, floor);
        let slowest = times.iter().copied().fold(0.0, f64::max);
        let share = |member: &Member| Share {
            device: member.device,
            samples: member.samples,
        };
        let taking = members.iter().filter(|member| member.samples > 0);
        let shares: Vec<Share> = taking.map(share).collect();
        Some((slowest.max(raw(self.costs, self.blocks, &shares)), shares))
    }

    /// The member that has room and is the fastest with one more sample, and its seconds then.
    fn taker(&self, members: &[Member], but: Option<usize>) -> Option<(f64, usize)> {
        let others = members.iter().enumerate();
        let others = others.filter(|(at, member)| Some(*at) != but && member.samples < member.most);
        let then = others.map(|(at, member)| (self.seconds(member.device, member.samples + 1), at));
        then.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// Where raw samples take longer to come than the slowest member computes, those over the slowest link go to who gets them
    /// sooner or has them, while that helps.
    fn near_the_data(&self, members: &mut [Member], times: &mut [f64], floor: usize) {
        let Data::At(source) = self.costs.data else {
            return;
        };
        if self.blocks.start > 0 {
            return;
        }
        let bytes = self.costs.bytes_into(0, 1);
        let each = |member: &Member| {
            if member.device == source {
                0.0
            } else {
                self.costs.links.seconds(source, member.device, bytes)
            }
        };
        loop {
            let with_samples = members.iter().filter(|member| member.samples > 0);
            let raw: f64 = with_samples
                .map(|member| member.samples as f64 * each(member))
                .sum();
            let giving = (0..members.len()).filter(|at| members[*at].samples > floor);
            let from = giving.max_by(|a, b| each(&members[*a]).total_cmp(&each(&members[*b])));
            let slowest = times.iter().copied().fold(0.0, f64::max);
            let Some(from) = from.filter(|_| raw > slowest) else {
                return;
            };
            let then = |at: usize| self.seconds(members[at].device, members[at].samples + 1);
            let takers = (0..members.len()).filter(|at| {
                each(&members[*at]) < each(&members[from])
                    && members[*at].samples < members[*at].most
                    && then(*at) < raw
            });
            let to = takers.min_by(|a, b| each(&members[*a]).total_cmp(&each(&members[*b])));
            let Some(to) = to else {
                return;
            };
            times[to] = then(to);
            members[to].samples += 1;
            members[from].samples -= 1;
            times[from] = self.seconds(members[from].device, members[from].samples);
        }
    }
}

/// Seconds that the raw samples of a micro-batch take from where they are to those of a group who do not have them, if it is
/// the first.
pub(crate) fn raw(costs: &Costs<'_>, blocks: &Range<usize>, shares: &[Share]) -> f64 {
    let Data::At(source) = costs.data else {
        return 0.0;
    };
    if blocks.start > 0 {
        return 0.0;
    }
    let others = shares.iter().filter(|share| share.device != source);
    let seconds = others.map(|share| {
        let bytes = costs.bytes_into(0, share.samples);
        costs.links.seconds(source, share.device, bytes)
    });
    seconds.sum()
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
        let group = allocate(
            &Costs::new(&work, &devices, &links),
            &(0..2),
            &[0, 1, 2],
            (3, 3),
        )
        .unwrap();
        assert_eq!((samples(&group), group.in_flight), (vec![8, 3, 1], 3));
        // 80 whatever the samples, 40 per sample and micro-batch, 32 per sample: room for three of three.
        devices[0].memory_bytes = 80 + 3 * (3 * 40 + 32);
        let group = allocate(
            &Costs::new(&work, &devices, &links),
            &(0..2),
            &[0, 1, 2],
            (3, 3),
        )
        .unwrap();
        assert_eq!((samples(&group), group.in_flight), (vec![3, 6, 3], 3));
        // Together they have room for all samples of one micro-batch only.
        devices
            .iter_mut()
            .for_each(|device| device.memory_bytes = 80 + 4 * (2 * 40 + 32));
        let group = allocate(
            &Costs::new(&work, &devices, &links),
            &(0..2),
            &[0, 1, 2],
            (3, 3),
        )
        .unwrap();
        assert_eq!((samples(&group), group.in_flight), (vec![4, 4, 4], 2));
        devices[0].memory_bytes = 70;
        let costs = Costs::new(&work, &devices, &links);
        let group = allocate(&costs, &(0..2), &[0, 1, 2], (3, 3)).unwrap();
        assert_eq!((samples(&group), group.in_flight), (vec![6, 6], 1));
        assert_eq!(allocate(&costs, &(0..2), &[0, 1], (3, 3)), None);
    }

    #[test]
    fn small_gradients_are_reduced_directly_and_large_ones_around_a_ring() {
        let mut work = work(&[1.0; 1], 4);
        let (devices, _) = even(4);
        let mut links = Links::uniform(4, 100.0, 0.25);
        // What the slowest delay is, counts.
        links.latency[1][3] = 0.5;
        work.micro_batch = 4;
        let reduced = |work: &Work| {
            let costs = Costs::new(work, &devices, &links);
            let group = allocate(&costs, &(0..1), &[0, 1, 2, 3], (1, 1)).unwrap();
            group.reduction(&costs).unwrap()
        };
        // 10 bytes to three others at 100 per second, and one delay.
        assert_eq!(reduced(&work), (Reduction::Direct, 0.8));
        work.profile.blocks[0].parameter_bytes = 1000;
        let (way, seconds) = reduced(&work);
        assert_eq!((way, seconds), (Reduction::Shards, 2.0 * (0.5 + 7.5)));
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
        let group = allocate(&costs, &(0..2), &[0, 1, 2], (3, 3)).unwrap();
        assert_eq!(samples(&group), [6, 2]);
        costs.least_samples = 4;
        let group = allocate(&costs, &(0..2), &[0, 1, 2], (3, 3)).unwrap();
        assert_eq!(samples(&group), [8]);
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
            let held = Held { in_flight: 2, stashed: 0 };
            let fits = |shares: [usize; 3]| shares.iter().enumerate().all(|(device, samples)| {
                *samples == 0 || costs.memory(&(0..2), *samples, held, true) <= memory[device]
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

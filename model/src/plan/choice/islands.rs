//! Replicas of pipelines: devices fall into islands with fast links inside and slow ones between; each island is one pipeline,
//! and the pipelines exchange compressed updates, stage by stage, over the slow links.
//!
//! For every rate above which links are taken for fast, the devices that hang together by such links are an island. Each island's
//! pipeline is planned as a hybrid of its own; micro-batches are divided by what the islands make alone, and each is planned again
//! with its own. Islands do not wait for each other, so they add up as replicas do: `S / sum(S_k / t_k)`, with `t_k` at least what
//! the busiest host needs for its packets, one to each host of the same blocks elsewhere in every `commit_steps` steps (of a group
//! the first member sends). None of the five systems has this.

use super::offer::{Arrangement, Island, Offer, Refusal, roles};
use super::settings::{ExchangeCosts, Settings};
use crate::plan::group::Group;
use crate::plan::hybrid;
use crate::plan::problem::Problem;
use crate::plan::schedule::run;
use crate::plan::work::{Data, Links};

/// Most ways to tell fast links from slow ones that are tried: where the rates are furthest apart.
const MOST_WAYS: usize = 6;

/// The best pipelines side by side.
pub(super) fn plan(problem: &Problem, settings: &Settings) -> Result<Offer, Refusal> {
    problem.check()?;
    if let Data::At(device) = problem.data {
        return Err(Refusal::DataElsewhere { device });
    }
    let offers = ways(&problem.links, problem.devices.len())
        .into_iter()
        .filter_map(|islands| offer(problem, settings, &islands));
    let best = offers.min_by(|a, b| a.seconds_per_sample.total_cmp(&b.seconds_per_sample));
    best.ok_or(Refusal::NoIslands)
}

/// Ways to see the devices as islands, at least two of them and one of more than one device.
fn ways(links: &Links, n: usize) -> Vec<Vec<Vec<usize>>> {
    let both = |a: usize, b: usize| links.rate[a][b].min(links.rate[b][a]);
    let pairs = (0..n).flat_map(|a| (0..a).map(move |b| (a, b)));
    let mut rates: Vec<f64> = pairs.map(|(a, b)| both(a, b)).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    let mut gaps: Vec<(f64, f64)> = rates
        .windows(2)
        .map(|pair| (pair[1] / pair[0].max(f64::MIN_POSITIVE), pair[1]))
        .collect();
    gaps.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut ways: Vec<Vec<Vec<usize>>> = Vec::new();
    for (_, fast) in gaps {
        let mut islands: Vec<Vec<usize>> = Vec::new();
        for device in 0..n {
            let joins =
                |island: &Vec<usize>| island.iter().any(|other| both(device, *other) >= fast);
            let (joined, apart): (Vec<_>, Vec<_>) = islands.into_iter().partition(joins);
            let mut own: Vec<usize> = joined.into_iter().flatten().chain([device]).collect();
            own.sort_unstable();
            islands = apart;
            islands.push(own);
        }
        islands.sort();
        let is_way = islands.len() > 1 && islands.len() < n && !ways.contains(&islands);
        if is_way && ways.len() < MOST_WAYS {
            ways.push(islands);
        }
    }
    ways
}

/// One island's devices as a problem of their own; the state of its blocks has the arenas of exchange beside it.
fn part(problem: &Problem, devices: &[usize], n_micro: usize, exchange: &ExchangeCosts) -> Problem {
    let of = |matrix: &Vec<Vec<f64>>| -> Vec<Vec<f64>> {
        let row = |from: &usize| devices.iter().map(|to| matrix[*from][*to]).collect();
        devices.iter().map(row).collect()
    };
    let mut part = problem.clone();
    part.devices = devices
        .iter()
        .map(|device| problem.devices[*device].clone())
        .collect();
    part.links.rate = of(&problem.links.rate);
    if !problem.links.latency.is_empty() {
        part.links.latency = of(&problem.links.latency);
    }
    part.work.n_micro = n_micro;
    for block in &mut part.work.profile.blocks {
        let arenas = block
            .parameter_bytes
            .saturating_mul(u64::from(exchange.arenas));
        block.state_bytes = block.state_bytes.saturating_add(arenas);
    }
    part
}

/// An island with its plan; devices by their numbers in the whole problem.
struct Planned {
    devices: Vec<usize>,
    part: Problem,
    groups: Vec<Group>,
}

impl Planned {
    fn new(
        problem: &Problem,
        devices: &[usize],
        n_micro: usize,
        exchange: &ExchangeCosts,
    ) -> Option<Self> {
        let part = part(problem, devices, n_micro, exchange);
        let groups = hybrid::best(&part.costs())?;
        Some(Self {
            devices: devices.to_vec(),
            part,
            groups,
        })
    }

    fn seconds(&self) -> f64 {
        run(&self.part.costs(), &self.groups).step_seconds
    }

    /// Its groups, with devices as the whole problem numbers them.
    fn told(&self) -> Vec<Group> {
        let mut groups = self.groups.clone();
        for share in groups.iter_mut().flat_map(|group| &mut group.shares) {
            share.device = self.devices[share.device];
        }
        groups
    }
}

fn offer(problem: &Problem, settings: &Settings, islands: &[Vec<usize>]) -> Option<Offer> {
    let n_micro = problem.work.n_micro;
    let exchange = &settings.exchange;
    let alone = islands.iter().filter_map(|devices| {
        let planned = Planned::new(problem, devices, n_micro, exchange)?;
        let seconds = planned.seconds();
        seconds
            .is_finite()
            .then(|| (devices, 1.0 / seconds.max(f64::MIN_POSITIVE)))
    });
    let mut alone: Vec<(&Vec<usize>, f64)> = alone.collect();
    // Of more islands than micro-batches the fastest.
    alone.sort_by(|a, b| b.1.total_cmp(&a.1));
    alone.truncate(n_micro);
    if alone.len() < 2 {
        return None;
    }
    let shares = divided(
        n_micro,
        &alone.iter().map(|(_, rate)| *rate).collect::<Vec<_>>(),
    );
    let planned = alone.iter().zip(shares);
    let planned = planned.map(|((devices, _), own)| Planned::new(problem, devices, own, exchange));
    let planned = planned.collect::<Option<Vec<_>>>()?;
    let told: Vec<Vec<Group>> = planned.iter().map(Planned::told).collect();
    let mut rate = 0.0;
    let mut all = Vec::new();
    for (at, island) in planned.iter().enumerate() {
        let costs = island.part.costs();
        let prediction = run(&costs, &island.groups);
        let packets = packets(problem, exchange, &told, at);
        let slowest = packets
            .iter()
            .map(|packet| packet.seconds)
            .fold(0.0, f64::max);
        let seconds = prediction.step_seconds.max(slowest);
        let samples = island.part.work.n_micro * problem.work.micro_batch;
        rate += samples as f64 / seconds.max(f64::MIN_POSITIVE);
        let mut own = roles(&costs, &island.groups, &prediction);
        for role in &mut own {
            role.device = island.devices[role.device];
            if seconds > 0.0 {
                role.busy *= prediction.step_seconds / seconds;
            }
            let sent = packets.iter().filter(|packet| packet.device == role.device);
            let sent = sent.map(|packet| packet.bytes_per_step).sum::<f64>();
            role.sent_bytes = role.sent_bytes.saturating_add(sent as u64);
        }
        all.extend(own);
    }
    let samples = n_micro * problem.work.micro_batch;
    let islands = told
        .into_iter()
        .zip(&planned)
        .map(|(groups, island)| Island {
            groups,
            n_micro: island.part.work.n_micro,
        });
    let arrangement = Arrangement::Islands(islands.collect());
    let made = (samples as f64 / rate, samples);
    Offer::new(arrangement, all, made, exchange.efficiency)
}

/// What a host exchanges with the other islands.
struct Packets {
    device: usize,
    seconds: f64,
    bytes_per_step: f64,
}

/// By the first host of each stage of island `own`: per step, packets with the hosts of the same blocks elsewhere.
fn packets(
    problem: &Problem,
    exchange: &ExchangeCosts,
    islands: &[Vec<Group>],
    own: usize,
) -> Vec<Packets> {
    let costs = problem.costs();
    let host = |group: &Group| group.devices().next();
    let of_group = |group: &Group| {
        let device = host(group)?;
        let (mut bytes_per_step, mut both) = (0.0, [0.0f64; 2]);
        let others = islands.iter().enumerate().filter(|(at, _)| *at != own);
        for other in others.flat_map(|(_, groups)| groups) {
            let start = group.blocks.start.max(other.blocks.start);
            let end = group.blocks.end.min(other.blocks.end);
            if start >= end {
                continue;
            }
            let to = host(other)?;
            let parameters = costs.parameter_bytes(&(start..end)) as f64;
            let bytes = parameters * exchange.packet_frac / f64::from(exchange.commit_steps);
            bytes_per_step += bytes;
            let whole = bytes.ceil() as u64;
            both[0] += problem.links.seconds(device, to, whole);
            both[1] += problem.links.seconds(to, device, whole);
        }
        let seconds = if problem.links.shared {
            both[0] + both[1]
        } else {
            both[0].max(both[1])
        };
        Some(Packets {
            device,
            seconds,
            bytes_per_step,
        })
    };
    islands[own].iter().filter_map(of_group).collect()
}

/// `n` divided in proportion to rates, at least one for each; what rounding leaves goes to whoever is fastest with it.
fn divided(n: usize, rates: &[f64]) -> Vec<usize> {
    let mut parts = vec![1; rates.len()];
    for _ in rates.len()..n {
        let then = |at: &usize| (parts[*at] + 1) as f64 / rates[*at];
        if let Some(fastest) = (0..rates.len()).min_by(|a, b| then(a).total_cmp(&then(b))) {
            parts[fastest] += 1;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::choice::{Family, Settings, choose};
    use crate::plan::work::Work;
    use crate::plan::work::tests::{even, work};

    /// Six equal devices in groups of `size`, fast inside, `between` bytes per second from one to the other.
    fn groups_of(size: usize, between: f64) -> Problem {
        let (devices, mut links) = even(6);
        for (from, row) in links.rate.iter_mut().enumerate() {
            for (to, rate) in row.iter_mut().enumerate() {
                *rate = if from / size == to / size {
                    1e6
                } else {
                    between
                };
            }
        }
        let mut problem = Problem {
            data: Data::Everywhere,
            least_samples: 1,
            work: Work {
                micro_batch: 4,
                ..work(&[1.0; 6], 12)
            },
            devices,
            links,
        };
        for block in &mut problem.work.profile.blocks {
            (block.parameter_bytes, block.state_bytes) = (100_000, 300_000);
            (block.output_bytes, block.kept_bytes) = (10_000, 20_000);
        }
        problem
    }

    #[test]
    fn islands_are_what_hangs_together_by_fast_links() {
        let problem = groups_of(3, 10.0);
        assert_eq!(ways(&problem.links, 6), [[[0, 1, 2], [3, 4, 5]]]);
        assert!(ways(&Links::uniform(4, 1.0, 0.0), 4).is_empty());
        assert_eq!(divided(7, &[2.0, 1.0]), [5, 2]);
        assert_eq!(divided(2, &[9.0, 1.0]), [1, 1]);
    }

    #[test]
    fn three_groups_behind_slow_links_are_best_as_islands_where_replicas_have_no_room() {
        let mut problem = groups_of(2, 200.0);
        // Two devices together hold the model well, one only just, and no arenas beside it.
        for device in &mut problem.devices {
            device.memory_bytes = 2_600_000;
        }
        let choice = choose(&problem, &Settings::default()).unwrap();
        let (family, offer) = choice.best().unwrap();
        assert_eq!(family, Family::Islands, "{choice:?}");
        let Arrangement::Islands(islands) = &offer.arrangement else {
            panic!("{offer:?}")
        };
        let n_micro: Vec<usize> = islands.iter().map(|island| island.n_micro).collect();
        assert_eq!(n_micro, [4, 4, 4]);
        assert!(choice.offer(Family::Exchange).is_none());
        // Two groups make twice as much, of which little more than half counts: one of them by itself is as good.
        let problem = groups_of(3, 200.0);
        let islands = plan(&problem, &Settings::default()).unwrap();
        let hybrid = choose(&problem, &Settings::default()).unwrap();
        let hybrid = hybrid.offer(Family::Hybrid).unwrap();
        assert!(islands.samples_per_second > 1.5 * hybrid.samples_per_second);
        assert!(islands.seconds_per_sample > 0.9 * hybrid.seconds_per_sample);
    }

    #[test]
    fn without_any_link_between_them_islands_cannot_exchange() {
        let problem = groups_of(3, 0.0);
        let refusal = plan(&problem, &Settings::default()).unwrap_err();
        assert_eq!(refusal, Refusal::NoIslands);
    }
}

//! Every hybrid pipeline of a small problem, to compare the planner with; and problems drawn at random.

use crate::plan::costs::Costs;
use crate::plan::events::Run;
use crate::plan::group::{Group, Share};
use crate::plan::steps::bound;
use crate::plan::time::Time;
use crate::plan::{
    BlockProfile, BlockTimes, Data, Device, Links, Problem, Profile, Stashing, Work,
};
use crate::random::Stream;

/// The shortest step of all: every choice and order of groups, every cut, every division of samples, each stage as deep as
/// memory lets it.
pub(crate) fn optimum(costs: &Costs<'_>) -> Option<(f64, Vec<Group>)> {
    let n = costs.devices.len();
    let mut best = (f64::INFINITY, Vec::new());
    let mut chosen = Vec::new();
    every_order((1 << n) - 1, n, &mut chosen, &mut |sets| {
        if sets.len() <= costs.n_blocks() {
            every_cut(costs, sets, &mut vec![0], &mut best);
        }
    });
    best.0.is_finite().then_some(best)
}

fn every_order(
    left: usize,
    n: usize,
    chosen: &mut Vec<Vec<usize>>,
    visit: &mut dyn FnMut(&[Vec<usize>]),
) {
    if !chosen.is_empty() {
        visit(chosen);
    }
    for set in 1usize..1 << n {
        if set & left == set {
            chosen.push((0..n).filter(|device| set >> device & 1 == 1).collect());
            every_order(left & !set, n, chosen, visit);
            chosen.pop();
        }
    }
}

fn every_cut(
    costs: &Costs<'_>,
    sets: &[Vec<usize>],
    starts: &mut Vec<usize>,
    best: &mut (f64, Vec<Group>),
) {
    if starts.len() < sets.len() {
        let first = starts.last().copied().unwrap_or(0) + 1;
        for start in first..=costs.n_blocks() - (sets.len() - starts.len()) {
            starts.push(start);
            every_cut(costs, sets, starts, best);
            starts.pop();
        }
        return;
    }
    every_division(costs, sets, starts, &mut Vec::new(), best);
}

fn every_division(
    costs: &Costs<'_>,
    sets: &[Vec<usize>],
    starts: &[usize],
    groups: &mut Vec<Group>,
    best: &mut (f64, Vec<Group>),
) {
    let position = groups.len();
    let Some(devices) = sets.get(position) else {
        if bound(costs, groups) < best.0 {
            let seconds = Run::new(costs, groups, costs.work.n_micro).finish(&mut |_, _, _| ());
            if seconds < best.0 {
                *best = (seconds, groups.clone());
            }
        }
        return;
    };
    let end = starts
        .get(position + 1)
        .copied()
        .unwrap_or(costs.n_blocks());
    let blocks = starts[position]..end;
    let rule = costs.work.in_flight(position, sets.len());
    for samples in compositions(costs.work.micro_batch, devices.len(), costs.least_samples) {
        let shares = devices.iter().zip(&samples);
        let group = Group {
            blocks: blocks.clone(),
            shares: shares
                .map(|(device, samples)| Share {
                    device: *device,
                    samples: *samples,
                })
                .collect(),
            in_flight: 0,
        };
        if let Some(group) = group.warmed_up(costs, rule) {
            let [forward, backward] = group.seconds(costs);
            let own = costs.work.n_micro as f64 * forward.max(backward);
            if own < best.0 {
                groups.push(group);
                every_division(costs, sets, starts, groups, best);
                groups.pop();
            }
        }
    }
}

fn compositions(sum: usize, parts: usize, least: usize) -> Vec<Vec<usize>> {
    if parts == 1 {
        return if sum >= least {
            vec![vec![sum]]
        } else {
            Vec::new()
        };
    }
    let firsts = least..=sum.saturating_sub(least * (parts - 1));
    let all = firsts.flat_map(|first| {
        let rest = compositions(sum - first, parts - 1, least);
        rest.into_iter()
            .map(move |rest| [vec![first], rest].concat())
    });
    all.collect()
}

/// A problem with devices of different speeds, curves, memory and links, tight in one way or another.
pub(crate) fn drawn(
    seed: u64,
    n_devices: usize,
    n_blocks: usize,
    micro_batch: usize,
    n_micro: usize,
) -> Problem {
    let mut stream = Stream::new(seed, "problem");
    let mut between = move |low: f64, high: f64| low + (high - low) * f64::from(stream.uniform());
    let mut log = {
        let mut stream = Stream::new(seed, "magnitudes");
        move |low: f64, high: f64| low * (high / low).powf(f64::from(stream.uniform()))
    };
    let curve = |per_sample: f64, fixed: f64| {
        let sizes = [1, 2, 4, 8];
        Time::measured(sizes.map(|size| (size, fixed + per_sample * size as f64)))
    };
    let dear = log(0.01, 3.0);
    let parameters = log(1.0, 3000.0);
    let output = log(1.0, 300.0);
    let mut block = || {
        let per_sample = log(0.2, 2.0);
        let parameter_bytes = (parameters * log(0.3, 3.0)) as u64;
        BlockProfile {
            forward: curve(per_sample, dear * per_sample),
            backward: curve(2.0 * per_sample, dear * per_sample),
            update: 0.001 * parameter_bytes as f64,
            output_bytes: (output * log(0.2, 5.0)) as u64,
            parameter_bytes,
            state_bytes: 3 * parameter_bytes,
            kept_bytes: (3.0 * output) as u64,
        }
    };
    let blocks: Vec<BlockProfile> = (0..n_blocks).map(|_| block()).collect();
    let profile = Profile {
        input_bytes: (output * 2.0) as u64,
        blocks,
    };
    let state: u64 = profile.blocks.iter().map(|block| block.state_bytes).sum();
    let kept: u64 = profile.blocks.iter().map(|block| block.kept_bytes).sum();
    let whole = state + kept * micro_batch as u64 * 3;
    let spread = between(1.0, 6.0);
    let tight = between(0.0, 1.0) < 0.5;
    let rate = log(2.0, 2000.0);
    let devices = (0..n_devices)
        .map(|_| {
            let capacity = log(1.0, spread.max(1.01));
            let memory_bytes = if tight {
                (whole as f64 * between(0.25, 1.3)) as u64
            } else {
                u64::MAX
            };
            let own = between(0.0, 1.0) < 0.3;
            let times = |block: &BlockProfile| BlockTimes {
                forward: block.forward.clone().times(between(0.5, 2.0)),
                backward: block.backward.clone().times(between(0.5, 2.0)),
                update: block.update,
            };
            let times = own.then(|| profile.blocks.iter().map(times).collect());
            Device {
                capacity,
                memory_bytes,
                times,
                ..Device::default()
            }
        })
        .collect();
    let uneven = between(0.0, 1.0) < 0.5;
    let mut links = Links::uniform(n_devices, rate, between(0.0, 0.2));
    for from in 0..n_devices {
        for to in 0..from {
            let both = if uneven { rate * log(0.1, 10.0) } else { rate };
            links.rate[from][to] = both;
            links.rate[to][from] = both;
        }
    }
    links.shared = between(0.0, 1.0) < 0.1;
    Problem {
        data: if between(0.0, 1.0) < 0.3 {
            Data::At(0)
        } else {
            Data::Everywhere
        },
        least_samples: if between(0.0, 1.0) < 0.15 { 2 } else { 1 },
        work: Work {
            micro_batch,
            n_micro,
            recompute: between(0.0, 1.0) < 0.15,
            hides_transfers: between(0.0, 1.0) < 0.7,
            stashing: Stashing::None,
            profile,
        },
        devices,
        links,
    }
}

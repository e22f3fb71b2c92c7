//! Problems drawn at random, for the tests of all planners.

use std::ops::Range;

use crate::plan::time::Time;
use crate::plan::{
    BlockProfile, BlockTimes, Data, Device, Links, Problem, Profile, Stashing, Work,
};
use crate::random::Stream;

/// The seeds of a test that has `default` of them; `SKEIN_TEST_SEEDS=20` gives twenty times as many, `SKEIN_TEST_SEED=7` seed 7
/// alone.
pub(crate) fn seeds(default: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().map(|n| n.parse::<u64>().unwrap());
    match number("SKEIN_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..default * number("SKEIN_TEST_SEEDS").unwrap_or(1),
    }
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
            copies_bytes: 0,
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
    let mut delays = Stream::new(seed, "delays");
    for from in 0..n_devices {
        for to in 0..from {
            let both = if uneven { rate * log(0.1, 10.0) } else { rate };
            links.rate[from][to] = both;
            links.rate[to][from] = both;
            for (from, to) in [(from, to), (to, from)] {
                let factor = if uneven { 2.0 * delays.uniform() } else { 1.0 };
                links.latency[from][to] *= f64::from(factor);
            }
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

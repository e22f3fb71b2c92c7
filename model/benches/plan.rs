//! What planning a hybrid pipeline takes, and planning anew after a device is lost: 60 blocks on 16 and on 64 devices of three
//! speeds behind links of 100 Mbit/s, on one thread.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use skein_model::plan::{
    BlockProfile, Data, Device, Links, Problem, Profile, Stashing, Time, Work, hybrid, replan,
};

/// Blocks as of a convolutional model: activations shrink and parameters grow towards its end.
fn problem(n_devices: usize, micro_batch: usize) -> Problem {
    let block = |number: usize| {
        let seconds = 0.002 + 0.0001 * (number * 7 % 13) as f64;
        let curve = |factor: f64| {
            let point = |samples: usize| (samples, factor * seconds * (2 + samples) as f64);
            Time::measured([1, 4, 16, 64].map(point))
        };
        let parameter_bytes = 4000 * (number as u64 + 1) * (number as u64 + 1);
        BlockProfile {
            forward: curve(1.0),
            backward: curve(2.0),
            update: 1e-9 * parameter_bytes as f64,
            output_bytes: 262_144 / (number as u64 + 1),
            parameter_bytes,
            state_bytes: 3 * parameter_bytes,
            copies_bytes: 0,
            kept_bytes: 786_432 / (number as u64 + 1),
        }
    };
    let device = |number: usize| Device {
        capacity: [1.0, 2.5, 6.0][number % 3],
        memory_bytes: 256 << 20,
        ..Device::default()
    };
    Problem {
        data: Data::At(0),
        least_samples: 2,
        work: Work {
            micro_batch,
            n_micro: 16,
            recompute: false,
            hides_transfers: true,
            stashing: Stashing::None,
            profile: Profile {
                input_bytes: 12_288,
                blocks: (0..60).map(block).collect(),
            },
        },
        devices: (0..n_devices).map(device).collect(),
        links: Links::uniform(n_devices, 12.5e6, 0.001),
    }
}

fn plan(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    group.sample_size(10);
    for (n_devices, micro_batch) in [(6, 16), (16, 32), (64, 64)] {
        let problem = problem(n_devices, micro_batch);
        group.bench_function(format!("hybrid, {n_devices} devices"), |bencher| {
            bencher.iter(|| hybrid(black_box(&problem)));
        });
        let Ok(plan) = hybrid(&problem) else {
            continue;
        };
        let last = plan.groups.iter().flat_map(|group| group.devices()).last();
        let lost = last.unwrap_or_default();
        group.bench_function(format!("one of {n_devices} devices lost"), |bencher| {
            bencher.iter(|| replan(black_box(&problem), &plan.groups, lost));
        });
    }
    group.finish();
}

criterion_group!(benches, plan);
criterion_main!(benches);

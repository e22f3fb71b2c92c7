//! Plans for devices and lines such as scenarios have, with the profiles that ship.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use skein_model::plan::{Data, Device, Links, Problem, Profile, Stashing, Work};
use skein_node::job::strategy::pipeline::Cut;
use skein_node::planning;

const MODELS: [&str; 4] = ["mobilenet-v2", "efficientnet-b1", "resnet-50", "gpt"];

const OTHERS: [Cut; 6] = [
    Cut::DataParallel,
    Cut::Equal,
    Cut::Gpipe,
    Cut::Pipedream,
    Cut::Dapple,
    Cut::Hetpipe,
];

fn profile(model: &str) -> Profile {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios/profiles");
    let text = std::fs::read_to_string(format!("{folder}/{model}.toml")).unwrap();
    let mut table: toml::Table = text.parse().unwrap();
    table.remove("profile").unwrap().try_into().unwrap()
}

/// Shares of a core, lines and memory drawn by seed.
fn drawn(seed: u64) -> Problem {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut between = |low: f64, high: f64| {
        let at = rng.next_u32() as f64 / f64::from(u32::MAX);
        low * (high / low).powf(at)
    };
    let n = 2 + seed as usize % 5;
    let devices = (0..n).map(|_| Device {
        capacity: 1.0 / between(0.1, 1.0),
        memory_bytes: between(0.5e9, 8e9) as u64,
        ..Device::default()
    });
    let devices = devices.collect();
    let mut links = Links::uniform(n, 0.0, 1e-3);
    let lines: Vec<f64> = (0..n).map(|_| between(1e6, 125e6)).collect();
    for (from, row) in links.rate.iter_mut().enumerate() {
        for (to, rate) in row.iter_mut().enumerate() {
            *rate = lines[from].min(lines[to]);
        }
    }
    Problem {
        data: Data::Everywhere,
        least_samples: 2,
        work: Work {
            micro_batch: 16,
            n_micro: 8,
            recompute: false,
            hides_transfers: true,
            stashing: Stashing::None,
            profile: profile(MODELS[seed as usize % MODELS.len()]),
        },
        devices,
        links,
    }
}

/// Baselines that know nothing of fewest samples may divide micro-batches further than ours can: those of models that do without are
/// compared, and of the others those that keep to it.
#[test]
fn no_other_plan_is_promised_to_be_faster_by_more_than_three_percent() {
    let (mut n_compared, mut faster) = ([0; 6], Vec::new());
    for seed in 0..40 {
        let problem = drawn(seed);
        let Ok(own) = planning::in_groups(Cut::Measured, &problem) else {
            continue;
        };
        for (count, cut) in n_compared.iter_mut().zip(OTHERS) {
            let Ok(other) = planning::in_groups(cut, &problem) else {
                continue;
            };
            let shares = other.groups.iter().flat_map(|group| &group.shares);
            let mut few = shares.filter(|share| share.samples < problem.least_samples);
            if few.next().is_some() {
                continue;
            }
            *count += 1;
            let ratio = own.prediction.step_seconds / other.prediction.step_seconds;
            if ratio > 1.03 {
                faster.push((seed, cut, ratio));
            }
        }
    }
    assert!(faster.is_empty(), "{faster:?}");
    assert!(n_compared.iter().all(|n| *n >= 10), "{n_compared:?}");
}

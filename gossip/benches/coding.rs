//! Selecting, packing and unpacking gradients, and fitting a budget, next to a plain copy and a plain read of the same memory.
//!
//! Throughput is always in bytes of the dense f32 arena, so that all rows compare. One thread. `cargo bench -p skein-gossip`;
//! `benches/topk.py` gives PyTorch's figures for the selection alone.
#![expect(
    clippy::expect_used,
    reason = "a benchmark ends at what it cannot set up"
)]

#[path = "../tests/gradients/mod.rs"]
mod gradients;

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use gradients::heavy_tailed;
use skein_gossip::gradient::{
    accumulate::accumulate,
    fit::{Measure, Wanted},
    layout::Layout,
    pack::Packer,
    selection::{Order, Selection},
    unpack::Unpacker,
    values::Values,
};

const SIZES: [usize; 2] = [1_200_000, 5_000_000];

/// Lengths of a small convolutional network, with the first linear layer as large as it takes.
fn lengths(n_values: usize) -> Vec<usize> {
    let mut lengths = vec![9 * 32, 32, 9 * 32 * 64, 64, 128, 1280, 10];
    lengths.insert(4, n_values - lengths.iter().sum::<usize>());
    lengths
}

fn memory(criterion: &mut Criterion) {
    for n_values in SIZES {
        let source = heavy_tailed(n_values, 1);
        let mut target = vec![0.0; n_values];
        let mut group = criterion.benchmark_group("memory");
        group.throughput(Throughput::BytesDecimal(4 * n_values as u64));
        group.bench_function(BenchmarkId::new("copy", n_values), |bencher| {
            bencher.iter(|| target.copy_from_slice(black_box(&source)));
        });
        group.bench_function(BenchmarkId::new("read", n_values), |bencher| {
            bencher.iter(|| {
                black_box(&source)
                    .iter()
                    .fold(0u32, |sum, value| sum.wrapping_add(value.to_bits()))
            });
        });
        group.finish();
    }
}

fn orders(weights: &[f32]) -> Vec<(String, Order<'_>)> {
    let top = |fraction| Selection::TopK { fraction };
    let random = Selection::RandomK {
        fraction: 0.01,
        seed: 1,
    };
    [
        ("top 0.1 %", top(0.001), Values::F16),
        ("top 1 %", top(0.01), Values::F16),
        ("top 1 %", top(0.01), Values::BF16),
        ("top 1 %", top(0.01), Values::Int8),
        ("top 10 %", top(0.1), Values::F16),
        ("top 10 %", top(0.1), Values::Int8),
        ("dense", Selection::Dense, Values::F16),
        ("dense", Selection::Dense, Values::BF16),
        ("dense", Selection::Dense, Values::Int8),
        ("dense", Selection::Dense, Values::F32),
        ("max 80", Selection::MaxN { n: 80.0 }, Values::F16),
        ("max 95", Selection::MaxN { n: 95.0 }, Values::F16),
        ("random 1 %", random, Values::F16),
        (
            "significant",
            Selection::Significant { threshold: 10.0 },
            Values::F16,
        ),
        (
            "part 1 of 100",
            Selection::Part { index: 50, of: 100 },
            Values::F16,
        ),
    ]
    .into_iter()
    .map(|(name, selection, values)| {
        let order = Order {
            selection,
            values,
            weights: Some(weights),
        };
        (format!("{name} {values:?}"), order)
    })
    .collect()
}

fn coding(criterion: &mut Criterion) {
    for n_values in SIZES {
        let layout = Layout::new(&lengths(n_values)).expect("within bounds");
        let gradient = heavy_tailed(n_values, 1);
        let weights = heavy_tailed(n_values, 2);
        let mut packer = Packer::new(&layout).expect("memory for zstd");
        let mut unpacker = Unpacker::new(&layout).expect("memory for zstd");
        for (name, order) in orders(&weights) {
            let mut packet = vec![];
            let packed = packer
                .pack(&mut gradient.clone(), order, &mut packet)
                .expect("a finite gradient");
            println!(
                "{name}, {n_values} values: {} entries, {} bytes, {:.2} bits a value",
                packed.n_entries,
                packed.bytes,
                packed.bytes as f64 * 8.0 / n_values as f64
            );
            let mut group = criterion.benchmark_group("coding");
            group
                .sample_size(20)
                .throughput(Throughput::BytesDecimal(4 * n_values as u64));
            let mut out = vec![];
            group.bench_function(
                BenchmarkId::new(format!("pack {name}"), n_values),
                |bencher| {
                    let fresh = || gradient.clone();
                    bencher.iter_batched_ref(
                        fresh,
                        |residual| {
                            out.clear();
                            packer.pack(residual, order, &mut out)
                        },
                        BatchSize::PerIteration,
                    );
                },
            );
            let mut inbox = vec![0.0; n_values];
            group.bench_function(
                BenchmarkId::new(format!("unpack {name}"), n_values),
                |bencher| {
                    bencher.iter(|| unpacker.check_and_add(black_box(&packet), 0.25, &mut inbox));
                },
            );
            group.finish();
        }
    }
}

fn budgets(criterion: &mut Criterion) {
    for n_values in SIZES {
        let layout = Layout::new(&lengths(n_values)).expect("within bounds");
        let gradient = heavy_tailed(n_values, 1);
        let mut packer = Packer::new(&layout).expect("memory for zstd");
        let mut group = criterion.benchmark_group("budgets");
        group.throughput(Throughput::BytesDecimal(4 * n_values as u64));
        for (measure, least, most) in [(Measure::TopK, 1e-4, 0.3), (Measure::MaxN, 10.0, 99.0)] {
            let wanted = Wanted {
                bytes: n_values / 40,
                measure,
                least,
                most,
                values: &Values::AUTO,
            };
            group.bench_function(
                BenchmarkId::new(format!("{measure:?}"), n_values),
                |bencher| {
                    bencher.iter(|| packer.fit(black_box(&gradient), wanted));
                },
            );
        }
        let mut residual = gradient.clone();
        group.bench_function(BenchmarkId::new("accumulate", n_values), |bencher| {
            bencher.iter(|| accumulate(&mut residual, black_box(&gradient)));
        });
        group.finish();
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    memory(&mut criterion);
    budgets(&mut criterion);
    coding(&mut criterion);
    criterion.final_summary();
}

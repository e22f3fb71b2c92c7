//! Selecting, packing and unpacking gradients, next to a plain copy and a plain read of the same memory.
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
use skein_gossip::gradient::{layout::Layout, pack::Packer, unpack::Unpacker, values::Values};

/// Lengths as convolutional networks have them: few large variables, many small ones.
fn lengths(n_values: usize) -> Vec<usize> {
    let mut lengths = vec![64, 9 * 64, 128, 9 * 64 * 128, 256, 9 * 128 * 256];
    lengths.push(n_values - lengths.iter().sum::<usize>());
    lengths
}

fn memory(criterion: &mut Criterion) {
    for n_values in [1_200_000, 10_000_000] {
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

fn coding(criterion: &mut Criterion) {
    for n_values in [1_200_000, 10_000_000] {
        let layout = Layout::new(&lengths(n_values)).expect("within bounds");
        let gradient = heavy_tailed(n_values, 1);
        let mut packer = Packer::new(&layout).expect("memory for zstd");
        let mut unpacker = Unpacker::new(&layout).expect("memory for zstd");
        for (name, fraction, values) in [
            ("1 % f16", 0.01, Values::F16),
            ("10 % f16", 0.1, Values::F16),
            ("dense f16", 1.0, Values::F16),
            ("dense f32", 1.0, Values::F32),
        ] {
            let mut packet = vec![];
            packer
                .pack(&mut gradient.clone(), fraction, values, &mut packet)
                .expect("a finite gradient");
            println!(
                "{name}, {n_values} values: {} bytes, {:.2} bits a value",
                packet.len(),
                packet.len() as f64 * 8.0 / n_values as f64
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
                            packer.pack(residual, fraction, values, &mut out)
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

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    memory(&mut criterion);
    coding(&mut criterion);
    criterion.final_summary();
}

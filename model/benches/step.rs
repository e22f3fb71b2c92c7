//! One training step of the cnn, batch 32, on one thread: the trainer beside a plain libtorch loop.
//!
//! `plain` is the loop in `tests/numeric/plain.rs`, which computes the same bits; the difference between the two is
//! what the arena, the flat gradient and the optimiser on slices cost or save.

use criterion::{Criterion, criterion_group, criterion_main};
use skein_model::config::{DataConfig, ModelConfig, OptimiserConfig};
use skein_model::data;
use skein_model::model::Model;
use skein_model::train::Trainer;

#[path = "../tests/numeric/plain.rs"]
mod plain;

fn step(criterion: &mut Criterion) {
    skein_model::runtime::set_threads(1);
    let Ok(digits) = data::load(&DataConfig::default(), &Default::default()) else {
        return;
    };
    let digits = digits.train;
    let Ok(model) = Model::new(&ModelConfig::Cnn {}, digits.input_shape(), 10, 3) else {
        return;
    };
    let mut plain = plain::Plain::copy_of(&model);
    let rows: Vec<usize> = (0..32).collect();
    let batch = digits.batch(&rows);
    let mut group = criterion.benchmark_group("cnn, batch 32, one thread");
    group.sample_size(50);
    group.bench_function("plain libtorch loop", |b| {
        b.iter(|| plain.step(batch.x(), batch.y(), 1e-4))
    });
    let sgd = OptimiserConfig::Sgd {
        lr: 1e-4,
        momentum: 0.9,
        weight_decay: 0.0,
        nesterov: false,
    };
    let Ok(mut trainer) = Trainer::new(model, sgd) else {
        return;
    };
    let mut gradient = vec![0.0; trainer.model().n_parameters()];
    group.bench_function("trainer: gradient and apply", |b| {
        b.iter(|| {
            trainer
                .gradient(&batch, &mut gradient)
                .and_then(|_| trainer.apply(&gradient))
        });
    });
    group.bench_function("trainer: apply alone", |b| {
        b.iter(|| trainer.apply(&gradient))
    });
    group.bench_function("data: batch", |b| b.iter(|| digits.batch(&rows)));
    group.bench_function("snapshot", |b| b.iter(|| trainer.snapshot()));
    group.finish();
}

criterion_group!(benches, step);
criterion_main!(benches);

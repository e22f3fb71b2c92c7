//! What stages cost beside the whole model, and what a replica of a step costs: MobileNetV2 on the digits, micro-batches of
//! 16, on one thread.
//!
//! `three stages` runs one micro-batch through all of them on one thread: what it takes longer than `whole model` is copying
//! activations, gradients and sums. Delta and state are of the whole model after an ordinary step.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use skein_model::config::{DataConfig, ModelConfig, OptimiserConfig};
use skein_model::data::{self, Batch};
use skein_model::model::Model;
use skein_model::stage::{Activation, Stage, StageError, block_layouts, delta, digest};
use skein_model::train::Trainer;

const CONFIG: ModelConfig = ModelConfig::MobilenetV2 { width: 1.0 };
const SHAPE: [i64; 3] = [1, 28, 28];
const SGD: OptimiserConfig = OptimiserConfig::Sgd {
    lr: 0.05,
    momentum: 0.9,
    weight_decay: 4e-5,
    nesterov: false,
};

fn step(stages: &mut [Stage], batch: &Batch, labels: &[i64]) -> Result<(), StageError> {
    let Some((last, others)) = stages.split_last_mut() else {
        return Ok(());
    };
    let mut activation: Option<Activation> = None;
    for stage in others.iter_mut() {
        activation = Some(match &activation {
            None => stage.forward(0, 1.0, batch)?,
            Some(before) => stage.forward(0, 1.0, before)?,
        });
    }
    let loss = match &activation {
        None => last.loss(0, 1.0, batch, labels)?,
        Some(before) => last.loss(0, 1.0, before, labels)?,
    };
    let mut gradient = loss.gradient;
    for stage in others.iter_mut().rev() {
        if let Some(upstream) = gradient {
            gradient = stage.backward(0, &upstream)?;
        } else {
            break;
        }
    }
    stages.iter_mut().try_for_each(Stage::apply)
}

#[expect(
    clippy::unwrap_used,
    reason = "a benchmark stops at the first surprise"
)]
fn stages(criterion: &mut Criterion) {
    skein_model::runtime::set_threads(1);
    let digits = data::load(&DataConfig::default(), &Default::default())
        .unwrap()
        .train;
    let batch = digits.batch(&(0..16).collect::<Vec<_>>());
    let labels = batch.labels();
    let model = Model::new(&CONFIG, SHAPE, 10, 3).unwrap();
    let mut trainer = Trainer::new(model, SGD).unwrap();
    let mut gradient = vec![0.0; trainer.model().n_parameters()];
    let n = block_layouts(&CONFIG, SHAPE, 10, &SGD).unwrap().len();
    let stage = |blocks| Stage::new(&CONFIG, SHAPE, 10, 3, blocks, SGD).unwrap();
    let mut group = criterion.benchmark_group("mobilenet-v2, micro-batch 16, one thread");
    group.sample_size(20);
    group.bench_function("whole model: a step", |b| {
        b.iter(|| {
            trainer.gradient(&batch, &mut gradient).unwrap();
            trainer.apply(&gradient).unwrap();
        });
    });
    let mut three = vec![stage(0..5), stage(5..12), stage(12..n)];
    group.bench_function("three stages: a step", |b| {
        b.iter(|| step(&mut three, &batch, &labels).unwrap());
    });
    three.iter_mut().for_each(|stage| stage.set_recompute(true));
    group.bench_function("three stages, recomputing: a step", |b| {
        b.iter(|| step(&mut three, &batch, &labels).unwrap());
    });
    let mut one = vec![stage(0..n)];
    let encode = |stages: &[Stage], into: &mut [Vec<u8>]| {
        for (block, bytes) in into.iter_mut().enumerate() {
            bytes.clear();
            stages[0].encode_block(block, bytes).unwrap();
        }
    };
    for _ in 0..5 {
        step(&mut one, &batch, &labels).unwrap();
    }
    let (mut old, mut new) = (vec![Vec::new(); n], vec![Vec::new(); n]);
    encode(&one, &mut old);
    step(&mut one, &batch, &labels).unwrap();
    encode(&one, &mut new);
    let n_bytes: usize = new.iter().map(Vec::len).sum();
    group.throughput(Throughput::Bytes(n_bytes as u64));
    group.bench_function("states of all blocks, encoded", |b| {
        b.iter(|| encode(&one, &mut new))
    });
    group.bench_function("digests", |b| {
        b.iter(|| {
            new.iter()
                .map(|state| digest(state))
                .fold(0, |x, d| x ^ d[0])
        });
    });
    let pairs = || old.iter().zip(&new);
    let deltas = || pairs().map(|(old, new)| delta::encode(old, new).unwrap());
    group.bench_function("deltas, packed", |b| {
        b.iter(|| deltas().collect::<Vec<_>>())
    });
    let packed: Vec<Vec<u8>> = deltas().collect();
    println!(
        "deltas of a step: {} of {n_bytes} bytes",
        packed.iter().map(Vec::len).sum::<usize>()
    );
    group.bench_function("deltas, unpacked", |b| {
        b.iter(|| {
            let pairs = old.iter().zip(&packed);
            pairs
                .map(|(old, delta)| delta::decode(old, delta).unwrap())
                .collect::<Vec<_>>()
        });
    });
    group.finish();
}

criterion_group!(benches, stages);
criterion_main!(benches);

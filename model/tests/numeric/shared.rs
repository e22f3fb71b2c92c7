//! A stage with several hosts trains what one host trains, within rounding, and all its hosts have the same bits.

use skein_model::config::{DataConfig, ModelConfig, OptimiserConfig};
use skein_model::data::{self, Dataset};
use skein_model::stage::Stage;

const BATCH: usize = 24;

fn stage(config: &ModelConfig, data: &Dataset) -> Stage {
    let n_blocks = skein_model::stage::block_layouts(
        config,
        data.input_shape(),
        data.n_classes(),
        &OptimiserConfig::default(),
    );
    let blocks = 0..n_blocks.unwrap().len();
    let (shape, n) = (data.input_shape(), data.n_classes());
    Stage::new(config, shape, n, 3, blocks, OptimiserConfig::default()).unwrap()
}

fn bytes(stage: &Stage) -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in stage.blocks() {
        stage.encode_block(block, &mut bytes).unwrap();
    }
    bytes
}

/// Trains on two micro-batches of 12 samples per step, which hosts share out as `shares` says; the state of each.
fn trained(config: &ModelConfig, data: &Dataset, shares: &[usize], steps: usize) -> Vec<Stage> {
    let mut hosts: Vec<Stage> = shares.iter().map(|_| stage(config, data)).collect();
    let mut first = 0;
    for (host, share) in hosts.iter_mut().zip(shares) {
        host.set_first_row(first);
        first += *share as u32;
    }
    for step in 0..steps {
        let mut sums: Option<Vec<f32>> = None;
        let mut first = 0;
        for (host, share) in hosts.iter_mut().zip(shares) {
            for micro in 0..2 {
                let start = (step * BATCH + micro * 12 + first) % 1000;
                let rows: Vec<usize> = (start..start + share).collect();
                let batch = data.batch(&rows);
                let weight = *share as f32 / BATCH as f32;
                host.loss(micro as u32, weight, &batch, &batch.labels())
                    .unwrap();
            }
            first += share;
            let own = host.addend(*share as f32 / 12.0);
            assert_eq!(own.len(), host.addend_len());
            match &mut sums {
                None => sums = Some(own),
                Some(sums) => sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own),
            }
        }
        for host in &mut hosts {
            host.put_sum(sums.as_ref().unwrap()).unwrap();
            host.apply().unwrap();
        }
    }
    hosts
}

/// The largest difference of logits on samples that were not trained on, beside the largest logit.
fn apart(data: &Dataset, a: &Stage, b: &Stage) -> f32 {
    let rows: Vec<usize> = (1100..1140).collect();
    let logits = |stage: &Stage| {
        let activation = stage.evaluate(&data.batch(&rows)).unwrap();
        let (values, _) = activation.bytes().as_chunks::<4>();
        let values = values.iter().map(|value| f32::from_le_bytes(*value));
        values.collect::<Vec<_>>()
    };
    let (a, b) = (logits(a), logits(b));
    let largest = a.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    let difference = a.iter().zip(&b).map(|(a, b)| (a - b).abs());
    difference.fold(0.0, f32::max) / largest
}

#[test]
fn hosts_that_share_a_stage_train_what_one_trains() {
    skein_model::runtime::set_threads(1);
    let digits = data::load(&DataConfig::default(), &Default::default());
    let data = digits.unwrap().train;
    let mlp = ModelConfig::Mlp {
        hidden: vec![32, 16],
    };
    for config in [mlp, ModelConfig::Cnn {}] {
        let alone = trained(&config, &data, &[12], 5);
        for shares in [&[7, 5][..], &[1, 8, 3]] {
            let hosts = trained(&config, &data, shares, 5);
            for host in &hosts {
                assert_eq!(bytes(host), bytes(&hosts[0]), "{shares:?}");
            }
            let apart = apart(&data, &alone[0], &hosts[0]);
            assert!(apart < 1e-4, "{shares:?}: {apart}");
        }
    }
}

#[test]
fn hosts_of_batch_norm_keep_one_mean_and_stay_alike() {
    skein_model::runtime::set_threads(1);
    let digits = data::load(&DataConfig::default(), &Default::default());
    let data = digits.unwrap().train;
    let config = ModelConfig::MobilenetV2 { width: 0.25 };
    let hosts = trained(&config, &data, &[7, 5], 2);
    assert_eq!(bytes(&hosts[0]), bytes(&hosts[1]));
}

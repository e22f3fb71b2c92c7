//! The whole machinery computes what a plain loop computes.
//!
//! One dense peer: to the bit. Two dense synchronous peers against one process with both batches at once: within float
//! tolerance, since the sum over samples is made in another order.

use std::path::Path;

use skein_model::checkpoint;
use skein_model::config::{DataConfig, ModelConfig, OptimiserConfig, Split};
use skein_model::data::{self, Sampler, Splits};
use skein_model::model::Model;
use skein_model::train::Trainer;
use skein_tests::{Cluster, Exchange, Job};

const STEPS: u64 = 60;

/// A job of [`STEPS`] steps whose last replica is the model: nothing looks at the validation set before the end.
fn job(peers: u32, exchange: Exchange) -> Job {
    Job {
        peers,
        exchange,
        stop: "steps = 60",
        ..Job::default()
    }
}

/// The plain loop: no peers, no threads, no exchange. Each step takes a batch of each of `shards`.
struct Plain {
    trainer: Trainer,
    data: Splits,
    samplers: Vec<Sampler>,
    gradient: Vec<f32>,
    batch: usize,
}

impl Plain {
    fn new(job: &Job, shards: u32) -> Self {
        skein_model::runtime::set_threads(1);
        let data = data::load(&DataConfig::default(), &Default::default()).unwrap();
        let hidden = job.hidden.iter().map(|width| i64::from(*width)).collect();
        let shape = data.train.input_shape();
        let model = Model::new(&ModelConfig::Mlp { hidden }, shape, 10, Job::SEED).unwrap();
        let optimiser = OptimiserConfig::Sgd {
            lr: 0.02,
            momentum: 0.9,
            weight_decay: 0.0,
            nesterov: false,
        };
        let labels = data.train.labels();
        let sampler = |shard| Sampler::new(&Split::All {}, labels, Job::SEED, shard, 0).unwrap();
        Self {
            samplers: (0..shards).map(sampler).collect(),
            gradient: vec![0.0; model.n_parameters()],
            trainer: Trainer::new(model, optimiser).unwrap(),
            data,
            batch: job.batch as usize,
        }
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            let rows: Vec<usize> = self
                .samplers
                .iter_mut()
                .flat_map(|sampler| sampler.next_rows(self.batch))
                .collect();
            let batch = self.data.train.batch(&rows);
            self.trainer.gradient(&batch, &mut self.gradient).unwrap();
            self.trainer.apply(&self.gradient).unwrap();
        }
    }

    fn weights(&self) -> &[f32] {
        self.trainer.model().parameters().values()
    }
}

fn exported(cluster: &Cluster, n: usize, job: &str) -> Vec<f32> {
    let file = cluster.folder().join(format!("exported-{n}.safetensors"));
    let finished = cluster
        .node(n)
        .skein(&["export", job, "-o", &file.to_string_lossy()]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    weights(&file)
}

fn weights(file: &Path) -> Vec<f32> {
    let import = checkpoint::import(file).unwrap();
    import.model.parameters().values().to_vec()
}

#[test]
fn one_dense_peer_equals_a_plain_loop_to_the_bit() {
    let cluster = Cluster::start(1);
    for exchange in [Exchange::AsyncDense, Exchange::SyncDense] {
        let job = job(1, exchange);
        let mut plain = Plain::new(&job, 1);
        let id = cluster.submit(0, &job.toml());
        cluster.wait_for_one_hash(&[0], &id);
        plain.run(STEPS);
        let weights = exported(&cluster, 0, &id);
        let differ = weights
            .iter()
            .zip(plain.weights())
            .filter(|(a, b)| a.to_bits() != b.to_bits());
        let n = differ.count();
        assert!(
            n == 0,
            "{exchange:?}: {n} of {} weights differ",
            weights.len()
        );
        let last = cluster.node(0).events(&id, "step").pop().unwrap();
        assert_eq!(last["step"], STEPS);
    }
}

#[test]
fn two_dense_synchronous_peers_equal_one_process_with_both_batches() {
    let cluster = Cluster::start(2);
    let job = job(2, Exchange::SyncDense);
    let mut plain = Plain::new(&job, 2);
    let before = plain.weights().to_vec();
    let id = cluster.submit(0, &job.toml());
    cluster.wait_for_one_hash(&[0, 1], &id);
    plain.run(STEPS);

    let weights = exported(&cluster, 0, &id);
    assert_eq!(weights, exported(&cluster, 1, &id), "both replicas are one");
    let largest = |a: &[f32], b: &[f32]| {
        let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
        differences.fold(0.0, f32::max)
    };
    let moved = largest(&before, plain.weights());
    let apart = largest(&weights, plain.weights());
    println!("weights moved by up to {moved}, the two results are up to {apart} apart");
    // Sums of 32 terms in another order differ by a few units of f32's 6e-8 of their size; 60 steps with momentum 0.9
    // carry that on, tenfold at the worst: 60 * 10 * 6e-8 = 4e-5 of what the weights moved by.
    assert!(
        apart <= 4e-5 * moved.max(1.0),
        "{apart} apart, moved {moved}"
    );
}

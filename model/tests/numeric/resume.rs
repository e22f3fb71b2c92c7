//! A run that stops at a snapshot or a checkpoint and goes on is bit-identical to one that never stopped.

use skein_model::checkpoint::{Progress, Store};
use skein_model::config::{DataConfig, ModelConfig, OptimiserConfig, Split};
use skein_model::data::{self, Dataset, Sampler};
use skein_model::model::Model;
use skein_model::snapshot::Snapshot;
use skein_model::train::Trainer;

struct Run {
    trainer: Trainer,
    sampler: Sampler,
    gradient: Vec<f32>,
}

impl Run {
    fn new(
        digits: &Dataset,
        config: &ModelConfig,
        optimiser: &OptimiserConfig,
        seed: u64,
        position: u64,
    ) -> Self {
        let model = Model::new(config, digits.input_shape(), digits.n_classes(), seed).unwrap();
        let trainer = Trainer::new(model, optimiser.clone()).unwrap();
        let sampler =
            Sampler::new(&Split::Iid { shards: 2 }, digits.labels(), 1, 1, position).unwrap();
        Self {
            gradient: vec![0.0; trainer.model().n_parameters()],
            trainer,
            sampler,
        }
    }

    fn steps(&mut self, digits: &Dataset, n: usize) {
        for _ in 0..n {
            let batch = digits.batch(&self.sampler.next_rows(6));
            self.trainer.gradient(&batch, &mut self.gradient).unwrap();
            self.trainer.apply(&self.gradient).unwrap();
        }
    }
}

#[test]
fn a_resumed_run_is_bit_identical() {
    skein_model::runtime::set_threads(1);
    let digits = data::load(&DataConfig::default(), &Default::default())
        .unwrap()
        .train;
    let sgd = OptimiserConfig::Sgd {
        lr: 0.02,
        momentum: 0.9,
        weight_decay: 1e-4,
        nesterov: true,
    };
    let adamw = OptimiserConfig::Adamw {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.01,
    };
    // mobilenet-v2 has batch norm statistics and dropout, which must come back too.
    let mobilenet = ModelConfig::MobilenetV2 { width: 0.25 };
    // efficientnet-b1 has stochastic depth besides.
    let efficientnet = toml::from_str("kind = 'efficientnet-b1'\nwidth = 0.25").unwrap();
    for (config, optimiser) in [
        (ModelConfig::Mlp { hidden: vec![16] }, sgd),
        (mobilenet, adamw.clone()),
        (efficientnet, adamw),
    ] {
        let mut whole = Run::new(&digits, &config, &optimiser, 5, 0);
        whole.steps(&digits, 3);
        let snapshot = whole.trainer.snapshot();
        let position = whole.sampler.position();
        let bytes = snapshot.encode();
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path(), 3).unwrap();
        let progress = Progress {
            step: 3,
            sampler_position: position,
            ..Progress::default()
        };
        store
            .save(
                &snapshot,
                whole.trainer.layout(),
                digits.normalisation(),
                &progress,
            )
            .unwrap();
        whole.steps(&digits, 3);
        let expected = whole.trainer.snapshot();

        let decoded = Snapshot::decode(&bytes, whole.trainer.layout()).unwrap();
        let (stored, progress) = store.newest().unwrap().found.unwrap();
        assert!(stored == snapshot && decoded == snapshot);
        // Same seed: dropout is drawn from the seed and the number of batches seen.
        let mut resumed = Run::new(&digits, &config, &optimiser, 5, progress.sampler_position);
        resumed.trainer.restore(&stored).unwrap();
        resumed.steps(&digits, 3);
        assert!(resumed.trainer.snapshot() == expected, "{config:?}");
    }
}

#[test]
fn initial_weights_depend_on_the_seed_alone_and_are_the_same_everywhere() {
    let hash = |config: &ModelConfig, seed| {
        let hash = Model::new(config, [1, 28, 28], 10, seed)
            .unwrap()
            .initial_hash();
        hash.iter()
            .take(4)
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let mlp = ModelConfig::Mlp { hidden: vec![8] };
    assert_ne!(hash(&mlp, 1), hash(&mlp, 2));
    // Golden: a platform that draws other weights could not take part.
    let mobilenet = ModelConfig::MobilenetV2 { width: 1.0 };
    let efficientnet = toml::from_str("kind = 'efficientnet-b1'\nwidth = 0.5").unwrap();
    let resnet = toml::from_str("kind = 'resnet-50'\nwidth = 0.25").unwrap();
    let configs = [
        &mlp,
        &ModelConfig::Cnn {},
        &mobilenet,
        &efficientnet,
        &resnet,
    ];
    let hashes = configs.map(|config| hash(config, 1));
    assert_eq!(
        hashes,
        ["07ddcf48", "5c0026e8", "64f5ab0f", "88b29ff0", "5a3cd86f"]
    );
}

#[test]
fn models_have_the_size_they_promise_and_absurd_ones_are_refused() {
    let n = |config: &ModelConfig, shape, classes| {
        skein_model::model::Layout::new(config, shape, classes).map(|layout| layout.n_parameters())
    };
    assert_eq!(n(&ModelConfig::Cnn {}, [1, 28, 28], 10).unwrap(), 1_227_274);
    assert_eq!(n(&ModelConfig::Cnn {}, [3, 32, 32], 10).unwrap(), 1_596_490);
    assert_eq!(
        n(
            &ModelConfig::MobilenetV2 { width: 1.0 },
            [3, 224, 224],
            1000
        )
        .unwrap(),
        3_504_872
    );
    // As torchvision's.
    let efficientnet = toml::from_str("kind = 'efficientnet-b1'").unwrap();
    assert_eq!(n(&efficientnet, [3, 240, 240], 1000).unwrap(), 7_794_184);
    let resnet = toml::from_str("kind = 'resnet-50'").unwrap();
    assert_eq!(n(&resnet, [3, 224, 224], 1000).unwrap(), 25_557_032);
    let small = toml::from_str("kind = 'resnet-50'\nstem = 'cifar'").unwrap();
    assert_eq!(n(&small, [3, 32, 32], 10).unwrap(), 23_520_842);
    let huge = ModelConfig::Mlp {
        hidden: vec![1 << 20, 1 << 20],
    };
    assert!(
        n(&huge, [1, 28, 28], 10)
            .unwrap_err()
            .to_string()
            .contains("make it narrower")
    );
    assert!(
        n(
            &ModelConfig::Mlp {
                hidden: vec![1 << 20; 64]
            },
            [1024, 1 << 20, 1 << 20],
            10
        )
        .is_err()
    );
    assert!(
        n(&ModelConfig::Cnn {}, [1, 3, 28], 10)
            .unwrap_err()
            .to_string()
            .contains("at least 4x4")
    );
    assert!(n(&ModelConfig::MobilenetV2 { width: 1.0 }, [0, 32, 32], 10).is_err());
    assert!(n(&ModelConfig::Cnn {}, [1, 28, 28], 1).is_err());
    assert!(n(&ModelConfig::Cnn {}, [i64::MAX, i64::MAX, i64::MAX], 10).is_err());
    let blocks = Model::new(
        &ModelConfig::MobilenetV2 { width: 0.25 },
        [3, 32, 32],
        10,
        1,
    )
    .unwrap();
    let mut next = (0, 0);
    for block in blocks.blocks() {
        assert_eq!(
            (block.parameters().start, block.buffers().start),
            next,
            "{}",
            block.name()
        );
        next = (block.parameters().end, block.buffers().end);
    }
    assert_eq!(
        next,
        (
            blocks.parameters().segments().len(),
            blocks.buffers().segments().len()
        )
    );
}

//! Asynchronous stages: alone they are plain SGD, together they keep to the versions they should.

use std::collections::VecDeque;

use skein_model::config::{DataConfig, ModelConfig, OptimiserConfig};
use skein_model::data::{self, Dataset};
use skein_model::model::Model;
use skein_model::stage::{Activation, Depth, StageError, Stashed, assemble, block_layouts};
use skein_model::train::Trainer;

const SHAPE: [i64; 3] = [1, 28, 28];

fn digits() -> Dataset {
    skein_model::runtime::set_threads(1);
    data::load(&DataConfig::default(), &Default::default())
        .unwrap()
        .train
}

fn optimiser() -> OptimiserConfig {
    toml::from_str("kind = 'sgd'\nlr = 0.02\nmomentum = 0.5").unwrap()
}

#[test]
fn one_stage_is_plain_training_to_the_bit() {
    let digits = digits();
    for config in [
        ModelConfig::Cnn {},
        ModelConfig::MobilenetV2 { width: 0.25 },
    ] {
        let layouts = block_layouts(&config, SHAPE, 10, &optimiser()).unwrap();
        let model = Model::new(&config, SHAPE, 10, 3).unwrap();
        let mut trainer = Trainer::new(model, optimiser()).unwrap();
        let settings = (optimiser(), Depth::new(0, 1, false));
        let mut stage = Stashed::new(&config, SHAPE, 10, 3, 0..layouts.len(), settings).unwrap();
        let mut gradient = vec![0.0; trainer.model().n_parameters()];
        for micro in 0..5 {
            let rows: Vec<usize> = (micro * 8..micro * 8 + 8).collect();
            let batch = digits.batch(&rows);
            let expected = trainer.gradient(&batch, &mut gradient).unwrap();
            trainer.apply(&gradient).unwrap();
            let loss = stage
                .loss(micro as u32, None, &batch, &batch.labels())
                .unwrap();
            assert_eq!(loss.loss.to_bits(), expected.to_bits());
            assert_eq!(stage.n_versions(), 1);
        }
        let batch = digits.batch(&(100..116).collect::<Vec<_>>());
        let expected = trainer.evaluate(&digits, 100..116, 16).unwrap();
        let (loss, correct) = stage.evaluate_loss(&batch, &batch.labels()).unwrap();
        assert_eq!((loss / 16.0).to_bits(), expected.loss.to_bits());
        assert_eq!(correct as f64 / 16.0, expected.accuracy);
        assert_eq!(stage.evaluate(&batch).unwrap().shape(), [16, 10]);
        assert!(stage.set_learning_rate(-1.0).is_err() && stage.is_first() && stage.is_last());
        let states = (0..layouts.len()).map(|block| stage.block_state(block).unwrap());
        let snapshot = assemble(&layouts, states).unwrap();
        assert_eq!(snapshot.encode(), trainer.snapshot().encode());
    }
}

/// Runs `n` stages as 1F1B does in the steady state, and calls `after` behind each micro-batch.
fn run(
    stages: &mut [Stashed],
    digits: &Dataset,
    n_micro: usize,
    vertical: bool,
    mut after: impl FnMut(&mut [Stashed], u64),
) {
    let n = stages.len();
    let mut waiting: VecDeque<(u32, u64, Vec<i64>, Activation)> = VecDeque::new();
    for micro in 0..n_micro {
        let rows: Vec<usize> = (micro * 4..micro * 4 + 4).collect();
        let batch = digits.batch(&rows);
        let (first, others) = stages.split_first_mut().unwrap();
        let (version, activation) = first.forward(micro as u32, None, &batch).unwrap();
        waiting.push_back((micro as u32, version, batch.labels(), activation));
        if waiting.len() < n {
            continue;
        }
        let (micro, version, labels, mut activation) = waiting.pop_front().unwrap();
        let tag = vertical.then_some(version);
        let (last, middle) = others.split_last_mut().unwrap();
        for stage in middle.iter_mut() {
            activation = stage.forward(micro, tag, &activation).unwrap().1;
        }
        let loss = last.loss(micro, tag, &activation, &labels).unwrap();
        let mut gradient = loss.gradient;
        for stage in middle.iter_mut().rev() {
            gradient = stage.backward(micro, &gradient.unwrap()).unwrap();
        }
        assert_eq!(first.backward(micro, &gradient.unwrap()).unwrap(), None);
        after(stages, u64::from(micro) + 1);
    }
}

fn pipeline(config: &ModelConfig, vertical: bool) -> Vec<Stashed> {
    let cuts = [0, 1, 2, 4];
    let stage = |position: usize| {
        let settings = (optimiser(), Depth::new(position, 3, vertical));
        let blocks = cuts[position]..cuts[position + 1];
        Stashed::new(config, SHAPE, 10, 3, blocks, settings).unwrap()
    };
    (0..3).map(stage).collect()
}

#[test]
fn versions_kept_are_bounded_and_all_stages_reach_the_same() {
    let digits = digits();
    let config = ModelConfig::Cnn {};
    for vertical in [false, true] {
        let mut stages = pipeline(&config, vertical);
        let mut most = 0;
        run(&mut stages, &digits, 12, vertical, |stages, updates| {
            for (position, stage) in stages.iter().enumerate() {
                let bound = if vertical { 3 } else { 3 - position };
                assert!(
                    stage.n_versions() <= bound,
                    "{position}: {}",
                    stage.n_versions()
                );
                assert!(stage.n_in_flight() < 3 - position);
                assert_eq!(stage.newest(), updates);
                most = most.max(stage.n_versions());
            }
        });
        assert_eq!(most, 3);
        let refused = stages[0].forward(50, Some(1), &digits.batch(&[0]));
        assert!(matches!(
            refused,
            Err(StageError::Version { wanted: 1, .. })
        ));
        let batch = digits.batch(&[0]);
        stages[0].forward(51, None, &batch).unwrap();
        let refused = stages[0].forward(52, None, &batch);
        assert!(matches!(refused, Err(StageError::Busy { n: 3 })));
    }
}

#[test]
fn a_backward_pass_uses_the_weights_of_its_forward_pass() {
    let digits = digits();
    let config = ModelConfig::Cnn {};
    let batch = digits.batch(&[0, 1, 2, 3]);
    let new = || {
        let settings = (optimiser(), Depth::new(0, 2, false));
        Stashed::new(&config, SHAPE, 10, 3, 0..2, settings).unwrap()
    };
    let gradient_of = |activation: &Activation, seed: f32| {
        let values: Vec<f32> = activation.values().iter().map(|v| v * seed).collect();
        Activation::from_values(activation.shape().to_vec(), &values).unwrap()
    };
    // Plain SGD is additive: both gradients are taken at version 0, in whatever order forward passes come.
    let mut stashed = new();
    let (_, first) = stashed.forward(0, None, &batch).unwrap();
    let (_, second) = stashed.forward(1, None, &batch).unwrap();
    assert_eq!(first, second);
    stashed.backward(0, &gradient_of(&first, 0.1)).unwrap();
    stashed.backward(1, &gradient_of(&second, 0.1)).unwrap();
    let mut fresh = new();
    let (version, only) = fresh.forward(0, None, &batch).unwrap();
    assert_eq!((version, &only), (0, &first));
    fresh.backward(0, &gradient_of(&only, 0.1)).unwrap();
    let initial = new().block_state(0).unwrap();
    let once = fresh.block_state(0).unwrap();
    let twice = stashed.block_state(0).unwrap();
    // momentum 0.5: v1 = g, v2 = 1.5 g; w2 = w0 - lr 2.5 g
    for ((w0, w1), w2) in initial
        .parameters
        .iter()
        .zip(&once.parameters)
        .zip(&twice.parameters)
    {
        assert!(((w2 - w0) - 2.5 * (w1 - w0)).abs() < 1e-6);
    }
    let moved = once.parameters != initial.parameters;
    assert!(moved);
}

#[test]
fn aggregation_averages_the_versions_that_are_kept() {
    let digits = digits();
    let config = ModelConfig::Cnn {};
    let mut stages = pipeline(&config, true);
    let mut history = vec![stages[2].block_state(3).unwrap().parameters];
    run(&mut stages, &digits, 5, true, |stages, _| {
        history.push(stages[2].block_state(3).unwrap().parameters);
    });
    let newest = stages[2].newest();
    stages[2].aggregate().unwrap();
    assert_eq!(stages[2].newest(), newest);
    let mean = stages[2].block_state(3).unwrap().parameters;
    let latest = &history[history.len() - 3..];
    for (i, mean) in mean.iter().enumerate() {
        let expected = latest
            .iter()
            .map(|values| f64::from(values[i]))
            .sum::<f64>()
            / 3.0;
        assert!((f64::from(*mean) - expected).abs() < 1e-6);
    }
    // The first stage has used its newest version for a micro-batch in flight.
    let batch = digits.batch(&[9]);
    stages[0].drop_in_flight();
    stages[0].forward(90, None, &batch).unwrap();
    assert!(matches!(
        stages[0].aggregate(),
        Err(StageError::Busy { n: 1 })
    ));
}

#[test]
fn loaded_states_are_the_only_version() {
    let digits = digits();
    let config = ModelConfig::Cnn {};
    let mut stages = pipeline(&config, false);
    run(&mut stages, &digits, 6, false, |_, _| {});
    let states = [
        stages[2].block_state(2).unwrap(),
        stages[2].block_state(3).unwrap(),
    ];
    let mut other = pipeline(&config, false).pop().unwrap();
    other.load(&states).unwrap();
    assert_eq!(
        (other.newest(), other.n_versions()),
        (stages[2].newest(), 1)
    );
    assert_eq!(other.block_state(3).unwrap(), states[1]);
    assert!(matches!(other.load(&states[..1]), Err(StageError::Uneven)));
    stages[0].drop_in_flight();
    assert_eq!(stages[0].n_in_flight(), 0);
}

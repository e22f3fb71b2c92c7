//! Asynchronous stages: alone they are plain SGD, together they keep to the versions they should, and what they learn is
//! worth what synchronous stages learn.

use std::collections::{BTreeMap, VecDeque};

use skein_model::config::{DataConfig, ModelConfig, OptimiserConfig, Split};
use skein_model::data::{self, Dataset, Sampler, Splits};
use skein_model::model::Model;
use skein_model::stage::{
    Activation, BlockState, Depth, StageError, Stashed, assemble, block_layouts,
};
use skein_model::train::Trainer;

const SHAPE: [i64; 3] = [1, 28, 28];

fn splits() -> Splits {
    skein_model::runtime::set_threads(1);
    data::load(&DataConfig::default(), &Default::default()).unwrap()
}

fn digits() -> Dataset {
    splits().train
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
        toml::from_str("kind = 'efficientnet-b1'\nwidth = 0.25").unwrap(),
        toml::from_str("kind = 'resnet-50'\nwidth = 0.125").unwrap(),
    ] {
        let layouts = block_layouts(&config, SHAPE, 10, &optimiser()).unwrap();
        let model = Model::new(&config, SHAPE, 10, 3).unwrap();
        let mut trainer = Trainer::new(model, optimiser()).unwrap();
        let settings = (optimiser(), Depth::new(1, 1, false));
        let mut stage = Stashed::new(&config, SHAPE, 10, 3, 0..layouts.len(), settings).unwrap();
        let mut gradient = vec![0.0; trainer.model().n_parameters()];
        for micro in 0..5 {
            let rows: Vec<usize> = (micro * 8..micro * 8 + 8).collect();
            let batch = digits.batch(&rows);
            let expected = trainer.gradient(&batch, &mut gradient).unwrap();
            trainer.apply(&gradient).unwrap();
            let loss = stage
                .loss(micro as u64, None, &batch, &batch.labels())
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

/// Stages in the order in which 1F1B runs them once it is full, which is when gradients are oldest: in round t stage i of n
/// makes forward pass t and then backward pass t - (n - i - 1).
struct Pipeline {
    stages: Vec<Stashed>,
    vertical: bool,
    next: u64,
    /// Per stage, gradients that have come.
    gradients: Vec<VecDeque<Activation>>,
    /// Versions of forward passes in flight, per stage and batch.
    used: BTreeMap<(usize, u64), u64>,
    /// The oldest gradient of each stage, in updates.
    stalest: Vec<u64>,
}

impl Pipeline {
    fn new(
        config: &ModelConfig,
        cuts: &[usize],
        optimiser: &OptimiserConfig,
        vertical: bool,
    ) -> Self {
        let n = cuts.len() - 1;
        let stage = |position: usize| {
            let settings = (optimiser.clone(), Depth::new(n - position, n, vertical));
            let blocks = cuts[position]..cuts[position + 1];
            Stashed::new(config, SHAPE, 10, 3, blocks, settings).unwrap()
        };
        Self {
            stages: (0..n).map(stage).collect(),
            vertical,
            next: 0,
            gradients: vec![VecDeque::new(); n],
            used: BTreeMap::new(),
            stalest: vec![0; n],
        }
    }

    /// One round with the next batch.
    fn round(&mut self, digits: &Dataset, rows: &[usize]) {
        let n = self.stages.len();
        let (t, batch) = (self.next, digits.batch(rows));
        self.next += 1;
        let mut activation: Option<Activation> = None;
        let mut tag = None;
        for (i, stage) in self.stages.iter_mut().enumerate() {
            let age = |version: u64, stage: &Stashed| stage.newest() - version;
            if i + 1 == n {
                let used = tag.unwrap_or(stage.newest());
                self.stalest[i] = self.stalest[i].max(age(used, stage));
                let labels = batch.labels();
                let loss = match &activation {
                    None => stage.loss(t, tag, &batch, &labels),
                    Some(activation) => stage.loss(t, tag, activation, &labels),
                };
                let before = i.checked_sub(1);
                if let (Some(gradient), Some(before)) = (loss.unwrap().gradient, before) {
                    self.gradients[before].push_back(gradient);
                }
                break;
            }
            let (version, output) = match &activation {
                None => stage.forward(t, None, &batch),
                Some(activation) => stage.forward(t, tag, activation),
            }
            .unwrap();
            self.used.insert((i, t), version);
            if self.vertical {
                tag = Some(version);
            }
            activation = Some(output);
        }
        for i in 0..n - 1 {
            if let Some(batch) = t.checked_sub((n - 1 - i) as u64) {
                self.backward(i, batch);
            }
        }
    }

    fn backward(&mut self, i: usize, batch: u64) {
        let stage = &mut self.stages[i];
        let used = self.used.remove(&(i, batch)).unwrap();
        self.stalest[i] = self.stalest[i].max(stage.newest() - used);
        let gradient = self.gradients[i].pop_front().unwrap();
        let gradient = stage.backward(batch, &gradient).unwrap();
        assert_eq!(gradient.is_none(), i == 0);
        if let Some(gradient) = gradient {
            self.gradients[i - 1].push_back(gradient);
        }
    }

    /// Brings back what is in flight.
    fn drain(&mut self) {
        for i in (0..self.stages.len() - 1).rev() {
            while !self.gradients[i].is_empty() {
                let batch = self.stages[i].newest();
                self.backward(i, batch);
            }
        }
    }

    fn states(&self) -> Vec<BlockState> {
        let of = |stage: &Stashed| -> Vec<BlockState> {
            let states = stage.blocks().map(|block| stage.block_state(block));
            states.collect::<Result<_, _>>().unwrap()
        };
        self.stages.iter().flat_map(of).collect()
    }
}

/// Rows of batch `t`, four of them.
fn rows(t: usize) -> Vec<usize> {
    (4 * t..4 * t + 4).collect()
}

fn three(config: &ModelConfig, vertical: bool) -> Pipeline {
    Pipeline::new(config, &[0, 1, 2, 4], &optimiser(), vertical)
}

#[test]
fn a_gradient_of_stage_i_of_n_is_at_most_n_minus_i_minus_1_updates_old() {
    let digits = digits();
    let config = ModelConfig::Mlp {
        hidden: vec![12, 10, 8, 8],
    };
    for n in 1..=5 {
        for vertical in [false, true] {
            let cuts: Vec<usize> = (0..=n).map(|cut| cut * 5 / n).collect();
            let mut pipeline = Pipeline::new(&config, &cuts, &optimiser(), vertical);
            let mut most = vec![0; n];
            for t in 0..12 {
                pipeline.round(&digits, &rows(t));
                for (i, stage) in pipeline.stages.iter().enumerate() {
                    most[i] = most[i].max(stage.n_versions());
                    assert!(stage.n_in_flight() < n - i);
                }
            }
            // The order of a full pipeline reaches the bound, and vertical sync brings all to that of the first stage.
            let bound = |i: usize| if vertical { n } else { n - i };
            let ages: Vec<u64> = (0..n).map(|i| bound(i) as u64 - 1).collect();
            assert_eq!(pipeline.stalest, ages, "{n} stages, {vertical}");
            assert_eq!(most, (0..n).map(bound).collect::<Vec<_>>());
        }
    }
}

#[test]
fn what_goes_beyond_the_bound_is_refused() {
    let digits = digits();
    let mut stages = three(&ModelConfig::Cnn {}, true);
    (0..6).for_each(|t| stages.round(&digits, &rows(t)));
    let first = &mut stages.stages[0];
    let batch = digits.batch(&[0]);
    assert_eq!((first.newest(), first.n_in_flight()), (4, 2));
    let refused = first.forward(50, Some(1), &batch);
    assert!(matches!(
        refused,
        Err(StageError::Version {
            wanted: 1,
            oldest: 2,
            newest: 4
        })
    ));
    assert!(first.forward(50, Some(5), &batch).is_err(), "to come yet");
    let again = first.forward(5, None, &batch);
    assert!(matches!(
        again,
        Err(StageError::InFlightAlready { micro: 5 })
    ));
    first.forward(51, None, &batch).unwrap();
    let refused = first.forward(52, None, &batch);
    assert!(matches!(refused, Err(StageError::Busy { n: 3 })));
}

#[test]
fn a_backward_pass_uses_the_weights_of_its_forward_pass() {
    let digits = digits();
    let config = ModelConfig::Cnn {};
    let batch = digits.batch(&[0, 1, 2, 3]);
    let new = || {
        let settings = (optimiser(), Depth::new(2, 2, false));
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
    let mut stages = three(&ModelConfig::Cnn {}, true);
    let weights = |stages: &Pipeline| stages.stages[2].block_state(3).unwrap().parameters;
    let mut history = vec![weights(&stages)];
    for t in 0..5 {
        stages.round(&digits, &rows(t));
        history.push(weights(&stages));
    }
    let last = &mut stages.stages[2];
    let newest = last.newest();
    last.aggregate().unwrap();
    assert_eq!(last.newest(), newest);
    let mean = weights(&stages);
    let latest = &history[history.len() - 3..];
    for (i, mean) in mean.iter().enumerate() {
        let expected = latest
            .iter()
            .map(|values| f64::from(values[i]))
            .sum::<f64>()
            / 3.0;
        assert!((f64::from(*mean) - expected).abs() < 1e-6);
    }
    // The first stage has used its newest version for a batch in flight.
    let first = &mut stages.stages[0];
    first.forward(90, None, &digits.batch(&[9])).unwrap();
    assert!(matches!(first.aggregate(), Err(StageError::Busy { n: 1 })));
}

#[test]
fn the_states_of_all_stages_at_one_version_belong_together_whatever_is_in_flight() {
    let digits = digits();
    // Its batch norm records with every forward pass.
    let config = ModelConfig::MobilenetV2 { width: 0.25 };
    let layouts = block_layouts(&config, SHAPE, 10, &optimiser()).unwrap();
    let cuts = [0, 5, 11, layouts.len()];
    let new = || Pipeline::new(&config, &cuts, &optimiser(), true);
    let mut pipeline = new();
    // What each stage holds when it has made three updates, others ahead of it or behind.
    let mut line: Vec<Option<Vec<BlockState>>> = vec![None; 3];
    for t in 0..6 {
        pipeline.round(&digits, &rows(t));
        for (stage, line) in pipeline.stages.iter().zip(&mut line) {
            if stage.newest() == 3 {
                let states = stage.blocks().map(|block| stage.block_state(block));
                line.get_or_insert(states.collect::<Result<_, _>>().unwrap());
            }
        }
    }
    let line: Vec<BlockState> = line.into_iter().flat_map(Option::unwrap).collect();
    // The same without anything in flight: three batches go in, and all of them come back.
    let mut drained = new();
    (0..3).for_each(|t| drained.round(&digits, &rows(t)));
    drained.drain();
    let bytes = |states: &[BlockState]| assemble(&layouts, states.to_vec()).unwrap().encode();
    assert_eq!(bytes(&line), bytes(&drained.states()));
    // Dropping what is in flight leaves the newest version as it is, and what is loaded is the only one.
    let first = &mut pipeline.stages[0];
    let (version, before) = (first.newest(), first.block_state(0).unwrap());
    first.drop_in_flight();
    assert_eq!(first.block_state(0).unwrap(), before);
    let mut encoded = Vec::new();
    first.encode_block(0, &mut encoded).unwrap();
    assert_eq!(encoded, before.encode());
    let mut other = new();
    let states: Vec<BlockState> = (0..5).map(|b| first.block_state(b).unwrap()).collect();
    other.stages[0].load(&states).unwrap();
    let loaded = &mut other.stages[0];
    assert_eq!((loaded.newest(), loaded.n_versions()), (version, 1));
    let batch = digits.batch(&rows(9));
    let (a, b) = (
        first.forward(90, None, &batch),
        loaded.forward(90, None, &batch),
    );
    assert_eq!(a.unwrap(), b.unwrap());
    assert!(matches!(
        loaded.load(&states),
        Err(StageError::Busy { n: 1 })
    ));
    loaded.drop_in_flight();
    assert!(matches!(loaded.load(&states[..1]), Err(StageError::Uneven)));
}

#[test]
fn recomputation_changes_no_bit_of_stashed_stages() {
    let digits = digits();
    let config = ModelConfig::MobilenetV2 { width: 0.25 };
    let run = |recompute: bool| {
        let mut pipeline = Pipeline::new(&config, &[0, 5, 11, 20], &optimiser(), true);
        let stages = &mut pipeline.stages;
        stages
            .iter_mut()
            .for_each(|stage| stage.set_recompute(recompute));
        (0..5).for_each(|t| pipeline.round(&digits, &rows(t)));
        let states = pipeline.states();
        states.iter().map(BlockState::encode).collect::<Vec<_>>()
    };
    assert_eq!(run(true), run(false));
}

/// FTPipeHD's check: what is learnt of as many samples with gradients as old as they can be. The rate is divided as the node
/// divides it.
#[test]
fn four_stages_that_wait_for_nobody_learn_the_digits_as_well_as_one() {
    let splits = splits();
    let config = ModelConfig::Cnn {};
    let calm = (0.05, 0.5);
    let learn = |cuts: &[usize], vertical: bool, aggregate_every: Option<u64>, (lr, momentum)| {
        let sgd = OptimiserConfig::Sgd {
            lr,
            momentum,
            weight_decay: 0.0,
            nesterov: false,
        };
        let mut pipeline = Pipeline::new(&config, cuts, &sgd, vertical);
        let mut sampler = Sampler::new(&Split::All {}, splits.train.labels(), 0, 0, 0).unwrap();
        let n = cuts.len() - 1;
        for (i, stage) in pipeline.stages.iter_mut().enumerate() {
            let versions = if vertical { n } else { n - i };
            stage.set_learning_rate(lr / versions as f64).unwrap();
        }
        for _ in 0..300 {
            pipeline.round(&splits.train, &sampler.next_rows(32));
            for stage in &mut pipeline.stages {
                let is_due = |every| stage.newest() > 0 && stage.newest().is_multiple_of(every);
                if aggregate_every.is_some_and(is_due) {
                    stage.aggregate().unwrap();
                }
            }
        }
        pipeline.drain();
        let rows: Vec<usize> = (0..splits.validation.len()).collect();
        let batch = splits.validation.batch(&rows);
        let mut activation: Option<Activation> = None;
        let (last, others) = pipeline.stages.split_last().unwrap();
        for stage in others {
            activation = Some(match &activation {
                None => stage.evaluate(&batch).unwrap(),
                Some(activation) => stage.evaluate(activation).unwrap(),
            });
        }
        let (_, correct) = match &activation {
            None => last.evaluate_loss(&batch, &batch.labels()).unwrap(),
            Some(activation) => last.evaluate_loss(activation, &batch.labels()).unwrap(),
        };
        correct as f64 / rows.len() as f64
    };
    let cuts = [0, 1, 2, 3, 4];
    let one = learn(&[0, 4], false, None, calm);
    let own = learn(&cuts, false, None, calm);
    let synced = learn(&cuts, true, None, calm);
    // Much momentum and old gradients do not go together, unless the versions are averaged.
    let aggregated = learn(&cuts, false, Some(5), (0.02, 0.9));
    println!("one stage {one}, four {own}, {synced} with vertical sync, {aggregated} aggregated");
    assert!(one > 0.95, "{one}");
    assert!(
        own > one - 0.02 && aggregated > one - 0.02,
        "{one} {own} {aggregated}"
    );
    // All stages are as late as the first one.
    assert!(synced > one - 0.06, "{one} {synced}");
}

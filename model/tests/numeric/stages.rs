//! A model cut into stages is the whole model, to the bit: parameters, buffers, optimiser state.

use std::ops::Range;

use skein_model::config::{DataConfig, ModelConfig, OptimiserConfig, Source, Stem};
use skein_model::data::{self, Batch, Dataset};
use skein_model::model::{Layout, Model};
use skein_model::snapshot::Snapshot;
use skein_model::stage::{
    self, Activation, BlockLayout, BlockState, Stage, StageError, assemble, block_layout,
    block_layouts, boundary_bytes, boundary_shapes, dissect,
};
use skein_model::train::Trainer;

const SEED: u64 = 5;
const STEPS: usize = 3;
/// Sizes of a step's micro-batches; unequal, so that their weights matter.
const MICRO: [usize; 4] = [4, 4, 3, 5];

/// A model with data it can learn.
struct Case {
    config: ModelConfig,
    data: Dataset,
    shape: [i64; 3],
    n_classes: i64,
}

fn case(config: ModelConfig) -> Case {
    skein_model::runtime::set_threads(1);
    let data = match &config {
        ModelConfig::Gpt { context, .. } => text(*context),
        _ => {
            let digits = data::load(&DataConfig::default(), &Default::default());
            digits.unwrap().train
        }
    };
    Case {
        shape: data.input_shape(),
        n_classes: data.n_classes(),
        config,
        data,
    }
}

/// Bytes that look random, cut into samples of `context`.
fn text(context: i64) -> Dataset {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    let mut stream = skein_model::random::Stream::new(1, "text");
    let bytes: Vec<u8> = (0..8000).map(|_| 97 + stream.below(20) as u8).collect();
    std::fs::write(&path, bytes).unwrap();
    let config = DataConfig {
        source: Source::Text,
        path: Some(path),
        context: Some(context as u32),
        ..DataConfig::default()
    };
    data::load(&config, &Default::default()).unwrap().train
}

fn gpt(text: &str) -> ModelConfig {
    let small = "kind = 'gpt'\nlayers = 3\nheads = 2\nwidth = 16\ncontext = 12";
    toml::from_str(&format!("{small}\n{text}")).unwrap()
}

fn zoo() -> Vec<Case> {
    let configs = [
        ModelConfig::Mlp {
            hidden: vec![24, 20, 16, 12],
        },
        ModelConfig::Cnn {},
        ModelConfig::MobilenetV2 { width: 0.25 },
        ModelConfig::EfficientnetB1 {
            width: 0.25,
            stochastic_depth: 0.5,
        },
        ModelConfig::Resnet50 {
            width: 0.125,
            stem: Stem::Imagenet,
        },
        gpt("tied = false\ndropout = 0.1"),
    ];
    configs.into_iter().map(case).collect()
}

fn sgd() -> OptimiserConfig {
    OptimiserConfig::Sgd {
        lr: 0.05,
        momentum: 0.9,
        weight_decay: 1e-4,
        nesterov: false,
    }
}

fn adamw() -> OptimiserConfig {
    toml::from_str("kind = 'adamw'\nlr = 0.003").unwrap()
}

/// The micro-batches of one step with their shares of it.
fn micro_batches(data: &Dataset, step: usize) -> Vec<(f32, Batch)> {
    let samples: usize = MICRO.iter().sum();
    let mut first = step * samples;
    let batch = |n: &usize| {
        let rows: Vec<usize> = (first..first + n).collect();
        first += n;
        (*n as f32 / samples as f32, data.batch(&rows))
    };
    MICRO.iter().map(batch).collect()
}

/// The whole model with the same micro-batches, snapshots after each step.
fn whole(case: &Case, optimiser: &OptimiserConfig) -> Vec<Snapshot> {
    let model = Model::new(&case.config, case.shape, case.n_classes, SEED).unwrap();
    let mut trainer = Trainer::new(model, optimiser.clone()).unwrap();
    let mut gradient = vec![0.0; trainer.model().n_parameters()];
    let step = |step| {
        let mut sum = vec![0.0; gradient.len()];
        for (weight, batch) in micro_batches(&case.data, step) {
            trainer.gradient(&batch, &mut gradient).unwrap();
            for (sum, value) in sum.iter_mut().zip(&gradient) {
                *sum += weight * value;
            }
        }
        trainer.apply(&sum).unwrap();
        trainer.snapshot()
    };
    (0..STEPS).map(step).collect()
}

/// `n_blocks` blocks in `n` runs, unequal where they can be.
fn cut(n_blocks: usize, n: usize) -> Vec<Range<usize>> {
    let points: Vec<usize> = (0..=n).map(|i| (i * n_blocks).div_ceil(n)).collect();
    points.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

struct Pipeline {
    stages: Vec<Stage>,
    layouts: Vec<BlockLayout>,
}

impl Pipeline {
    fn new(case: &Case, optimiser: &OptimiserConfig, n: usize) -> Self {
        let layouts = block_layouts(&case.config, case.shape, case.n_classes, optimiser).unwrap();
        let stage = |blocks| {
            Stage::new(
                &case.config,
                case.shape,
                case.n_classes,
                SEED,
                blocks,
                optimiser.clone(),
            )
            .unwrap()
        };
        Self {
            stages: cut(layouts.len(), n).into_iter().map(stage).collect(),
            layouts,
        }
    }

    fn recomputing(mut self, recompute: bool) -> Self {
        let stages = self.stages.iter_mut();
        stages.for_each(|stage| stage.set_recompute(recompute));
        self
    }

    /// One step: all forward passes of all stages but the last, then loss and backward passes.
    fn gradients(&mut self, batches: &[(f32, Batch)]) {
        let (last, others) = self.stages.split_last_mut().unwrap();
        let mut ready: Vec<Option<Activation>> = Vec::new();
        for (micro, (weight, batch)) in batches.iter().enumerate() {
            let mut activation: Option<Activation> = None;
            for stage in others.iter_mut() {
                let micro = micro as u32;
                activation = Some(
                    match &activation {
                        None => stage.forward(micro, *weight, batch),
                        Some(before) => stage.forward(micro, *weight, before),
                    }
                    .unwrap(),
                );
            }
            ready.push(activation);
        }
        for (micro, ((weight, batch), activation)) in batches.iter().zip(&ready).enumerate() {
            let (micro, labels) = (micro as u32, batch.labels());
            let loss = match activation {
                None => last.loss(micro, *weight, batch, &labels),
                Some(before) => last.loss(micro, *weight, before, &labels),
            };
            let mut gradient = loss.unwrap().gradient;
            for stage in others.iter_mut().rev() {
                gradient = stage.backward(micro, &gradient.unwrap()).unwrap();
            }
            assert_eq!(gradient, None);
        }
    }

    fn step(&mut self, case: &Case, step: usize) {
        self.gradients(&micro_batches(&case.data, step));
        self.stages
            .iter_mut()
            .for_each(|stage| stage.apply().unwrap());
    }

    fn states(&self) -> Vec<BlockState> {
        let of = |stage: &Stage| -> Vec<BlockState> {
            let blocks = stage.blocks();
            blocks
                .map(|block| stage.block_state(block).unwrap())
                .collect()
        };
        self.stages.iter().flat_map(of).collect()
    }

    fn snapshot(&self) -> Snapshot {
        assemble(&self.layouts, self.states()).unwrap()
    }

    fn load(&mut self, states: &[BlockState]) {
        for stage in &mut self.stages {
            for block in stage.blocks() {
                stage.load_block(&states[block]).unwrap();
            }
        }
    }
}

fn assert_same(got: &Snapshot, expected: &Snapshot, what: &str) {
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let differ = |got: &[f32], expected: &[f32]| {
        let pairs = bits(got).into_iter().zip(bits(expected));
        pairs.filter(|(got, expected)| got != expected).count()
    };
    assert_eq!(
        differ(&got.parameters, &expected.parameters),
        0,
        "{what}: parameters"
    );
    assert_eq!(
        differ(&got.buffers, &expected.buffers),
        0,
        "{what}: buffers"
    );
    for (got, expected) in got.optimiser.iter().zip(&expected.optimiser) {
        assert_eq!(differ(got, expected), 0, "{what}: optimiser");
    }
    assert_eq!(got.encode(), expected.encode(), "{what}");
}

#[test]
fn any_number_of_stages_makes_the_whole_model_to_the_bit() {
    for case in zoo() {
        let n_blocks = boundary_shapes(&case.config, case.shape, case.n_classes)
            .unwrap()
            .len();
        for optimiser in [sgd(), adamw()] {
            let expected = whole(&case, &optimiser);
            for n in 1..=n_blocks.min(5) {
                for recompute in [false, true] {
                    let what = format!(
                        "{:?} {optimiser:?} {n} stages, again {recompute}",
                        case.config
                    );
                    let mut pipeline = Pipeline::new(&case, &optimiser, n).recomputing(recompute);
                    for (step, expected) in expected.iter().enumerate() {
                        pipeline.step(&case, step);
                        assert_same(&pipeline.snapshot(), expected, &format!("{what}, {step}"));
                    }
                }
            }
        }
    }
}

#[test]
fn another_cut_in_the_middle_changes_no_bit() {
    for case in zoo() {
        for optimiser in [sgd(), adamw()] {
            let expected = whole(&case, &optimiser);
            let mut pipeline = Pipeline::new(&case, &optimiser, 3);
            pipeline.step(&case, 0);
            let encoded: Vec<Vec<u8>> = pipeline.states().iter().map(BlockState::encode).collect();
            let mut bytes = Vec::new();
            pipeline.stages[1]
                .encode_block(pipeline.stages[1].blocks().start, &mut bytes)
                .unwrap();
            assert_eq!(bytes, encoded[pipeline.stages[1].blocks().start]);
            let layouts = encoded.iter().zip(&pipeline.layouts);
            let states: Vec<BlockState> = layouts
                .map(|(bytes, layout)| BlockState::decode(bytes, layout).unwrap())
                .collect();
            for n in [1, 2, 4] {
                let mut other = Pipeline::new(&case, &optimiser, n);
                other.load(&states);
                other.step(&case, 1);
                // A step under way is dropped and made again.
                other.gradients(&micro_batches(&case.data, 0)[..2]);
                let n_seen = expected[1].batches_tracked;
                assert_eq!(other.stages[0].batches_tracked(), n_seen + 2);
                let before = other.states();
                assert_same(
                    &other.snapshot(),
                    &expected[1],
                    "a state is of the boundary",
                );
                other.stages.iter_mut().for_each(Stage::drop_in_flight);
                assert_eq!(other.states(), before);
                other.step(&case, 2);
                assert_same(
                    &other.snapshot(),
                    &expected[2],
                    &format!("{:?}, {n} stages", case.config),
                );
            }
        }
    }
}

#[test]
fn a_checkpoint_is_taken_apart_and_its_weights_hash_is_the_models() {
    let case = case(ModelConfig::MobilenetV2 { width: 0.25 });
    let expected = whole(&case, &sgd());
    let mut layout = Layout::new(&case.config, case.shape, case.n_classes).unwrap();
    layout.optimiser = vec!["momentum".into()];
    let layouts = block_layouts(&case.config, case.shape, case.n_classes, &sgd()).unwrap();
    let apart = |layout_of_block| dissect(&layout, &expected[0], layout_of_block).unwrap();
    let states: Vec<BlockState> = layouts.iter().map(apart).collect();
    let again = assemble(&layouts, states.clone()).unwrap();
    assert_eq!(again.weights_hash(), expected[0].weights_hash());
    let mut pipeline = Pipeline::new(&case, &sgd(), 5);
    pipeline.load(&states);
    pipeline.step(&case, 1);
    assert_same(&pipeline.snapshot(), &expected[1], "from a checkpoint");
    let seventh = block_layout(&case.config, case.shape, case.n_classes, &sgd(), 7).unwrap();
    assert_eq!(seventh.as_ref(), layouts.get(7));
    let beyond = block_layout(
        &case.config,
        case.shape,
        case.n_classes,
        &sgd(),
        layouts.len(),
    )
    .unwrap();
    assert_eq!(beyond, None);
}

#[test]
fn stages_may_live_on_other_threads() {
    fn moves<T: Send>() {}
    moves::<Stage>();
    moves::<stage::Stashed>();
}

#[test]
fn initial_weights_are_the_whole_models() {
    for case in zoo() {
        let model = Model::new(&case.config, case.shape, case.n_classes, SEED).unwrap();
        let pipeline = Pipeline::new(&case, &OptimiserConfig::default(), 4);
        assert_eq!(pipeline.snapshot().weights_hash(), model.initial_hash());
    }
}

#[test]
fn evaluation_in_stages_is_that_of_the_whole_model() {
    for case in zoo() {
        // Plain SGD throws deep models off: of four samples with a pixel each, gradients through batch norm are huge.
        let optimiser = adamw();
        let snapshot = whole(&case, &optimiser).pop().unwrap();
        let model = Model::new(&case.config, case.shape, case.n_classes, SEED).unwrap();
        let mut trainer = Trainer::new(model, optimiser.clone()).unwrap();
        trainer.restore(&snapshot).unwrap();
        let expected = trainer.evaluate(&case.data, 100..164, 64).unwrap();
        let batch = case.data.batch(&(100..164).collect::<Vec<_>>());
        let labels = batch.labels();
        for n in 1..=4 {
            let mut pipeline = Pipeline::new(&case, &optimiser, n);
            for step in 0..STEPS {
                pipeline.step(&case, step);
            }
            let (last, others) = pipeline.stages.split_last().unwrap();
            let mut activation: Option<Activation> = None;
            for stage in others {
                activation = Some(match &activation {
                    None => stage.evaluate(&batch).unwrap(),
                    Some(before) => stage.evaluate(before).unwrap(),
                });
            }
            let (loss, correct) = match &activation {
                None => last.evaluate_loss(&batch, &labels).unwrap(),
                Some(before) => last.evaluate_loss(before, &labels).unwrap(),
            };
            let n = labels.len() as f64;
            assert!(loss.is_finite(), "{:?}", case.config);
            assert_eq!((loss / n).to_bits(), expected.loss.to_bits());
            assert_eq!(correct as f64 / n, expected.accuracy);
        }
    }
}

#[test]
fn shapes_behind_blocks_are_those_that_come_out() {
    for case in zoo() {
        let batch = case.data.batch(&[0, 1, 2]);
        let shapes = boundary_shapes(&case.config, case.shape, case.n_classes).unwrap();
        let bytes = boundary_bytes(&case.config, case.shape, case.n_classes).unwrap();
        let stage = |block| {
            let blocks = block..block + 1;
            Stage::new(
                &case.config,
                case.shape,
                case.n_classes,
                SEED,
                blocks,
                OptimiserConfig::default(),
            )
            .unwrap()
        };
        let mut activation: Option<Activation> = None;
        for (block, (shape, bytes)) in shapes.iter().zip(&bytes).enumerate() {
            let stage = stage(block);
            let output = match &activation {
                None => stage.evaluate(&batch).unwrap(),
                Some(before) => stage.evaluate(before).unwrap(),
            };
            assert_eq!(
                &output.shape()[1..],
                shape.as_slice(),
                "{:?} {block}",
                case.config
            );
            assert_eq!(stage.output_shape(), shape.as_slice());
            assert_eq!(output.bytes().len() as u64, 3 * bytes);
            activation = Some(output);
        }
    }
    let large = boundary_shapes(
        &ModelConfig::MobilenetV2 { width: 1.0 },
        [3, 224, 224],
        1000,
    );
    let large = large.unwrap();
    assert_eq!(large[0], [32, 112, 112]);
    assert_eq!(large[18], [1280, 7, 7]);
    assert_eq!(large[19], [1000]);
}

#[test]
fn what_a_stage_makes_lies_in_the_memory_that_it_was_lent() {
    let case = case(ModelConfig::Cnn {});
    let batch = case.data.batch(&[0, 1]);
    let new = |blocks| {
        let (config, shape) = (&case.config, case.shape);
        Stage::new(config, shape, case.n_classes, SEED, blocks, sgd()).unwrap()
    };
    let (mut first, mut last) = (new(0..2), new(2..4));
    let plain = first.forward(0, 0.5, &batch).unwrap();
    let gradient = last
        .loss(0, 0.5, &plain, &[1, 2])
        .unwrap()
        .gradient
        .unwrap();
    for recompute in [false, true] {
        let (mut first, mut last) = (new(0..2), new(2..4));
        first.set_recompute(recompute);
        let lent = |stage: &mut Stage| {
            let memory = vec![7; 80 + plain.bytes().len()];
            let at = memory.as_ptr();
            stage.lend(memory, 72);
            at
        };
        let at = lent(&mut first);
        let output = first.forward(0, 0.5, &batch).unwrap();
        assert_eq!(output, plain);
        let frame = output.into_frame(&[1; 72]);
        assert_eq!(
            (frame.as_ptr(), frame.len()),
            (at, 72 + plain.bytes().len())
        );
        let input = Activation::in_frame(plain.shape().to_vec(), frame, 72).unwrap();
        let at = lent(&mut last);
        let made = last
            .loss(0, 0.5, &input, &[1, 2])
            .unwrap()
            .gradient
            .unwrap();
        assert_eq!(made, gradient);
        let memory = made.into_bytes();
        assert_eq!(memory.as_ptr(), at);
        assert_eq!(
            first.forward(1, 0.5, &batch).unwrap(),
            plain,
            "memory is lent once"
        );
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let case = case(ModelConfig::Cnn {});
    let batch = case.data.batch(&[0, 1]);
    let new = |blocks| {
        Stage::new(
            &case.config,
            case.shape,
            case.n_classes,
            SEED,
            blocks,
            sgd(),
        )
    };
    for blocks in [2..2, 3..5, 7..8] {
        assert!(matches!(
            new(blocks),
            Err(StageError::Blocks { n_blocks: 4, .. })
        ));
    }
    let (mut first, mut last) = (new(0..2).unwrap(), new(2..4).unwrap());
    let before = (first.block_state(1).unwrap(), last.block_state(3).unwrap());
    let activation = first.forward(0, 0.5, &batch).unwrap();
    assert!(matches!(
        first.forward(0, 0.5, &batch),
        Err(StageError::InFlightAlready { micro: 0 })
    ));
    assert!(matches!(
        first.forward(1, 0.0, &batch),
        Err(StageError::Weight { .. })
    ));
    assert!(matches!(
        first.forward(1, 0.5, &activation),
        Err(StageError::WrongStage { .. })
    ));
    assert!(matches!(
        last.forward(0, 0.5, &batch),
        Err(StageError::WrongStage { .. })
    ));
    assert!(matches!(
        first.backward(1, &activation),
        Err(StageError::NotInFlight { micro: 1 })
    ));
    assert!(matches!(
        first.loss(1, 0.5, &batch, &[0, 1]),
        Err(StageError::WrongStage { .. })
    ));
    assert!(matches!(first.apply(), Err(StageError::Busy { n: 1 })));
    assert!(matches!(
        first.load_block(&before.0),
        Err(StageError::Busy { .. })
    ));
    let other = Activation::from_values(vec![2, 3], &[0.0; 6]).unwrap();
    assert!(matches!(
        last.forward(0, 0.5, &other),
        Err(StageError::Shape { .. })
    ));
    assert!(matches!(
        first.backward(0, &other),
        Err(StageError::Shape { .. })
    ));
    for labels in [vec![1], vec![1, 10], vec![-1, 0]] {
        let loss = last.loss(0, 0.5, &activation, &labels);
        assert!(matches!(loss, Err(StageError::Labels { expected: 2, .. })));
    }
    let mut values = activation.values();
    values[17] = f32::NAN;
    let poisoned = Activation::from_values(activation.shape().to_vec(), &values).unwrap();
    assert!(matches!(
        last.loss(0, 0.5, &poisoned, &[1, 2]),
        Err(StageError::Activation(_))
    ));
    assert!(matches!(
        first.backward(0, &poisoned),
        Err(StageError::Activation(_))
    ));
    assert!(matches!(
        last.load_block(&before.0),
        Err(StageError::NotHeld { block: 1, .. })
    ));
    assert!(matches!(
        first.block_state(2),
        Err(StageError::NotHeld { block: 2, .. })
    ));
    assert!(first.set_learning_rate(0.0).is_err());
    first.drop_in_flight();
    assert_eq!(first.n_in_flight(), 0);
    assert_eq!(
        (first.block_state(1).unwrap(), last.block_state(3).unwrap()),
        before
    );
    // Blocks from different steps do not make a stage.
    let ahead = BlockState {
        optimiser_steps: 1,
        ..before.0
    };
    first.load_block(&ahead).unwrap();
    assert!(matches!(
        first.forward(0, 0.5, &batch),
        Err(StageError::Uneven)
    ));
    assert!(matches!(first.apply(), Err(StageError::Uneven)));
}

#[test]
fn blocks_that_share_a_variable_are_not_parted() {
    let case = case(gpt("tied = true"));
    let expected = whole(&case, &adamw());
    let mut one = Pipeline::new(&case, &adamw(), 1);
    for (step, expected) in expected.iter().enumerate() {
        one.step(&case, step);
        assert_same(&one.snapshot(), expected, "tied");
    }
    let stage = |blocks| {
        Stage::new(
            &case.config,
            case.shape,
            case.n_classes,
            SEED,
            blocks,
            sgd(),
        )
    };
    assert!(stage(1..3).is_ok());
    for blocks in [0..2, 2..5] {
        let error = stage(blocks).unwrap_err();
        assert!(matches!(error, StageError::Tied { block: 4, .. }));
        let error = error.to_string();
        assert!(error.contains("transformer.wte.weight") && error.contains("tied = false"));
    }
}

/// Prints what a delta of a real step is of a whole state: `cargo test -p skein-model --test numeric delta -- --nocapture`.
#[test]
fn a_delta_between_two_steps_gives_the_newer_one() {
    let case = case(ModelConfig::MobilenetV2 { width: 1.0 });
    for (name, optimiser) in [("sgd", sgd()), ("adamw", adamw())] {
        let mut pipeline = Pipeline::new(&case, &optimiser, 1);
        let mut before = Vec::new();
        for step in 0..STEPS {
            pipeline.step(&case, step);
            let states: Vec<Vec<u8>> = pipeline.states().iter().map(BlockState::encode).collect();
            let (mut whole, mut packed) = (0, 0);
            for (old, new) in std::mem::replace(&mut before, states.clone())
                .iter()
                .zip(&states)
            {
                let delta = stage::delta::encode(old, new).unwrap();
                let decoded = stage::delta::decode(old, &delta).unwrap();
                assert_eq!(stage::digest(&decoded), stage::digest(new));
                whole += new.len();
                packed += delta.len();
            }
            let ratio = packed as f64 / whole.max(1) as f64;
            println!("{name}, step {step}: {packed} of {whole} bytes ({ratio:.3})");
        }
    }
}

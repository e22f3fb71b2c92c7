//! The models compute what PyTorch and torchvision compute with the same weights.
//!
//! `testdata/golden.json` was written by `testdata/golden.py write` with the versions named in it. Where a Python with
//! torch (and torchvision) is at hand (`SKEIN_PYTHON`, else `python3`), the script also loads our exports.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use skein_model::arena::{Arena, Segment};
use skein_model::checkpoint::export;
use skein_model::config::ModelConfig;
use skein_model::data::Normalisation;
use skein_model::model::{Layout, Model};
use skein_model::snapshot::Snapshot;
use tch::Tensor;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    model: ModelConfig,
    input_shape: [i64; 3],
    n_classes: i64,
    logits: Vec<f64>,
    statistics: std::collections::BTreeMap<String, Vec<f64>>,
}

/// As in golden.py.
const TRAIN_BATCH: i64 = 8;

/// `n` numbers in [-1, 1) that look random, as `uniform` in golden.py.
fn uniform(n: usize, stream: u64) -> Vec<f64> {
    let mix = |i: u64| {
        let mut x = (i * 2_654_435_761 + stream * 40_503 + 12_345) % (1 << 32);
        x ^= x >> 16;
        x = x * 2_246_822_519 % (1 << 32);
        x ^= x >> 13;
        (x >> 8) as f64 / f64::from(1 << 23) - 1.0
    };
    (0..n as u64).map(mix).collect()
}

fn fill(arena: &mut Arena, stream_of: impl Fn(&str) -> u64) {
    for Segment {
        name,
        offset,
        len,
        shape,
    } in arena.segments().to_vec()
    {
        let scale = |value: f64| match &shape[1..] {
            [] if name.ends_with("running_var") => 1.0 + value / 2.0,
            [] if name.ends_with("weight") => 1.0 + value / 4.0,
            [] => value / 8.0,
            fan => value * (6.0 / fan.iter().product::<i64>() as f64).sqrt(),
        };
        let values = uniform(len, stream_of(&name))
            .into_iter()
            .map(|value| scale(value) as f32);
        arena.values_mut()[offset..offset + len]
            .iter_mut()
            .zip(values)
            .for_each(|(slot, value)| *slot = value);
    }
}

/// Samples by formula: pixels, or tokens of a gpt.
fn samples(layout: &Layout, batch: i64) -> Tensor {
    let shape = layout.input_shape;
    let value = |v: f64| match layout.config {
        ModelConfig::Gpt { vocabulary, .. } => ((v + 1.0) / 2.0 * vocabulary as f64).floor(),
        _ => v,
    };
    let values: Vec<f32> = uniform((batch * shape.iter().product::<i64>()) as usize, 0)
        .into_iter()
        .map(|v| value(v) as f32)
        .collect();
    Tensor::from_slice(&values).view([batch, shape[0], shape[1], shape[2]])
}

fn filled(config: &ModelConfig, shape: [i64; 3], n_classes: i64) -> Model {
    let mut model = Model::new(config, shape, n_classes, 1).unwrap();
    let layout = model.layout().clone();
    let mut names: Vec<&str> = layout
        .parameters
        .iter()
        .chain(&layout.buffers)
        .map(|segment| segment.name.as_str())
        .collect();
    names.sort_unstable();
    let stream_of = |name: &str| names.binary_search(&name).unwrap() as u64 + 1;
    fill(model.parameters_mut(), stream_of);
    fill(model.buffers_mut(), stream_of);
    model
}

fn logits(model: &mut Model, batch: i64) -> Vec<f64> {
    let x = samples(model.layout(), batch);
    let y = tch::no_grad(|| model.forward(&x, false)).unwrap();
    Vec::<f32>::try_from(y.flatten(0, -1))
        .unwrap()
        .into_iter()
        .map(f64::from)
        .collect()
}

/// Logits of two samples, and their differences, to which what is alike for both adds nothing. Kernels sum in another
/// order on other machines: a few units of f32's 6e-8 for each of up to 116 layers; differences have larger errors.
fn assert_close(got: &[f64], expected: &[f64], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let largest = |values: &[f64]| {
        values
            .iter()
            .fold(0f64, |most, value| most.max(value.abs()))
    };
    let differences = |values: &[f64]| -> Vec<f64> {
        let (first, second) = values.split_at(values.len() / 2);
        first.iter().zip(second).map(|(a, b)| a - b).collect()
    };
    let scale = largest(expected);
    assert!(scale > 1e-3, "{what}: logits near zero would prove nothing");
    let spread = differences(expected);
    assert!(
        largest(&spread) > 1e-3 * scale,
        "{what}: the same logits for all samples would prove nothing"
    );
    let compare = |got: &[f64], expected: &[f64], most: f64| {
        for (got, expected) in got.iter().zip(expected) {
            let error = (got - expected).abs();
            assert!(error < most, "{what}: {got} instead of {expected}");
        }
    };
    compare(got, expected, 1e-4 * scale);
    compare(&differences(got), &spread, 5e-3 * largest(&spread));
}

#[test]
fn logits_and_statistics_agree_with_pytorch() {
    skein_model::runtime::set_threads(1);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden.json");
    let golden: Golden = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for case in golden.cases {
        let what = format!("{:?} {:?}", case.model, case.input_shape);
        let mut model = filled(&case.model, case.input_shape, case.n_classes);
        let per_sample = case.n_classes * model.layout().labels_per_sample() as i64;
        let batch = case.logits.len() as i64 / per_sample;
        assert_close(&logits(&mut model, batch), &case.logits, &what);
        let x = samples(model.layout(), TRAIN_BATCH);
        let _ = tch::no_grad(|| model.forward(&x, true)).unwrap();
        for (name, expected) in case.statistics {
            let segment = model
                .buffers()
                .segments()
                .iter()
                .find(|segment| segment.name == name)
                .unwrap();
            for (got, expected) in model.buffers().values()[segment.offset..]
                .iter()
                .zip(expected)
            {
                assert!(
                    (f64::from(*got) - expected).abs() < 1e-3 * expected.abs().max(0.1),
                    "{what} {name}: {got} instead of {expected}"
                );
            }
        }
    }
}

#[test]
fn exports_load_into_pytorch_where_it_is_installed() {
    skein_model::runtime::set_threads(1);
    let python = std::env::var("SKEIN_PYTHON").unwrap_or_else(|_| "python3".into());
    let imports = Command::new(&python)
        .args(["-c", "import torch, torchvision, safetensors, numpy"])
        .output();
    if !imports.is_ok_and(|output| output.status.success()) {
        println!("skipped: {python} cannot import torch, torchvision, safetensors and numpy");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden.py");
    let folder = tempfile::tempdir().unwrap();
    let other = |text: &str| toml::from_str::<ModelConfig>(text).unwrap();
    let gpt = |tied: bool| other(&format!("kind = 'gpt'\nlayers = 2\ntied = {tied}"));
    for (config, shape, n_classes) in [
        (ModelConfig::Mlp { hidden: vec![12] }, [1, 8, 8], 10),
        (ModelConfig::Cnn {}, [1, 28, 28], 10),
        (ModelConfig::MobilenetV2 { width: 1.0 }, [3, 32, 32], 10),
        (ModelConfig::MobilenetV2 { width: 0.5 }, [1, 28, 28], 10),
        (other("kind = 'efficientnet-b1'"), [3, 32, 32], 10),
        (
            other("kind = 'efficientnet-b1'\nwidth = 0.5"),
            [1, 28, 28],
            10,
        ),
        (other("kind = 'resnet-50'\nwidth = 0.5"), [3, 32, 32], 10),
        (
            other("kind = 'resnet-50'\nwidth = 0.25\nstem = 'cifar'"),
            [1, 28, 28],
            10,
        ),
        (gpt(true), [1, 1, 128], 256),
        (gpt(false), [1, 1, 100], 256),
    ] {
        let mut model = filled(&config, shape, n_classes);
        let path = folder.path().join("model.safetensors");
        let channels = shape[0] as usize;
        let normalisation = Normalisation {
            mean: vec![0.5; channels],
            std: vec![0.25; channels],
        };
        export(&path, &Snapshot::of(&model), model.layout(), &normalisation).unwrap();
        let output = Command::new(&python)
            .arg(&script)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .arg("logits")
            .arg(&path)
            .arg("2")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{config:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let expected: Vec<f64> = serde_json::from_slice(&output.stdout).unwrap();
        assert_close(&logits(&mut model, 2), &expected, &format!("{config:?}"));
    }
}

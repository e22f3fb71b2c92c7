//! The models learn: the digits to 97 % within a few epochs, on one thread, always with the same numbers.

use skein_model::config::{DataConfig, ModelConfig, OptimiserConfig, Source, Split};
use skein_model::data::{self, Sampler};
use skein_model::model::Model;
use skein_model::train::Trainer;

#[test]
fn the_cnn_reaches_97_percent_on_the_digits() {
    skein_model::runtime::set_threads(1);
    let digits = data::load(&DataConfig::default(), &Default::default()).unwrap();
    let model = Model::new(&ModelConfig::Cnn {}, digits.train.input_shape(), 10, 0).unwrap();
    let sgd = OptimiserConfig::Sgd {
        lr: 0.02,
        momentum: 0.9,
        weight_decay: 0.0,
        nesterov: false,
    };
    let mut trainer = Trainer::new(model, sgd).unwrap();
    let mut sampler = Sampler::new(&Split::All {}, digits.train.labels(), 0, 0, 0).unwrap();
    let mut gradient = vec![0.0; trainer.model().n_parameters()];
    let mut accuracy = 0.0;
    while accuracy < 0.97 {
        assert!(
            sampler.position() < 12_000,
            "only {accuracy} after {} samples",
            sampler.position()
        );
        for _ in 0..20 {
            trainer
                .gradient(&digits.train.batch(&sampler.next_rows(32)), &mut gradient)
                .unwrap();
            trainer.apply(&gradient).unwrap();
        }
        let rows = 0..digits.validation.len();
        accuracy = trainer
            .evaluate(&digits.validation, rows, 100)
            .unwrap()
            .accuracy;
    }
    println!("{accuracy} after {} samples", sampler.position());
}

#[test]
fn a_gpt_learns_a_text_by_heart() {
    skein_model::runtime::set_threads(1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    std::fs::write(&path, "who learns by heart says it again, and ".repeat(100)).unwrap();
    let config = DataConfig {
        source: Source::Text,
        path: Some(path),
        context: Some(32),
        ..DataConfig::default()
    };
    let text = data::load(&config, &Default::default()).unwrap();
    let gpt = "kind = 'gpt'\nlayers = 2\nheads = 2\nwidth = 32\ncontext = 32\ndropout = 0.05";
    let gpt: ModelConfig = toml::from_str(gpt).unwrap();
    let model = Model::new(&gpt, text.train.input_shape(), 256, 0).unwrap();
    let adamw: OptimiserConfig = toml::from_str("kind = 'adamw'\nlr = 0.01").unwrap();
    let mut trainer = Trainer::new(model, adamw).unwrap();
    let rows = 0..text.validation.len();
    let before = trainer.evaluate(&text.validation, rows.clone(), 8).unwrap();
    // Every byte is as likely as any other.
    assert!((before.loss - 256f64.ln()).abs() < 0.1, "{before:?}");
    let mut sampler = Sampler::new(&Split::All {}, text.train.labels(), 0, 0, 0).unwrap();
    let mut gradient = vec![0.0; trainer.model().n_parameters()];
    for _ in 0..300 {
        let batch = text.train.batch(&sampler.next_rows(8));
        trainer.gradient(&batch, &mut gradient).unwrap();
        trainer.apply(&gradient).unwrap();
    }
    let after = trainer.evaluate(&text.validation, rows, 8).unwrap();
    assert!(after.accuracy > 0.9 && after.loss < 0.5, "{after:?}");
}

#[test]
fn images_are_refused_by_a_gpt_and_text_by_the_others() {
    let digits = data::load(&DataConfig::default(), &Default::default())
        .unwrap()
        .train;
    let gpt: ModelConfig = toml::from_str("kind = 'gpt'").unwrap();
    let message = |shape, n_classes| {
        Model::new(&gpt, shape, n_classes, 0)
            .unwrap_err()
            .to_string()
    };
    assert!(message(digits.input_shape(), 10).contains("1 to 128 tokens, got [1, 28, 28]"));
    assert!(message([1, 1, 129], 256).contains("data.context at most model.context"));
    assert!(message([1, 1, 128], 99).contains("set model.vocabulary = 99"));
    let mlp = Model::new(&ModelConfig::Mlp { hidden: vec![4] }, [1, 1, 4], 256, 0).unwrap();
    let mut trainer = Trainer::new(mlp, OptimiserConfig::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    std::fs::write(&path, "0123456789").unwrap();
    let config = DataConfig {
        source: Source::Text,
        path: Some(path),
        context: Some(4),
        ..DataConfig::default()
    };
    let text = data::load(&config, &Default::default()).unwrap().train;
    let mut gradient = vec![0.0; trainer.model().n_parameters()];
    let error = trainer
        .gradient(&text.batch(&[0]), &mut gradient)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("needs 1 labels for this batch, got 4"),
        "{error}"
    );
}

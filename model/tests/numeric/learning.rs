//! The models learn: the digits to 97 % within a few epochs, on one thread, always with the same numbers.

use skein_model::config::{DataConfig, ModelConfig, OptimiserConfig, Split};
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

//! The trainer does what a plain libtorch loop does, to the bit.

use skein_model::config::{DataConfig, ModelConfig, OptimiserConfig, Split};
use skein_model::data::{self, Sampler};
use skein_model::model::Model;
use skein_model::train::Trainer;

use super::plain::Plain;

#[test]
fn the_trainer_equals_a_plain_loop_to_the_bit() {
    skein_model::runtime::set_threads(1);
    let digits = data::load(&DataConfig::default(), &Default::default())
        .unwrap()
        .train;
    let model = Model::new(&ModelConfig::Cnn {}, digits.input_shape(), 10, 3).unwrap();
    let mut plain = Plain::copy_of(&model);
    let sgd = OptimiserConfig::Sgd {
        lr: 0.02,
        momentum: 0.9,
        weight_decay: 0.0,
        nesterov: false,
    };
    let mut trainer = Trainer::new(model, sgd).unwrap();
    let mut sampler = Sampler::new(&Split::All {}, digits.labels(), 3, 0, 0).unwrap();
    let mut gradient = vec![0.0; trainer.model().n_parameters()];
    for step in 0..10 {
        let batch = digits.batch(&sampler.next_rows(32));
        let loss = trainer.gradient(&batch, &mut gradient).unwrap();
        trainer.apply(&gradient).unwrap();
        assert_eq!(
            loss.to_bits(),
            plain.step(batch.x(), batch.y(), 0.02).to_bits(),
            "step {step}"
        );
    }
    let plain: Vec<f32> = plain
        .parameters
        .iter()
        .flat_map(|p| Vec::<f32>::try_from(p.detach().flatten(0, -1)).unwrap())
        .collect();
    assert!(plain == trainer.model().parameters().values());
}

//! The gradient that `Trainer` writes is that of the loss it returns.

use skein_model::config::{DataConfig, ModelConfig, OptimiserConfig};
use skein_model::data::{self, Dataset};
use skein_model::model::Model;
use skein_model::train::{TrainError, Trainer};

fn digits() -> Dataset {
    data::load(&DataConfig::default(), &Default::default())
        .unwrap()
        .train
}

fn trainer(config: &ModelConfig) -> Trainer {
    skein_model::runtime::set_threads(1);
    let model = Model::new(config, [1, 28, 28], 10, 11).unwrap();
    Trainer::new(model, OptimiserConfig::default()).unwrap()
}

/// Directional derivative: (L(w + h d) - L(w - h d)) / 2h against the scalar product of gradient and d, for directions d
/// along the gradient of one variable at a time. The step is small so that few ReLUs change sides; the tolerance allows
/// for f32 rounding of the loss (2e-7 / h) and for those that do.
#[test]
fn the_gradient_agrees_with_finite_differences() {
    for config in [
        ModelConfig::Mlp {
            hidden: vec![12, 8],
        },
        ModelConfig::Cnn {},
    ] {
        let mut trainer = trainer(&config);
        let batch = digits().batch(&[3, 1, 4, 15, 9, 2, 6, 5]);
        let mut gradient = vec![0.0; trainer.model().n_parameters()];
        let mut scratch = gradient.clone();
        trainer.gradient(&batch, &mut gradient).unwrap();
        let segments = trainer.model().layout().parameters.clone();
        for segment in segments {
            let range = segment.offset..segment.offset + segment.len;
            let norm = gradient[range.clone()]
                .iter()
                .map(|g| g * g)
                .sum::<f32>()
                .sqrt();
            assert!(norm > 0.0, "{}", segment.name);
            let original = trainer.model().parameters().values().to_vec();
            let step = 3e-4;
            let mut loss_at = |sign: f32| {
                let values = trainer.model_mut().parameters_mut().values_mut();
                values.copy_from_slice(&original);
                for i in range.clone() {
                    values[i] += sign * step * gradient[i] / norm;
                }
                f64::from(trainer.gradient(&batch, &mut scratch).unwrap())
            };
            let slope = (loss_at(1.0) - loss_at(-1.0)) / f64::from(2.0 * step);
            trainer
                .model_mut()
                .parameters_mut()
                .values_mut()
                .copy_from_slice(&original);
            let error = (slope - f64::from(norm)).abs();
            assert!(
                error < 0.02 * f64::from(norm) + 2e-3,
                "{}: slope {slope}, norm {norm}",
                segment.name
            );
        }
    }
}

#[test]
fn a_gradient_of_two_halves_averages_to_that_of_the_whole() {
    let mut trainer = trainer(&ModelConfig::Cnn {});
    let digits = digits();
    let n = trainer.model().n_parameters();
    let (mut whole, mut first, mut second) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
    let rows: Vec<usize> = (0..16).collect();
    trainer.gradient(&digits.batch(&rows), &mut whole).unwrap();
    trainer
        .gradient(&digits.batch(&rows[..8]), &mut first)
        .unwrap();
    trainer
        .gradient(&digits.batch(&rows[8..]), &mut second)
        .unwrap();
    let largest = whole.iter().fold(0f32, |largest, g| largest.max(g.abs()));
    for ((w, a), b) in whole.iter().zip(&first).zip(&second) {
        assert!((w - (a + b) / 2.0).abs() < 1e-5 * largest.max(1.0));
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut trainer = trainer(&ModelConfig::Mlp { hidden: vec![4] });
    let digits = digits();
    let before = trainer.snapshot();
    let mut short = vec![0.0; 3];
    assert!(matches!(
        trainer.gradient(&digits.batch(&[0]), &mut short),
        Err(TrainError::GradientLength { got: 3, .. })
    ));
    assert!(matches!(
        trainer.apply(&short),
        Err(TrainError::GradientLength { .. })
    ));
    assert!(matches!(
        trainer.evaluate(&digits, 5..5, 8),
        Err(TrainError::Rows { .. })
    ));
    assert!(matches!(
        trainer.evaluate(&digits, 0..9999, 8),
        Err(TrainError::Rows { len: 1500, .. })
    ));
    assert!(trainer.set_learning_rate(0.0).is_err());
    assert_eq!(trainer.snapshot(), before);
    let other = Model::new(&ModelConfig::Cnn {}, [3, 32, 32], 10, 1).unwrap();
    let mut other = Trainer::new(other, OptimiserConfig::default()).unwrap();
    let mut gradient = vec![0.0; other.model().n_parameters()];
    assert!(
        other
            .gradient(&digits.batch(&[0]), &mut gradient)
            .unwrap_err()
            .to_string()
            .contains("[B, 3, 32, 32]")
    );
    assert!(matches!(
        other.evaluate(&digits, 0..8, 8),
        Err(TrainError::Dataset { .. })
    ));
    assert!(other.restore(&before).is_err());
}

#[test]
fn a_diverged_loss_is_reported_with_the_step() {
    let mut trainer = trainer(&ModelConfig::Mlp { hidden: vec![4] });
    trainer.model_mut().parameters_mut().values_mut()[0] = f32::NAN;
    let mut gradient = vec![7.0; trainer.model().n_parameters()];
    let error = trainer
        .gradient(&digits().batch(&[0, 1]), &mut gradient)
        .unwrap_err();
    assert!(error.to_string().contains("NaN after 0 steps"), "{error}");
    assert!(gradient.iter().all(|g| *g == 7.0));
}

//! The optimiser's update, over flat slices.
//!
//! One pass over memory, and every product and sum rounded on its own (no fused multiply-add), so the same gradient
//! gives the same weights on every platform. The formulas are PyTorch's (`torch.optim.SGD`, `torch.optim.AdamW`).

use crate::config::{ConfigError, OptimiserConfig};

/// The optimiser with its state.
#[derive(Debug)]
pub(crate) struct Optimiser {
    config: OptimiserConfig,
    /// One vector per name of `OptimiserConfig::state_names`.
    pub(crate) state: Vec<Vec<f32>>,
    /// Updates made.
    pub(crate) steps: u64,
}

impl Optimiser {
    /// An optimiser for `n_parameters` parameters with its state at zero.
    pub(crate) fn new(config: OptimiserConfig, n_parameters: usize) -> Self {
        let state = config
            .state_names()
            .iter()
            .map(|_| vec![0.0; n_parameters])
            .collect();
        Self {
            config,
            state,
            steps: 0,
        }
    }

    pub(crate) fn config(&self) -> &OptimiserConfig {
        &self.config
    }

    /// Sets the learning rate of the next updates, if it is one.
    pub(crate) fn try_learning_rate(&mut self, rate: f64) -> Result<(), ConfigError> {
        let mut changed = self.config.clone();
        match &mut changed {
            OptimiserConfig::Sgd { lr, .. } | OptimiserConfig::Adamw { lr, .. } => *lr = rate,
        }
        changed.validate()?;
        self.config = changed;
        Ok(())
    }

    /// SGD with momentum only: others have none to change.
    pub(crate) fn set_momentum(&mut self, value: f64) {
        if let OptimiserConfig::Sgd { momentum, .. } = &mut self.config
            && !self.state.is_empty()
        {
            *momentum = value;
        }
    }

    /// Moves `weights` against `scale * gradient`; both are as long as the state.
    pub(crate) fn update(&mut self, weights: &mut [f32], gradient: &[f32], scale: f32) {
        self.steps += 1;
        match (&self.config, self.state.as_mut_slice()) {
            (
                OptimiserConfig::Sgd {
                    lr,
                    momentum,
                    weight_decay,
                    nesterov,
                },
                state,
            ) => {
                let (lr, decay) = (*lr as f32, *weight_decay as f32);
                match state {
                    [] => sgd_plain(weights, gradient, [lr, decay, scale]),
                    [v, ..] => sgd_momentum(
                        weights,
                        gradient,
                        v,
                        [lr, *momentum as f32, decay, scale],
                        *nesterov,
                    ),
                }
            }
            (
                OptimiserConfig::Adamw {
                    lr,
                    beta1,
                    beta2,
                    epsilon,
                    weight_decay,
                },
                [m, v, ..],
            ) => {
                let steps = self.steps.min(i32::MAX as u64) as i32;
                // Powers by multiplication, not `powf`, which differs between platforms.
                let correction = |beta: f64| 1.0 - power(beta, steps);
                let rate = AdamwRate {
                    decay: (1.0 - lr * weight_decay) as f32,
                    beta1: *beta1 as f32,
                    beta2: *beta2 as f32,
                    one_minus_beta1: (1.0 - beta1) as f32,
                    one_minus_beta2: (1.0 - beta2) as f32,
                    step: (lr / correction(*beta1)) as f32,
                    root: correction(*beta2).sqrt() as f32,
                    epsilon: *epsilon as f32,
                    scale,
                };
                adamw(weights, gradient, m, v, &rate);
            }
            (OptimiserConfig::Adamw { .. }, _) => unreachable!("adamw keeps two state vectors"),
        }
    }
}

/// `base` to the `exponent` by squaring.
fn power(mut base: f64, mut exponent: i32) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent % 2 == 1 {
            result *= base;
        }
        base *= base;
        exponent /= 2;
    }
    result
}

fn sgd_plain(weights: &mut [f32], gradient: &[f32], rates: [f32; 3]) {
    let [lr, decay, scale] = rates;
    for (w, g) in weights.iter_mut().zip(gradient) {
        *w -= (g * scale + *w * decay) * lr;
    }
}

fn sgd_momentum(
    weights: &mut [f32],
    gradient: &[f32],
    v: &mut [f32],
    rates: [f32; 4],
    nesterov: bool,
) {
    let [lr, momentum, decay, scale] = rates;
    for ((w, g), v) in weights.iter_mut().zip(gradient).zip(v) {
        let g = g * scale;
        let g = if decay == 0.0 { g } else { g + *w * decay };
        *v = *v * momentum + g;
        *w -= if nesterov { g + *v * momentum } else { *v } * lr;
    }
}

/// AdamW's constants of one step.
struct AdamwRate {
    decay: f32,
    beta1: f32,
    beta2: f32,
    one_minus_beta1: f32,
    one_minus_beta2: f32,
    step: f32,
    root: f32,
    epsilon: f32,
    scale: f32,
}

fn adamw(weights: &mut [f32], gradient: &[f32], m: &mut [f32], v: &mut [f32], rate: &AdamwRate) {
    for (((w, g), m), v) in weights.iter_mut().zip(gradient).zip(m).zip(v) {
        let g = g * rate.scale;
        *w *= rate.decay;
        *m = *m * rate.beta1 + g * rate.one_minus_beta1;
        *v = *v * rate.beta2 + g * g * rate.one_minus_beta2;
        *w -= *m / (v.sqrt() / rate.root + rate.epsilon) * rate.step;
    }
}

#[cfg(test)]
mod tests {
    use tch::{Tensor, nn, nn::OptimizerConfig};

    use super::*;

    /// Runs ten steps of ours and of libtorch's own optimiser on the loss `sum((w - target)²) / 2`, whose gradient is
    /// `w - target`, and compares. Libtorch fuses multiply and add, hence the tolerance of a few roundings.
    fn agrees_with_libtorch(config: OptimiserConfig, theirs: impl OptimizerConfig) {
        tch::set_num_threads(1);
        let lr = config.learning_rate();
        let target: Vec<f32> = (0..37).map(|i| (i * i % 11) as f32 / 7.0).collect();
        let store = nn::VarStore::new(tch::Device::Cpu);
        let variable = store.root().zeros("w", &[37]);
        let mut libtorch = theirs.build(&store, lr).unwrap();
        let mut weights = vec![0.0; 37];
        let mut optimiser = Optimiser::new(config, 37);
        let goal = Tensor::from_slice(&target);
        for _ in 0..10 {
            let loss = (&variable - &goal).square().sum(tch::Kind::Float) * 0.5;
            libtorch.backward_step(&loss);
            let gradient: Vec<f32> = weights.iter().zip(&target).map(|(w, t)| w - t).collect();
            optimiser.update(&mut weights, &gradient, 1.0);
        }
        let difference = (&variable - Tensor::from_slice(&weights))
            .abs()
            .max()
            .double_value(&[]);
        assert!(difference < 2e-6, "{difference}");
        assert!(weights.iter().any(|w| w.abs() > 0.01));
    }

    #[test]
    fn sgd_agrees_with_libtorch() {
        for (momentum, wd, nesterov) in [
            (0.0, 0.0, false),
            (0.0, 0.1, false),
            (0.9, 0.0, false),
            (0.9, 0.1, false),
            (0.9, 0.1, true),
        ] {
            let ours = OptimiserConfig::Sgd {
                lr: 0.05,
                momentum,
                weight_decay: wd,
                nesterov,
            };
            agrees_with_libtorch(
                ours,
                nn::Sgd {
                    momentum,
                    dampening: 0.0,
                    wd,
                    nesterov,
                },
            );
        }
    }

    #[test]
    fn adamw_agrees_with_libtorch() {
        let ours = OptimiserConfig::Adamw {
            lr: 0.05,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.1,
        };
        agrees_with_libtorch(
            ours,
            nn::AdamW {
                beta1: 0.9,
                beta2: 0.99,
                wd: 0.1,
                eps: 1e-8,
                amsgrad: false,
            },
        );
    }
}

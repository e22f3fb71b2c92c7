//! `[optimiser]`: how gradients become new weights.

use serde::{Deserialize, Serialize};

use super::{ConfigError, check};

/// How gradients become new weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum OptimiserConfig {
    /// Stochastic gradient descent: `v = momentum v + (g + weight_decay w); w -= lr v`.
    Sgd {
        /// Learning rate, above 0.
        lr: f64,
        /// Momentum in [0, 1); default 0: gradients that arrive late act as momentum already (Mitliagkas et al. 2016,
        /// arXiv:1605.09774), and more of it makes several peers need more samples. Above 0 it costs one arena of memory.
        #[serde(default)]
        momentum: f64,
        /// Weight decay, at least 0; default 0.
        #[serde(default)]
        weight_decay: f64,
        /// Nesterov momentum: `w -= lr (g + momentum v)`; needs momentum; default false.
        #[serde(default)]
        nesterov: bool,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101). Costs two arenas of memory.
    Adamw {
        /// Learning rate, above 0.
        lr: f64,
        /// Decay of the first moment in [0, 1); default 0.9.
        #[serde(default = "default_beta1")]
        beta1: f64,
        /// Decay of the second moment in [0, 1); default 0.999.
        #[serde(default = "default_beta2")]
        beta2: f64,
        /// Keeps the division finite, above 0; default 1e-8.
        #[serde(default = "default_epsilon")]
        epsilon: f64,
        /// Weight decay, at least 0; default 0.01.
        #[serde(default = "default_decay")]
        weight_decay: f64,
    },
}

impl Default for OptimiserConfig {
    fn default() -> Self {
        Self::Sgd {
            lr: 0.05,
            momentum: 0.0,
            weight_decay: 0.0,
            nesterov: false,
        }
    }
}

fn default_beta1() -> f64 {
    0.9
}

fn default_beta2() -> f64 {
    0.999
}

fn default_epsilon() -> f64 {
    1e-8
}

fn default_decay() -> f64 {
    0.01
}

impl OptimiserConfig {
    /// The learning rate.
    pub fn learning_rate(&self) -> f64 {
        match self {
            Self::Sgd { lr, .. } | Self::Adamw { lr, .. } => *lr,
        }
    }

    /// The momentum of SGD; none of other optimisers.
    pub fn momentum(&self) -> Option<f64> {
        match self {
            Self::Sgd { momentum, .. } => Some(*momentum),
            Self::Adamw { .. } => None,
        }
    }

    /// Names of the state vectors it keeps, each as long as the parameters.
    pub fn state_names(&self) -> &'static [&'static str] {
        match self {
            Self::Sgd { momentum, .. } if *momentum == 0.0 => &[],
            Self::Sgd { .. } => &["momentum"],
            Self::Adamw { .. } => &["first_moment", "second_moment"],
        }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// The first value that cannot work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let rate = |lr: &f64| {
            check(
                *lr > 0.0 && *lr <= 100.0,
                "optimiser.lr",
                lr,
                "give a number above 0 and at most 100, such as 0.05",
            )
        };
        let decay = |decay: &f64| {
            check(
                (0.0..=1.0).contains(decay),
                "optimiser.weight_decay",
                decay,
                "give a number between 0 and 1",
            )
        };
        let below_one = |key, value: &f64| {
            check(
                (0.0..1.0).contains(value),
                key,
                value,
                "give a number that is at least 0 and below 1",
            )
        };
        match self {
            Self::Sgd {
                lr,
                momentum,
                weight_decay,
                nesterov,
            } => {
                rate(lr)?;
                below_one("optimiser.momentum", momentum)?;
                decay(weight_decay)?;
                let fix = "set momentum above 0, such as 0.9, or leave nesterov out";
                check(
                    !nesterov || *momentum > 0.0,
                    "optimiser.nesterov",
                    nesterov,
                    fix,
                )
            }
            Self::Adamw {
                lr,
                beta1,
                beta2,
                epsilon,
                weight_decay,
            } => {
                rate(lr)?;
                below_one("optimiser.beta1", beta1)?;
                below_one("optimiser.beta2", beta2)?;
                check(
                    *epsilon > 0.0 && *epsilon <= 1.0,
                    "optimiser.epsilon",
                    epsilon,
                    "give a small number such as 1e-8",
                )?;
                decay(weight_decay)
            }
        }
    }
}

//! `[model]`: which model is trained.

use serde::{Deserialize, Serialize};

use super::{ConfigError, check};

/// Which model is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ModelConfig {
    /// Fully connected layers with ReLU between.
    Mlp {
        /// Width of each hidden layer; default 256 and 128, enough for 28x28 grey images.
        #[serde(default = "default_hidden")]
        hidden: Vec<i64>,
    },
    /// Two convolutions and two linear layers; 1.2 M parameters on 28x28x1, the size of DLion's Cipher network.
    Cnn {},
    /// MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381) with torchvision's names and layout.
    MobilenetV2 {
        /// Multiplies the number of channels; default 1 (3.5 M parameters with 1000 classes).
        #[serde(default = "one")]
        width: f64,
    },
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self::Cnn {}
    }
}

fn default_hidden() -> Vec<i64> {
    vec![256, 128]
}

fn one() -> f64 {
    1.0
}

impl ModelConfig {
    /// The `kind` as written in a job file.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mlp { .. } => "mlp",
            Self::Cnn {} => "cnn",
            Self::MobilenetV2 { .. } => "mobilenet-v2",
        }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// The first value that cannot work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        match self {
            Self::Mlp { hidden } => {
                check(
                    hidden.len() <= 64,
                    "model.hidden",
                    hidden.len(),
                    "give at most 64 layers",
                )?;
                let fits = hidden.iter().all(|width| (1..=1 << 20).contains(width));
                check(
                    fits,
                    "model.hidden",
                    hidden,
                    "give widths between 1 and 1048576",
                )
            }
            Self::Cnn {} => Ok(()),
            Self::MobilenetV2 { width } => check(
                (0.1..=4.0).contains(width),
                "model.width",
                width,
                "give a number between 0.1 and 4",
            ),
        }
    }
}

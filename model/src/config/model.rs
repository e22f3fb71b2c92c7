//! `[model]`: which model is trained.

use serde::{Deserialize, Serialize};

use super::{ConfigError, MAX_CLASSES, MAX_CONTEXT, check};

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
    /// EfficientNet-B1 (Tan and Le 2019, arXiv:1905.11946) with torchvision's names and layout.
    EfficientnetB1 {
        /// Multiplies the number of channels; default 1 (7.8 M parameters with 1000 classes).
        #[serde(default = "one")]
        width: f64,
        /// Probability that a sample passes by a residual branch in training, nothing at the first block and nearly this at
        /// the last one; default 0.2.
        #[serde(default = "default_stochastic_depth")]
        stochastic_depth: f32,
    },
    /// ResNet-50 (He et al. 2016, arXiv:1512.03385) with torchvision's names and layout.
    #[serde(rename = "resnet-50")]
    Resnet50 {
        /// Multiplies the number of channels; default 1 (25.6 M parameters with 1000 classes).
        #[serde(default = "one")]
        width: f64,
        /// The layers before the first block; default `imagenet`.
        #[serde(default)]
        stem: Stem,
    },
    /// A transformer with GPT-2's layout and Hugging Face's names, for text.
    Gpt {
        /// Transformer layers; default 4.
        #[serde(default = "default_layers")]
        layers: i64,
        /// Attention heads per layer, which divide the width; default 4.
        #[serde(default = "default_heads")]
        heads: i64,
        /// Width of the residual stream; default 128.
        #[serde(default = "default_width")]
        width: i64,
        /// Most tokens of a sample; default 128.
        #[serde(default = "default_context")]
        context: i64,
        /// Number of tokens there are; default 256, the bytes.
        #[serde(default = "default_vocabulary")]
        vocabulary: i64,
        /// Share of elements dropped behind the embeddings and in each layer; default 0.
        #[serde(default)]
        dropout: f32,
        /// Whether the head uses the token embeddings, as GPT-2's does; default true. A pipeline needs false: the first
        /// and the last block are then on different peers.
        #[serde(default = "yes")]
        tied: bool,
    },
}

/// What ResNet-50 begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stem {
    /// A 7x7 convolution and a pooling, which leave a sixteenth of the pixels: torchvision's.
    #[default]
    Imagenet,
    /// A 3x3 convolution that leaves all of them, for images as small as CIFAR's; each takes sixteen times the work.
    Cifar,
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

fn default_stochastic_depth() -> f32 {
    0.2
}

fn default_layers() -> i64 {
    4
}

fn default_heads() -> i64 {
    4
}

fn default_width() -> i64 {
    128
}

fn default_context() -> i64 {
    128
}

fn default_vocabulary() -> i64 {
    256
}

fn yes() -> bool {
    true
}

impl ModelConfig {
    /// The `kind` as written in a job file.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mlp { .. } => "mlp",
            Self::Cnn {} => "cnn",
            Self::MobilenetV2 { .. } => "mobilenet-v2",
            Self::EfficientnetB1 { .. } => "efficientnet-b1",
            Self::Resnet50 { .. } => "resnet-50",
            Self::Gpt { .. } => "gpt",
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
            Self::MobilenetV2 { width } | Self::Resnet50 { width, .. } => check_width(*width),
            Self::EfficientnetB1 {
                width,
                stochastic_depth,
            } => {
                check_width(*width)?;
                check(
                    (0.0..1.0).contains(stochastic_depth),
                    "model.stochastic_depth",
                    stochastic_depth,
                    "give a number that is at least 0 and below 1",
                )
            }
            Self::Gpt {
                layers,
                heads,
                width,
                context,
                vocabulary,
                dropout,
                ..
            } => {
                check(
                    (1..=256).contains(layers),
                    "model.layers",
                    layers,
                    "give a number between 1 and 256",
                )?;
                check(
                    (1..=1 << 14).contains(width),
                    "model.width",
                    width,
                    "give a number between 1 and 16384",
                )?;
                let divides = *heads >= 1 && width % heads == 0;
                check(
                    divides,
                    "model.heads",
                    heads,
                    "give a number that divides model.width",
                )?;
                check(
                    (1..=MAX_CONTEXT).contains(context),
                    "model.context",
                    context,
                    "give a number between 1 and 65536",
                )?;
                check(
                    (2..=MAX_CLASSES).contains(vocabulary),
                    "model.vocabulary",
                    vocabulary,
                    "give a number between 2 and 65536",
                )?;
                check(
                    (0.0..1.0).contains(dropout),
                    "model.dropout",
                    dropout,
                    "give a number that is at least 0 and below 1",
                )
            }
        }
    }
}

/// What the number of channels is multiplied by.
fn check_width(width: f64) -> Result<(), ConfigError> {
    check(
        (0.1..=4.0).contains(&width),
        "model.width",
        width,
        "give a number between 0.1 and 4",
    )
}

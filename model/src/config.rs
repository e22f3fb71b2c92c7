//! What a job file says about the model, the optimiser and the data. Parsed by serde, checked once by `validate`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A value that cannot work: names the key, what was given and the fix.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{key} = {given}: {fix}")]
pub struct ConfigError {
    /// The key as written in the job file, such as `optimiser.lr`.
    pub key: &'static str,
    /// The value that was given.
    pub given: String,
    /// What to write instead.
    pub fix: &'static str,
}

fn check(holds: bool, key: &'static str, given: impl std::fmt::Debug, fix: &'static str) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError { key, given: format!("{given:?}"), fix }) }
}

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
                check(hidden.len() <= 64, "model.hidden", hidden.len(), "give at most 64 layers")?;
                let fits = hidden.iter().all(|width| (1..=1 << 20).contains(width));
                check(fits, "model.hidden", hidden, "give widths between 1 and 1048576")
            }
            Self::Cnn {} => Ok(()),
            Self::MobilenetV2 { width } => {
                check((0.1..=4.0).contains(width), "model.width", width, "give a number between 0.1 and 4")
            }
        }
    }
}

/// How gradients become new weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum OptimiserConfig {
    /// Stochastic gradient descent: `v = momentum v + (g + weight_decay w); w -= lr v`.
    Sgd {
        /// Learning rate, above 0.
        lr: f64,
        /// Momentum in [0, 1); default 0.9. Above 0 it costs one arena of memory.
        #[serde(default = "default_momentum")]
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
        Self::Sgd { lr: 0.05, momentum: default_momentum(), weight_decay: 0.0, nesterov: false }
    }
}

fn default_momentum() -> f64 {
    0.9
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
            check(*lr > 0.0 && *lr <= 100.0, "optimiser.lr", lr, "give a number above 0 and at most 100, such as 0.05")
        };
        let decay = |decay: &f64| {
            check((0.0..=1.0).contains(decay), "optimiser.weight_decay", decay, "give a number between 0 and 1")
        };
        let below_one = |key, value: &f64| {
            check((0.0..1.0).contains(value), key, value, "give a number that is at least 0 and below 1")
        };
        match self {
            Self::Sgd { lr, momentum, weight_decay, nesterov } => {
                rate(lr)?;
                below_one("optimiser.momentum", momentum)?;
                decay(weight_decay)?;
                let fix = "set momentum above 0, such as 0.9, or leave nesterov out";
                check(!nesterov || *momentum > 0.0, "optimiser.nesterov", nesterov, fix)
            }
            Self::Adamw { lr, beta1, beta2, epsilon, weight_decay } => {
                rate(lr)?;
                below_one("optimiser.beta1", beta1)?;
                below_one("optimiser.beta2", beta2)?;
                check(*epsilon > 0.0 && *epsilon <= 1.0, "optimiser.epsilon", epsilon, "give a small number such as 1e-8")?;
                decay(weight_decay)
            }
        }
    }
}

/// Where the samples come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The 1,797 UCI digits inside the binary.
    #[default]
    Digits,
    /// MNIST: the four IDX files, in `path` or `/usr/share/datasets/mnist`.
    Mnist,
    /// Fashion-MNIST: the four IDX files, in `path` or `/usr/share/datasets/fashion-mnist`.
    FashionMnist,
    /// IDX files named as MNIST's in the folder `path`.
    Idx,
    /// CIFAR-10, binary version: the folder with `data_batch_1.bin`.
    Cifar10,
    /// CIFAR-100, binary version: the folder with `train.bin`; the 100 fine labels.
    Cifar100,
    /// numpy arrays: a folder with `x.npy` and `y.npy`, or one `.npz` with `x` and `y`.
    Npy,
    /// A folder of PNG or JPEG images, one folder per class.
    Images,
}

/// Which samples a peer draws from. `shard` is the peer's number among `shards`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Split {
    /// Every shard draws from all samples, in its own order.
    All {},
    /// Disjoint shards of equal size, each a fair sample.
    Iid {
        /// Number of shards.
        shards: u32,
    },
    /// Disjoint shards with unequal classes: each class is shared out by a Dirichlet draw (Hsu et al. 2019, arXiv:1909.06335).
    Dirichlet {
        /// Above 0; small means each shard sees few classes, 100 is nearly iid.
        alpha: f64,
        /// Number of shards.
        shards: u32,
    },
}

impl Default for Split {
    fn default() -> Self {
        Self::All {}
    }
}

/// Most shards a split may have.
pub const MAX_SHARDS: u32 = 65_536;

/// Most classes a data set may have.
pub const MAX_CLASSES: i64 = 65_536;

/// The data of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// Kind of source; default `digits`.
    pub source: Source,
    /// File or folder with the training part (each [`Source`] says what it expects).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// File or folder with the validation part; without one, a part of the training data is held out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_path: Option<PathBuf>,
    /// Name of private data: each peer says where its own lies (`skein up --data NAME=PATH`). Takes the place of `path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Part of the training data held out for validation where the source has none; default 0.1.
    pub validation_fraction: f64,
    /// Images are resized to this height and width; without it all must be of one size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<[u32; 2]>,
    /// Number of classes where the source does not fix it; default: the highest label plus one. Set it when no single
    /// peer holds all classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<i64>,
    /// Mean per channel, of pixels scaled to [0, 1] or of the floats as they are. Default: the published constants of
    /// a known source; for private data 0.5, so that it is equal on all peers; else computed from the training part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<Vec<f32>>,
    /// Standard deviation per channel, as `mean`; for private data 0.25.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub std: Option<Vec<f32>>,
    /// How the training part is shared out over peers; default all samples everywhere.
    pub split: Split,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            source: Source::Digits,
            path: None,
            validation_path: None,
            name: None,
            validation_fraction: 0.1,
            size: None,
            classes: None,
            mean: None,
            std: None,
            split: Split::default(),
        }
    }
}

impl DataConfig {
    /// Checks every value. Files are looked at by `data::load`.
    ///
    /// # Errors
    /// The first value that cannot work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fraction = self.validation_fraction;
        let fix = "give a number between 0.01 and 0.9";
        check((0.01..=0.9).contains(&fraction), "data.validation_fraction", fraction, fix)?;
        let needs_path = matches!(self.source, Source::Idx | Source::Cifar10 | Source::Cifar100 | Source::Npy | Source::Images);
        let has_path = self.path.is_some() || self.name.is_some();
        check(has_path || !needs_path, "data.path", "missing", "give the path, or the name of private data, for this source")?;
        let both = self.path.is_some() && self.name.is_some();
        check(!both, "data.name", &self.name, "give either path or name, not both")?;
        let digits = self.source == Source::Digits && (has_path || self.validation_path.is_some());
        check(!digits, "data.path", &self.path, "leave path, validation_path and name out: the digits are built in")?;
        if let Some(size) = self.size {
            check(self.source == Source::Images, "data.size", size, "leave it out: only images can be resized")?;
            check(size.iter().all(|side| (1..=4096).contains(side)), "data.size", size, "give [height, width] between 1 and 4096")?;
        }
        if let Some(classes) = self.classes {
            check((2..=MAX_CLASSES).contains(&classes), "data.classes", classes, "give a number between 2 and 65536")?;
        }
        check(self.mean.is_some() == self.std.is_some(), "data.std", &self.std, "give both mean and std, or neither")?;
        let finite = |values: &Option<Vec<f32>>| values.iter().flatten().all(|value| value.is_finite());
        check(finite(&self.mean), "data.mean", &self.mean, "give finite numbers, one per channel")?;
        let positive = finite(&self.std) && self.std.iter().flatten().all(|std| *std >= 1e-6);
        check(positive, "data.std", &self.std, "give numbers of at least 1e-6, one per channel")?;
        self.split.validate()
    }
}

impl Split {
    /// Checks every value.
    ///
    /// # Errors
    /// The first value that cannot work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let count = |shards: &u32| {
            check((1..=MAX_SHARDS).contains(shards), "data.split.shards", shards, "give a number between 1 and 65536")
        };
        match self {
            Self::All {} => Ok(()),
            Self::Iid { shards } => count(shards),
            Self::Dirichlet { alpha, shards } => {
                count(shards)?;
                check((1e-3..=1e6).contains(alpha), "data.split.alpha", alpha, "give a number between 0.001 and 1000000")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_filled_in_and_valid() {
        let model: ModelConfig = toml::from_str("kind = 'mlp'").unwrap();
        assert_eq!(model, ModelConfig::Mlp { hidden: vec![256, 128] });
        let optimiser: OptimiserConfig = toml::from_str("kind = 'sgd'\nlr = 0.05").unwrap();
        assert_eq!(optimiser, OptimiserConfig::default());
        let data: DataConfig = toml::from_str("source = 'fashion-mnist'\nsplit = { kind = 'dirichlet', alpha = 0.5, shards = 4 }").unwrap();
        assert_eq!(data.split, Split::Dirichlet { alpha: 0.5, shards: 4 });
        model.validate().unwrap();
        optimiser.validate().unwrap();
        data.validate().unwrap();
    }

    #[test]
    fn unknown_keys_are_refused() {
        assert!(toml::from_str::<ModelConfig>("kind = 'cnn'\nwidth = 2.0").is_err());
        assert!(toml::from_str::<OptimiserConfig>("kind = 'sgd'\nlr = 0.1\nrate = 1.0").is_err());
        assert!(toml::from_str::<DataConfig>("sauce = 'digits'").is_err());
        assert!(toml::from_str::<Split>("kind = 'all'\nshards = 3").is_err());
    }

    #[test]
    fn an_impossible_value_names_the_key_and_the_fix() {
        let sgd = |lr, momentum, nesterov| OptimiserConfig::Sgd { lr, momentum, weight_decay: 0.0, nesterov };
        let adamw = |beta2, epsilon| OptimiserConfig::Adamw { lr: 0.1, beta1: 0.9, beta2, epsilon, weight_decay: 0.0 };
        for (optimiser, key) in [
            (sgd(0.0, 0.9, false), "optimiser.lr"),
            (sgd(f64::NAN, 0.9, false), "optimiser.lr"),
            (sgd(0.1, 1.0, false), "optimiser.momentum"),
            (sgd(0.1, 0.0, true), "optimiser.nesterov"),
            (adamw(1.0, 1e-8), "optimiser.beta2"),
            (adamw(0.9, 0.0), "optimiser.epsilon"),
        ] {
            assert_eq!(optimiser.validate().unwrap_err().key, key, "{optimiser:?}");
        }
        for (text, key) in [
            ("source = 'npy'", "data.path"),
            ("path = 'here'", "data.path"),
            ("source = 'idx'\npath = 'a'\nname = 'b'", "data.name"),
            ("validation_fraction = 1.0", "data.validation_fraction"),
            ("size = [8, 8]", "data.size"),
            ("classes = 1", "data.classes"),
            ("mean = [0.5]", "data.std"),
            ("mean = [0.5]\nstd = [0.0]", "data.std"),
            ("split = { kind = 'iid', shards = 0 }", "data.split.shards"),
            ("split = { kind = 'dirichlet', shards = 2, alpha = 0.0 }", "data.split.alpha"),
        ] {
            assert_eq!(toml::from_str::<DataConfig>(text).unwrap().validate().unwrap_err().key, key, "{text}");
        }
        for model in [ModelConfig::Mlp { hidden: vec![0] }, ModelConfig::MobilenetV2 { width: f64::NAN }] {
            let error = model.validate().unwrap_err();
            assert!(error.to_string().contains("give"), "{error}");
        }
    }
}

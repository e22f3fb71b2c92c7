//! `[data]`: where the samples come from and how they are shared out.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{ConfigError, check};

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
    /// Any file, taken as text: each byte is a token (with `tokenizer` its tokens are), and each sample `context` of them, to predict the
    /// next ones from.
    Text,
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

/// Most tokens a sample of text may have.
pub const MAX_CONTEXT: i64 = 65_536;

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
    /// Images of a folder are resized to this height and width; without it all must be of one size. Those of IDX and CIFAR files get
    /// a black frame, or are cut, so that MNIST is 32x32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<[u32; 2]>,
    /// Tokens per sample of text, at most as many as the model's context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
    /// A `tokenizer.json` of Hugging Face's tokenizers, for text: byte-level BPE, such as GPT-2's. The model's vocabulary is its number of
    /// tokens. Every peer with the data needs the same file. Default: each byte is a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
    /// Only samples with these labels; they keep their numbers. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<Vec<i64>>,
    /// A second source, for new data beside what a model was trained on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mix: Option<Mix>,
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

/// `[data.mix]`: a second source whose samples are a share of the stream. What it does not say is as in `[data]`; validation is on both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// Share of the stream, 0.01 to 0.99. In each pass all samples of both sources come, those of one of them more than once.
    pub share: f64,
    /// Kind of source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// As in `[data]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// As in `[data]`; no other source's is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_path: Option<PathBuf>,
    /// As in `[data]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// As in `[data]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Vec<i64>>,
}

impl Mix {
    /// The second source as a whole, beside `first`.
    pub fn source(&self, first: &DataConfig) -> DataConfig {
        // A place of its own, or the first one's.
        let is_elsewhere = self.source.is_some() || self.path.is_some() || self.name.is_some();
        let or_first = |own: &Option<PathBuf>, first: &Option<PathBuf>| match is_elsewhere {
            true => own.clone(),
            false => own.clone().or_else(|| first.clone()),
        };
        DataConfig {
            source: self.source.unwrap_or(first.source),
            path: or_first(&self.path, &first.path),
            validation_path: or_first(&self.validation_path, &first.validation_path),
            name: match is_elsewhere {
                true => self.name.clone(),
                false => first.name.clone(),
            },
            labels: self.labels.clone(),
            mix: None,
            ..first.clone()
        }
    }
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
            context: None,
            tokenizer: None,
            labels: None,
            mix: None,
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
        check(
            (0.01..=0.9).contains(&fraction),
            "data.validation_fraction",
            fraction,
            fix,
        )?;
        let needs_path = matches!(
            self.source,
            Source::Idx
                | Source::Cifar10
                | Source::Cifar100
                | Source::Npy
                | Source::Images
                | Source::Text
        );
        let has_path = self.path.is_some() || self.name.is_some();
        check(
            has_path || !needs_path,
            "data.path",
            "missing",
            "give the path, or the name of private data, for this source",
        )?;
        let both = self.path.is_some() && self.name.is_some();
        check(
            !both,
            "data.name",
            &self.name,
            "give either path or name, not both",
        )?;
        let digits = self.source == Source::Digits && (has_path || self.validation_path.is_some());
        check(
            !digits,
            "data.path",
            &self.path,
            "leave path, validation_path and name out: the digits are built in",
        )?;
        if let Some(size) = self.size {
            check(
                !matches!(self.source, Source::Digits | Source::Npy | Source::Text),
                "data.size",
                size,
                "leave it out: only images can be given another size",
            )?;
            check(
                size.iter().all(|side| (1..=4096).contains(side)),
                "data.size",
                size,
                "give [height, width] between 1 and 4096",
            )?;
        }
        self.validate_text()?;
        let labels = self.labels.as_ref();
        check(
            labels.is_none_or(|labels| !labels.is_empty() && self.source != Source::Text),
            "data.labels",
            &self.labels,
            "give the labels to keep, such as [0, 1]; text has none",
        )?;
        if let Some(mix) = &self.mix {
            check(
                (0.01..=0.99).contains(&mix.share),
                "data.mix.share",
                mix.share,
                "give the share of the stream, between 0.01 and 0.99, such as 0.1",
            )?;
            mix.source(self).validate()?;
        }
        if let Some(classes) = self.classes {
            check(
                (2..=MAX_CLASSES).contains(&classes),
                "data.classes",
                classes,
                "give a number between 2 and 65536",
            )?;
        }
        check(
            self.mean.is_some() == self.std.is_some(),
            "data.std",
            &self.std,
            "give both mean and std, or neither",
        )?;
        let finite =
            |values: &Option<Vec<f32>>| values.iter().flatten().all(|value| value.is_finite());
        check(
            finite(&self.mean),
            "data.mean",
            &self.mean,
            "give finite numbers, one per channel",
        )?;
        let positive = finite(&self.std) && self.std.iter().flatten().all(|std| *std >= 1e-6);
        check(
            positive,
            "data.std",
            &self.std,
            "give numbers of at least 1e-6, one per channel",
        )?;
        self.split.validate()
    }

    /// What only text needs, and what it has no use for.
    fn validate_text(&self) -> Result<(), ConfigError> {
        if self.source != Source::Text {
            check(
                self.tokenizer.is_none(),
                "data.tokenizer",
                &self.tokenizer,
                "leave it out: only text has tokens",
            )?;
            return check(
                self.context.is_none(),
                "data.context",
                self.context,
                "leave it out: only text is cut into samples",
            );
        }
        check(
            self.context
                .is_some_and(|tokens| (1..=MAX_CONTEXT).contains(&i64::from(tokens))),
            "data.context",
            self.context,
            "give the tokens per sample, between 1 and 65536, such as the model's context",
        )?;
        let plain = |values: &Option<Vec<f32>>, as_is: f32| {
            values.as_ref().is_none_or(|values| values == &[as_is])
        };
        check(
            plain(&self.mean, 0.0) && plain(&self.std, 1.0),
            "data.mean",
            &self.mean,
            "leave mean and std out: tokens are not normalised",
        )?;
        check(
            !matches!(self.split, Split::Dirichlet { .. }),
            "data.split.kind",
            "dirichlet",
            "give all or iid: text has no classes to share out unequally",
        )
    }
}

impl Split {
    /// Checks every value.
    ///
    /// # Errors
    /// The first value that cannot work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let count = |shards: &u32| {
            check(
                (1..=MAX_SHARDS).contains(shards),
                "data.split.shards",
                shards,
                "give a number between 1 and 65536",
            )
        };
        match self {
            Self::All {} => Ok(()),
            Self::Iid { shards } => count(shards),
            Self::Dirichlet { alpha, shards } => {
                count(shards)?;
                check(
                    (1e-3..=1e6).contains(alpha),
                    "data.split.alpha",
                    alpha,
                    "give a number between 0.001 and 1000000",
                )
            }
        }
    }
}

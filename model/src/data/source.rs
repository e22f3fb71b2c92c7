//! From the job's `[data]` to a training and a validation set.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::cifar;
use super::dataset::{Dataset, Normalisation, Pixels, Raw};
use super::idx::{self, Part};
use super::tokenizer::Tokenizer;
use super::{DataError, digits, frame, images, npy, text};
use crate::config::{DataConfig, Source};

/// Where data sets lie that are installed for the whole machine.
const SYSTEM_FOLDER: &str = "/usr/share/datasets";

/// The two parts of a data set.
#[derive(Clone, Debug)]
pub struct Splits {
    /// What is trained on; `Sampler` shares it out over peers.
    pub train: Dataset,
    /// What is only evaluated on, the same for all peers (but for private data).
    pub validation: Dataset,
    /// blake3 of the tokenizer's file, of text that has one.
    pub tokenizer: Option<[u8; 32]>,
}

/// What a source gives, before it is checked as a whole.
struct Loaded {
    train: Raw,
    validation: Option<Raw>,
    /// Number of classes where the source fixes it.
    n_classes: Option<i64>,
    /// Published constants of a known source.
    normalisation: Option<Normalisation>,
    tokenizer: Option<[u8; 32]>,
}

/// Reads the data of a job. `private` maps the names of this peer's private data to paths.
///
/// # Errors
/// Settings that cannot work; files that are missing, damaged or do not belong together, with the file and the byte or row.
pub fn load(config: &DataConfig, private: &BTreeMap<String, PathBuf>) -> Result<Splits, DataError> {
    config.validate()?;
    let first = load_one(config, private)?;
    let Some(mix) = &config.mix else {
        return Ok(first);
    };
    // Both are seen by one model, so normalised alike.
    let Normalisation { mean, std } = first.train.normalisation().clone();
    let second = DataConfig {
        mean: Some(mean),
        std: Some(std),
        ..mix.source(config)
    };
    let shown = shown(&second);
    let second = load_one(&second, private)?;
    let unlike = || {
        DataError::mismatch(
            &shown,
            "samples of data.mix have another shape or kind than those of [data]",
        )
    };
    let train = first.train.mixed(second.train, mix.share);
    Ok(Splits {
        train: train.ok_or_else(unlike)?,
        validation: first
            .validation
            .joined(second.validation)
            .ok_or_else(unlike)?,
        tokenizer: first.tokenizer,
    })
}

/// Shape of a sample and number of classes, where the source and the job fix both: nothing is read.
pub fn known_shape(config: &DataConfig) -> Option<([i64; 3], i64)> {
    let framed = |channels: i64, side: i64, n_classes: i64| {
        let [height, width] = config.size.map_or([side; 2], |size| size.map(i64::from));
        Some(([channels, height, width], n_classes))
    };
    match config.source {
        Source::Digits | Source::Mnist | Source::FashionMnist => framed(1, 28, 10),
        Source::Cifar10 => framed(3, 32, 10),
        Source::Cifar100 => framed(3, 32, 100),
        Source::Text if config.tokenizer.is_none() => {
            let context = config.context?;
            Some(([1, 1, i64::from(context)], 256))
        }
        Source::Idx | Source::Npy | Source::Images | Source::Text => None,
    }
}

/// What errors call the data.
fn shown(config: &DataConfig) -> PathBuf {
    let place = config.path.clone();
    place.unwrap_or_else(|| PathBuf::from(name_of(config.source)))
}

/// One source.
fn load_one(config: &DataConfig, private: &BTreeMap<String, PathBuf>) -> Result<Splits, DataError> {
    let path = match &config.name {
        Some(name) => Some(
            private
                .get(name)
                .ok_or_else(|| DataError::NoPrivateData { name: name.clone() })?
                .clone(),
        ),
        None => config.path.clone(),
    };
    let shown = path.clone().unwrap_or_else(|| shown(config));
    let Loaded {
        train,
        validation,
        n_classes,
        normalisation,
        tokenizer,
    } = read(config, path)?;
    let chosen = |raw: Raw| match &config.labels {
        Some(labels) => raw.only(labels),
        None => raw,
    };
    let (train, validation) = (chosen(train), validation.map(chosen));
    // A folder's images have the size already.
    let framed = |raw: Raw| match config.size.filter(|_| config.source != Source::Images) {
        Some(size) => frame::fit(raw, size),
        None => raw,
    };
    let (train, validation) = (framed(train), validation.map(framed));
    let found = [Some(&train), validation.as_ref()]
        .into_iter()
        .flatten()
        .flat_map(|raw| &raw.labels)
        .max();
    let n_classes = n_classes
        .or(config.classes)
        .unwrap_or_else(|| found.map_or(0, |label| label.saturating_add(1)).max(2));
    train.check(&shown, n_classes)?;
    let (train, validation) = match validation {
        Some(validation) => (train, validation),
        None if train.labels.len() < 2 => {
            return Err(DataError::mismatch(
                &shown,
                "one sample; two are needed to hold one out for validation",
            ));
        }
        None => train.hold_out(config.validation_fraction),
    };
    validation.check(
        config.validation_path.as_deref().unwrap_or(&shown),
        n_classes,
    )?;
    if train.shape != validation.shape {
        let what = format!(
            "images {:?} to train on but {:?} to validate on",
            train.shape, validation.shape
        );
        return Err(DataError::mismatch(&shown, what));
    }
    let same_kind = matches!(
        (&train.pixels, &validation.pixels),
        (Pixels::U8(_), Pixels::U8(_))
            | (Pixels::F32(_), Pixels::F32(_))
            | (Pixels::Tokens(_), Pixels::Tokens(_))
    );
    if !same_kind {
        return Err(DataError::mismatch(
            &shown,
            "one part holds bytes and the other floats",
        ));
    }
    let normalisation = choose(config, normalisation, &train, &shown)?;
    Ok(Splits {
        train: Dataset::new(train, n_classes, normalisation.clone()),
        validation: Dataset::new(validation, n_classes, normalisation),
        tokenizer,
    })
}

/// The job's own normalisation, else the published one, else (private data differs from peer to peer) a fixed one, else
/// the training part's.
fn choose(
    config: &DataConfig,
    known: Option<Normalisation>,
    train: &Raw,
    shown: &Path,
) -> Result<Normalisation, DataError> {
    let channels = train.shape[0] as usize;
    if let (Some(mean), Some(std)) = (&config.mean, &config.std) {
        if mean.len() != channels || std.len() != channels {
            let what = format!(
                "{channels} channels, but data.mean has {} and data.std {} numbers",
                mean.len(),
                std.len()
            );
            return Err(DataError::mismatch(shown, what));
        }
        return Ok(Normalisation {
            mean: mean.clone(),
            std: std.clone(),
        });
    }
    let fixed = || Normalisation {
        mean: vec![0.5; channels],
        std: vec![0.25; channels],
    };
    Ok(known.unwrap_or_else(|| {
        if config.name.is_some() {
            fixed()
        } else {
            train.normalisation()
        }
    }))
}

fn read(config: &DataConfig, path: Option<PathBuf>) -> Result<Loaded, DataError> {
    let source = config.source;
    let folder = path.unwrap_or_else(|| Path::new(SYSTEM_FOLDER).join(name_of(source)));
    let own = config.validation_path.as_deref();
    match source {
        Source::Digits => {
            let (train, validation) = digits::load();
            let (n_classes, normalisation) =
                (Some(digits::N_CLASSES), Some(digits::normalisation()));
            Ok(Loaded {
                train,
                validation: Some(validation),
                n_classes,
                normalisation,
                tokenizer: None,
            })
        }
        Source::Mnist | Source::FashionMnist | Source::Idx => {
            let train = idx::load(&folder, Part::Train)?;
            let validation = match own {
                Some(path) if idx::has_validation(path) => Some(idx::load(path, Part::Validation)?),
                Some(path) => Some(idx::load(path, Part::Train)?),
                None if idx::has_validation(&folder) => Some(idx::load(&folder, Part::Validation)?),
                None => None,
            };
            let n_classes = (source != Source::Idx).then_some(10);
            Ok(Loaded {
                train,
                validation,
                n_classes,
                normalisation: published(source),
                tokenizer: None,
            })
        }
        Source::Cifar10 | Source::Cifar100 => {
            let kind = if source == Source::Cifar10 {
                cifar::Kind::Ten
            } else {
                cifar::Kind::Hundred
            };
            let train = cifar::load(&folder, kind, Part::Train)?;
            let validation = match own {
                Some(path) => Some(cifar::load(path, kind, Part::Validation)?),
                None if cifar::has_validation(&folder, kind) => {
                    Some(cifar::load(&folder, kind, Part::Validation)?)
                }
                None => None,
            };
            Ok(Loaded {
                train,
                validation,
                n_classes: Some(kind.n_classes()),
                normalisation: published(source),
                tokenizer: None,
            })
        }
        Source::Npy => {
            let missing = || DataError::Missing {
                folder: folder.clone(),
                names: "x and y".into(),
            };
            let train = npy::load(&folder, Part::Train, true)?.ok_or_else(missing)?;
            let validation = npy::load(own.unwrap_or(&folder), Part::Validation, own.is_some())?;
            Ok(Loaded {
                train,
                validation,
                n_classes: None,
                normalisation: None,
                tokenizer: None,
            })
        }
        Source::Text => {
            let context = config.context.unwrap_or(1) as usize;
            let tokenizer = config
                .tokenizer
                .as_deref()
                .map(Tokenizer::load)
                .transpose()?;
            let fraction = config.validation_fraction;
            let (train, validation) =
                text::load(&folder, own, context, fraction, tokenizer.as_ref())?;
            let n_tokens = tokenizer.as_ref().map(Tokenizer::n_tokens);
            Ok(Loaded {
                normalisation: Some(train.normalisation()),
                train,
                validation: Some(validation),
                n_classes: Some(n_tokens.unwrap_or(text::N_BYTES)),
                tokenizer: tokenizer.as_ref().map(Tokenizer::digest),
            })
        }
        Source::Images => {
            let (train, classes) = images::load(&folder, config.size)?;
            let validation = match own {
                None => None,
                Some(path) => {
                    // The training images' size serves for both parts.
                    let size = config
                        .size
                        .or(Some([train.shape[1] as u32, train.shape[2] as u32]));
                    let (validation, others) = images::load(path, size)?;
                    if others != classes {
                        let what =
                            format!("{others} class folders where the training part has {classes}");
                        return Err(DataError::mismatch(path, what));
                    }
                    Some(validation)
                }
            };
            Ok(Loaded {
                train,
                validation,
                n_classes: Some(classes),
                normalisation: None,
                tokenizer: None,
            })
        }
    }
}

fn name_of(source: Source) -> &'static str {
    match source {
        Source::Digits => "digits",
        Source::Mnist => "mnist",
        Source::FashionMnist => "fashion-mnist",
        Source::Idx => "idx",
        Source::Cifar10 => "cifar10",
        Source::Cifar100 => "cifar100",
        Source::Npy => "npy",
        Source::Images => "images",
        Source::Text => "text",
    }
}

/// The constants everybody uses for these sets (mean and deviation of the training images scaled to [0, 1]).
fn published(source: Source) -> Option<Normalisation> {
    let (mean, std): (&[f32], &[f32]) = match source {
        Source::Mnist => (&[0.1307], &[0.3081]),
        Source::FashionMnist => (&[0.2860], &[0.3530]),
        Source::Cifar10 => (&[0.4914, 0.4822, 0.4465], &[0.2470, 0.2435, 0.2616]),
        Source::Cifar100 => (&[0.5071, 0.4865, 0.4409], &[0.2673, 0.2564, 0.2762]),
        Source::Digits | Source::Idx | Source::Npy | Source::Images | Source::Text => return None,
    };
    Some(Normalisation {
        mean: mean.to_vec(),
        std: std.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Mix;
    use crate::data::idx::tests::file;

    fn idx_folder(classes: u8) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join("train-images-idx3-ubyte"),
            file(&[20, 4, 4], |i| i as u8),
        )
        .unwrap();
        std::fs::write(
            folder.path().join("train-labels-idx1-ubyte"),
            file(&[20], |i| i as u8 % classes),
        )
        .unwrap();
        folder
    }

    #[test]
    fn the_digits_are_the_default() {
        let splits = load(&DataConfig::default(), &BTreeMap::new()).unwrap();
        assert_eq!((splits.train.len(), splits.validation.len()), (1500, 297));
        assert_eq!(
            (splits.train.input_shape(), splits.train.n_classes()),
            ([1, 28, 28], 10)
        );
    }

    #[test]
    fn new_classes_are_a_share_of_the_stream_and_validation_is_on_all() {
        let old: Vec<i64> = (0..8).collect();
        let first = DataConfig {
            labels: Some(old.clone()),
            ..DataConfig::default()
        };
        let of_old = load(&first, &BTreeMap::new()).unwrap();
        assert!(of_old.train.labels().iter().all(|label| *label < 8));
        assert_eq!(of_old.train.n_classes(), 10, "labels keep their numbers");
        let mix: Mix = serde_json::from_str(r#"{ "share": 0.1, "labels": [8, 9] }"#).unwrap();
        let both = DataConfig {
            mix: Some(mix.clone()),
            ..first.clone()
        };
        let both = load(&both, &BTreeMap::new()).unwrap();
        let new = both
            .train
            .labels()
            .iter()
            .filter(|label| **label >= 8)
            .count();
        let share = new as f64 / both.train.len() as f64;
        assert!((share - 0.1).abs() < 0.001, "{share}");
        assert_eq!(both.validation.len(), 297);
        let too_much = DataConfig {
            mix: Some(Mix { share: 1.0, ..mix }),
            ..first
        };
        let error = load(&too_much, &BTreeMap::new()).unwrap_err().to_string();
        assert!(error.contains("data.mix.share"), "{error}");
    }

    #[test]
    fn fashion_mnist_is_read_where_it_is_installed() {
        if !Path::new(SYSTEM_FOLDER).join("fashion-mnist").is_dir() {
            println!("skipped: no fashion-mnist in {SYSTEM_FOLDER}");
            return;
        }
        let config = DataConfig {
            source: Source::FashionMnist,
            ..DataConfig::default()
        };
        let splits = load(&config, &BTreeMap::new()).unwrap();
        assert_eq!(
            (splits.train.len(), splits.validation.len()),
            (60_000, 10_000)
        );
        assert_eq!(splits.train.labels()[..4], [9, 0, 0, 3]);
        assert_eq!(splits.train.normalisation().std, [0.3530]);
    }

    #[test]
    fn private_data_is_found_by_name_and_normalised_the_same_everywhere() {
        let folder = idx_folder(3);
        let config = DataConfig {
            source: Source::Idx,
            name: Some("mine".into()),
            classes: Some(7),
            ..DataConfig::default()
        };
        let error = load(&config, &BTreeMap::new()).unwrap_err().to_string();
        assert!(error.contains("--data mine=PATH"), "{error}");
        let private = BTreeMap::from([("mine".to_owned(), folder.path().to_owned())]);
        let splits = load(&config, &private).unwrap();
        assert_eq!(
            (
                splits.train.len(),
                splits.validation.len(),
                splits.train.n_classes()
            ),
            (18, 2, 7)
        );
        assert_eq!(splits.train.normalisation().mean, [0.5]);
    }

    #[test]
    fn labels_above_the_classes_of_the_job_name_the_row() {
        let folder = idx_folder(10);
        let path = Some(folder.path().to_owned());
        let config = DataConfig {
            source: Source::Idx,
            path,
            classes: Some(5),
            ..DataConfig::default()
        };
        let error = load(&config, &BTreeMap::new()).unwrap_err().to_string();
        assert!(error.contains("row 5: label 5"), "{error}");
        let wrong = DataConfig {
            mean: Some(vec![0.0; 3]),
            std: Some(vec![1.0; 3]),
            classes: None,
            ..config
        };
        assert!(
            load(&wrong, &BTreeMap::new())
                .unwrap_err()
                .to_string()
                .contains("1 channels, but data.mean has 3")
        );
    }

    #[test]
    fn a_folder_without_the_files_names_them() {
        let folder = tempfile::tempdir().unwrap();
        for (source, name) in [
            (Source::Mnist, "train-images-idx3-ubyte"),
            (Source::Cifar10, "data_batch_1.bin"),
            (Source::Cifar100, "train.bin"),
            (Source::Npy, "x and y"),
        ] {
            let config = DataConfig {
                source,
                path: Some(folder.path().to_owned()),
                ..DataConfig::default()
            };
            let error = load(&config, &BTreeMap::new()).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}

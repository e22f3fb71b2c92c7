//! Samples in memory, as small as the source has them, and the normalised batches made of them.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::DataError;
use crate::config::MAX_CLASSES;
use crate::random::Stream;

/// Mean and standard deviation per channel, taken from every sample: of bytes scaled to [0, 1], of floats as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalisation {
    /// Mean per channel.
    pub mean: Vec<f32>,
    /// Standard deviation per channel, above 0.
    pub std: Vec<f32>,
}

impl Normalisation {
    /// The normalised value of each byte, per channel.
    pub(super) fn table(&self) -> Vec<[f32; 256]> {
        let channel = |(mean, std): (&f32, &f32)| {
            std::array::from_fn(|byte| (byte as f32 / 255.0 - mean) / std)
        };
        self.mean.iter().zip(&self.std).map(channel).collect()
    }
}

/// Pixels as the source has them, `[N, C, H, W]`, or tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pixels {
    U8(Vec<u8>),
    F32(Vec<f32>),
    /// `[N, 1, 1, T + 1]`: the last of each sample is only predicted, the first only given.
    Tokens(Vec<u16>),
}

impl Pixels {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::U8(bytes) => bytes.len(),
            Self::F32(floats) => floats.len(),
            Self::Tokens(tokens) => tokens.len(),
        }
    }
}

/// Samples with their labels, before they are checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Raw {
    pub(crate) pixels: Pixels,
    pub(crate) labels: Vec<i64>,
    pub(crate) shape: [i64; 3],
}

/// Samples of one shape with labels below `n_classes`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    pixels: Pixels,
    labels: Vec<i64>,
    shape: [i64; 3],
    n_classes: i64,
    normalisation: Normalisation,
    /// Normalised value of each byte per channel; empty for floats.
    table: Vec<[f32; 256]>,
    /// Where each sample lies, if some come more than once; else each at its own place.
    places: Vec<u32>,
}

/// Samples as the model takes them.
#[derive(Debug)]
pub struct Batch {
    x: Tensor,
    y: Tensor,
}

impl Batch {
    /// Samples `[B, C, H, W]` and their labels as they are.
    pub(crate) fn new(x: Tensor, y: Tensor) -> Self {
        Self { x, y }
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.x.size().first().map_or(0, |samples| *samples as usize)
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Normalised images, `[B, C, H, W]` f32; of text the tokens' numbers, `[B, 1, 1, T]`.
    pub fn x(&self) -> &Tensor {
        &self.x
    }

    /// Labels, `[B]` i64; of text the tokens that follow each, `[B, T]`.
    pub fn y(&self) -> &Tensor {
        &self.y
    }

    /// A copy of the labels, sample by sample.
    pub fn labels(&self) -> Vec<i64> {
        let mut labels = vec![0; self.y.numel()];
        self.y.copy_data(&mut labels, self.y.numel());
        labels
    }
}

impl Raw {
    /// Refuses counts that differ and labels that are no class; `path` is named in the error.
    pub(crate) fn check(&self, path: &Path, n_classes: i64) -> Result<(), DataError> {
        let len = self.stored_len();
        let images = self.pixels.len().checked_div(len).unwrap_or(0);
        if images != self.labels.len() || images * len != self.pixels.len() {
            return Err(DataError::mismatch(
                path,
                format!("{images} images but {} labels", self.labels.len()),
            ));
        }
        if images == 0 {
            return Err(DataError::mismatch(path, "no samples"));
        }
        if !(2..=MAX_CLASSES).contains(&n_classes) {
            return Err(DataError::mismatch(
                path,
                format!("{n_classes} classes; between 2 and {MAX_CLASSES} can be learnt"),
            ));
        }
        if let Some(row) = self
            .labels
            .iter()
            .position(|label| !(0..n_classes).contains(label))
        {
            let what = format!(
                "label {} is not below the number of classes, {n_classes}",
                self.labels[row]
            );
            return Err(DataError::row(path, row, what));
        }
        if let Pixels::F32(floats) = &self.pixels
            && let Some(at) = floats.iter().position(|value| !value.is_finite())
        {
            return Err(DataError::row(
                path,
                at / len,
                format!("a value is {}", floats[at]),
            ));
        }
        Ok(())
    }

    /// The rows `rows`, in that order.
    pub(crate) fn select(&self, rows: &[usize]) -> Self {
        let len = self.stored_len();
        let range = |row: usize| row * len..(row + 1) * len;
        let pixels = match &self.pixels {
            Pixels::U8(bytes) => Pixels::U8(
                rows.iter()
                    .flat_map(|row| &bytes[range(*row)])
                    .copied()
                    .collect(),
            ),
            Pixels::F32(floats) => Pixels::F32(
                rows.iter()
                    .flat_map(|row| &floats[range(*row)])
                    .copied()
                    .collect(),
            ),
            Pixels::Tokens(tokens) => Pixels::Tokens(
                rows.iter()
                    .flat_map(|row| &tokens[range(*row)])
                    .copied()
                    .collect(),
            ),
        };
        Self {
            pixels,
            labels: rows.iter().map(|row| self.labels[*row]).collect(),
            shape: self.shape,
        }
    }

    /// The samples with one of `labels`.
    pub(crate) fn only(&self, labels: &[i64]) -> Self {
        let is_chosen = |row: &usize| labels.contains(&self.labels[*row]);
        let rows: Vec<usize> = (0..self.labels.len()).filter(is_chosen).collect();
        self.select(&rows)
    }

    /// Holds a random `fraction` of the samples out: `(the rest, held out)`, at least one each. The same on every peer.
    pub(crate) fn hold_out(&self, fraction: f64) -> (Self, Self) {
        let mut rows: Vec<usize> = (0..self.labels.len()).collect();
        Stream::new(0, "hold-out").shuffle(&mut rows);
        let held = ((rows.len() as f64 * fraction).round() as usize)
            .clamp(1, rows.len().saturating_sub(1).max(1));
        let (held, rest) = rows.split_at_mut(held);
        held.sort_unstable();
        rest.sort_unstable();
        (self.select(rest), self.select(held))
    }

    /// Mean and standard deviation per channel over all samples, in f64 and in order, so equal on all peers.
    pub(crate) fn normalisation(&self) -> Normalisation {
        if let Pixels::Tokens(_) = &self.pixels {
            return Normalisation {
                mean: vec![0.0],
                std: vec![1.0],
            };
        }
        let channels = self.shape[0] as usize;
        let plane = self.sample_len() / channels;
        let mut sums = vec![[0.0f64; 2]; channels];
        let mut add = |at: usize, value: f64| {
            let [sum, squares] = &mut sums[at / plane % channels];
            *sum += value;
            *squares += value * value;
        };
        match &self.pixels {
            Pixels::U8(bytes) => bytes
                .iter()
                .enumerate()
                .for_each(|(at, byte)| add(at, f64::from(*byte) / 255.0)),
            Pixels::F32(floats) => floats
                .iter()
                .enumerate()
                .for_each(|(at, value)| add(at, f64::from(*value))),
            Pixels::Tokens(_) => {}
        }
        let n = (self.labels.len() * plane) as f64;
        let mean = sums.iter().map(|[sum, _]| sum / n);
        let std = sums
            .iter()
            .map(|[sum, squares]| (squares / n - (sum / n) * (sum / n)).max(0.0).sqrt());
        // A constant channel carries nothing; dividing by one keeps it at zero.
        let std = std.map(|std| if std < 1e-6 { 1.0 } else { std as f32 });
        Normalisation {
            mean: mean.map(|mean| mean as f32).collect(),
            std: std.collect(),
        }
    }

    fn sample_len(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }

    /// Elements of `pixels` per sample.
    fn stored_len(&self) -> usize {
        self.sample_len() + usize::from(matches!(self.pixels, Pixels::Tokens(_)))
    }
}

impl Dataset {
    /// A data set of samples that were checked for `n_classes`; `normalisation` has one entry per channel.
    pub(crate) fn new(raw: Raw, n_classes: i64, normalisation: Normalisation) -> Self {
        let Raw {
            pixels,
            labels,
            shape,
        } = raw;
        let table = match &pixels {
            Pixels::F32(_) | Pixels::Tokens(_) => Vec::new(),
            Pixels::U8(_) => normalisation.table(),
        };
        Self {
            pixels,
            labels,
            shape,
            n_classes,
            normalisation,
            table,
            places: Vec::new(),
        }
    }

    /// Both one behind the other, each sample once; `other` has the same shape and normalisation. None where it does not.
    pub(crate) fn joined(mut self, other: Self) -> Option<Self> {
        let is_alike = self.shape == other.shape
            && self.normalisation == other.normalisation
            && self.places.len() + other.places.len() == 0;
        if !is_alike {
            return None;
        }
        match (&mut self.pixels, other.pixels) {
            (Pixels::U8(own), Pixels::U8(others)) => own.extend(others),
            (Pixels::F32(own), Pixels::F32(others)) => own.extend(others),
            (Pixels::Tokens(own), Pixels::Tokens(others)) => own.extend(others),
            _ => return None,
        }
        self.labels.extend(other.labels);
        self.n_classes = self.n_classes.max(other.n_classes);
        Some(self)
    }

    /// Both, with `share` of the samples those of `other`: all of both are there, those of one of them more than once. None where they
    /// are not alike, as [`Dataset::joined`].
    pub(crate) fn mixed(self, other: Self, share: f64) -> Option<Self> {
        let (n_own, n_other) = (self.len(), other.len());
        let ratio = share / (1.0 - share);
        let (own, others) = match n_own as f64 * ratio >= n_other as f64 {
            true => (n_own, (n_own as f64 * ratio).round() as usize),
            false => ((n_other as f64 / ratio).round() as usize, n_other),
        };
        let mut joined = self.joined(other)?;
        let own = (0..own).map(|at| at % n_own);
        let others = (0..others).map(|at| n_own + at % n_other);
        let places: Vec<usize> = own.chain(others).collect();
        joined.labels = places.iter().map(|at| joined.labels[*at]).collect();
        joined.places = places.into_iter().map(|at| at as u32).collect();
        Some(joined)
    }

    /// The samples `rows`, normalised.
    ///
    /// # Shapes
    /// `x: [B, C, H, W] f32`, `y: [B] i64`; of text `x: [B, 1, 1, T] f32`, `y: [B, T] i64`
    ///
    /// # Panics
    /// If a row is not below [`Dataset::len`].
    pub fn batch(&self, rows: &[usize]) -> Batch {
        let [channels, height, width] = self.shape;
        let plane = (height * width) as usize;
        let len = plane * channels as usize;
        let mut x = Vec::with_capacity(rows.len() * len);
        let mut y = Vec::with_capacity(rows.len());
        for row in rows {
            let label = self.labels[*row];
            let row = self.places.get(*row).map_or(*row, |at| *at as usize);
            let sample = row * len..(row + 1) * len;
            match &self.pixels {
                Pixels::Tokens(tokens) => {
                    let window = &tokens[row * (len + 1)..(row + 1) * (len + 1)];
                    x.extend(window[..len].iter().map(|token| f32::from(*token)));
                    y.extend(window[1..].iter().map(|token| i64::from(*token)));
                    continue;
                }
                Pixels::U8(bytes) => {
                    for (pixels, table) in bytes[sample].chunks_exact(plane).zip(&self.table) {
                        x.extend(pixels.iter().map(|byte| table[usize::from(*byte)]));
                    }
                }
                Pixels::F32(floats) => {
                    let Normalisation { mean, std } = &self.normalisation;
                    for ((pixels, mean), std) in
                        floats[sample].chunks_exact(plane).zip(mean).zip(std)
                    {
                        x.extend(pixels.iter().map(|value| (value - mean) / std));
                    }
                }
            }
            y.push(label);
        }
        let x = Tensor::from_slice(&x).view([rows.len() as i64, channels, height, width]); // [B, C, H, W]
        let mut y = Tensor::from_slice(&y);
        if let Pixels::Tokens(_) = &self.pixels {
            y = y.view([rows.len() as i64, width]); // [B, T]
        }
        Batch { x, y }
    }

    /// Bytes of each value of a sample as the source has it: 1 of a pixel, 2 of a token, 4 of a float.
    pub fn value_bytes(&self) -> usize {
        match &self.pixels {
            Pixels::U8(_) => 1,
            Pixels::Tokens(_) => 2,
            Pixels::F32(_) => 4,
        }
    }

    /// The samples `rows` without their labels, as they travel: values as the source has them, little-endian. See
    /// [`Batch::of_raw`].
    ///
    /// # Panics
    /// If a row is not below [`Dataset::len`].
    pub fn raw(&self, rows: &[usize]) -> Vec<u8> {
        let len = self.shape.iter().product::<i64>() as usize;
        let mut raw = Vec::with_capacity(rows.len() * len * self.value_bytes());
        for row in rows {
            let row = self.places.get(*row).map_or(*row, |at| *at as usize);
            let sample = row * len..(row + 1) * len;
            match &self.pixels {
                Pixels::U8(bytes) => raw.extend_from_slice(&bytes[sample]),
                Pixels::F32(floats) => {
                    let floats = floats[sample].iter();
                    raw.extend(floats.flat_map(|value| value.to_le_bytes()));
                }
                Pixels::Tokens(tokens) => {
                    let window = tokens[row * (len + 1)..][..len].iter();
                    raw.extend(window.flat_map(|token| token.to_le_bytes()));
                }
            }
        }
        raw
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Channels, height, width.
    pub fn input_shape(&self) -> [i64; 3] {
        self.shape
    }

    /// Number of classes; every label is below it.
    pub fn n_classes(&self) -> i64 {
        self.n_classes
    }

    /// The labels, one per sample; of text the last token to be predicted.
    pub fn labels(&self) -> &[i64] {
        &self.labels
    }

    /// What [`Dataset::batch`] takes off and divides by.
    pub fn normalisation(&self) -> &Normalisation {
        &self.normalisation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> Raw {
        let pixels = Pixels::U8((0..24).map(|i| i * 10).collect());
        Raw {
            pixels,
            labels: vec![0, 1, 2],
            shape: [2, 2, 2],
        }
    }

    #[test]
    fn a_mix_has_its_share_and_all_samples_of_both() {
        let normalisation = Normalisation {
            mean: vec![0.0, 0.0],
            std: vec![1.0, 1.0],
        };
        let set = |labels: Vec<i64>| {
            let pixels = labels.iter().flat_map(|label| [*label as u8; 8]).collect();
            let raw = Raw {
                pixels: Pixels::U8(pixels),
                labels,
                shape: [2, 2, 2],
            };
            Dataset::new(raw, 10, normalisation.clone())
        };
        for (n_own, n_other, share, expected) in
            [(90, 3, 0.1, 100), (9, 10, 0.1, 100), (5, 5, 0.5, 10)]
        {
            let own = set((0..n_own).map(|at| at % 5).collect());
            let other = set((0..n_other).map(|at| 5 + at % 5).collect());
            let mixed = own.mixed(other, share).unwrap();
            assert_eq!(mixed.len(), expected);
            let new = mixed.labels().iter().filter(|label| **label >= 5).count();
            assert_eq!(new, (expected as f64 * share) as usize);
            let rows: Vec<usize> = (0..expected).collect();
            let batch = mixed.batch(&rows);
            for (row, label) in batch.labels().iter().enumerate() {
                let pixel = batch.x().double_value(&[row as i64, 0, 0, 0]) * 255.0;
                assert_eq!(pixel.round() as i64, *label, "a sample keeps its label");
            }
            let places: std::collections::BTreeSet<u32> = mixed.places.iter().copied().collect();
            assert_eq!(places.len(), (n_own + n_other) as usize);
        }
        let other = Dataset::new(raw(), 3, normalisation.clone());
        let taller = Raw {
            shape: [2, 4, 1],
            ..raw()
        };
        assert_eq!(
            Dataset::new(taller, 3, normalisation).mixed(other, 0.5),
            None
        );
    }

    #[test]
    fn a_batch_is_normalised_per_channel() {
        let normalisation = Normalisation {
            mean: vec![0.5, 0.0],
            std: vec![0.5, 2.0],
        };
        let batch = Dataset::new(raw(), 3, normalisation.clone()).batch(&[2, 0]);
        assert_eq!(batch.len(), 2);
        assert_eq!(batch.x().size(), [2, 2, 2, 2]);
        let expect = |byte: f64, mean: f64, std: f64| (byte / 255.0 - mean) / std;
        let close = |at: &[i64], value: f64| (batch.x().double_value(at) - value).abs() < 1e-6;
        assert!(close(&[0, 0, 0, 1], expect(170.0, 0.5, 0.5)));
        assert!(close(&[1, 1, 1, 1], expect(70.0, 0.0, 2.0)));
        assert_eq!(batch.y().int64_value(&[0]), 2);
        let Pixels::U8(bytes) = raw().pixels else {
            unreachable!()
        };
        let floats = Pixels::F32(bytes.iter().map(|byte| f32::from(*byte) / 255.0).collect());
        let same = Dataset::new(
            Raw {
                pixels: floats,
                ..raw()
            },
            3,
            normalisation,
        )
        .batch(&[2, 0]);
        assert_eq!(same.x(), batch.x());
    }

    #[test]
    fn computed_normalisation_leaves_mean_zero_and_deviation_one() {
        let normalisation = raw().normalisation();
        let x = Dataset::new(raw(), 3, normalisation)
            .batch(&[0, 1, 2])
            .x()
            .shallow_clone();
        for channel in 0..2 {
            let values = x.select(1, channel);
            assert!(values.mean(tch::Kind::Float).double_value(&[]).abs() < 1e-5);
            assert!((values.std(false).double_value(&[]) - 1.0).abs() < 1e-5);
        }
    }

    #[test]
    fn a_hold_out_takes_every_sample_once() {
        let (train, validation) = raw().hold_out(0.3);
        assert_eq!((train.labels.len(), validation.labels.len()), (2, 1));
        let mut all: Vec<i64> = train
            .labels
            .iter()
            .chain(&validation.labels)
            .copied()
            .collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
    }

    #[test]
    fn counts_labels_and_values_that_do_not_fit_are_refused() {
        let path = Path::new("file");
        let message = |raw: Raw, classes| raw.check(path, classes).unwrap_err().to_string();
        assert_eq!(
            message(
                Raw {
                    labels: vec![0],
                    ..raw()
                },
                3
            ),
            "file: 3 images but 1 labels"
        );
        assert_eq!(
            message(raw(), 2),
            "file: row 2: label 2 is not below the number of classes, 2"
        );
        let mut floats = vec![0.0; 24];
        floats[9] = f32::NAN;
        assert_eq!(
            message(
                Raw {
                    pixels: Pixels::F32(floats),
                    ..raw()
                },
                3
            ),
            "file: row 1: a value is NaN"
        );
    }
}

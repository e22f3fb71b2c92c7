//! IDX, the format of MNIST: big-endian magic `0 0 type dimensions`, one u32 per dimension, then the bytes.

use std::path::Path;

use super::DataError;
use super::dataset::{Pixels, Raw};
use super::file::{Input, find};

/// Names of the training and validation files, images first.
const TRAIN: [&[&str]; 2] = [
    &["train-images-idx3-ubyte", "train-images.idx3-ubyte"],
    &["train-labels-idx1-ubyte", "train-labels.idx1-ubyte"],
];
const VALIDATION: [&[&str]; 2] = [
    &[
        "t10k-images-idx3-ubyte",
        "t10k-images.idx3-ubyte",
        "test-images-idx3-ubyte",
    ],
    &[
        "t10k-labels-idx1-ubyte",
        "t10k-labels.idx1-ubyte",
        "test-labels-idx1-ubyte",
    ],
];

/// Which part of the folder is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Part {
    Train,
    Validation,
}

/// Whether `folder` has a validation part.
pub(crate) fn has_validation(folder: &Path) -> bool {
    find(folder, VALIDATION[0]).is_ok()
}

/// One part of the data set in `folder`.
pub(crate) fn load(folder: &Path, part: Part) -> Result<Raw, DataError> {
    let [images, labels] = if part == Part::Train {
        TRAIN
    } else {
        VALIDATION
    };
    let images = find(folder, images)?;
    let labels_path = find(folder, labels)?;
    let (shape, pixels) = read(&images)?;
    let shape = match shape[..] {
        [_, height, width] => [1, height, width],
        [_, channels, height, width] => [channels, height, width],
        _ => {
            return Err(DataError::corrupt(
                &images,
                3,
                format!("images need 3 or 4 dimensions, got {}", shape.len()),
            ));
        }
    };
    let (label_shape, labels) = read(&labels_path)?;
    if label_shape.len() != 1 {
        return Err(DataError::corrupt(
            &labels_path,
            3,
            format!("labels need 1 dimension, got {}", label_shape.len()),
        ));
    }
    let raw = Raw {
        pixels: Pixels::U8(pixels),
        labels: labels.iter().map(|label| i64::from(*label)).collect(),
        shape,
    };
    let n_images = raw.pixels.len() / shape.iter().product::<i64>() as usize;
    if n_images != raw.labels.len() {
        let what = format!(
            "{} labels but {n_images} images in {}",
            raw.labels.len(),
            images.display()
        );
        return Err(DataError::mismatch(&labels_path, what));
    }
    Ok(raw)
}

/// Dimensions (each at least 1) and bytes of one file.
fn read(path: &Path) -> Result<(Vec<i64>, Vec<u8>), DataError> {
    let mut input = Input::open(path)?;
    let magic = input.take(4, "the IDX header")?;
    let [0, 0, kind, dimensions] = magic[..] else {
        return Err(DataError::corrupt(
            path,
            0,
            format!("not an IDX file: it starts with {magic:02x?}"),
        ));
    };
    if kind != 8 {
        return Err(DataError::corrupt(
            path,
            2,
            format!("elements of type {kind:#04x}; only bytes (0x08) are read"),
        ));
    }
    if !(1..=4).contains(&dimensions) {
        return Err(DataError::corrupt(
            path,
            3,
            format!("{dimensions} dimensions; 1 to 4 are read"),
        ));
    }
    let header = input.take(4 * u64::from(dimensions), "the IDX dimensions")?;
    let shape: Vec<i64> = header
        .as_chunks()
        .0
        .iter()
        .map(|side| i64::from(u32::from_be_bytes(*side)))
        .collect();
    if let Some(zero) = shape.iter().position(|side| *side == 0) {
        return Err(DataError::corrupt(
            path,
            4 + 4 * zero as u64,
            "a dimension is zero",
        ));
    }
    let count = shape
        .iter()
        .fold(1u64, |count, side| count.saturating_mul(*side as u64));
    let bytes = input.take(count, "samples")?;
    input.finish()?;
    Ok((shape, bytes))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An IDX file of `shape` with every byte `value`.
    pub(crate) fn file(shape: &[u32], value: impl Fn(usize) -> u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, shape.len() as u8];
        shape
            .iter()
            .for_each(|side| bytes.extend(side.to_be_bytes()));
        bytes.extend((0..shape.iter().product::<u32>() as usize).map(value));
        bytes
    }

    fn folder(images: &[u8], labels: &[u8]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train-images-idx3-ubyte"), images).unwrap();
        std::fs::write(folder.path().join("train-labels-idx1-ubyte"), labels).unwrap();
        folder
    }

    #[test]
    fn a_whole_file_is_read() {
        let folder = folder(&file(&[2, 3, 4], |i| i as u8), &file(&[2], |i| i as u8));
        let raw = load(folder.path(), Part::Train).unwrap();
        assert_eq!(
            (raw.shape, raw.labels.as_slice()),
            ([1, 3, 4], [0, 1].as_slice())
        );
        assert_eq!(raw.pixels, Pixels::U8((0..24).collect()));
        assert!(!has_validation(folder.path()));
        let missing = load(folder.path(), Part::Validation)
            .unwrap_err()
            .to_string();
        assert!(missing.contains("t10k-images-idx3-ubyte"), "{missing}");
    }

    #[test]
    fn damage_is_named_with_file_and_byte() {
        let (images, labels) = (file(&[2, 3, 4], |_| 0), file(&[2], |_| 0));
        let zero_side = file(&[2, 0, 4], |_| 0);
        for (images, labels, expect) in [
            (
                &images[..30],
                &labels[..],
                "train-images-idx3-ubyte: byte 16: 24 bytes of samples are announced",
            ),
            (
                &images[..2],
                &labels,
                "byte 0: 4 bytes of the IDX header are announced",
            ),
            (&[1, 2, 3, 4, 5], &labels, "byte 0: not an IDX file"),
            (&[0, 0, 13, 3, 5], &labels, "byte 2: elements of type 0x0d"),
            (&zero_side, &labels, "byte 8: a dimension is zero"),
            (
                &images,
                &images,
                "train-labels-idx1-ubyte: byte 3: labels need 1 dimension, got 3",
            ),
            (
                &images,
                &file(&[3], |_| 0),
                "train-labels-idx1-ubyte: 3 labels but 2 images in ",
            ),
            (
                &[&images[..], &[0]].concat(),
                &labels,
                "byte 40: data goes on",
            ),
        ] {
            let folder = folder(images, labels);
            let error = load(folder.path(), Part::Train).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(header in proptest::bool::ANY, bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let images = if header { [&[0, 0, 8, 3], &bytes[..]].concat() } else { bytes };
            let folder = folder(&images, &file(&[1], |_| 0));
            if let Ok(raw) = load(folder.path(), Part::Train) {
                prop_assert_eq!(raw.labels.len(), 1);
            }
        }
    }
}

//! CIFAR, binary version: records of one label byte (CIFAR-100: coarse and fine) and 3072 pixels, red plane first.

use std::path::{Path, PathBuf};

use super::DataError;
use super::dataset::{Pixels, Raw};
use super::file::{Input, MAX_DATA_BYTES, find};
use super::idx::Part;

const PIXELS: usize = 3 * 32 * 32;

/// Which of the two sets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Ten,
    Hundred,
}

impl Kind {
    /// Number of (fine) classes.
    pub(crate) fn n_classes(self) -> i64 {
        if self == Self::Ten { 10 } else { 100 }
    }

    fn files(self, part: Part) -> &'static [&'static str] {
        match (self, part) {
            (Self::Ten, Part::Train) => &[
                "data_batch_1.bin",
                "data_batch_2.bin",
                "data_batch_3.bin",
                "data_batch_4.bin",
                "data_batch_5.bin",
            ],
            (Self::Ten, Part::Validation) => &["test_batch.bin"],
            (Self::Hundred, Part::Train) => &["train.bin"],
            (Self::Hundred, Part::Validation) => &["test.bin"],
        }
    }

    /// The folder the archive unpacks to.
    fn unpacked(self) -> &'static str {
        if self == Self::Ten {
            "cifar-10-batches-bin"
        } else {
            "cifar-100-binary"
        }
    }
}

/// Whether `folder` has a validation part.
pub(crate) fn has_validation(folder: &Path, kind: Kind) -> bool {
    find(&inside(folder, kind), kind.files(Part::Validation)).is_ok()
}

/// One part of the data set in `folder` (or in the folder that the archive makes there).
pub(crate) fn load(folder: &Path, kind: Kind, part: Part) -> Result<Raw, DataError> {
    let folder = inside(folder, kind);
    let label_bytes = if kind == Kind::Ten { 1 } else { 2 };
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for name in kind.files(part) {
        let path = find(&folder, &[name])?;
        let bytes = Input::open(&path)?.rest(MAX_DATA_BYTES - pixels.len() as u64)?;
        let record = label_bytes + PIXELS;
        if bytes.is_empty() || bytes.len() % record != 0 {
            let at = bytes.len() / record * record;
            let what = format!(
                "the file ends inside row {}: rows have {record} bytes",
                bytes.len() / record
            );
            return Err(DataError::corrupt(&path, at as u64, what));
        }
        for (row, record) in bytes.chunks_exact(record).enumerate() {
            let label = i64::from(record[label_bytes - 1]);
            if label >= kind.n_classes() {
                return Err(DataError::row(
                    &path,
                    row,
                    format!("label {label} is not below {}", kind.n_classes()),
                ));
            }
            labels.push(label);
            pixels.extend_from_slice(&record[label_bytes..]);
        }
    }
    Ok(Raw {
        pixels: Pixels::U8(pixels),
        labels,
        shape: [3, 32, 32],
    })
}

fn inside(folder: &Path, kind: Kind) -> PathBuf {
    let unpacked = folder.join(kind.unpacked());
    if unpacked.is_dir() {
        unpacked
    } else {
        folder.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(labels: &[u8]) -> Vec<u8> {
        let mut record = labels.to_vec();
        record.extend((0..PIXELS).map(|i| i as u8));
        record
    }

    #[test]
    fn both_versions_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let ten = folder.path().join("cifar-10-batches-bin");
        std::fs::create_dir(&ten).unwrap();
        for i in 1..=5 {
            std::fs::write(ten.join(format!("data_batch_{i}.bin")), record(&[i])).unwrap();
        }
        let raw = load(folder.path(), Kind::Ten, Part::Train).unwrap();
        assert_eq!(
            (raw.labels.as_slice(), raw.shape),
            ([1, 2, 3, 4, 5].as_slice(), [3, 32, 32])
        );
        assert!(!has_validation(folder.path(), Kind::Ten));
        std::fs::write(
            folder.path().join("test.bin"),
            [record(&[3, 99]), record(&[1, 0])].concat(),
        )
        .unwrap();
        assert_eq!(
            load(folder.path(), Kind::Hundred, Part::Validation)
                .unwrap()
                .labels,
            [99, 0]
        );
    }

    #[test]
    fn damage_is_named_with_file_and_row() {
        let folder = tempfile::tempdir().unwrap();
        for (bytes, expect) in [
            (
                [record(&[3, 99]), record(&[1, 100])].concat(),
                "train.bin: row 1: label 100",
            ),
            (
                [record(&[3, 99]), vec![1; 7]].concat(),
                "train.bin: byte 3074: the file ends inside row 1",
            ),
            (Vec::new(), "train.bin: byte 0: the file ends inside row 0"),
        ] {
            std::fs::write(folder.path().join("train.bin"), bytes).unwrap();
            let error = load(folder.path(), Kind::Hundred, Part::Train)
                .unwrap_err()
                .to_string();
            assert!(error.contains(expect), "{error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_or_rows(bytes in proptest::collection::vec(any::<u8>(), 0..100), rows in 0usize..3) {
            let folder = tempfile::tempdir().unwrap();
            let whole = [record(&[0, 5]).repeat(rows), bytes.clone()].concat();
            std::fs::write(folder.path().join("train.bin"), whole).unwrap();
            prop_assert_eq!(load(folder.path(), Kind::Hundred, Part::Train).is_ok(), rows > 0 && bytes.is_empty());
        }
    }
}

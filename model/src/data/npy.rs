//! numpy arrays: `x` holds the images, `y` the labels, as `.npy` files in a folder or as members of one `.npz`.
//!
//! `x`: u8, f32 or f64, `[N, C, H, W]`, `[N, H, W]` (one channel) or `[N, F]` (features); `y`: whole numbers `[N]`.
//! Format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>, versions 1 to 3.

use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use super::DataError;
use super::dataset::{Pixels, Raw};
use super::file::{Input, MAX_DATA_BYTES};
use super::idx::Part;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The header of a plain array is about 100 bytes.
const MAX_HEADER_BYTES: usize = 4096;
const MAX_DIMENSIONS: usize = 4;

/// Names of `x` and `y` of each part, in a `.npz` and (with `.npy`) in a folder.
const TRAIN: [(&str, &str); 2] = [("x", "y"), ("x_train", "y_train")];
const VALIDATION: [(&str, &str); 3] = [
    ("x_test", "y_test"),
    ("x_val", "y_val"),
    ("x_validation", "y_validation"),
];

/// The arrays at `path` for `part`, or `None` if a validation part is asked for and not there. An `own` path is one that
/// holds this part alone, so that plain `x` and `y` serve too.
pub(crate) fn load(path: &Path, part: Part, own: bool) -> Result<Option<Raw>, DataError> {
    let names: Vec<_> = match part {
        Part::Train => TRAIN.to_vec(),
        Part::Validation if own => VALIDATION.into_iter().chain(TRAIN).collect(),
        Part::Validation => VALIDATION.to_vec(),
    };
    let mut source = if path.is_dir() {
        Arrays::Folder(path.to_owned())
    } else {
        Arrays::open(path)?
    };
    for (x, y) in &names {
        if let Some((x_path, x_bytes)) = source.read(x)? {
            let Some((y_path, y_bytes)) = source.read(y)? else {
                return Err(DataError::mismatch(
                    path,
                    format!("there is {x:?} but no {y:?}"),
                ));
            };
            return combine(&x_path, &x_bytes, &y_path, &y_bytes).map(Some);
        }
    }
    if part == Part::Validation && !own {
        return Ok(None);
    }
    let names: Vec<_> = names.iter().map(|(x, y)| format!("{x} and {y}")).collect();
    Err(DataError::Missing {
        folder: path.to_owned(),
        names: names.join(", "),
    })
}

/// Where arrays are read from.
enum Arrays {
    Folder(PathBuf),
    Archive(PathBuf, Box<zip::ZipArchive<Cursor<Vec<u8>>>>),
}

impl Arrays {
    fn open(path: &Path) -> Result<Self, DataError> {
        let bytes = Input::open(path)?.rest(MAX_DATA_BYTES)?;
        if bytes.starts_with(MAGIC) {
            return Err(DataError::mismatch(
                path,
                "one .npy file: give the folder with x.npy and y.npy, or a .npz with both",
            ));
        }
        let archive = zip::ZipArchive::new(Cursor::new(bytes));
        let archive = archive
            .map_err(|error| DataError::corrupt(path, 0, format!("not a .npz archive: {error}")))?;
        Ok(Self::Archive(path.to_owned(), Box::new(archive)))
    }

    /// The bytes of the array `name` and the path to call it by, or `None` if it is not there.
    fn read(&mut self, name: &str) -> Result<Option<(PathBuf, Vec<u8>)>, DataError> {
        match self {
            Self::Folder(folder) => {
                let path = folder.join(format!("{name}.npy"));
                if !path.is_file() {
                    return Ok(None);
                }
                Ok(Some((
                    path.clone(),
                    Input::open(&path)?.rest(MAX_DATA_BYTES)?,
                )))
            }
            Self::Archive(path, archive) => {
                let member = format!("{name}.npy");
                let shown = path.join(&member);
                let file = match archive.by_name(&member) {
                    Err(zip::result::ZipError::FileNotFound) => return Ok(None),
                    file => {
                        file.map_err(|error| DataError::corrupt(&shown, 0, error.to_string()))?
                    }
                };
                let bytes = file.size();
                if bytes > MAX_DATA_BYTES {
                    return Err(DataError::TooLarge {
                        path: shown,
                        bytes,
                        limit: MAX_DATA_BYTES,
                    });
                }
                let mut content = Vec::new();
                let read = file.take(bytes + 1).read_to_end(&mut content);
                read.map_err(|error| {
                    DataError::corrupt(&shown, content.len() as u64, error.to_string())
                })?;
                Ok(Some((shown, content)))
            }
        }
    }
}

fn combine(x_path: &Path, x: &[u8], y_path: &Path, y: &[u8]) -> Result<Raw, DataError> {
    let (header, x) = Header::parse(x_path, x)?;
    let shape = match header.shape[..] {
        [_, features] => [1, 1, features],
        [_, height, width] => [1, height, width],
        [_, channels, height, width] => [channels, height, width],
        _ => {
            return Err(header.unfit(
                x_path,
                "images have the shape [N, C, H, W], [N, H, W] or [N, features]",
            ));
        }
    };
    let pixels = match header.element {
        Element::U8 => Pixels::U8(x.to_vec()),
        Element::F32 => Pixels::F32(header.elements(x, f32::from_le_bytes, f32::from_be_bytes)),
        Element::F64 => Pixels::F32(header.elements(
            x,
            |bytes| f64::from_le_bytes(bytes) as f32,
            |bytes| f64::from_be_bytes(bytes) as f32,
        )),
        _ => return Err(header.unfit(x_path, "images are u8, f32 or f64")),
    };
    let (header, y) = Header::parse(y_path, y)?;
    if header.shape.len() != 1 {
        return Err(header.unfit(y_path, "labels have the shape [N]"));
    }
    let labels = match header.element {
        Element::U8 => y.iter().map(|label| i64::from(*label)).collect(),
        Element::I8 => y.iter().map(|label| i64::from(*label as i8)).collect(),
        Element::I16 => header.elements(
            y,
            |b| i16::from_le_bytes(b).into(),
            |b| i16::from_be_bytes(b).into(),
        ),
        Element::U16 => header.elements(
            y,
            |b| u16::from_le_bytes(b).into(),
            |b| u16::from_be_bytes(b).into(),
        ),
        Element::I32 => header.elements(
            y,
            |b| i32::from_le_bytes(b).into(),
            |b| i32::from_be_bytes(b).into(),
        ),
        Element::U32 => header.elements(
            y,
            |b| u32::from_le_bytes(b).into(),
            |b| u32::from_be_bytes(b).into(),
        ),
        Element::I64 => header.elements(y, i64::from_le_bytes, i64::from_be_bytes),
        _ => return Err(header.unfit(y_path, "labels are whole numbers of at most 64 bits")),
    };
    Ok(Raw {
        pixels,
        labels,
        shape,
    })
}

/// Types of elements that are read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Element {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    I64,
    F32,
    F64,
}

/// What the header of an array says.
#[derive(Debug, PartialEq)]
struct Header {
    element: Element,
    little_endian: bool,
    shape: Vec<i64>,
}

impl Header {
    /// The header and exactly the data that belongs to it.
    fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DataError> {
        let corrupt = |byte: usize, what: String| DataError::corrupt(path, byte as u64, what);
        let Some(([major, _], rest)) = bytes
            .strip_prefix(MAGIC)
            .and_then(<[u8]>::split_first_chunk)
        else {
            return Err(corrupt(0, "not a numpy array".into()));
        };
        let (len, text) = match (major, rest) {
            (1, [a, b, text @ ..]) => (usize::from(u16::from_le_bytes([*a, *b])), text),
            (2 | 3, [a, b, c, d, text @ ..]) => {
                (u32::from_le_bytes([*a, *b, *c, *d]) as usize, text)
            }
            _ => {
                return Err(corrupt(
                    6,
                    format!("version {major} of the format, or the file ends there"),
                ));
            }
        };
        if len > MAX_HEADER_BYTES || len > text.len() {
            return Err(corrupt(
                8,
                format!(
                    "a header of {len} bytes; the file has {} and {MAX_HEADER_BYTES} are read",
                    text.len()
                ),
            ));
        }
        let (text, data) = text.split_at(len);
        let at = bytes.len() - data.len() - len;
        let text = std::str::from_utf8(text).map_err(|error| corrupt(at, error.to_string()))?;
        let (header, item_bytes) = Self::parse_text(text).map_err(|what| corrupt(at, what))?;
        let count = header
            .shape
            .iter()
            .try_fold(item_bytes, |count, side| count.checked_mul(*side as usize));
        if count != Some(data.len()) {
            let what = format!(
                "an array of shape {:?} does not fit in the {} bytes that follow",
                header.shape,
                data.len()
            );
            return Err(corrupt(bytes.len() - data.len(), what));
        }
        Ok((header, data))
    }

    /// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }` and the bytes per element.
    fn parse_text(text: &str) -> Result<(Self, usize), String> {
        let value = |key: &str| {
            let (_, after) = text
                .split_once(&format!("'{key}':"))
                .ok_or(format!("the header has no {key:?}"))?;
            Ok::<_, String>(after.trim_start())
        };
        let descr = value("descr")?;
        let descr = descr
            .strip_prefix('\'')
            .and_then(|rest| rest.split_once('\''));
        let descr = descr.ok_or("elements that are records are not read")?.0;
        if value("fortran_order")?.starts_with("True") {
            return Err(
                "the array is in Fortran order: save it with numpy.ascontiguousarray".into(),
            );
        }
        let shape = value("shape")?
            .strip_prefix('(')
            .and_then(|rest| rest.split_once(')'));
        let sides = shape
            .ok_or("the shape is no tuple")?
            .0
            .split(',')
            .map(str::trim)
            .filter(|side| !side.is_empty());
        let shape: Vec<i64> = sides
            .map(|side| {
                side.parse()
                    .ok()
                    .filter(|side| (1..=1 << 32).contains(side))
                    .ok_or(format!("a dimension is {side}"))
            })
            .collect::<Result<_, _>>()?;
        if shape.is_empty() || shape.len() > MAX_DIMENSIONS {
            return Err(format!(
                "{} dimensions; 1 to {MAX_DIMENSIONS} are read",
                shape.len()
            ));
        }
        let (order, name) = descr
            .split_at_checked(1)
            .ok_or("the element type is empty")?;
        let (element, item_bytes) = match name {
            "u1" => (Element::U8, 1),
            "i1" => (Element::I8, 1),
            "u2" => (Element::U16, 2),
            "i2" => (Element::I16, 2),
            "u4" => (Element::U32, 4),
            "i4" => (Element::I32, 4),
            "i8" => (Element::I64, 8),
            "f4" => (Element::F32, 4),
            "f8" => (Element::F64, 8),
            _ => {
                return Err(format!(
                    "elements of type {descr:?} are not read: use u8, f32 or whole numbers"
                ));
            }
        };
        Ok((
            Self {
                element,
                little_endian: order != ">",
                shape,
            },
            item_bytes,
        ))
    }

    /// The elements of `data` in the byte order of the header.
    fn elements<const N: usize, T>(
        &self,
        data: &[u8],
        little: impl Fn([u8; N]) -> T,
        big: impl Fn([u8; N]) -> T,
    ) -> Vec<T> {
        let read = |bytes: &[u8; N]| {
            if self.little_endian {
                little(*bytes)
            } else {
                big(*bytes)
            }
        };
        data.as_chunks::<N>().0.iter().map(read).collect()
    }

    fn unfit(&self, path: &Path, rule: &str) -> DataError {
        DataError::mismatch(
            path,
            format!(
                "elements {:?} of shape {:?}: {rule}",
                self.element, self.shape
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn array(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let header =
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        [
            MAGIC,
            &[1, 0],
            &(header.len() as u16).to_le_bytes(),
            header.as_bytes(),
            data,
        ]
        .concat()
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    }

    #[test]
    fn folders_and_archives_read_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let x = array("<f4", "(2, 3)", &floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.5]));
        let y = array(">i2", "(2,)", &[0, 1, 0, 0]);
        std::fs::write(folder.path().join("x.npy"), &x).unwrap();
        std::fs::write(folder.path().join("y.npy"), &y).unwrap();
        let archive = folder.path().join("data.npz");
        let mut writer = zip::ZipWriter::new(std::fs::File::create(&archive).unwrap());
        for (name, bytes) in [
            ("x_train.npy", &x),
            ("y_train.npy", &y),
            ("x_test.npy", &x),
            ("y_test.npy", &y),
        ] {
            writer
                .start_file(name, zip::write::FileOptions::default())
                .unwrap();
            writer.write_all(bytes).unwrap();
        }
        writer.finish().unwrap();
        let raw = load(folder.path(), Part::Train, true).unwrap().unwrap();
        assert_eq!(raw.shape, [1, 1, 3]);
        assert_eq!(raw.labels, [1, 0]);
        assert_eq!(raw.pixels, Pixels::F32(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.5]));
        assert_eq!(load(&archive, Part::Train, true).unwrap().unwrap(), raw);
        assert_eq!(
            load(&archive, Part::Validation, false).unwrap().unwrap(),
            raw
        );
        assert_eq!(load(folder.path(), Part::Validation, false).unwrap(), None);
        assert_eq!(
            load(folder.path(), Part::Validation, true)
                .unwrap()
                .unwrap(),
            raw
        );
    }

    #[test]
    fn what_is_no_array_of_ours_is_named() {
        let path = Path::new("x.npy");
        let message = |bytes: &[u8]| Header::parse(path, bytes).unwrap_err().to_string();
        assert_eq!(message(b"hello"), "x.npy: byte 0: not a numpy array");
        assert!(
            message(&array("<f4", "(2, 3)", &[0; 23]))
                .contains("shape [2, 3] does not fit in the 23 bytes")
        );
        assert!(message(&array("|O", "(2,)", &[0; 16])).contains("\"|O\" are not read"));
        assert!(message(&array("<f4", "(0, 3)", &[])).contains("a dimension is 0"));
        assert!(message(&array("<f4", "()", &[0; 4])).contains("0 dimensions"));
        let huge = array("<f8", "(4294967296, 4294967296, 4294967296)", &[]);
        assert!(message(&huge).contains("does not fit"));
        let fortran = array("<f4", "(1, 1)", &[0; 4]);
        let fortran = String::from_utf8_lossy(&fortran[10..]).replace("False", "True");
        assert!(
            Header::parse_text(&fortran)
                .unwrap_err()
                .contains("Fortran")
        );
    }

    proptest! {
        #[test]
        fn arbitrary_arrays_never_panic(magic: bool, header in ".{0,60}", bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let bytes = if magic { [&array("<u1", &header, &bytes)[..], &bytes].concat() } else { bytes };
            let _ = Header::parse(Path::new("x"), &bytes);
            let _ = Header::parse_text(&header);
        }

        #[test]
        fn arbitrary_archives_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..400, byte: u8) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.npz");
            std::fs::write(&path, &bytes).unwrap();
            prop_assert!(load(&path, Part::Train, true).is_err());
            let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
            for name in ["x.npy", "y.npy"] {
                writer.start_file(name, zip::write::FileOptions::default()).unwrap();
                writer.write_all(&array("|u1", "(4,)", &[1; 4])).unwrap();
            }
            let mut whole = writer.finish().unwrap().into_inner();
            let at = at % whole.len();
            whole[at] = byte;
            std::fs::write(&path, &whole).unwrap();
            let _ = load(&path, Part::Train, true);
        }
    }
}

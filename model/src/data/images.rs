//! A folder of images: one folder per class (in the order of their names), PNG or JPEG files inside.
//!
//! Colour if the first image is, else grey; all of one size, or resized to the size in the job file.

use std::path::{Path, PathBuf};

use image::{DynamicImage, ImageReader, Limits, imageops::FilterType};

use super::DataError;
use super::dataset::{Pixels, Raw};
use super::file::MAX_DATA_BYTES;
use crate::config::MAX_CLASSES;

/// Most pixels along one side of a source image; larger ones are refused before they are decoded.
const MAX_SIDE: u32 = 16_384;
/// Most memory one image may take while it is decoded.
const MAX_DECODE_BYTES: u64 = 1 << 30;
/// Most images in one data set.
const MAX_IMAGES: usize = 10_000_000;

/// The images under `folder` and the number of classes.
pub(crate) fn load(folder: &Path, size: Option<[u32; 2]>) -> Result<(Raw, i64), DataError> {
    let classes = entries(folder, |path| path.is_dir())?;
    if classes.len() < 2 || classes.len() as i64 > MAX_CLASSES {
        let what = format!(
            "{} folders; there must be one per class, between 2 and {MAX_CLASSES}",
            classes.len()
        );
        return Err(DataError::mismatch(folder, what));
    }
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    let mut first: Option<(bool, [u32; 2])> = None;
    for (label, class) in classes.iter().enumerate() {
        for path in entries(class, is_image)? {
            let image = open(&path)?;
            let (colour, [height, width]) = *first.get_or_insert((
                image.color().has_color(),
                size.unwrap_or([image.height(), image.width()]),
            ));
            let image = match size {
                Some(_) if [image.height(), image.width()] != [height, width] => {
                    image.resize_exact(width, height, FilterType::Triangle)
                }
                _ => image,
            };
            if [image.height(), image.width()] != [height, width] {
                let what = format!(
                    "{}x{} pixels where the first image has {height}x{width}: set data.size = [height, width] to resize",
                    image.height(),
                    image.width()
                );
                return Err(DataError::mismatch(&path, what));
            }
            push_planes(&mut pixels, image, colour);
            labels.push(label as i64);
            if pixels.len() as u64 > MAX_DATA_BYTES || labels.len() > MAX_IMAGES {
                let (path, bytes) = (folder.to_owned(), pixels.len() as u64);
                return Err(DataError::TooLarge {
                    path,
                    bytes,
                    limit: MAX_DATA_BYTES,
                });
            }
        }
    }
    let Some((colour, [height, width])) = first else {
        return Err(DataError::mismatch(
            folder,
            "no .png, .jpg or .jpeg file in any class folder",
        ));
    };
    let shape = [
        if colour { 3 } else { 1 },
        i64::from(height),
        i64::from(width),
    ];
    Ok((
        Raw {
            pixels: Pixels::U8(pixels),
            labels,
            shape,
        },
        classes.len() as i64,
    ))
}

/// The entries of `folder` that `wanted` accepts, but for hidden ones, in the order of their names.
fn entries(folder: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>, DataError> {
    let read = |error| DataError::read(folder, error);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(read)? {
        let entry = entry.map_err(read)?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !hidden && wanted(&entry.path()) {
            paths.push(entry.path());
        }
        if paths.len() > MAX_IMAGES {
            return Err(DataError::mismatch(
                folder,
                format!("more than {MAX_IMAGES} entries"),
            ));
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_image(path: &Path) -> bool {
    let extension = path
        .extension()
        .and_then(|extension| extension.to_str())
        .map(str::to_ascii_lowercase);
    matches!(extension.as_deref(), Some("png" | "jpg" | "jpeg")) && path.is_file()
}

fn open(path: &Path) -> Result<DynamicImage, DataError> {
    let read = |error| DataError::read(path, error);
    let mut reader = ImageReader::open(path)
        .map_err(read)?
        .with_guessed_format()
        .map_err(read)?;
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(MAX_SIDE), Some(MAX_SIDE));
    limits.max_alloc = Some(MAX_DECODE_BYTES);
    reader.limits(limits);
    reader.decode().map_err(|error| {
        DataError::corrupt(
            path,
            0,
            format!("not a PNG or JPEG image that can be read: {error}"),
        )
    })
}

/// Appends the image plane by plane: grey, or red, green, blue.
fn push_planes(pixels: &mut Vec<u8>, image: DynamicImage, colour: bool) {
    if colour {
        let image = image.into_rgb8();
        (0..3).for_each(|channel| pixels.extend(image.pixels().map(|pixel| pixel.0[channel])));
    } else {
        pixels.extend(image.into_luma8().into_raw());
    }
}

#[cfg(test)]
mod tests {
    use image::{GrayImage, RgbImage};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn classes_are_folders_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for class in ["dog", "cat", ".hidden"] {
            std::fs::create_dir(folder.path().join(class)).unwrap();
        }
        std::fs::write(folder.path().join("dog/readme.txt"), "no image").unwrap();
        RgbImage::from_fn(3, 2, |x, _| image::Rgb([x as u8, 100, 200]))
            .save(folder.path().join("dog/a.png"))
            .unwrap();
        RgbImage::from_pixel(3, 2, image::Rgb([7, 8, 9]))
            .save(folder.path().join("cat/b.png"))
            .unwrap();
        let (raw, classes) = load(folder.path(), None).unwrap();
        assert_eq!(
            (raw.shape, raw.labels.as_slice(), classes),
            ([3, 2, 3], [0, 1].as_slice(), 2)
        );
        let Pixels::U8(bytes) = raw.pixels else {
            unreachable!()
        };
        assert_eq!(bytes[..18], [[7; 6], [8; 6], [9; 6]].concat());
        assert_eq!(bytes[18..24], [0, 1, 2, 0, 1, 2]);

        GrayImage::new(5, 5)
            .save(folder.path().join("dog/c.png"))
            .unwrap();
        let error = load(folder.path(), None).unwrap_err().to_string();
        assert!(
            error.contains("c.png: 5x5 pixels where the first image has 2x3"),
            "{error}"
        );
        assert_eq!(
            load(folder.path(), Some([4, 6])).unwrap().0.shape,
            [3, 4, 6]
        );
    }

    #[test]
    fn a_damaged_image_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for class in ["a", "b"] {
            std::fs::create_dir(folder.path().join(class)).unwrap();
        }
        assert!(
            load(folder.path(), None)
                .unwrap_err()
                .to_string()
                .contains("no .png")
        );
        let path = folder.path().join("a/x.png");
        GrayImage::new(9, 9).save(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        assert!(
            load(folder.path(), None)
                .unwrap_err()
                .to_string()
                .contains("a/x.png: byte 0: not a PNG")
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused(kind in 0usize..3, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("x.png");
            let magic: &[u8] = [b"" as &[u8], b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\xff\xd8\xff\xe0"][kind];
            std::fs::write(&path, [magic, &bytes].concat()).unwrap();
            prop_assert!(open(&path).is_err());
        }
    }
}

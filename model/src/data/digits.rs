//! `digits`: the 1,797 UCI handwritten digits inside the binary (see data/README.md for source and licence).
//!
//! The 8x8 images are enlarged to 24x24 by bilinear interpolation in whole numbers (so equal on every platform) and
//! framed to 28x28, which makes them look like MNIST: every model takes them. A fixed shuffle gives 1,500 training and
//! 297 validation samples, writers mixed.

use std::io::Read;

use super::dataset::{Normalisation, Pixels, Raw};
use crate::random::Stream;

static PACKED: &[u8] = include_bytes!("../../data/digits.bin.gz");
const N: usize = 1797;
const N_TRAIN: usize = 1500;
const SIDE: usize = 8;
const SCALE: usize = 3;
const MARGIN: usize = 2;
const FRAMED: usize = SIDE * SCALE + 2 * MARGIN;

/// Number of classes.
pub(crate) const N_CLASSES: i64 = 10;

/// Of the framed training part, computed once.
pub(crate) fn normalisation() -> Normalisation {
    Normalisation {
        mean: vec![0.22],
        std: vec![0.31],
    }
}

/// Training and validation part.
#[expect(
    clippy::expect_used,
    reason = "the bytes are part of the binary and a test reads them"
)]
pub(crate) fn load() -> (Raw, Raw) {
    let mut bytes = Vec::with_capacity(N * (SIDE * SIDE + 1));
    flate2::read::GzDecoder::new(PACKED)
        .read_to_end(&mut bytes)
        .expect("the embedded digits are whole");
    let (images, labels) = bytes.split_at(N * SIDE * SIDE);
    let pixels = images.chunks_exact(SIDE * SIDE).flat_map(frame).collect();
    let labels = labels.iter().map(|label| i64::from(*label)).collect();
    let all = Raw {
        pixels: Pixels::U8(pixels),
        labels,
        shape: [1, FRAMED as i64, FRAMED as i64],
    };
    let mut rows: Vec<usize> = (0..N).collect();
    Stream::new(0, "digits").shuffle(&mut rows);
    (all.select(&rows[..N_TRAIN]), all.select(&rows[N_TRAIN..]))
}

/// Enlarges 8x8 values of 0 to 16 to bytes of 0 to 255 in a 28x28 frame.
fn frame(small: &[u8]) -> [u8; FRAMED * FRAMED] {
    let mut framed = [0; FRAMED * FRAMED];
    for y in 0..SIDE * SCALE {
        for x in 0..SIDE * SCALE {
            let ((y0, y1, fy), (x0, x1, fx)) = (neighbours(y), neighbours(x));
            let at = |y: usize, x: usize| usize::from(small[y * SIDE + x]);
            let top = at(y0, x0) * (SCALE - fx) + at(y0, x1) * fx;
            let bottom = at(y1, x0) * (SCALE - fx) + at(y1, x1) * fx;
            let value = top * (SCALE - fy) + bottom * fy; // 0 to 16 SCALE²
            framed[(y + MARGIN) * FRAMED + x + MARGIN] = (value * 255 / (16 * SCALE * SCALE)) as u8;
        }
    }
    framed
}

/// The two source pixels around the middle of target pixel `at`, and the weight of the second in units of 1 / SCALE.
fn neighbours(at: usize) -> (usize, usize, usize) {
    let middle = at as isize - (SCALE as isize - 1) / 2; // whole, since SCALE is odd
    let low = middle.div_euclid(SCALE as isize);
    let clamp = |pixel: isize| pixel.clamp(0, SIDE as isize - 1) as usize;
    (
        clamp(low),
        clamp(low + 1),
        middle.rem_euclid(SCALE as isize) as usize,
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_embedded_digits_are_whole_and_balanced() {
        let (train, validation) = load();
        for (part, n) in [(&train, N_TRAIN), (&validation, N - N_TRAIN)] {
            part.check(Path::new("digits"), N_CLASSES).unwrap();
            assert_eq!(part.labels.len(), n);
            for class in 0..N_CLASSES {
                let share =
                    part.labels.iter().filter(|label| **label == class).count() as f64 / n as f64;
                assert!((0.05..0.15).contains(&share), "class {class}: {share}");
            }
        }
    }

    #[test]
    fn the_stored_normalisation_fits_the_training_part() {
        let (computed, stored) = (load().0.normalisation(), normalisation());
        assert!(
            (computed.mean[0] - stored.mean[0]).abs() < 0.01,
            "{computed:?}"
        );
        assert!(
            (computed.std[0] - stored.std[0]).abs() < 0.01,
            "{computed:?}"
        );
    }

    #[test]
    fn enlarging_keeps_the_middle_of_each_pixel_and_the_frame_black() {
        let small: Vec<u8> = (0..64).map(|i| (i % 17) as u8).collect();
        let framed = frame(&small);
        for (i, value) in small.iter().enumerate() {
            let (y, x) = (i / SIDE * SCALE + 1 + MARGIN, i % SIDE * SCALE + 1 + MARGIN);
            assert_eq!(
                usize::from(framed[y * FRAMED + x]),
                usize::from(*value) * 255 / 16
            );
        }
        assert!(framed[..FRAMED * MARGIN].iter().all(|byte| *byte == 0));
    }
}

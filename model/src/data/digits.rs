//! `digits`: the 1,797 UCI handwritten digits inside the binary (see data/README.md for source and licence).
//!
//! Each pixel of the 8x8 images becomes a 2x2 square, and a frame makes it 28x28, the size of MNIST: every model takes
//! that. (Smaller pixels let a 3x3 convolution see strokes: the cnn gets further than with threefold enlargement.) A
//! fixed shuffle gives 1,500 training and 297 validation samples, writers mixed.

use std::io::Read;

use super::dataset::{Normalisation, Pixels, Raw};
use crate::random::Stream;

static PACKED: &[u8] = include_bytes!("../../data/digits.bin.gz");
const N: usize = 1797;
const N_TRAIN: usize = 1500;
const SIDE: usize = 8;
const SCALE: usize = 2;
const MARGIN: usize = 6;
const FRAMED: usize = SIDE * SCALE + 2 * MARGIN;

/// Number of classes.
pub(crate) const N_CLASSES: i64 = 10;

/// Of the framed training part, computed once.
pub(crate) fn normalisation() -> Normalisation {
    Normalisation {
        mean: vec![0.0994],
        std: vec![0.2580],
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
            let value = usize::from(small[y / SCALE * SIDE + x / SCALE]);
            framed[(y + MARGIN) * FRAMED + x + MARGIN] = (value * 255 / 16) as u8;
        }
    }
    framed
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
    fn enlarging_repeats_each_pixel_inside_a_black_frame() {
        let small: Vec<u8> = (0..64).map(|i| (i % 17) as u8).collect();
        let framed = frame(&small);
        for (i, value) in small.iter().enumerate() {
            let (y, x) = (i / SIDE * SCALE + MARGIN, i % SIDE * SCALE + MARGIN);
            for at in [y * FRAMED + x, y * FRAMED + x + 1, (y + 1) * FRAMED + x + 1] {
                assert_eq!(usize::from(framed[at]), usize::from(*value) * 255 / 16);
            }
        }
        assert!(framed[..FRAMED * MARGIN].iter().all(|byte| *byte == 0));
    }
}

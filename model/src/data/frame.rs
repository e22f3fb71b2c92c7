//! Puts raw images into a frame of another size: black around smaller ones, larger ones cut, both centred. As MNIST's 28x28 is
//! commonly made 32x32.

use super::dataset::{Pixels, Raw};

/// The images of `raw` in frames of `[height, width]`.
pub(crate) fn fit(raw: Raw, size: [u32; 2]) -> Raw {
    let [channels, height, width] = raw.shape.map(|side| side as usize);
    let to = size.map(|side| side as usize);
    if to == [height, width] {
        return raw;
    }
    let pixels = match raw.pixels {
        // Text has no frame; the job file's check refuses a size for it.
        tokens @ Pixels::Tokens(_) => {
            return Raw {
                pixels: tokens,
                ..raw
            };
        }
        Pixels::U8(bytes) => Pixels::U8(planes(&bytes, [height, width], to)),
        Pixels::F32(floats) => Pixels::F32(planes(&floats, [height, width], to)),
    };
    Raw {
        pixels,
        labels: raw.labels,
        shape: [channels as i64, i64::from(size[0]), i64::from(size[1])],
    }
}

fn planes<T: Copy + Default>(
    pixels: &[T],
    [height, width]: [usize; 2],
    [new_height, new_width]: [usize; 2],
) -> Vec<T> {
    let n = pixels.len() / (height * width).max(1);
    let mut framed = vec![T::default(); n * new_height * new_width];
    // Rows and columns that both have; where each begins.
    let span = |old: usize, new: usize| {
        (
            old.min(new),
            old.saturating_sub(new) / 2,
            new.saturating_sub(old) / 2,
        )
    };
    let (rows, from_row, to_row) = span(height, new_height);
    let (columns, from_column, to_column) = span(width, new_width);
    for (old, new) in pixels
        .chunks_exact(height * width)
        .zip(framed.chunks_exact_mut(new_height * new_width))
    {
        for row in 0..rows {
            let old = &old[(from_row + row) * width + from_column..][..columns];
            new[(to_row + row) * new_width + to_column..][..columns].copy_from_slice(old);
        }
    }
    framed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(values: Vec<u8>, shape: [i64; 3]) -> Raw {
        Raw {
            pixels: Pixels::U8(values),
            labels: vec![0, 1],
            shape,
        }
    }

    #[test]
    fn small_images_get_a_black_frame_and_large_ones_are_cut() {
        let small = raw(vec![1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 2]);
        let framed = fit(small.clone(), [4, 2]);
        assert_eq!(framed.shape, [1, 4, 2]);
        assert_eq!(
            framed.pixels,
            Pixels::U8(vec![0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 5, 6, 7, 8, 0, 0])
        );
        assert_eq!(fit(framed, [2, 2]), small);
        assert_eq!(fit(small.clone(), [2, 2]), small);
    }
}

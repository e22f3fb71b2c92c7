//! Samples that come from elsewhere: the bytes of [`Dataset::raw`](super::Dataset::raw) become what
//! [`Dataset::batch`](super::Dataset::batch) makes of the same samples, to the bit.

use tch::Tensor;

use super::dataset::{Batch, Normalisation};

/// Why bytes are no samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RawError {
    /// Not one, two or four bytes a value, or of other channels.
    #[error("{got} bytes are no {samples} samples of {values} values")]
    Length {
        /// Samples that there should be.
        samples: usize,
        /// Values of each.
        values: usize,
        /// Bytes given.
        got: usize,
    },
    /// A value is NaN or infinite.
    #[error("a value of a sample is not finite")]
    NonFinite,
}

impl Batch {
    /// `samples` samples of `shape` (channels, height, width) without labels.
    ///
    /// # Errors
    /// [`RawError`]; nothing was allocated where the length is wrong.
    pub fn of_raw(
        raw: &[u8],
        samples: usize,
        shape: [i64; 3],
        normalisation: &Normalisation,
    ) -> Result<Self, RawError> {
        let side = |side: i64| usize::try_from(side).ok().filter(|side| *side > 0);
        let plane = side(shape[1]).zip(side(shape[2]));
        let plane = plane.and_then(|(height, width)| height.checked_mul(width));
        let channels = side(shape[0]).unwrap_or(0);
        let values = plane
            .and_then(|plane| plane.checked_mul(channels))
            .unwrap_or(0);
        let wrong = RawError::Length {
            samples,
            values,
            got: raw.len(),
        };
        let n = values
            .checked_mul(samples)
            .filter(|n| *n > 0)
            .ok_or(wrong)?;
        let plane = plane.unwrap_or(1);
        let Normalisation { mean, std } = normalisation;
        let is_normalised = mean.len() == channels && std.len() == channels;
        let mut x: Vec<f32> = Vec::new();
        match raw
            .len()
            .checked_div(n)
            .filter(|each| each * n == raw.len())
        {
            Some(1) if is_normalised => {
                let table = normalisation.table();
                x.reserve(n);
                for (pixels, table) in raw.chunks_exact(plane).zip(table.iter().cycle()) {
                    x.extend(pixels.iter().map(|byte| table[usize::from(*byte)]));
                }
            }
            Some(2) => {
                let tokens = raw.as_chunks::<2>().0.iter();
                x.extend(tokens.map(|token| f32::from(u16::from_le_bytes(*token))));
            }
            Some(4) if is_normalised => {
                x.reserve(n);
                let floats = raw.as_chunks::<4>().0.chunks_exact(plane);
                for ((floats, mean), std) in floats.zip(mean.iter().cycle()).zip(std.iter().cycle())
                {
                    let values = floats.iter().map(|value| f32::from_le_bytes(*value));
                    x.extend(values.map(|value| (value - mean) / std));
                }
            }
            _ => return Err(wrong),
        }
        if x.iter().any(|value| !value.is_finite()) {
            return Err(RawError::NonFinite);
        }
        let [channels, height, width] = shape;
        let x = Tensor::from_slice(&x).view([samples as i64, channels, height, width]); // [B, C, H, W]
        Ok(Self::new(x, Tensor::from_slice(&[0i64; 0])))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::dataset::{Dataset, Pixels, Raw};

    const SHAPE: [i64; 3] = [2, 2, 3];

    fn normalisation() -> Normalisation {
        Normalisation {
            mean: vec![0.1, 0.7],
            std: vec![0.3, 2.0],
        }
    }

    fn set(pixels: Pixels, shape: [i64; 3]) -> Dataset {
        let raw = Raw {
            pixels,
            labels: vec![0, 1, 0],
            shape,
        };
        Dataset::new(raw, 2, normalisation())
    }

    #[test]
    fn samples_that_travelled_are_the_same_to_the_bit() {
        let floats = (0..36).map(|at| (at as f32 * 0.37).sin()).collect();
        let tokens = (0..15).map(|at| at * 999).collect();
        for (set, bytes) in [
            (
                set(Pixels::U8((0..36).map(|at| at * 7).collect()), SHAPE),
                1,
            ),
            (set(Pixels::F32(floats), SHAPE), 4),
            (set(Pixels::Tokens(tokens), [1, 1, 4]), 2),
        ] {
            assert_eq!(set.value_bytes(), bytes);
            let rows = [2, 0];
            let raw = set.raw(&rows);
            let batch = Batch::of_raw(&raw, 2, set.input_shape(), &normalisation()).unwrap();
            assert_eq!((batch.x(), batch.len()), (set.batch(&rows).x(), 2));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_samples_or_an_error(raw in proptest::collection::vec(any::<u8>(), 0..100), samples in 0usize..5) {
            let values = 12 * samples;
            let fits = values > 0 && [1, 2, 4].iter().any(|each| each * values == raw.len());
            match Batch::of_raw(&raw, samples, SHAPE, &normalisation()) {
                Ok(batch) => prop_assert!(fits && batch.len() == samples),
                Err(RawError::Length { .. }) => prop_assert!(!fits),
                Err(RawError::NonFinite) => prop_assert_eq!(raw.len(), 4 * values),
            }
            prop_assert!(Batch::of_raw(&raw, usize::MAX, SHAPE, &normalisation()).is_err());
        }
    }
}

//! Activations and gradients on the wire: little-endian f32 as they are, or rounded to two bytes. No value is looked at one by
//! one; what is not finite stays so, and the stage that computes with it refuses it.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Values converted in one go.
const CHUNK: usize = 1024;

/// How values are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Precision {
    /// 4 bytes, exact.
    #[default]
    F32 = 0,
    /// 2 bytes, 11 bits of precision, magnitudes up to 65,504 (larger ones become infinite and are refused).
    F16 = 1,
    /// 2 bytes, 8 bits of precision.
    Bf16 = 2,
}

/// A body that cannot hold the values it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValuesError {
    /// Number of a format that does not exist.
    #[error("number format {got} of an activation is unknown")]
    Format {
        /// Its number.
        got: u8,
    },
    /// Not the length that its shape has.
    #[error("an activation of {expected} values came in {got} bytes")]
    Length {
        /// Values.
        expected: usize,
        /// Bytes.
        got: usize,
    },
}

impl Precision {
    /// The format of this number.
    ///
    /// # Errors
    /// [`ValuesError::Format`].
    pub fn of(number: u8) -> Result<Self, ValuesError> {
        let all = [Self::F32, Self::F16, Self::Bf16];
        let found = all.into_iter().find(|precision| *precision as u8 == number);
        found.ok_or(ValuesError::Format { got: number })
    }

    /// Appends `values`, the bytes of little-endian f32.
    pub fn append(self, values: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::F32 => out.extend_from_slice(values),
            Self::F16 => shorten(values, out, |floats, halves| {
                let mut rounded = [f16::ZERO; CHUNK];
                rounded[..floats.len()].convert_from_f32_slice(floats);
                rounded[..floats.len()]
                    .iter()
                    .for_each(|half| halves.extend_from_slice(&half.to_le_bytes()));
            }),
            Self::Bf16 => shorten(values, out, |floats, halves| {
                let mut rounded = [bf16::ZERO; CHUNK];
                rounded[..floats.len()].convert_from_f32_slice(floats);
                rounded[..floats.len()]
                    .iter()
                    .for_each(|half| halves.extend_from_slice(&half.to_le_bytes()));
            }),
        }
    }

    /// The bytes of `n` little-endian f32 that `body` holds.
    ///
    /// # Errors
    /// [`ValuesError::Length`]; nothing was allocated.
    pub fn read(self, body: &[u8], n: usize) -> Result<Vec<u8>, ValuesError> {
        let width = if self == Self::F32 { 4 } else { 2 };
        if n.checked_mul(width) != Some(body.len()) {
            return Err(ValuesError::Length {
                expected: n,
                got: body.len(),
            });
        }
        let halves = body
            .as_chunks::<2>()
            .0
            .iter()
            .map(|bytes| u16::from_le_bytes(*bytes));
        Ok(match self {
            Self::F32 => body.to_vec(),
            Self::F16 => halves
                .flat_map(|bits| f16::from_bits(bits).to_f32().to_le_bytes())
                .collect(),
            Self::Bf16 => halves
                .flat_map(|bits| bf16::from_bits(bits).to_f32().to_le_bytes())
                .collect(),
        })
    }
}

fn shorten(values: &[u8], out: &mut Vec<u8>, mut put: impl FnMut(&[f32], &mut Vec<u8>)) {
    let mut floats = [0.0; CHUNK];
    for chunk in values.as_chunks::<4>().0.chunks(CHUNK) {
        for (float, bytes) in floats.iter_mut().zip(chunk) {
            *float = f32::from_le_bytes(*bytes);
        }
        put(&floats[..chunk.len()], out);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn values_come_back_as_precise_as_their_format(values in proptest::collection::vec(-1000.0f32..1000.0, 0..3000)) {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            for (precision, error) in [(Precision::F32, 0.0), (Precision::F16, 1.0 / 2048.0), (Precision::Bf16, 1.0 / 256.0)] {
                let mut body = Vec::new();
                precision.append(&bytes, &mut body);
                let back = precision.read(&body, values.len()).unwrap();
                for (value, bytes) in values.iter().zip(back.as_chunks::<4>().0) {
                    let decoded = f32::from_le_bytes(*bytes);
                    prop_assert!((decoded - value).abs() <= value.abs() * error + 1e-4 * error, "{value} {decoded}");
                }
                prop_assert!(precision.read(&body, values.len() + 1).is_err());
            }
        }
    }

    #[test]
    fn an_unknown_format_is_refused() {
        assert_eq!(Precision::of(2), Ok(Precision::Bf16));
        assert_eq!(Precision::of(3), Err(ValuesError::Format { got: 3 }));
    }
}

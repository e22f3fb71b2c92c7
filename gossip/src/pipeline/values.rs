//! Activations and gradients on the wire: little-endian f32 as they are, rounded to two bytes, or to one with a scale per block of
//! values. What is not finite stays so, and the stage that computes with it refuses it.
//!
//! int8: a block of [`BLOCK`] values is a scale, an f32, and a byte for each, the nearest multiple of the scale; the largest value of
//! the block is 127 of them. A value is thus off by at most 1/254 of its block's largest. (With gradients, `gradient::values`, the
//! scale is a power of two, which compresses better; activations are not compressed, and so coarse a scale would lose half a bit.)
//! A block that holds a value that is not finite has NaN for a scale: all of it is refused.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Values converted in one go.
const CHUNK: usize = 1024;
/// Values that share a scale in int8: it costs 1.6 %, and one outlier coarsens only so many.
pub const BLOCK: usize = 256;
/// Bytes of a scale.
const SCALE: usize = 4;
/// The largest multiple of a scale.
const MOST: f32 = 127.0;
/// 1.5 * 2^23: added to a float below 2^22, it leaves the nearest integer in the low bits.
const TO_INTEGER: f32 = 12_582_912.0;

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
    /// A byte and the scale of its block; see the module's header.
    Int8 = 3,
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
        let all = [Self::F32, Self::F16, Self::Bf16, Self::Int8];
        let found = all.into_iter().find(|precision| *precision as u8 == number);
        found.ok_or(ValuesError::Format { got: number })
    }

    /// Bytes of `n` values; none where memory has no such number.
    pub fn n_bytes(self, n: usize) -> Option<usize> {
        match self {
            Self::F32 => n.checked_mul(4),
            Self::F16 | Self::Bf16 => n.checked_mul(2),
            Self::Int8 => n.checked_add(SCALE * n.div_ceil(BLOCK)),
        }
    }

    /// Appends `values`, the bytes of little-endian f32.
    pub fn append(self, values: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::F32 => out.extend_from_slice(values),
            Self::F16 => shorten(values, out, |floats, out| {
                let mut rounded = [f16::ZERO; CHUNK];
                rounded[..floats.len()].convert_from_f32_slice(floats);
                let bytes = out.as_chunks_mut::<2>().0.iter_mut();
                bytes
                    .zip(rounded)
                    .for_each(|(out, half)| *out = half.to_le_bytes());
            }),
            Self::Bf16 => shorten(values, out, |floats, out| {
                let mut rounded = [bf16::ZERO; CHUNK];
                rounded[..floats.len()].convert_from_f32_slice(floats);
                let bytes = out.as_chunks_mut::<2>().0.iter_mut();
                bytes
                    .zip(rounded)
                    .for_each(|(out, half)| *out = half.to_le_bytes());
            }),
            Self::Int8 => {
                let mut floats = [0.0; BLOCK];
                for block in values.as_chunks::<4>().0.chunks(BLOCK) {
                    let floats = read_floats(block, &mut floats);
                    let scale = scale_of(floats);
                    let inverse = if scale < f32::MIN_POSITIVE {
                        0.0
                    } else {
                        1.0 / scale
                    };
                    out.extend_from_slice(&scale.to_le_bytes());
                    out.extend(floats.iter().map(|value| {
                        let multiple = (value * inverse).clamp(-MOST, MOST);
                        (multiple + TO_INTEGER).to_bits() as u8
                    }));
                }
            }
        }
    }

    /// Fills `out` with the bytes of `n` little-endian f32 that `body` holds.
    ///
    /// # Errors
    /// [`ValuesError::Length`]; nothing was allocated.
    pub fn read(self, body: &[u8], n: usize, out: &mut Vec<u8>) -> Result<(), ValuesError> {
        if self.n_bytes(n) != Some(body.len()) {
            return Err(ValuesError::Length {
                expected: n,
                got: body.len(),
            });
        }
        if self == Self::F32 {
            out.clear();
            out.extend_from_slice(body);
            return Ok(());
        }
        out.resize(4 * n, 0);
        let floats = out.as_chunks_mut::<4>().0;
        match self {
            Self::F32 => {}
            Self::F16 => lengthen(body, floats, |bits, values| {
                let mut halves = [f16::ZERO; CHUNK];
                let halves = &mut halves[..bits.len()];
                halves
                    .iter_mut()
                    .zip(bits)
                    .for_each(|(half, bits)| *half = f16::from_le_bytes(*bits));
                halves.convert_to_f32_slice(values);
            }),
            Self::Bf16 => lengthen(body, floats, |bits, values| {
                let mut halves = [bf16::ZERO; CHUNK];
                let halves = &mut halves[..bits.len()];
                halves
                    .iter_mut()
                    .zip(bits)
                    .for_each(|(half, bits)| *half = bf16::from_le_bytes(*bits));
                halves.convert_to_f32_slice(values);
            }),
            Self::Int8 => {
                for (block, floats) in body.chunks(SCALE + BLOCK).zip(floats.chunks_mut(BLOCK)) {
                    let Some((scale, bytes)) = block.split_first_chunk::<SCALE>() else {
                        continue;
                    };
                    let scale = f32::from_le_bytes(*scale);
                    for (float, byte) in floats.iter_mut().zip(bytes) {
                        *float = (scale * f32::from(*byte as i8)).to_le_bytes();
                    }
                }
            }
        }
        Ok(())
    }
}

/// The scale by which the largest of these is [`MOST`]; NaN if one of them is not finite.
fn scale_of(values: &[f32]) -> f32 {
    // As integers, magnitudes of floats have the same order, with what is not finite above all others.
    let magnitudes = values.iter().map(|value| value.to_bits() & 0x7fff_ffff);
    let largest = f32::from_bits(magnitudes.fold(0, u32::max));
    if !largest.is_finite() {
        return f32::NAN;
    }
    let scale = largest / MOST;
    // Rounded up, the very largest float would come back infinite.
    if (scale * MOST).is_finite() {
        scale
    } else {
        scale.next_down()
    }
}

fn read_floats<'a>(bytes: &[[u8; 4]], floats: &'a mut [f32]) -> &'a [f32] {
    for (float, bytes) in floats.iter_mut().zip(bytes) {
        *float = f32::from_le_bytes(*bytes);
    }
    &floats[..bytes.len()]
}

/// Two bytes a value: `put` gets floats and the bytes to write.
fn shorten(values: &[u8], out: &mut Vec<u8>, put: impl Fn(&[f32], &mut [u8])) {
    let mut floats = [0.0; CHUNK];
    let begin = out.len();
    out.resize(begin + values.len() / 2, 0);
    let parts = values.as_chunks::<4>().0.chunks(CHUNK);
    for (part, out) in parts.zip(out[begin..].chunks_mut(2 * CHUNK)) {
        put(read_floats(part, &mut floats), out);
    }
}

/// Two bytes a value: `take` gets them and the floats to write.
fn lengthen(body: &[u8], out: &mut [[u8; 4]], take: impl Fn(&[[u8; 2]], &mut [f32])) {
    let mut floats = [0.0; CHUNK];
    for (part, out) in body
        .as_chunks::<2>()
        .0
        .chunks(CHUNK)
        .zip(out.chunks_mut(CHUNK))
    {
        let floats = &mut floats[..part.len()];
        take(part, floats);
        out.iter_mut()
            .zip(floats)
            .for_each(|(out, float)| *out = float.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Precision; 4] = [
        Precision::F32,
        Precision::F16,
        Precision::Bf16,
        Precision::Int8,
    ];

    fn bytes_of(values: &[f32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    }

    fn round_trip(precision: Precision, values: &[f32]) -> Vec<f32> {
        let mut body = vec![9];
        precision.append(&bytes_of(values), &mut body);
        // What was in the memory before is of no matter.
        let mut back = vec![1; 77];
        precision.read(&body[1..], values.len(), &mut back).unwrap();
        assert_eq!(back.len(), 4 * values.len());
        let floats = back.as_chunks::<4>().0.iter();
        floats.map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    proptest! {
        #[test]
        fn values_come_back_as_precise_as_their_format(values in proptest::collection::vec(-1000.0f32..1000.0, 0..3000)) {
            for (precision, error) in [(Precision::F32, 0.0), (Precision::F16, 1.0 / 2048.0), (Precision::Bf16, 1.0 / 256.0)] {
                for (value, decoded) in values.iter().zip(round_trip(precision, &values)) {
                    prop_assert!((decoded - value).abs() <= value.abs() * error + 1e-4 * error, "{value} {decoded}");
                }
            }
        }

        #[test]
        fn int8_is_off_by_half_a_multiple_at_most_and_keeps_the_largest_of_a_block(
            values in proptest::collection::vec(any::<f32>().prop_filter("finite", |value| value.is_finite()), 0..700),
        ) {
            let back = round_trip(Precision::Int8, &values);
            for (block, decoded) in values.chunks(BLOCK).zip(back.chunks(BLOCK)) {
                let largest = block.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                let bound = f64::from(largest) / 254.0 * (1.0 + 1e-5) + 1e-36;
                for (value, decoded) in block.iter().zip(decoded) {
                    let off = (f64::from(*value) - f64::from(*decoded)).abs();
                    prop_assert!(decoded.is_finite() && off <= bound, "{value} {decoded}, largest {largest}");
                    prop_assert!(value.abs() < largest || off <= f64::from(largest) * 1e-6 + 1e-36);
                }
            }
        }

        #[test]
        fn what_is_not_finite_spoils_its_block_and_no_other(
            mut values in proptest::collection::vec(-10.0f32..10.0, 600),
            at in 0usize..600,
            bad in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
        ) {
            values[at] = bad;
            for precision in ALL {
                prop_assert!(!round_trip(precision, &values)[at].is_finite());
            }
            let back = round_trip(Precision::Int8, &values);
            for (number, block) in back.chunks(BLOCK).enumerate() {
                let is_spoilt = number == at / BLOCK;
                prop_assert!(block.iter().all(|value| value.is_nan() == is_spoilt));
            }
        }

        #[test]
        fn any_bytes_of_the_right_number_are_values_and_others_an_error(body: Vec<u8>, n in 0usize..300) {
            for precision in ALL {
                let mut out = Vec::new();
                let fits = precision.n_bytes(n) == Some(body.len());
                prop_assert_eq!(precision.read(&body, n, &mut out).is_ok(), fits);
                prop_assert_eq!(out.len(), if fits { 4 * n } else { 0 });
                let mut body = body.clone();
                body.resize(precision.n_bytes(n).unwrap(), 255);
                precision.read(&body, n, &mut out).unwrap();
                prop_assert!(precision.read(&body, usize::MAX, &mut out).is_err());
            }
        }
    }

    #[test]
    fn int8_takes_a_quarter_of_the_bytes_and_a_scale_per_block() {
        assert_eq!(Precision::Int8.n_bytes(BLOCK + 1), Some(BLOCK + 1 + 8));
        assert_eq!(Precision::Int8.n_bytes(0), Some(0));
        let largest = [f32::MAX, -f32::MAX, 1e-45, 0.0];
        assert!(
            round_trip(Precision::Int8, &largest)
                .iter()
                .all(|value| value.is_finite())
        );
        assert_eq!(round_trip(Precision::Int8, &[1e-45, 0.0]), [0.0, 0.0]);
        assert_eq!(
            round_trip(Precision::Int8, &[127.0, -1.0, 0.4, 63.0]),
            [127.0, -1.0, 0.0, 63.0]
        );
    }

    #[test]
    fn an_unknown_format_is_refused() {
        for precision in ALL {
            assert_eq!(Precision::of(precision as u8), Ok(precision));
        }
        assert_eq!(Precision::of(4), Err(ValuesError::Format { got: 4 }));
    }
}

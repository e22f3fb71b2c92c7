//! bf16: the upper half of an f32, rounded to the nearest, ties to even; eight bits of precision over the whole range.
//!
//! A value's exponent goes to the compressed part, sign and mantissa to the raw part: the entries that are sent have few
//! different exponents, so that byte shrinks to some three bits, and the other is noise. What rounds up to infinity becomes
//! the largest bf16 instead. A value and its bf16 are within a factor two of each other, or the bf16 is zero.

use super::{CHUNK, largest, position_not_finite, squares_of};

/// The largest finite bf16.
const MAX: u32 = 0x7f7f;

/// The exponent of infinities and NaN.
const NOT_FINITE: u8 = 0xff;

/// Appends `values` as bf16. Fails with the position of a value that is not finite; the outputs are then of no use.
pub(super) fn put(
    values: &[f32],
    exponents: &mut Vec<u8>,
    rest: &mut Vec<u8>,
) -> Result<(), usize> {
    let mut bytes = [0; CHUNK];
    for (n_chunk, chunk) in values.chunks(CHUNK).enumerate() {
        if !f32::from_bits(largest(chunk)).is_finite() {
            return Err(n_chunk * CHUNK + position_not_finite(chunk));
        }
        let bytes = &mut bytes[..chunk.len()];
        for (byte, value) in bytes.iter_mut().zip(chunk) {
            *byte = (magnitude_of(*value) >> 7) as u8;
        }
        exponents.extend_from_slice(bytes);
        for (byte, value) in bytes.iter_mut().zip(chunk) {
            let sign = value.to_bits() >> 24 & 0x80;
            *byte = (sign | magnitude_of(*value) & 0x7f) as u8;
        }
        rest.extend_from_slice(bytes);
    }
    Ok(())
}

/// Exponent and mantissa of the nearest bf16 to a finite value.
fn magnitude_of(value: f32) -> u32 {
    let bits = super::magnitude(value);
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).min(MAX)
}

/// Checks that exponents are those of finite values; else the position of one.
pub(super) fn check(exponents: &[u8]) -> Result<(), usize> {
    let bad = |exponent: &u8| *exponent == NOT_FINITE;
    for (n_chunk, chunk) in exponents.chunks(CHUNK).enumerate() {
        if chunk
            .iter()
            .fold(false, |any, exponent| any | bad(exponent))
        {
            return Err(n_chunk * CHUNK + chunk.iter().position(bad).unwrap_or(0));
        }
    }
    Ok(())
}

/// Decodes checked values, chunk by chunk, into `take`; returns the sum of their squares.
pub(super) fn take(exponents: &[u8], rest: &[u8], mut take: impl FnMut(&[f32])) -> f64 {
    let mut values = [0.0; CHUNK];
    let mut squares = 0.0;
    for (exponents, rest) in exponents.chunks(CHUNK).zip(rest.chunks(CHUNK)) {
        let values = &mut values[..rest.len()];
        for ((value, exponent), rest) in values.iter_mut().zip(exponents).zip(rest) {
            let (exponent, rest) = (u32::from(*exponent), u32::from(*rest));
            *value = f32::from_bits((rest & 0x80) << 24 | exponent << 23 | (rest & 0x7f) << 16);
        }
        squares += squares_of(values);
        take(values);
    }
    squares
}

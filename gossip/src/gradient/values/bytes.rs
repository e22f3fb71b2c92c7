//! int8 with a scale per block.
//!
//! A block of 256 values has an exponent `e`, an i8, so that its largest magnitude lies in `[2^6, 2^7)` when divided by
//! `2^e`; each value is the nearest multiple of `2^e`, at most 127 of them. The scale is a power of two because then
//! scaling is exact both ways, no bytes can make a scale that is not finite, and the rounding error needs no more bits
//! than the value had; the half bit that a finer scale would win is a half bit that zstd would lose. All bytes go to the
//! compressed part: small multiples are more frequent than large ones.

use super::{largest, position_not_finite, power_of_two, sum_of_squares};

/// Values that share an exponent: its byte costs 0.4 %, and one outlier coarsens only so many.
const BLOCK: usize = 256;

/// The largest multiple.
const MAX: f32 = 127.0;

/// No encoder produces it, and times the largest scale it would be infinite.
const FORBIDDEN: i8 = -128;

/// Exponents that an encoder produces; others could overflow in decoding.
const EXPONENTS: std::ops::RangeInclusive<i8> = -126..=121;

/// 1.5 * 2^23: added to a float below 2^22, it leaves the nearest integer in the low bits.
const TO_INTEGER: f32 = 12_582_912.0;

/// Bytes of `n` values.
pub(super) const fn n_bytes(n: usize) -> usize {
    n + n.div_ceil(BLOCK)
}

/// Appends `values` as int8. Fails with the position of a value that is not finite; the output is then of no use.
pub(super) fn put(values: &[f32], out: &mut Vec<u8>) -> Result<(), usize> {
    let mut bytes = [0; BLOCK];
    for (n_block, block) in values.chunks(BLOCK).enumerate() {
        let largest = largest(block);
        if !f32::from_bits(largest).is_finite() {
            return Err(n_block * BLOCK + position_not_finite(block));
        }
        let exponent = ((largest >> 23) as i32 - 127 - 6).max(-126);
        let inverse = power_of_two(-exponent);
        let bytes = &mut bytes[..block.len()];
        for (byte, value) in bytes.iter_mut().zip(block) {
            let scaled = (value * inverse).clamp(-MAX, MAX);
            *byte = (scaled + TO_INTEGER).to_bits() as u8;
        }
        out.push(exponent as i8 as u8);
        out.extend_from_slice(bytes);
    }
    Ok(())
}

/// Checks that `bytes`, of [`n_bytes`], make finite values and are such as an encoder makes; else the position of a value.
pub(super) fn check(bytes: &[u8]) -> Result<(), usize> {
    let bad = |byte: &u8| *byte as i8 == FORBIDDEN;
    for (n_block, block) in bytes.chunks(1 + BLOCK).enumerate() {
        let [exponent, block @ ..] = block else {
            continue;
        };
        let any_bad = block.iter().fold(false, |any, byte| any | bad(byte));
        if any_bad || !EXPONENTS.contains(&(*exponent as i8)) {
            return Err(n_block * BLOCK + block.iter().position(bad).unwrap_or(0));
        }
    }
    Ok(())
}

/// Decodes checked values, block by block, into `take`; returns the sum of their squares.
pub(super) fn take(bytes: &[u8], mut take: impl FnMut(&[f32])) -> f64 {
    let mut values = [0.0; BLOCK];
    let mut squares = 0.0;
    for block in bytes.chunks(1 + BLOCK) {
        let [exponent, block @ ..] = block else {
            continue;
        };
        let values = &mut values[..block.len()];
        for (value, byte) in values.iter_mut().zip(block) {
            *value = f32::from(*byte as i8);
        }
        let scale = power_of_two(i32::from(*exponent as i8));
        // At most 256 * 2^14: exact before scaling.
        squares += f64::from(sum_of_squares(values)) * f64::from(scale) * f64::from(scale);
        for value in values.iter_mut() {
            *value *= scale;
        }
        take(values);
    }
    squares
}

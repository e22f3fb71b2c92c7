//! f16 on a scale of its own.
//!
//! Coded in chunks of 1,024 values. A chunk has an exponent `e`, an i8, so that its largest magnitude lies in
//! `[2^14, 2^15)` when divided by `2^e`: so nothing overflows, and everything down to 2^-28 of the chunk's maximum keeps the
//! full 11 bits. Since the scale is a power of two, scaling is exact in both directions, and what the receiver decodes
//! differs from the original by the rounding to 11 bits alone.
//!
//! The bytes of a chunk are split: high bytes (sign, exponent, two bits of mantissa) compress by a third and go, led by the
//! exponent, to the compressed part; low bytes are noise and go to the raw part.

use half::{
    f16,
    slice::{HalfBitsSliceExt, HalfFloatSliceExt},
};

use super::{CHUNK, largest, position_not_finite, power_of_two, sum_of_squares};

/// The largest magnitude of a scaled half: the last before 2^15.
const MAX_HALF: f32 = 32752.0;

/// The high byte of [`MAX_HALF`].
const MAX_HIGH: u8 = 0x77;

/// Exponents that an encoder produces; others could overflow in decoding.
const EXPONENTS: std::ops::RangeInclusive<i8> = -126..=113;

/// Bytes of `n` halves in the compressed part: high bytes and exponents.
pub(super) const fn highs_bytes(n: usize) -> usize {
    n + n.div_ceil(CHUNK)
}

/// Appends `values` as halves. Fails with the position of a value that is not finite; the outputs are then of no use.
pub(super) fn put(values: &[f32], high: &mut Vec<u8>, low: &mut Vec<u8>) -> Result<(), usize> {
    let mut scaled = [0.0; CHUNK];
    let mut halves = [f16::ZERO; CHUNK];
    let mut bytes = [0; CHUNK];
    for (n_chunk, chunk) in values.chunks(CHUNK).enumerate() {
        let largest = largest(chunk);
        if !f32::from_bits(largest).is_finite() {
            return Err(n_chunk * CHUNK + position_not_finite(chunk));
        }
        let exponent = exponent_for(largest);
        let inverse = power_of_two(-exponent);
        let (scaled, halves, bytes) = (
            &mut scaled[..chunk.len()],
            &mut halves[..chunk.len()],
            &mut bytes[..chunk.len()],
        );
        for (scaled, value) in scaled.iter_mut().zip(chunk) {
            // Clamped, for rounding could reach 2^15, and 2^15 * 2^113 is no f32.
            *scaled = (value * inverse).clamp(-MAX_HALF, MAX_HALF);
        }
        halves.convert_from_f32_slice(scaled);
        let halves: &[u16] = halves.reinterpret_cast();
        high.push(exponent as i8 as u8);
        for (byte, half) in bytes.iter_mut().zip(halves) {
            *byte = (half >> 8) as u8;
        }
        high.extend_from_slice(bytes);
        for (byte, half) in bytes.iter_mut().zip(halves) {
            *byte = *half as u8;
        }
        low.extend_from_slice(bytes);
    }
    Ok(())
}

/// Checks that `high`, of [`highs_bytes`] bytes, makes finite values whatever the low bytes are; else the position of a value.
pub(super) fn check(high: &[u8]) -> Result<(), usize> {
    for (n_chunk, chunk) in high.chunks(1 + CHUNK).enumerate() {
        let [exponent, chunk @ ..] = chunk else {
            continue;
        };
        let largest = chunk
            .iter()
            .fold(0, |largest, high| (high & 0x7f).max(largest));
        if largest > MAX_HIGH || !EXPONENTS.contains(&(*exponent as i8)) {
            let at = chunk
                .iter()
                .position(|high| high & 0x7f > MAX_HIGH)
                .unwrap_or(0);
            return Err(n_chunk * CHUNK + at);
        }
    }
    Ok(())
}

/// Decodes checked halves, chunk by chunk, into `take`; returns the sum of their squares.
pub(super) fn take(high: &[u8], low: &[u8], mut take: impl FnMut(&[f32])) -> f64 {
    let mut halves = [0u16; CHUNK];
    let mut values = [0.0; CHUNK];
    let mut squares = 0.0;
    for (high, low) in high.chunks(1 + CHUNK).zip(low.chunks(CHUNK)) {
        let [exponent, high @ ..] = high else {
            continue;
        };
        let (halves, values) = (&mut halves[..low.len()], &mut values[..low.len()]);
        for ((half, high), low) in halves.iter_mut().zip(high).zip(low) {
            *half = u16::from(*high) << 8 | u16::from(*low);
        }
        let halves: &[f16] = halves.reinterpret_cast();
        halves.convert_to_f32_slice(values);
        let scale = power_of_two(i32::from(*exponent as i8));
        // At most 1024 * 2^30: no overflow before scaling.
        squares += f64::from(sum_of_squares(values)) * f64::from(scale) * f64::from(scale);
        for value in values.iter_mut() {
            *value *= scale;
        }
        take(values);
    }
    squares
}

/// `e` such that a magnitude of these bits, divided by `2^e`, lies in `[2^14, 2^15)`; the least exponent for less.
fn exponent_for(magnitude: u32) -> i32 {
    ((magnitude >> 23) as i32 - 127 - 14).max(-126)
}

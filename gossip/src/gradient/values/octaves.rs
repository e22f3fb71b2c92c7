//! Sign and power of two: the octave of a value, a byte of which zstd leaves three bits or so.
//!
//! The chosen entries are the largest of a residual, so most of them lie in the lowest two or three octaves above a threshold: where they
//! are, and with which sign, says nearly all (sparse ternary compression, Sattler et al. 2019, sends one magnitude for all). What
//! rounding to the nearer power of two leaves, a third of a value at most, stays in the residual and goes with a later packet.
//! A block of 256 values has the largest exponent, 1 to 254 as in the f32; each value's byte is its sign and how far below its exponent
//! lies. A value and its power of two are within a factor two of each other, or the power is zero.

use super::{largest, magnitude, position_not_finite, squares_of};

/// Values that share an exponent.
const BLOCK: usize = 256;
/// Added to a magnitude's bits, it carries into the exponent from one and a half times its power of two on.
const HALF: u32 = 0x0040_0000;
/// The largest finite exponent.
const MAX: u32 = 254;
/// So far below the block's largest, or further, is zero.
const ZERO: u8 = 127;
const SIGN: u8 = 0x80;

/// Bytes of `n` values.
pub(super) const fn n_bytes(n: usize) -> usize {
    n + n.div_ceil(BLOCK)
}

/// The exponent of the nearer power of two; 0 is zero.
fn exponent(bits: u32) -> u32 {
    ((bits + HALF) >> 23).min(MAX)
}

/// Appends `values` as octaves. Fails with the position of a value that is not finite; the output is then of no use.
pub(super) fn put(values: &[f32], out: &mut Vec<u8>) -> Result<(), usize> {
    let mut bytes = [0; BLOCK];
    for (n_block, block) in values.chunks(BLOCK).enumerate() {
        let largest = largest(block);
        if !f32::from_bits(largest).is_finite() {
            return Err(n_block * BLOCK + position_not_finite(block));
        }
        let top = exponent(largest).max(1);
        let bytes = &mut bytes[..block.len()];
        for (byte, value) in bytes.iter_mut().zip(block) {
            let exponent = exponent(magnitude(*value));
            let below = (top - exponent).min(u32::from(ZERO)) as u8;
            let sign = (value.to_bits() >> 24) as u8 & SIGN;
            *byte = match exponent == 0 || below == ZERO {
                true => ZERO,
                false => sign | below,
            };
        }
        out.push(top as u8);
        out.extend_from_slice(bytes);
    }
    Ok(())
}

/// Checks that `bytes`, of [`n_bytes`], are such as an encoder makes; else the position of a value.
pub(super) fn check(bytes: &[u8]) -> Result<(), usize> {
    for (n_block, block) in bytes.chunks(1 + BLOCK).enumerate() {
        let [top, block @ ..] = block else {
            continue;
        };
        let bad = |byte: &u8| *byte != ZERO && (byte & !SIGN == ZERO || byte & !SIGN >= *top);
        let any_bad = block.iter().fold(false, |any, byte| any | bad(byte));
        if any_bad || !(1..=MAX).contains(&u32::from(*top)) {
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
        let [top, block @ ..] = block else {
            continue;
        };
        let values = &mut values[..block.len()];
        for (value, byte) in values.iter_mut().zip(block) {
            let exponent = u32::from(top.saturating_sub(byte & !SIGN));
            let power = f32::from_bits(u32::from(byte & SIGN) << 24 | exponent << 23);
            *value = if *byte == ZERO { 0.0 } else { power };
        }
        squares += squares_of(values);
        take(values);
    }
    squares
}

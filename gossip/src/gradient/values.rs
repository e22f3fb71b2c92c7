//! The values of a packet: f32 as they are, or f16 on a scale of their own.
//!
//! Half precision is coded in chunks of 1,024 values. A chunk has an exponent `e`, an i8, so that its largest magnitude
//! lies in `[2^14, 2^15)` when divided by `2^e`: so nothing overflows, and everything down to 2^-28 of the chunk's maximum
//! keeps the full 11 bits. Since the scale is a power of two, scaling is exact in both directions, and what the receiver
//! decodes differs from the original by the rounding to 11 bits alone. That makes `original - decoded` exact in f32
//! (Sterbenz: they are within a factor two of each other, or the decoded value is zero): the residual keeps the rounding
//! error without an error of its own.
//!
//! The bytes of a chunk are split: high bytes (sign, exponent, two bits of mantissa) compress by a third, low bytes are
//! noise. The first, led by the exponent, go to the part of the packet that zstd sees, the second to the raw part.

use half::{
    f16,
    slice::{HalfBitsSliceExt, HalfFloatSliceExt},
};

use super::select::magnitude;

/// Values that share an exponent: small enough for a chunk's buffers to stay in the fastest cache.
pub(super) const CHUNK: usize = 1024;

/// The largest magnitude of a scaled half: the last before 2^15.
const MAX_HALF: f32 = 32752.0;

/// The high byte of [`MAX_HALF`].
const MAX_HIGH: u8 = 0x77;

/// Exponents that an encoder produces; others could overflow in decoding.
const EXPONENTS: std::ops::RangeInclusive<i8> = -126..=113;

/// How values are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Half precision, 2 bytes per value; rounding stays in the residual.
    F16,
    /// The bits of the f32, 4 bytes per value: exact.
    F32,
}

/// Bytes of `n` halves in the compressed part: high bytes and exponents.
pub(super) const fn high_bytes(n: usize) -> usize {
    n + n.div_ceil(CHUNK)
}

/// Appends `values` as halves. Fails with the position of a value that is not finite; the outputs are then of no use.
pub(super) fn put_halves(
    values: &[f32],
    high: &mut Vec<u8>,
    low: &mut Vec<u8>,
) -> Result<(), usize> {
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

/// Appends `values` as f32. Fails with the position of a value that is not finite; the output is then of no use.
pub(super) fn put_floats(values: &[f32], raw: &mut Vec<u8>) -> Result<(), usize> {
    let mut bytes = [0; CHUNK * 4];
    for (n_chunk, chunk) in values.chunks(CHUNK).enumerate() {
        if !f32::from_bits(largest(chunk)).is_finite() {
            return Err(n_chunk * CHUNK + position_not_finite(chunk));
        }
        let bytes = &mut bytes[..chunk.len() * 4];
        for (bytes, value) in bytes.chunks_exact_mut(4).zip(chunk) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        raw.extend_from_slice(bytes);
    }
    Ok(())
}

/// Checks that `high`, of [`high_bytes`] bytes, makes finite values whatever the low bytes are; else the position of a value.
pub(super) fn check_halves(high: &[u8]) -> Result<(), usize> {
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

/// Checks that f32 bytes are finite; else the position of a value.
pub(super) fn check_floats(raw: &[u8]) -> Result<(), usize> {
    let value = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for (n_chunk, chunk) in raw.chunks(CHUNK * 4).enumerate() {
        let largest = chunk.chunks_exact(4).fold(0, |largest, bytes| {
            (magnitude(value(bytes)) as i32).max(largest)
        });
        if !f32::from_bits(largest as u32).is_finite() {
            let at = chunk
                .chunks_exact(4)
                .position(|bytes| !value(bytes).is_finite())
                .unwrap_or(0);
            return Err(n_chunk * CHUNK + at);
        }
    }
    Ok(())
}

/// Decodes checked halves, chunk by chunk, into `take`; returns the sum of their squares.
pub(super) fn take_halves(high: &[u8], low: &[u8], mut take: impl FnMut(&[f32])) -> f64 {
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

/// Decodes f32 bytes, chunk by chunk, into `take`; returns the sum of their squares.
pub(super) fn take_floats(raw: &[u8], mut take: impl FnMut(&[f32])) -> f64 {
    let mut values = [0.0; CHUNK];
    let mut squares = 0.0;
    for raw in raw.chunks(CHUNK * 4) {
        let values = &mut values[..raw.len() / 4];
        for (value, bytes) in values.iter_mut().zip(raw.chunks_exact(4)) {
            *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        // In f32, as is fast, unless squares overflow or may have underflowed.
        let quick = sum_of_squares(values);
        squares += if (1e-20..f32::MAX).contains(&quick) {
            f64::from(quick)
        } else {
            values
                .iter()
                .map(|value| f64::from(*value) * f64::from(*value))
                .sum()
        };
        take(values);
    }
    squares
}

fn sum_of_squares(values: &[f32]) -> f32 {
    let mut lanes = [0.0; 16];
    let groups = values.chunks_exact(16);
    let rest: f32 = groups.remainder().iter().map(|value| value * value).sum();
    for group in groups {
        for (lane, value) in lanes.iter_mut().zip(group) {
            *lane += value * value;
        }
    }
    lanes.iter().sum::<f32>() + rest
}

/// The largest magnitude, as bits; compared as signed integers because every processor has that as a vector instruction.
fn largest(values: &[f32]) -> u32 {
    values
        .iter()
        .fold(0, |largest, value| (magnitude(*value) as i32).max(largest)) as u32
}

fn position_not_finite(values: &[f32]) -> usize {
    values
        .iter()
        .position(|value| !value.is_finite())
        .unwrap_or(0)
}

/// `e` such that a magnitude of these bits, divided by `2^e`, lies in `[2^14, 2^15)`; the least exponent for less.
fn exponent_for(magnitude: u32) -> i32 {
    ((magnitude >> 23) as i32 - 127 - 14).max(-126)
}

/// `2^e` for `e` from -126 to 127.
fn power_of_two(e: i32) -> f32 {
    f32::from_bits(((e + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(values: &[f32]) -> (Vec<f32>, f64) {
        let (mut high, mut low, mut back) = (vec![], vec![], vec![]);
        put_halves(values, &mut high, &mut low).unwrap();
        assert_eq!(
            (high.len(), low.len()),
            (high_bytes(values.len()), values.len())
        );
        assert_eq!(check_halves(&high), Ok(()));
        let squares = take_halves(&high, &low, |values| back.extend_from_slice(values));
        (back, squares)
    }

    #[test]
    fn the_largest_and_the_least_floats_stay_finite_and_exact_in_the_residual() {
        let least = f32::from_bits(1);
        for values in [
            vec![f32::MAX, f32::MIN, 1.0, least],
            vec![least, -least, 0.0],
            vec![f32::MIN_POSITIVE, least],
        ] {
            for (value, back) in values.iter().zip(round_trip(&values).0) {
                assert!(back.is_finite());
                assert_eq!(f64::from(value - back) + f64::from(back), f64::from(*value));
            }
        }
    }

    #[test]
    fn halves_that_would_overflow_are_refused() {
        for (exponent, high, ok) in [
            (113, 0x77, true),
            (113, 0x78, false),
            (114, 0, false),
            (-127, 0, false),
        ] {
            assert_eq!(
                check_halves(&[exponent as u8, 0, high]).is_ok(),
                ok,
                "{exponent} {high:#x}"
            );
            assert_eq!(
                check_halves(&[exponent as u8, 0, high | 0x80]).is_ok(),
                ok,
                "{exponent} {high:#x}"
            );
        }
    }

    #[test]
    fn values_that_are_not_finite_are_found() {
        let mut values = vec![1.0; 3000];
        values[2500] = f32::NAN;
        assert_eq!(put_halves(&values, &mut vec![], &mut vec![]), Err(2500));
        assert_eq!(put_floats(&values, &mut vec![]), Err(2500));
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        assert_eq!(check_floats(&bytes), Err(2500));
    }

    proptest! {
        #[test]
        fn halves_come_back_within_eleven_bits_and_the_rest_is_exact(
            bits in proptest::collection::vec(any::<u32>(), 1..2100), narrow: bool,
        ) {
            let finite = |bits: u32| if narrow { (bits & 0x80ff_ffff) | 0x3e00_0000 } else { bits & 0xbfff_ffff };
            let values: Vec<f32> = bits.into_iter().map(|bits| f32::from_bits(finite(bits))).collect();
            let (back, squares) = round_trip(&values);
            for (chunk, back) in values.chunks(CHUNK).zip(back.chunks(CHUNK)) {
                let full = f32::from_bits(largest(chunk)) * 2f32.powi(-28);
                for (value, back) in chunk.iter().zip(back) {
                    let rest = value - back;
                    prop_assert_eq!(f64::from(rest) + f64::from(*back), f64::from(*value));
                    prop_assert_eq!(rest + back, *value);
                    if value.abs() >= full {
                        prop_assert!(rest.abs() <= value.abs() * 2f32.powi(-11), "{} {}", value, back);
                    }
                }
            }
            let exact: f64 = back.iter().map(|value| f64::from(*value).powi(2)).sum();
            prop_assert!((squares - exact).abs() <= exact * 1e-5, "{squares} {exact}");
        }

        #[test]
        fn floats_come_back_bit_for_bit(values in proptest::collection::vec(prop_oneof![-1e30f32..1e30, -1f32..1.0, -1e-15f32..1e-15], 0..3000)) {
            let (mut raw, mut back) = (vec![], vec![]);
            put_floats(&values, &mut raw).unwrap();
            prop_assert_eq!(check_floats(&raw), Ok(()));
            let squares = take_floats(&raw, |values| back.extend_from_slice(values));
            let exact: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
            prop_assert!((squares - exact).abs() <= exact * 1e-5, "{squares} {exact}");
            prop_assert_eq!(back, values);
        }
    }
}

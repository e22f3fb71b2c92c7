//! The bits of f32, little endian, all in the raw part: mantissas are noise that no compressor shortens.

use super::{CHUNK, largest, magnitude, position_not_finite, squares_of};

/// Appends `values` as f32. Fails with the position of a value that is not finite; the output is then of no use.
pub(super) fn put(values: &[f32], raw: &mut Vec<u8>) -> Result<(), usize> {
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

/// Checks that f32 bytes are finite; else the position of a value.
pub(super) fn check(raw: &[u8]) -> Result<(), usize> {
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

/// Decodes f32 bytes, chunk by chunk, into `take`; returns the sum of their squares.
pub(super) fn take(raw: &[u8], mut take: impl FnMut(&[f32])) -> f64 {
    let mut values = [0.0; CHUNK];
    let mut squares = 0.0;
    for raw in raw.chunks(CHUNK * 4) {
        let values = &mut values[..raw.len() / 4];
        for (value, bytes) in values.iter_mut().zip(raw.chunks_exact(4)) {
            *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        squares += squares_of(values);
        take(values);
    }
    squares
}

//! What changed between two encoded states of one block, without loss: the words' XOR in four planes (all first bytes,
//! all second bytes, …), each packed by zstd level 1 where that makes it smaller.
//!
//! A training step moves most values by a few units of their lower bytes, so the upper planes are nearly all zeros. The
//! lowest planes look random and travel as they are; a delta is never larger than the state by more than its header.
//! Whether the two sides had the same old state shows in the digest of the result, which the caller compares.

const MAGIC: &[u8; 8] = b"skeindl1";
/// Magic, length of the result, then kind and length of each of the five parts.
const HEADER_BYTES: usize = 8 + 8 + N_PARTS * PART_BYTES;
const PART_BYTES: usize = 9;
/// Four planes, and the up to three bytes behind the last whole word.
const N_PARTS: usize = 5;
const RAW: u8 = 0;
const ZSTD: u8 = 1;
const LEVEL: i32 = 1;
/// How much of a large plane is tried first, in how many places: parameters and optimiser vectors differ in what they hold.
const SAMPLE_BYTES: usize = 8192;
const N_SAMPLES: usize = 4;

/// Why bytes are no delta.
#[derive(Debug, thiserror::Error)]
pub enum DeltaError {
    /// The two states are not of one block.
    #[error("a delta between states of {old} and {new} bytes cannot be made")]
    Lengths {
        /// Bytes of the old state.
        old: usize,
        /// Bytes of the new state.
        new: usize,
    },
    /// The bytes do not start as a delta does.
    #[error("these bytes are no delta (or one of another version)")]
    Magic,
    /// It is a delta of a state of another length.
    #[error("a delta of a state of {expected} bytes was expected, got one of {got}")]
    State {
        /// Bytes of the old state.
        expected: usize,
        /// Bytes the delta is of.
        got: u64,
    },
    /// A part is cut off, too long, of no known kind or no zstd data.
    #[error("part {part} of the delta is damaged")]
    Part {
        /// Number of the part.
        part: usize,
    },
    /// zstd refused to pack, for want of memory.
    #[error("zstd: {0}")]
    Zstd(#[from] std::io::Error),
}

/// The delta that turns `old` into `new`.
///
/// # Errors
/// States of different lengths; no memory.
pub fn encode(old: &[u8], new: &[u8]) -> Result<Vec<u8>, DeltaError> {
    if old.len() != new.len() {
        return Err(DeltaError::Lengths {
            old: old.len(),
            new: new.len(),
        });
    }
    let ((old, old_rest), (new_words, new_rest)) = (old.as_chunks::<4>(), new.as_chunks::<4>());
    let mut planes: [Vec<u8>; 4] = std::array::from_fn(|_| vec![0; new_words.len()]);
    let [a, b, c, d] = &mut planes;
    let outs = a.iter_mut().zip(b).zip(c).zip(d);
    for ((old, new), (((a, b), c), d)) in old.iter().zip(new_words).zip(outs) {
        let x = u32::from_le_bytes(*old) ^ u32::from_le_bytes(*new);
        [*a, *b, *c, *d] = x.to_le_bytes();
    }
    let rest: Vec<u8> = old_rest.iter().zip(new_rest).map(|(o, n)| o ^ n).collect();
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend(MAGIC);
    header.extend((new.len() as u64).to_le_bytes());
    let mut parts = Vec::with_capacity(N_PARTS);
    for plane in planes.into_iter().chain([rest]) {
        let worth = is_worth_packing(&mut compressor, &plane)?;
        let packed = worth.then(|| compressor.compress(&plane)).transpose()?;
        let (kind, part) = match packed.filter(|packed| packed.len() < plane.len()) {
            Some(packed) => (ZSTD, packed),
            None => (RAW, plane),
        };
        header.push(kind);
        header.extend((part.len() as u64).to_le_bytes());
        parts.push(part);
    }
    parts.insert(0, header);
    Ok(parts.concat())
}

/// Whether samples of a large plane shrink: to find out from all of it costs as much as packing does.
fn is_worth_packing(
    compressor: &mut zstd::bulk::Compressor<'_>,
    plane: &[u8],
) -> Result<bool, DeltaError> {
    if plane.len() <= 2 * N_SAMPLES * SAMPLE_BYTES {
        return Ok(true);
    }
    let starts = (0..N_SAMPLES).map(|number| number * (plane.len() / N_SAMPLES));
    let samples: Vec<u8> = starts
        .flat_map(|start| &plane[start..start + SAMPLE_BYTES])
        .copied()
        .collect();
    let packed = compressor.compress(&samples)?;
    Ok(packed.len() * 50 < samples.len() * 49)
}

/// Most bytes a delta of a state of `state_len` bytes has: the bound for a transfer.
pub fn max_len(state_len: usize) -> usize {
    state_len.saturating_add(HEADER_BYTES)
}

/// Applies a delta to `old`. Allocates at most twice the old state's length.
///
/// # Errors
/// Bytes that are no delta of a state of this length.
pub fn decode(old: &[u8], delta: &[u8]) -> Result<Vec<u8>, DeltaError> {
    if delta.get(..8) != Some(MAGIC) || delta.len() < HEADER_BYTES {
        return Err(DeltaError::Magic);
    }
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|j| delta[at + j]));
    if word(8) != old.len() as u64 {
        return Err(DeltaError::State {
            expected: old.len(),
            got: word(8),
        });
    }
    let (old_words, old_rest) = old.as_chunks::<4>();
    let mut decompressor = zstd::bulk::Decompressor::new()?;
    let mut bytes = &delta[HEADER_BYTES..];
    let mut take = |part: usize| {
        let at = 16 + part * PART_BYTES;
        let expected = if part < 4 {
            old_words.len()
        } else {
            old_rest.len()
        };
        let damaged = || DeltaError::Part { part };
        let len = usize::try_from(word(at + 1)).map_err(|_| damaged())?;
        let (own, after) = bytes.split_at_checked(len).ok_or_else(damaged)?;
        bytes = after;
        let plane = match delta[at] {
            RAW => own.to_vec(),
            ZSTD => {
                let plane = decompressor.decompress(own, expected);
                plane.map_err(|_| damaged())?
            }
            _ => return Err(damaged()),
        };
        if plane.len() == expected {
            Ok(plane)
        } else {
            Err(damaged())
        }
    };
    let [a, b, c, d, rest] = [take(0)?, take(1)?, take(2)?, take(3)?, take(4)?];
    if !bytes.is_empty() {
        return Err(DeltaError::Part { part: N_PARTS });
    }
    let mut new = vec![0; old.len()];
    let (words, tail) = new.as_chunks_mut::<4>();
    let planes = a.iter().zip(&b).zip(&c).zip(&d);
    for ((word, old), (((a, b), c), d)) in words.iter_mut().zip(old_words).zip(planes) {
        let x = u32::from_le_bytes(*old) ^ u32::from_le_bytes([*a, *b, *c, *d]);
        *word = x.to_le_bytes();
    }
    for ((byte, old), x) in tail.iter_mut().zip(old_rest).zip(&rest) {
        *byte = old ^ x;
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::Stream;

    #[test]
    fn small_changes_of_values_make_a_smaller_delta() {
        let mut stream = Stream::new(1, "delta");
        let old: Vec<f32> = (0..10_000).map(|_| stream.uniform() - 0.5).collect();
        let new: Vec<f32> = old
            .iter()
            .map(|w| w - 1e-4 * (stream.uniform() - 0.5))
            .collect();
        let bytes = |values: &[f32]| {
            values
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect::<Vec<_>>()
        };
        let (old, new) = (bytes(&old), bytes(&new));
        let delta = encode(&old, &new).unwrap();
        assert!(
            delta.len() * 4 < new.len() * 3,
            "{} of {}",
            delta.len(),
            new.len()
        );
        assert_eq!(decode(&old, &delta).unwrap(), new);
        let none = encode(&new, &new).unwrap();
        assert!(none.len() < 200, "{}", none.len());
    }

    proptest! {
        #[test]
        fn a_delta_gives_the_new_state_and_never_grows_beyond_its_bound(
            pair in proptest::collection::vec(any::<(u8, u8)>(), 0..500),
        ) {
            let (old, new): (Vec<u8>, Vec<u8>) = pair.into_iter().unzip();
            let delta = encode(&old, &new).unwrap();
            prop_assert!(delta.len() <= max_len(new.len()));
            prop_assert_eq!(decode(&old, &delta).unwrap(), new);
        }

        #[test]
        fn arbitrary_and_changed_deltas_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            at: u16,
            byte: u8,
            cut: u16,
        ) {
            let (old, new) = (vec![7; 403], vec![9; 403]);
            prop_assert!(decode(&old, &bytes).is_err());
            let mut delta = encode(&old, &new).unwrap();
            let n = delta.len();
            delta[usize::from(at) % n] = byte;
            if let Ok(result) = decode(&old, &delta) {
                prop_assert_eq!(result.len(), old.len());
            }
            delta.truncate(usize::from(cut) % n);
            prop_assert!(decode(&old, &delta).is_err());
            prop_assert!(decode(&old[1..], &encode(&old, &new).unwrap()).is_err());
        }
    }
}

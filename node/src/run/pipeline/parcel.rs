//! Copies on their way from peer to peer: whole, or as the change against an older copy that the receiver holds.

use std::sync::Arc;

use skein_model::stage::delta;
use skein_model::stage::{BlockLayout, digest};

use super::disk::{Kept, State};

/// Why a parcel of copies is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum ParcelError {
    #[error("it ends in the middle of block {block}")]
    Short { block: u16 },
    #[error("block {block} comes in an unknown way ({got})")]
    Way { block: u16, got: u8 },
    #[error("block {block}: {reason}")]
    Block { block: u16, reason: String },
    #[error("{n} bytes follow the last block")]
    Long { n: usize },
}

/// Whole, as the change against an older copy.
const WHOLE: u8 = 0;
const CHANGE: u8 = 1;
/// Way, length and digest before each block of a parcel.
const LABEL_BYTES: usize = 1 + 8 + 32;

/// Most bytes of a parcel of these blocks.
pub(super) fn bound(layouts: &[BlockLayout]) -> u64 {
    let of = |layout: &BlockLayout| {
        (LABEL_BYTES + delta::max_len(layout.encoded_len()).max(layout.encoded_len())) as u64
    };
    layouts.iter().map(of).sum()
}

/// Packs copies for another peer: as the change against `old` where that is given and shorter. Blocks on the disk.
///
/// # Errors
/// In words: a copy that cannot be read any more.
pub(super) fn pack(
    copies: &[(Kept, Option<Kept>)],
    layouts: &[BlockLayout],
) -> Result<Vec<u8>, String> {
    let mut parcel = Vec::new();
    for ((new, old), layout) in copies.iter().zip(layouts) {
        let new = &new.load(layout)?;
        // Without it the whole is sent.
        let old = old.as_ref().and_then(|old| old.load(layout).ok());
        let change = old
            .and_then(|old| delta::encode(&old, new).ok())
            .filter(|change| change.len() < new.len());
        let (way, body) = match &change {
            Some(change) => (CHANGE, change.as_slice()),
            None => (WHOLE, new.as_slice()),
        };
        parcel.push(way);
        parcel.extend((body.len() as u64).to_le_bytes());
        parcel.extend(digest(new));
        parcel.extend(body);
    }
    Ok(parcel)
}

/// Reads what [`pack`] made; `old` gives the copies that changes are against. Every state has its block's length and the
/// digest that its holder gave it.
pub(super) fn unpack(
    mut parcel: &[u8],
    layouts: &[BlockLayout],
    old: impl Fn(u16) -> Option<State>,
) -> Result<Vec<(u16, State)>, ParcelError> {
    let mut states = Vec::with_capacity(layouts.len());
    for layout in layouts {
        let block = layout.index as u16;
        let short = ParcelError::Short { block };
        let Some((label, rest)) = parcel.split_at_checked(LABEL_BYTES) else {
            return Err(short);
        };
        let length = u64::from_le_bytes(std::array::from_fn(|i| label[1 + i]));
        let body = usize::try_from(length)
            .ok()
            .and_then(|length| rest.split_at_checked(length));
        let Some((body, rest)) = body else {
            return Err(short);
        };
        parcel = rest;
        let refuse = |reason: String| ParcelError::Block { block, reason };
        let state = match label[0] {
            WHOLE => body.to_vec(),
            CHANGE => {
                let old = old(block)
                    .ok_or_else(|| refuse("what it is the change of is no longer held".into()))?;
                delta::decode(&old, body).map_err(|error| refuse(error.to_string()))?
            }
            got => return Err(ParcelError::Way { block, got }),
        };
        if state.len() != layout.encoded_len() {
            return Err(refuse(format!(
                "{} bytes where a copy has {}",
                state.len(),
                layout.encoded_len()
            )));
        }
        if digest(&state) != label[9..] {
            return Err(refuse(
                "it does not have the digest that its holder gives".into(),
            ));
        }
        states.push((block, Arc::new(state)));
    }
    match parcel.len() {
        0 => Ok(states),
        n => Err(ParcelError::Long { n }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layouts() -> Vec<BlockLayout> {
        let layout = |index: usize| BlockLayout {
            index,
            name: format!("block {index}"),
            parameters: 0..10 + index,
            buffers: 0..2,
            n_vectors: 1,
        };
        (0..3).map(layout).collect()
    }

    fn state(layout: &BlockLayout, salt: u8) -> State {
        Arc::new(
            (0..layout.encoded_len())
                .map(|i| (i as u8).wrapping_mul(salt))
                .collect(),
        )
    }

    #[test]
    fn a_parcel_brings_copies_whole_or_as_changes() {
        let layouts = layouts();
        let (old, new): (Vec<State>, Vec<State>) = layouts
            .iter()
            .map(|layout| (state(layout, 3), state(layout, 5)))
            .unzip();
        let kept = |state: &State| Kept::Memory(Arc::clone(state));
        let whole: Vec<_> = new.iter().map(|new| (kept(new), None)).collect();
        let changes: Vec<_> = new
            .iter()
            .zip(&old)
            .map(|(new, old)| (kept(new), Some(kept(old))))
            .collect();
        for copies in [&whole, &changes] {
            let parcel = pack(copies, &layouts).unwrap();
            assert!(parcel.len() as u64 <= bound(&layouts));
            let states = unpack(&parcel, &layouts, |block| {
                old.get(usize::from(block)).cloned()
            })
            .unwrap();
            assert!(states.iter().zip(&new).all(|((_, got), new)| got == new));
            assert!(unpack(&parcel[..parcel.len() - 1], &layouts, |_| None).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_parcel_or_an_error(bytes: Vec<u8>) {
            let _ = unpack(&bytes, &layouts(), |_| None);
        }
    }
}

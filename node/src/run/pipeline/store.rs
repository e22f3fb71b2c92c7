//! Copies of blocks that this peer holds: its own at each line, and those it keeps for others. In memory, and the newest safe
//! line on disk, so that a mesh that was switched off goes on from there.
//!
//! ```text
//! copies/<step>/<block>     one encoded state per file, written to a temporary name and renamed
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use skein_gossip::pipeline::copies::{Held, Holding};
use skein_model::stage::delta;
use skein_model::stage::{BlockLayout, digest};

/// An encoded state of one block.
pub(super) type State = Arc<Vec<u8>>;

/// The copies held.
#[derive(Debug, Default)]
pub(super) struct Copies {
    states: BTreeMap<(u64, u16), State>,
}

impl Copies {
    pub(super) fn put(&mut self, step: u64, block: u16, state: State) {
        self.states.insert((step, block), state);
    }

    pub(super) fn get(&self, step: u64, block: u16) -> Option<State> {
        self.states.get(&(step, block)).cloned()
    }

    /// Drops what is older than `step`.
    pub(super) fn forget(&mut self, step: u64) {
        self.states.retain(|(held, _), _| *held >= step);
    }

    /// Drops what is newer than `step`.
    pub(super) fn undo(&mut self, step: u64) {
        self.states.retain(|(held, _), _| *held <= step);
    }

    /// The newest step before `step` at which all of `blocks` are held.
    pub(super) fn base(&self, step: u64, blocks: std::ops::Range<u16>) -> Option<u64> {
        let mut older: Vec<u64> = self
            .states
            .range(..(step, 0))
            .map(|((held, _), _)| *held)
            .collect();
        older.dedup();
        let holds = |held: &u64| {
            blocks
                .clone()
                .all(|block| self.states.contains_key(&(*held, block)))
        };
        older.into_iter().rev().find(holds)
    }

    /// All blocks held at `step`.
    pub(super) fn line(&self, step: u64) -> Vec<(u16, State)> {
        let held = self.states.range((step, 0)..=(step, u16::MAX));
        held.map(|((_, block), state)| (*block, Arc::clone(state)))
            .collect()
    }

    /// Bytes of all copies.
    pub(super) fn bytes(&self) -> u64 {
        self.states.values().map(|state| state.len() as u64).sum()
    }

    /// What is held, to be told.
    pub(super) fn held(&self, n_blocks: u16) -> Vec<Held> {
        let mut holding = Holding::default();
        for (step, block) in self.states.keys() {
            holding.add(*step, *block..block.saturating_add(1), n_blocks);
        }
        holding.runs()
    }
}

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
pub(super) fn parcel_bound(layouts: &[BlockLayout]) -> u64 {
    let bound = |layout: &BlockLayout| {
        (LABEL_BYTES + delta::max_len(layout.encoded_len()).max(layout.encoded_len())) as u64
    };
    layouts.iter().map(bound).sum()
}

/// Packs copies for another peer: as the change against `old` where that is given and shorter.
pub(super) fn pack(states: &[(State, Option<State>)]) -> Vec<u8> {
    let mut parcel = Vec::new();
    for (new, old) in states {
        let change = old
            .as_ref()
            .and_then(|old| delta::encode(old, new).ok())
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
    parcel
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

/// Writes a line's copies below `folder` and removes those of other lines.
pub(super) fn save(folder: &Path, step: u64, states: &[(u16, State)]) -> io::Result<()> {
    let line = folder.join(step.to_string());
    fs::create_dir_all(&line)?;
    for (block, state) in states {
        let temporary = line.join(format!(".{block}"));
        let file = fs::File::create(&temporary)?;
        io::Write::write_all(&mut &file, state)?;
        io::Write::write_all(&mut &file, &digest(state))?;
        file.sync_all()?;
        fs::rename(&temporary, line.join(block.to_string()))?;
    }
    fs::File::open(&line)?.sync_all()?;
    for (other, path) in lines(folder)? {
        if other != step {
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

fn lines(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    let line =
        |entry: &fs::DirEntry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path()));
    Ok(entries.iter().filter_map(line).collect())
}

/// Reads what [`save`] wrote. Damaged copies are left out, and named.
pub(super) fn load(folder: &Path, layouts: &[BlockLayout]) -> (Copies, Vec<String>) {
    let (mut copies, mut skipped) = (Copies::default(), Vec::new());
    let lines = lines(folder).unwrap_or_else(|error| {
        skipped.push(format!("{}: {error}", folder.display()));
        Vec::new()
    });
    for (step, line) in lines {
        for layout in layouts {
            let path = line.join(layout.index.to_string());
            if !path.exists() {
                continue;
            }
            match read(&path, layout) {
                Ok(state) => copies.put(step, layout.index as u16, Arc::new(state)),
                Err(reason) => skipped.push(format!("{}: {reason}", path.display())),
            }
        }
    }
    (copies, skipped)
}

fn read(path: &Path, layout: &BlockLayout) -> Result<Vec<u8>, String> {
    let expected = (layout.encoded_len() + 32) as u64;
    let got = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if got != expected {
        return Err(format!("{got} bytes where a copy has {expected}"));
    }
    let mut bytes = fs::read(path).map_err(|error| error.to_string())?;
    let given = bytes.split_off(layout.encoded_len());
    if digest(&bytes)[..] != given {
        return Err("it is damaged".into());
    }
    Ok(bytes)
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
        let whole: Vec<_> = new.iter().map(|new| (Arc::clone(new), None)).collect();
        let changes: Vec<_> = new
            .iter()
            .zip(&old)
            .map(|(new, old)| (Arc::clone(new), Some(Arc::clone(old))))
            .collect();
        for parcel in [pack(&whole), pack(&changes)] {
            assert!(parcel.len() as u64 <= parcel_bound(&layouts));
            let states = unpack(&parcel, &layouts, |block| {
                old.get(usize::from(block)).cloned()
            })
            .unwrap();
            assert!(states.iter().zip(&new).all(|((_, got), new)| got == new));
            assert!(unpack(&parcel[..parcel.len() - 1], &layouts, |_| None).is_err());
        }
    }

    #[test]
    fn a_line_on_disk_comes_back_and_a_damaged_copy_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let layouts = layouts();
        let states: Vec<(u16, State)> = layouts
            .iter()
            .map(|layout| (layout.index as u16, state(layout, 7)))
            .collect();
        save(folder.path(), 10, &states).unwrap();
        save(folder.path(), 20, &states).unwrap();
        let (copies, skipped) = load(folder.path(), &layouts);
        assert!(skipped.is_empty() && copies.line(10).is_empty() && copies.line(20) == states);
        assert_eq!(copies.base(30, 0..3), Some(20));
        assert_eq!(copies.base(20, 0..3), None);
        let mut copies = copies;
        copies.put(25, 0, Arc::clone(&states[0].1));
        assert_eq!(copies.base(30, 0..1), Some(25));
        assert_eq!(
            copies.base(30, 0..3),
            Some(20),
            "of step 25 one block is held"
        );
        let path = folder.path().join("20/1");
        let mut bytes = fs::read(&path).unwrap();
        bytes[40] ^= 1;
        fs::write(&path, bytes).unwrap();
        let (copies, skipped) = load(folder.path(), &layouts);
        assert_eq!((copies.line(20).len(), skipped.len()), (2, 1));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_parcel_or_an_error(bytes: Vec<u8>) {
            let _ = unpack(&bytes, &layouts(), |_| None);
        }
    }
}

//! Copies of blocks that this peer holds: its own at each line, those it keeps for others, and whole lines. In memory where they are
//! of use at any moment, else on disk.

use std::collections::BTreeMap;
use std::path::PathBuf;

use skein_gossip::pipeline::copies::{Held, Holding};

use super::disk::{Kept, State};

/// The copies held.
#[derive(Debug, Default)]
pub(super) struct Copies {
    copies: BTreeMap<(u64, u16), Kept>,
}

impl Copies {
    pub(super) fn put(&mut self, step: u64, block: u16, kept: Kept) {
        self.copies.insert((step, block), kept);
    }

    pub(super) fn get(&self, step: u64, block: u16) -> Option<Kept> {
        self.copies.get(&(step, block)).cloned()
    }

    /// Drops what is older than `step`, but for what is named.
    pub(super) fn forget(&mut self, step: u64, but: &[Held]) {
        let is_named = |at: u64, block: u16| {
            let mut but = but.iter();
            but.any(|held| held.step == at && held.blocks().contains(&block))
        };
        self.copies
            .retain(|(at, block), _| *at >= step || is_named(*at, *block));
    }

    /// What is older than `step` and in memory: it may go to disk.
    pub(super) fn resting(&self, step: u64) -> Vec<(u64, u16, State)> {
        let older = self.copies.range(..(step, 0));
        let in_memory = older.filter_map(|((at, block), kept)| match kept {
            Kept::Memory(state) => Some((*at, *block, State::clone(state))),
            Kept::Disk(_) => None,
        });
        in_memory.collect()
    }

    /// A copy went to disk; it may have been dropped since.
    pub(super) fn rests_at(&mut self, step: u64, block: u16, path: PathBuf) {
        if let Some(kept) = self.copies.get_mut(&(step, block)) {
            *kept = Kept::Disk(path);
        }
    }

    /// Steps of which something is held on disk.
    pub(super) fn on_disk(&self) -> impl Iterator<Item = u64> {
        let on_disk = |kept: &Kept| matches!(kept, Kept::Disk(_));
        let copies = self.copies.iter();
        copies.filter_map(move |((step, _), kept)| on_disk(kept).then_some(*step))
    }

    /// The newest step of which anything is held; 0 where there is none.
    pub(super) fn newest(&self) -> u64 {
        let newest = self.copies.last_key_value();
        newest.map_or(0, |((step, _), _)| *step)
    }

    /// Drops what is newer than `step`.
    pub(super) fn undo(&mut self, step: u64) {
        self.copies.retain(|(held, _), _| *held <= step);
    }

    /// The newest step before `step` at which all of `blocks` are held.
    pub(super) fn base(&self, step: u64, blocks: std::ops::Range<u16>) -> Option<u64> {
        let mut older: Vec<u64> = self
            .copies
            .range(..(step, 0))
            .map(|((held, _), _)| *held)
            .collect();
        older.dedup();
        let holds = |held: &u64| {
            blocks
                .clone()
                .all(|block| self.copies.contains_key(&(*held, block)))
        };
        older.into_iter().rev().find(holds)
    }

    /// All blocks held at `step`.
    pub(super) fn line(&self, step: u64) -> Vec<(u16, Kept)> {
        let held = self.copies.range((step, 0)..=(step, u16::MAX));
        held.map(|((_, block), kept)| (*block, kept.clone()))
            .collect()
    }

    /// Bytes in memory of all copies.
    pub(super) fn bytes(&self) -> u64 {
        let in_memory = self.copies.values().map(|kept| match kept {
            Kept::Memory(state) => state.len() as u64,
            Kept::Disk(_) => 0,
        });
        in_memory.sum()
    }

    /// What is held, to be told.
    pub(super) fn held(&self, n_blocks: u16) -> Vec<Held> {
        let mut holding = Holding::default();
        for (step, block) in self.copies.keys() {
            holding.add(*step, *block..block.saturating_add(1), n_blocks);
        }
        holding.runs()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use skein_model::stage::BlockLayout;

    use super::super::disk::Lines;
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

    fn line(salt: u8) -> Vec<(u16, Kept)> {
        let state = |layout: BlockLayout| {
            let bytes = 0..layout.encoded_len();
            let bytes = bytes.map(|i| (i as u8).wrapping_mul(salt)).collect();
            (layout.index as u16, Kept::Memory(Arc::new(bytes)))
        };
        layouts().into_iter().map(state).collect()
    }

    fn load(lines: &Lines) -> (Copies, Vec<String>) {
        let (found, skipped) = lines.load(&layouts());
        let mut copies = Copies::default();
        for (step, block, path) in found {
            copies.put(step, block, Kept::Disk(path));
        }
        (copies, skipped)
    }

    #[test]
    fn a_line_on_disk_comes_back_and_a_damaged_copy_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let lines = Lines(folder.path().join("copies"));
        for step in [5, 10, 20] {
            lines.save(step, &line(7)).unwrap();
        }
        lines.prune(20, &[5]).unwrap();
        let (mut copies, skipped) = load(&lines);
        assert!(skipped.is_empty() && copies.line(10).is_empty());
        assert_eq!(copies.bytes(), 0, "on disk they take no memory");
        for (step, _) in [(5, 0), (20, 0)] {
            for ((_, kept), (layout, (_, saved))) in
                copies.line(step).iter().zip(layouts().iter().zip(line(7)))
            {
                assert_eq!(kept.load(layout), saved.load(layout));
            }
        }
        assert_eq!(copies.base(30, 0..3), Some(20));
        assert_eq!(copies.base(20, 0..3), Some(5));
        copies.put(25, 0, line(7).remove(0).1);
        assert_eq!(copies.base(30, 0..1), Some(25));
        assert_eq!(
            copies.base(30, 0..3),
            Some(20),
            "of step 25 one block is held"
        );
        let path = folder.path().join("copies/20/1");
        let mut bytes = fs::read(&path).unwrap();
        bytes[40] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(copies.get(20, 1).unwrap().load(&layouts()[1]).is_err());
        let (copies, skipped) = load(&lines);
        assert_eq!((copies.line(20).len(), skipped.len()), (2, 1));
    }

    #[test]
    fn what_is_held_longer_goes_to_disk() {
        let folder = tempfile::tempdir().unwrap();
        let lines = Lines(folder.path().join("copies"));
        let mut copies = Copies::default();
        for step in [10, 20, 30] {
            for (block, kept) in line(step as u8) {
                copies.put(step, block, kept);
            }
        }
        let (step, first, end) = (10, 1, 3);
        copies.forget(20, &[Held { step, first, end }]);
        let resting = copies.resting(20);
        assert_eq!(resting.len(), 2);
        let before = copies.bytes();
        for (step, block, state) in resting {
            let path = lines.write(step, block, &state).unwrap();
            copies.rests_at(step, block, path);
        }
        assert!(copies.bytes() < before && copies.resting(20).is_empty());
        let kept = copies.get(10, 2).unwrap().load(&layouts()[2]);
        assert_eq!(kept, line(10)[2].1.load(&layouts()[2]));
    }
}

//! The versions of a stage's weights that are kept, the newest last. Version v is that of v updates.

use std::collections::VecDeque;

use crate::arena::Arena;
use crate::stage::error::StageError;

/// See the module's header.
#[derive(Debug)]
pub(super) struct Versions {
    /// `first..`; never empty.
    arenas: VecDeque<Arena>,
    first: u64,
    /// Memory of the last version that was dropped.
    spare: Option<Arena>,
}

impl Versions {
    /// `arena` is version 0.
    pub(super) fn new(arena: Arena) -> Self {
        Self {
            arenas: VecDeque::from([arena]),
            first: 0,
            spare: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.arenas.len()
    }

    /// Number of the newest.
    pub(super) fn newest(&self) -> u64 {
        self.first + self.arenas.len() as u64 - 1
    }

    /// The newest.
    pub(super) fn last(&self) -> &Arena {
        &self.arenas[self.arenas.len() - 1]
    }

    /// # Errors
    /// A version that is not kept.
    pub(super) fn get(&self, version: u64) -> Result<&Arena, StageError> {
        let at = version.checked_sub(self.first);
        let arena = at.and_then(|at| self.arenas.get(usize::try_from(at).ok()?));
        arena.ok_or(StageError::Version {
            wanted: version,
            oldest: self.first,
            newest: self.newest(),
        })
    }

    /// Appends a copy of the newest, to be updated. `make` gives memory where none is to spare.
    pub(super) fn grow(
        &mut self,
        make: impl FnOnce() -> Result<Arena, StageError>,
    ) -> Result<&mut [f32], StageError> {
        let mut next = match self.spare.take() {
            Some(arena) => arena,
            None => make()?,
        };
        next.values_mut().copy_from_slice(self.last().values());
        self.arenas.push_back(next);
        let at = self.arenas.len() - 1;
        Ok(self.arenas[at].values_mut())
    }

    /// Drops what is beyond the newest `n`, but not what is in use: `oldest` and what follows.
    pub(super) fn keep(&mut self, n: usize, oldest: Option<u64>) {
        while self.arenas.len() > n.max(1) && oldest.is_none_or(|oldest| oldest > self.first) {
            self.spare = self.arenas.pop_front();
            self.first += 1;
        }
    }

    /// The mean of all becomes the newest.
    pub(super) fn average(&mut self) {
        let n = self.arenas.len() as f32;
        let Some((newest, others)) = self.arenas.make_contiguous().split_last_mut() else {
            return;
        };
        let mean = newest.values_mut();
        for other in others.iter() {
            let values = other.values();
            mean.iter_mut()
                .zip(values)
                .for_each(|(mean, value)| *mean += value);
        }
        mean.iter_mut().for_each(|mean| *mean /= n);
    }

    /// One alone is left and is version `version`; its values are to be written.
    pub(super) fn reset(&mut self, version: u64) -> &mut [f32] {
        self.arenas.truncate(1);
        self.first = version;
        self.arenas[0].values_mut()
    }
}

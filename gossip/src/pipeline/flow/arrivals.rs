//! Frames that have come for a flow and are not used yet, in pieces where groups of different sizes follow each other; what does not
//! belong to the steps in work is refused.

use std::collections::BTreeMap;

use super::super::frame::{Kind, Marks};
use super::Flow;

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It belongs to a step that is not in work here.
    #[error("it belongs to step {step}, and {applied} are made here")]
    Step {
        /// Its step.
        step: u64,
        /// Steps made here.
        applied: u64,
    },
    /// There are not that many micro-batches.
    #[error("there is no micro-batch {micro} in a step")]
    Micro {
        /// Its number.
        micro: u32,
    },
    /// It came before.
    #[error("it came before")]
    Twice,
    /// This stage takes no such frame.
    #[error("this stage takes no such frame")]
    Kind,
    /// No piece begins there.
    #[error("no piece of a micro-batch begins at sample {row}")]
    Row {
        /// Number of the sample.
        row: u32,
    },
}

/// The pieces of one micro-batch that are here, by their first sample.
#[derive(Debug)]
pub(super) struct Arrived<P> {
    version: u64,
    pieces: BTreeMap<u32, P>,
}

impl<P> Flow<P> {
    /// Takes a frame, with the number of its first sample in `row`.
    ///
    /// # Errors
    /// [`Refused`]; nothing has changed.
    pub fn arrive(
        &mut self,
        kind: Kind,
        (step, micro, row): (u64, u32, u32),
        version: u64,
        marks: Marks,
        body: P,
    ) -> Result<(), Refused> {
        let shape = &self.shape;
        let wrong_step = Refused::Step {
            step,
            applied: self.applied,
        };
        let pieces = match kind {
            Kind::Forward if !shape.is_first() => shape.pieces.forward.as_slice(),
            Kind::Backward if !shape.is_last() => &shape.pieces.backward,
            Kind::Labels if shape.is_last() && !shape.is_first() => &shape.pieces.labels,
            Kind::LookForward if shape.leads() && !shape.is_first() => &[0],
            Kind::LookLabels if shape.leads() && shape.is_last() && !shape.is_first() => &[0],
            Kind::Begin | Kind::Looked => return self.heed(kind, step, marks),
            _ => return Err(Refused::Kind),
        };
        if !pieces.contains(&row) {
            return Err(Refused::Row { row });
        }
        let is_look = matches!(kind, Kind::LookForward | Kind::LookLabels);
        let per_step = u64::from(if is_look { shape.looks } else { shape.micro });
        if u64::from(micro) >= per_step {
            return Err(Refused::Micro { micro });
        }
        let number = step
            .checked_mul(per_step)
            .and_then(|first| first.checked_add(u64::from(micro)))
            .ok_or(wrong_step)?;
        let in_work = if is_look {
            step.abs_diff(self.applied) <= 1 + u64::from(self.shape.depth)
        } else {
            let next = if kind == Kind::Backward {
                self.backward
            } else {
                self.forward
            };
            (next..next + shape.window()).contains(&number)
        };
        if !in_work {
            return Err(wrong_step);
        }
        let arrived = self
            .arrived
            .entry((kind, number))
            .or_insert_with(|| Arrived {
                version,
                pieces: BTreeMap::new(),
            });
        if arrived.pieces.contains_key(&row) {
            return Err(Refused::Twice);
        }
        arrived.pieces.insert(row, body);
        if kind == Kind::Forward {
            self.marks.insert(step, marks);
        }
        Ok(())
    }

    /// What the lead of the stage says.
    fn heed(&mut self, kind: Kind, step: u64, marks: Marks) -> Result<(), Refused> {
        let shape = &self.shape;
        if shape.leads() || (kind == Kind::Begin && !shape.is_first()) {
            return Err(Refused::Kind);
        }
        if !(self.applied..=self.applied.saturating_add(1)).contains(&step) {
            let applied = self.applied;
            return Err(Refused::Step { step, applied });
        }
        match kind {
            Kind::Begin => drop(self.marks.insert(step, marks)),
            _ => self.looked = self.looked.max(step),
        }
        Ok(())
    }

    /// Whether all pieces of a micro-batch are here.
    pub(super) fn is_here(&self, kind: Kind, number: u64) -> bool {
        let pieces = &self.shape.pieces;
        let n = match kind {
            Kind::Forward => pieces.forward.len(),
            Kind::Backward => pieces.backward.len(),
            Kind::Labels => pieces.labels.len(),
            _ => 1,
        };
        let arrived = self.arrived.get(&(kind, number));
        arrived.is_some_and(|arrived| arrived.pieces.len() == n)
    }

    /// Takes the pieces of a micro-batch once all are here, with its version.
    pub(super) fn take(&mut self, kind: Kind, number: u64) -> Option<(u64, Vec<P>)> {
        if !self.is_here(kind, number) {
            return None;
        }
        let arrived = self.arrived.remove(&(kind, number))?;
        Some((arrived.version, arrived.pieces.into_values().collect()))
    }
}

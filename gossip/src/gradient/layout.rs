//! How the variables of a model lie in a flat arena of f32 values. Comes from the model's parameter list, the same on all
//! peers of a job; a packet carries its digest.

use std::ops::Range;

use super::{format, selection::Selection};

/// The most variables a model may have; the largest models in use have a few thousand.
pub const MAX_VARIABLES: usize = 1 << 16;

/// The most values a model may have (4 GiB of f32): so that every length in a packet fits 32 bits.
pub const MAX_VALUES: usize = 1 << 30;

/// The lengths of a model's variables, in order, and what follows from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    ends: Vec<usize>,
    digest: u32,
}

/// Why lengths are no layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A model without variables, or with too many.
    #[error("a model of {got} variables: there must be 1 to {MAX_VARIABLES}")]
    Variables {
        /// How many.
        got: usize,
    },
    /// A variable without values.
    #[error("variable {variable} has no values")]
    Empty {
        /// Its position in the list.
        variable: usize,
    },
    /// Too many values altogether.
    #[error("variable {variable} takes the model over {MAX_VALUES} values")]
    Values {
        /// The variable that crosses the bound.
        variable: usize,
    },
}

impl Layout {
    /// The layout of variables of these lengths, one behind the other from 0.
    ///
    /// # Errors
    /// [`LayoutError`]: the model is out of bounds.
    pub fn new(lengths: &[usize]) -> Result<Self, LayoutError> {
        if !(1..=MAX_VARIABLES).contains(&lengths.len()) {
            return Err(LayoutError::Variables { got: lengths.len() });
        }
        let mut ends = Vec::with_capacity(lengths.len());
        let mut end = 0;
        let mut hasher = crc32fast::Hasher::new();
        for (variable, &length) in lengths.iter().enumerate() {
            if length == 0 {
                return Err(LayoutError::Empty { variable });
            }
            if length > MAX_VALUES - end {
                return Err(LayoutError::Values { variable });
            }
            end += length;
            ends.push(end);
            hasher.update(&(length as u32).to_le_bytes());
        }
        Ok(Self {
            ends,
            digest: hasher.finalize(),
        })
    }

    /// How many variables.
    pub fn n_variables(&self) -> usize {
        self.ends.len()
    }

    /// How many values: the length of an arena.
    pub fn n_values(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Where each variable lies, in order.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> + '_ {
        self.ends
            .iter()
            .enumerate()
            .map(|(variable, end)| match variable {
                0 => 0..*end,
                _ => self.ends[variable - 1]..*end,
            })
    }

    /// What of the variable at `range` a part of the arena covers, from the variable's start; `None` if all selections but
    /// [`Selection::Part`] are meant.
    pub(super) fn part(&self, selection: Selection, range: &Range<usize>) -> Option<Range<usize>> {
        let Selection::Part { index, of } = selection else {
            return None;
        };
        // No overflow: at most 2^30 * 2^32.
        let edge = |index: u64| (self.n_values() as u64 * index / u64::from(of.max(1))) as usize;
        let within = |edge: usize| edge.clamp(range.start, range.end) - range.start;
        Some(within(edge(u64::from(index)))..within(edge(u64::from(index) + 1)))
    }

    /// The length of the longest variable.
    pub fn longest(&self) -> usize {
        self.ranges().map(|range| range.len()).max().unwrap_or(0)
    }

    /// crc32 of the lengths: tells packets of another model apart, by mistake rather than by malice.
    pub fn digest(&self) -> u32 {
        self.digest
    }

    /// The most bytes that a packet of this model can have: what a reader may allow for an update, plus its stamp.
    pub fn max_packet_bytes(&self) -> usize {
        format::max_packet_bytes(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_lie_one_behind_the_other() {
        let layout = Layout::new(&[3, 1, 4]).unwrap();
        assert_eq!(layout.ranges().collect::<Vec<_>>(), [0..3, 3..4, 4..8]);
        assert_eq!(
            (layout.n_variables(), layout.n_values(), layout.longest()),
            (3, 8, 4)
        );
    }

    #[test]
    fn other_lengths_have_another_digest() {
        let digest = |lengths: &[usize]| Layout::new(lengths).unwrap().digest();
        assert_ne!(digest(&[3, 5]), digest(&[5, 3]));
        assert_ne!(digest(&[3, 5]), digest(&[8]));
    }

    #[test]
    fn models_out_of_bounds_are_refused() {
        assert_eq!(Layout::new(&[]), Err(LayoutError::Variables { got: 0 }));
        assert_eq!(
            Layout::new(&[1; MAX_VARIABLES + 1]),
            Err(LayoutError::Variables {
                got: MAX_VARIABLES + 1
            })
        );
        assert_eq!(
            Layout::new(&[1, 0]),
            Err(LayoutError::Empty { variable: 1 })
        );
        assert!(Layout::new(&[MAX_VALUES]).is_ok());
        for lengths in [[MAX_VALUES, 1], [1, usize::MAX]] {
            assert_eq!(
                Layout::new(&lengths),
                Err(LayoutError::Values { variable: 1 })
            );
        }
    }
}

//! The chosen entries of a residual, taken out of it and written as a packet.
//!
//! Called by the coder thread for a link that has credit; the packet goes into a frame. Per variable (as in DLion, so that no
//! layer starves) entries are chosen (`select.rs`), or all of them where that is no larger. What the receiver will decode is
//! subtracted at the end, when nothing can fail any more, by the receiver's own function.

use std::ops::Range;

use super::{
    fit::{Estimator, Fit, Wanted},
    format::{
        self, DENSE, EMPTY, HEADER_BYTES, Header, RUN, SPARSE, SPARSE_WIDE, Segment, Streams,
    },
    indices::{self, Width},
    layout::Layout,
    sample,
    select::{Chosen, NotFinite, Selector},
    selection::{Order, Selection, max_n_threshold},
    unpack,
};
use crate::wire::zstd::{Compressor, ZstdError, compressed_bound};

/// The zstd level of [`Packer::new`]: what is compressed has no long repeats to find, so higher levels only take longer.
pub const DEFAULT_LEVEL: i32 = 1;

/// Packs residuals of one model; of any number of links, one after the other.
#[derive(Debug)]
pub struct Packer {
    layout: Layout,
    selector: Selector,
    estimator: Estimator,
    compressor: Compressor,
    /// Highs, and at the end heads and gaps.
    body: Vec<u8>,
    heads: Vec<u8>,
    gaps: Vec<u8>,
    segments: Vec<Segment>,
}

/// What was packed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packed {
    /// Entries in the packet, those of dense variables included.
    pub n_entries: usize,
    /// Bytes of the packet.
    pub bytes: usize,
    /// Euclidean norm of the values in it: what the residual loses.
    pub norm: f32,
}

/// Why nothing was packed. Residual and output are as they were.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The residual is not of the model's length.
    #[error("residual has {got} values, the model {expected}")]
    Arena {
        /// The model's length.
        expected: usize,
        /// The residual's.
        got: usize,
    },
    /// The selection's parameters make no sense.
    #[error("{selection:?}: {problem}")]
    Selection {
        /// What was ordered.
        selection: Selection,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// [`Selection::Significant`] without as many weights as the model has.
    #[error("{got} weights to measure significance by, the model has {expected}")]
    Weights {
        /// The model's length.
        expected: usize,
        /// How many were given.
        got: usize,
    },
    /// The gradient diverged: NaN or infinite.
    #[error("entry {entry} of variable {variable} is {value}: the gradient is not finite")]
    NotFinite {
        /// The variable.
        variable: usize,
        /// The entry in it.
        entry: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// zstd could not allocate its context.
    #[error("compressing a packet")]
    Zstd(#[from] ZstdError),
}

impl Packer {
    /// A packer for residuals of `layout`, at zstd level [`DEFAULT_LEVEL`].
    ///
    /// # Errors
    /// [`ZstdError`]: no memory for its context.
    pub fn new(layout: &Layout) -> Result<Self, ZstdError> {
        Self::with_level(layout, DEFAULT_LEVEL)
    }

    /// A packer at another zstd level, -131072 to 22.
    ///
    /// # Errors
    /// [`ZstdError`]: no such level, or no memory for zstd's context.
    pub fn with_level(layout: &Layout, level: i32) -> Result<Self, ZstdError> {
        Ok(Self {
            layout: layout.clone(),
            selector: Selector::new(layout.longest()),
            estimator: Estimator::new(layout),
            compressor: Compressor::new(level)?,
            body: Vec::with_capacity(format::max_body_bytes(layout)),
            heads: Vec::with_capacity(9 * layout.n_variables()),
            gaps: Vec::with_capacity(format::max_body_bytes(layout)),
            segments: Vec::with_capacity(layout.n_variables()),
        })
    }

    /// The largest amount whose packet fits what is `wanted`. Reads a sample of `residual` and, for
    /// [`Measure::MaxN`](super::fit::Measure::MaxN), all of it once; allocates nothing.
    ///
    /// Estimates also depend on the packets before: zstd's share is learnt from those that were packed as fitted. Amounts
    /// out of their range, and a residual of another length or that is not finite, are for [`Packer::pack`] to refuse: the
    /// fit then says no more than what to ask it for.
    pub fn fit(&mut self, residual: &[f32], wanted: Wanted<'_>) -> Fit {
        self.estimator
            .fit(&self.layout, &mut self.selector, residual, wanted)
    }

    /// Appends to `out` a packet with the entries that `order` asks for, and subtracts from `residual` exactly what the
    /// receiver will decode: `residual` before equals `residual` after plus the packet, with no rounding.
    ///
    /// No zeros are sent, except in variables and parts that go whole. The same residual and order make the same packet.
    /// Allocates nothing once `out` has the capacity for the largest packet of such an order.
    ///
    /// # Errors
    /// [`PackError`], with `residual` and `out` unchanged.
    pub fn pack(
        &mut self,
        residual: &mut [f32],
        order: Order<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Packed, PackError> {
        let expected = self.layout.n_values();
        if residual.len() != expected {
            return Err(PackError::Arena {
                expected,
                got: residual.len(),
            });
        }
        let selection = order.selection;
        if let Some(problem) = selection.problem() {
            return Err(PackError::Selection { selection, problem });
        }
        if let Selection::Significant { .. } = selection {
            let got = order.weights.map_or(0, <[f32]>::len);
            if got != expected {
                return Err(PackError::Weights { expected, got });
            }
        }
        let start = out.len();
        match self.write(residual, order, out) {
            Ok(Parts { raw, n_highs }) => {
                let stored_bytes = out.len() - raw.end;
                self.estimator.learn(order, self.body.len(), stored_bytes);
                let streams = Streams {
                    values: order.values,
                    highs: &self.body[..n_highs],
                    gaps: &self.gaps,
                    raw: &out[raw],
                };
                let sent = unpack::add(&self.segments, streams, -1.0, residual);
                Ok(Packed {
                    n_entries: sent.n_entries,
                    bytes: out.len() - start,
                    norm: sent.norm,
                })
            }
            Err(error) => {
                out.truncate(start);
                Err(error)
            }
        }
    }

    /// Appends the packet, leaving its body, gaps and segments in `self`.
    fn write(
        &mut self,
        residual: &[f32],
        order: Order<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Parts, PackError> {
        let start = out.len();
        let values = order.values;
        out.reserve(capacity(&self.layout, order));
        out.extend_from_slice(&[0; HEADER_BYTES]);
        let raw_start = out.len();
        self.body.clear();
        self.heads.clear();
        self.gaps.clear();
        self.segments.clear();
        for (variable, mut range) in self.layout.ranges().enumerate() {
            let not_finite = |NotFinite { entry, value }| PackError::NotFinite {
                variable,
                entry,
                value,
            };
            let entries = &residual[range.clone()];
            let weights = order.weights.and_then(|weights| weights.get(range.clone()));
            let asked = Asked {
                order,
                weights: weights.unwrap_or(&[]),
                variable,
                part: self.layout.part(order.selection, &range),
            };
            let choice = asked
                .choose(entries, &mut self.selector)
                .map_err(not_finite)?;
            let (gaps, sent, first) = match choice {
                Choice::Nothing => {
                    self.heads.push(EMPTY);
                    continue;
                }
                Choice::All => {
                    self.heads.push(DENSE);
                    (None, entries, 0)
                }
                Choice::Run(run) => {
                    self.heads.push(RUN);
                    put_words(&mut self.heads, run.start, run.len());
                    let start = range.start;
                    range = start + run.start..start + run.end;
                    (None, &entries[run.clone()], run.start)
                }
                Choice::Some(Chosen { indices, values }) => {
                    let width = Width::of(indices.len(), entries.len());
                    let gaps_start = self.gaps.len();
                    indices::put(indices, width, &mut self.gaps);
                    let gaps = gaps_start..self.gaps.len();
                    self.heads.push(if width == Width::One {
                        SPARSE
                    } else {
                        SPARSE_WIDE
                    });
                    put_words(&mut self.heads, indices.len(), gaps.len() / width.bytes());
                    (Some((width, gaps)), values, 0)
                }
            };
            let (highs_at, raw_at) = (self.body.len(), out.len());
            values
                .put(sent, &mut self.body, out)
                .map_err(|at| PackError::NotFinite {
                    variable,
                    entry: first + at,
                    value: sent[at],
                })?;
            let raw = raw_at - raw_start..out.len() - raw_start;
            let highs = highs_at..self.body.len();
            self.segments.push(Segment {
                variable,
                range,
                n: sent.len(),
                gaps,
                highs,
                raw,
            });
        }
        let (raw, n_highs) = (raw_start..out.len(), self.body.len());
        self.body.extend_from_slice(&self.heads);
        self.body.extend_from_slice(&self.gaps);
        let mut stored_bytes = self.compressor.append(&self.body, out)?;
        let compressed = stored_bytes < self.body.len();
        if !compressed {
            out.truncate(raw.end);
            out.extend_from_slice(&self.body);
            stored_bytes = self.body.len();
        }
        // All are below 2^32 because a layout has at most 2^30 values.
        let header = Header {
            values,
            compressed,
            digest: self.layout.digest(),
            body_bytes: self.body.len() as u32,
            n_highs: n_highs as u32,
            stored_bytes: stored_bytes as u32,
        };
        out[start..raw_start].copy_from_slice(&header.to_bytes());
        Ok(Parts { raw, n_highs })
    }
}

/// Where [`Packer::write`] left what the receiver will read.
struct Parts {
    raw: Range<usize>,
    n_highs: usize,
}

/// Appends two numbers below 2^32.
fn put_words(heads: &mut Vec<u8>, first: usize, second: usize) {
    heads.extend_from_slice(&(first as u32).to_le_bytes());
    heads.extend_from_slice(&(second as u32).to_le_bytes());
}

/// Spare capacity for a packet: so that no step has to grow the output because it sends more bytes than the one before.
fn capacity(layout: &Layout, order: Order<'_>) -> usize {
    let (raw, body) = if let Selection::Part { of, .. } = order.selection {
        // The same for each part.
        let n = layout.n_values() / of.max(1) as usize + 1;
        (order.values.raw_bytes(n), 16 * layout.n_variables() + 2 * n)
    } else {
        layout.ranges().fold((0, 0), |(raw, body), range| {
            let n = order.selection.most_of(range.len());
            let (more_raw, more_body) = format::capacity(order.values, n, range.len());
            (raw + more_raw, body + more_body)
        })
    };
    HEADER_BYTES + raw + compressed_bound(body)
}

/// What is sent of a variable.
enum Choice<'a> {
    Nothing,
    All,
    Run(Range<usize>),
    Some(Chosen<'a>),
}

/// An order, as far as one variable is concerned.
struct Asked<'a> {
    order: Order<'a>,
    weights: &'a [f32],
    variable: usize,
    /// For [`Selection::Part`]: where in the variable.
    part: Option<Range<usize>>,
}

impl Asked<'_> {
    fn choose<'a>(
        self,
        entries: &[f32],
        selector: &'a mut Selector,
    ) -> Result<Choice<'a>, NotFinite> {
        let (length, values) = (entries.len(), self.order.values);
        let selection = self.order.selection;
        if let Some(part) = self.part {
            all_finite(entries)?;
            return Ok(if entries[part.clone()].iter().all(|value| *value == 0.0) {
                Choice::Nothing
            } else if part.len() == length {
                Choice::All
            } else {
                Choice::Run(part)
            });
        }
        let most = selection.most_of(length);
        let everything = match selection {
            Selection::MaxN { n } => n == 100.0,
            Selection::Significant { .. } => false,
            _ => values.is_dense(most, length),
        };
        if everything {
            // Unless so many are zero that those that are not take fewer bytes.
            let nonzero = (sample::nonzero_frac(entries) * length as f64) as usize;
            if values.is_dense(nonzero, length) {
                return Ok(Choice::All);
            }
        }
        let chosen = match selection {
            Selection::RandomK { seed, .. } => {
                all_finite(entries)?;
                // Odd, so that no two variables share their numbers.
                let seed = seed ^ (self.variable as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
                selector.random(entries, most, seed)
            }
            Selection::MaxN { n } => {
                let largest = sample::largest(entries);
                selector.at_least(entries, max_n_threshold(n, largest))?
            }
            Selection::Significant { threshold } => {
                selector.significant(entries, self.weights, threshold)?
            }
            Selection::TopK { .. } | Selection::Dense | Selection::Part { .. } => {
                selector.largest(entries, most)?
            }
        };
        Ok(match chosen.indices.len() {
            0 => Choice::Nothing,
            n if values.is_dense(n, length) => Choice::All,
            _ => Choice::Some(chosen),
        })
    }
}

fn all_finite(entries: &[f32]) -> Result<(), NotFinite> {
    if sample::all_finite(entries) {
        return Ok(());
    }
    let entry = entries
        .iter()
        .position(|value| !value.is_finite())
        .unwrap_or(0);
    Err(NotFinite {
        entry,
        value: entries[entry],
    })
}

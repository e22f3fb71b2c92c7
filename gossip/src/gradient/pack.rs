//! The largest entries of a residual, taken out of it and written as a packet.
//!
//! Called by the coder thread for a link that has credit; the packet goes into a frame. Per variable (as in DLion, so that no
//! layer starves) the largest share of entries is chosen (`select.rs`), or all of them where that is no larger. The
//! residual is read once to choose; what the receiver will decode is subtracted at the end, when nothing can fail any more,
//! by the receiver's own function.

use super::{
    format::{self, DENSE, EMPTY, HEADER_BYTES, Header, SPARSE, SPARSE_WIDE, Segment, Streams},
    indices::{self, Width},
    layout::Layout,
    select::{self, NotFinite, Selection, Selector},
    unpack,
    values::{self, Values},
};
use crate::wire::zstd::{Compressor, ZstdError, compressed_bound};

/// The zstd level of [`Packer::new`]: what is compressed has no long repeats to find, so higher levels only take longer.
pub const DEFAULT_LEVEL: i32 = 1;

/// Packs residuals of one model; of any number of links, one after the other.
#[derive(Debug)]
pub struct Packer {
    layout: Layout,
    selector: Selector,
    compressor: Compressor,
    /// Highs, and at the end heads and gaps.
    body: Vec<u8>,
    heads: Vec<u8>,
    gaps: Vec<u8>,
    segments: Vec<Segment>,
}

/// What was packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Entries in the packet, those of dense variables included.
    pub n_entries: usize,
    /// Bytes of the packet.
    pub bytes: usize,
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
    /// The share of entries to send is not above 0 and at most 1.
    #[error("fraction of entries to send is {got}: it must be above 0 and at most 1")]
    Fraction {
        /// What was given.
        got: f32,
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
            compressor: Compressor::new(level)?,
            body: Vec::with_capacity(format::max_body_bytes(layout)),
            heads: Vec::with_capacity(9 * layout.n_variables()),
            gaps: Vec::with_capacity(format::max_body_bytes(layout)),
            segments: Vec::with_capacity(layout.n_variables()),
        })
    }

    /// Appends to `out` a packet with the largest `fraction` of each variable's entries, and subtracts from `residual`
    /// exactly what the receiver will decode: `residual` before equals `residual` after plus the packet, with no rounding.
    ///
    /// Of a variable of `n` entries, `fraction * n` rounded are sent, at least one, but no zeros; or all of them, where
    /// that takes no more bytes. With fraction 1 and [`Values::F32`] the residual is zero afterwards. Allocates nothing
    /// once `out` has the capacity for such a packet.
    ///
    /// # Errors
    /// [`PackError`], with `residual` and `out` unchanged.
    pub fn pack(
        &mut self,
        residual: &mut [f32],
        fraction: f32,
        values: Values,
        out: &mut Vec<u8>,
    ) -> Result<Packed, PackError> {
        let expected = self.layout.n_values();
        if residual.len() != expected {
            return Err(PackError::Arena {
                expected,
                got: residual.len(),
            });
        }
        if !(fraction > 0.0 && fraction <= 1.0) {
            return Err(PackError::Fraction { got: fraction });
        }
        let start = out.len();
        match self.write(residual, fraction, values, out) {
            Ok(Parts { raw, n_highs }) => {
                let streams = Streams {
                    values,
                    highs: &self.body[..n_highs],
                    gaps: &self.gaps,
                    raw: &out[raw],
                };
                let sent = unpack::add(&self.segments, streams, -1.0, residual);
                Ok(Packed {
                    n_entries: sent.n_entries,
                    bytes: out.len() - start,
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
        fraction: f32,
        values: Values,
        out: &mut Vec<u8>,
    ) -> Result<Parts, PackError> {
        let start = out.len();
        out.reserve(capacity(&self.layout, fraction, values));
        out.extend_from_slice(&[0; HEADER_BYTES]);
        let raw_start = out.len();
        self.body.clear();
        self.heads.clear();
        self.gaps.clear();
        self.segments.clear();
        for (variable, range) in self.layout.ranges().enumerate() {
            let entries = &residual[range.clone()];
            let choice = choose(entries, fraction, values, &mut self.selector).map_err(
                |NotFinite { entry, value }| PackError::NotFinite {
                    variable,
                    entry,
                    value,
                },
            )?;
            let (gaps, sent) = match choice {
                Choice::Nothing => {
                    self.heads.push(EMPTY);
                    continue;
                }
                Choice::All => {
                    self.heads.push(DENSE);
                    (None, entries)
                }
                Choice::Some(Selection { indices, values }) => {
                    let width = Width::of(indices.len(), entries.len());
                    let gaps_start = self.gaps.len();
                    indices::put(indices, width, &mut self.gaps);
                    let gaps = gaps_start..self.gaps.len();
                    self.heads.push(if width == Width::One {
                        SPARSE
                    } else {
                        SPARSE_WIDE
                    });
                    self.heads
                        .extend_from_slice(&(indices.len() as u32).to_le_bytes());
                    self.heads
                        .extend_from_slice(&((gaps.len() / width.bytes()) as u32).to_le_bytes());
                    (Some((width, gaps)), values)
                }
            };
            let (highs_at, raw_at) = (self.body.len(), out.len());
            match values {
                Values::F16 => values::put_halves(sent, &mut self.body, out),
                Values::F32 => values::put_floats(sent, out),
            }
            .map_err(|entry| PackError::NotFinite {
                variable,
                entry,
                value: sent[entry],
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
    raw: std::ops::Range<usize>,
    n_highs: usize,
}

/// Spare capacity for a packet: so that no step has to grow the output because it sends more bytes than the one before.
fn capacity(layout: &Layout, fraction: f32, values: Values) -> usize {
    let (raw, body) = layout.ranges().fold((0, 0), |(raw, body), range| {
        let (more_raw, more_body) =
            format::capacity(values, n_to_send(fraction, range.len()), range.len());
        (raw + more_raw, body + more_body)
    });
    HEADER_BYTES + raw + compressed_bound(body)
}

/// How many of a variable's `length` entries are sent, zeros apart.
fn n_to_send(fraction: f32, length: usize) -> usize {
    ((f64::from(fraction) * length as f64).round() as usize).clamp(1, length)
}

/// What is sent of a variable.
enum Choice<'a> {
    Nothing,
    All,
    Some(Selection<'a>),
}

fn choose<'a>(
    entries: &[f32],
    fraction: f32,
    values: Values,
    selector: &'a mut Selector,
) -> Result<Choice<'a>, NotFinite> {
    let length = entries.len();
    let k = n_to_send(fraction, length);
    if format::is_dense(values, k, length) {
        // Unless so many are zero that those that are not take fewer bytes.
        let nonzero = (select::nonzero_frac(entries) * length as f64) as usize;
        if format::is_dense(values, nonzero, length) {
            return Ok(Choice::All);
        }
    }
    let selection = selector.select(entries, k)?;
    Ok(match selection.indices.len() {
        0 => Choice::Nothing,
        n if format::is_dense(values, n, length) => Choice::All,
        _ => Choice::Some(selection),
    })
}

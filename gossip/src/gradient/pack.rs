//! The largest entries of a residual, taken out of it and written as a packet.
//!
//! Called by the coder thread for a link that has credit; the packet goes into a frame. Per variable (as in DLion, so that no
//! layer starves) the largest share of entries is chosen by [`super::select`], or all of them where that is no larger. The
//! residual is read once to choose; what the receiver will decode is subtracted at the end, when nothing can fail any more,
//! by the receiver's own function.

use super::{
    format::{self, DENSE, EMPTY, HEADER_BYTES, Header, SPARSE, SPARSE_WIDE, Segment},
    indices::{self, Width},
    layout::Layout,
    select::{self, NotFinite, Selector},
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
    body: Vec<u8>,
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
        let written = self.write(residual, fraction, values, out);
        match written {
            Ok(raw) => {
                let packed = unpack::add(
                    &self.segments,
                    values,
                    &out[raw],
                    &self.body,
                    -1.0,
                    residual,
                );
                Ok(Packed {
                    n_entries: packed.n_entries,
                    bytes: out.len() - start,
                })
            }
            Err(error) => {
                out.truncate(start);
                Err(error)
            }
        }
    }

    /// Appends the packet, leaving its unpacked body and segments in `self`; returns where its raw part is.
    fn write(
        &mut self,
        residual: &[f32],
        fraction: f32,
        values: Values,
        out: &mut Vec<u8>,
    ) -> Result<std::ops::Range<usize>, PackError> {
        let (raw_capacity, body_capacity) =
            self.layout.ranges().fold((0, 0), |(raw, body), range| {
                let (more_raw, more_body) =
                    format::capacity(values, n_to_send(fraction, range.len()), range.len());
                (raw + more_raw, body + more_body)
            });
        let start = out.len();
        out.reserve(HEADER_BYTES + raw_capacity + compressed_bound(body_capacity));
        out.extend_from_slice(&[0; HEADER_BYTES]);
        let raw_start = out.len();
        self.body.clear();
        self.segments.clear();
        for (variable, range) in self.layout.ranges().enumerate() {
            let entries = &residual[range.clone()];
            let gaps = write_indices(
                entries,
                fraction,
                values,
                &mut self.selector,
                &mut self.body,
            )
            .map_err(|NotFinite { entry, value }| PackError::NotFinite {
                variable,
                entry,
                value,
            })?;
            let (gaps, sent) = match gaps {
                Written::Nothing => continue,
                Written::All => (None, entries),
                Written::Some {
                    width,
                    gaps,
                    values,
                } => (Some((width, gaps)), values),
            };
            let (high, raw) = (self.body.len(), out.len());
            match values {
                Values::F16 => values::put_halves(sent, &mut self.body, out),
                Values::F32 => values::put_floats(sent, out),
            }
            .map_err(|entry| PackError::NotFinite {
                variable,
                entry,
                value: sent[entry],
            })?;
            let raw = raw - raw_start..out.len() - raw_start;
            self.segments.push(Segment {
                range,
                gaps,
                high: high..self.body.len(),
                raw,
            });
        }
        let raw = raw_start..out.len();
        let mut stored_bytes = self.compressor.append(&self.body, out)?;
        let compressed = stored_bytes < self.body.len();
        if !compressed {
            out.truncate(raw.end);
            out.extend_from_slice(&self.body);
            stored_bytes = self.body.len();
        }
        // Both are below 2^32 because a layout has at most 2^30 values.
        let (body_bytes, stored_bytes) = (self.body.len() as u32, stored_bytes as u32);
        let header = Header {
            values,
            compressed,
            digest: self.layout.digest(),
            body_bytes,
            stored_bytes,
        };
        out[start..raw_start].copy_from_slice(&header.to_bytes());
        Ok(raw)
    }
}

/// How many of a variable's `length` entries are sent, zeros apart.
fn n_to_send(fraction: f32, length: usize) -> usize {
    ((f64::from(fraction) * length as f64).round() as usize).clamp(1, length)
}

enum Written<'a> {
    Nothing,
    All,
    Some {
        width: Width,
        gaps: std::ops::Range<usize>,
        values: &'a [f32],
    },
}

/// Decides what is sent of a variable and writes all of its part of the body but the values.
fn write_indices<'a>(
    entries: &[f32],
    fraction: f32,
    values: Values,
    selector: &'a mut Selector,
    body: &mut Vec<u8>,
) -> Result<Written<'a>, NotFinite> {
    let length = entries.len();
    let k = n_to_send(fraction, length);
    if format::is_dense(values, k, length) {
        // Unless so many are zero that those that are not take fewer bytes.
        let nonzero = (select::nonzero_frac(entries) * length as f64) as usize;
        if format::is_dense(values, nonzero, length) {
            body.push(DENSE);
            return Ok(Written::All);
        }
    }
    let selection = selector.select(entries, k)?;
    let n = selection.indices.len();
    if n == 0 {
        body.push(EMPTY);
        return Ok(Written::Nothing);
    }
    if format::is_dense(values, n, length) {
        body.push(DENSE);
        return Ok(Written::All);
    }
    let width = Width::of(n, length);
    body.push(if width == Width::One {
        SPARSE
    } else {
        SPARSE_WIDE
    });
    body.extend_from_slice(&(n as u32).to_le_bytes());
    let n_gaps_at = body.len();
    body.extend_from_slice(&[0; 4]);
    let start = body.len();
    indices::put(selection.indices, width, body);
    let gaps = start..body.len();
    let n_gaps = (gaps.len() / width.bytes()) as u32;
    body[n_gaps_at..start].copy_from_slice(&n_gaps.to_le_bytes());
    Ok(Written::Some {
        width,
        gaps,
        values: selection.values,
    })
}

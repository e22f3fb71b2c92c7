//! A packet from a peer, checked whole, then added to an arena.
//!
//! Bytes come from a verified frame; what passes goes into the inbox or the sum of a step. Nothing is written before all of
//! the packet is known to be good, and nothing is allocated after [`Unpacker::new`].

use super::{
    format::{self, DENSE, EMPTY, HEADER_BYTES, Header, SPARSE, SPARSE_WIDE, Segment},
    indices::{self, Width},
    layout::Layout,
    values::{self, Values},
};
use crate::wire::zstd::{Decompressor, ZstdError};

/// Checks and adds packets of one model; of any number of peers, one after the other.
#[derive(Debug)]
pub struct Unpacker {
    layout: Layout,
    decompressor: Decompressor,
    /// Address space for the largest body; resident as far as the largest packet so far.
    body: Vec<u8>,
    segments: Vec<Segment>,
}

/// What was added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unpacked {
    /// Entries in the packet, those of dense variables included.
    pub n_entries: usize,
    /// Euclidean norm of the packet's values, before the weight: to notice a peer that diverges.
    pub norm: f32,
}

/// Why a packet was refused. The arena is as it was.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The arena is not of the model's length: a local fault.
    #[error("arena has {got} values, the model {expected}")]
    Arena {
        /// The model's length.
        expected: usize,
        /// The arena's.
        got: usize,
    },
    /// Not a packet of this version, or cut off.
    #[error("{n_bytes} bytes are no gradient packet")]
    Header {
        /// The packet's length.
        n_bytes: usize,
    },
    /// A packet of another model.
    #[error(
        "packet is for a model of layout {got:#010x}, this one is {expected:#010x}: the peer trains another model"
    )]
    Layout {
        /// This model's digest.
        expected: u32,
        /// The packet's.
        got: u32,
    },
    /// The packet says it unpacks to more than this model's packets can.
    #[error("packet would unpack to {stated} bytes, this model's to {cap} at most")]
    TooLong {
        /// From its header.
        stated: usize,
        /// The most for this model.
        cap: usize,
    },
    /// The compressed part is broken, or larger than stated.
    #[error("compressed part of a packet")]
    Zstd(#[from] ZstdError),
    /// The packet contradicts itself.
    #[error("packet is malformed at variable {variable}: {problem}")]
    Malformed {
        /// The variable being read; the number of variables where the end is wrong.
        variable: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// NaN, an infinity, or a half whose scale would make it one.
    #[error("value {entry} sent for variable {variable} is not finite")]
    NotFinite {
        /// The variable.
        variable: usize,
        /// Which of the values sent for it.
        entry: usize,
    },
}

impl Unpacker {
    /// An unpacker for packets of `layout`.
    ///
    /// # Errors
    /// [`ZstdError`]: no memory for its context.
    pub fn new(layout: &Layout) -> Result<Self, ZstdError> {
        Ok(Self {
            layout: layout.clone(),
            decompressor: Decompressor::new()?,
            body: Vec::with_capacity(format::max_body_bytes(layout)),
            segments: Vec::with_capacity(layout.n_variables()),
        })
    }

    /// Checks all of `packet`, then does `into[i] += weight * value` for each of its entries: one multiplication and one
    /// addition in f32. The values are finite; the sum can still overflow for absurd values, which [`Unpacked::norm`] shows.
    ///
    /// # Errors
    /// [`UnpackError`], with `into` unchanged. All but `Arena` are the peer's fault.
    pub fn check_and_add(
        &mut self,
        packet: &[u8],
        weight: f32,
        into: &mut [f32],
    ) -> Result<Unpacked, UnpackError> {
        let expected = self.layout.n_values();
        if into.len() != expected {
            return Err(UnpackError::Arena {
                expected,
                got: into.len(),
            });
        }
        let no_packet = UnpackError::Header {
            n_bytes: packet.len(),
        };
        let Some((header, rest)) = packet.split_first_chunk::<HEADER_BYTES>() else {
            return Err(no_packet);
        };
        let Some(header) = Header::of(header) else {
            return Err(no_packet);
        };
        if header.digest != self.layout.digest() {
            return Err(UnpackError::Layout {
                expected: self.layout.digest(),
                got: header.digest,
            });
        }
        let (stated, cap) = (
            header.body_bytes as usize,
            format::max_body_bytes(&self.layout),
        );
        if stated > cap {
            return Err(UnpackError::TooLong { stated, cap });
        }
        let Some(n_raw) = rest.len().checked_sub(header.stored_bytes as usize) else {
            return Err(no_packet);
        };
        let (raw, stored) = rest.split_at(n_raw);
        let body = if header.compressed {
            self.decompressor
                .decompress(stored, stated, &mut self.body)?;
            &self.body[..]
        } else {
            stored
        };
        if body.len() != stated {
            return Err(UnpackError::Malformed {
                variable: 0,
                problem: "the body is not of its stated length",
            });
        }
        check(&self.layout, header.values, raw, body, &mut self.segments)?;
        Ok(add(&self.segments, header.values, raw, body, weight, into))
    }
}

/// Finds the segments of a packet and checks every byte that [`add`] will use.
fn check(
    layout: &Layout,
    values: Values,
    raw: &[u8],
    body: &[u8],
    segments: &mut Vec<Segment>,
) -> Result<(), UnpackError> {
    segments.clear();
    let (mut raw_at, mut at) = (0, 0);
    for (variable, range) in layout.ranges().enumerate() {
        let malformed = |problem| UnpackError::Malformed { variable, problem };
        let ends = || malformed("the body ends");
        let length = range.len();
        let tag = *body.get(at).ok_or_else(ends)?;
        at += 1;
        let (n, gaps) = match tag {
            EMPTY => continue,
            DENSE => (length, None),
            SPARSE | SPARSE_WIDE => {
                let word = |at: usize| {
                    let bytes = body.get(at..at + 4)?.try_into().ok()?;
                    usize::try_from(u32::from_le_bytes(bytes)).ok()
                };
                let (n, n_gaps) = (word(at).ok_or_else(ends)?, word(at + 4).ok_or_else(ends)?);
                at += 8;
                let width = if tag == SPARSE {
                    Width::One
                } else {
                    Width::Two
                };
                if n == 0 || n > length || format::is_dense(values, n, length) {
                    return Err(malformed("more entries than sparse coding is for, or none"));
                }
                if width != Width::of(n, length) {
                    return Err(malformed("gaps of the wrong width"));
                }
                let gaps = at..at.saturating_add(n_gaps.saturating_mul(width.bytes()));
                let bytes = body.get(gaps.clone()).ok_or_else(ends)?;
                if !indices::check(bytes, width, n, length) {
                    return Err(malformed("gaps do not lead to the stated entries"));
                }
                at = gaps.end;
                (n, Some((width, gaps)))
            }
            _ => return Err(malformed("unknown coding")),
        };
        let high = at..at + format::body_bytes(values, n);
        let low = raw_at..raw_at + format::raw_bytes(values, n);
        let high_bytes = body.get(high.clone()).ok_or_else(ends)?;
        let raw_bytes = raw
            .get(low.clone())
            .ok_or_else(|| malformed("the raw part ends"))?;
        match values {
            Values::F16 => values::check_halves(high_bytes),
            Values::F32 => values::check_floats(raw_bytes),
        }
        .map_err(|entry| UnpackError::NotFinite { variable, entry })?;
        (at, raw_at) = (high.end, low.end);
        segments.push(Segment {
            range,
            gaps,
            high,
            raw: low,
        });
    }
    if at != body.len() || raw_at != raw.len() {
        return Err(UnpackError::Malformed {
            variable: layout.n_variables(),
            problem: "bytes are left over",
        });
    }
    Ok(())
}

/// Adds what checked, or just written, segments hold.
pub(super) fn add(
    segments: &[Segment],
    values: Values,
    raw: &[u8],
    body: &[u8],
    weight: f32,
    into: &mut [f32],
) -> Unpacked {
    let (mut n_entries, mut squares) = (0, 0.0);
    for segment in segments {
        let variable = &mut into[segment.range.clone()];
        let (high, raw) = (&body[segment.high.clone()], &raw[segment.raw.clone()]);
        n_entries += raw.len() / format::raw_bytes(values, 1);
        squares += match &segment.gaps {
            Some((width, gaps)) => take(
                values,
                high,
                raw,
                indices::scatter(&body[gaps.clone()], *width, weight, variable),
            ),
            None => {
                let mut rest = variable.iter_mut();
                take(values, high, raw, |values| {
                    for (entry, value) in rest.by_ref().zip(values) {
                        *entry += weight * value;
                    }
                })
            }
        };
    }
    Unpacked {
        n_entries,
        norm: squares.sqrt() as f32,
    }
}

fn take(values: Values, high: &[u8], raw: &[u8], take: impl FnMut(&[f32])) -> f64 {
    match values {
        Values::F16 => values::take_halves(high, raw, take),
        Values::F32 => values::take_floats(raw, take),
    }
}

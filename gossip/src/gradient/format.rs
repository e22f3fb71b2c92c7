//! The bytes of a packet, and the bounds on them. All integers little endian.
//!
//! ```text
//! byte 0     1            2..4          4..8           8..12       12..16             16..20
//!      values compression reserved (0)  layout digest  body bytes  of these: highs    stored body bytes
//!      20..  raw part: per variable the low bytes of its values
//!      then  body, stored as it is or as zstd:
//!            highs: per variable, scales and high bytes of its values
//!            heads: per variable, 0 (nothing) | 1 (dense) | 2 or 3 (sparse, gaps of one or two bytes), count u32, gaps u32
//!                   | 4 (a run of entries), first u32, count u32
//!            gaps: per variable
//! ```
//!
//! `values` is 0 (f16), 1 (f32), 2 (bf16), 3 (int8) or 4 (octave); `values/mod.rs` says which bytes of each are high and which low.
//!
//! Like lies by like, so that zstd finds one distribution of bytes for long stretches, which saves 6 % of a packet of 1.2 M
//! values at 10 %. There is one way only to write a given choice of entries: dense from the point where sparse would be
//! larger, and the width of gaps follows from count and length. A reader refuses anything else, which bounds what it ever
//! has to hold.

use std::ops::Range;

use super::{indices::Width, layout::Layout, values::Values};

/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = 20;

pub(super) const EMPTY: u8 = 0;
pub(super) const DENSE: u8 = 1;
pub(super) const SPARSE: u8 = 2;
pub(super) const SPARSE_WIDE: u8 = 3;
pub(super) const RUN: u8 = 4;

/// The head of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) values: Values,
    pub(super) compressed: bool,
    pub(super) digest: u32,
    /// Bytes of the body when unpacked.
    pub(super) body_bytes: u32,
    /// How many of these are highs.
    pub(super) n_highs: u32,
    /// Bytes of the body in the packet.
    pub(super) stored_bytes: u32,
}

impl Header {
    pub(super) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = match self.values {
            Values::F16 => 0,
            Values::F32 => 1,
            Values::BF16 => 2,
            Values::Int8 => 3,
            Values::Octave => 4,
        };
        bytes[1] = self.compressed.into();
        bytes[4..8].copy_from_slice(&self.digest.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.n_highs.to_le_bytes());
        bytes[16..].copy_from_slice(&self.stored_bytes.to_le_bytes());
        bytes
    }

    /// `None` if the first four bytes are none that this version writes.
    pub(super) fn of(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let values = *Values::ALL.get(usize::from(bytes[0]))?;
        if bytes[1] > 1 || bytes[2] != 0 || bytes[3] != 0 {
            return None;
        }
        let compressed = bytes[1] == 1;
        Some(Self {
            values,
            compressed,
            digest: word(4),
            body_bytes: word(8),
            n_highs: word(12),
            stored_bytes: word(16),
        })
    }
}

/// The parts of a packet that its entries lie in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams<'a> {
    pub(super) values: Values,
    pub(super) highs: &'a [u8],
    pub(super) gaps: &'a [u8],
    pub(super) raw: &'a [u8],
}

/// Where a variable's entries lie in each of the [`Streams`], checked or just written.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) variable: usize,
    /// The variable, or the run of it that is sent, in the arena.
    pub(super) range: Range<usize>,
    /// How many entries.
    pub(super) n: usize,
    /// Their gaps; none if they are all of the range.
    pub(super) gaps: Option<(Width, Range<usize>)>,
    /// Their exponents and high bytes; empty for f32.
    pub(super) highs: Range<usize>,
    /// Their low bytes or f32.
    pub(super) raw: Range<usize>,
}

/// The most bytes of an unpacked body.
pub(super) fn max_body_bytes(layout: &Layout) -> usize {
    // Halves, sparse, two of three entries: gap and high byte for each, escapes for a 255th of the length, exponents. Less
    // for the other kinds: int8 is sparse up to every second entry.
    16 * layout.n_variables() + layout.n_values() + layout.n_values() / 2
}

/// The most bytes of a packet.
pub(super) fn max_packet_bytes(layout: &Layout) -> usize {
    // f32, sparse, four of five entries: five bytes for each, escapes for a 255th of the length. Less for the other kinds.
    HEADER_BYTES + 16 * layout.n_variables() + 4 * layout.n_values() + layout.n_values() / 128
}

/// Spare capacity for a variable of which `n` entries are sent: of the raw part, and of the body.
pub(super) fn capacity(values: Values, n: usize, length: usize) -> (usize, usize) {
    if values.is_dense(n, length) {
        return (values.raw_bytes(length), 16 + length + length / 2);
    }
    (
        values.raw_bytes(n),
        16 + (3 * n + length / 128).min(length + length / 2),
    )
}

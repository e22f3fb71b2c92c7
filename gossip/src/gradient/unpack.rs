//! A packet from a peer, checked whole, then added to an arena.
//!
//! Bytes come from a verified frame; what passes goes into the inbox or the sum of a step. Nothing is written before all of
//! the packet is known to be good, and nothing is allocated after [`Unpacker::new`].

use super::{
    format::{
        self, DENSE, EMPTY, HEADER_BYTES, Header, RUN, SPARSE, SPARSE_WIDE, Segment, Streams,
    },
    indices::{self, Width},
    layout::Layout,
    values::Values,
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
    /// NaN, an infinity, or a scale that could make a value one.
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
        let (segments, streams) = self.checked(packet, into.len())?;
        Ok(add(segments, streams, weight, into))
    }

    /// Checks all of `packet`; the Euclidean norm of its values.
    ///
    /// # Errors
    /// As [`Unpacker::check_and_add`].
    pub fn norm(&mut self, packet: &[u8]) -> Result<f32, UnpackError> {
        let (segments, streams) = self.checked(packet, self.layout.n_values())?;
        let squares = segments
            .iter()
            .map(|segment| take(segment, streams, |_| {}));
        Ok(squares.sum::<f64>().sqrt() as f32)
    }

    /// The packet's parts, once every byte of them is known to be good.
    fn checked<'a>(
        &'a mut self,
        packet: &'a [u8],
        n_values: usize,
    ) -> Result<(&'a [Segment], Streams<'a>), UnpackError> {
        let expected = self.layout.n_values();
        if n_values != expected {
            return Err(UnpackError::Arena {
                expected,
                got: n_values,
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
        let Some((highs, rest)) = body
            .split_at_checked(header.n_highs as usize)
            .filter(|_| body.len() == stated)
        else {
            return Err(UnpackError::Malformed {
                variable: 0,
                problem: "the body is not of its stated length",
            });
        };
        let gaps = read_heads(&self.layout, header.values, rest, &mut self.segments)?;
        let streams = Streams {
            values: header.values,
            highs,
            gaps,
            raw,
        };
        check(&self.layout, streams, &self.segments)?;
        Ok((&self.segments, streams))
    }
}

/// Reads what is sent of each variable into `segments`, whose ranges may still lie beyond the streams; returns the rest.
fn read_heads<'a>(
    layout: &Layout,
    values: Values,
    mut bytes: &'a [u8],
    segments: &mut Vec<Segment>,
) -> Result<&'a [u8], UnpackError> {
    segments.clear();
    let (mut gaps_at, mut highs_at, mut raw_at) = (0, 0, 0);
    for (variable, range) in layout.ranges().enumerate() {
        let malformed = |problem| UnpackError::Malformed { variable, problem };
        let length = range.len();
        let (&tag, rest) = bytes
            .split_first()
            .ok_or_else(|| malformed("the body ends"))?;
        bytes = rest;
        let mut word = || {
            let (word, rest) = bytes
                .split_first_chunk()
                .ok_or_else(|| malformed("the body ends"))?;
            bytes = rest;
            Ok::<_, UnpackError>(u32::from_le_bytes(*word) as usize)
        };
        let (range, n, gaps) = match tag {
            EMPTY => continue,
            DENSE => (range, length, None),
            SPARSE | SPARSE_WIDE => {
                let (n, n_gaps) = (word()?, word()?);
                let width = if tag == SPARSE {
                    Width::One
                } else {
                    Width::Two
                };
                if n == 0 || n > length || values.is_dense(n, length) {
                    return Err(malformed("more entries than sparse coding is for, or none"));
                }
                if width != Width::of(n, length) {
                    return Err(malformed("gaps of the wrong width"));
                }
                // Also keeps the sum of all gaps below any overflow.
                if n_gaps > n + length / 255 {
                    return Err(malformed("more gaps than there can be"));
                }
                let gaps = gaps_at..gaps_at + n_gaps * width.bytes();
                gaps_at = gaps.end;
                (range, n, Some((width, gaps)))
            }
            RUN => {
                let (first, n) = (word()?, word()?);
                if n == 0 || n >= length || first > length - n {
                    return Err(malformed("a run of no entries, of all, or past the end"));
                }
                let start = range.start + first;
                (start..start + n, n, None)
            }
            _ => return Err(malformed("unknown coding")),
        };
        let highs = highs_at..highs_at + values.highs_bytes(n);
        let raw = raw_at..raw_at + values.raw_bytes(n);
        (highs_at, raw_at) = (highs.end, raw.end);
        segments.push(Segment {
            variable,
            range,
            n,
            gaps,
            highs,
            raw,
        });
    }
    Ok(bytes)
}

/// Checks every byte that [`add`] will use.
fn check(layout: &Layout, streams: Streams<'_>, segments: &[Segment]) -> Result<(), UnpackError> {
    let (mut gaps_end, mut highs_end, mut raw_end) = (0, 0, 0);
    for Segment {
        variable,
        range,
        n,
        gaps,
        highs,
        raw,
    } in segments
    {
        let variable = *variable;
        let malformed = |problem| UnpackError::Malformed { variable, problem };
        if let Some((width, gaps)) = gaps {
            let bytes = streams
                .gaps
                .get(gaps.clone())
                .ok_or_else(|| malformed("the gaps end"))?;
            if !indices::check(bytes, *width, *n, range.len()) {
                return Err(malformed("gaps do not lead to the stated entries"));
            }
            gaps_end = gaps.end;
        }
        let (highs_of, raw_of) = (
            streams.highs.get(highs.clone()),
            streams.raw.get(raw.clone()),
        );
        let (Some(highs_of), Some(raw_of)) = (highs_of, raw_of) else {
            return Err(malformed("the values end"));
        };
        streams
            .values
            .check(highs_of, raw_of)
            .map_err(|entry| UnpackError::NotFinite { variable, entry })?;
        (highs_end, raw_end) = (highs.end, raw.end);
    }
    if (gaps_end, highs_end, raw_end)
        != (streams.gaps.len(), streams.highs.len(), streams.raw.len())
    {
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
    streams: Streams<'_>,
    weight: f32,
    into: &mut [f32],
) -> Unpacked {
    let (mut n_entries, mut squares) = (0, 0.0);
    for segment in segments {
        let variable = &mut into[segment.range.clone()];
        n_entries += segment.n;
        squares += match &segment.gaps {
            Some((width, gaps)) => take(
                segment,
                streams,
                indices::scatter(&streams.gaps[gaps.clone()], *width, weight, variable),
            ),
            None => {
                let mut start = 0;
                take(segment, streams, |values| {
                    let entries = &mut variable[start..start + values.len()];
                    for (entry, value) in entries.iter_mut().zip(values) {
                        *entry += weight * value;
                    }
                    start += values.len();
                })
            }
        };
    }
    Unpacked {
        n_entries,
        norm: squares.sqrt() as f32,
    }
}

fn take(segment: &Segment, streams: Streams<'_>, take: impl FnMut(&[f32])) -> f64 {
    streams.values.take(
        &streams.highs[segment.highs.clone()],
        &streams.raw[segment.raw.clone()],
        take,
    )
}

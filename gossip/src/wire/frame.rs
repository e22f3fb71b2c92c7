//! A frame: twelve bytes of header, then the body. The unit that is written to and read from a stream.
//!
//! ```text
//! byte 0      1     2..4          4..8              8..12                                  12..
//!      version kind reserved (0)  body length (LE)  crc32 of bytes 0..8 and the body (LE)  body
//! ```
//!
//! The stream's reader takes 12 bytes, asks [`Header::decode`] whether the rest may be read at all, reads it, and asks
//! [`Header::verify`]. The link is already authenticated (Noise), so the checksum finds faults, not forgeries; crc32 was
//! chosen because it is everywhere and runs at memory speed. The version is byte 0 in every version to come, so that peers
//! of different versions can say so.

/// The version of everything on the wire; raised when a peer of the version before could no longer follow.
pub const VERSION: u8 = 1;

/// Bytes of an encoded [`Header`].
pub const HEADER_BYTES: usize = 12;

/// What a frame's body holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum FrameKind {
    /// Membership, views, announcements: small messages, and lists of peers.
    Control = 1,
    /// A gradient packet with its stamp.
    Update = 2,
    /// A question, such as for a piece of a snapshot.
    Request = 3,
    /// The answer to a [`FrameKind::Request`].
    Response = 4,
}

impl FrameKind {
    /// The most bytes a body of this kind may have.
    ///
    /// An update is bounded by the largest replica: 64 Mi parameters sent dense as f32 (such a replica needs over 1 GiB for
    /// weights, gradient, momentum and one residual). A link that knows its job's model narrows this, see [`Header::decode`].
    pub const fn bound(self) -> u32 {
        match self {
            Self::Control => 256 << 10,
            Self::Update => 256 << 20,
            Self::Request => 64 << 10,
            Self::Response => 4 << 20,
        }
    }

    fn of(byte: u8) -> Option<Self> {
        [Self::Control, Self::Update, Self::Request, Self::Response]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// The head of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the body holds.
    pub kind: FrameKind,
    /// Bytes of the body.
    pub length: u32,
    /// crc32 (IEEE) of the header's first eight bytes and the body.
    pub checksum: u32,
}

/// Why a frame was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The peer runs another version of the protocol; nothing after byte 0 was looked at.
    #[error(
        "peer speaks wire version {got}, this one {VERSION}: run the same release of skein on both"
    )]
    Version {
        /// The peer's version.
        got: u8,
    },
    /// No such kind of frame in this version.
    #[error("frame of unknown kind {got}")]
    Kind {
        /// The kind's number.
        got: u8,
    },
    /// Bytes that are zero in this version were not.
    #[error("reserved bytes of a frame header are {got:#06x}, not zero")]
    Reserved {
        /// What they were.
        got: u16,
    },
    /// The body is longer than allowed: refused before anything was allocated, or before it was sent.
    #[error("{kind:?} frame of {length} bytes is longer than its bound of {bound}")]
    TooLong {
        /// The frame's kind.
        kind: FrameKind,
        /// The body's length.
        length: u64,
        /// The most allowed.
        bound: u32,
    },
    /// The body given to [`Header::verify`] is not of the stated length.
    #[error("frame body has {got} bytes, its header says {stated}")]
    Length {
        /// From the header.
        stated: u32,
        /// The body's.
        got: usize,
    },
    /// Header or body changed on the way.
    #[error("frame checksum is {got:#010x}, its header says {stated:#010x}")]
    Checksum {
        /// From the header.
        stated: u32,
        /// Computed.
        got: u32,
    },
}

impl Header {
    /// The header for `body`; so that a stream can send header and body without joining them.
    ///
    /// # Errors
    /// [`FrameError::TooLong`]: the body exceeds its kind's bound.
    pub fn of(kind: FrameKind, body: &[u8]) -> Result<Self, FrameError> {
        let bound = kind.bound();
        let too_long = FrameError::TooLong {
            kind,
            length: body.len() as u64,
            bound,
        };
        let length = u32::try_from(body.len())
            .ok()
            .filter(|length| *length <= bound)
            .ok_or(too_long)?;
        let mut header = Self {
            kind,
            length,
            checksum: 0,
        };
        header.checksum = header.checksum_with(body);
        Ok(header)
    }

    /// Reads a header. `bound` gives the most bytes for a kind: [`FrameKind::bound`], or less where the receiver knows
    /// better (an update of a known model: [`crate::gradient::layout::Layout::max_packet_bytes`]); it cannot widen the
    /// kind's own bound.
    ///
    /// # Errors
    /// [`FrameError`] of every kind but `Length` and `Checksum`; the stream is of no further use after any of them.
    pub fn decode(
        bytes: &[u8; HEADER_BYTES],
        bound: impl Fn(FrameKind) -> u32,
    ) -> Result<Self, FrameError> {
        let [version, kind, r0, r1, l0, l1, l2, l3, c0, c1, c2, c3] = *bytes;
        if version != VERSION {
            return Err(FrameError::Version { got: version });
        }
        let kind = FrameKind::of(kind).ok_or(FrameError::Kind { got: kind })?;
        let reserved = u16::from_le_bytes([r0, r1]);
        if reserved != 0 {
            return Err(FrameError::Reserved { got: reserved });
        }
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let bound = bound(kind).min(kind.bound());
        if length > bound {
            return Err(FrameError::TooLong {
                kind,
                length: length.into(),
                bound,
            });
        }
        Ok(Self {
            kind,
            length,
            checksum: u32::from_le_bytes([c0, c1, c2, c3]),
        })
    }

    /// Checks that `body` is the one this header was made for.
    ///
    /// # Errors
    /// [`FrameError::Length`] or [`FrameError::Checksum`].
    pub fn verify(&self, body: &[u8]) -> Result<(), FrameError> {
        let mut verifier = self.verifier();
        verifier.add(body);
        verifier.finish()
    }

    /// Takes the body in as it arrives, part by part while each is still in the processor's cache.
    pub fn verifier(&self) -> Verifier {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.to_bytes()[..8]);
        Verifier {
            header: *self,
            hasher,
            taken: 0,
        }
    }

    /// The header as it is sent.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = VERSION;
        bytes[1] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    fn checksum_with(&self, body: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.to_bytes()[..8]);
        hasher.update(body);
        hasher.finalize()
    }
}

/// See [`Header::verifier`].
#[derive(Clone, Debug)]
pub struct Verifier {
    header: Header,
    hasher: crc32fast::Hasher,
    taken: usize,
}

impl Verifier {
    /// The next part of the body.
    pub fn add(&mut self, part: &[u8]) {
        self.hasher.update(part);
        self.taken += part.len();
    }

    /// Checks that the parts are the body that the header was made for.
    ///
    /// # Errors
    /// [`FrameError::Length`] or [`FrameError::Checksum`].
    pub fn finish(self) -> Result<(), FrameError> {
        let stated = self.header;
        if self.taken != stated.length as usize {
            return Err(FrameError::Length {
                stated: stated.length,
                got: self.taken,
            });
        }
        match self.hasher.finalize() {
            got if got == stated.checksum => Ok(()),
            got => Err(FrameError::Checksum {
                stated: stated.checksum,
                got,
            }),
        }
    }
}

/// Appends a whole frame to `out`.
///
/// # Errors
/// [`FrameError::TooLong`]: the body exceeds its kind's bound; `out` is unchanged.
pub fn encode(kind: FrameKind, body: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
    let header = Header::of(kind, body)?;
    out.reserve(HEADER_BYTES + body.len());
    out.extend_from_slice(&header.to_bytes());
    out.extend_from_slice(body);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(frame: &[u8]) -> ([u8; HEADER_BYTES], &[u8]) {
        let (header, body) = frame.split_at(HEADER_BYTES);
        (header.try_into().unwrap(), body)
    }

    #[test]
    fn a_frame_has_exactly_these_bytes() {
        let mut frame = vec![];
        encode(FrameKind::Request, b"skein", &mut frame).unwrap();
        // crc32(01 03 0000 05000000 "skein") by Python's zlib.crc32
        assert_eq!(
            frame,
            [
                1, 3, 0, 0, 5, 0, 0, 0, 0xdf, 0x77, 0x97, 0xed, b's', b'k', b'e', b'i', b'n'
            ]
        );
    }

    #[test]
    fn another_version_is_named_before_anything_else_is_read() {
        let error = Header::decode(
            &[2, 99, 9, 9, 255, 255, 255, 255, 0, 0, 0, 0],
            FrameKind::bound,
        )
        .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("peer speaks wire version 2, this one 1"),
            "{error}"
        );
    }

    #[test]
    fn each_kind_keeps_its_bound_and_a_link_may_narrow_it() {
        for kind in [
            FrameKind::Control,
            FrameKind::Update,
            FrameKind::Request,
            FrameKind::Response,
        ] {
            let of = |length| {
                Header {
                    kind,
                    length,
                    checksum: 0,
                }
                .to_bytes()
            };
            assert!(Header::decode(&of(kind.bound()), |_| u32::MAX).is_ok());
            let error = Header::decode(&of(kind.bound() + 1), |_| u32::MAX).unwrap_err();
            assert_eq!(
                error,
                FrameError::TooLong {
                    kind,
                    length: kind.bound() as u64 + 1,
                    bound: kind.bound()
                }
            );
            assert!(Header::decode(&of(101), |_| 100).is_err());
        }
    }

    #[test]
    fn a_body_over_its_bound_is_not_sent() {
        let mut out = vec![7];
        assert!(encode(FrameKind::Request, &vec![0; (64 << 10) + 1], &mut out).is_err());
        assert_eq!(out, [7]);
    }

    #[test]
    fn reserved_bytes_and_unknown_kinds_are_refused() {
        let decode = |kind, reserved| {
            Header::decode(
                &[1, kind, 0, reserved, 0, 0, 0, 0, 0, 0, 0, 0],
                FrameKind::bound,
            )
        };
        assert_eq!(decode(1, 1), Err(FrameError::Reserved { got: 256 }));
        assert_eq!(decode(0, 0), Err(FrameError::Kind { got: 0 }));
        assert_eq!(decode(5, 0), Err(FrameError::Kind { got: 5 }));
    }

    proptest! {
        #[test]
        fn frames_come_back_and_any_flipped_bit_is_found(
            body in proptest::collection::vec(any::<u8>(), 0..300),
            flip in any::<proptest::sample::Index>(),
        ) {
            let mut frame = vec![];
            encode(FrameKind::Control, &body, &mut frame).unwrap();
            let (header, rest) = split(&frame);
            let decoded = Header::decode(&header, FrameKind::bound).unwrap();
            prop_assert_eq!(decoded.verify(rest), Ok(()));
            let mut verifier = decoded.verifier();
            rest.chunks(7).for_each(|part| verifier.add(part));
            prop_assert_eq!(verifier.finish(), Ok(()));

            let bit = flip.index(frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
            let (header, rest) = split(&frame);
            let accepted = Header::decode(&header, FrameKind::bound).and_then(|header| header.verify(rest));
            prop_assert!(accepted.is_err());
        }

        #[test]
        fn arbitrary_headers_never_panic(bytes: [u8; HEADER_BYTES], body: Vec<u8>) {
            if let Ok(header) = Header::decode(&bytes, FrameKind::bound) {
                prop_assert!(header.length <= header.kind.bound());
                let _ = header.verify(&body);
            }
        }
    }
}

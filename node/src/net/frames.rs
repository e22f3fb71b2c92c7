//! Frames on a stream: header and body written in one go, and read with the bound checked before anything is allocated.

use std::io;

use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use skein_gossip::wire::frame::{FrameError, FrameKind, HEADER_BYTES, Header};

/// Memory grows in steps of this as a body arrives, so that a length alone costs a peer nothing to claim and us nothing.
pub(super) const STEP: usize = 256 << 10;

/// Why no frame could be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("frame of kind {got:?} where {wanted:?} was expected")]
    Kind { wanted: FrameKind, got: FrameKind },
}

/// Writes one frame; the caller flushes.
pub(super) async fn write<S: AsyncWrite + Unpin>(
    stream: &mut S,
    kind: FrameKind,
    body: &[u8],
) -> io::Result<()> {
    let header = Header::of(kind, body).map_err(io::Error::other)?;
    stream.write_all(&header.to_bytes()).await?;
    stream.write_all(body).await
}

/// Reads one frame of `kind` with at most `bound` bytes; `None` if the stream ended before it.
pub(super) async fn read<S: AsyncRead + Unpin>(
    stream: &mut S,
    kind: FrameKind,
    bound: u32,
) -> Result<Option<Vec<u8>>, ReadError> {
    let Some(header) = header_of(stream, kind, bound).await? else {
        return Ok(None);
    };
    let length = header.length as usize;
    let mut body = Vec::new();
    while body.len() < length {
        let have = body.len();
        // Doubling keeps the number of copies small; the peer has sent half of what is set aside.
        let next = (have + have.max(STEP)).min(length);
        body.resize(next, 0);
        stream.read_exact(&mut body[have..]).await?;
    }
    header.verify(&body)?;
    Ok(Some(body))
}

/// Reads the header of a frame of `kind` with at most `bound` bytes; `None` if the stream ended before it.
pub(super) async fn header_of<S: AsyncRead + Unpin>(
    stream: &mut S,
    kind: FrameKind,
    bound: u32,
) -> Result<Option<Header>, ReadError> {
    let mut header = [0; HEADER_BYTES];
    let first = stream.read(&mut header).await?;
    if first == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut header[first..]).await?;
    let header = Header::decode(&header, |_| bound)?;
    if header.kind != kind {
        return Err(ReadError::Kind {
            wanted: kind,
            got: header.kind,
        });
    }
    Ok(Some(header))
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use futures::io::Cursor;
    use proptest::prelude::*;

    use super::*;

    fn read_all(bytes: &[u8], bound: u32) -> Result<Option<Vec<u8>>, ReadError> {
        block_on(read(&mut Cursor::new(bytes), FrameKind::Update, bound))
    }

    #[test]
    fn a_long_frame_comes_back() {
        let body: Vec<u8> = (0..3 * STEP + 5).map(|i| i as u8).collect();
        let mut stream = Cursor::new(Vec::new());
        block_on(write(&mut stream, FrameKind::Update, &body)).unwrap();
        let bytes = stream.into_inner();
        assert_eq!(read_all(&bytes, u32::MAX).unwrap(), Some(body));
        assert!(matches!(
            read_all(&bytes, 100),
            Err(ReadError::Frame(FrameError::TooLong { .. }))
        ));
        assert!(matches!(
            read_all(&bytes[..bytes.len() - 1], u32::MAX),
            Err(ReadError::Io(_))
        ));
        assert_eq!(read_all(&[], 100).unwrap(), None);
    }

    #[test]
    fn a_frame_of_another_kind_is_refused() {
        let mut stream = Cursor::new(Vec::new());
        block_on(write(&mut stream, FrameKind::Control, b"x")).unwrap();
        assert!(matches!(
            read_all(&stream.into_inner(), 100),
            Err(ReadError::Kind { .. })
        ));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes: Vec<u8>) {
            if let Ok(Some(body)) = read_all(&bytes, 64) {
                prop_assert!(body.len() <= 64);
            }
        }
    }
}

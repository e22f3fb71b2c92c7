//! Large frames, in pieces: the sender waits for each piece's turn, the receiver says what arrived. How much may be on its way
//! to a peer is one number for all streams to it, see [`skein_gossip::transfer::window`].
//!
//! On the wire a frame looks as any other. The receiver writes one byte back, of value zero, for every [`QUANTUM`] bytes of
//! the body that it read, and for what is left at its end: at once where it has to wait for more, else for a whole
//! [`TOGETHER`] in one write, since each write is a packet that both ends encrypt, carry and wake up for.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use skein_gossip::time::Tick;
use skein_gossip::transfer::capacity::Capacity;
use skein_gossip::transfer::window::{Class, Piece, QUANTUM, Window};
use skein_gossip::wire::frame::{FrameKind, Header};
use tokio::sync::{Mutex as Turn, Notify};
use tokio::time::timeout;

use super::buffers::Buffers;
use super::frames::{ReadError, STEP, header_of};

/// Acknowledgements taken at once.
const ACKS: usize = 256;
/// How often it is looked whether something has arrived, at least.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// While more is there to be read, so much is acknowledged in one go: as much as the longest piece has.
const TOGETHER: usize = 64 << 10;
/// The multiplexer writes no longer frames: what goes with a header in one write is copied once more, and no more than this need be.
const FIRST_WRITE: usize = 16 << 10;

/// The window of a peer, shared by the streams to it.
#[derive(Clone, Debug)]
pub(super) struct Pace(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    window: Mutex<Window>,
    began: Instant,
    /// Something arrived, or a frame is through.
    moved: Notify,
    /// Frames of one class go one after the other, by [`Class`]: all at once, the first would be there as late as the last.
    turns: [Turn<()>; 2],
}

impl Default for Pace {
    fn default() -> Self {
        Self(Arc::new(Shared {
            window: Mutex::default(),
            began: Instant::now(),
            moved: Notify::new(),
            turns: Default::default(),
        }))
    }
}

impl Pace {
    fn now(&self) -> Tick {
        Tick(self.0.began.elapsed().as_micros() as u64)
    }

    /// What the link to the peer carries, as far as transfers have shown.
    pub(super) fn capacity(&self) -> Option<Capacity> {
        self.window().capacity()
    }

    /// Bytes of frames that have arrived at the peer.
    pub(super) fn arrived_bytes(&self) -> u64 {
        self.window().arrived_bytes()
    }

    /// Waits until `bytes` more than `before` have arrived.
    pub(super) async fn arrives(&self, before: u64, bytes: u64) {
        loop {
            let moved = self.0.moved.notified();
            if self.arrived_bytes() >= before + bytes {
                return;
            }
            // A notice that came between the two lines is not waited for in vain.
            let _ = timeout(LOOK_AGAIN, moved).await;
        }
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.0.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn of the next piece of a frame of which `left` bytes are left.
    ///
    /// # Cancel safety
    /// Cancel safe: a piece is taken only when it is returned.
    async fn turn(&self, class: Class, left: usize) -> Piece {
        loop {
            let moved = self.0.moved.notified();
            let wait = match self.window().take(class, left, self.now()) {
                Ok(piece) => return piece,
                Err(wait) => wait,
            };
            // Either is a reason to look again.
            let _ = timeout(wait, moved).await;
        }
    }
}

/// A frame that is being sent; others of its class or below have to know.
struct Begun<'a>(&'a Pace, Class);

impl<'a> Begun<'a> {
    fn new(pace: &'a Pace, class: Class) -> Self {
        pace.window().begin(class);
        Self(pace, class)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.window().end(self.1);
        self.0.0.moved.notify_waiters();
    }
}

/// The sending end of a stream of large frames.
#[derive(Debug)]
pub(super) struct Sender<W, R> {
    stream: W,
    back: R,
    pace: Pace,
    class: Class,
    /// What is on its way, with the acknowledgements that it still needs.
    on_way: VecDeque<(usize, Piece)>,
}

impl<W: AsyncWrite + Unpin, R: AsyncRead + Unpin> Sender<W, R> {
    /// Frames go to `stream`, acknowledgements come from `back`.
    pub(super) fn new(stream: W, back: R, pace: Pace, class: Class) -> Self {
        Self {
            stream,
            back,
            pace,
            class,
            on_way: VecDeque::new(),
        }
    }

    /// Writes one frame; what was written last may still be on its way then.
    pub(super) async fn write(&mut self, kind: FrameKind, body: &[u8]) -> io::Result<()> {
        let header = Header::of(kind, body).map_err(io::Error::other)?.to_bytes();
        let (pace, class) = (self.pace.clone(), self.class);
        let _turn = tokio::select! {
            biased;
            ended = self.acknowledged() => return Err(ended?),
            turn = pace.0.turns[class as usize].lock() => turn,
        };
        let _begun = Begun::new(&pace, class);
        if body.is_empty() {
            return self.stream.write_all(&header).await;
        }
        let mut sent = 0;
        while sent < body.len() {
            let piece = tokio::select! {
                biased;
                ended = self.acknowledged() => return Err(ended?),
                piece = pace.turn(class, body.len() - sent) => piece,
            };
            let part = &body[sent..sent + piece.bytes()];
            sent += part.len();
            self.on_way.push_back((part.len().div_ceil(QUANTUM), piece));
            let rest = if part.len() == sent {
                // One write: it is one frame of the multiplexer then, and mostly one packet.
                let (first, rest) = part.split_at(part.len().min(FIRST_WRITE - header.len()));
                self.stream
                    .write_all(&[&header[..], first].concat())
                    .await?;
                rest
            } else {
                part
            };
            self.stream.write_all(rest).await?;
        }
        self.stream.flush().await
    }

    /// Takes acknowledgements until the stream ends; why it did.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// The stream broke, or more was acknowledged than was sent.
    pub(super) async fn acknowledged(&mut self) -> io::Result<io::Error> {
        let mut bytes = [0; ACKS];
        loop {
            let n_read = self.back.read(&mut bytes).await?;
            if n_read == 0 {
                return Ok(io::ErrorKind::ConnectionReset.into());
            }
            // What is confirmed in one go arrived at one time, as far as is known.
            let now = self.pace.now();
            for _ in 0..n_read {
                let Some((wanted, _)) = self.on_way.front_mut() else {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "more was acknowledged than was sent",
                    ));
                };
                *wanted -= 1;
                if *wanted == 0
                    && let Some((_, piece)) = self.on_way.pop_front()
                {
                    self.pace.window().arrived(piece, now);
                }
            }
            self.pace.0.moved.notify_waiters();
        }
    }

    /// Nothing more is sent; returns when the peer has closed its side too.
    pub(super) async fn close(&mut self) -> io::Result<()> {
        self.stream.close().await?;
        // However it ends: everything was sent, and nobody is there to hear of it.
        let _ = self.acknowledged().await;
        Ok(())
    }
}

impl<W, R> Drop for Sender<W, R> {
    fn drop(&mut self) {
        let mut window = self.pace.window();
        for (_, piece) in self.on_way.drain(..) {
            window.lost(piece);
        }
        drop(window);
        self.pace.0.moved.notify_waiters();
    }
}

/// Reads one frame of `kind` with at most `bound` bytes into memory of `buffers`, and says what arrived; `None` if the stream ended
/// before it.
pub(super) async fn read<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    kind: FrameKind,
    bound: u32,
    buffers: &Buffers,
) -> Result<Option<Vec<u8>>, ReadError> {
    let Some(header) = header_of(stream, kind, bound).await? else {
        return Ok(None);
    };
    let length = header.length as usize;
    let mut body = buffers.find(length).unwrap_or_else(|| {
        buffers.count_allocated(length);
        Vec::new()
    });
    body.truncate(length);
    let mut verifier = header.verifier();
    let (mut have, mut said) = (0, 0);
    while have < length {
        if have == body.len() {
            // Doubling keeps the number of copies small; the peer has sent half of what is set aside.
            body.resize((have + have.max(STEP)).min(length), 0);
        }
        let n_read = match stream.read(&mut body[have..]).now_or_never() {
            Some(n_read) => n_read?,
            None => {
                confirm(stream, &mut said, have / QUANTUM).await?;
                stream.read(&mut body[have..]).await?
            }
        };
        if n_read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        verifier.add(&body[have..have + n_read]);
        have += n_read;
        if have == length {
            confirm(stream, &mut said, have.div_ceil(QUANTUM)).await?;
        } else if have / QUANTUM - said >= TOGETHER / QUANTUM {
            confirm(stream, &mut said, have / QUANTUM).await?;
        }
    }
    verifier.finish()?;
    Ok(Some(body))
}

/// Says that `due` quanta have arrived, of which `said` were confirmed before.
async fn confirm<S: AsyncWrite + Unpin>(
    stream: &mut S,
    said: &mut usize,
    due: usize,
) -> io::Result<()> {
    if due > *said {
        stream.write_all(&vec![0; due - *said]).await?;
        *said = due;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use futures::TryStreamExt;
    use futures::executor::block_on;
    use futures::io::Cursor;

    use skein_gossip::wire::frame::HEADER_BYTES;

    use super::super::frames;
    use super::*;

    /// What a peer sends, and what is written back.
    struct Both(Cursor<Vec<u8>>, Vec<u8>);

    impl AsyncRead for Both {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_read(context, bytes)
        }
    }

    impl AsyncWrite for Both {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.1.extend_from_slice(bytes);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn a_reader_says_for_every_quantum_that_it_arrived() {
        for length in [0, 1, QUANTUM, QUANTUM + 1, 300 * QUANTUM + 7] {
            let body = vec![5; length];
            let mut sent = Cursor::new(Vec::new());
            block_on(frames::write(&mut sent, FrameKind::Update, &body)).unwrap();
            let mut stream = Both(Cursor::new(sent.into_inner()), Vec::new());
            let read = block_on(read(
                &mut stream,
                FrameKind::Update,
                u32::MAX,
                &Buffers::default(),
            ))
            .unwrap();
            assert_eq!(read, Some(body));
            assert_eq!(stream.1, vec![0; length.div_ceil(QUANTUM)]);
        }
    }

    #[test]
    fn a_body_that_ends_early_is_an_error() {
        let mut sent = Cursor::new(Vec::new());
        block_on(frames::write(&mut sent, FrameKind::Update, &[5; 100])).unwrap();
        let mut bytes = sent.into_inner();
        bytes.pop();
        let mut stream = Both(Cursor::new(bytes), Vec::new());
        assert!(matches!(
            block_on(read(
                &mut stream,
                FrameKind::Update,
                100,
                &Buffers::default()
            )),
            Err(ReadError::Io(_))
        ));
    }

    #[test]
    fn who_acknowledges_what_was_not_sent_is_cut_off() {
        let mut sender = Sender::new(
            Cursor::new(Vec::new()),
            Cursor::new(vec![0; 3]),
            Pace::default(),
            Class::Update,
        );
        let error = block_on(sender.acknowledged()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn what_a_broken_stream_had_on_its_way_makes_room_for_others() {
        let pace = Pace::default();
        for _ in 0..20 {
            let mut stream = Cursor::new(Vec::new());
            // Never acknowledges and never ends.
            let mut sender = Sender::new(
                &mut stream,
                futures::stream::pending::<io::Result<Vec<u8>>>().into_async_read(),
                pace.clone(),
                Class::Copy,
            );
            let written = timeout(
                Duration::from_secs(20),
                sender.write(FrameKind::Response, &[1; 3 * QUANTUM]),
            );
            written.await.unwrap().unwrap();
            drop(sender);
            assert_eq!(stream.into_inner().len(), HEADER_BYTES + 3 * QUANTUM);
        }
    }
}

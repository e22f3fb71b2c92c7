//! One direction of one connection: lanes that wait, a window of segments, and the order in which they come out.

use std::collections::{BTreeSet, VecDeque};

use skein_netem::link::Nanos;

/// Payload of a full segment, bytes.
pub(super) const SEGMENT: usize = 1448;
/// Frame header, yamux and noise around a message.
pub(super) const MESSAGE_OVERHEAD: usize = 12 + 12 + 18;
/// First window, segments (RFC 6928).
const FIRST_WINDOW: f64 = 10.0;
/// Largest window, segments: 4 MiB, what Linux grows to by default.
const LARGEST_WINDOW: f64 = 2900.0;
/// What is left of a window after a loss (CUBIC).
const AFTER_LOSS: f64 = 0.7;
/// Bytes that the kernel and yamux take beside the lane.
const SOCKET_BYTES: usize = 256 * 1024;

/// What shares a connection, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Control,
    Update,
    Bulk,
}

/// Frames that wait in each lane before it refuses, as in the node, where the kernel and yamux hold no more either.
const FRAMES: [usize; 3] = [256, 4, 64];
/// Most frames of the smallest kind that wait in any case: what fits into the kernel's and yamux' buffers.
pub(super) const LANE_BOUNDS: [usize; 3] = {
    let small = SOCKET_BYTES / MESSAGE_OVERHEAD + 1;
    [small, small, small]
};

#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) connection: u32,
    pub(super) seq: u64,
    pub(super) bytes: u16,
    pub(super) attempt: u8,
}

#[derive(Debug)]
struct Waiting<M> {
    left: usize,
    message: M,
}

/// One direction of one connection.
#[derive(Debug)]
pub(super) struct Stream<M> {
    pub(super) connection: u32,
    lanes: [VecDeque<Waiting<M>>; 3],
    lane_bytes: usize,
    lost: VecDeque<Segment>,
    bulk_is_next: bool,
    next_seq: u64,
    pub(super) in_flight: u32,
    pub(super) window: f64,
    threshold: f64,
    shrunk_at: Nanos,
    pub(super) acks: VecDeque<Nanos>,
    pub(super) is_blocked: bool,
    pub(super) is_active: bool,
    /// The receiver's side.
    expected: u64,
    early: BTreeSet<u64>,
    on_the_way: VecDeque<(u64, M)>,
}

impl<M> Stream<M> {
    pub(super) fn new(connection: u32) -> Self {
        Self {
            connection,
            lanes: [const { VecDeque::new() }; 3],
            lane_bytes: 0,
            lost: VecDeque::new(),
            bulk_is_next: false,
            next_seq: 0,
            in_flight: 0,
            window: FIRST_WINDOW,
            threshold: LARGEST_WINDOW,
            shrunk_at: 0,
            acks: VecDeque::new(),
            is_blocked: false,
            is_active: false,
            expected: 0,
            early: BTreeSet::new(),
            on_the_way: VecDeque::new(),
        }
    }

    /// Takes a message in.
    ///
    /// # Errors
    /// The message, where the lane is full.
    pub(super) fn push(&mut self, lane: Lane, bytes: usize, message: M) -> Result<(), M> {
        let queue = &mut self.lanes[lane as usize];
        if queue.len() >= FRAMES[lane as usize] && self.lane_bytes >= SOCKET_BYTES {
            return Err(message);
        }
        let left = bytes + MESSAGE_OVERHEAD;
        queue.push_back(Waiting { left, message });
        self.lane_bytes += left;
        Ok(())
    }

    /// Frames that wait in each lane.
    pub(super) fn waiting(&self) -> [usize; 3] {
        [0, 1, 2].map(|lane| self.lanes[lane].len())
    }

    /// A segment is known to be lost, a round trip being so long: it is sent again.
    pub(super) fn lost(&mut self, now: Nanos, trip: Nanos, segment: Segment) {
        self.in_flight = self.in_flight.saturating_sub(1);
        // One loss per round trip counts (RFC 5681): the others are of the same burst.
        if now >= self.shrunk_at + trip {
            self.window = (self.window * AFTER_LOSS).max(2.0);
            self.threshold = self.window;
            self.shrunk_at = now;
        }
        self.lost.push_back(Segment {
            attempt: segment.attempt.saturating_add(1),
            ..segment
        });
    }

    /// A segment arrived; the messages that are whole by it, in order.
    pub(super) fn arrived(&mut self, seq: u64) -> Vec<M> {
        if seq != self.expected {
            self.early.insert(seq);
            return Vec::new();
        }
        self.expected += 1;
        while self.early.remove(&self.expected) {
            self.expected += 1;
        }
        let mut out = Vec::new();
        while let Some((last, _)) = self.on_the_way.front()
            && *last < self.expected
        {
            out.extend(self.on_the_way.pop_front().map(|(_, message)| message));
        }
        out
    }

    pub(super) fn take_acks(&mut self, now: Nanos) {
        while self.acks.front().is_some_and(|at| *at <= now) {
            self.acks.pop_front();
            self.in_flight = self.in_flight.saturating_sub(1);
            let grown = if self.window < self.threshold {
                self.window + 1.0
            } else {
                self.window + 1.0 / self.window
            };
            self.window = grown.min(LARGEST_WINDOW);
        }
    }

    /// The next segment to send: what was lost, then control, then updates and bulk in turn.
    pub(super) fn next(&mut self, from: u32, to: u32) -> Option<Segment> {
        if let Some(lost) = self.lost.pop_front() {
            return Some(lost);
        }
        let [control, update, bulk] = [0, 1, 2].map(|lane| !self.lanes[lane].is_empty());
        // A message that is cut into segments is not interrupted by its own lane; between lanes segments mix.
        let lane = if control {
            Lane::Control
        } else if update && !(bulk && self.bulk_is_next) {
            Lane::Update
        } else if bulk {
            Lane::Bulk
        } else {
            return None;
        };
        if lane != Lane::Control {
            self.bulk_is_next = lane == Lane::Update;
        }
        let queue = &mut self.lanes[lane as usize];
        let front = queue.front_mut()?;
        let bytes = front.left.min(SEGMENT);
        front.left -= bytes;
        self.lane_bytes -= bytes;
        let seq = self.next_seq;
        self.next_seq += 1;
        if front.left == 0
            && let Some(done) = queue.pop_front()
        {
            self.on_the_way.push_back((seq, done.message));
        }
        Some(Segment {
            from,
            to,
            connection: self.connection,
            seq,
            bytes: bytes as u16,
            attempt: 0,
        })
    }
}

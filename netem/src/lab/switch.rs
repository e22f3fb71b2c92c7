//! The Ethernet switch: one thread that reads every node's TAP and hands frames over when [`Fabric`] says.
//!
//! A frame is two entries of one heap: its arrival at the receiver's downlink, then its delivery. Both are done at the
//! moment the fabric named, not at the one the thread woke up, so rates do not suffer from late wake-ups.
//!
//! While much is going on the thread rests between rounds, so that one wake-up serves several frames.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::time::{ClockId, clock_gettime};
use tun_rs::SyncDevice;

use super::LabError;
use super::address::{Destination, destination};
use crate::link::{Fabric, Hop, Nanos, NodeIndex};
use crate::priority;

/// The longest frame, with room for a VLAN tag.
const MAX_FRAME: usize = 1518;
/// Frames read from one TAP before the others have their turn.
const BATCH: usize = 64;
/// Bytes on their way; beyond this nothing is read, and the nodes' own queues fill.
const MAX_IN_FLIGHT: usize = 256 << 20;
/// Longest sleep, so that a stop is seen.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);
/// Rest between rounds while much is going on. Frames are read up to this late then, and handed over up to this early.
const REST: Duration = Duration::from_micros(300);
/// Waking up takes about so long, so the thread asks for that much earlier, and what is due within it is due.
const EARLY: Duration = Duration::from_micros(50);
/// Much is going on while so many frames per second are read or handed over: a flow of 12 Mbit/s.
const BUSY: u64 = 4000;
/// How long frames are counted before that is judged.
const WINDOW: Nanos = 10_000_000;

/// What the switch shares with the testbed.
#[derive(Debug)]
struct Shared {
    fabric: Mutex<Fabric>,
    stop: AtomicBool,
    /// The thread goes before all others.
    prompt: AtomicBool,
    cpu_ns: AtomicU64,
}

/// A switch that runs. Dropping it stops it and closes the TAPs.
#[derive(Debug)]
pub(super) struct Switch {
    shared: Arc<Shared>,
    start: Instant,
    thread: Option<JoinHandle<()>>,
}

impl Switch {
    /// Starts switching between `taps`, by rank; its clock begins at `start`.
    pub(super) fn start(
        taps: Vec<SyncDevice>,
        fabric: Fabric,
        start: Instant,
    ) -> Result<Self, LabError> {
        let shared = Arc::new(Shared {
            fabric: Mutex::new(fabric),
            stop: AtomicBool::new(false),
            prompt: AtomicBool::new(false),
            cpu_ns: AtomicU64::new(0),
        });
        let of = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("switch".into())
            .spawn(move || Ports::new(&taps, &of, start).run())
            .map_err(LabError::failed("starting the switch"))?;
        Ok(Self {
            shared,
            start,
            thread: Some(thread),
        })
    }

    /// The network, to change it or to read its counters; frames wait as long as it is held.
    pub(super) fn fabric(&self) -> MutexGuard<'_, Fabric> {
        lock(&self.shared)
    }

    /// The switch's clock.
    pub(super) fn now(&self) -> Nanos {
        nanos_since(self.start)
    }

    /// Whether the switch goes before the nodes' programs whenever it has something to do.
    pub(super) fn is_prompt(&self) -> bool {
        self.shared.prompt.load(Ordering::Relaxed)
    }

    /// CPU seconds of the switch so far.
    pub(super) fn cpu_seconds(&self) -> f64 {
        self.shared.cpu_ns.load(Ordering::Relaxed) as f64 / 1e9
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, Fabric> {
    // The fabric has no invariant that a panic elsewhere could break.
    shared.fabric.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanos_since(start: Instant) -> Nanos {
    start.elapsed().as_nanos() as Nanos
}

/// What is to be done with a frame, and when. Ordered by time, then by the order it was asked in.
#[derive(Debug)]
struct Due {
    at: Nanos,
    sequence: u64,
    from: NodeIndex,
    to: NodeIndex,
    /// Through the downlink already.
    shaped: bool,
    frame: Rc<[u8]>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// The thread's own state.
struct Ports<'a> {
    taps: &'a [SyncDevice],
    shared: &'a Shared,
    start: Instant,
    heap: BinaryHeap<Reverse<Due>>,
    in_flight: usize,
    sequence: u64,
    /// Frames read or handed over since the window began.
    handled: u64,
    window: Nanos,
    busy: bool,
}

impl<'a> Ports<'a> {
    fn new(taps: &'a [SyncDevice], shared: &'a Shared, start: Instant) -> Self {
        Self {
            taps,
            shared,
            start,
            heap: BinaryHeap::new(),
            in_flight: 0,
            sequence: 0,
            handled: 0,
            window: 0,
            busy: false,
        }
    }

    fn run(&mut self) {
        // Nodes that compute on every core must not make a link longer.
        self.shared
            .prompt
            .store(priority::go_first(), Ordering::Relaxed);
        let mut ready = vec![true; self.taps.len()];
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.handled += self.deliver() + self.read(&ready);
            self.judge();
            if self.busy {
                thread::sleep(REST);
                ready.fill(true);
            } else {
                self.wait(&mut ready);
            }
        }
    }

    /// Whether much is going on, and what it cost so far.
    fn judge(&mut self) {
        let now = nanos_since(self.start);
        let passed = now - self.window;
        if passed < WINDOW {
            return;
        }
        self.busy = self.handled * 1_000_000_000 / passed > BUSY;
        (self.handled, self.window) = (0, now);
        if let Ok(used) = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID) {
            let used = Duration::from(used).as_nanos() as u64;
            self.shared.cpu_ns.store(used, Ordering::Relaxed);
        }
    }

    /// Does what is due; how many frames were handed over.
    fn deliver(&mut self) -> u64 {
        let mut delivered = 0;
        let mut fabric = lock(self.shared);
        let now = nanos_since(self.start);
        // What comes due during the rest is half of it too early, as what is read is half of it too late.
        let early = if self.busy { REST } else { EARLY };
        let until = now + early.as_nanos() as Nanos;
        while self.heap.peek().is_some_and(|next| next.0.at <= until)
            && let Some(Reverse(due)) = self.heap.pop()
        {
            self.in_flight -= due.frame.len();
            if due.shaped {
                // A node whose interface is down, or that takes no more, loses the frame as a full receive ring would.
                let _ = self.taps[due.to].send(&due.frame);
                fabric.delivered(due.from, due.to, due.frame.len());
                delivered += 1;
            } else if let Hop::At(at) = fabric.arrive(due.at, due.from, due.to, due.frame.len()) {
                self.push(at, due.from, due.to, true, due.frame);
            }
        }
        delivered
    }

    /// Takes what the nodes sent; how many frames.
    fn read(&mut self, ready: &[bool]) -> u64 {
        let mut buffer = [0; MAX_FRAME];
        let mut taken = 0;
        for from in (0..self.taps.len()).filter(|from| ready[*from]) {
            let mut fabric = lock(self.shared);
            let now = nanos_since(self.start);
            for _ in 0..BATCH {
                if self.in_flight > MAX_IN_FLIGHT {
                    return taken;
                }
                let Ok(length) = self.taps[from].recv(&mut buffer) else {
                    break;
                };
                taken += 1;
                let frame = &buffer[..length];
                let to = match destination(frame, self.taps.len()) {
                    Destination::Node(to) => to..to + 1,
                    Destination::All => 0..self.taps.len(),
                    Destination::Unknown => continue,
                };
                let frame: Rc<[u8]> = frame.into();
                for to in to.filter(|to| *to != from) {
                    if let Hop::At(at) = fabric.send(now, from, to, length) {
                        self.push(at, from, to, false, Rc::clone(&frame));
                    }
                }
            }
        }
        taken
    }

    fn push(&mut self, at: Nanos, from: NodeIndex, to: NodeIndex, shaped: bool, frame: Rc<[u8]>) {
        self.sequence += 1;
        self.in_flight += frame.len();
        self.heap.push(Reverse(Due {
            at,
            sequence: self.sequence,
            from,
            to,
            shaped,
            frame,
        }));
    }

    /// Sleeps until something is due or a frame comes, and notes where.
    fn wait(&self, ready: &mut [bool]) {
        let now = nanos_since(self.start);
        let until = self.heap.peek().map_or(Nanos::MAX, |next| next.0.at);
        let sleep = Duration::from_nanos(until.saturating_sub(now))
            .saturating_sub(EARLY)
            .min(LONGEST_SLEEP);
        let events = match self.in_flight > MAX_IN_FLIGHT {
            true => PollFlags::empty(),
            false => PollFlags::POLLIN,
        };
        let mut ports: Vec<PollFd<'_>> = self
            .taps
            .iter()
            .map(|tap| PollFd::new(tap.as_fd(), events))
            .collect();
        let woken = ppoll(&mut ports, Some(sleep.into()), None).unwrap_or(0);
        for (ready, port) in ready.iter_mut().zip(&ports) {
            *ready = woken > 0 && port.any().unwrap_or(false);
        }
    }
}

//! Reliable, ordered connections over the link model, as TCP gives them: segments, a window that grows and shrinks with
//! losses, losses repaired after a round trip, heads of line that block.
//!
//! Kept simple where it does not decide what users measure: acknowledgements take the return delay and no capacity; a loss is
//! noticed after a fixed time; an uplink is fed as soon as it has room, so its queue stays short (what BBR and pacing do).
//!
//! Bounds: per connection and lane as in the node; a full lane refuses, and the sender decides.

use std::collections::VecDeque;

use skein_netem::link::{Fabric, Hop, Nanos, NodeIndex};

use crate::stream::{Lane, SEGMENT, Segment, Stream};

/// Ethernet, IP and TCP (with timestamps) around it.
const HEADERS: usize = 66;
/// An uplink is given more when less than this waits: two full frames keep it busy.
const UPLINK_BYTES: u64 = 2 * (SEGMENT + HEADERS) as u64;
const MS: Nanos = 1_000_000;
/// Longest pause before a segment is sent again.
const LONGEST_PAUSE: Nanos = 15_000 * MS;
/// What the transport asks to be told later.
#[derive(Clone, Copy, Debug)]
pub(super) enum NetEvent {
    Arrives(Segment),
    Delivered(Segment),
    Lost(Segment),
    Uplink(u32),
    Window { from: u32, to: u32, connection: u32 },
}

impl NetEvent {
    /// Where it happens, for the run's hash.
    pub(super) fn place(&self) -> u64 {
        let place = |from: u32, to: u32, n: u64| u64::from(from) << 44 ^ u64::from(to) << 24 ^ n;
        match self {
            Self::Arrives(segment) | Self::Delivered(segment) | Self::Lost(segment) => {
                place(segment.from, segment.to, segment.seq)
            }
            Self::Uplink(node) => place(*node, 0, 0),
            Self::Window {
                from,
                to,
                connection,
            } => place(*from, *to, u64::from(*connection)),
        }
    }
}

/// A message that came out.
#[derive(Debug)]
pub(super) struct Delivery<M> {
    pub(super) from: NodeIndex,
    pub(super) to: NodeIndex,
    pub(super) message: M,
}

#[derive(Debug, Default)]
struct Uplink {
    active: VecDeque<u32>,
    is_asked: bool,
}

/// All connections of a run.
#[derive(Debug)]
pub(super) struct Transport<M> {
    pub(super) fabric: Fabric,
    streams: Vec<Option<Box<Stream<M>>>>,
    uplinks: Vec<Uplink>,
    connections: u32,
    asked: Vec<(Nanos, NetEvent)>,
    delivered: Vec<Delivery<M>>,
}

impl<M> Transport<M> {
    pub(super) fn new(fabric: Fabric) -> Self {
        let n = fabric.len();
        Self {
            fabric,
            streams: (0..n * n).map(|_| None).collect(),
            uplinks: (0..n).map(|_| Uplink::default()).collect(),
            connections: 0,
            asked: Vec::new(),
            delivered: Vec::new(),
        }
    }

    fn at(&self, from: NodeIndex, to: NodeIndex) -> usize {
        from * self.uplinks.len() + to
    }

    pub(super) fn is_connected(&self, a: NodeIndex, b: NodeIndex) -> bool {
        self.streams[self.at(a, b)].is_some()
    }

    /// Both directions of a new connection.
    pub(super) fn connect(&mut self, a: NodeIndex, b: NodeIndex) {
        self.connections += 1;
        for (from, to) in [(a, b), (b, a)] {
            let at = self.at(from, to);
            self.streams[at] = Some(Box::new(Stream::new(self.connections)));
        }
    }

    /// Drops a connection with whatever is on the way. Nothing where there is none.
    pub(super) fn disconnect(&mut self, a: NodeIndex, b: NodeIndex) {
        for (from, to) in [(a, b), (b, a)] {
            let at = self.at(from, to);
            self.streams[at] = None;
            self.uplinks[from]
                .active
                .retain(|peer| *peer as usize != to);
        }
    }

    /// A one-way trip of a small frame on idle links.
    pub(super) fn delay(&self, from: NodeIndex, to: NodeIndex) -> Nanos {
        let pair = self.fabric.pair(from, to);
        let delay = self.fabric.lines(from).0.delay + pair.delay + self.fabric.lines(to).1.delay;
        delay.as_nanos() as Nanos
    }

    /// Hands a message to a lane.
    ///
    /// # Errors
    /// The message, where there is no connection or the lane is full.
    pub(super) fn send(
        &mut self,
        now: Nanos,
        (from, to): (NodeIndex, NodeIndex),
        lane: Lane,
        bytes: usize,
        message: M,
    ) -> Result<(), M> {
        let at = self.at(from, to);
        let Some(stream) = &mut self.streams[at] else {
            return Err(message);
        };
        stream.push(lane, bytes, message)?;
        self.activate(from, to);
        self.pump(now, from);
        Ok(())
    }

    /// Frames that wait in all lanes of a node, and the bound on them: for the checks of a run.
    pub(super) fn waiting(&self, from: NodeIndex, to: NodeIndex) -> [usize; 3] {
        let stream = &self.streams[self.at(from, to)];
        stream.as_ref().map_or([0; 3], |stream| stream.waiting())
    }

    /// Goes on with what was asked for.
    pub(super) fn handle(&mut self, now: Nanos, event: NetEvent) {
        match event {
            NetEvent::Arrives(segment) => {
                let frame = usize::from(segment.bytes) + HEADERS;
                let (from, to) = (segment.from as usize, segment.to as usize);
                match self.fabric.arrive(now, from, to, frame) {
                    Hop::At(at) if at == now => self.on_delivered(now, segment),
                    Hop::At(at) => self.asked.push((at, NetEvent::Delivered(segment))),
                    Hop::Dropped(_) => self.on_dropped(now, segment),
                }
            }
            NetEvent::Delivered(segment) => self.on_delivered(now, segment),
            NetEvent::Lost(segment) => {
                let (from, to) = (segment.from as usize, segment.to as usize);
                let trip = self.delay(from, to) + self.delay(to, from);
                let Some(stream) = self.stream(segment) else {
                    return;
                };
                stream.lost(now, trip, segment);
                self.activate(from, to);
                self.pump(now, from);
            }
            NetEvent::Uplink(node) => {
                self.uplinks[node as usize].is_asked = false;
                self.pump(now, node as usize);
            }
            NetEvent::Window {
                from,
                to,
                connection,
            } => {
                let at = self.at(from as usize, to as usize);
                let is_current = |stream: &&mut Box<Stream<M>>| stream.connection == connection;
                if let Some(stream) = self.streams[at].as_mut().filter(is_current) {
                    stream.is_blocked = false;
                    self.activate(from as usize, to as usize);
                    self.pump(now, from as usize);
                }
            }
        }
    }

    /// What is to be told later, since the last call.
    pub(super) fn asked(&mut self) -> std::vec::Drain<'_, (Nanos, NetEvent)> {
        self.asked.drain(..)
    }

    /// What came out since the last call.
    pub(super) fn delivered(&mut self) -> Vec<Delivery<M>> {
        std::mem::take(&mut self.delivered)
    }

    fn stream(&mut self, segment: Segment) -> Option<&mut Stream<M>> {
        let at = self.at(segment.from as usize, segment.to as usize);
        let stream = self.streams[at].as_deref_mut()?;
        (stream.connection == segment.connection).then_some(stream)
    }

    fn activate(&mut self, from: NodeIndex, to: NodeIndex) {
        let at = self.at(from, to);
        if let Some(stream) = &mut self.streams[at]
            && !std::mem::replace(&mut stream.is_active, true)
        {
            self.uplinks[from].active.push_back(to as u32);
        }
    }

    /// Sends what windows and the uplink allow, in turn over the connections.
    fn pump(&mut self, now: Nanos, from: NodeIndex) {
        loop {
            if self.uplinks[from].active.is_empty() {
                return;
            }
            let line = self.fabric.lines(from).0;
            if let Some(rate) = line.rate {
                let waiting = self.fabric.waiting_up(now, from);
                if waiting > UPLINK_BYTES {
                    if !std::mem::replace(&mut self.uplinks[from].is_asked, true) {
                        let drains =
                            (waiting - UPLINK_BYTES) as u128 * 8_000_000_000 / u128::from(rate);
                        let at = now + (drains as Nanos).max(1000);
                        self.asked.push((at, NetEvent::Uplink(from as u32)));
                    }
                    return;
                }
            }
            let Some(to) = self.uplinks[from].active.pop_front() else {
                return;
            };
            let at = self.at(from, to as usize);
            let Some(stream) = self.streams[at].as_deref_mut() else {
                continue;
            };
            stream.take_acks(now);
            if f64::from(stream.in_flight) >= stream.window {
                stream.is_active = false;
                stream.is_blocked = true;
                if let Some(first) = stream.acks.front() {
                    let (from, connection) = (from as u32, stream.connection);
                    let event = NetEvent::Window {
                        from,
                        to,
                        connection,
                    };
                    self.asked.push((*first, event));
                }
                continue;
            }
            let Some(segment) = stream.next(from as u32, to) else {
                stream.is_active = false;
                continue;
            };
            stream.in_flight += 1;
            self.uplinks[from].active.push_back(to);
            let frame = usize::from(segment.bytes) + HEADERS;
            match self.fabric.send(now, from, to as usize, frame) {
                Hop::At(at) => self.asked.push((at, NetEvent::Arrives(segment))),
                Hop::Dropped(_) => self.on_dropped(now, segment),
            }
        }
    }

    fn on_dropped(&mut self, now: Nanos, segment: Segment) {
        let (from, to) = (segment.from as usize, segment.to as usize);
        let trip = self.delay(from, to) + self.delay(to, from);
        let notice = if segment.attempt == 0 {
            2 * trip + 10 * MS
        } else {
            let pause = (200 * MS) << segment.attempt.min(7);
            (trip + pause).min(LONGEST_PAUSE)
        };
        self.asked.push((now + notice, NetEvent::Lost(segment)));
    }

    fn on_delivered(&mut self, now: Nanos, segment: Segment) {
        let (from, to) = (segment.from as usize, segment.to as usize);
        self.fabric
            .delivered(from, to, usize::from(segment.bytes) + HEADERS);
        let acked = now + self.delay(to, from);
        let Some(stream) = self.stream(segment) else {
            return;
        };
        if stream.is_blocked && stream.acks.is_empty() {
            let (from, to, connection) = (segment.from, segment.to, segment.connection);
            let event = NetEvent::Window {
                from,
                to,
                connection,
            };
            stream.acks.push_back(acked);
            self.asked.push((acked, event));
        } else {
            stream.acks.push_back(acked);
        }
        let Some(stream) = self.stream(segment) else {
            return;
        };
        let out = stream.arrived(segment.seq);
        self.delivered.extend(
            out.into_iter()
                .map(|message| Delivery { from, to, message }),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::queue::Queue;
    use super::*;
    use skein_netem::link::Profile;

    /// Runs until nothing is left to do; what came out and when.
    fn run(transport: &mut Transport<u32>, until: Nanos) -> Vec<(Nanos, u32)> {
        let mut queue = Queue::new();
        let mut out = Vec::new();
        let mut now = 0;
        loop {
            for (at, event) in transport.asked() {
                queue.push(at, event);
            }
            out.extend(
                transport
                    .delivered()
                    .into_iter()
                    .map(|delivery| (now, delivery.message)),
            );
            let Some((at, event)) = queue.pop() else {
                return out;
            };
            assert!(at <= until, "still busy at {at}");
            now = at;
            transport.handle(now, event);
        }
    }

    fn connected(up: Profile, down: Profile) -> Transport<u32> {
        let mut fabric = Fabric::new(2, 3);
        fabric.set_up(0, up);
        fabric.set_down(1, down);
        let mut transport = Transport::new(fabric);
        transport.connect(0, 1);
        transport
    }

    #[test]
    fn a_large_message_takes_its_bytes_over_the_rate() {
        let up = Profile {
            delay: Duration::from_millis(10),
            ..Profile::rate(20_000_000)
        };
        let mut transport = connected(up, Profile::default());
        assert_eq!(transport.send(0, (0, 1), Lane::Bulk, 1_000_000, 1), Ok(()));
        let out = run(&mut transport, 10_000 * MS);
        let bound = 1_000_042.0 * 8.0 / 20e6 * (1448.0 + 66.0) / 1448.0 + 0.010;
        let took = out[0].0 as f64 / 1e9;
        assert!(
            (bound..bound * 1.15).contains(&took),
            "{took} s, bound {bound} s"
        );
    }

    #[test]
    fn a_slow_downlink_limits_too_though_its_queue_overflows() {
        let down = Profile {
            delay: Duration::from_millis(5),
            ..Profile::rate(8_000_000)
        };
        let mut transport = connected(Profile::rate(1_000_000_000), down);
        assert_eq!(transport.send(0, (0, 1), Lane::Bulk, 2_000_000, 1), Ok(()));
        let out = run(&mut transport, 60_000 * MS);
        let bound = 2_000_042.0 * 8.0 / 8e6 * (1448.0 + 66.0) / 1448.0;
        let took = out[0].0 as f64 / 1e9;
        assert!(
            (bound..bound * 1.5).contains(&took),
            "{took} s, bound {bound} s"
        );
        let dropped: u64 = transport
            .fabric
            .counters()
            .map(|(_, of)| of.dropped_queue)
            .sum();
        assert!(dropped > 0);
    }

    #[test]
    fn everything_comes_once_and_in_order_whatever_is_lost() {
        let up = Profile {
            loss: 0.2,
            jitter: Duration::from_millis(1),
            delay: Duration::from_millis(3),
            ..Profile::rate(50_000_000)
        };
        let mut transport = connected(up, Profile::default());
        for n in 0..200 {
            assert_eq!(transport.send(0, (0, 1), Lane::Control, 900, n), Ok(()));
        }
        let out = run(&mut transport, 600_000 * MS);
        let order: Vec<u32> = out.iter().map(|(_, message)| *message).collect();
        assert_eq!(order, (0..200).collect::<Vec<_>>());
    }

    #[test]
    fn a_control_message_overtakes_a_bulk_copy() {
        let mut transport = connected(Profile::rate(8_000_000), Profile::default());
        assert_eq!(transport.send(0, (0, 1), Lane::Bulk, 1_000_000, 1), Ok(()));
        assert_eq!(transport.send(0, (0, 1), Lane::Control, 100, 2), Ok(()));
        let out = run(&mut transport, 10_000 * MS);
        assert_eq!(
            out.iter().map(|(_, message)| *message).collect::<Vec<_>>(),
            [2, 1]
        );
        assert!(out[0].0 < 20 * MS, "{}", out[0].0);
    }

    #[test]
    fn a_full_lane_refuses_and_a_lost_connection_drops_what_is_on_the_way() {
        let mut transport = connected(Profile::rate(1_000_000), Profile::default());
        let taken = (0..20)
            .filter(|n| transport.send(0, (0, 1), Lane::Update, 100_000, *n).is_ok())
            .count();
        assert!((4..8).contains(&taken), "{taken}");
        transport.disconnect(0, 1);
        assert!(!transport.is_connected(0, 1));
        assert_eq!(transport.send(0, (0, 1), Lane::Control, 1, 9), Err(9));
        transport.connect(0, 1);
        assert_eq!(transport.send(0, (0, 1), Lane::Control, 10, 77), Ok(()));
        let out = run(&mut transport, 10_000 * MS);
        assert_eq!(
            out.iter().map(|(_, message)| *message).collect::<Vec<_>>(),
            [77]
        );
    }

    #[test]
    fn a_cut_delays_what_was_sent_until_after_it() {
        let mut transport = connected(Profile::rate(8_000_000), Profile::default());
        transport.fabric.set_cut(0, 1, true);
        assert_eq!(transport.send(0, (0, 1), Lane::Control, 100, 5), Ok(()));
        let mut queue = Queue::new();
        let mut arrived = None;
        for _ in 0..100 {
            for (at, event) in transport.asked() {
                queue.push(at, event);
            }
            let Some((at, event)) = queue.pop() else {
                break;
            };
            if at > 3000 * MS {
                transport.fabric.heal();
            }
            transport.handle(at, event);
            if !transport.delivered().is_empty() {
                arrived = Some(at);
            }
        }
        assert!(arrived.is_some_and(|at| at > 3000 * MS), "{arrived:?}");
    }
}

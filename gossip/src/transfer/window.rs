//! How much may be on its way to a peer, and whose turn it is: what was sent and has not arrived stands in a queue somewhere
//! on the path, and a heartbeat waits behind all of it.
//!
//! In: when pieces of large frames are sent, and when the peer says that they arrived. Out: whether the next piece may be
//! sent now, and how long it is. As TCP Vegas does, the window holds what the link carries in the least round trip and a
//! short queue: enough that the link never idles, and all that a heartbeat has to wait for. It goes by the round trips alone,
//! so it holds for queues in this process, in the kernel and in routers alike. Heartbeats do not ask.

use std::time::Duration;

use super::capacity::{Arrival, Capacity, Meter};
use crate::time::Tick;

/// A receiver says for every so many bytes that they arrived; pieces are a multiple of it, but for a frame's last.
pub const QUANTUM: usize = 2 << 10;
/// The longest piece.
const MAX_PIECE: u64 = 64 << 10;
/// What may be on its way before the first round trip is known: about what TCP begins with.
const FIRST: u64 = 16 << 10;
/// The least window: one piece arrives while the next one is sent.
const LEAST: u64 = 2 * QUANTUM as u64;
/// Bounds what a wrong estimate can do: 20 Gbit/s over 100 ms.
const MOST: u64 = 256 << 20;
/// A piece takes about so long, since a heartbeat waits for the one that has begun.
const PIECE_TAKES: Duration = Duration::from_millis(2);
/// The queue aimed at: a piece, or what the link carries in this time if that is more. Round trips vary by about so much where
/// the processors are busy.
const QUEUE_TAKES: Duration = Duration::from_millis(2);
/// The least round trip is one of this span or the one before; each begins with an empty queue, in which it shows.
const SPAN: Duration = Duration::from_secs(10);
/// The window grows by this part of itself per round trip while there is no queue, by less while there is a short one. At
/// first it doubles, until there is one.
const GROWTH: u64 = 8;
/// Pieces leave at most so much faster than they were seen to arrive, and twice as fast while the window doubles: else, after a
/// pause, the whole window would leave at once and stand in the queue.
const HURRY: f64 = 1.1;
/// A class of which nothing arrives for so long beyond four round trips is held up by its receiver, not by the link.
const STALL: Duration = Duration::from_millis(50);
/// The most of the latter: a machine that slept has seen round trips of hours.
const MOST_PATIENCE: Duration = Duration::from_secs(2);

/// What large frames hold, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Gradients.
    Update,
    /// Copies of states, models and data: they move while no gradient waits.
    Copy,
}

impl Class {
    fn other(self) -> Self {
        match self {
            Self::Update => Self::Copy,
            Self::Copy => Self::Update,
        }
    }
}

/// A piece on its way; goes back to the window by [`Window::arrived`] or [`Window::lost`].
#[derive(Debug)]
pub struct Piece {
    class: Class,
    bytes: u64,
    sent: Tick,
    /// What had arrived by then.
    arrived: u64,
    /// The first of its frame, and the last.
    begins: bool,
    ends: bool,
    /// It left while the queue was left to empty.
    looks: bool,
    /// No other fitted after it: its round trip is that of a full window.
    fills: bool,
}

impl Piece {
    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// Frames of this class that are being sent.
    n_frames: usize,
    /// Of the newest nothing has left yet.
    is_at_start: bool,
    in_flight: u64,
    /// When something arrived, or was sent while nothing was on its way.
    moved: Tick,
}

/// From one sending to the first arrival of what was sent after the round before.
#[derive(Debug, Default)]
struct Round {
    /// A piece that was sent when so much had arrived ends it.
    ends: u64,
    /// Of the pieces that filled the window.
    least: Option<Duration>,
    /// The most that arrived during the flight of a piece, bytes per second.
    rate: f64,
}

/// See the module's header.
#[derive(Debug)]
pub struct Window {
    limit: u64,
    lanes: [Lane; 2],
    arrived: u64,
    round: Round,
    /// Least round trips of the last span and of this one.
    least: [Option<Duration>; 2],
    span_ends: Option<Tick>,
    /// The queue is left to empty.
    drains: bool,
    /// Bytes per second while the window was full.
    rate: f64,
    /// The window still doubles.
    opens: bool,
    /// When the next piece may leave.
    leaves: Tick,
    /// What the link carries.
    meter: Meter,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            limit: FIRST,
            lanes: [Lane::default(); 2],
            arrived: 0,
            round: Round::default(),
            least: [None; 2],
            span_ends: None,
            drains: false,
            rate: 0.0,
            opens: true,
            leaves: Tick(0),
            meter: Meter::default(),
        }
    }
}

impl Window {
    /// A frame of `class` wants to be sent; [`Self::end`] when all of it is, or never will be.
    pub fn begin(&mut self, class: Class) {
        let lane = &mut self.lanes[class as usize];
        lane.n_frames += 1;
        lane.is_at_start = true;
    }

    /// See [`Self::begin`]. Others may have their turn now.
    pub fn end(&mut self, class: Class) {
        let lane = &mut self.lanes[class as usize];
        lane.n_frames = lane.n_frames.saturating_sub(1);
    }

    /// The next piece of a frame of which `left` bytes are left.
    ///
    /// # Errors
    /// It may not be sent now. Ask again when a piece of any frame has arrived, when a frame has ended, or after this time.
    pub fn take(&mut self, class: Class, left: usize, now: Tick) -> Result<Piece, Duration> {
        let other = class.other();
        let is_held_up = self.is_held_up(other, now);
        let waits = self.lanes[other as usize].n_frames > 0 && other < class;
        if waits && !is_held_up {
            return Err(self.patience());
        }
        let mut in_flight = self.lanes[class as usize].in_flight;
        if !is_held_up {
            in_flight += self.lanes[other as usize].in_flight;
        }
        let bytes = self.piece_bytes().min(left as u64);
        let limit = if self.drains { self.half() } else { self.limit };
        if in_flight > 0 && in_flight + bytes > limit {
            return Err(self.patience());
        }
        if self.rate > 0.0 {
            // What is behind its time by as much as the queue may hold is made up for.
            let due = self.leaves.max(now - QUEUE_TAKES);
            if due > now {
                return Err(due.since(now));
            }
            let hurry = if self.opens { 2.0 } else { HURRY };
            let takes = bytes as f64 / (self.rate * hurry);
            self.leaves = due + Duration::from_secs_f64(takes.min(STALL.as_secs_f64()));
        }
        let lane = &mut self.lanes[class as usize];
        if lane.in_flight == 0 {
            lane.moved = now;
        }
        lane.in_flight += bytes;
        Ok(Piece {
            class,
            bytes,
            sent: now,
            arrived: self.arrived,
            begins: std::mem::take(&mut lane.is_at_start),
            ends: bytes == left as u64,
            looks: self.drains,
            fills: !self.drains && in_flight + 2 * bytes > self.limit,
        })
    }

    /// After this long others may turn out to be held up.
    fn patience(&self) -> Duration {
        STALL + (self.round_trip().unwrap_or_default().saturating_mul(4)).min(MOST_PATIENCE)
    }

    /// A piece was received.
    pub fn arrived(&mut self, piece: Piece, now: Tick) {
        let lane = &mut self.lanes[piece.class as usize];
        lane.in_flight = lane.in_flight.saturating_sub(piece.bytes);
        lane.moved = now;
        self.arrived += piece.bytes;
        let trip = now.since(piece.sent).max(Duration::from_micros(1));
        self.remember(trip, now);
        self.measure(&piece, trip, now);
        self.drains &= !piece.looks;
        let rate = (self.arrived - piece.arrived) as f64 / trip.as_secs_f64();
        self.round.rate = self.round.rate.max(rate);
        if piece.fills {
            self.round.least = Some(self.round.least.map_or(trip, |least| least.min(trip)));
        }
        if piece.arrived >= self.round.ends {
            let next = Round {
                ends: self.arrived,
                ..Round::default()
            };
            let round = std::mem::replace(&mut self.round, next);
            self.judge(&round);
        }
    }

    /// A piece will never be said to have arrived: its stream is gone.
    pub fn lost(&mut self, piece: Piece) {
        let lane = &mut self.lanes[piece.class as usize];
        lane.in_flight = lane.in_flight.saturating_sub(piece.bytes);
    }

    /// The round trip of a piece while nothing else is on its way, once known.
    pub fn round_trip(&self) -> Option<Duration> {
        self.least.into_iter().flatten().min()
    }

    /// What the link carries, as far as transfers have shown.
    pub fn capacity(&self) -> Option<Capacity> {
        let (bytes_per_s, is_bound) = self.meter.rate()?;
        Some(Capacity {
            bytes_per_s,
            is_bound,
            round_trip: self.round_trip().unwrap_or_default(),
        })
    }

    /// Bytes that have arrived since the beginning.
    pub fn arrived_bytes(&self) -> u64 {
        self.arrived
    }

    /// Bytes that may be on their way at once.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    fn measure(&mut self, piece: &Piece, trip: Duration, now: Tick) {
        if piece.looks {
            // The link is left idle on purpose.
            return self.meter.interrupt();
        }
        let least = self.round_trip().unwrap_or_default();
        let arrival = Arrival {
            bytes: piece.bytes,
            trip,
            begins: piece.begins,
            ends: piece.ends,
            // Once the window has filled the link it keeps it full; before that a queue shows that it is.
            is_full: !self.opens || 2 * trip >= 3 * least,
        };
        self.meter.arrived(arrival, now);
    }

    fn remember(&mut self, trip: Duration, now: Tick) {
        let ends = *self.span_ends.get_or_insert(now + SPAN);
        if now >= ends {
            let is_recent = now < ends + SPAN;
            self.least = [self.least[1].filter(|_| is_recent), None];
            self.span_ends = Some(now + SPAN);
            self.drains = true;
        }
        self.least[1] = Some(self.least[1].map_or(trip, |least| least.min(trip)));
    }

    /// Draws the conclusion of a round.
    fn judge(&mut self, round: &Round) {
        let (Some(trip), Some(least)) = (round.least, self.round_trip()) else {
            // The window was not what limited the rate, but the link carries as much at least.
            self.rate = self.rate.max(round.rate);
            return;
        };
        self.rate = round.rate;
        let aim = (self.rate * QUEUE_TAKES.as_secs_f64()).max(self.piece_bytes() as f64);
        let queue = self.rate * trip.saturating_sub(least).as_secs_f64();
        self.opens &= queue < aim;
        if self.opens {
            self.limit = (2 * self.limit).min(MOST);
        } else if queue < aim {
            let step = (self.limit / GROWTH) as f64 * (1.0 - queue / aim);
            self.limit = (self.limit + (step as u64).max(QUANTUM as u64)).min(MOST);
        } else if queue > 2.0 * aim {
            // One round can be an accident, such as a receiver that was held up: not below half at once.
            let fits = (self.rate * least.as_secs_f64() + aim) as u64;
            self.limit = fits.clamp(self.limit / 2, self.limit).max(LEAST);
        }
    }

    /// So much on the way makes no queue, even if the least round trip had one in it of the same length again.
    fn half(&self) -> u64 {
        let least = self.round_trip().unwrap_or_default();
        (self.rate * least.as_secs_f64() / 2.0) as u64
    }

    fn piece_bytes(&self) -> u64 {
        if self.rate == 0.0 {
            return QUANTUM as u64;
        }
        let bytes = (self.rate * PIECE_TAKES.as_secs_f64()) as u64;
        let whole = bytes.clamp(QUANTUM as u64, MAX_PIECE) / QUANTUM as u64;
        whole * QUANTUM as u64
    }

    fn is_held_up(&self, class: Class, now: Tick) -> bool {
        let lane = self.lanes[class as usize];
        lane.in_flight > 0 && now.since(lane.moved) >= self.patience()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// A link with a queue, and frames of both classes that want all of it.
    struct Link {
        window: Window,
        now: u64,
        /// Bytes per second and the round trip without a queue, µs.
        rate: f64,
        delay: u64,
        free_at: u64,
        on_way: VecDeque<(u64, Piece)>,
        carried: [u64; 2],
        /// The longest that something sent now would have waited, µs.
        waited: u64,
    }

    impl Link {
        fn new(mbit: f64, delay_ms: u64) -> Self {
            Self {
                window: Window::default(),
                now: 0,
                rate: mbit * 125e3,
                delay: delay_ms * 1000,
                free_at: 0,
                on_way: VecDeque::new(),
                carried: [0; 2],
                waited: 0,
            }
        }

        /// Runs for a while; `classes` want to send.
        fn run(&mut self, seconds: f64, classes: &[Class]) {
            self.carried = [0; 2];
            self.waited = 0;
            let until = self.now + (seconds * 1e6) as u64;
            classes.iter().for_each(|class| self.window.begin(*class));
            while self.now < until {
                let mut patience = 100_000;
                for class in classes {
                    loop {
                        let piece = match self.window.take(*class, 1 << 20, Tick(self.now)) {
                            Ok(piece) => piece,
                            Err(wait) => {
                                patience = patience.min(wait.as_micros() as u64);
                                break;
                            }
                        };
                        let takes = piece.bytes() as f64 / self.rate * 1e6;
                        self.free_at = self.free_at.max(self.now) + takes as u64;
                        self.waited = self.waited.max(self.free_at - self.now);
                        self.on_way.push_back((self.free_at + self.delay, piece));
                    }
                }
                // Timers of real systems have steps.
                let patience = self.now + patience.max(1).next_multiple_of(1000);
                let next = self.on_way.front().map_or(patience, |(at, _)| *at);
                self.now = next.min(patience);
                while self.on_way.front().is_some_and(|(at, _)| *at <= self.now) {
                    let (_, piece) = self.on_way.pop_front().unwrap();
                    self.carried[piece.class as usize] += piece.bytes;
                    self.window.arrived(piece, Tick(self.now));
                }
            }
            classes.iter().for_each(|class| self.window.end(*class));
        }

        /// Sends frames of `bytes` one after the other, each when the one before has arrived and `pause` µs later.
        fn frames(&mut self, n: usize, bytes: usize, pause: u64) {
            for _ in 0..n {
                let mut left = bytes;
                self.window.begin(Class::Update);
                while left > 0 || !self.on_way.is_empty() {
                    let mut next = self.now + 1000;
                    while left > 0 {
                        match self.window.take(Class::Update, left, Tick(self.now)) {
                            Ok(piece) => {
                                left -= piece.bytes();
                                let takes = piece.bytes() as f64 / self.rate * 1e6;
                                self.free_at = self.free_at.max(self.now) + takes as u64;
                                self.on_way.push_back((self.free_at + self.delay, piece));
                            }
                            Err(wait) => {
                                let wait = (wait.as_micros() as u64).max(1).next_multiple_of(1000);
                                next = self.now + wait;
                                break;
                            }
                        }
                    }
                    self.now = self.on_way.front().map_or(next, |(at, _)| next.min(*at));
                    while self.on_way.front().is_some_and(|(at, _)| *at <= self.now) {
                        let (_, piece) = self.on_way.pop_front().unwrap();
                        self.window.arrived(piece, Tick(self.now));
                    }
                }
                self.window.end(Class::Update);
                self.now += pause;
            }
        }

        /// What the window takes the link to carry, as a part of what it does.
        fn believed(&self) -> Option<f64> {
            let capacity = self
                .window
                .capacity()
                .filter(|capacity| !capacity.is_bound)?;
            Some(capacity.bytes_per_s / self.rate)
        }

        /// Share of what the link could have carried.
        fn used(&self, seconds: f64) -> f64 {
            (self.carried[0] + self.carried[1]) as f64 / (self.rate * seconds)
        }
    }

    #[test]
    fn a_saturated_link_is_full_and_its_queue_short() {
        for (mbit, delay) in [(20.0, 80), (20.0, 4), (1.0, 20), (1000.0, 1), (100.0, 0)] {
            let mut link = Link::new(mbit, delay);
            link.run(5.0, &[Class::Copy]);
            // Long enough for the least round trip to be looked for anew several times.
            link.run(60.0, &[Class::Copy]);
            let piece = QUANTUM as f64 / link.rate;
            // After each look for the least round trip, the window leaves a little faster than the link goes.
            let bound = (5.0 * piece).max(9e-3) * 1e6 + (HURRY - 1.0) * link.delay as f64;
            let (used, waited) = (link.used(60.0), link.waited as f64);
            assert!(used > 0.95, "{used} of {mbit} Mbit/s, {delay} ms");
            assert!(waited < bound, "{waited} µs at {mbit} Mbit/s, {delay} ms");
        }
    }

    #[test]
    fn a_frame_after_a_pause_does_not_leave_at_once() {
        let mut link = Link::new(20.0, 80);
        link.run(5.0, &[Class::Update]);
        link.run(0.5, &[]);
        link.run(1.0, &[Class::Update]);
        assert!(link.waited < 20_000, "{}", link.waited);
        assert!(link.used(1.0) > 0.8, "{}", link.used(1.0));
    }

    #[test]
    fn a_link_that_loses_nine_tenths_of_its_rate_gets_a_short_queue_again_and_its_rate_back() {
        let mut link = Link::new(20.0, 20);
        link.run(5.0, &[Class::Update]);
        link.rate /= 10.0;
        link.run(5.0, &[Class::Update]);
        link.run(10.0, &[Class::Update]);
        assert!(link.waited < 100_000, "{}", link.waited);
        link.rate *= 10.0;
        link.run(5.0, &[Class::Update]);
        link.run(5.0, &[Class::Update]);
        assert!(link.used(5.0) > 0.95, "{}", link.used(5.0));
    }

    #[test]
    fn copies_move_only_while_no_gradient_waits() {
        let mut link = Link::new(20.0, 10);
        link.run(1.0, &[Class::Copy]);
        link.run(1.0, &[Class::Copy, Class::Update]);
        let [updates, copies] = link.carried;
        assert!(
            copies * 20 < updates,
            "{copies} of copies, {updates} of gradients"
        );
        link.run(1.0, &[Class::Copy]);
        assert!(link.used(1.0) > 0.9);
    }

    #[test]
    fn a_class_whose_receiver_does_not_read_does_not_hold_up_the_other() {
        for (held, other) in [(Class::Update, Class::Copy), (Class::Copy, Class::Update)] {
            let mut window = Window::default();
            window.begin(held);
            let mut stuck = Vec::new();
            while let Ok(piece) = window.take(held, 1 << 20, Tick(0)) {
                stuck.push(piece);
            }
            window.begin(other);
            assert!(window.take(other, 1 << 20, Tick(0)).is_err());
            let later = Tick::default() + window.patience();
            let piece = window.take(other, 1 << 20, later).unwrap();
            let later = later + Duration::from_millis(10);
            window.arrived(piece, later);
            let later = later + window.patience();
            assert!(window.take(other, 1 << 20, later).is_ok());
        }
    }

    #[test]
    fn a_machine_that_slept_goes_on_at_once() {
        let mut link = Link::new(20.0, 10);
        link.run(2.0, &[Class::Update]);
        link.now += 8 * 3600 * 1_000_000;
        link.run(1.0, &[Class::Update]);
        link.run(1.0, &[Class::Update]);
        assert!(link.used(1.0) > 0.9, "{}", link.used(1.0));
    }

    #[test]
    fn one_frame_of_a_hundred_kilobytes_tells_what_a_link_carries() {
        for (mbit, delay) in [(100.0, 1), (20.0, 4), (2.0, 1), (300.0, 0)] {
            let mut link = Link::new(mbit, delay);
            assert_eq!(link.window.capacity(), None);
            link.frames(1, crate::transfer::probe::BYTES, 0);
            let believed = link.believed().unwrap();
            assert!(
                (0.75..1.15).contains(&believed),
                "{believed} of {mbit} Mbit/s, {delay} ms"
            );
            let trip = link.window.capacity().unwrap().round_trip.as_micros() as f64;
            let least = link.delay as f64 + QUANTUM as f64 / link.rate * 1e6;
            assert!(
                (0.95..1.2).contains(&(trip / least)),
                "{trip} µs at {mbit} Mbit/s, {delay} ms"
            );
        }
    }

    #[test]
    fn the_rate_of_frames_with_pauses_is_the_links_and_follows_it_within_seconds() {
        for (mbit, delay, bytes, pause) in [
            (100.0, 1, 500_000, 50_000),
            (100.0, 1, 60_000, 5_000),
            (20.0, 20, 200_000, 1_000),
        ] {
            let mut link = Link::new(mbit, delay);
            link.frames(60, bytes, pause);
            for factor in [0.1, 10.0] {
                let believed = link.believed().unwrap();
                assert!(
                    (0.85..1.15).contains(&believed),
                    "{believed} of {mbit} Mbit/s"
                );
                link.rate *= factor;
                let until = link.now + 4_000_000;
                while link.now < until {
                    link.frames(1, bytes, pause);
                }
            }
            let believed = link.believed().unwrap();
            assert!(
                (0.85..1.15).contains(&believed),
                "{believed} of {mbit} Mbit/s, at last"
            );
            let before = link.window.capacity();
            link.now += 600_000_000;
            assert_eq!(
                link.window.capacity(),
                before,
                "an idle link keeps its estimate"
            );
        }
    }

    #[test]
    fn what_does_not_fill_a_link_is_a_bound_and_lowers_no_estimate() {
        let mut link = Link::new(50.0, 100);
        link.frames(30, 3_000, 20_000);
        let capacity = link.window.capacity().unwrap();
        assert!(capacity.is_bound && capacity.bytes_per_s < 1.01 * link.rate);
        link.frames(20, 2_000_000, 0);
        let known = link.believed().unwrap();
        link.frames(200, 3_000, 20_000);
        assert!((0.85..1.15).contains(&known));
        assert!((link.believed().unwrap() / known - 1.0).abs() < 0.1);
    }

    #[test]
    fn a_receiver_that_is_slow_to_read_does_not_make_a_link_slow() {
        let mut link = Link::new(100.0, 1);
        link.frames(20, 200_000, 0);
        for _ in 0..100 {
            // The next frame arrives, and is not read for as long as it takes.
            link.free_at = link.now + 40_000;
            link.frames(1, 200_000, 0);
        }
        let believed = link.believed().unwrap();
        assert!((0.8..1.2).contains(&believed), "{believed}");
    }

    #[test]
    fn what_is_lost_makes_room() {
        let mut window = Window::default();
        let pieces: Vec<Piece> =
            std::iter::from_fn(|| window.take(Class::Copy, 1 << 20, Tick(0)).ok()).collect();
        assert_eq!(pieces.iter().map(|piece| piece.bytes).sum::<u64>(), FIRST);
        pieces.into_iter().for_each(|piece| window.lost(piece));
        assert!(window.take(Class::Copy, 1 << 20, Tick(0)).is_ok());
    }

    proptest! {
        #[test]
        fn the_window_stays_in_its_bounds_whatever_arrives_when(
            steps in proptest::collection::vec((any::<bool>(), 0u64..20_000_000, 1usize..1 << 20), 1..300),
        ) {
            let mut window = Window::default();
            let mut on_way = VecDeque::new();
            let mut now = Tick(0);
            for (is_update, wait, left) in steps {
                now = now + Duration::from_micros(wait);
                let class = if is_update { Class::Update } else { Class::Copy };
                window.begin(class);
                while let Ok(piece) = window.take(class, left, now) {
                    prop_assert!((1..=MAX_PIECE as usize).contains(&piece.bytes()));
                    on_way.push_back(piece);
                    if on_way.len() > 50 {
                        break;
                    }
                }
                window.end(class);
                if let Some(piece) = on_way.pop_front() {
                    window.arrived(piece, now + Duration::from_micros(wait / 3));
                }
                prop_assert!((LEAST..=MOST).contains(&window.limit()));
                let capacity = window.capacity();
                prop_assert!(capacity.is_none_or(|capacity| (1.0..=1e12).contains(&capacity.bytes_per_s)));
            }
            while let Some(piece) = on_way.pop_front() {
                window.arrived(piece, now);
            }
            prop_assert!(window.lanes.iter().all(|lane| lane.in_flight == 0));
        }
    }
}

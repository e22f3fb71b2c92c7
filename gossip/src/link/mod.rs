//! What one link carries, measured from the packets that go over it anyway (DLion's transmission-speed assurance: Hong
//! & Chandra, HPDC 2021).
//!
//! In: packets handed over, the receiver's acknowledgements with the time on its clock at which each had fully arrived,
//! and the time. Out: an [`Estimate`], and a *budget*: how many bytes may be handed over now so that they have left by
//! the time of the next packet. No packet is sent for measuring.
//!
//! A rate sample is a packet's bytes over the time in which the link was busy with it: from the arrival before it, or
//! where the link was free from its sending plus the least delay seen lately (`clock`, `rate`). Only round trips are
//! taken from the time at which an acknowledgement is heard, because a throttled receiver acknowledges late.
//!
//! The budget plays the packets in flight against the estimate: how long until the link has carried them all. What is
//! not acknowledged when it should be has not arrived, and the link is slower than believed. Three things let a budget
//! grow that was too small: it doubles until packets were seen to queue for the first time; a link that was not filled
//! lately may be asked for a quarter more; and never is more than twice in flight than was acknowledged in good time
//! before.
//!
//! What a receiver claims is untrusted. It moves the budget of the link to that receiver, within these bounds, and
//! nothing else.

mod clock;
mod rate;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use self::clock::{Arrival, Clock, Least, Lowest};
use self::rate::Rate;
use crate::time::Tick;

/// Packets tracked at most. Beyond, the oldest is taken for [forgotten](Meter::forgotten).
pub const MAX_TRACKED: usize = 1024;
/// What may be in flight on a link of which nothing is known.
const FIRST_WINDOW: f64 = 32.0 * 1024.0;
/// What may be in flight on any link.
const MAX_WINDOW: f64 = (1u64 << 30) as f64;
/// Part of a horizon that is filled. The rest lets a standing queue drain, so that the least delay stays visible.
const FILL: f64 = 0.95;
/// What a link is asked for over its estimate while it was never seen full, and when it was not lately.
const FIRST_TEST: f64 = 2.0;
const TEST: f64 = 1.25;
/// Packets sent later that were acknowledged until an acknowledgement is taken to be lost (as TCP's three).
const PASSED: u8 = 3;
/// How much a round trip may exceed the least, and the time that the link needs for what is in flight, for that to be
/// no mistake. By the own clock.
const GOOD_TIME: Duration = Duration::from_millis(500);
/// When so long nothing was sent nor heard, a first window may be sent whatever is in flight: acknowledgements may be
/// lost.
const SILENCE: Duration = Duration::from_secs(1);
/// A packet of the least delay that is this many times smaller tells the delay itself. Of a larger one it is not known
/// how much was transmission, and only what another packet took beyond it is counted.
const SMALL: f64 = 4.0;
/// Not even that if it went at this many times the rate of now.
const SLOWED: f64 = 1.5;
/// Packets handed over within this are one.
const TOGETHER: Duration = Duration::from_millis(2);
/// How much slower than its estimate a link is taken to be at most while acknowledgements are late.
const SLOWEST: f64 = 1.0 / 32.0;

/// What is known of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Bytes per second, `None` before the first usable packet. Finite and positive.
    pub rate: Option<f64>,
    /// From handing a packet over to hearing that it arrived, smoothed.
    pub round_trip: Option<Duration>,
    /// The least round trip of the last 5 s of traffic.
    pub least_round_trip: Option<Duration>,
    /// How long the last packets stood in a queue, smoothed.
    pub queueing: Duration,
    /// Bytes handed over and not acknowledged.
    pub in_flight_bytes: usize,
    /// The number of their packets.
    pub in_flight: usize,
    /// When the oldest of them was handed over.
    pub oldest: Option<Tick>,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Tick,
    bytes: usize,
    /// Bytes in flight with this one.
    in_flight_bytes: usize,
    /// Packets sent later that were acknowledged earlier.
    passed: u8,
}

/// Measures one link, one direction.
#[derive(Clone, Debug)]
pub struct Meter {
    sent: BTreeMap<u64, Sent>,
    clock: Clock,
    rate: Rate,
    /// Arrival of the last packet on the receiver's clock, and when it was sent.
    last: Option<(i64, Tick)>,
    /// Bytes sent before the last acknowledged packet whose arrival is unknown, and when the first of them was sent.
    unknown: Option<(f64, Tick)>,
    round_trip_us: Option<f64>,
    round_trips: Lowest,
    /// Of this connection.
    least_ever: Option<Duration>,
    queueing_us: f64,
    window: f64,
    /// When a packet was last sent or acknowledged.
    moved: Tick,
    /// When a packet was last seen to stand behind one that was handed over earlier.
    filled: Option<Tick>,
}

impl Default for Meter {
    fn default() -> Self {
        Self::new()
    }
}

impl Meter {
    /// Knows nothing yet.
    pub fn new() -> Self {
        Self {
            sent: BTreeMap::new(),
            clock: Clock::default(),
            rate: Rate::default(),
            last: None,
            unknown: None,
            round_trip_us: None,
            round_trips: Lowest::default(),
            least_ever: None,
            queueing_us: 0.0,
            window: FIRST_WINDOW,
            moved: Tick::default(),
            filled: None,
        }
    }

    /// Packet `seq` of `bytes` was handed to the connection. Numbers ascend in the order of sending; one that is in use
    /// is replaced.
    pub fn sent(&mut self, now: Tick, seq: u64, bytes: usize) {
        self.moved = now;
        self.sent.remove(&seq);
        if self.sent.len() >= MAX_TRACKED {
            self.sent.pop_first();
        }
        let in_flight_bytes = self.in_flight_bytes().saturating_add(bytes);
        let sent = Sent {
            at: now,
            bytes,
            in_flight_bytes,
            passed: 0,
        };
        self.sent.insert(seq, sent);
    }

    /// The receiver says that `seq` had arrived at `arrived_us` on its clock (microseconds). An unknown number, or one
    /// acknowledged before, is ignored.
    pub fn acknowledged(&mut self, now: Tick, seq: u64, arrived_us: u64) {
        let Some(sent) = self.sent.remove(&seq) else {
            return;
        };
        self.moved = now;
        self.hear_round_trip(now, &sent);
        self.pass(seq);
        let own_us = (self.rate.per_us()).map_or(f64::INFINITY, |rate| sent.bytes as f64 / rate);
        let claim = (self.clock).arrival(now, sent.at, arrived_us, sent.bytes, own_us);
        let Some(arrival) = claim else {
            if sent.passed == 0 {
                self.carry(sent.bytes as f64, sent.at);
            }
            return;
        };
        let queueing_us = self.rate.per_us().map_or(0.0, |rate| {
            (arrival.there_us as f64 - arrival.least.delay_us(rate) - own_us).max(0.0)
        });
        self.queueing_us += (queueing_us - self.queueing_us) / 4.0;
        self.widen(now.since(sent.at), &sent);
        self.measure(now, &sent, &arrival);
        // Packets all of one size tell nothing of the rate once they do not queue; but each was carried within its round trip.
        let round_trip_us = now.since(sent.at).as_micros() as f64;
        let at_us = arrival.at_us as f64;
        self.rate.at_least(at_us, sent.bytes as f64, round_trip_us);
    }

    /// Packet `seq` was lost or taken back: it is no longer in flight.
    pub fn forgotten(&mut self, seq: u64) {
        self.sent.remove(&seq);
    }

    /// The connection was made anew: what was in flight is lost, and all but the rate is measured again; the rate is
    /// kept as a guess.
    pub fn reset(&mut self) {
        *self = Self {
            rate: self.rate.renewed(),
            ..Self::new()
        };
    }

    /// What is known.
    pub fn estimate(&self) -> Estimate {
        let duration = |us: f64| Duration::from_micros(us as u64);
        Estimate {
            rate: self.rate.per_us().map(|rate| rate * 1e6),
            round_trip: self.round_trip_us.map(duration),
            least_round_trip: (self.round_trips.get()).map(|least| duration(least.value_us as f64)),
            queueing: duration(self.queueing_us),
            in_flight_bytes: self.in_flight_bytes(),
            in_flight: self.sent.len(),
            oldest: self.sent.values().map(|sent| sent.at).min(),
        }
    }

    /// How many bytes may be handed over now, so that they leave within `horizon`: about the time to the next packet.
    /// Zero while what is in flight takes longer than that.
    ///
    /// Best is to hand over, and to measure, some hundred bytes right before a large packet: their arrival shows the
    /// delay by itself, and the estimate is exact then.
    pub fn budget(&self, now: Tick, horizon: Duration) -> usize {
        let free = (self.window - self.in_flight_bytes() as f64).max(0.0);
        let fits = self.fits(now, horizon).min(free);
        let quiet = SILENCE + 2 * Duration::from_micros(self.round_trip_us.unwrap_or(0.0) as u64);
        if now.since(self.moved) > quiet {
            return fits.max(FIRST_WINDOW) as usize;
        }
        fits as usize
    }

    /// The budget as the estimate has it, infinite without one.
    fn fits(&self, now: Tick, horizon: Duration) -> f64 {
        let (Some(rate), Some(least)) = (self.rate.per_us(), self.clock.least()) else {
            return f64::INFINITY;
        };
        let horizon_us = horizon.as_micros() as f64;
        let backlog_us = self.backlog_us(now, rate, least.delay_us(rate));
        let test = match self.filled {
            None => FIRST_TEST,
            Some(filled) => {
                let quiet = Duration::from_micros(self.round_trip_us.unwrap_or(0.0) as u64);
                let lately = now.since(filled) <= horizon.saturating_mul(4) + quiet;
                let queued = self.queueing_us.max(backlog_us) > horizon_us / 8.0;
                if lately || queued { 1.0 } else { TEST }
            }
        };
        rate * (horizon_us * FILL * test - backlog_us).max(0.0)
    }

    /// How long the link is busy with what is in flight, from when a packet handed over now would reach it.
    fn backlog_us(&self, now: Tick, rate: f64, delay_us: f64) -> f64 {
        let not_before_us = self.clock.not_before_us(now).unwrap_or(f64::MIN);
        let mut rate = rate;
        let mut free_us = self.last.map_or(f64::MIN, |(at_us, _)| at_us as f64);
        for sent in self.sent.values().filter(|sent| sent.passed == 0) {
            let start_us = free_us.max(sent.at.0 as f64 + delay_us);
            let bytes = sent.bytes as f64;
            let took_us = not_before_us - start_us;
            if took_us > bytes / rate {
                rate = (bytes / took_us).max(rate * SLOWEST);
                free_us = not_before_us;
            } else {
                free_us = start_us + bytes / rate;
            }
        }
        (free_us - (now.0 as f64 + delay_us)).max(0.0)
    }

    fn in_flight_bytes(&self) -> usize {
        let bytes = self.sent.values().map(|sent| sent.bytes);
        bytes.fold(0, usize::saturating_add)
    }

    fn hear_round_trip(&mut self, now: Tick, sent: &Sent) {
        let round_trip = now.since(sent.at);
        let us = round_trip.as_micros() as f64;
        let mean = self.round_trip_us.unwrap_or(us);
        self.round_trip_us = Some(mean + (us - mean) / 8.0);
        let value_us = i64::try_from(round_trip.as_micros()).unwrap_or(i64::MAX);
        let least = Least {
            value_us,
            bytes: sent.bytes,
            own_us: 0.0,
        };
        self.round_trips.push(now, least);
    }

    /// More may be in flight if what was in flight with `sent` came through in good time.
    fn widen(&mut self, round_trip: Duration, sent: &Sent) {
        let least = *self.least_ever.get_or_insert(round_trip);
        self.least_ever = Some(least.min(round_trip));
        let in_flight_bytes = sent.in_flight_bytes as f64;
        let carried_us = (self.rate.per_us()).map_or(0.0, |rate| in_flight_bytes / rate);
        let late_us = round_trip.saturating_sub(least + GOOD_TIME).as_micros() as f64;
        if late_us <= carried_us {
            self.window = self.window.max(2.0 * in_flight_bytes).min(MAX_WINDOW);
        }
    }

    /// `seq` arrived, so what was sent before it has most likely arrived too, and its acknowledgement is lost or late.
    fn pass(&mut self, seq: u64) {
        let mut first = None;
        for sent in self.sent.range_mut(..seq).map(|(_, sent)| sent) {
            sent.passed = sent.passed.saturating_add(1);
            if sent.passed == 1 {
                let (bytes, at) = first.unwrap_or((0.0, sent.at));
                first = Some((bytes + sent.bytes as f64, at));
            }
        }
        if let Some((bytes, at)) = first {
            self.carry(bytes, at);
        }
        self.sent.retain(|_, sent| sent.passed < PASSED);
    }

    fn carry(&mut self, bytes: f64, at: Tick) {
        let (before, first) = self.unknown.unwrap_or((0.0, at));
        self.unknown = Some((before + bytes, first));
    }

    fn measure(&mut self, now: Tick, sent: &Sent, arrival: &Arrival) {
        let Arrival { at_us, least, .. } = *arrival;
        if sent.passed > 0 {
            // Its bytes were counted when it was passed.
            return;
        }
        if self.last.is_some_and(|(last_us, _)| at_us < last_us) {
            self.carry(sent.bytes as f64, sent.at);
            return;
        }
        let Some((last_us, last_sent)) = self.last.replace((at_us, sent.at)) else {
            return;
        };
        let (unknown_bytes, first) = self.unknown.take().unwrap_or((0.0, sent.at));
        let (first, bytes) = (first.min(sent.at), sent.bytes as f64 + unknown_bytes);
        let since_last_us = at_us.saturating_sub(last_us) as f64;
        let since_first_us =
            (arrival.there_us - least.value_us) as f64 + sent.at.since(first).as_micros() as f64;
        let is_behind = since_last_us <= since_first_us;
        if is_behind || first.since(last_sent) <= TOGETHER {
            self.rate.behind(at_us as f64, bytes, since_last_us);
            if is_behind && sent.at.since(last_sent) > TOGETHER {
                self.filled = Some(now);
            }
            return;
        }
        match self.transmission(bytes, arrival) {
            Some((bytes, busy_us)) if sent.at.since(first) <= TOGETHER => {
                self.rate.alone(at_us as f64, bytes, busy_us);
            }
            _ => self.rate.interrupted(),
        }
    }

    /// Bytes, and how long the link was busy with them, of a packet to which it was free.
    fn transmission(&self, bytes: f64, arrival: &Arrival) -> Option<(f64, f64)> {
        let (least, there_us) = (arrival.least, arrival.there_us as f64);
        let (least_bytes, least_us) = (least.bytes as f64, least.value_us as f64);
        match self.rate.per_us() {
            Some(rate) if bytes >= SMALL * least_bytes => {
                Some((bytes, there_us - least.delay_us(rate)))
            }
            Some(rate) if least_bytes / least.own_us > SLOWED * rate => None,
            _ => Some((bytes - least_bytes, there_us - least_us)),
        }
    }
}

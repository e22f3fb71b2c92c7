//! What a link carries, from when the pieces of its frames arrived: real transfers, no pings (FTPipeHD measures with pings of 1.5 kB;
//! the plan of a pipeline needs what 1.5 MB take).
//!
//! Counted are bytes and time from one arrival to the next within a frame. Between frames the sender may have nothing to send, or
//! the receiver may not read, and that is not the link's doing. Where not the link but the window was what held the sender back,
//! or where all there was is too short to be timed, the link carries *at least* as much: a bound, which never lowers an estimate.
//! Samples are weighed by their time and forgotten with a time constant of 0.6 s; an idle link keeps its estimate.

use std::time::Duration;

use crate::time::Tick;

/// Time constant of forgetting: a tenth or the tenfold rate is followed within 3 s of transfers.
const MEMORY_US: f64 = 600_000.0;
/// A pause between samples counts as at most this much time.
const IDLE_US: f64 = 200_000.0;
/// A sample is complete when it lasted this long.
const LONG_US: f64 = 20_000.0;
/// Shorter ones measure the receiver's scheduling.
const SHORT_US: f64 = 1_000.0;
/// A sample that is not complete after this time says nothing of now.
const STALE: Duration = Duration::from_secs(1);
/// No link is faster, in bytes per microsecond: keeps what liars confirm finite.
const FASTEST: f64 = 1e6;

/// What is known of a link, one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Bytes per second; finite and positive.
    pub bytes_per_s: f64,
    /// It was not the link that limited what was sent: it carries at least so much.
    pub is_bound: bool,
    /// Of a piece while nothing else is on its way.
    pub round_trip: Duration,
}

/// A piece that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) bytes: u64,
    pub(super) trip: Duration,
    /// It was the first of its frame, and the last one.
    pub(super) begins: bool,
    pub(super) ends: bool,
    /// The link had more to carry while it was on its way.
    pub(super) is_full: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    bytes: f64,
    us: f64,
}

impl Sum {
    fn add(&mut self, bytes: f64, us: f64) {
        self.bytes += bytes;
        self.us += us;
    }
}

/// The sample under way.
#[derive(Debug, Default)]
struct Run {
    began: Option<Tick>,
    /// While the link was full, and in all.
    full: Sum,
    all: Sum,
}

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Weighted sums over samples; their quotient is the rate.
    known: Sum,
    last: Option<Tick>,
    /// Bytes per microsecond that the link carries at least.
    bound: f64,
    run: Run,
    /// The frame under way: when its first piece arrived, and the newest.
    first: Tick,
    newest: Option<Tick>,
}

impl Meter {
    /// Bytes per second, and whether that is only a bound; none while nothing was carried.
    pub(super) fn rate(&self) -> Option<(f64, bool)> {
        let per_s = |per_us: f64| per_us.clamp(1e-6, FASTEST) * 1e6;
        if self.known.us > 0.0 {
            Some((per_s(self.known.bytes / self.known.us), false))
        } else {
            (self.bound > 0.0).then(|| (per_s(self.bound), true))
        }
    }

    pub(super) fn arrived(&mut self, arrival: Arrival, now: Tick) {
        let before = self.newest.replace(now).filter(|_| !arrival.begins);
        let Some(before) = before else {
            self.first = now;
            let sum = Sum {
                bytes: arrival.bytes as f64,
                us: arrival.trip.as_micros() as f64,
            };
            return self.at_least(sum, now);
        };
        // What was confirmed in one go with the first piece took no time of its own that is known.
        if now > self.first {
            let (bytes, us) = (arrival.bytes as f64, now.since(before).as_micros() as f64);
            let run = &mut self.run;
            let began = *run.began.get_or_insert(now);
            run.all.add(bytes, us);
            if arrival.is_full {
                run.full.add(bytes, us);
            }
            if run.full.us >= LONG_US || run.all.us >= 4.0 * LONG_US || now.since(began) > STALE {
                self.close(now);
            }
        }
        // Nobody waits for a second frame before there is any estimate.
        if arrival.ends && self.known.us == 0.0 {
            if self.run.full.us >= SHORT_US {
                self.close(now);
            } else {
                self.at_least(self.run.all, now);
            }
        }
    }

    /// What arrives next does not follow what arrived.
    pub(super) fn interrupt(&mut self) {
        self.newest = None;
    }

    fn close(&mut self, now: Tick) {
        let Run { full, all, .. } = std::mem::take(&mut self.run);
        if full.us >= SHORT_US {
            self.sample(full, now);
        } else {
            self.at_least(all, now);
        }
    }

    /// It was carried in that time, though the link may not have been full.
    fn at_least(&mut self, sum: Sum, now: Tick) {
        if sum.bytes <= 0.0 {
            return;
        }
        let us = sum.us.max(SHORT_US);
        let rate = (sum.bytes / us).min(FASTEST);
        self.bound = self.bound.max(rate);
        if self.known.us > 0.0 && rate > self.known.bytes / self.known.us {
            self.sample(Sum { us, ..sum }, now);
        }
    }

    fn sample(&mut self, sum: Sum, now: Tick) {
        let since = self
            .last
            .replace(now)
            .map_or(0.0, |last| now.since(last).as_micros() as f64);
        let idle = (since - sum.us).clamp(0.0, IDLE_US);
        let kept = (-(sum.us + idle) / MEMORY_US).exp();
        self.known.bytes = self.known.bytes * kept + sum.bytes;
        self.known.us = self.known.us * kept + sum.us;
    }
}

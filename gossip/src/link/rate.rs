//! How fast a link carries bytes, from when packets arrived.
//!
//! In: arrivals in order, each with the time in which the link was busy with it. Out: bytes per second. Packets that
//! stood behind one another make one *run*, whose bytes and time are summed until it is long against the noise of the
//! delay: a millisecond of jitter says nothing about a small packet on a fast link. A run that stays shorter counts
//! only where it shows that the link is faster than believed. Samples are weighed by their time and forgotten with a
//! time constant of [`MEMORY_US`] of traffic; idleness forgets next to nothing.

/// Time constant of forgetting. A tenth or the tenfold rate is followed within 3 s.
const MEMORY_US: f64 = 600_000.0;
/// Idle time counts as at most this much traffic.
const IDLE_US: f64 = 500_000.0;
/// A run is closed when it lasted this long; longer samples would only come later.
const RUN_US: f64 = 20_000.0;
/// Shorter runs measure the receiver's scheduling.
const SHORT_US: f64 = 1_000.0;
/// A run must be this many times the noise.
const OVER_NOISE: f64 = 4.0;
/// No link is faster, in bytes per microsecond: keeps what liars claim finite.
const FASTEST: f64 = 1e6;

/// Consecutive packets during which the link was never idle.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    bytes: f64,
    busy_us: f64,
    /// Arrival of its last packet, receiver's clock.
    end_us: f64,
}

/// The rate of one link.
#[derive(Clone, Debug, Default)]
pub(super) struct Rate {
    /// Weighted sums over all samples; their quotient is the rate.
    bytes: f64,
    busy_us: f64,
    /// Arrival of the last sample, receiver's clock.
    last_us: f64,
    /// Mean size of what is left of a delay when least delay and transmission are taken off.
    noise_us: f64,
    run: Run,
}

impl Rate {
    /// Bytes per microsecond, `None` before the first sample.
    pub(super) fn per_us(&self) -> Option<f64> {
        (self.busy_us > 0.0).then(|| (self.bytes / self.busy_us).min(FASTEST))
    }

    /// A packet arrived at `at_us` that stood behind the one before it, for `busy_us`.
    pub(super) fn behind(&mut self, at_us: f64, bytes: f64, busy_us: f64) {
        self.run.bytes += bytes;
        self.run.busy_us += busy_us;
        self.run.end_us = at_us;
        if self.run.busy_us >= RUN_US.max(OVER_NOISE * self.noise_us) {
            self.close();
        }
    }

    /// A packet arrived at `at_us` to which the link was free: `bytes` more than in the packet of the least delay took
    /// it `busy_us` longer.
    pub(super) fn alone(&mut self, at_us: f64, bytes: f64, busy_us: f64) {
        self.close();
        if let Some(rate) = self.per_us() {
            // A packet that is early shows a faster link, not noise; a new rate moves the noise by bounded steps.
            let off = (busy_us - bytes / rate).clamp(0.0, 4.0 * self.noise_us + SHORT_US);
            self.noise_us += (off - self.noise_us) / 16.0;
        }
        if bytes > 0.0 && busy_us >= 0.0 {
            self.behind(at_us, bytes, busy_us);
        }
    }

    /// The link was busy with a packet that arrived at `at_us` for no longer than `most_us`.
    pub(super) fn at_least(&mut self, at_us: f64, bytes: f64, most_us: f64) {
        let most_us = most_us.max(SHORT_US);
        if self.per_us().is_some_and(|rate| bytes / most_us > rate) {
            self.sample(at_us, bytes, most_us);
        }
    }

    /// What came before does not join what comes next.
    pub(super) fn interrupted(&mut self) {
        self.close();
    }

    /// The connection is new: the rate is only a guess that the first samples may overrule.
    pub(super) fn renewed(&self) -> Self {
        let share = (SHORT_US * 10.0 / self.busy_us.max(1.0)).min(1.0);
        Self {
            bytes: self.bytes * share,
            busy_us: self.busy_us * share,
            noise_us: self.noise_us,
            ..Self::default()
        }
    }

    fn close(&mut self) {
        let Run {
            bytes,
            busy_us,
            end_us,
        } = std::mem::take(&mut self.run);
        if bytes <= 0.0 {
            return;
        }
        if busy_us >= SHORT_US.max(OVER_NOISE * self.noise_us) {
            self.sample(end_us, bytes, busy_us);
        } else {
            let at_most_us = busy_us.max(SHORT_US) + 2.0 * self.noise_us;
            if (self.per_us()).is_none_or(|rate| bytes / at_most_us > rate) {
                self.sample(end_us, bytes, at_most_us);
            }
        }
    }

    fn sample(&mut self, at_us: f64, bytes: f64, busy_us: f64) {
        let idle_us = (at_us - self.last_us - busy_us).clamp(0.0, IDLE_US);
        let kept = (-(busy_us + idle_us) / MEMORY_US).exp();
        self.bytes = self.bytes * kept + bytes;
        self.busy_us = self.busy_us * kept + busy_us;
        self.last_us = at_us;
    }
}

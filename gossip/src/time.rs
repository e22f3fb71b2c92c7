//! Time as the state machines see it: a number passed in by whoever drives them.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Microseconds since an arbitrary start that the driver chose; never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

impl Tick {
    /// Later than any other.
    pub const NEVER: Tick = Tick(u64::MAX);

    /// The time from `earlier` to `self`, zero if `earlier` is later.
    pub fn since(self, earlier: Tick) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Tick {
    type Output = Tick;

    fn add(self, duration: Duration) -> Tick {
        Tick(self.0.saturating_add(duration.as_micros() as u64))
    }
}

impl Sub<Duration> for Tick {
    type Output = Tick;

    fn sub(self, duration: Duration) -> Tick {
        Tick(self.0.saturating_sub(duration.as_micros() as u64))
    }
}

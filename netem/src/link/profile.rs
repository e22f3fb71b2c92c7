//! The numbers of one link.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Highest rate, bits per second: one bit per nanosecond is the clock's resolution.
pub(super) const MAX_RATE: u64 = 100_000_000_000;
/// Longest delay or jitter.
pub(super) const MAX_DELAY: Duration = Duration::from_secs(60);
/// A queue that is not set holds what the link carries in this time; at least [`MIN_QUEUE`], unless that were more than a second.
const DEFAULT_QUEUE: Duration = Duration::from_millis(100);
/// Smallest default queue, bytes: some tens of full frames, so that a slow link does not drop a window's first burst.
const MIN_QUEUE: u64 = 64 * 1024;
/// What any queue holds.
const TWO_FRAMES: u64 = 3200;

/// One direction of one link. The default is a wire: no limit, no delay, no loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    /// Bits per second; counts whole Ethernet frames (payload and 14 bytes of header). None: no limit.
    pub rate: Option<u64>,
    /// One-way delay, added after the queue.
    #[serde(with = "seconds")]
    pub delay: Duration,
    /// Standard deviation of the delay; it is cut at three of them and at zero, and never reorders frames.
    #[serde(with = "seconds")]
    pub jitter: Duration,
    /// Share of frames lost, 0 to 1.
    pub loss: f64,
    /// Mean length of a run of lost frames, 1 or more (Gilbert's model with the share above). None: losses are independent.
    pub burst: Option<f64>,
    /// Share of frames that overtake those waiting in the delay: they arrive without it. 0 to 1.
    pub reorder: f64,
    /// Bytes that may wait before frames are dropped. None: 100 ms of the rate, at least 64 KiB or a second of it, at least 3200.
    pub queue: Option<u64>,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            rate: None,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            burst: None,
            reorder: 0.0,
            queue: None,
        }
    }
}

/// A link with impossible numbers.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{key} = {value} is impossible; {fix}")]
pub struct LinkFault {
    /// The number's name in a scenario file.
    pub key: &'static str,
    /// What it is.
    pub value: String,
    /// What it may be.
    pub fix: &'static str,
}

impl Profile {
    /// A link of `rate` bits per second and nothing else.
    pub fn rate(rate: u64) -> Self {
        Self {
            rate: Some(rate),
            ..Self::default()
        }
    }

    /// Bytes that may wait.
    pub fn queue_bytes(&self) -> u64 {
        self.queue.unwrap_or_else(|| {
            let rate = self.rate.unwrap_or(MAX_RATE) as u128;
            let bytes = (rate * DEFAULT_QUEUE.as_millis() / 8000) as u64;
            let second = (rate / 8) as u64;
            bytes.max(MIN_QUEUE.min(second)).max(TWO_FRAMES)
        })
    }

    /// # Errors
    /// The first [`LinkFault`].
    pub fn check(&self) -> Result<(), LinkFault> {
        let fault = |key, value: String, fix| Err(LinkFault { key, value, fix });
        if self
            .rate
            .is_some_and(|rate| !(1..=MAX_RATE).contains(&rate))
        {
            let value = self.rate.unwrap_or(0).to_string();
            return fault("rate", value, "give 1 bit/s to 100 Gbit/s");
        }
        for (key, duration) in [("delay", self.delay), ("jitter", self.jitter)] {
            if duration > MAX_DELAY {
                return fault(key, format!("{duration:?}"), "give at most 60 s");
            }
        }
        for (key, share) in [("loss", self.loss), ("reorder", self.reorder)] {
            if !(0.0..=1.0).contains(&share) {
                return fault(key, share.to_string(), "give a share from 0 to 1");
            }
        }
        if let Some(burst) = self.burst {
            if !(1.0..=10_000.0).contains(&burst) {
                return fault(
                    "burst",
                    burst.to_string(),
                    "give a mean run of 1 to 10000 frames",
                );
            }
            // Where all is lost, runs have no length.
            if self.loss < 1.0 && burst < 1.0 / (1.0 - self.loss) {
                return fault(
                    "burst",
                    burst.to_string(),
                    "a run this short cannot lose so large a share; give a longer one",
                );
            }
        }
        if self.queue.is_some_and(|bytes| bytes < 1600) {
            let value = self.queue.unwrap_or(0).to_string();
            return fault(
                "queue",
                value,
                "give room for one full frame, 1600 bytes or more",
            );
        }
        Ok(())
    }
}

/// Durations as seconds in TOML and JSON.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(value.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_queue_is_a_tenth_of_a_second_and_never_tiny() {
        assert_eq!(Profile::rate(80_000_000).queue_bytes(), 1_000_000);
        assert_eq!(Profile::rate(1_000_000).queue_bytes(), MIN_QUEUE);
        assert_eq!(Profile::rate(100_000).queue_bytes(), 12_500);
        assert_eq!(Profile::rate(1).queue_bytes(), TWO_FRAMES);
    }

    #[test]
    fn impossible_numbers_are_named() {
        let faults = [
            (
                Profile {
                    rate: Some(0),
                    ..Profile::default()
                },
                "rate",
            ),
            (
                Profile {
                    loss: 1.5,
                    ..Profile::default()
                },
                "loss",
            ),
            (
                Profile {
                    loss: f64::NAN,
                    ..Profile::default()
                },
                "loss",
            ),
            (
                Profile {
                    burst: Some(0.5),
                    ..Profile::default()
                },
                "burst",
            ),
            (
                Profile {
                    loss: 0.9,
                    burst: Some(2.0),
                    ..Profile::default()
                },
                "burst",
            ),
            (
                Profile {
                    delay: Duration::from_secs(61),
                    ..Profile::default()
                },
                "delay",
            ),
            (
                Profile {
                    queue: Some(100),
                    ..Profile::default()
                },
                "queue",
            ),
        ];
        for (profile, key) in faults {
            let fault = profile.check().map_err(|fault| fault.key);
            assert_eq!(fault, Err(key), "{profile:?}");
        }
        assert_eq!(Profile::default().check(), Ok(()));
        let cut = Profile {
            loss: 1.0,
            burst: Some(3.0),
            ..Profile::default()
        };
        assert_eq!(cut.check(), Ok(()));
    }
}

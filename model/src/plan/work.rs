//! What is to be planned: the step of a job, the devices and the links between them, and what a plan looks like.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::profile::{BlockTimes, Profile, ProfileError};
use super::tier::Tier;

/// Most devices of a plan.
pub const MAX_DEVICES: usize = 1024;

/// Most micro-batches of a step.
pub const MAX_MICRO_BATCHES: usize = 4096;

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The profile is not believed.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// No devices, too many, or one with a capacity or rate that cannot be.
    #[error("device {device}: {what}")]
    Device {
        /// Number of the device.
        device: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The step has no micro-batches, or too many, or empty ones.
    #[error(
        "a step of {n_micro} micro-batches of {micro_batch} samples: give 1 to {MAX_MICRO_BATCHES} of 1 to 65536"
    )]
    Step {
        /// Micro-batches of a step.
        n_micro: usize,
        /// Samples of each.
        micro_batch: usize,
    },
    /// More devices must have a block than there are blocks.
    #[error("{n_devices} devices in a row, but only {n_blocks} blocks")]
    Blocks {
        /// Devices.
        n_devices: usize,
        /// Blocks.
        n_blocks: usize,
    },
    /// One block alone is too large for every device.
    #[error(
        "block {block} needs {needs} bytes ({state} of them parameters and optimiser state), the largest device has {largest}: use smaller micro-batches, recomputation or an optimiser with less state"
    )]
    BlockTooLarge {
        /// Number of the block.
        block: usize,
        /// Bytes it needs with the fewest micro-batches in flight.
        needs: u64,
        /// Bytes of them that do not depend on the micro-batch.
        state: u64,
        /// Memory of the largest device.
        largest: u64,
    },
    /// Whatever the cut, two devices without a link would have to send to each other.
    #[error(
        "no plan does without the links that are missing: give a rate above 0 between more of the devices"
    )]
    Unlinked,
    /// Groups, tiers and re-planning are for synchronous steps.
    #[error("steps that overlap are planned for one device per stage alone")]
    Overlapping,
    /// A setting of the choice among families that cannot be.
    #[error("{0} is not above 0, or too large")]
    Setting(&'static str),
    /// Every block fits somewhere, but not all of them together.
    #[error(
        "the model needs {needs} bytes with its micro-batches in flight, the devices have {available} together, and no cut fits: block {block} is the first that does not"
    )]
    ModelTooLarge {
        /// Bytes all blocks need with the fewest micro-batches in flight.
        needs: u64,
        /// Memory of all devices.
        available: u64,
        /// First block that does not fit when each device in turn takes all it can.
        block: usize,
    },
}

/// One step of the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// Samples of a micro-batch.
    pub micro_batch: usize,
    /// Micro-batches of a step.
    pub n_micro: usize,
    /// Whether forward passes are made once more instead of kept.
    #[serde(default)]
    pub recompute: bool,
    /// Whether stage i of n has up to 2 (n - i) - 1 micro-batches in flight, which hides the time of transfers, and not just
    /// n - i (i from 0).
    #[serde(default)]
    pub hides_transfers: bool,
    /// Whether steps overlap, and then which versions of the weights stages keep.
    #[serde(default)]
    pub stashing: Stashing,
    /// What the blocks cost, on the device that all capacities are relative to.
    pub profile: Profile,
}

/// Versions of the weights that an asynchronous schedule keeps. A step is then one micro-batch, with an update of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stashing {
    /// The schedule is synchronous: all use the newest.
    #[default]
    None,
    /// As many as the stage has micro-batches in flight.
    Own,
    /// As many as the first stage has.
    VerticalSync,
}

/// What a stage holds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Micro-batches in flight.
    pub(crate) in_flight: usize,
    /// Copies of the weights beside those of the state.
    pub(crate) stashed: usize,
}

impl Held {
    /// The least that any stage holds.
    pub(crate) const LEAST: Self = Self {
        in_flight: 1,
        stashed: 0,
    };
}

/// A device that may get blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Device {
    /// What people call it; nothing is decided by it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Factor on its times: 1 for one that keeps to them, more for a slower one.
    pub capacity: f64,
    /// Memory it has for the job; [`u64::MAX`], or nothing in a file, if that is no matter.
    #[serde(skip_serializing_if = "is_unlimited")]
    pub memory_bytes: u64,
    /// Where it stands, for plans over tiers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// Its own times of every block; those of the work's profile where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<Vec<BlockTimes>>,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            name: String::new(),
            capacity: 1.0,
            memory_bytes: u64::MAX,
            tier: None,
            times: None,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_unlimited(memory_bytes: &u64) -> bool {
    *memory_bytes == u64::MAX
}

/// What the links between devices carry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// Bytes per second from each device (row) to each other; the diagonal is not looked at. 0 where there is no link.
    pub rate: Vec<Vec<f64>>,
    /// Seconds from the end of sending to the end of receiving, from each device to each other; empty if no message takes any.
    #[serde(default)]
    pub latency: Vec<Vec<f64>>,
    /// Whether both directions of a link share its rate, as on a radio channel.
    #[serde(default)]
    pub shared: bool,
}

impl Links {
    /// `n` devices, each pair joined at `rate` bytes per second in both directions at once.
    pub fn uniform(n: usize, rate: f64, latency: f64) -> Self {
        Self {
            rate: vec![vec![rate; n]; n],
            latency: vec![vec![latency; n]; n],
            shared: false,
        }
    }

    /// Seconds from the end of sending to the end of receiving.
    pub(crate) fn delay(&self, from: usize, to: usize) -> f64 {
        self.latency.get(from).map_or(0.0, |row| row[to])
    }

    /// Seconds that a message of `bytes` keeps the link from one device to another busy, and until it is there after that. What stays
    /// on a device takes no time.
    pub(crate) fn message(&self, from: usize, to: usize, bytes: u64) -> [f64; 2] {
        match from == to {
            true => [0.0; 2],
            false => [self.seconds(from, to, bytes), self.delay(from, to)],
        }
    }

    /// Seconds that `bytes` take from one device to another, without latency; without end where there is no link.
    pub(crate) fn seconds(&self, from: usize, to: usize, bytes: u64) -> f64 {
        let rate = self.rate[from][to];
        if rate > 0.0 {
            bytes as f64 / rate
        } else {
            f64::INFINITY
        }
    }
}

/// Where the samples are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Data {
    /// On every device.
    #[default]
    Everywhere,
    /// On this one, which sends them to whoever else begins with them.
    At(usize),
}

/// The blocks of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Number of the device.
    pub device: usize,
    /// Its blocks, at least one.
    pub blocks: Range<usize>,
}

impl Work {
    /// Refuses figures that cannot be, and pairs of devices without a link.
    pub(crate) fn check_linked(&self, devices: &[Device], links: &Links) -> Result<(), PlanError> {
        self.check(devices, links)?;
        for (device, row) in links.rate.iter().enumerate() {
            let mut rates = row.iter().enumerate();
            if rates.any(|(to, rate)| to != device && *rate == 0.0) {
                let what = "one of its links has a rate of 0";
                return Err(PlanError::Device { device, what });
            }
        }
        Ok(())
    }

    /// Refuses figures that cannot be: nothing behind this has to think of NaN or of no devices.
    pub(crate) fn check(&self, devices: &[Device], links: &Links) -> Result<(), PlanError> {
        self.profile.check()?;
        let (n_micro, micro_batch) = (self.n_micro, self.micro_batch);
        if !(1..=MAX_MICRO_BATCHES).contains(&n_micro) || !(1..=65_536).contains(&micro_batch) {
            return Err(PlanError::Step {
                n_micro,
                micro_batch,
            });
        }
        let refuse = |device, what| Err(PlanError::Device { device, what });
        if !(1..=MAX_DEVICES).contains(&devices.len()) {
            return refuse(devices.len(), "there are no devices, or more than 1024");
        }
        // Of rates and of delays.
        let is_figure = |figure: &f64| *figure >= 0.0 && figure.is_finite();
        for (number, device) in devices.iter().enumerate() {
            if !(device.capacity > 0.0 && device.capacity.is_finite()) {
                return refuse(number, "its capacity is not above 0");
            }
            if let Some(times) = &device.times {
                if times.len() != self.profile.blocks.len() {
                    return refuse(number, "it does not have times for every block");
                }
                if !times.iter().all(BlockTimes::is_believed) {
                    return refuse(number, "one of its times cannot be");
                }
            }
            let row = links
                .rate
                .get(number)
                .filter(|row| row.len() == devices.len());
            let Some(row) = row else {
                return refuse(number, "the links do not name a rate to every device");
            };
            let fit = row
                .iter()
                .enumerate()
                .all(|(to, rate)| to == number || is_figure(rate));
            if !fit {
                return refuse(
                    number,
                    "the rate of one of its links is below 0 or no number",
                );
            }
        }
        if !links.latency.is_empty() {
            for number in 0..devices.len() {
                let delays = links.latency.get(number);
                let delays = delays.filter(|row| row.len() == devices.len());
                if delays.is_none_or(|row| !row.iter().all(is_figure)) {
                    return refuse(number, "the latency of one of its links is below 0 or none");
                }
            }
        }
        Ok(())
    }

    /// Whether a step begins before the one before it is over.
    pub(crate) fn overlaps(&self) -> bool {
        self.stashing != Stashing::None
    }

    /// Micro-batches that stage `position` of `n_stages` has in flight at most.
    pub(crate) fn in_flight(&self, position: usize, n_stages: usize) -> usize {
        let behind = n_stages.saturating_sub(position).max(1);
        let depth = if self.hides_transfers {
            2 * behind - 1
        } else {
            behind
        };
        if self.overlaps() {
            depth
        } else {
            depth.clamp(1, self.n_micro)
        }
    }

    /// Versions of the weights that a stage holds beside those of its state, by the micro-batches that it has in flight, and the
    /// first stage. The memory of the version that was dropped last is kept for the next.
    pub(crate) fn stashed(&self, in_flight: usize, of_first: usize) -> usize {
        match self.stashing {
            Stashing::None => 0,
            Stashing::Own => in_flight,
            Stashing::VerticalSync => of_first,
        }
    }

    /// What stage `position` of `n_stages` holds at most.
    pub(crate) fn held(&self, position: usize, n_stages: usize) -> Held {
        let in_flight = self.in_flight(position, n_stages);
        let of_first = self.in_flight(0, n_stages);
        Held {
            in_flight,
            stashed: self.stashed(in_flight, of_first),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::{BlockProfile, Time};

    /// Blocks of the given forward seconds per micro-batch of one sample, twice as long backward, 8 bytes across each border.
    pub(crate) fn work(seconds: &[f64], n_micro: usize) -> Work {
        let time = |per_sample: f64| Time::measured([(1, per_sample)]);
        let block = |seconds: &f64| BlockProfile {
            forward: time(*seconds),
            backward: time(2.0 * seconds),
            update: 0.0,
            output_bytes: 8,
            parameter_bytes: 10,
            state_bytes: 30,
            copies_bytes: 0,
            kept_bytes: 20,
        };
        Work {
            profile: Profile {
                input_bytes: 8,
                blocks: seconds.iter().map(block).collect(),
            },
            micro_batch: 1,
            n_micro,
            recompute: false,
            hides_transfers: false,
            stashing: Stashing::None,
        }
    }

    /// `n` equal devices with fast links and much memory.
    pub(crate) fn even(n: usize) -> (Vec<Device>, Links) {
        let device = Device {
            memory_bytes: 1 << 40,
            ..Device::default()
        };
        (vec![device; n], Links::uniform(n, 1e12, 0.0))
    }

    #[test]
    fn figures_that_cannot_be_name_the_device() {
        let work = work(&[1.0; 2], 1);
        let (devices, links) = even(2);
        assert_eq!(work.check(&devices, &links), Ok(()));
        let message =
            |devices: &[Device], links: &Links| work.check(devices, links).unwrap_err().to_string();
        let mut slow = devices.clone();
        slow[1].capacity = f64::NAN;
        assert!(message(&slow, &links).contains("device 1: its capacity"));
        let mut dead = links.clone();
        dead.rate[1][0] = 0.0;
        assert_eq!(work.check(&devices, &dead), Ok(()));
        let unlinked = work.check_linked(&devices, &dead).unwrap_err().to_string();
        assert!(
            unlinked.contains("device 1: one of its links"),
            "{unlinked}"
        );
        dead.rate[1][0] = -1.0;
        assert!(message(&devices, &dead).contains("device 1: the rate"));
        dead.rate[1][0] = f64::NAN;
        assert!(message(&devices, &dead).contains("device 1: the rate"));
        dead.rate.pop();
        assert!(message(&devices, &dead).contains("device 1: the links"));
        let mut late = links.clone();
        late.latency[1][0] = -1.0;
        assert!(message(&devices, &late).contains("device 1: the latency"));
        late.latency.pop();
        assert!(message(&devices, &late).contains("device 1: the latency"));
        late.latency.clear();
        assert_eq!(work.check(&devices, &late), Ok(()));
        assert_eq!(late.message(0, 1, 0), [0.0; 2]);
        assert!(message(&[], &links).contains("no devices"));
        let mut own = devices.clone();
        own[0].times = Some(vec![BlockTimes::default()]);
        assert!(message(&own, &links).contains("device 0: it does not have times"));
        let falling = BlockTimes {
            update: f64::NAN,
            ..BlockTimes::default()
        };
        own[0].times = Some(vec![BlockTimes::default(), falling]);
        assert!(message(&own, &links).contains("device 0: one of its times"));
        let empty = Work {
            n_micro: 0,
            ..work.clone()
        };
        assert!(matches!(
            empty.check(&devices, &links),
            Err(PlanError::Step { n_micro: 0, .. })
        ));
    }
}

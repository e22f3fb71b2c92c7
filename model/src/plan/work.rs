//! What is to be planned: the step of a job, the devices and the links between them, and what a plan looks like.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::profile::{Profile, ProfileError};

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
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// What the blocks cost on the device that all capacities are relative to.
    pub profile: Profile,
    /// Samples of a micro-batch.
    pub micro_batch: usize,
    /// Micro-batches of a step.
    pub n_micro: usize,
    /// Whether forward passes are made once more instead of kept.
    pub recompute: bool,
    /// Whether stage i of n has up to 2 (n - i) - 1 micro-batches in flight, which hides the time of transfers, and not just
    /// n - i.
    pub hides_transfers: bool,
    /// Whether steps overlap, and then which versions of the weights stages keep.
    pub stashing: Stashing,
}

/// Versions of the weights that an asynchronous schedule keeps. A step is then one micro-batch, with an update of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Factor on the profile's times: 1 for the device it is of, more for a slower one.
    pub capacity: f64,
    /// Memory it has for the job.
    pub memory_bytes: u64,
}

/// What the links between devices carry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Links {
    /// Bytes per second from each device (row) to each other; the diagonal is not looked at.
    pub rate: Vec<Vec<f64>>,
    /// Seconds from the end of sending to the end of receiving, from each device to each other.
    pub latency: Vec<Vec<f64>>,
    /// Whether both directions of a link share its rate, as on a radio channel.
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

    /// Seconds that a message of `bytes` keeps the link from one device to another busy, and until it is there after that.
    pub(crate) fn message(&self, from: usize, to: usize, bytes: u64) -> [f64; 2] {
        [self.seconds(from, to, bytes), self.latency[from][to]]
    }

    /// Seconds that `bytes` take from one device to another, without latency.
    pub(crate) fn seconds(&self, from: usize, to: usize, bytes: u64) -> f64 {
        bytes as f64 / self.rate[from][to]
    }
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
        let is_rate = |rate: &f64| *rate > 0.0 && rate.is_finite();
        let is_delay = |delay: &f64| *delay >= 0.0 && delay.is_finite();
        for (number, device) in devices.iter().enumerate() {
            if !is_rate(&device.capacity) {
                return refuse(number, "its capacity is not above 0");
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
                .all(|(to, rate)| to == number || is_rate(rate));
            if !fit {
                return refuse(number, "the rate of one of its links is not above 0");
            }
            let delays = links.latency.get(number);
            let delays = delays.filter(|row| row.len() == devices.len());
            if delays.is_none_or(|row| !row.iter().all(is_delay)) {
                return refuse(number, "the latency of one of its links is below 0");
            }
        }
        Ok(())
    }

    /// Micro-batches that stage `position` of `n_stages` has in flight at most.
    pub(crate) fn in_flight(&self, position: usize, n_stages: usize) -> usize {
        let behind = n_stages.saturating_sub(position).max(1);
        let depth = if self.hides_transfers {
            2 * behind - 1
        } else {
            behind
        };
        match self.stashing {
            Stashing::None => depth.clamp(1, self.n_micro),
            _ => depth,
        }
    }

    /// What stage `position` of `n_stages` holds at most. The memory of the version that was dropped last is kept for the next.
    pub(crate) fn held(&self, position: usize, n_stages: usize) -> Held {
        let in_flight = self.in_flight(position, n_stages);
        Held {
            in_flight,
            stashed: match self.stashing {
                Stashing::None => 0,
                Stashing::Own => in_flight,
                Stashing::VerticalSync => self.in_flight(0, n_stages),
            },
        }
    }

    /// Sums over the first blocks, from none to all.
    pub(crate) fn sums(&self) -> Sums {
        let mut sums = Sums {
            seconds: vec![[0.0; 3]],
            bytes: vec![[0; 3]],
        };
        let mut seconds = [0.0; 3];
        let mut bytes = [0u64; 3];
        for block in &self.profile.blocks {
            let times = [block.forward, block.backward].map(|time| time.of(self.micro_batch));
            seconds[0] += times[0];
            seconds[1] += times[1];
            seconds[2] += block.update;
            bytes[0] += block.state_bytes;
            bytes[1] += block.kept_bytes;
            bytes[2] += block.parameter_bytes;
            sums.seconds.push(seconds);
            sums.bytes.push(bytes);
        }
        sums
    }

    /// Seconds of forward, backward and update of `blocks` on a device of capacity 1. The last stage has nothing to make
    /// again: its backward pass comes at once.
    pub(crate) fn seconds(&self, sums: &Sums, blocks: &Range<usize>) -> [f64; 3] {
        let (start, end) = (sums.seconds[blocks.start], sums.seconds[blocks.end]);
        let [forward, mut backward, update] = std::array::from_fn(|part| end[part] - start[part]);
        if self.recompute && blocks.end < self.profile.blocks.len() {
            backward += forward;
        }
        [forward, backward, update]
    }

    /// Bytes of a micro-batch that go into block `block`.
    pub(crate) fn micro_bytes_into(&self, block: usize) -> u64 {
        self.profile
            .bytes_into(block)
            .saturating_mul(self.micro_batch as u64)
    }

    /// Bytes that `blocks` take where the stage holds so much: the state, versions of the weights, what micro-batches in
    /// flight keep, and the frames in and out with their gradients.
    pub(crate) fn memory(&self, sums: &Sums, blocks: &Range<usize>, held: Held) -> u64 {
        let Held { in_flight, stashed } = held;
        let (start, end) = (sums.bytes[blocks.start], sums.bytes[blocks.end]);
        let [state, kept, weights]: [u64; 3] = std::array::from_fn(|part| end[part] - start[part]);
        let stashed = weights.saturating_mul(stashed as u64);
        let graph = kept.saturating_mul(self.micro_batch as u64);
        let (first, behind) = (
            self.micro_bytes_into(blocks.start),
            self.micro_bytes_into(blocks.end),
        );
        let kept = if self.recompute {
            first.saturating_mul(in_flight as u64).saturating_add(graph)
        } else {
            graph.saturating_mul(in_flight as u64)
        };
        let frames = first.saturating_add(behind).saturating_mul(2);
        let parts = [kept, frames, stashed];
        parts.into_iter().fold(state, u64::saturating_add)
    }
}

/// Sums over a profile's first blocks: what a run of blocks costs is the difference of two.
#[derive(Clone, Debug)]
pub(crate) struct Sums {
    /// Seconds forward, backward and of the update.
    seconds: Vec<[f64; 3]>,
    /// Bytes of the state, kept per sample, and of the parameters.
    bytes: Vec<[u64; 3]>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::{BlockProfile, Time};

    /// Blocks of the given forward seconds per micro-batch of one sample, twice as long backward, 8 bytes across each border.
    pub(crate) fn work(seconds: &[f64], n_micro: usize) -> Work {
        let time = |per_sample: f64| Time {
            fixed: 0.0,
            per_sample,
        };
        let block = |seconds: &f64| BlockProfile {
            forward: time(*seconds),
            backward: time(2.0 * seconds),
            update: 0.0,
            output_bytes: 8,
            parameter_bytes: 10,
            state_bytes: 30,
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
            capacity: 1.0,
            memory_bytes: 1 << 40,
        };
        (vec![device; n], Links::uniform(n, 1e12, 0.0))
    }

    #[test]
    fn memory_grows_with_what_is_in_flight_and_less_with_recomputation() {
        let mut work = work(&[1.0; 4], 8);
        // Two blocks: 60 of state, 40 per micro-batch, two frames in, two out.
        let memory = |work: &Work, in_flight| {
            let held = Held {
                in_flight,
                ..Held::LEAST
            };
            work.memory(&work.sums(), &(1..3), held)
        };
        assert_eq!(memory(&work, 1), 60 + 40 + 32);
        assert_eq!(memory(&work, 3), 60 + 120 + 32);
        work.recompute = true;
        assert_eq!(memory(&work, 3), 60 + 3 * 8 + 40 + 32);
        let in_flight = |work: &Work| [0, 1, 2].map(|position| work.in_flight(position, 3));
        assert_eq!((in_flight(&work), work.in_flight(0, 20)), ([3, 2, 1], 8));
        work.hides_transfers = true;
        assert_eq!(in_flight(&work), [5, 3, 1]);
    }

    #[test]
    fn versions_of_the_weights_take_memory_where_steps_overlap() {
        let asynchronous = |stashing| Work {
            stashing,
            ..work(&[1.0; 4], 1)
        };
        let held = |work: &Work| [0, 1, 2].map(|position| work.held(position, 3));
        let own = asynchronous(Stashing::Own);
        let stage = |in_flight, stashed| Held { in_flight, stashed };
        assert_eq!(held(&own), [stage(3, 3), stage(2, 2), stage(1, 1)]);
        let synced = asynchronous(Stashing::VerticalSync);
        assert_eq!(held(&synced), [stage(3, 3), stage(2, 3), stage(1, 3)]);
        // Two blocks: 20 of weights beside what one version takes.
        let memory = |work: &Work| work.memory(&work.sums(), &(1..3), work.held(1, 3));
        assert_eq!(memory(&own), 60 + 80 + 32 + 2 * 20);
        assert_eq!(memory(&synced), 60 + 80 + 32 + 3 * 20);
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
        assert!(message(&devices, &dead).contains("device 1: the rate"));
        dead.rate.pop();
        assert!(message(&devices, &dead).contains("device 1: the links"));
        let mut late = links.clone();
        late.latency[1][0] = -1.0;
        assert!(message(&devices, &late).contains("device 1: the latency"));
        assert!(message(&[], &links).contains("no devices"));
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

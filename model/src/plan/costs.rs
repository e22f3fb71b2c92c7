//! What runs of blocks cost on each device, as the difference of two sums: planners ask that millions of times.

use std::ops::Range;

use super::profile::BlockTimes;
use super::time::Time;
use super::work::{Data, Device, Held, Links, Work};

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Costs<'a> {
    pub(crate) work: &'a Work,
    pub(crate) devices: &'a [Device],
    pub(crate) links: &'a Links,
    pub(crate) data: Data,
    /// Fewest samples that a device can train with at once.
    pub(crate) least_samples: usize,
    /// Bytes of the state, kept per sample and of the parameters, of the first blocks.
    bytes: Vec<[u64; 3]>,
    tables: Vec<Table>,
    table_of: Vec<usize>,
}

/// Times of one kind of device: at each size at which a curve bends, sums over the first blocks. Between two sizes every
/// sum is a line, as all its parts are.
#[derive(Debug)]
struct Table {
    sizes: Vec<usize>,
    /// Per size, from none of the blocks to all: forward and backward.
    sums: Vec<Vec<[f64; 2]>>,
    updates: Vec<f64>,
}

impl Table {
    fn new<'t>(blocks: impl Iterator<Item = [&'t Time; 2]>, updates: Vec<f64>) -> Self {
        let blocks: Vec<[&Time; 2]> = blocks.collect();
        let mut sizes: Vec<usize> = blocks
            .iter()
            .flatten()
            .flat_map(|time| time.sizes())
            .collect();
        sizes.push(1);
        sizes.sort_unstable();
        sizes.dedup();
        // Behind the last bend all goes on straight, before the first one all comes straight from the least.
        let beyond = 2 * sizes.last().copied().unwrap_or(1);
        sizes.push(beyond);
        sizes.insert(0, 0);
        let sum = |of: &dyn Fn(&Time) -> f64| {
            let mut sums = vec![[0.0; 2]];
            let mut sum = [0.0; 2];
            for times in &blocks {
                sum[0] += of(times[0]);
                sum[1] += of(times[1]);
                sums.push(sum);
            }
            sums
        };
        let sums = sizes.iter().map(|size| match size {
            0 => sum(&Time::least),
            size => sum(&|time: &Time| time.of(*size)),
        });
        let mut sum_of_updates = vec![0.0];
        let mut so_far = 0.0;
        for update in updates {
            so_far += update;
            sum_of_updates.push(so_far);
        }
        Self {
            sums: sums.collect(),
            sizes,
            updates: sum_of_updates,
        }
    }

    fn seconds(&self, blocks: &Range<usize>, samples: usize) -> [f64; 2] {
        if samples == 0 {
            return [0.0; 2];
        }
        let at = |size: usize| {
            let (start, end) = (self.sums[size][blocks.start], self.sums[size][blocks.end]);
            [end[0] - start[0], end[1] - start[1]]
        };
        let after = self.sizes.iter().position(|size| *size >= samples);
        let after = after.unwrap_or(self.sizes.len() - 1);
        if self.sizes[after] == samples {
            return at(after);
        }
        let before = after - 1;
        let (from, to) = (self.sizes[before], self.sizes[after]);
        let share = (samples - from) as f64 / (to - from) as f64;
        let (low, high) = (at(before), at(after));
        [0, 1].map(|part| low[part] + share * (high[part] - low[part]))
    }
}

impl<'a> Costs<'a> {
    pub(crate) fn new(work: &'a Work, devices: &'a [Device], links: &'a Links) -> Self {
        let blocks = &work.profile.blocks;
        let base = Table::new(
            blocks.iter().map(|block| [&block.forward, &block.backward]),
            blocks.iter().map(|block| block.update).collect(),
        );
        let mut tables = vec![base];
        let mut table_of: Vec<usize> = Vec::with_capacity(devices.len());
        for (number, device) in devices.iter().enumerate() {
            let Some(times) = &device.times else {
                table_of.push(0);
                continue;
            };
            let alike = devices[..number]
                .iter()
                .position(|other| other.times == device.times);
            table_of.push(alike.map_or(tables.len(), |other| table_of[other]));
            if alike.is_none() {
                let curves = times
                    .iter()
                    .map(|times: &BlockTimes| [&times.forward, &times.backward]);
                let updates = times.iter().map(|times| times.update).collect();
                tables.push(Table::new(curves, updates));
            }
        }
        let mut bytes = vec![[0; 3]];
        let mut sum = [0u64; 3];
        for block in blocks {
            let state = block.state_bytes.saturating_add(block.copies_bytes);
            let own = [state, block.kept_bytes, block.parameter_bytes];
            sum = std::array::from_fn(|part| sum[part].saturating_add(own[part]));
            bytes.push(sum);
        }
        Self {
            work,
            devices,
            links,
            data: Data::Everywhere,
            least_samples: 1,
            bytes,
            tables,
            table_of,
        }
    }

    pub(crate) fn n_blocks(&self) -> usize {
        self.bytes.len() - 1
    }

    fn bytes_of(&self, blocks: &Range<usize>) -> [u64; 3] {
        let (start, end) = (self.bytes[blocks.start], self.bytes[blocks.end]);
        std::array::from_fn(|part| end[part] - start[part])
    }

    /// Bytes of the parameters of `blocks`, which is what their gradients have.
    pub(crate) fn parameter_bytes(&self, blocks: &Range<usize>) -> u64 {
        self.bytes_of(blocks)[2]
    }

    /// Bytes of the state of `blocks`: what a device that takes them over has to fetch.
    pub(crate) fn state_bytes(&self, blocks: &Range<usize>) -> u64 {
        self.bytes_of(blocks)[0]
    }

    /// Seconds forward, backward and of the update of `blocks` on a device. The last stage has nothing to make again: its
    /// backward pass comes at once.
    pub(crate) fn seconds(&self, device: usize, blocks: &Range<usize>, samples: usize) -> [f64; 3] {
        let table = &self.tables[self.table_of[device]];
        let [forward, mut backward] = table.seconds(blocks, samples);
        if self.work.recompute && blocks.end < self.n_blocks() {
            backward += forward;
        }
        let update = table.updates[blocks.end] - table.updates[blocks.start];
        let factor = self.devices[device].capacity;
        [factor * forward, factor * backward, factor * update]
    }

    /// Bytes of `samples` samples that go into block `block`.
    pub(crate) fn bytes_into(&self, block: usize, samples: usize) -> u64 {
        let per_sample = self.work.profile.bytes_into(block);
        per_sample.saturating_mul(samples as u64)
    }

    /// Bytes of `blocks` whatever the samples, per sample and micro-batch in flight, and per sample once. In a group, one
    /// more gradient: that which another member has sent.
    fn memory_parts(&self, blocks: &Range<usize>, in_group: bool) -> [u64; 3] {
        let [state, kept, parameters] = self.bytes_of(blocks);
        let (first, behind) = (
            self.bytes_into(blocks.start, 1),
            self.bytes_into(blocks.end, 1),
        );
        let frames = first.saturating_add(behind).saturating_mul(2);
        let fixed = state.saturating_add(if in_group { parameters } else { 0 });
        if self.work.recompute {
            [fixed, first, frames.saturating_add(kept)]
        } else {
            [fixed, kept, frames]
        }
    }

    /// Bytes that `blocks` take where the stage holds so much, in micro-batches of `samples` (Asteroid, equation 3): the state,
    /// versions of the weights, what micro-batches in flight keep, and the frames in and out with their gradients.
    pub(crate) fn memory(
        &self,
        blocks: &Range<usize>,
        samples: usize,
        held: Held,
        in_group: bool,
    ) -> u64 {
        let Held { in_flight, stashed } = held;
        let [fixed, each, once] = self.memory_parts(blocks, in_group);
        let weights = self.parameter_bytes(blocks);
        let fixed = fixed.saturating_add(weights.saturating_mul(stashed as u64));
        let per_sample = each.saturating_mul(in_flight as u64).saturating_add(once);
        fixed.saturating_add(per_sample.saturating_mul(samples as u64))
    }

    /// Most samples for which a device has room.
    pub(crate) fn most_samples(
        &self,
        device: usize,
        blocks: &Range<usize>,
        in_flight: usize,
        in_group: bool,
    ) -> usize {
        let [fixed, each, once] = self.memory_parts(blocks, in_group);
        let Some(room) = self.devices[device].memory_bytes.checked_sub(fixed) else {
            return 0;
        };
        let per_sample = each.saturating_mul(in_flight as u64).saturating_add(once);
        let most = room.checked_div(per_sample).unwrap_or(u64::MAX);
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Most micro-batches of `samples` in flight, up to `most`, for which a device has room; 0 if for none.
    pub(crate) fn most_in_flight(
        &self,
        device: usize,
        (blocks, samples): (&Range<usize>, usize),
        in_group: bool,
        most: usize,
    ) -> usize {
        let [fixed, each, once] = self.memory_parts(blocks, in_group);
        let samples = samples as u64;
        let taken = fixed.saturating_add(once.saturating_mul(samples));
        let Some(room) = self.devices[device].memory_bytes.checked_sub(taken) else {
            return 0;
        };
        let deepest = room.checked_div(each.saturating_mul(samples));
        usize::try_from(deepest.unwrap_or(u64::MAX)).map_or(most, |deepest| deepest.min(most))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::work::Stashing;
    use crate::plan::work::tests::{even, work};

    #[test]
    fn memory_grows_with_what_is_in_flight_and_less_with_recomputation() {
        let mut work = work(&[1.0; 4], 8);
        let (devices, links) = even(1);
        // Two blocks: 60 of state, 40 per micro-batch, two frames in, two out; in a group 20 of another's gradient.
        let memory = |work: &Work, in_flight, in_group| {
            let held = Held {
                in_flight,
                ..Held::LEAST
            };
            Costs::new(work, &devices, &links).memory(&(1..3), 1, held, in_group)
        };
        assert_eq!(memory(&work, 1, false), 60 + 40 + 32);
        assert_eq!(memory(&work, 3, false), 60 + 120 + 32);
        assert_eq!(memory(&work, 3, true), 60 + 20 + 120 + 32);
        work.recompute = true;
        assert_eq!(memory(&work, 3, false), 60 + 3 * 8 + 40 + 32);
        let in_flight = |work: &Work| [0, 1, 2].map(|position| work.in_flight(position, 3));
        assert_eq!((in_flight(&work), work.in_flight(0, 20)), ([3, 2, 1], 8));
        work.hides_transfers = true;
        assert_eq!(in_flight(&work), [5, 3, 1]);
    }

    #[test]
    fn versions_of_the_weights_take_memory_where_steps_overlap() {
        let (devices, links) = even(1);
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
        let memory = |work: &Work| {
            Costs::new(work, &devices, &links).memory(&(1..3), 1, work.held(1, 3), false)
        };
        assert_eq!(memory(&own), 60 + 80 + 32 + 2 * 20);
        assert_eq!(memory(&synced), 60 + 80 + 32 + 3 * 20);
    }

    proptest! {
        #[test]
        fn sums_are_those_of_the_curves(
            points in proptest::collection::vec(proptest::collection::vec((1usize..20, 0.0f64..3.0), 0..5), 4),
            samples in 0usize..40,
            start in 0usize..4,
            capacity in 0.5f64..2.0,
        ) {
            let mut work = work(&[1.0; 4], 2);
            for (block, points) in work.profile.blocks.iter_mut().zip(&points) {
                block.forward = Time::measured(points.iter().copied());
            }
            let (mut devices, links) = even(2);
            devices[1].capacity = capacity;
            devices[0].times = Some(vec![BlockTimes::default(); 4]);
            let costs = Costs::new(&work, &devices, &links);
            let expected: f64 = work.profile.blocks[start..].iter().map(|block| block.forward.of(samples)).sum();
            let [forward, ..] = costs.seconds(1, &(start..4), samples);
            prop_assert!((forward - capacity * expected).abs() < 1e-9, "{} {}", forward, expected);
            prop_assert_eq!(costs.seconds(0, &(start..4), samples), [0.0; 3]);
        }

        #[test]
        fn what_is_said_to_fit_fits_and_no_more(memory in 0u64..600, in_flight in 1usize..5, samples in 1usize..9, recompute: bool, in_group: bool) {
            let work = Work { recompute, ..work(&[1.0; 4], 8) };
            let (mut devices, links) = even(1);
            devices[0].memory_bytes = memory;
            let costs = Costs::new(&work, &devices, &links);
            let needs = |samples, in_flight| costs.memory(&(1..3), samples, Held { in_flight, stashed: 0 }, in_group);
            let most = costs.most_samples(0, &(1..3), in_flight, in_group);
            prop_assert!(needs(most + 1, in_flight) > memory && (most == 0 || needs(most, in_flight) <= memory));
            let deepest = costs.most_in_flight(0, (&(1..3), samples), in_group, 99);
            prop_assert!(needs(samples, deepest + 1) > memory && (deepest == 0 || needs(samples, deepest) <= memory));
        }
    }
}

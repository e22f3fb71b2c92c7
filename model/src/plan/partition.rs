//! The cut for devices in a given order: FTPipeHD's dynamic programming, and the cuts it is compared with.
//!
//! `A(j, k) = min over i < j of max(A(i, k - 1), transfer of block i's output, C_k * time of blocks i..j)`, where stage k's
//! blocks must fit into its memory with the micro-batches it has in flight. Deviation from the paper: activations and
//! gradients go in opposite directions at once, so a border costs one transfer and not two, unless a link's directions share
//! its rate.

use std::ops::Range;

use super::costs::Costs;
use super::work::{Device, Held, Links, Placement, PlanError, Work};

/// A cut and what it was made small for.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) placements: Vec<Placement>,
    pub(crate) cost: f64,
}

/// What a cut is made small for, per micro-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Aim {
    /// The time of the slowest stage or link: what counts for many micro-batches.
    Slowest,
    /// The time of all stages and links together, none of which is slower than this: what counts more the fewer
    /// micro-batches there are, as each step fills and empties the pipeline once.
    Sum { none_above: f64 },
}

impl Aim {
    fn add(self, so_far: f64, transfer: f64, compute: f64) -> f64 {
        match self {
            Self::Slowest => so_far.max(transfer).max(compute),
            Self::Sum { none_above } if transfer.max(compute) > none_above => f64::INFINITY,
            Self::Sum { .. } => so_far + transfer + compute,
        }
    }
}

/// Cuts the blocks for the devices `order`, each of which gets at least one, such that the slowest stage or link is as fast
/// as can be.
///
/// # Errors
/// Figures that cannot be, more devices than blocks, no cut that fits into the devices' memory.
pub fn partition(
    work: &Work,
    devices: &[Device],
    links: &Links,
    order: &[usize],
) -> Result<Vec<Placement>, PlanError> {
    check(work, devices, links, order)?;
    let costs = Costs::new(work, devices, links);
    match best_cut(&costs, order, Aim::Slowest) {
        Some(cut) => Ok(cut.placements),
        None => Err(too_large(&costs, order)),
    }
}

/// PipeDream's cut: as [`partition`], but taking all devices for equally fast.
///
/// # Errors
/// As [`partition`].
pub fn pipedream(
    work: &Work,
    devices: &[Device],
    links: &Links,
    order: &[usize],
) -> Result<Vec<Placement>, PlanError> {
    let alike = |device: &Device| Device {
        memory_bytes: device.memory_bytes,
        ..Device::default()
    };
    let alike: Vec<Device> = devices.iter().map(alike).collect();
    partition(work, &alike, links, order)
}

/// As many blocks for each device in `order` as for the others, whatever they cost and whether they fit.
///
/// # Errors
/// Figures that cannot be, more devices than blocks.
pub fn equal(
    work: &Work,
    devices: &[Device],
    links: &Links,
    order: &[usize],
) -> Result<Vec<Placement>, PlanError> {
    check(work, devices, links, order)?;
    let n = work.profile.blocks.len();
    let point = |position: usize| position * n / order.len();
    let placement = |(position, device): (usize, &usize)| Placement {
        device: *device,
        blocks: point(position)..point(position + 1),
    };
    Ok(order.iter().enumerate().map(placement).collect())
}

/// Refuses figures that cannot be, and orders that name no devices, or one twice or one that is not there.
pub(crate) fn check(
    work: &Work,
    devices: &[Device],
    links: &Links,
    order: &[usize],
) -> Result<(), PlanError> {
    work.check_linked(devices, links)?;
    for (position, device) in order.iter().enumerate() {
        if *device >= devices.len() || order[..position].contains(device) {
            return Err(PlanError::Device {
                device: *device,
                what: "it is none of the devices, or named twice in the order",
            });
        }
    }
    let (n_devices, n_blocks) = (order.len(), work.profile.blocks.len());
    if order.is_empty() || n_devices > n_blocks {
        return Err(PlanError::Blocks {
            n_devices,
            n_blocks,
        });
    }
    Ok(())
}

/// The dynamic programming; none if nothing fits.
pub(crate) fn best_cut(costs: &Costs<'_>, order: &[usize], aim: Aim) -> Option<Cut> {
    let (n_blocks, n_stages) = (costs.n_blocks(), order.len());
    let (samples, links) = (costs.work.micro_batch, costs.links);
    // best[j]: cost of blocks 0..j on the stages so far; from[k][j]: where stage k begins then.
    let mut best = vec![f64::INFINITY; n_blocks + 1];
    best[0] = 0.0;
    let mut from = vec![vec![0; n_blocks + 1]; n_stages];
    for (position, device) in order.iter().enumerate() {
        let held = costs.work.held(position, n_stages);
        let before = position.checked_sub(1).map(|before| order[before]);
        let mut next = vec![f64::INFINITY; n_blocks + 1];
        let last = n_blocks + position + 1 - n_stages;
        let reached = best.iter().copied().enumerate().take(last).skip(position);
        for (start, so_far) in reached {
            if so_far.is_infinite() {
                continue;
            }
            let transfer = before.map_or(0.0, |before| {
                let bytes = costs.bytes_into(start, samples);
                let there = links.seconds(before, *device, bytes);
                let back = links.seconds(*device, before, bytes);
                if links.shared {
                    there + back
                } else {
                    there.max(back)
                }
            });
            for end in start + 1..=last {
                let blocks = start..end;
                let memory = costs.memory(&blocks, samples, held, false);
                if memory > costs.devices[*device].memory_bytes {
                    // More blocks take more, but for the frames at their end.
                    continue;
                }
                let [forward, backward, _] = costs.seconds(*device, &blocks, samples);
                let compute = forward + backward;
                let cost = aim.add(so_far, transfer, compute);
                if cost < next[end] {
                    next[end] = cost;
                    from[position][end] = start;
                }
            }
        }
        best = next;
    }
    let cost = best[n_blocks];
    if cost.is_infinite() {
        return None;
    }
    let mut placements = Vec::with_capacity(n_stages);
    let mut end = n_blocks;
    for (position, device) in order.iter().enumerate().rev() {
        let start = from[position][end];
        placements.push(Placement {
            device: *device,
            blocks: start..end,
        });
        end = start;
    }
    placements.reverse();
    Some(Cut { placements, cost })
}

/// Says what does not fit.
pub(crate) fn too_large(costs: &Costs<'_>, order: &[usize]) -> PlanError {
    let (work, n_blocks) = (costs.work, costs.n_blocks());
    let memory = |device: &usize| costs.devices[*device].memory_bytes;
    let largest = order.iter().map(memory).max().unwrap_or(0);
    let whole =
        |blocks: Range<usize>, held: Held| costs.memory(&blocks, work.micro_batch, held, false);
    let alone = |block: usize| whole(block..block + 1, Held::LEAST);
    if let Some(block) = (0..n_blocks).find(|block| alone(*block) > largest) {
        return PlanError::BlockTooLarge {
            block,
            needs: alone(block),
            state: work.profile.blocks[block]
                .state_bytes
                .saturating_add(work.profile.blocks[block].copies_bytes),
            largest,
        };
    }
    let mut block = 0;
    for (position, device) in order.iter().enumerate() {
        let held = work.held(position, order.len());
        let fits = |end: &usize| whole(block..*end, held) <= memory(device);
        block = (block + 1..=n_blocks).rev().find(fits).unwrap_or(block);
    }
    PlanError::ModelTooLarge {
        needs: whole(0..n_blocks, Held::LEAST),
        available: order.iter().map(memory).fold(0, u64::saturating_add),
        block: block.min(n_blocks.saturating_sub(1)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::work::Stashing;
    use crate::plan::work::tests::{even, work};

    /// All cuts of `n_blocks` blocks for the devices `order`.
    pub(crate) fn every_cut(n_blocks: usize, order: &[usize]) -> Vec<Vec<Placement>> {
        let Some((device, rest)) = order.split_first() else {
            return if n_blocks == 0 {
                vec![Vec::new()]
            } else {
                Vec::new()
            };
        };
        let mut cuts = Vec::new();
        for first in 1..=n_blocks {
            for mut cut in every_cut(n_blocks - first, rest) {
                for placement in &mut cut {
                    placement.blocks = placement.blocks.start + first..placement.blocks.end + first;
                }
                let own = Placement {
                    device: *device,
                    blocks: 0..first,
                };
                cut.insert(0, own);
                cuts.push(cut);
            }
        }
        cuts
    }

    pub(crate) fn fits(work: &Work, devices: &[Device], cut: &[Placement]) -> bool {
        cut.iter().enumerate().all(|(position, placement)| {
            let held = work.held(position, cut.len());
            let links = Links::uniform(devices.len(), 1.0, 0.0);
            let costs = Costs::new(work, devices, &links);
            costs.memory(&placement.blocks, work.micro_batch, held, false)
                <= devices[placement.device].memory_bytes
        })
    }

    fn slowest(work: &Work, devices: &[Device], links: &Links, cut: &[Placement]) -> f64 {
        let stage = |placement: &Placement| {
            let costs = Costs::new(work, devices, links);
            let [forward, backward, _] = costs.seconds(placement.device, &placement.blocks, 1);
            forward + backward
        };
        let link = |pair: &[Placement]| {
            let bytes = work.profile.bytes_into(pair[1].blocks.start);
            let there = links.seconds(pair[0].device, pair[1].device, bytes);
            let back = links.seconds(pair[1].device, pair[0].device, bytes);
            if links.shared {
                there + back
            } else {
                there.max(back)
            }
        };
        let stages = cut.iter().map(stage);
        stages.chain(cut.windows(2).map(link)).fold(0.0, f64::max)
    }

    #[test]
    fn blocks_follow_the_capacities() {
        let work = work(&[1.0; 21], 4);
        let (mut devices, links) = even(3);
        devices[2].capacity = 10.0;
        let cut = partition(&work, &devices, &links, &[0, 1, 2]).unwrap();
        let sizes: Vec<usize> = cut.iter().map(|placement| placement.blocks.len()).collect();
        assert_eq!(sizes, [10, 10, 1]);
        let blind = pipedream(&work, &devices, &links, &[0, 1, 2]).unwrap();
        assert!(blind.iter().all(|placement| placement.blocks.len() == 7));
        let equal = equal(&work, &devices, &links, &[2, 0, 1]).unwrap();
        assert_eq!((equal[0].device, equal[2].blocks.clone()), (2, 14..21));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let work = work(&[1.0; 6], 4);
        let (mut devices, links) = even(2);
        devices
            .iter_mut()
            .for_each(|device| device.memory_bytes = 80);
        let error = partition(&work, &devices, &links, &[0, 1]).unwrap_err();
        assert!(matches!(
            error,
            PlanError::BlockTooLarge {
                block: 0,
                needs: 82,
                largest: 80,
                ..
            }
        ));
        devices
            .iter_mut()
            .for_each(|device| device.memory_bytes = 150);
        let error = partition(&work, &devices, &links, &[0, 1]).unwrap_err();
        assert!(
            matches!(
                error,
                PlanError::ModelTooLarge {
                    block: 3,
                    available: 300,
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("block 3 is the first"));
        let error = partition(&work, &devices, &links, &[0, 0]).unwrap_err();
        assert!(matches!(error, PlanError::Device { device: 0, .. }));
        let (devices, links) = even(7);
        let error = partition(&work, &devices, &links, &[0, 1, 2, 3, 4, 5, 6]).unwrap_err();
        assert!(matches!(
            error,
            PlanError::Blocks {
                n_devices: 7,
                n_blocks: 6
            }
        ));
    }

    proptest! {
        #[test]
        fn no_cut_is_better_than_that_of_the_dynamic_programming(
            seconds in proptest::collection::vec(0.01f64..2.0, 3..8),
            bytes in proptest::collection::vec(1u64..400, 8),
            capacities in proptest::collection::vec(0.2f64..10.0, 3),
            memory in proptest::collection::vec(80u64..500, 3),
            rates in proptest::collection::vec(10.0f64..500.0, 9),
            shared: bool,
            recompute: bool,
            hides_transfers: bool,
            stashing in 0usize..3,
        ) {
            let stashing = [Stashing::None, Stashing::Own, Stashing::VerticalSync][stashing];
            let mut work = Work { recompute, hides_transfers, stashing, ..work(&seconds, 4) };
            for (block, bytes) in work.profile.blocks.iter_mut().zip(&bytes) {
                block.output_bytes = *bytes / 20;
            }
            let devices: Vec<Device> = capacities.iter().zip(&memory).map(|(capacity, memory_bytes)| Device {
                capacity: *capacity,
                memory_bytes: *memory_bytes,
                ..Device::default()
            }).collect();
            let rate = rates.chunks(3).map(<[f64]>::to_vec).collect();
            let links = Links { rate, latency: vec![vec![0.0; 3]; 3], shared };
            let order = [0, 2, 1];
            let cuts = every_cut(seconds.len(), &order);
            let value = |cut: &Vec<Placement>| slowest(&work, &devices, &links, cut);
            let best = cuts.iter().filter(|cut| fits(&work, &devices, cut)).map(value).reduce(f64::min);
            match (best, best_cut(&Costs::new(&work, &devices, &links), &order, Aim::Slowest)) {
                (None, None) => {
                    let error = partition(&work, &devices, &links, &order).unwrap_err();
                    let named = matches!(error, PlanError::BlockTooLarge { .. } | PlanError::ModelTooLarge { .. });
                    prop_assert!(named);
                }
                (Some(best), Some(cut)) => {
                    prop_assert!(fits(&work, &devices, &cut.placements));
                    prop_assert!((cut.cost - best).abs() < 1e-9 * best);
                    prop_assert!((value(&cut.placements) - best).abs() < 1e-9 * best);
                }
                (best, cut) => prop_assert!(false, "{:?} {:?}", best, cut),
            }
        }
    }
}

//! What a plan promises: the schedule of a step, predicted event by event, with bubbles, transfers and memory.
//!
//! Where steps overlap, a step is what the full pipeline takes per micro-batch: the time of the slowest stage or link, or of the
//! way there and back shared by those in flight.
//!
//! A device with several stages computes them as if each had it to itself: with one micro-batch per step, as over tiers, none of them can
//! begin before the other has ended.

use serde::{Deserialize, Serialize};

use super::costs::Costs;
use super::events::{Pass, Run, overlaps};
use super::group::{Group, Reduction};
use super::work::{Data, Device, Links, Placement, PlanError, Work};

/// Micro-batches per stage that fill an asynchronous pipeline, and then are timed; and the least of them.
const TIMED: usize = 4;
const LEAST_TIMED: usize = 8;

/// What a plan promises. Figures per device are in the order of the stages, and in a stage in that of its samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Seconds of a step, from its first forward pass to the last update; where steps overlap, from update to update.
    pub step_seconds: f64,
    /// Samples per second.
    pub samples_per_second: f64,
    /// Share of the step that each device computes, 0 to 1; the rest are bubbles.
    pub busy: Vec<f64>,
    /// Bytes each device takes at most.
    pub memory_bytes: Vec<u64>,
    /// Bytes each device sends in a step: activations, gradients to the stage before and to its own group.
    pub sent_bytes: Vec<u64>,
}

/// One bar of the timeline of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Number of the device.
    pub device: usize,
    /// What it does.
    pub pass: Pass,
    /// With which micro-batch; the number of all of them for what is done once.
    pub micro: usize,
    /// Seconds from the step's beginning.
    pub from: f64,
    /// Seconds from the step's beginning.
    pub to: f64,
}

/// Predicts a step of `work` with the blocks placed so, one device per stage.
///
/// # Errors
/// Figures that cannot be, or placements that are not all blocks in order on devices that there are.
pub fn predict(
    work: &Work,
    devices: &[Device],
    links: &Links,
    placements: &[Placement],
) -> Result<Prediction, PlanError> {
    work.check_linked(devices, links)?;
    let costs = Costs::new(work, devices, links);
    let groups = Group::alone(&costs, placements);
    check(&costs, &groups)?;
    Ok(run(&costs, &groups))
}

/// Refuses groups that are not all blocks in order on devices that there are, each with samples of its own.
pub(crate) fn check(costs: &Costs<'_>, groups: &[Group]) -> Result<(), PlanError> {
    let refuse = |device, what| Err(PlanError::Device { device, what });
    // The last stage of each device so far: it may host several that follow each other, where micro-batches do not.
    let mut last_of: Vec<Option<usize>> = vec![None; costs.devices.len()];
    let mut next = 0;
    for (number, group) in groups.iter().enumerate() {
        let mut samples = 0;
        for share in &group.shares {
            let Some(last) = last_of.get_mut(share.device) else {
                return refuse(share.device, "it is none of the devices");
            };
            let before = last.replace(number);
            let may = |before: usize| before + 1 == number && costs.work.n_micro == 1;
            if before.is_some_and(|before| !may(before)) {
                let what =
                    "its stages do not follow each other, or a step has several micro-batches";
                return refuse(share.device, what);
            }
            if share.samples == 0 {
                return refuse(share.device, "it has no samples");
            }
            samples += share.samples;
        }
        let device = group.shares.first().map_or(0, |share| share.device);
        let end = group.blocks.end;
        if group.blocks.start != next || end <= next || end > costs.n_blocks() {
            return refuse(device, "its blocks do not follow those before");
        }
        if samples != costs.work.micro_batch || group.in_flight == 0 {
            return refuse(device, "its stage does not compute whole micro-batches");
        }
        next = end;
    }
    let n_blocks = costs.n_blocks();
    if next == n_blocks {
        Ok(())
    } else {
        Err(PlanError::Blocks {
            n_devices: groups.len(),
            n_blocks,
        })
    }
}

/// A step of groups that are known to be sound.
pub(crate) fn run(costs: &Costs<'_>, groups: &[Group]) -> Prediction {
    let mut busy = vec![0.0; groups.iter().map(|group| group.shares.len()).sum()];
    let end = if costs.work.overlaps() {
        let all = groups.iter().flat_map(|group| {
            let own = group.shares.iter();
            own.map(|share| costs.seconds(share.device, &group.blocks, share.samples))
        });
        for (busy, seconds) in busy.iter_mut().zip(all) {
            *busy = seconds.into_iter().sum();
        }
        full(costs, groups)
    } else {
        let run = Run::new(costs, groups, costs.work.n_micro);
        run.finish(&mut |number, (pass, ..), seconds| {
            if pass != Pass::Reduce {
                busy[number] += seconds;
            }
        })
    };
    let of_first = groups.first().map_or(0, |first| first.in_flight);
    let samples = (costs.work.n_micro * costs.work.micro_batch) as f64;
    let is_real = end > 0.0 && end.is_finite();
    let share = |seconds: f64| if is_real { seconds / end } else { 0.0 };
    let memory = |group: &Group| {
        let own = group.shares.iter();
        let own = own.map(|share| group.memory(costs, share, of_first));
        own.collect::<Vec<_>>()
    };
    Prediction {
        step_seconds: end,
        samples_per_second: if is_real { samples / end } else { 0.0 },
        busy: busy.into_iter().map(share).collect(),
        memory_bytes: groups.iter().flat_map(memory).collect(),
        sent_bytes: sent(costs, groups),
    }
}

/// Seconds of a step of `n_micro` micro-batches, or of any where steps overlap; without end where a link is missing.
pub(crate) fn seconds(costs: &Costs<'_>, groups: &[Group], n_micro: usize) -> f64 {
    if costs.work.overlaps() {
        full(costs, groups)
    } else {
        Run::new(costs, groups, n_micro).finish(&mut |_, _, _| ())
    }
}

/// Seconds per micro-batch of a full pipeline whose steps overlap.
fn full(costs: &Costs<'_>, groups: &[Group]) -> f64 {
    let n = LEAST_TIMED.max(TIMED * groups.len());
    // It is still full when the last one that is timed comes back.
    let behind = groups.first().map_or(0, |first| first.in_flight);
    let mut run = Run::new(costs, groups, 2 * n + behind);
    run.begin(&mut |_, _, _| ());
    let mut half = None;
    while let Some(now) = run.proceed(&mut |_, _, _| ()) {
        let made = run.n_through();
        if made == n {
            half.get_or_insert(now);
        }
        if made == 2 * n {
            return (now - half.unwrap_or(0.0)) / n as f64;
        }
    }
    f64::INFINITY
}

/// What each device of these groups does when, in a step.
pub(crate) fn timeline(costs: &Costs<'_>, groups: &[Group]) -> Vec<Span> {
    let devices: Vec<usize> = groups.iter().flat_map(Group::devices).collect();
    let mut spans = Vec::new();
    Run::new(costs, groups, costs.work.n_micro).finish(
        &mut |number, (pass, micro, from), seconds| {
            spans.push(Span {
                device: devices[number],
                pass,
                micro,
                from,
                to: from + seconds,
            });
        },
    );
    spans
}

/// Bytes that each device sends in a step.
fn sent(costs: &Costs<'_>, groups: &[Group]) -> Vec<u64> {
    let n_micro = costs.work.n_micro as u64;
    let mut all = Vec::new();
    for (position, group) in groups.iter().enumerate() {
        let n = group.shares.len() as u64;
        let gradient = costs.parameter_bytes(&group.blocks);
        let reduced = match group.reduction(costs) {
            Some((Reduction::Shards, _)) => gradient.saturating_mul(2 * (n - 1)) / n,
            Some((Reduction::Direct, _)) => gradient.saturating_mul(n - 1),
            None => 0,
        };
        for share in &group.shares {
            let mut per_micro = 0u64;
            if let Some(next) = groups.get(position + 1) {
                let samples = share.samples - staying([group, next], share.device);
                per_micro = costs.bytes_into(group.blocks.end, samples);
            }
            if position > 0 {
                let samples = share.samples - staying([&groups[position - 1], group], share.device);
                let back = costs.bytes_into(group.blocks.start, samples);
                per_micro = per_micro.saturating_add(back);
            }
            if costs.data == Data::At(share.device) {
                let others = groups[0]
                    .shares
                    .iter()
                    .filter(|other| other.device != share.device);
                let samples = others.map(|other| costs.bytes_into(0, other.samples));
                per_micro = samples.fold(per_micro, u64::saturating_add);
            }
            all.push(per_micro.saturating_mul(n_micro).saturating_add(reduced));
        }
    }
    all
}

/// Samples that stay with a device from one of its stages to the next.
fn staying([from, to]: [&Group; 2], device: usize) -> usize {
    let parts = overlaps(from, to).into_iter();
    let stays = parts
        .filter(|(a, b, _)| from.shares[*a].device == device && to.shares[*b].device == device);
    stays.map(|(_, _, samples)| samples).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::group::Share;
    use crate::plan::work::Stashing;
    use crate::plan::work::tests::{even, work};

    fn place(cuts: &[usize]) -> Vec<Placement> {
        let placement = |(device, pair): (usize, &[usize])| Placement {
            device,
            blocks: pair[0]..pair[1],
        };
        cuts.windows(2).enumerate().map(placement).collect()
    }

    #[test]
    fn one_stage_takes_the_sum_of_all_passes() {
        // Four blocks, each 1 s forward and 2 s backward.
        let work = work(&[1.0; 4], 3);
        let (devices, links) = even(1);
        let got = predict(&work, &devices, &links, &place(&[0, 4])).unwrap();
        assert!((got.step_seconds - 36.0).abs() < 1e-9);
        assert!((got.busy[0] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn even_stages_without_transfer_lose_the_filling_of_the_pipeline() {
        // n stages of time t, M micro-batches: (M + n - 1) t.
        for (n, n_micro) in [(2, 1), (2, 4), (4, 1), (4, 8)] {
            let work = Work {
                profile: crate::plan::Profile {
                    input_bytes: 0,
                    ..work(&[1.0; 4], 1).profile
                },
                ..work(&[1.0; 4], n_micro)
            };
            let (devices, mut links) = even(n);
            links.rate = vec![vec![1e18; n]; n];
            let cuts: Vec<usize> = (0..=n).map(|i| i * 4 / n).collect();
            let got = predict(&work, &devices, &links, &place(&cuts)).unwrap();
            let expected = (n_micro + n - 1) as f64 * 12.0 / n as f64;
            assert!(
                (got.step_seconds - expected).abs() < 1e-6,
                "{n} {n_micro} {got:?}"
            );
            let busy = n_micro as f64 / (n_micro + n - 1) as f64;
            assert!(got.busy.iter().all(|share| (share - busy).abs() < 1e-6));
        }
    }

    #[test]
    fn a_slow_link_sets_the_pace_and_a_shared_one_more_so() {
        // 8 bytes per sample and border; 1 byte per second: 8 s per message, 3 s per stage.
        let work = work(&[1.0; 2], 20);
        let (devices, mut links) = even(2);
        links.rate = vec![vec![1.0; 2]; 2];
        let rate = |links: &Links, n_micro: usize| {
            let work = Work {
                n_micro,
                ..work.clone()
            };
            predict(&work, &devices, links, &place(&[0, 1, 2]))
                .unwrap()
                .step_seconds
        };
        let per_micro = |links: &Links| (rate(links, 220) - rate(links, 20)) / 200.0;
        // Two in flight share a way there and back of 1 + 8 + 3 + 8 + 2 s.
        assert!(
            (per_micro(&links) - 11.0).abs() < 0.1,
            "{}",
            per_micro(&links)
        );
        links.shared = true;
        assert!(per_micro(&links) >= 16.0 - 0.1, "{}", per_micro(&links));
        links.shared = false;
        // Three in flight hide all but the link itself.
        let work = Work {
            hides_transfers: true,
            ..work.clone()
        };
        let step = |n_micro| {
            let work = Work {
                n_micro,
                ..work.clone()
            };
            predict(&work, &devices, &links, &place(&[0, 1, 2]))
                .unwrap()
                .step_seconds
        };
        let hidden = (step(220) - step(20)) / 200.0;
        assert!((hidden - 8.0).abs() < 0.1, "{hidden}");
    }

    #[test]
    fn the_way_counts_for_each_link_by_itself() {
        // One micro-batch: forward, way, both passes of the last stage, way back, backward.
        let work = work(&[1.0; 2], 1);
        let (devices, mut links) = even(2);
        let step = |links: &Links| {
            predict(&work, &devices, links, &place(&[0, 1, 2]))
                .unwrap()
                .step_seconds
        };
        let near = step(&links);
        links.latency = vec![vec![0.0, 0.5], vec![0.25, 0.0]];
        assert!((step(&links) - near - 0.75).abs() < 1e-6);
    }

    #[test]
    fn where_steps_overlap_a_step_takes_what_the_slowest_stage_takes() {
        let asynchronous = |seconds: &[f64]| Work {
            stashing: Stashing::Own,
            ..work(seconds, 1)
        };
        // Three stages of 3, 6 and 3 s per micro-batch, with an update of a quarter each.
        let mut work = asynchronous(&[1.0, 2.0, 1.0]);
        for block in &mut work.profile.blocks {
            block.update = 0.25;
        }
        let (mut devices, links) = even(3);
        let got = predict(&work, &devices, &links, &place(&[0, 1, 2, 3])).unwrap();
        assert!((got.step_seconds - 6.25).abs() < 1e-6, "{got:?}");
        assert!((got.busy[1] - 1.0).abs() < 1e-6 && (got.busy[0] - 3.25 / 6.25).abs() < 1e-6);
        assert!((got.samples_per_second - 1.0 / 6.25).abs() < 1e-6);
        let synchronous = Work {
            stashing: Stashing::None,
            ..work.clone()
        };
        let flushed = predict(&synchronous, &devices, &links, &place(&[0, 1, 2, 3])).unwrap();
        assert!(flushed.step_seconds > 12.0, "{flushed:?}");
        devices[2].capacity = 3.0;
        let got = predict(&work, &devices, &links, &place(&[0, 1, 2, 3])).unwrap();
        assert!((got.step_seconds - 9.75).abs() < 1e-6, "{got:?}");
        let alone = predict(&work, &even(1).0, &even(1).1, &place(&[0, 3])).unwrap();
        assert!((alone.step_seconds - 12.75).abs() < 1e-6, "{alone:?}");
    }

    #[test]
    fn links_set_the_pace_of_steps_that_overlap_or_the_way_there_and_back_does() {
        // 8 bytes per border at 1 byte per second: 8 s per message, 3 s per stage.
        let mut work = Work {
            stashing: Stashing::Own,
            ..work(&[1.0; 2], 1)
        };
        let (devices, mut links) = even(2);
        links.rate = vec![vec![1.0; 2]; 2];
        let step = |work: &Work| {
            let got = predict(work, &devices, &links, &place(&[0, 1, 2]));
            got.unwrap().step_seconds
        };
        // Two in flight share a way there and back of 1 + 8 + 3 + 8 + 2 s.
        assert!((step(&work) - 11.0).abs() < 1e-6, "{}", step(&work));
        // Three hide all but the link itself.
        work.hides_transfers = true;
        assert!((step(&work) - 8.0).abs() < 0.1, "{}", step(&work));
    }

    #[test]
    fn placements_that_leave_a_block_out_are_refused() {
        let work = work(&[1.0; 3], 2);
        let (devices, links) = even(2);
        for cuts in [&[0, 1, 2][..], &[1, 2, 3], &[0, 1, 1, 3]] {
            assert!(predict(&work, &devices, &links, &place(cuts)).is_err());
        }
        let mut twice = place(&[0, 1, 3]);
        twice[1].device = 0;
        assert!(predict(&work, &devices, &links, &twice).is_err());
    }

    fn group(blocks: std::ops::Range<usize>, shares: &[(usize, usize)], in_flight: usize) -> Group {
        let share = |(device, samples): &(usize, usize)| Share {
            device: *device,
            samples: *samples,
        };
        Group {
            blocks,
            shares: shares.iter().map(share).collect(),
            in_flight,
        }
    }

    #[test]
    fn one_group_is_data_parallelism() {
        // Two devices of 2 of 4 samples, 6 s per block and sample; 20 bytes of gradient at 10 per second and a delay of 1 s.
        let work = Work {
            micro_batch: 4,
            ..work(&[1.0; 2], 3)
        };
        let (devices, _) = even(2);
        let links = Links::uniform(2, 10.0, 1.0);
        let costs = Costs::new(&work, &devices, &links);
        let groups = [group(0..2, &[(0, 2), (1, 2)], 1)];
        check(&costs, &groups).unwrap();
        let got = run(&costs, &groups);
        let computes = 3.0 * 2.0 * 6.0;
        assert!(
            (got.step_seconds - (computes + 3.0)).abs() < 1e-9,
            "{got:?}"
        );
        assert_eq!(got.sent_bytes, [20, 20]);
        let spans = timeline(&costs, &groups);
        let reduced = spans.iter().filter(|span| span.pass == Pass::Reduce);
        let reduced: Vec<_> = reduced
            .map(|span| (span.device, span.from, span.to))
            .collect();
        assert_eq!(reduced, [(0, 36.0, 39.0), (1, 36.0, 39.0)]);
    }

    #[test]
    fn samples_go_to_whoever_computes_them_next() {
        let four = group(0..1, &[(0, 1), (1, 2), (2, 3)], 1);
        let two = group(1..2, &[(3, 4), (4, 2)], 1);
        let expected = [(0, 0, 1), (1, 0, 2), (2, 0, 1), (2, 1, 2)];
        assert_eq!(overlaps(&four, &two), expected);
        let turned = expected.map(|(a, b, n)| (b, a, n));
        let mut back = overlaps(&two, &four);
        back.sort_unstable_by_key(|(a, b, _)| (*b, *a));
        assert_eq!(back, turned);
    }

    #[test]
    fn many_senders_share_the_way_into_one_receiver() {
        // Four samples of 8 bytes at 4 bytes per second: 8 s, whoever sends them; no time to compute.
        let work = Work {
            micro_batch: 4,
            ..work(&[0.0; 2], 1)
        };
        let (devices, _) = even(5);
        let links = Links::uniform(5, 4.0, 0.0);
        let costs = Costs::new(&work, &devices, &links);
        let all_to_one = [
            group(0..1, &[(0, 1), (1, 1), (2, 1), (3, 1)], 1),
            group(1..2, &[(4, 4)], 1),
        ];
        let reduction = all_to_one[0].reduction(&costs).unwrap().1;
        let got = run(&costs, &all_to_one);
        assert!(
            (got.step_seconds - (16.0 + reduction)).abs() < 1e-9,
            "{got:?}"
        );
        let pairs = [
            group(0..1, &[(0, 2), (1, 2)], 1),
            group(1..2, &[(2, 2), (3, 2)], 1),
        ];
        let reduction = pairs[0].reduction(&costs).unwrap().1;
        let got = run(&costs, &pairs).step_seconds;
        assert!((got - (8.0 + reduction)).abs() < 1e-9, "{got}");
    }

    #[test]
    fn raw_samples_come_from_where_the_data_is() {
        // One sample of 8 bytes per micro-batch to another device, at 1 byte per second: it computes for 3 s of every 8.
        let work = work(&[1.0; 1], 4);
        let (devices, _) = even(2);
        let links = Links::uniform(2, 1.0, 0.5);
        let mut costs = Costs::new(&work, &devices, &links);
        let groups = [group(0..1, &[(1, 1)], 1)];
        assert_eq!(run(&costs, &groups).step_seconds, 12.0);
        costs.data = Data::At(0);
        assert_eq!(run(&costs, &groups).step_seconds, 32.0 + 0.5 + 3.0);
        costs.data = Data::At(1);
        assert_eq!(run(&costs, &groups).step_seconds, 12.0);
    }

    #[test]
    fn a_step_over_a_link_that_is_missing_never_ends() {
        let work = work(&[1.0; 2], 2);
        let (devices, mut links) = even(2);
        links.rate[0][1] = 0.0;
        let costs = Costs::new(&work, &devices, &links);
        let groups = [group(0..1, &[(0, 1)], 1), group(1..2, &[(1, 1)], 1)];
        let got = run(&costs, &groups);
        assert_eq!(
            (got.step_seconds, got.samples_per_second),
            (f64::INFINITY, 0.0)
        );
    }

    #[test]
    fn a_device_may_host_stages_that_follow_each_other_and_what_stays_there_is_not_sent() {
        let work = Work {
            micro_batch: 4,
            ..work(&[1.0; 3], 1)
        };
        let (devices, links) = even(3);
        let mut costs = Costs::new(&work, &devices, &links);
        costs.least_samples = 1;
        let micro = work.micro_batch;
        let group = |blocks, hosts: &[(usize, usize)]| Group {
            blocks,
            shares: hosts
                .iter()
                .map(|(device, samples)| Share {
                    device: *device,
                    samples: *samples,
                })
                .collect(),
            in_flight: 1,
        };
        let of = |first: usize, second: usize, third: usize| {
            [first, second, third]
                .into_iter()
                .enumerate()
                .map(|(at, device)| group(at..at + 1, &[(device, micro)]))
                .collect::<Vec<_>>()
        };
        assert!(check(&costs, &of(0, 1, 1)).is_ok());
        assert!(check(&costs, &of(0, 1, 0)).is_err());
        let alone = run(&costs, &of(0, 0, 0));
        let one = run(&costs, &[group(0..3, &[(0, micro)])]);
        assert!((alone.step_seconds - one.step_seconds).abs() < 1e-9);
        assert_eq!(alone.sent_bytes, [0; 3]);
        let shared = [
            group(0..1, &[(1, 1), (0, micro - 1)]),
            group(1..3, &[(0, micro)]),
        ];
        assert!(check(&costs, &shared).is_ok());
        let [other, own, _] = run(&costs, &shared).sent_bytes.try_into().unwrap();
        let gradient = costs.parameter_bytes(&(0..1));
        assert_eq!(other, gradient + costs.bytes_into(1, 1));
        assert_eq!(own, gradient, "its own samples stay");
    }
}

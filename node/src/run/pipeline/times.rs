//! What a device's blocks take for fewer samples than a micro-batch has: its profile as curves.

use std::ops::Range;

use skein_gossip::pipeline::agreement::Candidate;
use skein_gossip::pipeline::message::{BlockTime, Fewer, Profile};
use skein_model::plan::{self, BlockTimes, Time};

/// The profile as it is sent: of a micro-batch of `samples` samples and of fewer ones.
pub(super) fn sent(measured: &plan::Profile, samples: usize) -> (Vec<BlockTime>, Vec<Fewer>) {
    let at = |samples: usize| -> Vec<BlockTime> {
        let time = |block: &plan::BlockProfile| BlockTime {
            forward_us: (block.forward.of(samples) * 1e6) as f32,
            backward_us: (block.backward.of(samples) * 1e6) as f32,
        };
        measured.blocks.iter().map(time).collect()
    };
    let sizes = measured.blocks.first().map(|block| block.forward.sizes());
    let fewer = sizes.into_iter().flatten().filter(|size| *size < samples);
    let fewer = fewer.map(|size| Fewer {
        samples: u32::try_from(size).unwrap_or(u32::MAX),
        blocks: at(size),
    });
    (at(samples), fewer.collect())
}

/// Curves over samples of all blocks, from a profile of micro-batches of `samples` samples.
pub(super) fn curves(profile: &Profile, samples: usize) -> Vec<BlockTimes> {
    let curve = |block: usize, us: fn(&BlockTime) -> f32| {
        let fewer = profile
            .fewer
            .iter()
            .filter_map(|fewer| Some((fewer.samples as usize, fewer.blocks.get(block)?)));
        let whole = profile.blocks.get(block).map(|time| (samples, time));
        let points = fewer.chain(whole);
        Time::measured(points.map(|(samples, time)| (samples, f64::from(us(time)) / 1e6)))
    };
    let times = |block| BlockTimes {
        forward: curve(block, |time| time.forward_us),
        backward: curve(block, |time| time.backward_us),
        update: 0.0,
    };
    (0..profile.blocks.len()).map(times).collect()
}

/// What all blocks take a candidate, microseconds.
pub(super) fn pace(candidate: &Candidate) -> f32 {
    let blocks = candidate.profile.iter().flat_map(|own| &own.blocks);
    let all: f32 = blocks.map(|time| time.forward_us + time.backward_us).sum();
    all * candidate.slowdown
}

/// Seconds forward and backward of `blocks` for `own` samples of a micro-batch of `samples`.
pub(super) fn seconds(
    profile: &Profile,
    blocks: Range<usize>,
    (own, samples): (usize, usize),
) -> [f64; 2] {
    let all = curves(profile, samples);
    let own_blocks = all.get(blocks).unwrap_or_default();
    let sum =
        |time: fn(&BlockTimes) -> &Time| own_blocks.iter().map(|block| time(block).of(own)).sum();
    [sum(|times| &times.forward), sum(|times| &times.backward)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_micro_batch_takes_what_was_measured_and_not_half() {
        let block = plan::BlockProfile {
            forward: Time::measured([(4, 0.003), (8, 0.004)]),
            backward: Time::measured([(4, 0.006), (8, 0.009)]),
            ..plan::BlockProfile::default()
        };
        let measured = plan::Profile {
            input_bytes: 0,
            blocks: vec![block; 3],
        };
        let (blocks, fewer) = sent(&measured, 8);
        let profile = Profile {
            blocks,
            fewer,
            ..Profile::default()
        };
        assert!(profile.is_of(3));
        let [forward, backward] = seconds(&profile, 1..3, (4, 8));
        assert!((forward - 0.006).abs() < 1e-8 && (backward - 0.012).abs() < 1e-8);
        let [forward, _] = seconds(&profile, 0..1, (8, 8));
        assert!((forward - 0.004).abs() < 1e-8);
        assert_eq!(seconds(&profile, 3..9, (8, 8)), [0.0; 2]);
    }
}

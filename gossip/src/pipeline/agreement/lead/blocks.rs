//! What blocks take beside their profiles, learnt from steps: alone in a loop a block finds its weights in the cache, between other
//! blocks it does not. Hosts say by how much their stage as a whole is slower than profiled; what that says of its blocks and what of
//! the device is told apart by time. When a view has settled, what deviates is laid on the blocks, for the devices were
//! measured before; what changes afterwards is the device's.

use std::sync::Arc;

use super::super::super::message::{BlockTime, Profile};
use super::super::super::plan::Blocks;
use super::super::Candidate;

/// A profile is not further off than that.
const MOST: f32 = 5.0;

/// Factors on the profiled times of blocks; of those behind the end, 1.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockFactors(Vec<f32>);

impl BlockFactors {
    /// The blocks of a stage take `ratio` times what was reckoned with so far.
    pub(super) fn learn(&mut self, blocks: Blocks, ratio: f32) {
        let end = usize::from(blocks.end);
        if self.0.len() < end {
            self.0.resize(end, 1.0);
        }
        for factor in &mut self.0[usize::from(blocks.start)..end] {
            *factor = (*factor * ratio).clamp(1.0 / MOST, MOST);
        }
    }

    /// A candidate as plans are to reckon with it; `stage` is what its slowdown was measured on, if on any.
    pub(super) fn applied(&self, mut candidate: Candidate, stage: Option<Blocks>) -> Candidate {
        let Some(profile) = candidate.profile.as_mut().filter(|_| !self.0.is_empty()) else {
            return candidate;
        };
        let whole = 0..profile.blocks.len() as u16;
        let measured = stage.unwrap_or(whole);
        let before = sum(profile, &measured);
        let own = Arc::make_mut(profile);
        let fewer = own.fewer.iter_mut().map(|fewer| &mut fewer.blocks);
        for blocks in fewer.chain([&mut own.blocks]) {
            let factors = self.0.iter().copied().chain(std::iter::repeat(1.0));
            for (time, factor) in blocks.iter_mut().zip(factors) {
                *time = BlockTime {
                    forward_us: time.forward_us * factor,
                    backward_us: time.backward_us * factor,
                };
            }
        }
        let after = sum(profile, &measured);
        if before > 0.0 && after > 0.0 {
            candidate.slowdown *= before / after;
        }
        candidate
    }
}

/// Microseconds of these blocks.
fn sum(profile: &Profile, blocks: &Blocks) -> f32 {
    let range = usize::from(blocks.start)..usize::from(blocks.end);
    let blocks = profile.blocks.get(range).unwrap_or_default();
    blocks
        .iter()
        .map(|time| time.forward_us + time.backward_us)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PeerId;

    fn candidate(slowdown: f32) -> Candidate {
        let time = BlockTime {
            forward_us: 1.0,
            backward_us: 2.0,
        };
        let profile = Profile {
            blocks: vec![time; 4],
            ..Profile::default()
        };
        Candidate {
            peer: PeerId([1; 32]),
            has_data: true,
            profile: Some(Arc::new(profile)),
            slowdown,
        }
    }

    fn times(candidate: &Candidate, blocks: Blocks) -> f32 {
        sum(candidate.profile.as_ref().unwrap(), &blocks) * candidate.slowdown
    }

    #[test]
    fn what_was_measured_of_a_stage_stays_what_it_is() {
        let mut factors = BlockFactors::default();
        assert_eq!(
            times(&factors.applied(candidate(2.0), Some(0..2)), 0..2),
            12.0
        );
        factors.learn(0..2, 2.0);
        let host = factors.applied(candidate(2.0), Some(0..2));
        assert_eq!((host.slowdown, times(&host, 0..2)), (1.0, 12.0));
        assert_eq!(times(&host, 2..4), 6.0, "others take what was profiled");
        // Of one that was measured on the other half the device is slow.
        let other = factors.applied(candidate(2.0), Some(2..4));
        assert_eq!((times(&other, 2..4), times(&other, 0..2)), (12.0, 24.0));
    }

    #[test]
    fn factors_stay_within_reason() {
        let mut factors = BlockFactors::default();
        for _ in 0..9 {
            factors.learn(1..3, 4.0);
            factors.learn(3..4, 0.1);
        }
        assert_eq!(factors.0, [1.0, MOST, MOST, 1.0 / MOST]);
    }
}

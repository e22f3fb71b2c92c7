//! What a packet's norm may be: a peer that diverged, or lies, must not drown the others' updates.
//!
//! The measure are the own packets, and the median of the other peers': one liar cannot move it, however long it tries.

use std::collections::BTreeMap;

use crate::ids::PeerId;

/// A packet's norm per sample may be so many times what is usual. Honest peers differ by less than ten: early steps, small batches,
/// residuals that waited.
const TOO_LARGE: f32 = 100.0;
/// A peer is believed to have so many times the samples that this peer had in the same time; devices in one mesh differ by less.
const FASTER: u64 = 16;
/// Packets of a peer before its mean counts for others.
const FEW: u32 = 4;
/// Weight of the newest packet in a peer's mean.
const WEIGHT: f32 = 0.125;
/// What is left of the largest own norm from one commit to the next: gradients that vanish here do not make all others absurd.
const KEPT: f32 = 0.999;

#[derive(Debug, Default)]
pub(super) struct Norms {
    /// Per sample, the largest of late.
    own: f32,
    /// Own samples so far.
    own_samples: u64,
    others: BTreeMap<PeerId, Known>,
    /// For medians.
    means: Vec<f32>,
}

#[derive(Debug, Default)]
struct Known {
    n_packets: u32,
    mean: f32,
    /// Own samples when its last packet was judged.
    own_samples: u64,
}

impl Norms {
    /// This peer has a gradient of so many samples.
    pub(super) fn trained(&mut self, values: &[f32], samples: u64) {
        self.own_samples = self.own_samples.saturating_add(samples);
        self.own *= KEPT;
        self.sent(norm(values), samples);
    }

    /// An own packet was made.
    pub(super) fn sent(&mut self, norm: f32, samples: u64) {
        let norm = norm / samples.max(1) as f32;
        if norm.is_finite() {
            self.own = norm.max(self.own);
        }
    }

    /// Takes the norm of a packet of `from` that claims so many samples of `n_peers` peers, unless it is absurd beside what is usual.
    ///
    /// # Errors
    /// In words, where the packet must not be applied.
    pub(super) fn judge(
        &mut self,
        from: PeerId,
        norm: f32,
        samples: u64,
        n_peers: u64,
    ) -> Result<(), String> {
        if !norm.is_finite() {
            return Err("its norm is not finite".into());
        }
        let known = self.others.get(&from);
        let since = self.own_samples - known.map_or(0, |known| known.own_samples);
        let most = match self.own_samples {
            0 => u64::MAX,
            _ => since
                .max(1)
                .saturating_mul(FASTER)
                .saturating_mul(n_peers.max(1)),
        };
        let norm = norm / samples.clamp(1, most) as f32;
        let usual = self.own.max(self.median_beside(from));
        if usual > 0.0 && norm > TOO_LARGE * usual {
            return Err(format!(
                "its norm per sample is {norm:e}, over {TOO_LARGE} times what is usual of late ({usual:e})"
            ));
        }
        let own_samples = self.own_samples;
        let known = self.others.entry(from).or_insert(Known {
            mean: norm,
            ..Known::default()
        });
        known.n_packets = known.n_packets.saturating_add(1);
        known.mean += WEIGHT * (norm - known.mean);
        known.own_samples = own_samples;
        Ok(())
    }

    /// Of the means of the other peers; the lower of two in the middle. 0 where none is known.
    fn median_beside(&mut self, from: PeerId) -> f32 {
        let others = self.others.iter().filter(|(peer, _)| **peer != from);
        let means = others.filter_map(|(_, known)| (known.n_packets >= FEW).then_some(known.mean));
        self.means.clear();
        self.means.extend(means);
        median(&mut self.means)
    }

    /// Forgets peers that are gone.
    pub(super) fn retain(&mut self, is_member: impl Fn(PeerId) -> bool) {
        self.others.retain(|peer, _| is_member(*peer));
    }
}

/// Euclidean; infinite where squares are beyond f32.
fn norm(values: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0f32; LANES];
    let mut chunks = values.chunks_exact(LANES);
    for chunk in &mut chunks {
        let lanes = sums.iter_mut().zip(chunk);
        lanes.for_each(|(sum, value)| *sum += value * value);
    }
    let rest = chunks.remainder().iter().map(|value| value * value);
    (sums.iter().sum::<f32>() + rest.sum::<f32>()).sqrt()
}

/// The lower of two in the middle; 0 of none.
fn median(values: &mut [f32]) -> f32 {
    values.sort_unstable_by(f32::total_cmp);
    let middle = values.len().saturating_sub(1) / 2;
    values.get(middle).copied().unwrap_or(0.0)
}

/// Which packets of one step are absurd beside the others of the same step: all members judge the same bytes alike. Of two peers nobody
/// can say which is wrong.
pub(super) fn outliers(norms: &[f32]) -> impl Fn(f32) -> bool + use<> {
    let mut sorted = norms.to_vec();
    let usual = match sorted.len() {
        0..3 => 0.0,
        _ => median(&mut sorted),
    };
    move |norm| !norm.is_finite() || (usual > 0.0 && norm > TOO_LARGE * usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    #[test]
    fn an_absurd_norm_is_refused_from_the_first_packet_on() {
        let mut norms = Norms::default();
        norms.trained(&[0.1; 20], 8);
        norms.sent(16.0, 8);
        assert!(norms.judge(peer(2), 199.0, 1, 1).is_ok());
        assert!(norms.judge(peer(3), 201.0, 1, 1).is_err());
        assert!(norms.judge(peer(3), f32::INFINITY, 1, 1).is_err());
        assert!(norms.judge(peer(3), f32::NAN, 1, 1).is_err());
    }

    #[test]
    fn nobody_grows_into_absurd_norms_by_and_by() {
        let mut norms = Norms::default();
        let (mut norm, mut refused) = (1.0, 0);
        for _ in 0..200 {
            norms.trained(&[1.0], 1);
            norms.judge(peer(1), 1.0, 1, 1).unwrap();
            norms.judge(peer(3), 2.0, 1, 1).unwrap();
            norm *= 1.2;
            refused += u32::from(norms.judge(peer(2), norm, 1, 1).is_err());
        }
        assert!(refused > 150, "{refused}");
    }

    #[test]
    fn samples_that_nobody_can_have_trained_on_excuse_nothing() {
        let mut norms = Norms::default();
        norms.trained(&[6.0, 0.0, 8.0], 10);
        assert!(norms.judge(peer(1), 1e9, u64::MAX, 1).is_err());
        assert!(norms.judge(peer(1), 1e4, u64::MAX, 1).is_ok(), "a fast one");
        assert!(norms.judge(peer(2), 0.0, 0, 1).is_ok());
    }

    #[test]
    fn gradients_that_vanish_and_come_back_are_no_fault() {
        let mut norms = Norms::default();
        norms.trained(&[5.0], 1);
        for _ in 0..10 {
            norms.trained(&[0.0], 1);
            norms.sent(0.0, 1);
            norms.judge(peer(1), 0.0, 1, 1).unwrap();
            norms.judge(peer(2), 0.0, 1, 1).unwrap();
        }
        norms.judge(peer(1), 5.0, 1, 1).unwrap();
    }

    #[test]
    fn a_norm_is_that_of_all_values() {
        assert_eq!(norm(&[]), 0.0);
        assert_eq!(norm(&[1.0; 49]), 7.0);
        assert_eq!(norm(&[f32::MAX; 2]), f32::INFINITY);
    }

    #[test]
    fn of_three_the_one_far_off_is_told_and_of_two_nobody() {
        let of = |norms: &[f32]| {
            let absurd = outliers(norms);
            norms.iter().map(|norm| absurd(*norm)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[1.0, 1e6, 2.0]), [false, true, false]);
        assert_eq!(of(&[1.0, 1e6]), [false, false]);
        assert_eq!(of(&[0.0, 3.0, 0.0]), [false, false, false]);
        assert_eq!(of(&[f32::INFINITY, 3.0, 1.0]), [true, false, false]);
    }
}

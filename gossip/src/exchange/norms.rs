//! What a packet's norm may be: a peer that diverged, or lies, must not drown the others' updates.

use std::collections::BTreeMap;

use crate::ids::PeerId;

/// A packet's norm per sample may be so many times the largest of the other peers' recent means. Honest peers differ by less than
/// ten: early steps, small batches, residuals that waited.
const TOO_LARGE: f32 = 100.0;
/// Packets of a peer before its mean counts, for it and for others.
const FEW: u32 = 4;
/// Weight of the newest packet in a peer's mean.
const WEIGHT: f32 = 0.125;

#[derive(Debug, Default)]
pub(super) struct Norms {
    means: BTreeMap<PeerId, (u32, f32)>,
}

impl Norms {
    /// Takes the norm per sample of a packet of `from`, unless it is absurd beside the others'.
    ///
    /// # Errors
    /// In words, where the packet must not be applied.
    pub(super) fn judge(&mut self, from: PeerId, norm: f32) -> Result<(), String> {
        if !norm.is_finite() {
            return Err("its norm is not finite".into());
        }
        let known = |(_, (n, mean)): (&PeerId, &(u32, f32))| (*n >= FEW).then_some(*mean);
        let largest = self.means.iter().filter_map(known).fold(0.0, f32::max);
        if largest > 0.0 && norm > TOO_LARGE * largest {
            return Err(format!(
                "its norm per sample is {norm:e}, over {TOO_LARGE} times what peers send of late ({largest:e})"
            ));
        }
        let (n, mean) = self.means.entry(from).or_insert((0, norm));
        *n = n.saturating_add(1);
        *mean += WEIGHT * (norm - *mean);
        Ok(())
    }

    /// Forgets peers that are gone.
    pub(super) fn retain(&mut self, is_member: impl Fn(PeerId) -> bool) {
        self.means.retain(|peer, _| is_member(*peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    #[test]
    fn an_absurd_norm_is_refused_once_honest_ones_are_known() {
        let mut norms = Norms::default();
        for _ in 0..FEW {
            norms.judge(peer(1), 2.0).unwrap();
        }
        assert!(norms.judge(peer(2), 150.0).is_ok());
        assert!(norms.judge(peer(2), 201.0).is_err());
        assert!(norms.judge(peer(3), f32::INFINITY).is_err());
        assert!(norms.judge(peer(3), f32::NAN).is_err());
    }

    #[test]
    fn gradients_that_vanish_and_come_back_are_no_fault() {
        let mut norms = Norms::default();
        for _ in 0..10 {
            norms.judge(peer(1), 0.0).unwrap();
        }
        norms.judge(peer(1), 5.0).unwrap();
    }
}

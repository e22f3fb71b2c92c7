//! The endless stream of rows a shard draws: epoch after epoch, each epoch its own shuffle of the shard.
//!
//! The stream is a function of (split, labels, seed, shard) alone, so a position is all that a checkpoint needs.

use super::split::{SplitError, shard_rows};
use crate::config::Split;
use crate::random::Stream;

/// A place in the stream of one shard.
#[derive(Clone, Debug)]
pub struct Sampler {
    rows: Vec<usize>,
    /// `rows` in the order of the current epoch.
    order: Vec<usize>,
    seed: u64,
    shard: u32,
    position: u64,
}

impl Sampler {
    /// The stream of `shard`, from its `position`-th sample on. `labels` are those of the whole training part.
    ///
    /// # Errors
    /// No such shard; fewer samples than shards.
    pub fn new(
        split: &Split,
        labels: &[i64],
        seed: u64,
        shard: u32,
        position: u64,
    ) -> Result<Self, SplitError> {
        let rows = shard_rows(split, labels, seed, shard)?;
        let mut sampler = Self {
            order: Vec::with_capacity(rows.len()),
            rows,
            seed,
            shard,
            position,
        };
        if sampler.epoch_position() != 0 {
            sampler.shuffle();
        }
        Ok(sampler)
    }

    /// The next `n` rows. Goes over into the next epoch as often as needed.
    pub fn next_rows(&mut self, n: usize) -> Vec<usize> {
        let mut drawn = Vec::with_capacity(n);
        while drawn.len() < n {
            let at = self.epoch_position();
            if at == 0 {
                self.shuffle();
            }
            let count = (self.order.len() - at).min(n - drawn.len());
            drawn.extend_from_slice(&self.order[at..at + count]);
            self.position += count as u64;
        }
        drawn
    }

    /// Samples drawn so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Samples in the shard: one epoch.
    pub fn shard_len(&self) -> usize {
        self.rows.len()
    }

    fn epoch_position(&self) -> usize {
        (self.position % self.rows.len() as u64) as usize
    }

    fn shuffle(&mut self) {
        let epoch = self.position / self.rows.len() as u64;
        self.order.clear();
        self.order.extend_from_slice(&self.rows);
        Stream::new(
            self.seed,
            &format!("order of shard {} epoch {epoch}", self.shard),
        )
        .shuffle(&mut self.order);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_epoch_draws_every_row_of_the_shard_once() {
        let mut sampler = Sampler::new(&Split::Iid { shards: 2 }, &[0; 11], 3, 1, 0).unwrap();
        assert_eq!(sampler.shard_len(), 6);
        let (mut first, mut second) = (sampler.next_rows(6), sampler.next_rows(6));
        assert_ne!(first, second);
        first.sort_unstable();
        second.sort_unstable();
        assert_eq!(first, second);
        assert_eq!(
            first,
            shard_rows(&Split::Iid { shards: 2 }, &[0; 11], 3, 1).unwrap()
        );
    }

    #[test]
    fn shards_that_share_all_samples_draw_in_different_orders() {
        let draw = |shard| {
            Sampler::new(&Split::All {}, &[0; 50], 3, shard, 0)
                .unwrap()
                .next_rows(50)
        };
        assert_ne!(draw(0), draw(1));
        assert_eq!(draw(0), draw(0));
    }

    proptest! {
        #[test]
        fn resuming_at_a_position_goes_on_with_the_same_stream(n in 1usize..30, sizes in proptest::collection::vec(0usize..50, 1..6)) {
            let mut sampler = Sampler::new(&Split::All {}, &vec![0; n], 8, 2, 0).unwrap();
            for size in sizes {
                sampler.next_rows(size);
                let mut resumed = Sampler::new(&Split::All {}, &vec![0; n], 8, 2, sampler.position()).unwrap();
                prop_assert_eq!(resumed.next_rows(40), sampler.clone().next_rows(40));
            }
        }
    }
}

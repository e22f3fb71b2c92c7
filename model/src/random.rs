//! Named random streams that are equal on every platform.
//!
//! Every use of randomness (initial weights, sample order, shards, dropout) draws from its own ChaCha8 stream keyed by
//! `(seed, name)`, so no use can disturb another. Only exact operations turn its integers into numbers.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Stream(ChaCha8Rng);

impl Stream {
    /// The stream called `name` of `seed`.
    pub fn new(seed: u64, name: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"skein random stream 1");
        hasher.update(&seed.to_le_bytes());
        hasher.update(name.as_bytes());
        Self(ChaCha8Rng::from_seed(*hasher.finalize().as_bytes()))
    }

    /// A uniform number in [0, 1) with 24 random bits, exact in f32.
    pub fn uniform(&mut self) -> f32 {
        (self.0.next_u32() >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    /// A uniform number in [0, 1) with 53 random bits.
    pub fn uniform_f64(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// A uniform whole number in `0..n`, without bias (Lemire 2019, arXiv:1805.10941, section 3).
    ///
    /// # Panics
    /// If `n` is zero.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "a number below zero was asked for");
        let threshold = n.wrapping_neg() % n;
        loop {
            let product = u128::from(self.0.next_u64()) * u128::from(n);
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    /// Shuffles `items`, every order equally likely (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_the_same_on_every_platform() {
        let mut stream = Stream::new(1, "golden");
        let drawn: Vec<u64> = (0..4).map(|_| stream.below(1_000_000)).collect();
        assert_eq!(drawn, [287_709, 751_992, 117_205, 59_382]);
    }

    #[test]
    fn streams_of_other_names_or_seeds_differ() {
        let first = |seed, name| Stream::new(seed, name).uniform_f64();
        assert_ne!(first(1, "a"), first(1, "b"));
        assert_ne!(first(1, "a"), first(2, "a"));
        assert_eq!(first(1, "a"), first(1, "a"));
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Stream::new(3, "shuffle").shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}

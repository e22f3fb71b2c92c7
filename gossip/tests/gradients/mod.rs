//! Seeded values with the heavy tails of real gradients, products of normals.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// `n` values; the same for the same seed everywhere.
pub(crate) fn heavy_tailed(n: usize, seed: u64) -> Vec<f32> {
    products(n, seed, 3)
}

/// `n` values of a product of so many normals; the same for the same seed everywhere.
pub(crate) fn products(n: usize, seed: u64, n_factors: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // Sums of uniforms are near enough to normal, and need no functions that differ between platforms.
    let mut normal = || {
        let (a, b) = (rng.next_u64(), rng.next_u64());
        let sum: u64 = (0..4)
            .map(|i| (a >> (16 * i) & 0xffff) + (b >> (16 * i) & 0xffff))
            .sum();
        (sum as f32 / 65536.0 - 4.0) * 1.22
    };
    (0..n)
        .map(|_| (0..n_factors).fold(1e-3, |product, _| product * normal()))
        .collect()
}

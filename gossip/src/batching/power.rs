//! A device's speed as `time = fixed + per_sample * samples`, fitted to the steps that it takes anyway (DLion fits
//! once, to timed trial batches; here the fit follows all the time).
//!
//! In: samples and duration of each step. Out: a [`Fit`]. Steps are put together into pieces of a quarter of a second,
//! because a device under a CPU quota does most steps fast and pays for them in one: only the mean tells. The pieces
//! are fitted by least squares, the older the lighter. A piece far off the fit may be a stall and is moved towards it;
//! three in a row are a new speed, and what was known before is dropped. While all steps have the same number of
//! samples, the fixed part stays as it was and the rest is put down to the samples.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Steps are put together until they lasted this long.
const PIECE_US: f64 = 250_000.0;
/// Training time in which a piece loses half of its weight.
const HALF_LIFE_US: f64 = 2_000_000.0;
/// A piece is off when it took longer than the fit by this factor, or shorter.
const OFF: f64 = 1.5;
/// So many pieces in a row that are off in the same direction are a new speed; of both directions, twice as many.
const TURN: usize = 3;
/// Weight of the fixed part known before, against the weight of all pieces: as much as sizes that vary by a twentieth
/// tell.
const PRIOR: f64 = 0.0025;
/// At least this part of a step's time is put down to its samples, so that no share becomes endless.
const LEAST_PART: f64 = 0.02;
/// No step is longer: bounds what a suspended machine can report.
const LONGEST_US: f64 = 3_600e6;

/// How long steps take on a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// Of each step, whatever its samples. Microseconds, not negative.
    pub fixed_us: f32,
    /// Of each sample. Microseconds, positive.
    pub per_sample_us: f32,
}

impl Fit {
    /// Whether both parts are in their range. What another peer claims may not be.
    pub fn is_sound(&self) -> bool {
        let longest = 0.0..=LONGEST_US as f32;
        self.per_sample_us > 0.0
            && longest.contains(&self.per_sample_us)
            && longest.contains(&self.fixed_us)
    }

    /// Time of a step of so many samples, in microseconds.
    pub fn step_us(&self, samples: u32) -> f64 {
        f64::from(self.fixed_us) + f64::from(self.per_sample_us) * f64::from(samples)
    }
}

/// Steps that are looked at as one.
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    n_steps: f64,
    samples: f64,
    us: f64,
}

impl Piece {
    /// Mean samples and time of a step.
    fn mean(&self) -> (f64, f64) {
        (self.samples / self.n_steps, self.us / self.n_steps)
    }
}

/// Weighted sums over pieces: of 1, x, y, x * x and x * y.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Sums {
    fn add(&mut self, piece: &Piece) {
        self.add_as(piece, piece.mean().1);
    }

    /// As if the piece's mean step had taken `y`.
    fn add_as(&mut self, piece: &Piece, y: f64) {
        let kept = (-piece.us / HALF_LIFE_US).exp2();
        let weight = piece.us.min(HALF_LIFE_US);
        let x = piece.mean().0;
        self.weight = self.weight * kept + weight;
        self.x = self.x * kept + weight * x;
        self.y = self.y * kept + weight * y;
        self.xx = self.xx * kept + weight * x * x;
        self.xy = self.xy * kept + weight * x * y;
    }

    /// Fixed part and part per sample, with `fixed` known before. Nothing without weight.
    fn solve(&self, fixed: f64) -> Option<(f64, f64)> {
        if self.weight <= 0.0 {
            return None;
        }
        let prior = PRIOR * self.weight;
        let (mean_x, mean_y) = (self.x / self.weight, self.y / self.weight);
        let determinant = (self.weight + prior) * self.xx - self.x * self.x;
        let per_sample =
            ((self.weight + prior) * self.xy - self.x * (self.y + prior * fixed)) / determinant;
        let most = mean_y / mean_x;
        let per_sample = per_sample.max(LEAST_PART * most).min(most);
        let fixed = (mean_y - per_sample * mean_x).max(0.0);
        (per_sample.is_finite() && per_sample > 0.0).then_some((fixed, per_sample))
    }

    /// Whether sizes vary by more than the prior counts for.
    fn tells_fixed(&self) -> bool {
        self.weight * self.xx - self.x * self.x > 4.0 * PRIOR * self.x * self.x
    }
}

/// Measures one device.
#[derive(Clone, Debug, Default)]
pub struct Power {
    piece: Piece,
    sums: Sums,
    /// Pieces that were off in a row, newest last; at most twice [`TURN`].
    off: Vec<Piece>,
    /// Of these, how many of the newest were off in the same direction.
    same: usize,
    slower: bool,
    /// The fixed part, from when sizes varied.
    fixed_us: f64,
}

impl Power {
    /// Knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A step of `samples` samples took `took`. A step of no samples says nothing.
    pub fn observe(&mut self, samples: u32, took: Duration) {
        if samples == 0 {
            return;
        }
        self.piece.n_steps += 1.0;
        self.piece.samples += f64::from(samples);
        self.piece.us += (took.as_micros() as f64).clamp(1.0, LONGEST_US);
        if self.piece.us >= PIECE_US {
            let piece = std::mem::take(&mut self.piece);
            self.take(piece);
        }
    }

    /// The speed as far as it is known, `None` before the first step. Sound.
    pub fn fit(&self) -> Option<Fit> {
        let mut sums = self.sums;
        if sums.weight == 0.0 && self.piece.n_steps > 0.0 {
            sums.add(&self.piece);
        }
        let (fixed, per_sample) = sums.solve(self.fixed_us)?;
        let fit = Fit {
            fixed_us: fixed as f32,
            per_sample_us: per_sample as f32,
        };
        fit.is_sound().then_some(fit)
    }

    fn take(&mut self, piece: Piece) {
        let Some((fixed, per_sample)) = self.sums.solve(self.fixed_us) else {
            self.sums.add(&piece);
            return;
        };
        let (x, y) = piece.mean();
        let expected = fixed + per_sample * x;
        let (low, high) = (expected / OFF, expected * OFF);
        self.sums.add_as(&piece, y.clamp(low, high));
        if (low..=high).contains(&y) {
            self.off.clear();
            self.same = 0;
        } else {
            self.turn(piece, y > high);
        }
        if self.sums.tells_fixed()
            && let Some((fixed, _)) = self.sums.solve(self.fixed_us)
        {
            self.fixed_us = fixed;
        }
    }

    fn turn(&mut self, piece: Piece, slower: bool) {
        self.same = if slower == self.slower {
            self.same + 1
        } else {
            1
        };
        self.slower = slower;
        self.off.push(piece);
        if self.same >= TURN || self.off.len() >= 2 * TURN {
            let newest = self.off.len()
                - if self.same >= TURN {
                    self.same
                } else {
                    2 * TURN
                };
            self.sums = Sums::default();
            self.off[newest..]
                .iter()
                .for_each(|piece| self.sums.add(piece));
            self.fixed_us = self.fixed_us.min(0.5 * self.sums.y / self.sums.weight);
            self.off.clear();
            self.same = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;

    /// A device that takes `fixed + per_sample * samples`, with noise of so many percent either way.
    struct Device {
        rng: ChaCha8Rng,
        power: Power,
        fixed_us: f64,
        per_sample_us: f64,
        noise: f64,
    }

    impl Device {
        fn new(fixed_us: f64, per_sample_us: f64) -> Self {
            Self {
                rng: ChaCha8Rng::seed_from_u64(3),
                power: Power::new(),
                fixed_us,
                per_sample_us,
                noise: 0.1,
            }
        }

        fn step(&mut self, samples: u32) -> f64 {
            let noise = (f64::from(self.rng.next_u32()) / 2f64.powi(31) - 1.0) * self.noise;
            let us = (self.fixed_us + self.per_sample_us * f64::from(samples)) * (1.0 + noise);
            self.power
                .observe(samples, Duration::from_micros(us as u64));
            us
        }

        /// Steps for so long; returns how many.
        fn train(&mut self, seconds: f64, sizes: &[u32]) -> usize {
            let (mut us, mut n_steps) = (0.0, 0);
            while us < seconds * 1e6 {
                us += self.step(sizes[n_steps % sizes.len()]);
                n_steps += 1;
            }
            n_steps
        }

        /// The fit's time of a step over the true one.
        fn off(&self, samples: u32) -> f64 {
            let truth = self.fixed_us + self.per_sample_us * f64::from(samples);
            self.power.fit().unwrap().step_us(samples) / truth
        }
    }

    fn near(off: f64, by: f64) -> bool {
        (off - 1.0).abs() <= by
    }

    #[test]
    fn both_parts_are_found_when_sizes_vary() {
        for (fixed, per_sample) in [(5_000.0, 1_000.0), (50_000.0, 100.0), (0.0, 3_000.0)] {
            let mut device = Device::new(fixed, per_sample);
            // Sizes change from time to time, as rebalancing does it.
            for sizes in [[16], [32], [64], [24], [48]] {
                device.train(1.0, &sizes);
            }
            for samples in [8, 32, 128] {
                let off = device.off(samples);
                assert!(near(off, 0.2), "{fixed} {per_sample} {samples}: {off}");
            }
        }
    }

    #[test]
    fn equal_sizes_keep_the_fixed_part_that_was_known() {
        let mut device = Device::new(20_000.0, 1_000.0);
        device.noise = 0.0;
        for sizes in [[16], [64], [32]] {
            device.train(2.0, &sizes);
        }
        device.train(60.0, &[32]);
        assert!(near(device.off(8), 0.05), "{}", device.off(8));
        let mut unknown = Device::new(20_000.0, 1_000.0);
        unknown.train(3.0, &[32]);
        assert!(near(unknown.off(32), 0.05));
        assert!(
            unknown.power.fit().unwrap().fixed_us < 1.0,
            "all to the samples"
        );
    }

    #[test]
    fn a_slowdown_to_a_third_shows_in_ten_steps_or_two_seconds() {
        for per_sample in [30.0, 1_000.0, 20_000.0] {
            for factor in [3.0, 1.0 / 3.0] {
                let mut device = Device::new(2_000.0, per_sample);
                device.train(20.0, &[32]);
                device.fixed_us *= factor;
                device.per_sample_us *= factor;
                let step = device.fixed_us + 32.0 * device.per_sample_us;
                device.train((10.0 * step / 1e6).max(2.0), &[32]);
                let off = device.off(32);
                assert!(near(off, 0.15), "{per_sample} x{factor}: {off}");
            }
        }
    }

    #[test]
    fn a_single_stall_moves_little() {
        for per_sample in [100.0, 1_000.0, 10_000.0] {
            let mut device = Device::new(1_000.0, per_sample);
            device.train(10.0, &[32]);
            device.power.observe(32, Duration::from_secs(5));
            device.train(0.5, &[32]);
            let off = device.off(32);
            assert!(near(off, 0.35), "{per_sample}: {off}");
            device.train(3.0, &[32]);
            assert!(
                near(device.off(32), 0.15),
                "{per_sample}: {}",
                device.off(32)
            );
        }
    }

    #[test]
    fn a_quota_counts_with_its_pauses() {
        let mut power = Power::new();
        for step in 0..2_000 {
            // A quarter of a core: 25 ms of work, 75 ms of pause.
            let us = if step % 5 == 4 { 80_000 } else { 5_000 };
            power.observe(8, Duration::from_micros(us));
        }
        let off = power.fit().unwrap().step_us(8) / 20_000.0;
        assert!(near(off, 0.1), "{off}");
    }

    proptest! {
        #[test]
        fn every_fit_is_sound(steps: Vec<(u32, u64)>, shift in 0..64u32) {
            let mut power = Power::new();
            prop_assert_eq!(power.fit(), None);
            for (samples, us) in steps {
                power.observe(samples, Duration::from_micros(us >> shift));
                prop_assert!(power.fit().is_none_or(|fit| fit.is_sound()));
                prop_assert!(power.off.len() < 2 * TURN);
            }
        }

        #[test]
        fn a_fit_is_there_after_the_first_step(samples in 1..10_000u32, us in 1..10_000_000u64) {
            let mut power = Power::new();
            power.observe(samples, Duration::from_micros(us));
            let off = power.fit().unwrap().step_us(samples) / us as f64;
            prop_assert!(near(off, 0.001));
        }
    }
}

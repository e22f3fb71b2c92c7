//! Sketches of parameters: a few numbers in a beat from which the distance between two replicas is estimated.
//!
//! A seeded random projection of sparse signs: every value is added, with a random sign, to one of [`LANES`] sums, so the
//! squared distance of two sketches is an unbiased estimate of that of the parameters; its standard error is sqrt(2 / 32) =
//! 25 % of the square, 12.5 % of the distance. The signs come in rows of [`LANES`] values, so the pass vectorises; after each
//! block of rows the sums are turned by a random number of lanes, so that a difference in one column of a matrix does not
//! meet the same lane every time. All peers must use one seed and one sampling.

use serde::{Deserialize, Serialize};

/// Numbers in a sketch.
pub const LANES: usize = 32;
/// Rows between two turns of the lanes: a turn then costs little beside them.
const ROWS: usize = 16;
const BLOCK: usize = LANES * ROWS;

/// A sketch of a replica's parameters; finite, also when it came from another peer (else it does not decode).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Sketch {
    lanes: [f32; LANES],
    norm: f32,
}

#[derive(Deserialize)]
struct Unchecked {
    lanes: [f32; LANES],
    norm: f32,
}

/// A sketch with numbers that no parameters have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sketch with a number that is not finite, or a negative norm")]
pub struct SketchError;

impl TryFrom<Unchecked> for Sketch {
    type Error = SketchError;

    fn try_from(raw: Unchecked) -> Result<Self, SketchError> {
        let Unchecked { lanes, norm } = raw;
        let sound = norm >= 0.0 && norm.is_finite() && lanes.iter().all(|lane| lane.is_finite());
        sound.then_some(Self { lanes, norm }).ok_or(SketchError)
    }
}

impl Sketch {
    /// The sketch of `parameters`; `None` if one of those read is not finite (or they are so large that their sum of squares is
    /// not).
    ///
    /// `one_in`: reads one block of 512 values in so many, chosen by the seed, and scales up; 1 reads all. Where replicas
    /// differ everywhere, as after training, a tenth of some million values does as well; a difference in few
    /// variables can be missed or overstated. 0 acts as 1.
    pub fn of(parameters: &[f32], seed: u64, one_in: usize) -> Option<Self> {
        let one_in = one_in.max(1);
        let mut sums = [0.0f64; LANES];
        let mut squares = 0.0;
        let mut n_read = 0;
        let n_blocks = parameters.len().div_ceil(BLOCK);
        for group in 0..n_blocks.div_ceil(one_in) {
            let mut random = Random(seed ^ (group as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            // A last group that is not full is read at one of the blocks it has.
            let first = group * one_in;
            let n_here = (n_blocks - first).min(one_in);
            let start = (first + (random.next() % n_here as u64) as usize) * BLOCK;
            let block = &parameters[start..parameters.len().min(start + BLOCK)];
            let (signed, squared) = project(block, &mut random);
            let turn = random.next() as usize % LANES;
            for (lane, value) in signed.iter().enumerate() {
                sums[(lane + turn) % LANES] += f64::from(*value);
            }
            squares += squared.iter().map(|value| f64::from(*value)).sum::<f64>();
            n_read += block.len();
        }
        let scale = (parameters.len() as f64 / n_read.max(1) as f64).sqrt();
        let lanes = sums.map(|sum| (sum * scale) as f32);
        let norm = (squares.sqrt() * scale) as f32;
        Sketch::try_from(Unchecked { lanes, norm }).ok()
    }

    /// The estimated distance (Euclidean) of the parameters behind two sketches of one seed and sampling. Infinite if it is
    /// beyond f32.
    pub fn distance(&self, other: &Sketch) -> f32 {
        let squares = self.lanes.iter().zip(&other.lanes);
        let square = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).powi(2);
        squares.map(square).sum::<f64>().sqrt() as f32
    }

    /// The norm (Euclidean) of the parameters: what distances are measured against.
    pub fn norm(&self) -> f32 {
        self.norm
    }
}

/// Signed sums and sums of squares per lane of at most one block.
fn project(block: &[f32], random: &mut Random) -> ([f32; LANES], [f32; LANES]) {
    let mut signed = [0.0; LANES];
    let mut squared = [0.0; LANES];
    let mut rows = block.chunks_exact(LANES);
    for row in &mut rows {
        add(&mut signed, &mut squared, row, random.next() as u32);
    }
    let mut last = [0.0; LANES];
    let rest = rows.remainder();
    last[..rest.len()].copy_from_slice(rest);
    add(&mut signed, &mut squared, &last, random.next() as u32);
    (signed, squared)
}

#[inline(always)]
fn add(signed: &mut [f32; LANES], squared: &mut [f32; LANES], row: &[f32], signs: u32) {
    for (lane, value) in row.iter().enumerate().take(LANES) {
        // A comparison, not a shift by the lane: that is one instruction on every vector unit.
        let sign = if signs & (1 << lane) == 0 { 0 } else { 1 << 31 };
        signed[lane] += f32::from_bits(value.to_bits() ^ sign);
        squared[lane] += value * value;
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): the same numbers on every peer.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;
    use crate::wire::codec::{decode, encode};

    fn noise(n_values: usize, seed: u64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let uniform = |rng: &mut ChaCha8Rng| rng.next_u32() as f32 / u32::MAX as f32 - 0.5;
        (0..n_values).map(|_| uniform(&mut rng)).collect()
    }

    fn distance(a: &[f32], b: &[f32]) -> f32 {
        let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
        squares.sum::<f64>().sqrt() as f32
    }

    /// In how many of 200 seeds the estimate is within 25 %, for replicas that differ by `change`.
    fn share_within(parameters: &[f32], change: &[f32], one_in: usize) -> f32 {
        let other: Vec<f32> = parameters.iter().zip(change).map(|(a, b)| a + b).collect();
        let exact = distance(parameters, &other);
        let is_within = |seed: &u64| {
            let [a, b] = [parameters, &other].map(|of| Sketch::of(of, *seed, one_in).unwrap());
            (a.distance(&b) / exact - 1.0).abs() < 0.25
        };
        (0..200).filter(is_within).count() as f32 / 200.0
    }

    #[test]
    fn distances_are_estimated_within_a_quarter() {
        let n = 100_003;
        let (parameters, change) = (noise(n, 1), noise(n, 2));
        assert!(share_within(&parameters, &change, 1) > 0.92);
        assert!(
            share_within(&parameters, &change, 8) > 0.92,
            "an eighth of them"
        );
        let one_column: Vec<f32> = (0..n)
            .map(|i| if i % 64 == 7 { change[i] } else { 0.0 })
            .collect();
        assert!(
            share_within(&parameters, &one_column, 1) > 0.92,
            "one column of a matrix"
        );
        let one_variable: Vec<f32> = (0..n)
            .map(|i| if i < 2000 { change[i] } else { 0.0 })
            .collect();
        assert!(
            share_within(&parameters, &one_variable, 1) > 0.9,
            "one small variable"
        );
    }

    #[test]
    fn the_norm_is_that_of_the_parameters_and_equal_replicas_are_at_no_distance() {
        let parameters = noise(70_001, 3);
        let sketch = Sketch::of(&parameters, 9, 1).unwrap();
        let exact = distance(&parameters, &vec![0.0; parameters.len()]);
        assert!((sketch.norm() / exact - 1.0).abs() < 1e-4);
        let sampled = Sketch::of(&parameters, 9, 10).unwrap();
        assert!((sampled.norm() / exact - 1.0).abs() < 0.05);
        assert_eq!(sketch.distance(&sketch), 0.0);
    }

    #[test]
    fn what_is_not_finite_has_no_sketch() {
        for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
            let mut parameters = noise(1000, 4);
            parameters[777] = bad;
            assert_eq!(Sketch::of(&parameters, 1, 1), None, "{bad}");
        }
        assert!(Sketch::of(&[], 1, 1).is_some());
        assert!(Sketch::of(&[1.0], 1, 0).is_some());
    }

    proptest! {
        #[test]
        fn a_sketch_on_the_wire_is_whole_and_finite_or_refused(lanes: [f32; LANES], norm: f32) {
            let bytes = encode(&Sketch { lanes, norm });
            let sound = norm >= 0.0 && norm.is_finite() && lanes.iter().all(|lane| lane.is_finite());
            match decode::<Sketch>(&bytes) {
                Ok(sketch) => {
                    prop_assert!(sound);
                    prop_assert_eq!(sketch, Sketch { lanes, norm });
                }
                Err(_) => prop_assert!(!sound),
            }
        }

        #[test]
        fn nothing_panics_and_distances_are_never_negative(
            a: Vec<f32>, b: Vec<f32>, seed: u64, one_in in 0..9usize
        ) {
            if let (Some(a), Some(b)) = (Sketch::of(&a, seed, one_in), Sketch::of(&b, seed, one_in)) {
                prop_assert!(a.distance(&b) >= 0.0);
            }
        }
    }
}

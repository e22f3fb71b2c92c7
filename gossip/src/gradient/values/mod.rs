//! The values of a packet: f32 as they are, or rounded to fewer bits.
//!
//! Whatever the kind, `original - decoded` is exact in f32: both are multiples of the original's last bit and the
//! difference is no larger than the original (Sterbenz, or the decoded value is zero). So the residual keeps the rounding
//! error without an error of its own. The bytes of a value are split between two parts of a packet: *highs*, which zstd
//! sees, and *raw*, which are noise and lie in the packet as they are. Each kind has a file:
//!
//! | kind | precision | highs | raw |
//! |---|---|---|---|
//! | f16 | 11 bits, scale per 1,024 | sign, exponent, 2 bits | 8 bits |
//! | bf16 | 8 bits | exponent | sign, 7 bits |
//! | int8 | 7 bits of the largest of 256 | all | |
//! | octave | sign, nearer power of two | all | |
//! | f32 | all | | all |

mod bfloats;
mod bytes;
mod floats;
mod halves;
mod octaves;

use super::sample::{largest, magnitude};

/// Values coded in one go: small enough for its buffers to stay in the fastest cache.
const CHUNK: usize = 1024;

/// How values are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Half precision, 2 bytes per value; rounding stays in the residual.
    F16,
    /// The bits of the f32, 4 bytes per value: exact.
    F32,
    /// The upper half of the f32, 2 bytes per value, one of them well compressible; rounding stays in the residual.
    BF16,
    /// A multiple of a power of two per block of 256 values, 1 byte per value; rounding stays in the residual.
    Int8,
    /// Sign and nearer power of two, 3 bits or so per value; rounding stays in the residual.
    Octave,
}

impl Values {
    /// Every kind, in the order of their numbers in a packet.
    pub const ALL: [Self; 5] = [Self::F16, Self::F32, Self::BF16, Self::Int8, Self::Octave];

    /// For a budget: half precision where everything fits, and where it does not, the kind of which most entries fit.
    pub const AUTO: [Self; 2] = [Self::F16, Self::Int8];

    /// Bytes in the raw part for `n` values.
    pub(super) const fn raw_bytes(self, n: usize) -> usize {
        match self {
            Self::F16 | Self::BF16 => n,
            Self::F32 => 4 * n,
            Self::Int8 | Self::Octave => 0,
        }
    }

    /// Bytes in the highs for `n` values.
    pub(super) const fn highs_bytes(self, n: usize) -> usize {
        match self {
            Self::F16 => halves::highs_bytes(n),
            Self::F32 => 0,
            Self::BF16 => n,
            Self::Int8 => bytes::n_bytes(n),
            Self::Octave => octaves::n_bytes(n),
        }
    }

    /// Whether sending all `length` entries takes no more bytes than `n` of them with their gaps.
    pub(super) const fn is_dense(self, n: usize, length: usize) -> bool {
        match self {
            Self::F16 | Self::BF16 => n * 3 >= length * 2,
            Self::F32 => n * 5 >= length * 4,
            Self::Int8 | Self::Octave => n * 2 >= length,
        }
    }

    /// Appends `values`. Fails with the position of a value that is not finite; the outputs are then of no use.
    pub(super) fn put(
        self,
        values: &[f32],
        highs: &mut Vec<u8>,
        raw: &mut Vec<u8>,
    ) -> Result<(), usize> {
        match self {
            Self::F16 => halves::put(values, highs, raw),
            Self::F32 => floats::put(values, raw),
            Self::BF16 => bfloats::put(values, highs, raw),
            Self::Int8 => bytes::put(values, highs),
            Self::Octave => octaves::put(values, highs),
        }
    }

    /// Checks that bytes of the right number make finite values; else the position of a value.
    pub(super) fn check(self, highs: &[u8], raw: &[u8]) -> Result<(), usize> {
        match self {
            Self::F16 => halves::check(highs),
            Self::F32 => floats::check(raw),
            Self::BF16 => bfloats::check(highs),
            Self::Int8 => bytes::check(highs),
            Self::Octave => octaves::check(highs),
        }
    }

    /// Decodes checked bytes, chunk by chunk, into `take`; returns the sum of the values' squares.
    pub(super) fn take(self, highs: &[u8], raw: &[u8], take: impl FnMut(&[f32])) -> f64 {
        match self {
            Self::F16 => halves::take(highs, raw, take),
            Self::F32 => floats::take(raw, take),
            Self::BF16 => bfloats::take(highs, raw, take),
            Self::Int8 => bytes::take(highs, take),
            Self::Octave => octaves::take(highs, take),
        }
    }
}

/// The sum of squares: in f32, as is fast, unless squares overflow or may have underflowed.
fn squares_of(values: &[f32]) -> f64 {
    let quick = sum_of_squares(values);
    if (1e-20..f32::MAX).contains(&quick) {
        f64::from(quick)
    } else {
        values
            .iter()
            .map(|value| f64::from(*value) * f64::from(*value))
            .sum()
    }
}

fn sum_of_squares(values: &[f32]) -> f32 {
    let mut lanes = [0.0; 16];
    let groups = values.chunks_exact(16);
    let rest: f32 = groups.remainder().iter().map(|value| value * value).sum();
    for group in groups {
        for (lane, value) in lanes.iter_mut().zip(group) {
            *lane += value * value;
        }
    }
    lanes.iter().sum::<f32>() + rest
}

fn position_not_finite(values: &[f32]) -> usize {
    values
        .iter()
        .position(|value| !value.is_finite())
        .unwrap_or(0)
}

/// `2^e` for `e` from -126 to 127.
fn power_of_two(e: i32) -> f32 {
    f32::from_bits(((e + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(kind: Values, values: &[f32]) -> (Vec<f32>, f64) {
        let (mut highs, mut raw, mut back) = (vec![], vec![], vec![]);
        kind.put(values, &mut highs, &mut raw).unwrap();
        assert_eq!(
            (highs.len(), raw.len()),
            (kind.highs_bytes(values.len()), kind.raw_bytes(values.len()))
        );
        assert_eq!(kind.check(&highs, &raw), Ok(()));
        let squares = kind.take(&highs, &raw, |values| back.extend_from_slice(values));
        (back, squares)
    }

    #[test]
    fn the_largest_and_the_least_floats_stay_finite_and_exact_in_the_residual() {
        let least = f32::from_bits(1);
        for kind in Values::ALL {
            for values in [
                vec![f32::MAX, f32::MIN, 1.0, least],
                vec![least, -least, 0.0],
                vec![f32::MIN_POSITIVE, least],
                vec![127.5, -127.4, 0.5, 1.5, 64.0],
            ] {
                for (value, back) in values.iter().zip(round_trip(kind, &values).0) {
                    assert!(back.is_finite());
                    assert_eq!(f64::from(value - back) + f64::from(back), f64::from(*value));
                }
            }
        }
    }

    #[test]
    fn bytes_that_would_overflow_are_refused() {
        for (kind, highs, ok) in [
            (Values::F16, [113, 0x77], true),
            (Values::F16, [113, 0x78], false),
            (Values::F16, [113, 0xf8], false),
            (Values::F16, [114, 0], false),
            (Values::F16, [0x81, 0], false),
            (Values::BF16, [0xfe, 0xfe], true),
            (Values::BF16, [0xfe, 0xff], false),
            (Values::Int8, [121, 0x81], true),
            (Values::Int8, [121, 0x80], false),
            (Values::Int8, [122, 1], false),
            (Values::Int8, [0x81, 1], false),
            (Values::Octave, [254, 0x80], true),
            (Values::Octave, [254, 0xff], false),
            (Values::Octave, [255, 0], false),
            (Values::Octave, [0, 127], false),
            (Values::Octave, [3, 2], true),
            (Values::Octave, [3, 3], false),
        ] {
            assert_eq!(kind.check(&highs, &[]).is_ok(), ok, "{kind:?} {highs:#x?}");
            if ok {
                let raw = [0xff; 2];
                kind.take(&highs, &raw[..kind.raw_bytes(2).min(1)], |values| {
                    assert!(values.iter().all(|value| value.is_finite()));
                });
            }
        }
    }

    #[test]
    fn values_that_are_not_finite_are_found() {
        let mut values = vec![1.0; 3000];
        values[2500] = f32::NAN;
        for kind in Values::ALL {
            assert_eq!(kind.put(&values, &mut vec![], &mut vec![]), Err(2500));
        }
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        assert_eq!(Values::F32.check(&[], &bytes), Err(2500));
    }

    /// The most by which a value may change, given the largest magnitude that shares its scale.
    fn tolerance(kind: Values, value: f32, largest: f32) -> f32 {
        match kind {
            Values::F16 if value.abs() >= largest * 2f32.powi(-28) => value.abs() * 2f32.powi(-11),
            Values::F16 => f32::INFINITY,
            Values::F32 => 0.0,
            // And what is below the normal numbers.
            Values::BF16 => (value.abs() * 2f32.powi(-8)).max(2f32.powi(-134)),
            // Half a step, a whole one at the largest multiple.
            Values::Int8 if value.abs() < largest * 0.99 => {
                (largest * 2f32.powi(-7)).max(2f32.powi(-127))
            }
            Values::Int8 => largest * 2f32.powi(-6),
            // Half of the power of two; what is far below the largest is nothing.
            Values::Octave if value.abs() >= largest * 2f32.powi(-100) => {
                value.abs() * 0.34 + 2f32.powi(-126)
            }
            Values::Octave => f32::INFINITY,
        }
    }

    proptest! {
        #[test]
        fn values_come_back_within_their_precision_and_the_rest_is_exact(
            bits in proptest::collection::vec(any::<u32>(), 1..2100), narrow: bool, kind in prop::sample::select(&Values::ALL),
        ) {
            let finite = |bits: u32| if narrow { (bits & 0x80ff_ffff) | 0x3e00_0000 } else { bits & 0xbfff_ffff };
            let values: Vec<f32> = bits.into_iter().map(|bits| f32::from_bits(finite(bits))).collect();
            let (back, squares) = round_trip(kind, &values);
            let block = if matches!(kind, Values::Int8 | Values::Octave) { 256 } else { CHUNK };
            for (chunk, back) in values.chunks(block).zip(back.chunks(block)) {
                let largest = f32::from_bits(largest(chunk));
                for (value, back) in chunk.iter().zip(back) {
                    let rest = value - back;
                    prop_assert_eq!(f64::from(rest) + f64::from(*back), f64::from(*value));
                    prop_assert_eq!(rest + back, *value);
                    prop_assert!(rest.abs() <= tolerance(kind, *value, largest), "{:?} {} {}", kind, value, back);
                }
            }
            let exact: f64 = back.iter().map(|value| f64::from(*value).powi(2)).sum();
            prop_assert!((squares - exact).abs() <= exact * 1e-5, "{squares} {exact}");
        }

        #[test]
        fn floats_come_back_bit_for_bit(values in proptest::collection::vec(prop_oneof![-1e30f32..1e30, -1f32..1.0, -1e-15f32..1e-15], 1..3000)) {
            let (back, squares) = round_trip(Values::F32, &values);
            let exact: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
            prop_assert!((squares - exact).abs() <= exact * 1e-5, "{squares} {exact}");
            prop_assert_eq!(back, values);
        }
    }
}

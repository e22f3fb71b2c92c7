//! A gradient added to a residual.

use super::sample::{INFINITE, magnitude};

/// Adds `gradient` to `residual`, entry by entry, and says whether all sums are finite, in the same pass. Both have the
/// model's length; entries beyond the shorter are left alone.
pub fn accumulate(residual: &mut [f32], gradient: &[f32]) -> bool {
    let mut signs = 0;
    for (kept, value) in residual.iter_mut().zip(gradient) {
        *kept += value;
        // A magnitude that is not finite carries into the sign.
        signs |= magnitude(*kept).wrapping_add(0x8000_0000 - INFINITE);
    }
    signs >> 31 == 0
}

/// Whether all values are finite, in one pass without branches.
pub fn all_finite(values: &[f32]) -> bool {
    let carry = |signs, value: &f32| signs | magnitude(*value).wrapping_add(0x8000_0000 - INFINITE);
    values.iter().fold(0, carry) >> 31 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_that_is_not_finite_is_noticed_wherever_it_is() {
        assert!(all_finite(&[]) && all_finite(&[f32::MAX, f32::MIN, -0.0, 1e-42]));
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 17, 99] {
                let mut values = [1.0; 100];
                values[at] = bad;
                assert!(!all_finite(&values), "{bad} at {at}");
            }
        }
    }

    #[test]
    fn sums_are_those_of_a_plain_loop_and_overflow_is_noticed() {
        let mut residual: Vec<f32> = (0..1003).map(|i| i as f32 * 0.3).collect();
        let gradient: Vec<f32> = (0..1003).map(|i| 7.0 - i as f32).collect();
        let expected: Vec<f32> = residual.iter().zip(&gradient).map(|(a, b)| a + b).collect();
        assert!(accumulate(&mut residual, &gradient));
        assert_eq!(residual, expected);
        for (kept, value) in [
            (f32::MAX, f32::MAX),
            (0.0, f32::NAN),
            (f32::INFINITY, 1.0),
            (f32::NEG_INFINITY, f32::INFINITY),
        ] {
            for at in [0, 500, 1002] {
                let (mut residual, mut gradient) = (vec![1.0; 1003], vec![f32::MIN; 1003]);
                assert!(accumulate(&mut residual.clone(), &gradient));
                (residual[at], gradient[at]) = (kept, value);
                assert!(!accumulate(&mut residual, &gradient), "{kept} + {value}");
            }
        }
    }
}

//! Logarithm and exponential that are equal on every platform.
//!
//! The system's `ln` and `exp` differ in the last bit from platform to platform; shards drawn with them could overlap.
//! These use only sums, products and one division, and are right to about 1e-15.

/// Natural logarithm of a normal positive number.
pub(crate) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52)); // 1 ≤ mantissa < 2
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln m = 2 artanh s = 2 (s + s³/3 + s⁵/5 + …), |s| < 0.172
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let series = (0..12)
        .rev()
        .fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * s * series
}

/// `e` to the `x`, zero below -700 and at most `e` to the 700.
pub(crate) fn exp(x: f64) -> f64 {
    if x < -700.0 {
        return 0.0;
    }
    let x = x.min(700.0);
    let power = (x / std::f64::consts::LN_2).round();
    let rest = x - power * std::f64::consts::LN_2; // |rest| < 0.35
    let series = (1..=16)
        .rev()
        .fold(1.0, |sum, k| 1.0 + sum * rest / f64::from(k));
    series * f64::from_bits(((power as i64 + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_agree_with_the_system() {
        for i in 1..2000 {
            let x = f64::from(i) * 0.37;
            assert!(
                (ln(x) - x.ln()).abs() < 1e-14 * (1.0 + x.ln().abs()),
                "ln {x}"
            );
            assert!((ln(1.0 / x) + x.ln()).abs() < 1e-13, "ln 1/{x}");
            let y = x - 370.0;
            assert!((exp(y) / y.exp() - 1.0).abs() < 1e-12, "exp {y}");
        }
        assert_eq!((exp(0.0), ln(1.0), exp(-1e9)), (1.0, 0.0, 0.0));
    }
}

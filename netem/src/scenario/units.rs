//! Times, rates and sizes as people write them.

use std::time::Duration;

/// Longest time that a scenario may name: a week.
pub(super) const MAX_TIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// Reads "5ms", "1.5s", "2m" or "1h", to a week; none for anything else.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let seconds = match unit {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let duration = Duration::try_from_secs_f64(number * seconds).ok()?;
    (duration <= MAX_TIME).then_some(duration)
}

/// Reads "256K", "1.5M" or "2G" with K = `thousand`; "bit" or "bit/s" and "B" may follow where they fit.
pub(super) fn scaled(text: &str, thousand: u64) -> Option<u64> {
    let (number, unit) = split(text)?;
    let unit = match thousand {
        1024 => unit.trim_end_matches('B').trim_end_matches('i'),
        _ => unit.trim_end_matches("/s").trim_end_matches("bit"),
    };
    let thousand = thousand as f64;
    let factor = match unit {
        "" => 1.0,
        "k" | "K" => thousand,
        "M" => thousand * thousand,
        "G" => thousand * thousand * thousand,
        _ => return None,
    };
    let value = number * factor;
    (value <= 1e15).then_some(value.round() as u64)
}

/// A number of 0 or more, and what follows it.
fn split(text: &str) -> Option<(f64, &str)> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim_start()))
}

/// A rate for people: "50 Mbit/s".
pub fn rate_text(bits_per_s: u64) -> String {
    let (value, unit) = match bits_per_s {
        1_000_000_000.. => (bits_per_s as f64 / 1e9, "Gbit/s"),
        1_000_000.. => (bits_per_s as f64 / 1e6, "Mbit/s"),
        1000.. => (bits_per_s as f64 / 1e3, "kbit/s"),
        _ => (bits_per_s as f64, "bit/s"),
    };
    format!("{} {unit}", (value * 100.0).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit() {
        for (text, expected) in [
            ("5ms", Some(5_000)),
            ("50us", Some(50)),
            ("1.5s", Some(1_500_000)),
            ("2 min", Some(120_000_000)),
            ("1h", Some(3_600_000_000)),
            ("40", None),
            ("s", None),
            ("-3s", None),
            ("1e3s", None),
            ("99999999999999999999h", None),
            ("169h", None),
        ] {
            let expected = expected.map(Duration::from_micros);
            assert_eq!(duration(text), expected, "{text}");
        }
    }

    #[test]
    fn rates_count_in_thousands_and_sizes_in_1024() {
        for (text, expected) in [
            ("50M", Some(50_000_000)),
            ("1.5 Gbit/s", Some(1_500_000_000)),
            ("800kbit", Some(800_000)),
            ("64000", Some(64_000)),
            ("fast", None),
            ("1e9", None),
            ("", None),
        ] {
            assert_eq!(scaled(text, 1000), expected, "{text}");
        }
        for (text, expected) in [
            ("256K", Some(262_144)),
            ("512MiB", Some(536_870_912)),
            ("1500", Some(1500)),
            ("2T", None),
        ] {
            assert_eq!(scaled(text, 1024), expected, "{text}");
        }
        assert_eq!(rate_text(1_500_000), "1.5 Mbit/s");
    }
}

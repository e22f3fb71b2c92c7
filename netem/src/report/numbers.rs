//! Numbers for people.

use std::time::Duration;

/// A time for people.
pub(super) fn time_text(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match time {
        Duration::ZERO => "0 s".to_owned(),
        _ if seconds < 1e-3 => format!("{} µs", rounded(seconds * 1e6)),
        _ if seconds < 1.0 => format!("{} ms", rounded(seconds * 1e3)),
        _ => format!("{} s", rounded(seconds)),
    }
}

/// A size of memory or of a queue, in 1024s.
pub(super) fn size_text(bytes: u64) -> String {
    match bytes {
        0x4000_0000.. => format!("{} GiB", rounded(bytes as f64 / 1_073_741_824.0)),
        0x10_0000.. => format!("{} MiB", rounded(bytes as f64 / 1_048_576.0)),
        _ => format!("{} KiB", rounded(bytes as f64 / 1024.0)),
    }
}

/// To two digits.
pub(super) fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// `1 node`, `2 nodes`.
pub fn counted(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

/// A value for people; "never" without one.
pub(super) fn number_text(value: Option<f64>) -> String {
    let Some(value) = value else {
        return "never".to_owned();
    };
    let size = value.abs();
    if value == value.trunc() && size < 1e15 {
        return grouped(value as i64);
    }
    match size {
        100_000.0.. => grouped(value.round() as i64),
        1000.0.. => format!("{value:.0}"),
        100.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        0.001.. => format!("{value:.4}"),
        _ => format!("{value:.2e}"),
    }
}

/// Thousands set apart by thin spaces from five digits on.
fn grouped(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    if digits.len() < 5 {
        return value.to_string();
    }
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    if value < 0 { format!("-{text}") } else { text }
}

/// Bytes for people, in thousands.
pub(super) fn bytes_text(bytes: f64) -> String {
    let (value, unit) = match bytes {
        1e12.. => (bytes / 1e12, "TB"),
        1e9.. => (bytes / 1e9, "GB"),
        1e6.. => (bytes / 1e6, "MB"),
        1e3.. => (bytes / 1e3, "kB"),
        _ => return format!("{bytes:.0} B"),
    };
    let digits = if value < 100.0 { 1 } else { 0 };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_never_is_a_word() {
        for (value, text) in [
            (None, "never"),
            (Some(5.0), "5"),
            (Some(12_345_678.0), "12\u{202f}345\u{202f}678"),
            (Some(-12_345.0), "-12\u{202f}345"),
            (Some(1234.56), "1235"),
            (Some(101.24), "101.2"),
            (Some(2.345), "2.35"),
            (Some(0.85), "0.8500"),
            (Some(0.00002), "2.00e-5"),
        ] {
            assert_eq!(number_text(value), text);
        }
        assert_eq!(bytes_text(81_000_000.0), "81.0 MB");
        assert_eq!(size_text(1_500 << 20), "1.46 GiB");
        assert_eq!(time_text(Duration::from_micros(1500)), "1.5 ms");
        assert_eq!(
            (counted(1, "node"), counted(2, "node")),
            ("1 node".into(), "2 nodes".into())
        );
    }
}

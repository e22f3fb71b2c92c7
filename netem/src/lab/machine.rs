//! The machine that the lab runs on.

use std::fs;
use std::thread::available_parallelism;

use super::LabError;

/// Cores that processes may use.
pub(super) fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// # Errors
/// The shares add up to more than there is.
pub(super) fn check_shares(shares: impl Iterator<Item = f64>) -> Result<(), LabError> {
    let (asked, cores) = (shares.sum::<f64>(), cores());
    // Sums of decimal fractions miss by a little.
    match asked > cores as f64 + 1e-9 {
        true => Err(LabError::Overbooked { asked, cores }),
        false => Ok(()),
    }
}

/// Processor, cores and memory, in words.
pub(super) fn describe() -> String {
    let value = |file: &str, key: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let processor = value("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into());
    let memory = value("/proc/meminfo", "MemTotal");
    let kib = memory.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    let gib = kib.unwrap_or(0) as f64 / f64::from(1 << 20);
    format!("{processor}, {} cores, {gib:.1} GiB", cores())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_may_add_up_to_all_cores_and_no_more() {
        let tenths = cores() * 10;
        assert!(check_shares((0..tenths).map(|_| 0.1)).is_ok());
        let over = check_shares((0..tenths + 1).map(|_| 0.1));
        assert!(matches!(over, Err(LabError::Overbooked { .. })));
    }
}

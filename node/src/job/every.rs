//! `[checkpoint]` as written (`every = "30s"` or `steps = 500`) turned into one interval that is one or the other.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::document::Document;
use super::error::JobError;
use super::file::Checkpoint;

/// An interval in time or in steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Every {
    /// That much wall time, 1 s to 30 days.
    Time(Duration),
    /// That many steps, 1 or more.
    Steps(u64),
}

/// The section as written.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Written {
    every: Option<String>,
    steps: Option<u64>,
    keep: Option<u32>,
}

/// Longest time between checkpoints; longer is a slip of the pen.
const MAX_TIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// Reads `[checkpoint]`.
pub(super) fn checkpoint(document: &Document<'_>) -> Result<Checkpoint, JobError> {
    let written: Written = document.read("checkpoint")?.unwrap_or_default();
    let default = Checkpoint::default();
    let every = match (written.every, written.steps) {
        (Some(_), Some(_)) => {
            let fix = "keep either `every` (a time) or `steps`";
            return Err(document.fault("checkpoint.steps", "is given beside `every`", fix));
        }
        (None, Some(0)) => {
            return Err(document.fault("checkpoint.steps", "is 0", "write 1 or more, such as 500"));
        }
        (None, Some(steps)) => Every::Steps(steps),
        (Some(text), None) => match duration(&text) {
            Some(time) if (Duration::from_secs(1)..=MAX_TIME).contains(&time) => Every::Time(time),
            _ => {
                let fix = "write a time from \"1s\" to \"30d\", such as \"30s\", \"5m\" or \"2h\"";
                return Err(document.fault(
                    "checkpoint.every",
                    "is not a time that can be used",
                    fix,
                ));
            }
        },
        (None, None) => default.every,
    };
    let keep = written.keep.unwrap_or(default.keep);
    if !(1..=1000).contains(&keep) {
        return Err(document.fault(
            "checkpoint.keep",
            format!("is {keep}"),
            "write 1 to 1000, such as 3",
        ));
    }
    Ok(Checkpoint { every, keep })
}

/// Reads "500ms", "30s", "5m", "2h" or "1d".
fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 3600 * 1000,
        "d" => 24 * 3600 * 1000,
        _ => return None,
    };
    number.checked_mul(unit_ms).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit() {
        for (text, expected) in [
            ("30s", Some(30_000)),
            ("5m", Some(300_000)),
            ("1500ms", Some(1500)),
            ("1h", Some(3_600_000)),
            ("30", None),
            ("s", None),
            ("-3s", None),
            ("3 s", None),
            ("99999999999999999999s", None),
            ("18446744073709551615d", None),
        ] {
            assert_eq!(
                duration(text),
                expected.map(Duration::from_millis),
                "{text}"
            );
        }
    }
}

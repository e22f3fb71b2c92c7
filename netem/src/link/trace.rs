//! A link's rate over time, from a CSV file: `time,rate[,delay]`, seconds, bits per second, seconds.

use std::time::Duration;

use super::Nanos;
use super::profile::{MAX_DELAY, MAX_RATE};

/// Longest trace: a day at a point per second.
const MAX_POINTS: usize = 100_000;
/// Points closer together would make a run of nothing but changes of the line.
const SMALLEST_GAP: Nanos = 1_000_000;

/// From this moment on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TracePoint {
    /// Since the start of the run.
    pub at: Nanos,
    /// Bits per second.
    pub rate: u64,
    /// One-way delay, where the file has the column.
    pub delay: Option<Duration>,
}

/// A trace, ascending in time, of at least one point. After the last point it starts over.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The points.
    pub points: Vec<TracePoint>,
}

/// What is wrong with a trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TraceFault {
    /// Counted from 1.
    pub line: usize,
    /// In words, with the fix.
    pub what: String,
}

impl Trace {
    /// Reads a trace. A first line that is no number is a heading; empty lines and `#` lines are left out.
    ///
    /// # Errors
    /// The first [`TraceFault`].
    pub fn parse(text: &str) -> Result<Self, TraceFault> {
        let mut points: Vec<TracePoint> = Vec::new();
        let mut heading = true;
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.trim();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let fault = |what: String| TraceFault { line, what };
            let fields: Vec<&str> = content.split(',').map(str::trim).collect();
            if std::mem::take(&mut heading) && fields[0].parse::<f64>().is_err() {
                continue;
            }
            if !(2..=3).contains(&fields.len()) {
                let n = fields.len();
                return Err(fault(format!(
                    "has {n} columns; give time,rate or time,rate,delay"
                )));
            }
            let number = |text: &str| {
                let value = text
                    .parse::<f64>()
                    .ok()
                    .filter(|value| value.is_finite() && *value >= 0.0);
                value.ok_or_else(|| fault(format!("{text:?} is no number of 0 or more")))
            };
            let (time, rate) = (number(fields[0])?, number(fields[1])?);
            let delay = fields.get(2).map(|text| number(text)).transpose()?;
            if time > 1e7 {
                return Err(fault("a time beyond 10^7 s".into()));
            }
            if !(1.0..=MAX_RATE as f64).contains(&rate) {
                return Err(fault(format!("rate {rate}: give 1 bit/s to 100 Gbit/s")));
            }
            if delay.is_some_and(|delay| delay > MAX_DELAY.as_secs_f64()) {
                return Err(fault("a delay beyond 60 s".into()));
            }
            // To the microsecond, so that 1 ms apart as written is 1 ms apart.
            let at = (time * 1e6).round() as Nanos * 1000;
            if points.last().is_some_and(|last| last.at >= at) {
                return Err(fault("time does not grow".into()));
            }
            if points
                .last()
                .is_some_and(|last| at - last.at < SMALLEST_GAP)
            {
                let what = "less than 1 ms after the point before; leave points out";
                return Err(fault(what.into()));
            }
            if points.len() == MAX_POINTS {
                return Err(fault(format!("more than {MAX_POINTS} points")));
            }
            points.push(TracePoint {
                at,
                rate: rate as u64,
                delay: delay.map(Duration::from_secs_f64),
            });
        }
        if points.is_empty() {
            return Err(TraceFault {
                line: 1,
                what: "has no points".into(),
            });
        }
        Ok(Self { points })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_trace_is_read_with_its_heading_and_comments() {
        let trace =
            Trace::parse("time,rate,delay\n# morning\n0,1000000,0.01\n\n2.5,2e6,0.02\n").ok();
        let points = trace.map(|trace| trace.points);
        let expected = vec![
            TracePoint {
                at: 0,
                rate: 1_000_000,
                delay: Some(Duration::from_millis(10)),
            },
            TracePoint {
                at: 2_500_000_000,
                rate: 2_000_000,
                delay: Some(Duration::from_millis(20)),
            },
        ];
        assert_eq!(points, Some(expected));
    }

    #[test]
    fn points_are_at_least_a_millisecond_apart() {
        let fault = Trace::parse("0,1e6\n# dense\n0.000000001,2e6").map_err(|fault| fault.line);
        assert_eq!(fault, Err(3));
        let fault = Trace::parse("0,1e6\n0.0009,2e6").map_err(|fault| fault.to_string());
        let expected = "line 2: less than 1 ms after the point before; leave points out";
        assert_eq!(fault, Err(expected.to_owned()));
        for text in ["0.002,1e6\n0.003,2e6", "1234.567,1e6\n1234.568,2e6"] {
            assert!(Trace::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn faults_name_the_line() {
        for (text, line) in [
            ("", 1),
            ("0,1e6\n1", 2),
            ("0,1e6\n0,1e6", 2),
            ("0,0", 1),
            ("0,1e6\n1,fast", 2),
            ("0,1e6,61", 1),
        ] {
            let fault = Trace::parse(text).map_err(|fault| fault.line);
            assert_eq!(fault, Err(line), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_trace_or_an_error(text in "[0-9.,e#\n -]{0,200}") {
            if let Ok(trace) = Trace::parse(&text) {
                prop_assert!(trace.points.windows(2).all(|pair| pair[0].at < pair[1].at));
            }
        }
    }
}

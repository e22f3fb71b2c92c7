//! When an accuracy is reached for good rather than by a lucky look: the mean of five looks three seconds apart.
//!
//! A single look at a noisy curve flatters whoever looks often. Every three seconds from the first view (or the first look, where a
//! program has no views) the latest look of any node counts, the mean of the last five of these is compared.

use crate::record::Metric;

/// Seconds between two looks that count.
const EVERY_S: f64 = 3.0;
/// Looks whose mean is compared.
const LOOKS: usize = 5;

/// Seconds on the run's clock at which the mean reached `accuracy`, and when counting began.
pub(super) fn reached<'a>(
    looks: impl Iterator<Item = &'a Metric>,
    began: Option<f64>,
    accuracy: f64,
) -> Option<(f64, f64)> {
    let seen = |line: &Metric| Some((line.t, line.number("val_accuracy")?));
    let mut looks: Vec<(f64, f64)> = looks.filter_map(seen).collect();
    looks.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (first, last) = (looks.first()?.0, looks.last()?.0);
    let began = began.unwrap_or(first);
    let mut window = Vec::with_capacity(LOOKS);
    let mut next = 0;
    let mut latest = None;
    for n in 0.. {
        let t = began + EVERY_S * f64::from(n);
        while let Some((_, seen)) = looks.get(next).filter(|(at, _)| *at <= t) {
            latest = Some(*seen);
            next += 1;
        }
        if let Some(latest) = latest {
            if window.len() == LOOKS {
                window.remove(0);
            }
            window.push(latest);
            let mean = window.iter().sum::<f64>() / LOOKS as f64;
            if window.len() == LOOKS && mean >= accuracy {
                return Some((t, began));
            }
        }
        if t > last + EVERY_S * LOOKS as f64 {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn look(t: f64, accuracy: f64) -> Metric {
        let fields = json!({ "val_accuracy": accuracy });
        Metric {
            t,
            event: "evaluated".into(),
            fields: fields.as_object().cloned().unwrap_or_default(),
        }
    }

    #[test]
    fn one_lucky_look_reaches_nothing() {
        let looks = [
            look(1.0, 0.5),
            look(4.0, 0.95),
            look(7.0, 0.6),
            look(40.0, 0.6),
        ];
        assert_eq!(reached(looks.iter(), Some(0.0), 0.9), None);
        assert_eq!(reached([].iter(), Some(0.0), 0.9), None);
    }

    #[test]
    fn five_looks_in_a_row_do_and_the_clock_begins_with_the_view() {
        let looks: Vec<Metric> = (0..20)
            .map(|n| look(f64::from(n), 0.1 * f64::from(n)))
            .collect();
        // Looks count at 1, 4, 7, 10, 13: the mean of 0.1, 0.4, 0.7, 1.0, 1.3.
        assert_eq!(reached(looks.iter(), Some(1.0), 0.7), Some((13.0, 1.0)));
        assert_eq!(reached(looks.iter(), None, 0.6), Some((12.0, 0.0)));
    }
}

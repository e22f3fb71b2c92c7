//! How long the first stage marks no lines, so that copying costs a twentieth of the time at most. What it costs is measured: by how much
//! steps take longer while a line is on its way than at other times.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Part of the time that copying may cost.
const PART: f64 = 0.05;
/// Steps of which the middle one is the usual.
const STEPS: usize = 15;

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Seconds of the last steps beside no line.
    usual: VecDeque<f64>,
    /// When the last step was made.
    stepped: Option<Instant>,
    /// When the line that is on its way was copied, and the seconds it has cost so far.
    line: Option<(Instant, f64)>,
    /// Until when no line is marked.
    until: Option<Instant>,
}

impl Rest {
    /// A step is made.
    pub(super) fn stepped(&mut self, now: Instant) {
        let Some(last) = self.stepped.replace(now) else {
            return;
        };
        let took = now.saturating_duration_since(last).as_secs_f64();
        match (&mut self.line, middle(&self.usual)) {
            (Some((_, cost)), Some(usual)) => *cost += took - usual,
            // Lines came before anything was known: nothing can be said.
            (Some(_), None) => {}
            (None, _) => {
                self.usual.truncate(STEPS - 1);
                self.usual.push_front(took);
            }
        }
    }

    /// A line is on its way.
    pub(super) fn copying(&mut self, now: Instant) {
        self.line = Some((now, 0.0));
    }

    /// It has its copies. Whether there is to be none for a while.
    pub(super) fn copied(&mut self, now: Instant) -> bool {
        let Some((began, cost)) = self.line.take() else {
            return false;
        };
        let took = now.saturating_duration_since(began).as_secs_f64();
        let rest = Duration::try_from_secs_f64(cost / PART - took).ok();
        self.until = rest.map(|rest| now + rest);
        self.until.is_some()
    }

    /// Whether a rest is over just now.
    pub(super) fn ends(&mut self, now: Instant) -> bool {
        let is_over = self.until.is_some_and(|until| until <= now);
        if is_over {
            self.until = None;
        }
        is_over
    }
}

fn middle(values: &VecDeque<f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of 100 ms, of `slow` while a line is on its way, which takes `line` steps; how much longer all of it took than without.
    fn run(slow: u64, line: usize) -> (f64, usize) {
        let (mut rest, start) = (Rest::default(), Instant::now());
        let (mut now, mut left, mut rests, mut lines) = (start, 0, false, 0);
        for step in 0..8000 {
            let ms = if left > 0 { slow } else { 100 };
            now += Duration::from_millis(ms);
            rest.stepped(now);
            rests &= !rest.ends(now);
            if left > 0 {
                left -= 1;
                if left == 0 {
                    rests = rest.copied(now);
                }
            } else if !rests && step > 10 {
                rest.copying(now);
                (left, lines) = (line, lines + 1);
            }
        }
        let usual = Duration::from_millis(100 * 8000).as_secs_f64();
        (now.duration_since(start).as_secs_f64() / usual, lines)
    }

    #[test]
    fn copying_costs_a_twentieth_at_most() {
        for (slow, line) in [(130, 20), (200, 5), (110, 100), (400, 10)] {
            let (more, lines) = run(slow, line);
            assert!(more > 1.02 && more < 1.06, "{slow} {line}: {more}");
            assert!(lines > 2, "{slow} {line}: {lines}");
        }
    }

    #[test]
    fn copies_that_cost_nothing_are_made_all_the_time() {
        let (more, lines) = run(100, 10);
        assert_eq!((more, lines), (1.0, 727));
    }
}

//! A job in motion: a bar on a terminal, plain lines elsewhere, JSON lines for programs.

use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::exit::CliError;
use super::output::Output;
use super::show;
use crate::control::{JobStatus, Phase, Response};

/// Positions of the bar from empty to full.
const FULL: u64 = 1000;

/// Time between two plain lines of an unchanged phase.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// Shows the statuses of one job.
pub(super) struct Progress<'a> {
    output: &'a Output,
    form: Form,
}

enum Form {
    Json,
    Bar(ProgressBar),
    Lines(Lines),
}

/// What was printed last, so that a line is printed about every second or when something other than a number changed.
#[derive(Default)]
struct Lines {
    last: Option<(Instant, Phase, u64)>,
}

impl Lines {
    fn is_due(&mut self, now: Instant, status: &JobStatus) -> bool {
        let due = match self.last {
            Some((at, phase, view)) => {
                now.duration_since(at) >= LINE_EVERY || phase != status.phase || view != status.view
            }
            None => true,
        };
        if due {
            self.last = Some((now, status.phase, status.view));
        }
        due
    }
}

impl<'a> Progress<'a> {
    pub(super) fn new(output: &'a Output) -> Self {
        let form = if output.is_json() {
            Form::Json
        } else if stdout().is_terminal() {
            let bar = ProgressBar::new(FULL);
            // A fixed template cannot be wrong at run time; the plain style is what is left if it were.
            let style = ProgressStyle::with_template(
                "{spinner} {prefix} [{wide_bar}] {percent:>3} %\n  {msg}",
            );
            bar.set_style(
                style
                    .unwrap_or_else(|_| ProgressStyle::default_bar())
                    .progress_chars("=> "),
            );
            bar.enable_steady_tick(Duration::from_millis(250));
            Form::Bar(bar)
        } else {
            Form::Lines(Lines::default())
        };
        Self { output, form }
    }

    /// Shows `status`.
    pub(super) fn show(&mut self, status: &JobStatus) -> Result<(), CliError> {
        match &mut self.form {
            Form::Json => self
                .output
                .line(&Response::Progress(Box::new(status.clone())).encode()),
            Form::Bar(bar) => {
                bar.set_prefix(status.name.clone());
                bar.set_position(
                    (status.progress_frac.unwrap_or(0.0).clamp(0.0, 1.0) * FULL as f64) as u64,
                );
                // Three lines, since one with all of it is wider than a terminal of 80 columns.
                bar.set_message(numbers(status, "\n  "));
                Ok(())
            }
            Form::Lines(lines) => {
                if lines.is_due(Instant::now(), status) {
                    self.output
                        .line(&format!("{} {}", status.name, numbers(status, " | ")))?;
                }
                Ok(())
            }
        }
    }

    /// Takes the bar off the screen.
    pub(super) fn clear(&self) {
        if let Form::Bar(bar) = &self.form {
            bar.finish_and_clear();
        }
    }

    /// Shows what came of the job.
    pub(super) fn end(&mut self, status: &JobStatus) -> Result<(), CliError> {
        self.clear();
        match self.form {
            Form::Json => Ok(()),
            _ => self.output.line(&show::report(status)),
        }
    }
}

/// What matters now; `middle` stands between learning and traffic.
fn numbers(status: &JobStatus, middle: &str) -> String {
    if matches!(
        status.phase,
        Phase::Waiting | Phase::Syncing | Phase::Ending
    ) {
        let reason = status
            .reason
            .as_ref()
            .map(|reason| format!(": {reason}"))
            .unwrap_or_default();
        return format!("{}{reason} | peers {}", status.phase, status.peers.len());
    }
    let learning = format!(
        "step {} | loss {} | accuracy {} | {} samples/s",
        status.step,
        show::number(status.train_loss, 4),
        show::percent(status.val_accuracy),
        show::number(status.samples_per_s_mesh, 0),
    );
    let traffic = format!(
        "peers {} | in {} out {} | ETA {}",
        status.peers.len(),
        show::bytes(status.bytes_in),
        show::bytes(status.bytes_out),
        status.eta_s.map_or_else(|| "-".into(), show::seconds),
    );
    format!("{learning}{middle}{traffic}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::status::tests::job_status;

    #[test]
    fn a_plain_line_comes_each_second_and_at_every_change() {
        let mut lines = Lines::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let running = job_status();
        assert!(lines.is_due(at(0), &running));
        assert!(!lines.is_due(at(999), &running));
        assert!(lines.is_due(at(1000), &running));
        assert!(lines.is_due(
            at(1001),
            &JobStatus {
                view: 9,
                ..running.clone()
            }
        ));
        assert!(lines.is_due(
            at(1002),
            &JobStatus {
                phase: Phase::Ending,
                view: 9,
                ..running
            }
        ));
    }

    #[test]
    fn the_line_says_step_loss_accuracy_rate_peers_bytes_and_time_left() {
        let line = numbers(
            &JobStatus {
                eta_s: Some(61.0),
                val_accuracy: Some(0.5),
                ..job_status()
            },
            " | ",
        );
        assert_eq!(
            line,
            "step 5 | loss 0.2500 | accuracy 50.00 % | 1000 samples/s | peers 1 | in 1 B out 2 B | ETA 1 min 01 s"
        );
        let waiting = JobStatus {
            phase: Phase::Waiting,
            reason: Some("1 of 3 peers ready".into()),
            ..job_status()
        };
        assert_eq!(
            numbers(&waiting, " | "),
            "waiting: 1 of 3 peers ready | peers 1"
        );
    }
}

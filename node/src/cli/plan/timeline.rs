//! One step drawn as text and as SVG: a row for each device, from the bars of its passes.

use std::fmt::Write;

use skein_model::plan::{Pass, Span};

use super::super::show;
use crate::control::PlanReport;

/// Columns of a row of text.
const COLUMNS: usize = 72;

/// Pixels of the picture: labels, the step, a row.
const LABELS: f64 = 120.0;
const WIDTH: f64 = 960.0;
const ROW: f64 = 24.0;

/// What the letters of [`text`] mean.
const LEGEND: &str = "digits: forward pass of the micro-batch that ends so; letters: its backward pass, of the last stage both; =: gradients \
     are added up; #: update; .: idle";

/// Devices in the order in which they are drawn: as the bars name them first.
fn rows(spans: &[Span]) -> Vec<usize> {
    let mut rows: Vec<usize> = Vec::new();
    for span in spans {
        if !rows.contains(&span.device) {
            rows.push(span.device);
        }
    }
    rows
}

/// When the last bar ends; none if that is no time at all.
fn end(spans: &[Span]) -> Option<f64> {
    let end = spans.iter().map(|span| span.to).fold(0.0, f64::max);
    (end > 0.0 && end.is_finite()).then_some(end)
}

fn symbol(span: &Span) -> char {
    let among = |first: u8, n: usize| char::from(first + (span.micro % n) as u8);
    match span.pass {
        Pass::Forward => among(b'0', 10),
        Pass::Backward => among(b'a', 26),
        Pass::Reduce => '=',
        Pass::Update => '#',
    }
}

/// A row of [`COLUMNS`] characters for each device; each shows what it does longest in that time, if it does anything for a tenth
/// of it.
pub(super) fn text(spans: &[Span], names: &[String]) -> String {
    let Some(end) = end(spans) else {
        return String::new();
    };
    let column = end / COLUMNS as f64;
    let row = |device: usize| {
        // The longest so far and its symbol, and what is taken in all.
        let mut cells = [(0.0f64, '.', 0.0f64); COLUMNS];
        for span in spans.iter().filter(|span| span.device == device) {
            let first = (span.from / column) as usize;
            let last = (span.to / column) as usize;
            for (at, cell) in cells.iter_mut().enumerate().take(last + 1).skip(first) {
                let start = at as f64 * column;
                let taken = span.to.min(start + column) - span.from.max(start);
                cell.2 += taken;
                if taken > cell.0 {
                    (cell.0, cell.1) = (taken, symbol(span));
                }
            }
        }
        let shown = cells.iter().map(|(_, symbol, taken)| {
            let is_idle = *taken * 10.0 < column;
            if is_idle { '.' } else { *symbol }
        });
        shown.collect::<String>()
    };
    let name = |device: usize| names.get(device).cloned().unwrap_or_default();
    let rows = rows(spans).into_iter();
    let rows: Vec<_> = rows.map(|device| vec![name(device), row(device)]).collect();
    format!("{}\n{LEGEND}", show::table(&rows))
}

/// The same as a picture.
pub(super) fn svg(spans: &[Span], report: &PlanReport) -> String {
    let rows = rows(spans);
    let end = end(spans).unwrap_or(1.0);
    let name = |device: usize| escaped(report.devices.get(device).map_or("", String::as_str));
    let height = ROW * (rows.len() as f64 + 2.0);
    let width = LABELS + WIDTH + 20.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<text x=\"8\" y=\"16\">{}: {}, one step of {:.3} s</text>\n",
        escaped(&report.name),
        report.family.name(),
        report.step_s
    );
    for (row, device) in rows.iter().enumerate() {
        let y = ROW * (row as f64 + 1.0);
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"8\" y=\"{:.1}\">{}</text>",
            y + 16.0,
            name(*device)
        );
        for span in spans.iter().filter(|span| span.device == *device) {
            let (pass, fill) = match span.pass {
                Pass::Forward => ("forward", "#4878a8"),
                Pass::Backward => ("backward", "#d08040"),
                Pass::Reduce => ("adding gradients up", "#909090"),
                Pass::Update => ("update", "#508050"),
            };
            let scale = |seconds: f64| seconds / end * WIDTH;
            let _ = writeln!(
                svg,
                "<rect x=\"{:.2}\" y=\"{:.1}\" width=\"{:.2}\" height=\"{:.1}\" fill=\"{fill}\" stroke=\"white\" \
                 stroke-width=\"0.5\"><title>{}: {pass} {}, {:.4} to {:.4} s</title></rect>",
                LABELS + scale(span.from),
                y + 2.0,
                scale(span.to - span.from),
                ROW - 4.0,
                name(*device),
                span.micro,
                span.from,
                span.to
            );
        }
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LABELS}\" y=\"{:.1}\">0 s</text>\n<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{end:.3} s</text>\n</svg>",
        height - 8.0,
        LABELS + WIDTH,
        height - 8.0
    );
    svg
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(device: usize, pass: Pass, micro: usize, from: f64, to: f64) -> Span {
        Span {
            device,
            pass,
            micro,
            from,
            to,
        }
    }

    #[test]
    fn each_device_has_a_row_with_its_passes_and_gaps() {
        let spans = [
            span(1, Pass::Forward, 0, 0.0, 1.0),
            span(1, Pass::Forward, 11, 1.0, 2.0),
            span(0, Pass::Backward, 0, 2.0, 4.0),
            span(1, Pass::Backward, 27, 4.0, 5.0),
            span(1, Pass::Reduce, 28, 5.0, 5.5),
            span(1, Pass::Update, 28, 5.5, 6.0),
        ];
        let names = ["desk".to_owned(), "board".to_owned()];
        let drawn = text(&spans, &names);
        let rows: Vec<&str> = drawn.lines().collect();
        let column = |n: usize, c: &str| c.repeat(n);
        assert_eq!(
            rows[0],
            format!(
                "board  {}{}{}{}{}{}",
                column(12, "0"),
                column(12, "1"),
                column(24, "."),
                column(12, "b"),
                column(6, "="),
                column(6, "#")
            )
        );
        assert_eq!(
            rows[1],
            format!(
                "desk   {}{}{}",
                column(24, "."),
                column(24, "a"),
                column(24, ".")
            )
        );
        assert_eq!(rows[2], LEGEND);
        assert_eq!(text(&[], &names), "");
        assert_eq!(text(&[span(0, Pass::Forward, 0, 0.0, 0.0)], &names), "");
    }
}

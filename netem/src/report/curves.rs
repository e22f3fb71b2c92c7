//! Loss and accuracy over time and over bytes.

use super::chart::{Chart, Rule, Series};
use super::metrics::quantile;
use crate::record::{NodeRecord, Record};

/// Up to so many nodes have a line each.
const MOST_LINES: usize = 8;
/// Points of a line that stands for several nodes.
const GRID: usize = 150;
/// Most points of a line.
const MOST_POINTS: usize = 600;

/// Most rules, spans, or badges of a figure; more would be a surface, in a file that nothing opens.
const MOST_MARKS: usize = 200;

/// A figure with the name of its file.
pub(super) type Figure = (&'static str, String);

/// The four figures, as far as there is something to draw.
pub(super) fn curves(record: &Record, target: Option<f64>) -> Vec<Figure> {
    let accuracy = Field {
        event: "evaluated",
        field: "val_accuracy",
    };
    let mut loss = Field {
        event: "evaluated",
        field: "val_loss",
    };
    let mut loss_name = "validation loss";
    if !record
        .nodes
        .iter()
        .any(|node| !loss.points(node).is_empty())
    {
        loss = Field {
            event: "step",
            field: "train_loss",
        };
        loss_name = "training loss";
    }
    let level = target.map(|target| (target, format!("target {:.1} %", target * 100.0)));
    let chart = |title: String, y_name: &str, field: &Field, by_bytes: bool| {
        let share = field.field == "val_accuracy";
        let sent = Sent::of(record);
        let Happenings {
            rules,
            spans,
            hidden,
        } = happenings(record);
        let title = with_hidden(title, hidden);
        let series = lines(record, field);
        let (x_name, series, rules, spans) = if by_bytes {
            let unit = sent.unit();
            let x = |t: f64| sent.by(t) / unit.0;
            let series = series.into_iter().map(|series| Series {
                points: series.points.into_iter().map(|(t, y)| (x(t), y)).collect(),
                band: series
                    .band
                    .into_iter()
                    .map(|(t, a, b)| (x(t), a, b))
                    .collect(),
                ..series
            });
            let rules = rules.into_iter().map(|rule| Rule {
                x: x(rule.x),
                ..rule
            });
            let spans = spans.into_iter().map(|(a, b)| (x(a), x(b))).collect();
            let name = format!("{} sent by all nodes together", unit.1);
            (name, series.collect(), rules.collect(), spans)
        } else {
            ("seconds".to_owned(), series, rules, spans)
        };
        Chart {
            title,
            x_name,
            y_name: y_name.to_owned(),
            series,
            rules,
            spans,
            level: level.clone().filter(|_| share),
            share,
        }
    };
    let percent = "validation accuracy, %";
    let carried = Sent::of(record).last() > 0.0;
    let charts = [
        (
            "accuracy-time.svg",
            chart("Accuracy over time".into(), percent, &accuracy, false),
            true,
        ),
        (
            "loss-time.svg",
            chart(
                format!("{} over time", capital(loss_name)),
                loss_name,
                &loss,
                false,
            ),
            true,
        ),
        (
            "accuracy-bytes.svg",
            chart("Accuracy over bytes".into(), percent, &accuracy, true),
            carried,
        ),
        (
            "loss-bytes.svg",
            chart(
                format!("{} over bytes", capital(loss_name)),
                loss_name,
                &loss,
                true,
            ),
            carried,
        ),
    ];
    let paces = [
        (
            "share_frac",
            "batch-time.svg",
            "Share of the batch",
            "share of the samples, %",
        ),
        (
            "n_percent",
            "n-time.svg",
            "Share of a gradient in a packet",
            "N, %, mean over a node's links",
        ),
    ];
    let paces = paces.map(|(field, file, title, y_name)| {
        let field = Field {
            event: "pace",
            field,
        };
        let has_points = |node| !field.points(node).is_empty();
        let wanted = record.nodes.iter().any(has_points);
        let mut chart = chart(title.into(), y_name, &field, false);
        chart.share = field.field == "share_frac";
        (file, chart, wanted)
    });
    let charts = charts.into_iter().chain(paces);
    let drawn = charts.filter(|(_, _, wanted)| *wanted);
    drawn
        .filter_map(|(file, chart, _)| Some((file, chart.draw()?)))
        .collect()
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

struct Field {
    event: &'static str,
    field: &'static str,
}

impl Field {
    fn points(&self, node: &NodeRecord) -> Vec<(f64, f64)> {
        let lines = node.metrics.iter().filter(|line| line.event == self.event);
        let points = lines.filter_map(|line| Some((line.t, line.number(self.field)?)));
        thinned(points.collect())
    }
}

/// Means of neighbours where there are more points than a figure has room for.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let size = points.len().div_ceil(MOST_POINTS).max(1);
    let mean = |chunk: &[(f64, f64)]| {
        let n = chunk.len() as f64;
        let (x, y) = chunk
            .iter()
            .fold((0.0, 0.0), |sum, at| (sum.0 + at.0, sum.1 + at.1));
        (x / n, y / n)
    };
    points.chunks(size).map(mean).collect()
}

/// A line per node; of many nodes one per group; of many groups one for all.
fn lines(record: &Record, field: &Field) -> Vec<Series> {
    if record.nodes.len() <= MOST_LINES {
        let own = record.nodes.iter().map(|node| Series {
            name: node.name.clone(),
            points: field.points(node),
            band: vec![],
        });
        return own.filter(|series| !series.points.is_empty()).collect();
    }
    let mut groups: Vec<&str> = vec![];
    for node in &record.nodes {
        if !groups.contains(&node.group.as_str()) && groups.len() <= MOST_LINES {
            groups.push(&node.group);
        }
    }
    if groups.len() == 1 || groups.len() > MOST_LINES {
        let nodes: Vec<&NodeRecord> = record.nodes.iter().collect();
        return vec![middle(record, field, &nodes, "median", true)];
    }
    let of_group = groups.into_iter().map(|group| {
        let nodes: Vec<_> = record
            .nodes
            .iter()
            .filter(|node| node.group == group)
            .collect();
        let name = format!("{group} ({})", nodes.len());
        middle(record, field, &nodes, &name, false)
    });
    of_group
        .filter(|series| !series.points.is_empty())
        .collect()
}

/// The median of what each of `nodes` saw last, and what lies between the tenth and the ninetieth percent.
fn middle(record: &Record, field: &Field, nodes: &[&NodeRecord], name: &str, band: bool) -> Series {
    let all: Vec<Vec<(f64, f64)>> = nodes.iter().map(|node| field.points(node)).collect();
    let mut series = Series {
        name: name.to_owned(),
        points: vec![],
        band: vec![],
    };
    for n in 0..=GRID {
        let t = record.duration_s * n as f64 / GRID as f64;
        let seen = all.iter().filter_map(|points| {
            let next = points.partition_point(|point| point.0 <= t);
            Some(points.get(next.checked_sub(1)?)?.1)
        });
        let mut seen: Vec<f64> = seen.collect();
        seen.sort_by(f64::total_cmp);
        let at = |q| quantile(&seen, q);
        if let (Some(low), Some(middle), Some(high)) = (at(0.1), at(0.5), at(0.9)) {
            series.points.push((t, middle));
            if band {
                series.band.push((t, low, high));
            }
        }
    }
    series
}

/// What happened, as far as a figure has room for it.
pub(super) struct Happenings {
    pub(super) rules: Vec<Rule>,
    /// The times in which the network was cut.
    pub(super) spans: Vec<(f64, f64)>,
    /// How many of both there were beside.
    pub(super) hidden: usize,
}

/// At most [`MOST_MARKS`], evenly chosen, and how many were left out.
pub(super) fn few<T>(all: Vec<T>) -> (Vec<T>, usize) {
    let n = all.len();
    if n <= MOST_MARKS {
        return (all, 0);
    }
    // The one with which another share of MOST_MARKS is full.
    let chosen = |at: usize| (at + 1) * MOST_MARKS / n > at * MOST_MARKS / n;
    let kept = all.into_iter().enumerate().filter(|(at, _)| chosen(*at));
    (kept.map(|(_, one)| one).collect(), n - MOST_MARKS)
}

/// A title that says what is not drawn.
pub(super) fn with_hidden(title: String, hidden: usize) -> String {
    match hidden {
        0 => title,
        hidden => format!("{title} ({hidden} more marks are not drawn)"),
    }
}

/// What happened, as rules, and the times in which the network was cut.
pub(super) fn happenings(record: &Record) -> Happenings {
    let mut spans = vec![];
    let mut cut = None;
    let mut rules = vec![];
    for mark in &record.marks {
        match mark.what.as_str() {
            "partition" => cut = cut.or(Some(mark.t)),
            "heal" => spans.extend(cut.take().map(|from| (from, mark.t))),
            // Ends of programs are many and say little here; the timeline has them.
            "exit" => continue,
            _ => {}
        }
        let of = match mark.nodes.as_slice() {
            [] => String::new(),
            [one] => format!(" {}", record.nodes.get(*one).map_or("?", |node| &node.name)),
            several => format!(" {} nodes", several.len()),
        };
        rules.push(Rule {
            x: mark.t,
            name: format!("{}{of}", words(&mark.what)),
            network: mark.nodes.is_empty(),
        });
    }
    spans.extend(cut.map(|from| (from, record.duration_s)));
    // Where so much happens, lines would hide the curves.
    if rules.len() > 24 {
        rules.retain(|rule| rule.network);
    }
    let ((rules, more_rules), (spans, more_spans)) = (few(rules), few(spans));
    Happenings {
        rules,
        spans,
        hidden: more_rules + more_spans,
    }
}

/// A mark's word for people.
pub(super) fn words(what: &str) -> &str {
    match what {
        "job" => "job handed in",
        "line" => "line changed",
        "pair" => "link changed",
        "cpu" => "CPU share changed",
        other => other,
    }
}

/// Bytes that all nodes had sent over time.
struct Sent {
    samples: Vec<(f64, f64)>,
}

impl Sent {
    fn of(record: &Record) -> Self {
        let sum = |sample: &crate::record::Traffic| {
            sample.pairs.iter().map(|pair| pair.bytes as f64).sum()
        };
        let samples = record.traffic.iter().map(|sample| (sample.t, sum(sample)));
        Self {
            samples: samples.collect(),
        }
    }

    fn last(&self) -> f64 {
        self.samples.last().map_or(0.0, |sample| sample.1)
    }

    fn by(&self, t: f64) -> f64 {
        let next = self.samples.partition_point(|sample| sample.0 < t);
        let before = next.checked_sub(1).and_then(|at| self.samples.get(at));
        let before = before.copied().unwrap_or((0.0, 0.0));
        let Some(&after) = self.samples.get(next) else {
            return before.1;
        };
        let span = after.0 - before.0;
        let share = if span > 0.0 {
            (t - before.0) / span
        } else {
            1.0
        };
        before.1 + (after.1 - before.1) * share
    }

    /// What the axis counts in.
    fn unit(&self) -> (f64, &'static str) {
        match self.last() {
            2e9.. => (1e9, "GB"),
            2e6.. => (1e6, "MB"),
            _ => (1e3, "kB"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{sample, timeline::timeline};
    use super::*;
    use crate::record::Mark;

    #[test]
    fn of_many_marks_a_figure_draws_some_and_says_how_many_more_there_were() {
        assert_eq!(few((0..200).collect()), ((0..200).collect(), 0));
        let (kept, hidden) = few((0..1001).collect());
        assert_eq!((kept.len(), hidden), (MOST_MARKS, 801));
        assert!(
            kept.windows(2)
                .all(|pair| (5..=6).contains(&(pair[1] - pair[0])))
        );

        let mut record = sample::record();
        let plain = timeline(&record).map_or(0, |svg| svg.len());
        for n in 0..20_000 {
            let (what, nodes) = match n % 4 {
                0 => ("partition", vec![]),
                1 => ("heal", vec![]),
                2 => ("stop", vec![1]),
                _ => ("continue", vec![1]),
            };
            record.marks.push(Mark {
                t: 70.0 + f64::from(n) * 1e-3,
                nodes,
                what: what.into(),
                detail: String::new(),
            });
        }
        let mut figures = curves(&record, None);
        figures.extend(timeline(&record).map(|svg| ("timeline.svg", svg)));
        assert_eq!(figures.len(), 5);
        for (file, svg) in figures {
            assert!(svg.len() < plain + 200_000, "{file}: {}", svg.len());
            assert!(svg.contains("more marks are not drawn"), "{file}");
        }
    }
}

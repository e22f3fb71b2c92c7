//! What each node did when: computing, waiting, exchanging, down; and what happened to it.

use std::fmt::Write;

use super::curves::{Happenings, few, happenings, with_hidden};
use super::metrics::is_failure;
use super::svg::{Anchor, FAINT, INK, Svg, text_width, tick_text, ticks};
use crate::link::NodeIndex;
use crate::record::{Mark, NodeRecord, Record};

pub(super) const WIDTH: f64 = 1160.0;
/// Slices of time; within one, heights are shares.
pub(super) const SLICES: usize = 360;
/// Most rows; of more nodes, evenly chosen ones are shown.
const MOST_ROWS: usize = 48;
pub(super) const COMPUTE: &str = "#0072b2";
pub(super) const WAIT: &str = "#e69f00";
const EXCHANGE: &str = "#009e73";
pub(super) const RUNS: &str = "#e3e8ee";
const STOPPED: &str = "#9a9a9a";
pub(super) const CUT: &str = "#f3d9c0";
const BAD: &str = "#d55e00";

/// The figure; none without a node or a time.
pub(super) fn timeline(record: &Record) -> Option<String> {
    let shown = shown(record);
    if shown.is_empty() || record.duration_s <= 0.0 {
        return None;
    }
    let tall = match shown.len() {
        0..=12 => 30.0,
        13..=24 => 20.0,
        _ => 12.0,
    };
    let longest = shown
        .iter()
        .map(|&rank| text_width(&label(&record.nodes[rank]), 12.0));
    let left = longest.fold(60.0, f64::max) + 18.0;
    let plot = Plot {
        left,
        top: 84.0,
        right: WIDTH - 24.0,
        tall,
        end: record.duration_s,
    };
    let bottom = plot.top + tall * shown.len() as f64;
    let Happenings {
        rules,
        spans,
        mut hidden,
    } = happenings(record);
    let rows: Vec<Row> = shown.iter().map(|&rank| Row::of(record, rank)).collect();
    hidden += rows.iter().map(|row| row.hidden).sum::<usize>();
    let (badges, more_badges) = badges_of(record, &shown);
    hidden += more_badges;
    let mut svg = Svg::new(WIDTH, bottom + 44.0, "What each node did when");
    let title = match record.nodes.len() - shown.len() {
        0 => "What each node did when".to_owned(),
        hidden => format!(
            "What each node did when ({} of {} nodes)",
            shown.len(),
            hidden + shown.len()
        ),
    };
    let title = with_hidden(title, hidden);
    svg.text((12.0, 20.0), Anchor::Start, 15.0, INK, &title);
    legend(&mut svg, 40.0);
    for (number, row) in rows.iter().enumerate() {
        draw_row(&mut svg, &plot, number, row);
    }
    for (row, mark) in badges {
        let y = plot.top + tall * (row as f64 + 0.5);
        draw_badge(&mut svg, (plot.x(mark.t), y), record, mark, shown[row]);
    }
    for (from, to) in spans {
        let (from, to) = (plot.x(from), plot.x(to));
        svg.rect(
            (from, plot.top),
            (to - from, bottom - plot.top),
            CUT,
            r#"opacity="0.55""#,
        );
    }
    let mut free = f64::NEG_INFINITY;
    for rule in rules.iter().filter(|rule| rule.network) {
        let x = plot.x(rule.x);
        svg.line(
            (x, plot.top - 4.0),
            (x, bottom),
            INK,
            r#"stroke-dasharray="4 3""#,
        );
        let start = x.min(WIDTH - text_width(&rule.name, 11.0) - 4.0);
        if start > free {
            svg.text(
                (start, plot.top - 8.0),
                Anchor::Start,
                11.0,
                INK,
                &rule.name,
            );
            free = start + text_width(&rule.name, 11.0) + 6.0;
        }
    }
    axis(&mut svg, &plot, bottom);
    Some(svg.finish())
}

/// Where the rows of a figure over time are.
pub(super) struct Plot {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    /// Height of a row.
    pub(super) tall: f64,
    /// The last second.
    pub(super) end: f64,
}

impl Plot {
    pub(super) fn x(&self, t: f64) -> f64 {
        self.left + (t / self.end).clamp(0.0, 1.0) * (self.right - self.left)
    }
}

/// Ranks of the nodes that have a row.
pub(super) fn shown(record: &Record) -> Vec<NodeIndex> {
    let n = record.nodes.len();
    match n > MOST_ROWS {
        true => (0..MOST_ROWS).map(|row| row * n / MOST_ROWS).collect(),
        false => (0..n).collect(),
    }
}

pub(super) fn label(node: &NodeRecord) -> String {
    let share = node
        .cpu
        .map_or_else(String::new, |cpu| format!("  {:.0} %", cpu * 100.0));
    format!("{}{share}", node.name)
}

/// What happened to the nodes of these rows, in the order of time, and how many marks there is no room for.
pub(super) fn badges_of<'a>(
    record: &'a Record,
    shown: &[NodeIndex],
) -> (Vec<(usize, &'a Mark)>, usize) {
    let of_row = |(row, &rank): (usize, &NodeIndex)| {
        let marks = record.marks.iter();
        let marks = marks.filter(move |mark| mark.nodes.contains(&rank));
        marks.map(move |mark| (row, mark))
    };
    let mut badges: Vec<(usize, &Mark)> = shown.iter().enumerate().flat_map(of_row).collect();
    badges.sort_by(|a, b| a.1.t.total_cmp(&b.1.t));
    few(badges)
}

/// The axis of time, at the foot of the rows.
pub(super) fn axis(svg: &mut Svg, plot: &Plot, bottom: f64) {
    let columns = ticks(0.0, plot.end, 12);
    let step = columns.get(1).copied().unwrap_or(1.0);
    for tick in columns {
        let x = plot.x(tick);
        svg.line((x, bottom), (x, bottom + 4.0), INK, "");
        let text = tick_text(tick, step);
        svg.text((x, bottom + 17.0), Anchor::Middle, 12.0, INK, &text);
    }
    svg.line((plot.left, bottom), (plot.right, bottom), INK, "");
    let middle = (plot.left + plot.right) / 2.0;
    let at = (middle, bottom + 36.0);
    svg.text(at, Anchor::Middle, 12.0, INK, "seconds");
}

fn legend(svg: &mut Svg, y: f64) {
    let mut x = 12.0;
    for (fill, text) in [
        (COMPUTE, "computing"),
        (WAIT, "waiting for others"),
        (EXCHANGE, "packing and merging gradients"),
        (RUNS, "runs, but makes no steps"),
        (STOPPED, "stopped"),
        (CUT, "network cut"),
    ] {
        svg.rect((x, y - 10.0), (12.0, 12.0), fill, "");
        svg.text((x + 17.0, y), Anchor::Start, 12.0, INK, text);
        x += 34.0 + text_width(text, 12.0);
    }
    svg.line((x, y - 11.0), (x, y + 2.0), INK, r#"stroke-width="2""#);
    svg.text(
        (x + 7.0, y),
        Anchor::Start,
        12.0,
        INK,
        "new view of who takes part",
    );
}

/// What is drawn of a node beside its steps.
struct Row<'a> {
    node: &'a NodeRecord,
    lives: Vec<[f64; 2]>,
    stops: Vec<(f64, f64)>,
    /// When a new view came.
    views: Vec<f64>,
    /// What a figure has no room for.
    hidden: usize,
}

impl<'a> Row<'a> {
    fn of(record: &'a Record, rank: NodeIndex) -> Self {
        let node = &record.nodes[rank];
        let views = node.metrics.iter().filter(|line| line.event == "view");
        let (lives, more_lives) = few(node.lives.clone());
        let (stops, more_stops) = few(stops(record, rank));
        let (views, more_views) = few(views.map(|line| line.t).collect());
        Self {
            node,
            lives,
            stops,
            views,
            hidden: more_lives + more_stops + more_views,
        }
    }
}

fn draw_row(svg: &mut Svg, plot: &Plot, number: usize, row: &Row<'_>) {
    let node = row.node;
    let (y, tall) = (plot.top + plot.tall * number as f64, plot.tall);
    let bar = (y + tall * 0.12, tall * 0.76);
    let size = if tall < 14.0 { 9.0 } else { 12.0 };
    svg.line((plot.left, y + tall), (plot.right, y + tall), FAINT, "");
    svg.text(
        (plot.left - 8.0, y + tall / 2.0 + 4.0),
        Anchor::End,
        size,
        INK,
        &label(node),
    );
    for &[from, to] in &row.lives {
        let (from, to) = (plot.x(from), plot.x(to));
        svg.rect((from, bar.0), ((to - from).max(0.5), bar.1), RUNS, "");
    }
    let shares = shares(node, plot.end);
    let wide = (plot.right - plot.left) / SLICES as f64;
    let mut below = vec![0.0; SLICES];
    for (phase, fill) in [COMPUTE, EXCHANGE, WAIT].into_iter().enumerate() {
        let mut d = String::new();
        for (slice, share) in shares.iter().enumerate() {
            if share[phase] < 0.01 {
                continue;
            }
            let x = plot.left + wide * slice as f64;
            let foot = bar.0 + bar.1 * (1.0 - below[slice]);
            let high = bar.1 * share[phase];
            below[slice] += share[phase];
            let _ = write!(d, "M{x:.1} {foot:.1}h{wide:.2}v{:.1}h-{wide:.2}z", -high);
        }
        if !d.is_empty() {
            svg.path(&d, &format!(r#"fill="{fill}""#));
        }
    }
    for &(from, to) in &row.stops {
        let (from, to) = (plot.x(from), plot.x(to));
        svg.rect((from, bar.0), (to - from, bar.1), STOPPED, "");
    }
    for &view in &row.views {
        let x = plot.x(view);
        svg.line(
            (x, y + 1.0),
            (x, y + tall - 1.0),
            INK,
            r#"stroke-width="2""#,
        );
    }
}

pub(super) fn draw_badge(
    svg: &mut Svg,
    at: (f64, f64),
    record: &Record,
    mark: &Mark,
    rank: NodeIndex,
) {
    let (letter, fill) = match mark.what.as_str() {
        "kill" => ('K', BAD),
        "stop" => ('S', "#555"),
        "continue" => ('C', "#009e73"),
        "restart" => ('R', "#009e73"),
        "join" => ('J', "#009e73"),
        "leave" => ('L', "#555"),
        "exit" if is_failure(record, mark, rank) => ('F', BAD),
        "exit" => ('E', "#555"),
        _ => ('*', "#555"),
    };
    let title = format!("{:.1} s: {} {}", mark.t, mark.what, mark.detail);
    svg.badge(at, fill, letter, title.trim_end());
}

/// Shares of computing, exchanging and waiting in each slice of the time to `end`.
pub(super) fn shares(node: &NodeRecord, end: f64) -> Vec<[f64; 3]> {
    let slice_s = end / SLICES as f64;
    let mut slices = vec![[0.0; 3]; SLICES];
    for step in node.metrics.iter().filter(|line| line.event == "step") {
        let fields = ["computing_s", "communicating_s", "waiting_s"];
        let spent = fields.map(|field| step.number(field).unwrap_or(0.0).max(0.0));
        let all: f64 = spent.iter().sum();
        if all <= 0.0 {
            continue;
        }
        let from = (step.t - all).max(0.0);
        let first = (from / slice_s) as usize;
        let last = ((step.t / slice_s) as usize).min(SLICES - 1);
        for (slice, shares) in slices.iter_mut().enumerate().take(last + 1).skip(first) {
            let start = slice as f64 * slice_s;
            let inside = (start + slice_s).min(step.t) - start.max(from);
            for (share, spent) in shares.iter_mut().zip(spent) {
                *share += inside.max(0.0) / slice_s * spent / all;
            }
        }
    }
    for shares in &mut slices {
        let all: f64 = shares.iter().sum();
        if all > 1.0 {
            shares.iter_mut().for_each(|share| *share /= all);
        }
    }
    slices
}

/// When the node was stopped.
fn stops(record: &Record, rank: NodeIndex) -> Vec<(f64, f64)> {
    let mut spans = vec![];
    let mut since = None;
    for mark in record
        .marks
        .iter()
        .filter(|mark| mark.nodes.contains(&rank))
    {
        match mark.what.as_str() {
            "stop" => since = since.or(Some(mark.t)),
            "continue" | "kill" | "restart" | "exit" => {
                spans.extend(since.take().map(|from| (from, mark.t)));
            }
            _ => {}
        }
    }
    spans.extend(since.map(|from| (from, record.duration_s)));
    spans
}

/// The letters of the marks that are in a record, with their words.
pub(super) fn letters(record: &Record) -> String {
    let all = [
        ("kill", "K killed (SIGKILL)"),
        ("stop", "S stopped (SIGSTOP)"),
        ("continue", "C goes on after a stop"),
        ("restart", "R restarted"),
        ("join", "J joins"),
        ("leave", "L leaves"),
        ("exit", "E its program ended, F with an error"),
    ];
    let there = all
        .iter()
        .filter(|(what, _)| record.marks.iter().any(|mark| mark.what == *what));
    let there: Vec<&str> = there.map(|(_, words)| *words).collect();
    there.join(" · ")
}

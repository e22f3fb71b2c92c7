//! Lines over an axis, named where they end, with what happened as rules across.

use std::fmt::Write;

use super::svg::{Anchor, COLOURS, FAINT, INK, Svg, text_width, tick_text, ticks};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 58.0;
const BOTTOM: f64 = 44.0;
/// Rows of names of rules above the axes.
const RULE_ROWS: usize = 3;
const TOP: f64 = 34.0 + RULE_ROWS as f64 * 13.0;
/// Least distance of two names at the right.
const LABEL: f64 = 14.0;

/// One line.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: String,
    /// Ascending in x.
    pub(super) points: Vec<(f64, f64)>,
    /// From below to above, at x.
    pub(super) band: Vec<(f64, f64, f64)>,
}

/// Something that happened at x.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) x: f64,
    /// What, and to whom.
    pub(super) name: String,
    /// Whether it happened to the network, not to a node.
    pub(super) network: bool,
}

/// A figure.
#[derive(Debug)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) x_name: String,
    pub(super) y_name: String,
    pub(super) series: Vec<Series>,
    pub(super) rules: Vec<Rule>,
    /// Spans of x that are shaded.
    pub(super) spans: Vec<(f64, f64)>,
    /// A level to reach, with its name.
    pub(super) level: Option<(f64, String)>,
    /// Whether y is a share: drawn in percent, to 100 at most.
    pub(super) share: bool,
}

/// From numbers to places.
struct Scale {
    x: (f64, f64),
    y: (f64, f64),
    right: f64,
}

impl Scale {
    fn x(&self, x: f64) -> f64 {
        let share = (x - self.x.0) / (self.x.1 - self.x.0).max(1e-12);
        LEFT + share.clamp(0.0, 1.0) * (self.right - LEFT)
    }

    fn y(&self, y: f64) -> f64 {
        let share = (y - self.y.0) / (self.y.1 - self.y.0).max(1e-12);
        HEIGHT - BOTTOM - share.clamp(0.0, 1.0) * (HEIGHT - BOTTOM - TOP)
    }
}

impl Chart {
    /// The figure; none if there is no point to draw.
    pub(super) fn draw(&self) -> Option<String> {
        let scale = self.scale()?;
        let mut svg = Svg::new(WIDTH, HEIGHT, &self.title);
        svg.text((LEFT, 20.0), Anchor::Start, 15.0, INK, &self.title);
        for &(from, to) in &self.spans {
            let (from, to) = (scale.x(from), scale.x(to));
            let size = ((to - from).max(1.0), HEIGHT - BOTTOM - TOP);
            svg.rect((from, TOP), size, "#f3e3d3", "");
        }
        self.axes(&mut svg, &scale);
        self.rules(&mut svg, &scale);
        for (number, series) in self.series.iter().enumerate() {
            draw_series(&mut svg, &scale, series, number);
        }
        self.names(&mut svg, &scale);
        Some(svg.finish())
    }

    fn scale(&self) -> Option<Scale> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let bands = self.series.iter().flat_map(|series| &series.band);
        let ys = points().map(|point| point.1);
        let ys = ys.chain(bands.flat_map(|&(_, low, high)| [low, high]));
        let low = ys.clone().reduce(f64::min)?;
        let high = ys.reduce(f64::max)?;
        let (low, high) = match &self.level {
            Some((level, _)) => (low.min(*level), high.max(*level)),
            None => (low, high),
        };
        let right = points().map(|point| point.0).reduce(f64::max)?;
        let right = self.rules.iter().map(|rule| rule.x).fold(right, f64::max);
        let room = ((high - low) * 0.05).max(high.abs() * 0.01).max(1e-9);
        let low = if low >= 0.0 && low < (high - low) {
            0.0
        } else {
            low - room
        };
        let high = if self.share {
            (high + room).min(1.0)
        } else {
            high + room
        };
        let longest = self
            .series
            .iter()
            .map(|series| text_width(&series.name, 12.0));
        Some(Scale {
            x: (0.0, right.max(1e-9)),
            y: (low, high),
            right: WIDTH - 14.0 - longest.fold(0.0, f64::max).clamp(20.0, 150.0),
        })
    }

    fn axes(&self, svg: &mut Svg, scale: &Scale) {
        let bottom = HEIGHT - BOTTOM;
        let shown = if self.share { 100.0 } else { 1.0 };
        let rows = ticks(scale.y.0 * shown, scale.y.1 * shown, 6);
        let step = rows.get(1).zip(rows.first()).map_or(1.0, |(b, a)| b - a);
        for &tick in &rows {
            let y = scale.y(tick / shown);
            svg.line((LEFT, y), (scale.right, y), FAINT, "");
            let text = tick_text(tick, step);
            svg.text((LEFT - 6.0, y + 4.0), Anchor::End, 12.0, INK, &text);
        }
        let columns = ticks(scale.x.0, scale.x.1, 10);
        let step = columns
            .get(1)
            .zip(columns.first())
            .map_or(1.0, |(b, a)| b - a);
        for &tick in &columns {
            let x = scale.x(tick);
            svg.line((x, bottom), (x, bottom + 4.0), INK, "");
            let text = tick_text(tick, step);
            svg.text((x, bottom + 17.0), Anchor::Middle, 12.0, INK, &text);
        }
        svg.line((LEFT, bottom), (scale.right, bottom), INK, "");
        let middle = (LEFT + scale.right) / 2.0;
        svg.text(
            (middle, HEIGHT - 8.0),
            Anchor::Middle,
            12.0,
            INK,
            &self.x_name,
        );
        svg.upright((16.0, (TOP + bottom) / 2.0), &self.y_name);
        if let Some((level, name)) = &self.level {
            let y = scale.y(*level);
            svg.line(
                (LEFT, y),
                (scale.right, y),
                INK,
                r#"stroke-dasharray="2 3""#,
            );
            svg.text((LEFT + 4.0, y - 4.0), Anchor::Start, 11.0, INK, name);
        }
    }

    /// Names stand in rows above, where they do not run into each other; what finds no row goes without.
    fn rules(&self, svg: &mut Svg, scale: &Scale) {
        let mut ends = [f64::NEG_INFINITY; RULE_ROWS];
        for rule in &self.rules {
            let x = scale.x(rule.x);
            let more = r#"stroke-dasharray="4 3" stroke-width="1""#;
            svg.line((x, TOP), (x, HEIGHT - BOTTOM), "#888", more);
            let width = text_width(&rule.name, 11.0) + 6.0;
            let start = x.min(WIDTH - width);
            let free = ends.iter().rposition(|end| *end < start);
            if let Some(row) = free {
                ends[row] = start + width;
                let y = TOP - 4.0 - (RULE_ROWS - 1 - row) as f64 * 13.0;
                svg.text((start, y), Anchor::Start, 11.0, "#555", &rule.name);
            }
        }
    }

    /// Each line's name at its end, pushed apart.
    fn names(&self, svg: &mut Svg, scale: &Scale) {
        let ends = self.series.iter().enumerate();
        let mut ends: Vec<_> = ends
            .filter_map(|(number, series)| {
                let (x, y) = *series.points.last()?;
                Some((scale.y(y), scale.x(x), number, &series.name))
            })
            .filter(|&(y, x, number, name)| {
                // A line that stops early is named where it stops.
                let early = x < scale.right - 0.2 * (scale.right - LEFT);
                if early {
                    let colour = COLOURS[number % COLOURS.len()];
                    svg.rect((x - 3.0, y - 3.0), (6.0, 6.0), colour, "");
                    svg.text((x + 6.0, y + 14.0), Anchor::Start, 12.0, colour, name);
                }
                !early
            })
            .collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut lowest = TOP - LABEL / 2.0;
        let room = HEIGHT - BOTTOM;
        for (place, (y, x, number, name)) in ends.iter().enumerate() {
            let below = (ends.len() - place) as f64 * LABEL;
            let label = y.max(lowest).min((room - below + LABEL).max(lowest));
            lowest = label + LABEL;
            let colour = COLOURS[number % COLOURS.len()];
            let at = scale.right + 8.0;
            svg.line(
                (*x, *y),
                (at - 2.0, label),
                colour,
                r#"stroke-width="0.7" opacity="0.6""#,
            );
            svg.text((at, label + 4.0), Anchor::Start, 12.0, colour, name);
        }
    }
}

fn draw_series(svg: &mut Svg, scale: &Scale, series: &Series, number: usize) {
    let colour = COLOURS[number % COLOURS.len()];
    if series.band.len() > 1 {
        let upper = series.band.iter().map(|&(x, _, high)| (x, high));
        let lower = series.band.iter().rev().map(|&(x, low, _)| (x, low));
        let d = way(upper.chain(lower), scale);
        svg.path(
            &format!("{d}Z"),
            &format!(r#"fill="{colour}" opacity="0.2""#),
        );
    }
    // The second time round the colours the lines are broken.
    let dash = match number / COLOURS.len() {
        0 => "",
        _ => r#"stroke-dasharray="6 3""#,
    };
    let d = way(series.points.iter().copied(), scale);
    let more =
        format!(r#"fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round" {dash}"#);
    svg.path(&d, &more);
    if let [(x, y)] = series.points.as_slice() {
        let at = (scale.x(*x) - 3.0, scale.y(*y) - 3.0);
        svg.rect(at, (6.0, 6.0), colour, r#"rx="3""#);
    }
}

fn way(points: impl Iterator<Item = (f64, f64)>, scale: &Scale) -> String {
    let mut d = String::new();
    for (number, (x, y)) in points.enumerate() {
        let letter = if number == 0 { 'M' } else { 'L' };
        let _ = write!(d, "{letter}{:.1} {:.1}", scale.x(x), scale.y(y));
    }
    d
}

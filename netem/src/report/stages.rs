//! Which stage of a pipeline each node hosted when, how busy it was, what was copied, and how long nobody could go on.

use std::fmt::Write;

use super::curves::{few, with_hidden};
use super::cuts::{Cut, Cuts, lines, whole};
use super::svg::{Anchor, FAINT, INK, Svg, text_width};
use super::takeover::takeovers;
use super::timeline::{
    COMPUTE, CUT, Plot, RUNS, SLICES, WAIT, WIDTH, axis, badges_of, draw_badge, label, shares,
    shown,
};
use crate::link::NodeIndex;
use crate::record::Record;

/// One stage after the other, without the colours of computing and waiting.
const STAGES: [&str; 4] = ["#009e73", "#cc79a7", "#56b4e9", "#555"];
const RECOVERABLE: &str = "#009e73";

/// The figure; none where nothing was cut.
pub(super) fn stages(record: &Record) -> Option<String> {
    let cuts = Cuts::of(record);
    let shown = shown(record);
    if cuts.all.is_empty() || shown.is_empty() || record.duration_s <= 0.0 {
        return None;
    }
    let tall = match shown.len() {
        0..=12 => 44.0,
        13..=24 => 28.0,
        _ => 18.0,
    };
    let names = shown.iter().map(|&rank| label(&record.nodes[rank]));
    let longest = names.map(|name| text_width(&name, 12.0));
    let plot = Plot {
        left: longest.fold(60.0, f64::max) + 18.0,
        top: 64.0,
        right: WIDTH - 24.0,
        tall,
        end: record.duration_s,
    };
    let bottom = plot.top + tall * shown.len() as f64;
    let (badges, mut hidden) = badges_of(record, &shown);
    let losses = takeovers(record, &cuts);
    let stands = losses.iter().map(|loss| {
        let end = loss
            .step_s
            .map_or(record.duration_s, |took| loss.mark.t + took);
        (loss.mark.t, end)
    });
    let (stands, more) = few(stands.collect());
    hidden += more;
    let rows: Vec<(Vec<Span<'_>>, usize)> = shown
        .iter()
        .map(|&rank| few(spans(record, &cuts, rank)))
        .collect();
    hidden += rows.iter().map(|row| row.1).sum::<usize>();
    let lives = shown
        .iter()
        .map(|&rank| few(record.nodes[rank].lives.clone()).1);
    hidden += lives.sum::<usize>();
    let name = "Which stage each node hosted when";
    let mut svg = Svg::new(WIDTH, bottom + 44.0, name);
    let title = match record.nodes.len() - shown.len() {
        0 => name.to_owned(),
        more => format!("{name} ({} of {} nodes)", shown.len(), more + shown.len()),
    };
    let title = with_hidden(title, hidden);
    svg.text((12.0, 20.0), Anchor::Start, 15.0, INK, &title);
    legend(&mut svg, 42.0);
    for (from, to) in stands {
        let (from, to) = (plot.x(from), plot.x(to));
        let size = ((to - from).max(1.0), bottom - plot.top);
        svg.rect((from, plot.top), size, CUT, "");
    }
    for (number, (&rank, (spans, _))) in shown.iter().zip(&rows).enumerate() {
        let row = Row {
            y: plot.top + tall * number as f64,
            rank,
        };
        row.draw(&mut svg, &plot, record, spans);
    }
    for (row, mark) in badges {
        let y = plot.top + tall * (row as f64 + 0.36);
        draw_badge(&mut svg, (plot.x(mark.t), y), record, mark, shown[row]);
    }
    axis(&mut svg, &plot, bottom);
    Some(svg.finish())
}

fn colour(stage: usize) -> &'static str {
    STAGES[stage % STAGES.len()]
}

fn legend(svg: &mut Svg, y: f64) {
    let mut x = 12.0;
    let mut entry = |svg: &mut Svg, fills: &[&str], more: &str, text: &str| {
        for fill in fills {
            svg.rect((x, y - 10.0), (12.0, 12.0), fill, more);
            x += 13.0;
        }
        svg.text((x + 4.0, y), Anchor::Start, 12.0, INK, text);
        x += 18.0 + text_width(text, 12.0);
    };
    entry(svg, &STAGES, "", "stages 1, 2, 3, …");
    entry(svg, &STAGES[..1], PALE, "fetching and loading");
    entry(svg, &[COMPUTE], "", "computing");
    entry(svg, &[WAIT], "", "waiting (bubbles)");
    entry(svg, &[RUNS], "", "runs");
    entry(svg, &[CUT], "", "a loss, until all step again");
    svg.line((x, y - 10.0), (x, y), INK, r#"stroke-width="1.5""#);
    svg.text((x + 6.0, y), Anchor::Start, 12.0, INK, "copied (a line)");
    x += 22.0 + text_width("copied (a line)", 12.0);
    let d = format!("M{x:.1} {y:.1}l3.5 -7l3.5 7z");
    svg.path(&d, &format!(r#"fill="{RECOVERABLE}""#));
    svg.text((x + 11.0, y), Anchor::Start, 12.0, INK, "recoverable");
}

const PALE: &str = r#"opacity="0.3""#;

/// A stage on a node for a while.
#[derive(Debug, PartialEq)]
struct Span<'a> {
    cut: &'a Cut,
    stage: usize,
    from: f64,
    /// When its first step began.
    works: f64,
    to: f64,
}

/// What a node hosted, as it knew itself.
fn spans<'a>(record: &Record, cuts: &'a Cuts<'_>, rank: NodeIndex) -> Vec<Span<'a>> {
    let node = &record.nodes[rank];
    let steps: Vec<(u64, f64, f64)> = lines(node, "step")
        .filter_map(|line| {
            let fields = ["computing_s", "waiting_s", "communicating_s"];
            let spent = fields.map(|field| line.number(field).unwrap_or(0.0).max(0.0));
            let cut = cuts.of_step(line)?;
            Some((cut.number, line.t, line.t - spent.iter().sum::<f64>()))
        })
        .collect();
    let told = lines(node, "cut").filter_map(|line| {
        let number = whole(line, "view")?;
        let cut = cuts.all.iter().find(|cut| cut.number == number)?;
        // The cut before works until the switch.
        let before = steps
            .iter()
            .filter(|step| step.0 < number && step.1 > line.t);
        Some((cut, before.map(|step| step.1).fold(line.t, f64::max)))
    });
    let told: Vec<(&Cut, f64)> = told.collect();
    let stops = ["failed", "ending", "closed"];
    let stops = node
        .metrics
        .iter()
        .filter(|line| stops.contains(&line.event.as_str()));
    let mut ends: Vec<f64> = stops.map(|line| line.t).collect();
    ends.extend(node.lives.iter().map(|life| life[1]));
    let span = |(place, &(cut, from)): (usize, &(&'a Cut, f64))| {
        let stage = cut.stage_on(rank)?;
        let next = told.get(place + 1).map(|next| next.1);
        let ends = ends.iter().copied().filter(|end| *end >= from).chain(next);
        let to = ends.fold(record.duration_s, f64::min);
        // A cut that was told after the end, by a node that ends late.
        if to <= from {
            return None;
        }
        let mut own = steps.iter().filter(|step| step.0 == cut.number);
        let works = own.find(|step| step.1 >= from && step.1 <= to);
        // A step's time begins with the wait for the others, who may be loading.
        let placed = lines(node, "in_place").filter(|line| whole(line, "view") == Some(cut.number));
        let placed = placed.map(|line| line.t).find(|t| *t >= from);
        let works = works.map_or(to, |step| step.2.max(placed.unwrap_or(from)));
        let works = works.clamp(from, to);
        Some(Span {
            cut,
            stage,
            from,
            works,
            to,
        })
    };
    told.iter().enumerate().filter_map(span).collect()
}

struct Row {
    y: f64,
    rank: NodeIndex,
}

impl Row {
    fn draw(&self, svg: &mut Svg, plot: &Plot, record: &Record, spans: &[Span<'_>]) {
        let node = &record.nodes[self.rank];
        let (y, tall) = (self.y, plot.tall);
        let size = if tall < 20.0 { 9.0 } else { 12.0 };
        let foot = y + tall;
        svg.line((plot.left, foot), (plot.right, foot), FAINT, "");
        let at = (plot.left - 8.0, y + tall / 2.0 + 4.0);
        svg.text(at, Anchor::End, size, INK, &label(node));
        let (bar, strip) = (
            (y + tall * 0.08, tall * 0.5),
            (y + tall * 0.66, tall * 0.28),
        );
        for &[from, to] in &few(node.lives.clone()).0 {
            let (from, to) = (plot.x(from), plot.x(to));
            svg.rect((from, bar.0), ((to - from).max(0.5), bar.1), RUNS, "");
            svg.rect((from, strip.0), ((to - from).max(0.5), strip.1), RUNS, "");
        }
        for span in spans {
            draw_span(svg, plot, bar, span);
        }
        let shares = shares(node, plot.end);
        let wide = (plot.right - plot.left) / SLICES as f64;
        let (mut busy, mut idle) = (String::new(), String::new());
        for (slice, [computing, _, waiting]) in shares.into_iter().enumerate() {
            let x = plot.left + wide * slice as f64;
            let high = strip.1 * computing;
            let low = strip.0 + strip.1;
            for (d, foot, high) in [
                (&mut busy, low, high),
                (&mut idle, low - high, strip.1 * waiting),
            ] {
                if high >= 0.1 {
                    let _ = write!(d, "M{x:.1} {foot:.1}h{wide:.2}v{:.1}h-{wide:.2}z", -high);
                }
            }
        }
        for (d, fill) in [(busy, COMPUTE), (idle, WAIT)] {
            if !d.is_empty() {
                svg.path(&d, &format!(r#"fill="{fill}""#));
            }
        }
        // Where it hosts a stage, and so far apart that one can be told from the next.
        let ticks = |event, apart: f64| {
            let mut ticks = vec![];
            let mut free = f64::NEG_INFINITY;
            for line in lines(node, event) {
                let x = plot.x(line.t);
                let hosted = |span: &Span<'_>| span.from <= line.t && line.t <= span.to;
                if x >= free && spans.iter().any(hosted) {
                    ticks.push(x);
                    free = x + apart;
                }
            }
            ticks
        };
        let at = bar.0 + bar.1;
        let mut d = String::new();
        for x in ticks("line", 3.0) {
            let _ = write!(d, "M{x:.1} {:.1}v{:.1}", at - 3.0, tall * 0.12);
        }
        if !d.is_empty() {
            svg.path(&d, &format!(r#"stroke="{INK}" stroke-width="1.5""#));
        }
        let mut d = String::new();
        for x in ticks("recoverable", 8.0) {
            let _ = write!(d, "M{x:.1} {:.1}l3.5 -6l3.5 6z", at + tall * 0.1);
        }
        if !d.is_empty() {
            svg.path(
                &d,
                &format!(r##"fill="{RECOVERABLE}" stroke="#fff" stroke-width="0.5""##),
            );
        }
    }
}

fn draw_span(svg: &mut Svg, plot: &Plot, (y, tall): (f64, f64), span: &Span<'_>) {
    let Some(stage) = span.cut.stages.get(span.stage) else {
        return;
    };
    let [from, works, to] = [span.from, span.works, span.to].map(|t| plot.x(t));
    let fill = colour(span.stage);
    let blocks = blocks(stage.first, stage.end);
    let about = format!(
        "view {}: stage {} of {}, blocks {blocks}, from step {}, {:.1} to {:.1} s",
        span.cut.number,
        span.stage + 1,
        span.cut.stages.len(),
        span.cut.from_step,
        span.from,
        span.to
    );
    svg.hover(&about, |svg| {
        if works > from {
            svg.rect((from, y), (works - from, tall), fill, PALE);
        }
        if to > works {
            svg.rect(
                (works, y),
                ((to - works).max(0.5), tall),
                fill,
                r##"stroke="#fff" stroke-width="0.5""##,
            );
        }
    });
    if tall >= 12.0 && to - works > text_width(&blocks, 11.0) + 8.0 {
        let middle = ((works + to) / 2.0, y + tall / 2.0 + 4.0);
        svg.text(middle, Anchor::Middle, 11.0, "#fff", &blocks);
    }
}

/// `3–7`, or `3` where it is one block.
pub(super) fn blocks(first: u64, end: u64) -> String {
    match end.saturating_sub(1) {
        _ if end == first => "source".into(),
        last if last > first => format!("{first}–{last}"),
        _ => first.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::record::NodeRecord;

    #[test]
    fn a_node_hosts_a_stage_until_the_next_cut_its_end_or_the_end_of_the_job() {
        let record = sample::pipeline();
        let cuts = Cuts::of(&record);
        let of = |rank| {
            let spans = spans(&record, &cuts, rank);
            let round = |t: f64| (t * 10.0).round() / 10.0;
            let rounded = spans.iter().map(|span| {
                let times = [span.from, span.works, span.to].map(round);
                (span.cut.number, span.stage, times)
            });
            rounded.collect::<Vec<_>>()
        };
        assert_eq!(
            of(0),
            [(1, 0, [0.0, 0.2, 10.7]), (2, 0, [10.7, 11.2, 27.0])]
        );
        assert_eq!(of(1), [(1, 1, [0.0, 0.2, 10.5])]);
        assert_eq!(
            of(2),
            [(1, 2, [0.0, 0.2, 10.7]), (2, 1, [10.7, 11.3, 27.0])]
        );
        assert_eq!(of(3), []);
    }

    #[test]
    fn an_old_cut_is_drawn_until_its_last_step() {
        let mut record = sample::pipeline();
        let lines = &mut record.nodes[0].metrics;
        lines.retain(|line| line.t < 15.0);
        lines.push(sample::cut(15.0, 3, 9, &[("a", 0, 20)]));
        lines.extend(
            [(16.0, 8), (18.0, 9), (25.0, 10)].map(|(t, step)| sample::stage_step(t, step, 3)),
        );
        let cuts = Cuts::of(&record);
        let times: Vec<_> = spans(&record, &cuts, 0)
            .iter()
            .map(|span| (span.from, span.to))
            .collect();
        assert_eq!(times, [(0.0, 10.7), (10.7, 18.0), (18.0, 30.0)]);
    }

    #[test]
    fn the_figure_shows_blocks_copies_and_how_long_nobody_went_on() {
        let svg = stages(&sample::pipeline()).unwrap_or_default();
        for part in [
            "0–5",
            "6–12",
            "10–19",
            "view 2: stage 1 of 2",
            "M1",
            "10.5 s: kill",
            CUT,
        ] {
            assert!(svg.contains(part), "{part}");
        }
        assert_eq!(stages(&sample::record()), None);
        let mut record = sample::pipeline();
        record.nodes = vec![NodeRecord::default()];
        assert_eq!(stages(&record), None);
    }

    #[test]
    fn a_long_run_stays_small_and_says_what_is_not_drawn() {
        let mut record = sample::pipeline();
        record.duration_s = 1e5;
        record.nodes[0].lives = vec![[0.0, 1e5]];
        record.nodes[0].metrics.pop();
        for n in 0..20_000_u64 {
            let t = 30.0 + n as f64 * 4.0;
            let lines = &mut record.nodes[0].metrics;
            lines.push(sample::of_view(t, "line", 2));
            lines.push(sample::of_view(t, "recoverable", 2));
            if n % 10 == 0 {
                lines.push(sample::cut(t, 3 + n, 12 + n, &[("a", 0, 20)]));
            }
        }
        let svg = stages(&record).unwrap_or_default();
        assert!(svg.len() < 200_000, "{}", svg.len());
        assert!(svg.contains("more marks are not drawn"));
    }
}

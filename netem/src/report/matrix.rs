//! Bytes per link as a matrix: who sent how much to whom.

use std::collections::BTreeMap;

use super::numbers::bytes_text;
use super::svg::{Anchor, INK, Svg, text_width};
use crate::record::{PairTraffic, Record};

/// Up to so many nodes have a row each; beyond, groups do.
const MOST_NODES: usize = 40;
/// Up to so many rows hold their numbers.
const MOST_NUMBERS: usize = 14;

/// The figure; none where nothing was carried, or rows would be too many.
pub(super) fn matrix(record: &Record) -> Option<String> {
    let pairs = &record.traffic.last()?.pairs;
    let (names, cells) = by_node(record, pairs).or_else(|| by_group(record, pairs))?;
    let most = cells.values().map(|cell| cell.bytes).max()?;
    let n = names.len();
    let numbers = n <= MOST_NUMBERS;
    let size = if numbers { (66.0, 32.0) } else { (22.0, 20.0) };
    let longest = names.iter().map(|name| text_width(name, 12.0));
    let left = longest.fold(40.0, f64::max) + 30.0;
    let (top, all) = (if numbers { 64.0 } else { 50.0 + left }, 74.0);
    let width = (left + size.0 * n as f64 + all + 16.0).max(440.0);
    let height = top + size.1 * n as f64 + 44.0;
    let mut svg = Svg::new(width, height, "Bytes per link");
    svg.text(
        (12.0, 20.0),
        Anchor::Start,
        15.0,
        INK,
        "Bytes per link: from the row to the column",
    );
    for (to, name) in names.iter().enumerate() {
        let x = left + size.0 * (to as f64 + 0.5);
        if numbers {
            let shown = fitted(name, size.0 - 4.0);
            svg.text((x, top - 6.0), Anchor::Middle, 12.0, INK, &shown);
        } else {
            let half = text_width(name, 12.0) / 2.0;
            svg.upright((x + 4.0, top - 8.0 - half), name);
        }
    }
    let total = |from: Option<usize>, to: Option<usize>| {
        let inside =
            |at: &(usize, usize)| from.is_none_or(|f| f == at.0) && to.is_none_or(|t| t == at.1);
        let cells = cells.iter().filter(|(at, _)| inside(at));
        bytes_text(cells.map(|(_, cell)| cell.bytes as f64).sum())
    };
    svg.text(
        (left + size.0 * n as f64 + 8.0, top - 6.0),
        Anchor::Start,
        11.0,
        "#666",
        "sent",
    );
    for (from, name) in names.iter().enumerate() {
        let y = top + size.1 * from as f64;
        svg.text(
            (left - 8.0, y + size.1 / 2.0 + 4.0),
            Anchor::End,
            12.0,
            INK,
            name,
        );
        for (to, receiver) in names.iter().enumerate() {
            let at = (left + size.0 * to as f64, y);
            let Some(cell) = cells.get(&(from, to)) else {
                svg.rect(at, (size.0 - 1.0, size.1 - 1.0), "#f4f4f4", "");
                continue;
            };
            let share = cell.bytes as f64 / most.max(1) as f64;
            let ink = if share > 0.5 { "#fff" } else { "#222" };
            let text = bytes_text(cell.bytes as f64);
            let hover = format!(
                "{name} to {receiver}: {text} sent, {} arrived, {} frames dropped",
                bytes_text(cell.delivered as f64),
                cell.dropped
            );
            svg.hover(&hover, |svg| {
                svg.rect(at, (size.0 - 1.0, size.1 - 1.0), &shade(share), "");
                if numbers {
                    let middle = (at.0 + size.0 / 2.0, at.1 + size.1 / 2.0 + 4.0);
                    svg.text(middle, Anchor::Middle, 11.0, ink, &text);
                }
            });
        }
        let at = (left + size.0 * n as f64 + 8.0, y + size.1 / 2.0 + 4.0);
        svg.text(at, Anchor::Start, 11.0, "#666", &total(Some(from), None));
    }
    let y = top + size.1 * n as f64 + 16.0;
    svg.text((left - 8.0, y), Anchor::End, 11.0, "#666", "to it");
    if numbers {
        for to in 0..n {
            let x = left + size.0 * (to as f64 + 0.5);
            svg.text((x, y), Anchor::Middle, 11.0, "#666", &total(None, Some(to)));
        }
    }
    let all = format!(
        "{} in all; the darkest cell is {}",
        total(None, None),
        bytes_text(most as f64)
    );
    svg.text((12.0, height - 8.0), Anchor::Start, 11.0, "#666", &all);
    Some(svg.finish())
}

type Cells = BTreeMap<(usize, usize), PairTraffic>;

fn by_node(record: &Record, pairs: &[PairTraffic]) -> Option<(Vec<String>, Cells)> {
    let names = record.nodes.iter().map(|node| node.name.clone());
    let cells = pairs.iter().map(|pair| ((pair.from, pair.to), *pair));
    let known = |at: &(usize, usize)| at.0.max(at.1) < record.nodes.len();
    (record.nodes.len() <= MOST_NODES)
        .then(|| (names.collect(), cells.filter(|(at, _)| known(at)).collect()))
}

fn by_group(record: &Record, pairs: &[PairTraffic]) -> Option<(Vec<String>, Cells)> {
    let mut groups: Vec<(String, usize)> = vec![];
    let mut of = vec![];
    for node in &record.nodes {
        let known = groups.iter().position(|group| group.0 == node.group);
        let at = known.unwrap_or(groups.len());
        if known.is_none() {
            groups.push((node.group.clone(), 0));
        }
        groups[at].1 += 1;
        of.push(at);
    }
    if groups.len() > MOST_NODES {
        return None;
    }
    let mut cells = Cells::new();
    for pair in pairs {
        let (Some(&from), Some(&to)) = (of.get(pair.from), of.get(pair.to)) else {
            continue;
        };
        let nothing = PairTraffic {
            from,
            to,
            bytes: 0,
            delivered: 0,
            dropped: 0,
        };
        let cell = cells.entry((from, to)).or_insert(nothing);
        cell.bytes += pair.bytes;
        cell.delivered += pair.delivered;
        cell.dropped += pair.dropped;
    }
    let names = groups.into_iter().map(|(name, n)| format!("{name} ({n})"));
    Some((names.collect(), cells))
}

fn fitted(name: &str, room: f64) -> String {
    let letters = (room / text_width("m", 12.0)) as usize;
    match name.chars().count() > letters {
        true => name
            .chars()
            .take(letters.saturating_sub(1))
            .chain(['…'])
            .collect(),
        false => name.to_owned(),
    }
}

/// From white to a deep blue.
fn shade(share: f64) -> String {
    let mix =
        |light: f64, deep: f64| (light + (deep - light) * share.clamp(0.0, 1.0)).round() as u8;
    format!(
        "#{:02x}{:02x}{:02x}",
        mix(237.0, 8.0),
        mix(244.0, 64.0),
        mix(251.0, 129.0)
    )
}

//! The tables of a pipeline's report: what each loss of a host cost, and what each cut gave.

use std::fmt::Write;

use super::cuts::{Cut, Cuts, lines};
use super::numbers::number_text;
use super::stages::blocks;
use super::svg::escaped;
use super::takeover::{Takeover, takeovers};
use super::throughput::{mean, stretches};
use crate::link::NodeIndex;
use crate::record::Record;

/// Most rows of a table.
const MOST: usize = 100;

/// Both tables; empty where nothing was cut.
pub(super) fn stage_tables(record: &Record) -> String {
    let cuts = Cuts::of(record);
    let mut html = String::new();
    if !cuts.all.is_empty() {
        losses(&mut html, record, &takeovers(record, &cuts));
        all_cuts(&mut html, record, &cuts);
    }
    html
}

fn losses(html: &mut String, record: &Record, takeovers: &[Takeover<'_>]) {
    if takeovers.is_empty() {
        return;
    }
    let head = [
        "second",
        "node",
        "what",
        "new cut known",
        "copies there",
        "in place",
        "fed",
        "all stepped",
        "steps redone",
        "views",
    ];
    let rows = takeovers.iter().map(|takeover| {
        let phase =
            |seconds: Option<f64>| seconds.map_or("–".to_owned(), |s| format!("{s:.3} s"));
        let views: Vec<String> = takeover.cuts.iter().map(u64::to_string).collect();
        let [second, node] = [
            format!("{:.1}", takeover.mark.t),
            name(record, Some(takeover.victim)),
        ];
        let step = takeover.step_s;
        vec![
            second,
            node,
            escaped(&takeover.mark.what),
            phase(takeover.proposed_s),
            phase(takeover.fetched_s),
            phase(takeover.in_place_s),
            phase(takeover.fed_s),
            step.map_or("never".to_owned(), |s| format!("<b>{s:.3} s</b>")),
            takeover.redone.to_string(),
            views.join(", "),
        ]
    });
    html.push_str(
        "<p class=\"note\">Losses of hosts: seconds from the loss to each phase, of all hosts of the cut that held.</p>\n",
    );
    table(html, "", &head, rows.collect());
}

fn all_cuts(html: &mut String, record: &Record, cuts: &Cuts<'_>) {
    let nodes: Vec<NodeIndex> = (0..record.nodes.len()).collect();
    let stretches = stretches(record, cuts, &nodes);
    let rate = |rate: Option<f64>| rate.map_or("–".to_owned(), |rate| number_text(Some(rate)));
    let rows = cuts.all.iter().map(|cut| {
        let own = stretches
            .iter()
            .filter(|stretch| stretch.view == cut.number);
        let busy = busy(record, cuts, cut);
        let stages = cut.stages.iter().zip(busy).map(|(stage, busy)| {
            let hosts = stage.hosts().map(|host| name(record, Some(host)));
            let host = match stage.hosts().count() {
                0 => "?".to_owned(),
                _ => hosts.collect::<Vec<_>>().join(" + "),
            };
            let busy = busy.map_or(String::new(), |share| format!(" ({:.0} %)", share * 100.0));
            format!("{host} {}{busy}", blocks(stage.first, stage.end))
        });
        let stages: Vec<String> = stages.collect();
        let works = cuts.works_at(cut);
        vec![
            cut.number.to_string(),
            format!("{:.1}", cut.at()),
            cut.from_step.to_string(),
            works.map_or("–".to_owned(), |works| {
                format!("{:.2} s", works - cut.at())
            }),
            rate(cut.promised),
            rate(mean(own)),
            stages.join(" · "),
        ]
    });
    html.push_str(
        "<p class=\"note\">Cuts: blocks per host, first stage to last, with the share of its steps&rsquo; time that the host \
         computed; the rest is bubbles. Samples per second where it ran steadily.</p>\n",
    );
    let head = [
        "view",
        "second",
        "from step",
        "until all stepped",
        "samples/s promised",
        "measured",
        "stages",
    ];
    table(html, "left", &head, rows.collect());
}

/// Share of computing in the time of the steps that each host of `cut` made in it.
fn busy(record: &Record, cuts: &Cuts<'_>, cut: &Cut) -> Vec<Option<f64>> {
    let of_host = |host: Option<NodeIndex>| {
        let node = record.nodes.get(host?)?;
        let steps = lines(node, "step")
            .filter(|line| cuts.of_step(line).is_some_and(|of| of.number == cut.number));
        let fields = ["computing_s", "waiting_s", "communicating_s"];
        let spent = steps.map(|line| fields.map(|field| line.number(field).unwrap_or(0.0)));
        let [computing, waiting, communicating] = spent.fold([0.0; 3], |sum, spent| {
            std::array::from_fn(|i| sum[i] + spent[i])
        });
        let all = computing + waiting + communicating;
        (all > 0.0).then(|| computing / all)
    };
    cut.stages.iter().map(|stage| of_host(stage.host)).collect()
}

fn name(record: &Record, node: Option<NodeIndex>) -> String {
    let node = node.and_then(|rank| record.nodes.get(rank));
    escaped(node.map_or("?", |node| &node.name))
}

fn table(html: &mut String, class: &str, head: &[&str], rows: Vec<Vec<String>>) {
    let _ = writeln!(
        html,
        "<div class=\"scroll\"><table class=\"{class}\">\n<tr><th>{}</th></tr>",
        head.join("</th><th>")
    );
    for row in rows.iter().take(MOST) {
        let _ = writeln!(html, "<tr><td>{}</td></tr>", row.join("</td><td>"));
    }
    html.push_str("</table></div>\n");
    if rows.len() > MOST {
        let _ = writeln!(
            html,
            "<p class=\"note\">The first {MOST} of {}.</p>",
            rows.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn the_tables_hold_the_phases_of_each_loss_and_what_each_cut_gave() {
        let html = stage_tables(&sample::pipeline());
        let loss = [
            "10.5",
            "b",
            "kill",
            "0.200 s",
            "0.700 s",
            "0.800 s",
            "0.900 s",
            "<b>1.600 s</b>",
            "5",
            "2",
        ];
        let cut = [
            "2",
            "10.7",
            "5",
            "1.40 s",
            "–",
            "16",
            "a 0–9 (75 %) · c 10–19 (75 %)",
        ];
        for row in [loss.join("</td><td>"), cut.join("</td><td>")] {
            assert!(html.contains(&row), "{row}\n{html}");
        }
        assert_eq!(stage_tables(&sample::record()), "");
    }

    #[test]
    fn a_loss_that_nobody_took_over_and_an_unknown_host_have_their_words() {
        let mut record = sample::pipeline();
        record
            .nodes
            .iter_mut()
            .for_each(|node| node.metrics.retain(|line| line.t < 10.0));
        record.nodes[2].peer = None;
        let html = stage_tables(&record);
        assert!(html.contains("never") && html.contains("? 13–19"), "{html}");
    }
}

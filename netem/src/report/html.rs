//! One page per run, and one that lists the runs. A page holds all it needs and opens anywhere.

use std::fmt::Write;

use super::compare::comparison_table;
use super::curves::{Figure, words};
use super::metrics::{cpu_s, value};
use super::numbers::{bytes_text, number_text};
use super::stage_tables::stage_tables;
use super::summary::{RunSummary, Summary, Verdict};
use super::svg::escaped;
use super::timeline::letters;
use crate::record::Record;
use crate::scenario::{Measure, Named, Quantity};

const STYLE: &str = "\
body{font:15px/1.5 system-ui,'Helvetica Neue',Arial,sans-serif;color:#222;margin:2rem auto;max-width:1320px;padding:0 1rem}\
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:2rem 0 .3rem}\
p{max-width:60rem;margin:.3rem 0}.note{color:#555}\
table{border-collapse:collapse;margin:.5rem 0}td,th{padding:.15rem .8rem .15rem 0;text-align:right;vertical-align:top}\
th{font-weight:600;border-bottom:1px solid #bbb}td:first-child,th:first-child{text-align:left}\
.left td,.left th{text-align:left}\
.tag{display:inline-block;padding:0 .5rem;border-radius:.3rem;color:#fff;font-size:.9rem;font-weight:600}\
.ok{background:#00735a}.short{background:#b84a00}.none{background:#666}\
.figures{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0}svg{max-width:100%;height:auto}\
.scroll{overflow-x:auto}";

/// The page of one run.
pub(super) fn page(record: &Record, run: &RunSummary, figures: &[Figure]) -> String {
    let mut html = head(&run.title());
    let _ = writeln!(
        html,
        "<h1>{} {}</h1>",
        escaped(&run.title()),
        tag(&run.verdicts)
    );
    let _ = writeln!(html, "<p>{}</p>", escaped(&run.about));
    facts(&mut html, record, run);
    for limit in &run.not_applied {
        let limit = escaped(limit);
        let _ = writeln!(
            html,
            "<p><b>Not applied:</b> {limit}. The numbers below are without it.</p>"
        );
    }
    verdicts(&mut html, &run.verdicts);
    section(
        &mut html,
        "How well the model did",
        "Each line is one node&rsquo;s look at data that it does not train on. Dashed lines are what happened to \
         nodes or network; a shaded span is a cut network. Over bytes, a curve further left reached the same with less traffic.",
    );
    let _ = writeln!(html, "<div class=\"figures\">");
    put(&mut html, figures, |file| {
        file.contains("-time") || file.contains("-bytes")
    });
    let _ = writeln!(html, "</div>");
    let letters = letters(record);
    let legend = match letters.as_str() {
        "" => String::new(),
        letters => format!(" Letters: {}.", escaped(letters)),
    };
    let note = format!(
        "One row per node. The height of a colour is the share of the time spent so; grey is what is no step: starting, looking at validation data, fetching a state. Where there is no bar, the node did not run. \
         The percentage is its share of a core.{legend}"
    );
    section(&mut html, "What each node did", &note);
    put(&mut html, figures, |file| file == "timeline.svg");
    pipeline(&mut html, record, figures);
    section(
        &mut html,
        "What the network carried",
        "Counted by the network itself: whole Ethernet frames, all programs, also those that were lost later.",
    );
    put(&mut html, figures, |file| file == "links.svg");
    resources(&mut html, record);
    happened(&mut html, record);
    html.push_str("</body></html>\n");
    html
}

fn head(title: &str) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head><body>\n"
    )
}

fn tag(verdicts: &[Verdict]) -> String {
    let short = verdicts.iter().filter(|verdict| !verdict.holds).count();
    match (verdicts.len(), short) {
        (0, _) => "<span class=\"tag none\">nothing was expected</span>".to_owned(),
        (_, 0) => "<span class=\"tag ok\">all expectations hold</span>".to_owned(),
        (all, short) => {
            format!("<span class=\"tag short\">{short} of {all} expectations fall short</span>")
        }
    }
}

fn facts(html: &mut String, record: &Record, run: &RunSummary) {
    let engine = match run.engine.as_str() {
        "lab" => "lab: real processes, real time, emulated network",
        "sim" => "simulator: virtual time",
        other => other,
    };
    let mut rows = vec![
        ("engine", engine.to_owned()),
        ("nodes", record.nodes.len().to_string()),
        ("lasted", format!("{:.1} s", run.duration_s)),
        ("seed", run.seed.to_string()),
        ("machine", run.machine.clone()),
    ];
    if let Some(cpu_s) = record.switch_cpu_s {
        let share = cpu_s / record.duration_s.max(1e-9) * 100.0;
        rows.push((
            "the testbed itself took",
            format!("{cpu_s:.1} CPU s ({share:.1} % of a core)"),
        ));
    }
    if let Some(speed) = run.speed {
        rows.push((
            "speed",
            format!("{speed:.1} virtual seconds per real second"),
        ));
    }
    if let Some(hash) = &run.trace_hash {
        rows.push(("hash over every event", hash.clone()));
    }
    html.push_str("<table class=\"left\">\n");
    for (name, text) in rows {
        let _ = writeln!(
            html,
            "<tr><td class=\"note\">{name}</td><td>{}</td></tr>",
            escaped(&text)
        );
    }
    html.push_str("</table>\n");
}

fn verdicts(html: &mut String, verdicts: &[Verdict]) {
    if verdicts.is_empty() {
        return;
    }
    html.push_str("<h2>Expectations</h2>\n<table>\n<tr><th>metric</th><th>measured</th><th>expected</th><th></th></tr>\n");
    for verdict in verdicts {
        let (class, word) = if verdict.holds {
            ("ok", "holds")
        } else {
            ("short", "falls short")
        };
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{} {}</td><td><span class=\"tag {class}\">{word}</span></td></tr>",
            escaped(&verdict.metric),
            number_text(verdict.value),
            escaped(&verdict.comparison),
            number_text(Some(verdict.bound)),
        );
    }
    html.push_str("</table>\n");
}

/// What only a pipeline has.
fn pipeline(html: &mut String, record: &Record, figures: &[Figure]) {
    let is_it = |file: &str| file == "stages.svg";
    if !figures.iter().any(|(file, _)| is_it(file)) {
        return;
    }
    section(
        html,
        "Stages",
        "One row per node. Above: the stage that it hosted, with its blocks; pale while what it needs is fetched and loaded. \
         Below: shares of the time spent computing and waiting. A line is a copy of the stage&rsquo;s state; it is recoverable when \
         enough peers hold it, so a loss costs the steps since. Pointing at a bar shows its view.",
    );
    put(html, figures, is_it);
    html.push_str(&stage_tables(record));
}

fn section(html: &mut String, title: &str, note: &str) {
    let _ = writeln!(html, "<h2>{title}</h2>\n<p class=\"note\">{note}</p>");
}

fn put(html: &mut String, figures: &[Figure], wanted: impl Fn(&str) -> bool) {
    let mut any = false;
    for (_, svg) in figures.iter().filter(|(file, _)| wanted(file)) {
        let _ = writeln!(html, "<figure class=\"scroll\">{svg}</figure>");
        any = true;
    }
    if !any {
        html.push_str("<p>The nodes wrote nothing that could be drawn here.</p>\n");
    }
}

/// One row per node, as many as a reader can take.
fn resources(html: &mut String, record: &Record) {
    const MOST: usize = 64;
    section(
        html,
        "What each node took",
        "CPU seconds and memory are measured from outside, where the engine does; shares are of the time within steps.",
    );
    html.push_str(
        "<div class=\"scroll\"><table>\n<tr><th>node</th><th>CPU limit</th><th>CPU used</th><th>peak memory</th><th>steps</th>\
         <th>samples</th><th>computing</th><th>waiting</th><th>exchanging</th><th>sent</th><th>last accuracy</th></tr>\n",
    );
    for node in record.nodes.iter().take(MOST) {
        let of = |named: Named| {
            let measure = Measure {
                quantity: Quantity::Named(named),
                of: Some(node.name.clone()),
            };
            value(record, &measure)
        };
        let percent = |share: Option<f64>| {
            share.map_or("–".to_owned(), |share| format!("{:.1} %", share * 100.0))
        };
        let count = |named| number_text(of(named));
        let used = match node.usage.is_empty() {
            true => "–".to_owned(),
            false => format!("{:.1} s", cpu_s(&node.usage)),
        };
        let cells = [
            escaped(&node.name),
            node.cpu
                .map_or("none".to_owned(), |cpu| format!("{:.0} %", cpu * 100.0)),
            used,
            of(Named::PeakRssBytes).map_or("–".to_owned(), bytes_text),
            count(Named::Steps),
            count(Named::Samples),
            percent(of(Named::ComputeShare)),
            percent(of(Named::WaitShare)),
            percent(of(Named::CommunicateShare)),
            of(Named::BytesSent).map_or("–".to_owned(), bytes_text),
            percent(of(Named::Accuracy)),
        ];
        let _ = writeln!(html, "<tr><td>{}</td></tr>", cells.join("</td><td>"));
    }
    html.push_str("</table></div>\n");
    if record.nodes.len() > MOST {
        let _ = writeln!(
            html,
            "<p class=\"note\">The first {MOST} of {} nodes.</p>",
            record.nodes.len()
        );
    }
}

fn happened(html: &mut String, record: &Record) {
    const MOST: usize = 200;
    if record.marks.is_empty() {
        return;
    }
    html.push_str("<h2>What happened</h2>\n<table class=\"left\">\n<tr><th>second</th><th>what</th><th>to</th><th></th></tr>\n");
    for mark in record.marks.iter().take(MOST) {
        let name = |&rank: &usize| record.nodes.get(rank).map_or("?", |node| &node.name);
        let nodes: Vec<&str> = mark.nodes.iter().map(name).collect();
        let to = match mark.what.as_str() {
            _ if !nodes.is_empty() => nodes.join(", "),
            "partition" | "heal" => "the network".to_owned(),
            _ => String::new(),
        };
        let _ = writeln!(
            html,
            "<tr><td>{:.1}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            mark.t,
            escaped(words(&mark.what)),
            escaped(&to),
            escaped(mark.detail.lines().next().unwrap_or_default())
        );
    }
    html.push_str("</table>\n");
    if record.marks.len() > MOST {
        let _ = writeln!(
            html,
            "<p class=\"note\">The first {MOST} of {}.</p>",
            record.marks.len()
        );
    }
}

/// The page that lists all runs, below the comparison if there is one.
pub(super) fn index(summary: &Summary) -> String {
    let mut html = head(&summary.name);
    let _ = writeln!(html, "<h1>{}</h1>", escaped(&summary.name));
    if !summary.comparison.is_empty() {
        let table = comparison_table(&summary.comparison);
        let lines: Vec<String> = table.lines().map(escaped).collect();
        let _ = writeln!(html, "<pre class=\"scroll\">{}</pre>", lines.join("\n"));
    }
    html.push_str("<table>\n<tr><th>run</th><th>seed</th><th>lasted</th><th>accuracy</th><th>sent</th><th>expectations</th></tr>\n");
    for run in &summary.runs {
        let of = |metric: &str| run.metrics.get(metric).copied().flatten();
        let _ = writeln!(
            html,
            "<tr><td><a href=\"{}/report.html\">{}</a></td><td>{}</td><td>{:.1} s</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&run.folder),
            escaped(&run.title()),
            run.seed,
            run.duration_s,
            of("accuracy").map_or("–".to_owned(), |share| format!("{:.2} %", share * 100.0)),
            of("bytes_sent").map_or("–".to_owned(), bytes_text),
            tag(&run.verdicts)
        );
    }
    html.push_str("</table>\n</body></html>\n");
    html
}

//! A scenario drawn as text: nodes on their lines, pairs, and what happens when.

use std::fmt::Write;
use std::time::Duration;

use super::numbers::{counted, rounded, size_text, time_text};
use crate::link::{NodeIndex, Profile};
use crate::scenario::{
    Action, Comparison, Condition, Event, Line, Node, Program, Scenario, When, rate_text,
};

/// Columns of the drawing.
const WIDTH: usize = 116;
/// Columns of the time axis.
const AXIS: usize = 64;
/// Most rows of pairs and of events that are listed.
const MOST_ROWS: usize = 40;

/// The whole drawing, with a line end.
pub fn topology(scenario: &Scenario) -> String {
    let mut text = String::new();
    let nodes = scenario.nodes.len();
    let variant = match scenario.variant.as_str() {
        "" => String::new(),
        variant => format!(", variant {variant}"),
    };
    let shares: f64 = scenario.nodes.iter().filter_map(|node| node.cpu).sum();
    let shares = match shares {
        0.0 => String::new(),
        shares => format!(", CPU shares of {} cores in all", rounded(shares)),
    };
    let name = &scenario.name;
    let counted = counted(nodes, "node");
    let _ = writeln!(
        text,
        "{name}{variant}: {counted}{shares}, seed {}\n",
        scenario.seed
    );
    for line in wrapped(&scenario.about) {
        let _ = writeln!(text, "  {line}");
    }
    text.push('\n');
    draw_nodes(&mut text, &scenario.nodes);
    draw_pairs(&mut text, scenario);
    draw_events(&mut text, scenario);
    let _ = writeln!(text, "ends {}", ending(scenario));
    if !scenario.expect.is_empty() {
        let _ = writeln!(text, "\npasses if");
    }
    for expect in &scenario.expect {
        let sign = expect.comparison.sign();
        let _ = writeln!(text, "  {} {sign} {}", expect.metric, expect.value);
    }
    text
}

/// Nodes that follow each other and differ in nothing but the name are drawn once.
fn draw_nodes(text: &mut String, nodes: &[Node]) {
    let alike = |a: &Node, b: &Node| {
        let name = |node: &Node| Node {
            name: String::new(),
            ..node.clone()
        };
        name(a) == name(b)
    };
    let groups: Vec<&[Node]> = nodes.chunk_by(alike).collect();
    for (number, group) in groups.iter().enumerate() {
        let Some((first, last)) = group.first().zip(group.last()) else {
            continue;
        };
        let title = match group.len() {
            1 => first.name.clone(),
            n => format!("{} … {} ({n})", first.name, last.name),
        };
        let runs = match &first.program {
            Program::Skein { args } if args.is_empty() => "skein".to_owned(),
            Program::Skein { args } => format!("skein {}", args.join(" ")),
            Program::Command(words) => words.join(" "),
        };
        let left = [
            title,
            format!("  {}", device(first)),
            format!("  runs {runs}"),
        ];
        let right = [
            format!("up    {}", line(&first.up)),
            format!("down  {}", line(&first.down)),
            String::new(),
        ];
        let last_one = number + 1 == groups.len();
        for (row, (left, right)) in left.iter().zip(&right).enumerate() {
            let wire = if right.is_empty() { ' ' } else { '─' };
            let corner = match (row, number, last_one) {
                (0, 0, _) => '╮',
                (0, ..) => '┤',
                (1, _, true) => '╯',
                (1, ..) => '┤',
                (_, _, true) => ' ',
                _ => '│',
            };
            let left = clipped(left, 38);
            let start = if right.is_empty() { "  " } else { "──" };
            let right = if right.is_empty() {
                String::new()
            } else {
                format!(" {} ", clipped(right, WIDTH - 46))
            };
            let fill = (WIDTH - 42).saturating_sub(right.chars().count());
            let wire = wire.to_string().repeat(fill);
            let drawn = format!("  {left:<38}{start}{right}{wire}{corner}");
            let _ = writeln!(text, "{}", drawn.trim_end());
        }
    }
    text.push('\n');
}

fn device(node: &Node) -> String {
    let mut parts = vec![match node.cpu {
        Some(cpu) => format!("{} of a core", rounded(cpu)),
        None => "no CPU limit".to_owned(),
    }];
    if let Some(bytes) = node.memory {
        parts.push(size_text(bytes));
    }
    if node.threads != 1 {
        parts.push(format!("{} threads", node.threads));
    }
    match node.start {
        Some(Duration::ZERO) => {}
        Some(start) => parts.push(format!("from {}", time_text(start))),
        None => parts.push("joins later".to_owned()),
    }
    parts.join(", ")
}

fn line(line: &Line) -> String {
    match &line.trace {
        None => profile_text(&line.profile),
        Some(trace) => {
            let rates = trace.points.iter().map(|point| point.rate);
            let least = rates.clone().min().map_or_else(String::new, rate_text);
            let most = rates.max().map_or_else(String::new, rate_text);
            let rest = profile_text(&Profile {
                rate: None,
                ..line.profile
            });
            format!("{least} to {most} by a trace, {rest}")
        }
    }
}

fn profile_text(profile: &Profile) -> String {
    let mut parts = vec![];
    if let Some(rate) = profile.rate {
        parts.push(rate_text(rate));
    }
    if !profile.delay.is_zero() || !profile.jitter.is_zero() {
        let jitter = match profile.jitter {
            Duration::ZERO => String::new(),
            jitter => format!(" ± {}", time_text(jitter)),
        };
        parts.push(format!("{}{jitter}", time_text(profile.delay)));
    }
    if profile.loss > 0.0 {
        let burst = profile.burst.map_or_else(String::new, |burst| {
            format!(" in bursts of {}", rounded(burst))
        });
        parts.push(format!("loses {} %{burst}", rounded(profile.loss * 100.0)));
    }
    if profile.reorder > 0.0 {
        parts.push(format!("reorders {} %", rounded(profile.reorder * 100.0)));
    }
    if let Some(queue) = profile.queue {
        parts.push(format!("queue {}", size_text(queue)));
    }
    match parts.is_empty() {
        true => "a plain wire".to_owned(),
        false => parts.join(", "),
    }
}

fn draw_pairs(text: &mut String, scenario: &Scenario) {
    if scenario.pairs.is_empty() {
        return;
    }
    let _ = writeln!(text, "between nodes, beside their lines");
    for pair in scenario.pairs.iter().take(MOST_ROWS) {
        let (from, to) = (named(scenario, pair.from), named(scenario, pair.to));
        let _ = writeln!(text, "  {from} -> {to}  {}", line(&pair.line));
    }
    if scenario.pairs.len() > MOST_ROWS {
        let _ = writeln!(text, "  … {} pairs in all", scenario.pairs.len());
    }
    text.push('\n');
}

fn named(scenario: &Scenario, node: NodeIndex) -> &str {
    scenario.nodes.get(node).map_or("?", |node| &node.name)
}

/// The axis with a number for each event, and a row for each number.
fn draw_events(text: &mut String, scenario: &Scenario) {
    if scenario.events.is_empty() {
        return;
    }
    let end = scenario.end.after;
    let column = |at: Duration| {
        let share = at.as_secs_f64() / end.as_secs_f64().max(1e-9);
        ((share * (AXIS - 1) as f64).round() as usize).min(AXIS - 1)
    };
    let mut axis = vec!['─'; AXIS];
    let letters: Vec<char> = ('1'..='9').chain('a'..='z').collect();
    let letter = |n: usize| letters.get(n).copied().unwrap_or('+');
    for (number, event) in scenario.events.iter().enumerate() {
        match event.when {
            When::At(at) => axis[column(at)] = letter(number),
            When::Every {
                from,
                until,
                period,
            } => {
                let mut at = from;
                let step = period.max(end / AXIS as u32);
                while at <= until.min(end) {
                    axis[column(at)] = letter(number);
                    at += step;
                }
            }
            When::After(..) => {}
        }
    }
    let axis: String = axis.into_iter().collect();
    let timed = axis.contains(|c| c != '─');
    let _ = match timed {
        true => writeln!(text, "events  0 s |{axis}| {}", time_text(end)),
        false => writeln!(text, "events"),
    };
    let rows = scenario.events.iter().enumerate();
    for (number, event) in rows.take(MOST_ROWS) {
        let _ = writeln!(
            text,
            "  {}  {}",
            letter(number),
            event_text(scenario, event)
        );
    }
    if scenario.events.len() > MOST_ROWS {
        let _ = writeln!(text, "  … {} events in all", scenario.events.len());
    }
    text.push('\n');
}

fn event_text(scenario: &Scenario, event: &Event) -> String {
    let mut one = false;
    let when = match &event.when {
        When::At(at) => format!("at {}", time_text(*at)),
        When::After(condition, Duration::ZERO) => {
            format!("when {}", condition_text(scenario, condition))
        }
        When::After(condition, after) => format!(
            "{} after {}",
            time_text(*after),
            condition_text(scenario, condition)
        ),
        When::Every {
            from,
            until,
            period,
        } => {
            one = true;
            let (from, until) = (time_text(*from), time_text(*until));
            format!("every {} from {from} to {until}", time_text(*period))
        }
    };
    format!("{when}: {}", action_text(scenario, &event.action, one))
}

fn condition_text(scenario: &Scenario, condition: &Condition) -> String {
    let who = names(scenario, &condition.nodes, false);
    let event = &condition.event;
    let any = if condition.nodes.len() > 1 {
        "any of "
    } else {
        ""
    };
    match &condition.field {
        None => format!("{any}{who} writes `{event}`"),
        Some((field, comparison, value)) => {
            format!(
                "{any}{who} has {event}.{field} {} {value}",
                Comparison::sign(*comparison)
            )
        }
    }
}

fn action_text(scenario: &Scenario, action: &Action, one: bool) -> String {
    let of = |nodes: &[NodeIndex]| names(scenario, nodes, one);
    match action {
        Action::Kill(nodes) => format!("kill {}", of(nodes)),
        Action::Stop(nodes) => format!("stop {}", of(nodes)),
        Action::Continue(nodes) => format!("continue {}", of(nodes)),
        Action::Restart(nodes) => format!("restart {}", of(nodes)),
        Action::Leave(nodes) => format!("{} leaves", of(nodes)),
        Action::Join(nodes) => format!("{} joins", of(nodes)),
        Action::Partition(sides) => {
            let sides: Vec<String> = sides.iter().map(|side| of(side)).collect();
            format!("partition {}", sides.join(" | "))
        }
        Action::Heal => "heal".to_owned(),
        Action::SetLine { nodes, up, down } => {
            let set = |way: &str, profile: &Option<Profile>| {
                let text = profile.as_ref().map(profile_text);
                text.map_or_else(String::new, |text| format!(", {way} {text}"))
            };
            format!(
                "line of {}{}{}",
                of(nodes),
                set("up", up),
                set("down", down)
            )
        }
        Action::SetPair { from, to, profile } => format!(
            "{} -> {} becomes {}",
            named(scenario, *from),
            named(scenario, *to),
            profile_text(profile)
        ),
        Action::SetCpu { nodes, share } => {
            format!("{} of a core for {}", rounded(*share), of(nodes))
        }
    }
}

/// Names of nodes; whole groups by the group's name.
fn names(scenario: &Scenario, nodes: &[NodeIndex], one: bool) -> String {
    if nodes.len() == scenario.nodes.len() && nodes.len() > 1 {
        return if one { "one node" } else { "all nodes" }.to_owned();
    }
    let mut parts: Vec<String> = vec![];
    let group = |rank: NodeIndex| scenario.nodes.get(rank).map_or("", |node| &node.group);
    for run in nodes.chunk_by(|&a, &b| group(a) == group(b)) {
        let whole = group(run[0]);
        let members = scenario.nodes.iter().filter(|node| node.group == whole);
        match members.count() {
            all if all == run.len() && all > 1 => parts.push(format!("{whole} (all {all})")),
            _ => parts.extend(run.iter().map(|&rank| named(scenario, rank).to_owned())),
        }
    }
    let prefix = if one && nodes.len() > 1 {
        "one of "
    } else {
        ""
    };
    format!("{prefix}{}", clipped(&parts.join(", "), 70))
}

fn ending(scenario: &Scenario) -> String {
    let end = &scenario.end;
    let mut parts = vec![];
    if end.job {
        parts.push("when every peer has closed the job".to_owned());
    }
    if end.exit {
        parts.push("when every program has ended".to_owned());
    }
    if let Some(condition) = &end.when {
        parts.push(format!("when {}", condition_text(scenario, condition)));
    }
    parts.push(format!("after {} at the latest", time_text(end.after)));
    parts.join(", or ")
}

fn clipped(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// Words in lines of the drawing's width.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let full = lines
            .last()
            .is_some_and(|line| line.chars().count() + word.chars().count() + 1 > WIDTH - 2);
        if full {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

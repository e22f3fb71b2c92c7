//! `[[event]]`: when, and what happens.

use std::time::Duration;

use super::conditions::condition;
use super::error::Wrong;
use super::names::Names;
use super::nodes::{directions, profile};
use super::plan::{Action, Event, Node, Pair, When};
use super::section::Section;
use super::tree::{Item, Value};
use crate::link::{NodeIndex, Profile};

/// What an event can do, by its key.
const ACTIONS: [&str; 11] = [
    "kill",
    "stop",
    "continue",
    "restart",
    "leave",
    "join",
    "partition",
    "heal",
    "set_line",
    "set_pair",
    "set_cpu",
];
/// Most events, after names of groups are spelled out.
const MAX_EVENTS: usize = 100_000;
/// Most nodes that all events name, groups spelled out.
const MAX_NAMED: usize = 1 << 22;
/// Shortest time between two of an event that repeats.
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);

/// Whose names and lines events are about.
#[derive(Debug)]
pub(super) struct Stage<'a> {
    pub(super) nodes: &'a [Node],
    /// Ascending.
    pub(super) pairs: &'a [Pair],
    pub(super) names: &'a Names,
}

/// All events, in the order of the file.
pub(super) fn events(
    root: &Section<'_>,
    stage: &Stage<'_>,
    end: Duration,
) -> Result<Vec<Event>, Wrong> {
    let mut events = vec![];
    let mut named = 0;
    for section in root.sections("event")? {
        let when = when(&section, stage.names, end)?;
        let room = MAX_EVENTS - events.len();
        let actions = actions(&section, stage, &when, room)?;
        let conditional = match &when {
            When::After(condition, _) => condition.nodes.len(),
            _ => 0,
        };
        named += actions
            .iter()
            .map(|action| conditional + names(action))
            .sum::<usize>();
        if actions.len() > room || named > MAX_NAMED {
            return Err(too_many(root, "event"));
        }
        for action in actions {
            events.push(Event {
                when: when.clone(),
                action,
            });
        }
        section.finish()?;
    }
    Ok(events)
}

fn too_many(section: &Section<'_>, key: &str) -> Wrong {
    let fix =
        format!("keep to {MAX_EVENTS} events with {MAX_NAMED} names of nodes, groups spelled out");
    section.wrong(key, "makes too many events", fix)
}

/// How many nodes it names.
fn names(action: &Action) -> usize {
    match action {
        Action::Partition(sides) => sides.iter().map(Vec::len).sum(),
        other => other.nodes().map_or(0, <[_]>::len),
    }
}

fn when(section: &Section<'_>, names: &Names, end: Duration) -> Result<When, Wrong> {
    let given = section.those_of(&["at", "every", "when"]);
    let in_time = "give a time up to end.after, or a longer end.after";
    let only_with = |key: &'static str, owner: &str| {
        if section.has(key) {
            let fix = format!("keep `{key}` to events with `{owner}`");
            return Err(section.wrong(key, "belongs elsewhere", fix));
        }
        Ok(())
    };
    match given.as_slice() {
        ["at"] => {
            only_with("from", "every")?;
            only_with("until", "every")?;
            only_with("after", "when")?;
            let at = section.required("at", section.duration("at")?, "\"40s\"")?;
            if at > end {
                return Err(section.wrong("at", "is after the end of the run", in_time));
            }
            Ok(When::At(at))
        }
        ["every"] => {
            only_with("after", "when")?;
            let period = section.required("every", section.duration("every")?, "\"5s\"")?;
            if period < SHORTEST_PERIOD {
                let fix = "write \"100ms\" or more";
                return Err(section.wrong("every", "is too often", fix));
            }
            let from = section.duration("from")?.unwrap_or(period);
            let until = section.duration("until")?;
            if until.is_some_and(|until| from > until) {
                let fix = "give a `from` (without one: the period) that is not after `until`";
                return Err(section.wrong("until", "is before the first time", fix));
            }
            if from > end {
                let key = if section.has("from") { "from" } else { "every" };
                return Err(section.wrong(key, "is after the end of the run", in_time));
            }
            let until = until.unwrap_or(end);
            Ok(When::Every {
                from,
                until,
                period,
            })
        }
        [_] => {
            only_with("from", "every")?;
            only_with("until", "every")?;
            let condition = condition(section, "when", names)?;
            let condition = section.required("when", condition, "\"any step.step >= 100\"")?;
            let after = section.duration("after")?.unwrap_or_default();
            Ok(When::After(condition, after))
        }
        [] => {
            let fix = "add at = \"40s\", every = \"5s\", or when = \"any step.step >= 100\"";
            Err(section.wrong("at", "is missing: nothing says when", fix))
        }
        [_, second, ..] => {
            let fix = "keep one of at, every, when";
            Err(section.wrong(second, "is given beside another time", fix))
        }
    }
}

/// What the event does; several where a group's members need different numbers.
fn actions(
    section: &Section<'_>,
    stage: &Stage<'_>,
    when: &When,
    room: usize,
) -> Result<Vec<Action>, Wrong> {
    let given = section.those_of(&ACTIONS);
    let key = match given.as_slice() {
        [key] => *key,
        [] => {
            // Let a mistyped action be named as such.
            let known = section.those_of(&["at", "every", "when", "from", "until", "after"]);
            let place = known.first().copied().unwrap_or("at");
            let fix = format!("add one of {}", ACTIONS.join(", "));
            let nothing = || section.wrong(place, "comes with no action", fix);
            return Err(section.stranger().unwrap_or_else(nothing));
        }
        [_, second, ..] => {
            let fix = "write one [[event]] for each thing that happens";
            return Err(section.wrong(second, "is given beside another action", fix));
        }
    };
    let Some(item) = section.raw(key) else {
        return Ok(vec![]);
    };
    let path = section.path(key);
    let nodes = || stage.names.several(item, &path);
    Ok(vec![match key {
        "kill" => Action::Kill(nodes()?),
        "stop" => Action::Stop(nodes()?),
        "continue" => Action::Continue(nodes()?),
        "restart" => Action::Restart(nodes()?),
        "leave" => Action::Leave(nodes()?),
        "join" => Action::Join(nodes()?),
        "partition" => Action::Partition(sides(section, item, stage.names)?),
        "heal" => match section.flag("heal")? {
            Some(true) => Action::Heal,
            _ => return Err(section.wrong("heal", "is false", "write true, or remove the event")),
        },
        "set_cpu" => {
            let inner = Section::of(item, path.as_str())?;
            let nodes = node_of(&inner, stage.names)?;
            let share = inner.number("share", 0.001..=1024.0)?;
            let share = inner.required("share", share, "0.2")?;
            inner.finish()?;
            Action::SetCpu { nodes, share }
        }
        "set_line" => return set_line(item, &path, stage, when),
        _ => return set_pair(item, &path, stage, room),
    }])
}

fn node_of(section: &Section<'_>, names: &Names) -> Result<Vec<NodeIndex>, Wrong> {
    let item = section.required("node", section.raw("node"), "\"fast\"")?;
    names.several(item, &section.path("node"))
}

/// The groups of a partition; no node may be in two.
fn sides(section: &Section<'_>, item: &Item, names: &Names) -> Result<Vec<Vec<NodeIndex>>, Wrong> {
    let fix = "write lists of nodes, such as [[\"fast\"], [\"slow\"]]; nodes in none are a group of their own";
    let wrong = |problem: &str| section.wrong("partition", problem, fix);
    let Value::List(items) = &item.value else {
        return Err(wrong("is no list"));
    };
    let mut seen = std::collections::BTreeSet::new();
    let mut sides = vec![];
    for side in items {
        let side = names.several(side, &section.path("partition"))?;
        if !side.iter().all(|node| seen.insert(*node)) {
            return Err(wrong("has a node on two sides"));
        }
        sides.push(side);
    }
    match sides.is_empty() {
        true => Err(wrong("is empty")),
        false => Ok(sides),
    }
}

fn set_line(item: &Item, path: &str, stage: &Stage<'_>, when: &When) -> Result<Vec<Action>, Wrong> {
    let section = Section::of(item, path)?;
    let nodes = node_of(&section, stage.names)?;
    let direction = |key: &'static str, base: Profile| -> Result<Option<Profile>, Wrong> {
        let Some(inner) = section.section(key)? else {
            return Ok(None);
        };
        let profile = profile(&inner, base)?;
        inner.finish()?;
        Ok(Some(profile))
    };
    // Numbers that are not given stay those of the node's start, so nodes that started alike are one action.
    let mut changes: Vec<(Option<Profile>, Option<Profile>, Vec<NodeIndex>)> = vec![];
    for node in nodes {
        let start = &stage.nodes[node];
        let up = direction("up", start.up.profile)?;
        let down = direction("down", start.down.profile)?;
        match changes
            .iter_mut()
            .find(|change| change.0 == up && change.1 == down)
        {
            Some(change) => change.2.push(node),
            None => changes.push((up, down, vec![node])),
        }
    }
    if !section.has("up") && !section.has("down") {
        let fix = "add up = { … } or down = { … }";
        return Err(section.wrong("up", "is missing: nothing would change", fix));
    }
    if changes.len() > 1 && matches!(when, When::Every { .. }) {
        let fix = "give every number of the new line, or one event for each node";
        return Err(section.wrong(
            "node",
            "one is drawn each time, but their lines differ",
            fix,
        ));
    }
    section.finish()?;
    let actions = changes.into_iter();
    Ok(actions
        .map(|(up, down, nodes)| Action::SetLine { nodes, up, down })
        .collect())
}

fn set_pair(item: &Item, path: &str, stage: &Stage<'_>, room: usize) -> Result<Vec<Action>, Wrong> {
    let section = Section::of(item, path)?;
    let mut actions = vec![];
    let directions = directions(&section, stage.names)?;
    if directions.len() > room {
        return Err(too_many(&section, "to"));
    }
    for (from, to) in directions {
        let ends = |pair: &Pair| (pair.from, pair.to);
        let known = stage.pairs.binary_search_by_key(&(from, to), ends).ok();
        let base = known.map(|at| stage.pairs[at].line.profile);
        let base = base.unwrap_or_default();
        let profile = profile(&section, base)?;
        actions.push(Action::SetPair { from, to, profile });
    }
    section.finish()?;
    Ok(actions)
}

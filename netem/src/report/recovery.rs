//! How long the others take to go on after a node is gone.

use crate::link::NodeIndex;
use crate::record::{Mark, NodeRecord, Record};

/// The longest time from a `kill` or `stop` of a node until every survivor among `nodes` makes a step in a view
/// without it. None if there was none, or if a survivor never did.
pub(super) fn recovery_s(record: &Record, nodes: &[NodeIndex]) -> Option<f64> {
    let gone = record.marks.iter().filter(|mark| is_gone(mark));
    let mut longest: Option<f64> = None;
    for mark in gone {
        for &victim in &mark.nodes {
            match recovery_of(record, nodes, mark.t, victim) {
                Recovery::Took(seconds) => {
                    longest = Some(longest.map_or(seconds, |so_far| so_far.max(seconds)))
                }
                Recovery::Never => return None,
                Recovery::NothingToRecover => {}
            }
        }
    }
    longest
}

fn is_gone(mark: &Mark) -> bool {
    matches!(mark.what.as_str(), "kill" | "stop")
}

enum Recovery {
    Took(f64),
    Never,
    NothingToRecover,
}

fn recovery_of(record: &Record, nodes: &[NodeIndex], t: f64, victim: NodeIndex) -> Recovery {
    let Some(peer) = record.nodes.get(victim).and_then(peer) else {
        return Recovery::NothingToRecover;
    };
    let back = marked_after(record, t, victim, &["continue", "restart", "join"]);
    let mut longest = None;
    for &survivor in nodes.iter().filter(|&&node| node != victim) {
        let Some(node) = record.nodes.get(survivor) else {
            continue;
        };
        if !knew(node, t, peer) {
            continue;
        }
        let first = step_without(node, t, peer);
        // A survivor that is itself gone, or done, before it could, owes nothing; nor after the victim is back.
        let lost = marked_after(record, t, survivor, &["kill", "stop", "leave", "restart"]);
        let done = node
            .metrics
            .iter()
            .find(|line| line.event == "closed" && line.t >= t);
        let excused = [back, lost, done.map(|line| line.t)].into_iter().flatten();
        let excused = excused.reduce(f64::min);
        match (first, excused) {
            (Some(first), excused) if excused.is_none_or(|excused| first <= excused) => {
                longest = Some(longest.map_or(first - t, |so_far: f64| so_far.max(first - t)));
            }
            (_, Some(_)) => {}
            _ => return Recovery::Never,
        }
    }
    longest.map_or(Recovery::NothingToRecover, Recovery::Took)
}

/// When one of these things next happens to a node at or after `t`.
pub(super) fn marked_after(record: &Record, t: f64, node: NodeIndex, what: &[&str]) -> Option<f64> {
    let marks = record.marks.iter();
    let marks = marks.filter(|mark| mark.t >= t && mark.nodes.contains(&node));
    let marks = marks.filter(|mark| what.contains(&mark.what.as_str()));
    marks.map(|mark| mark.t).reduce(f64::min)
}

/// The short id of a node's peer.
pub(super) fn peer(node: &NodeRecord) -> Option<&str> {
    let opened = || {
        let mut lines = node.metrics.iter().filter(|line| line.event == "opened");
        lines.find_map(|line| line.fields.get("peer")?.as_str())
    };
    let id = node.peer.as_deref().or_else(opened)?;
    Some(id.get(..8).unwrap_or(id))
}

/// Whether the node trained in a view with `peer` at `t`.
fn knew(node: &NodeRecord, t: f64, peer: &str) -> bool {
    let mut views = node
        .metrics
        .iter()
        .filter(|line| line.event == "view" && line.t <= t);
    views.next_back().is_some_and(|line| has(line, peer))
}

fn has(view: &crate::record::Metric, peer: &str) -> bool {
    let members = view
        .fields
        .get("members")
        .and_then(|members| members.as_array());
    members.is_some_and(|members| members.iter().any(|member| member.as_str() == Some(peer)))
}

/// When the node made its first step after `t` in a view without `peer`.
fn step_without(node: &NodeRecord, t: f64, peer: &str) -> Option<f64> {
    let mut without = false;
    for line in &node.metrics {
        match line.event.as_str() {
            "view" => without = !has(line, peer),
            "step" if line.t > t && without => return Some(line.t),
            _ => {}
        }
    }
    None
}

//! What it takes to go on when the host of a stage is gone, phase by phase, and how fast a cut follows a change of the devices.

use super::cuts::{Cut, Cuts, lines, whole};
use super::recovery::marked_after;
use crate::link::NodeIndex;
use crate::record::{Mark, Metric, Record};

/// Changes so many seconds apart are one.
const ONE_CHANGE_S: f64 = 0.1;

/// What followed the loss of a node that hosted a stage. Seconds count from the mark.
#[derive(Debug)]
pub(super) struct Takeover<'a> {
    pub(super) mark: &'a Mark,
    pub(super) victim: NodeIndex,
    /// Numbers of the cuts that were tried; the last one held, if any did.
    pub(super) cuts: Vec<u64>,
    /// A survivor knew of a cut without the victim: the loss was seen, and the others were told what follows.
    pub(super) proposed_s: Option<f64>,
    /// The last copies that a host of the last cut waited for were there; none if none had to come.
    pub(super) fetched_s: Option<f64>,
    /// All its hosts held their stages.
    pub(super) in_place_s: Option<f64>,
    /// Its first stage drew samples.
    pub(super) fed_s: Option<f64>,
    /// All its hosts had made a step; none: it never came to that.
    pub(super) step_s: Option<f64>,
    /// Steps made before that had to be made once more.
    pub(super) redone: u64,
}

/// All takeovers of a run, in the order of the marks.
pub(super) fn takeovers<'a>(record: &'a Record, cuts: &Cuts<'_>) -> Vec<Takeover<'a>> {
    let end = ending(record).unwrap_or(f64::INFINITY);
    let losses = record
        .marks
        .iter()
        .filter(|mark| matches!(mark.what.as_str(), "kill" | "stop" | "leave") && mark.t < end);
    let of_each = losses.flat_map(|mark| mark.nodes.iter().map(move |&victim| (mark, victim)));
    let followed = of_each.filter_map(|(mark, victim)| follow(record, cuts, mark, victim));
    followed.collect()
}

/// The time that a share `q` of the takeovers of `nodes` did not exceed, by nearest rank.
pub(super) fn takeover_s(record: &Record, nodes: &[NodeIndex], q: f64) -> Option<f64> {
    let mut took = ended(record, nodes)?
        .into_iter()
        .map(|(seconds, _)| seconds)
        .collect::<Vec<f64>>();
    took.sort_by(f64::total_cmp);
    let rank = (q.clamp(0.0, 1.0) * took.len() as f64).ceil() as usize;
    took.get(rank.max(1) - 1).copied()
}

/// The most steps that a takeover made once more.
pub(super) fn redone_steps(record: &Record, nodes: &[NodeIndex]) -> Option<f64> {
    let redone = ended(record, nodes)?.into_iter().map(|(_, redone)| redone);
    redone.max().map(|steps| steps as f64)
}

/// Seconds and redone steps of the takeovers from `nodes`; none if one never came to a step.
fn ended(record: &Record, nodes: &[NodeIndex]) -> Option<Vec<(f64, u64)>> {
    let all = takeovers(record, &Cuts::of(record));
    let own = all
        .iter()
        .filter(|takeover| nodes.contains(&takeover.victim));
    own.map(|takeover| Some((takeover.step_s?, takeover.redone)))
        .collect()
}

/// The longest time from a change of the share or of the line of one of `nodes` until all hosts of the next cut have made a step
/// in it. None if nothing changed, or if a change led to no new cut before the next one.
pub(super) fn recut_s(record: &Record, nodes: &[NodeIndex]) -> Option<f64> {
    let cuts = Cuts::of(record);
    let end = ending(record).unwrap_or(f64::INFINITY);
    let changes = changes(record);
    let mut longest = None;
    for (place, mark) in changes.iter().enumerate() {
        if mark.t >= end || !mark.nodes.iter().any(|node| nodes.contains(node)) {
            continue;
        }
        let next = changes.get(place + 1).map_or(f64::INFINITY, |mark| mark.t);
        let before = cuts.newest(mark.t)?;
        let after = cuts.after(mark.t, before);
        after.first().filter(|cut| cut.at() < next)?;
        let took = cuts.held(&after).1? - mark.t;
        longest = Some(longest.map_or(took, |so_far: f64| so_far.max(took)));
    }
    longest
}

/// Changes of devices and lines, the first of those that come together.
pub(super) fn changes(record: &Record) -> Vec<&Mark> {
    let marks = record.marks.iter();
    let marks = marks.filter(|mark| matches!(mark.what.as_str(), "cpu" | "line"));
    let mut changes: Vec<&Mark> = vec![];
    let mut before = f64::NEG_INFINITY;
    for mark in marks {
        if mark.t - before > ONE_CHANGE_S {
            changes.push(mark);
        }
        before = mark.t;
    }
    changes
}

/// When the end of the job began: what is lost later interrupts no training.
fn ending(record: &Record) -> Option<f64> {
    let ends = |line: &&Metric| matches!(line.event.as_str(), "ending" | "closed");
    let lines = record.nodes.iter().flat_map(|node| &node.metrics);
    lines.filter(ends).map(|line| line.t).reduce(f64::min)
}

/// None where nothing had to be taken over.
fn follow<'a>(
    record: &'a Record,
    cuts: &Cuts<'_>,
    mark: &'a Mark,
    victim: NodeIndex,
) -> Option<Takeover<'a>> {
    let t = mark.t;
    let known = cuts.newest(t)?;
    let reached = reached(record, t);
    // A newer cut may be known while the one before it still works.
    let working = reached.and_then(|line| cuts.of_step(line));
    let is_host = |cut: &Cut| cut.stage_on(victim).is_some();
    if !(is_host(known) || working.is_some_and(is_host)) {
        return None;
    }
    // A stopped peer that goes on before the others cut anew was missed by none; one that starts anew has lost its place, and
    // what comes next is a takeover even if it has a part in it.
    let goes_on = marked_after(record, t, victim, &["continue"]).unwrap_or(f64::INFINITY);
    let is_back = marked_after(record, t, victim, &["restart", "join"]).unwrap_or(f64::INFINITY);
    let after = cuts.after(t, known);
    let proposed = |cut: &Cut| match cut.at() {
        at if at >= is_back => Some(at),
        _ => cut.at_without(victim).filter(|_| !is_host(cut)),
    };
    let first = after
        .iter()
        .position(|cut| proposed(cut).is_some_and(|at| at < goes_on));
    let Some(first) = first else {
        let never = Takeover::never(mark, victim);
        return goes_on.is_infinite().then_some(never);
    };
    let (tried, works) = cuts.held(&after[first..]);
    let last = tried.last()?;
    let until = works.unwrap_or(record.duration_s);
    let hosts = |event: &'static str| {
        let nodes = last.hosts().filter_map(|host| record.nodes.get(host));
        nodes.map(move |node| lines(node, event).filter(move |line| (t..=until).contains(&line.t)))
    };
    let in_it = |line: &&Metric| whole(line, "view") == Some(last.number);
    let fetched = last.stages.iter().filter_map(|stage| {
        let node = record.nodes.get(stage.host?)?;
        let needed = |line: &&Metric| {
            let blocks = whole(line, "first").zip(whole(line, "end"));
            (t..=until).contains(&line.t)
                && blocks.is_some_and(|(first, end)| first < stage.end && stage.first < end)
        };
        let times = lines(node, "fetched").filter(needed).map(|line| line.t);
        times.reduce(f64::max)
    });
    let placed = hosts("in_place").map(|mut lines| lines.find(in_it).map(|line| line.t));
    let placed: Option<Vec<f64>> = placed.collect();
    let fed = hosts("fed").flatten().filter(in_it).map(|line| line.t);
    let from_step = tried.iter().map(|cut| cut.from_step).min().unwrap_or(0);
    let made = reached.and_then(|line| whole(line, "step")).unwrap_or(0);
    let since = |at: f64| at - t;
    Some(Takeover {
        mark,
        victim,
        cuts: tried.iter().map(|cut| cut.number).collect(),
        proposed_s: proposed(after[first]).map(since),
        fetched_s: fetched.reduce(f64::max).map(since),
        in_place_s: placed
            .and_then(|placed| placed.into_iter().reduce(f64::max))
            .map(since),
        fed_s: fed.reduce(f64::min).map(since),
        step_s: works.map(since),
        redone: made.saturating_sub(from_step),
    })
}

impl<'a> Takeover<'a> {
    /// Nobody cut anew.
    fn never(mark: &'a Mark, victim: NodeIndex) -> Self {
        Self {
            mark,
            victim,
            cuts: vec![],
            proposed_s: None,
            fetched_s: None,
            in_place_s: None,
            fed_s: None,
            step_s: None,
            redone: 0,
        }
    }
}

/// The line of the highest step that was made by `t` in the newest view that had one.
fn reached(record: &Record, t: f64) -> Option<&Metric> {
    let steps = record.nodes.iter().flat_map(|node| lines(node, "step"));
    let steps = steps.filter(|line| line.t <= t);
    steps.max_by_key(|line| (whole(line, "view"), whole(line, "step")))
}

#[cfg(test)]
mod tests {
    use super::super::sample::{cut, mark, of_view, pipeline, stage_step};
    use super::*;

    fn close(found: Option<f64>, expected: Option<f64>) -> bool {
        match (found, expected) {
            (Some(found), Some(expected)) => (found - expected).abs() < 1e-9,
            (found, expected) => found == expected,
        }
    }

    fn q(record: &Record, q: f64) -> Option<f64> {
        takeover_s(record, &[0, 1, 2, 3], q)
    }

    #[test]
    fn the_phases_of_a_takeover_are_those_of_the_run_that_was_made_by_hand() {
        let record = pipeline();
        let cuts = Cuts::of(&record);
        let all = takeovers(&record, &cuts);
        let [takeover] = all.as_slice() else {
            panic!("{all:?}")
        };
        assert_eq!((takeover.victim, takeover.cuts.as_slice()), (1, &[2][..]));
        let phases = [
            (takeover.proposed_s, 0.2),
            (takeover.fetched_s, 0.7),
            (takeover.in_place_s, 0.8),
            (takeover.fed_s, 0.9),
            (takeover.step_s, 1.6),
        ];
        for (found, expected) in phases {
            assert!(close(found, Some(expected)), "{takeover:?}");
        }
        assert_eq!(takeover.redone, 5);
        assert!(close(q(&record, 0.95), Some(1.6)));
        assert!(close(takeover_s(&record, &[0, 2], 0.5), None));
        assert_eq!(redone_steps(&record, &[1]), Some(5.0));
    }

    #[test]
    fn a_takeover_whose_proposer_dies_goes_on_in_the_next_cut() {
        let mut record = pipeline();
        record
            .nodes
            .iter_mut()
            .for_each(|node| node.metrics.retain(|line| line.t <= 10.7));
        record.marks.push(mark(10.8, 0, "kill"));
        for rank in [2, 3] {
            let lines = &mut record.nodes[rank].metrics;
            lines.push(cut(11.5, 3, 5, &[("d", 0, 10), ("c", 10, 20)]));
            lines.push(of_view(12.0, "in_place", 3));
            lines.push(stage_step(13.0, 6, 3));
        }
        let cuts = Cuts::of(&record);
        let all = takeovers(&record, &cuts);
        let tried: Vec<_> = all
            .iter()
            .map(|one| (one.victim, one.cuts.clone()))
            .collect();
        assert_eq!(tried, [(1, vec![2, 3]), (0, vec![3])]);
        assert!(close(all[0].proposed_s, Some(0.2)), "{all:?}");
        assert!(close(all[1].proposed_s, Some(0.7)), "{all:?}");
        assert!(close(q(&record, 0.5), Some(2.2)) && close(q(&record, 0.95), Some(2.5)));
        assert_eq!(redone_steps(&record, &[0, 1]), Some(5.0));
    }

    #[test]
    fn who_hosts_no_stage_leaves_nothing_to_take_over_nor_does_a_loss_after_the_end() {
        for lost in [mark(9.0, 3, "kill"), mark(27.5, 1, "kill")] {
            let mut record = pipeline();
            record.marks = vec![lost];
            assert!(takeovers(&record, &Cuts::of(&record)).is_empty());
            assert_eq!(q(&record, 0.5), None);
            assert_eq!(redone_steps(&record, &[0, 1, 2, 3]), None);
        }
    }

    #[test]
    fn a_run_that_ends_in_between_has_no_time_though_another_takeover_did() {
        let mut record = pipeline();
        record.marks.push(mark(20.5, 2, "leave"));
        for node in &mut record.nodes {
            node.metrics.retain(|line| line.t <= 20.5);
        }
        let cuts = Cuts::of(&record);
        let took = takeovers(&record, &cuts)
            .iter()
            .map(|one| one.step_s.is_some())
            .collect::<Vec<_>>();
        assert_eq!(took, [true, false]);
        assert_eq!(q(&record, 0.0), None);
        assert!(close(takeover_s(&record, &[1], 0.5), Some(1.6)));
        // A cut in which not all make a step changes nothing.
        record.nodes[0]
            .metrics
            .push(cut(21.0, 3, 9, &[("a", 0, 10), ("d", 10, 20)]));
        record.nodes[0].metrics.push(of_view(21.1, "in_place", 3));
        record.nodes[0].metrics.push(stage_step(21.5, 10, 3));
        assert_eq!(q(&record, 0.5), None);
    }

    #[test]
    fn a_peer_that_is_back_before_the_others_cut_anew_was_missed_by_none_unless_it_starts_anew() {
        let mut record = pipeline();
        record.marks = vec![mark(8.5, 2, "stop"), mark(8.9, 2, "continue")];
        assert!(takeovers(&record, &Cuts::of(&record)).is_empty());
        record.marks = vec![mark(8.5, 2, "kill"), mark(8.9, 2, "restart")];
        // Cut 2 has a part for it, at 10.7 s.
        assert!(close(q(&record, 0.5), Some(12.1 - 8.5)));
        record.marks.truncate(1);
        assert_eq!(q(&record, 0.5), None);
        // Nobody else is there.
        record.marks = vec![mark(8.5, 0, "kill"), mark(8.9, 0, "restart")];
        let lines = &mut record.nodes[0].metrics;
        lines.retain(|line| line.t < 8.0);
        lines.push(cut(9.5, 2, 5, &[("a", 0, 20)]));
        lines.push(of_view(9.6, "in_place", 2));
        lines.push(stage_step(10.5, 6, 2));
        record.nodes.truncate(1);
        assert!(close(q(&record, 0.5), Some(2.0)));
    }

    #[test]
    fn a_change_lasts_until_all_step_in_the_next_cut_and_steps_of_the_old_one_do_not_count() {
        let mut record = pipeline();
        record.marks.push(mark(14.5, 0, "cpu"));
        record.marks.push(mark(14.55, 2, "line"));
        assert_eq!(recut_s(&record, &[0]), None);
        for (rank, first) in [(0, 22.0), (2, 22.5)] {
            let lines = &mut record.nodes[rank].metrics;
            lines.retain(|line| line.t <= 14.5);
            lines.push(cut(15.0, 3, 8, &[("a", 0, 5), ("c", 5, 20)]));
            lines.push(stage_step(16.0, 8, 3));
            // Late in the journal.
            lines.push(stage_step(16.1, 9, 3));
            lines.push(of_view(18.0, "in_place", 3));
            lines.push(stage_step(first, 9, 3));
        }
        assert!(close(recut_s(&record, &[0]), Some(8.0)));
        assert_eq!(recut_s(&record, &[1]), None);
        record.marks.push(mark(23.0, 0, "cpu"));
        assert_eq!(recut_s(&record, &[0]), None);
    }
}

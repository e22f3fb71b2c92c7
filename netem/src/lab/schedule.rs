//! What is to happen when: the events of a scenario, by time and by what nodes wrote.

use std::time::Duration;

use crate::link::{NodeIndex, sub_seed};
use crate::record::Metric;
use crate::scenario::{Action, Condition, Event, When};

/// Part of the run's seed that targets are drawn from.
const TARGETS: u64 = 4;

/// Whether a line of a node's metrics is what a condition asks for.
pub(super) fn meets(condition: &Condition, node: NodeIndex, line: &Metric) -> bool {
    condition.holds(node, &line.event, &line.fields)
}

/// The events that are still to come.
#[derive(Debug)]
pub(super) struct Schedule {
    seed: u64,
    pending: Vec<Pending>,
}

#[derive(Debug)]
struct Pending {
    /// Its place in the scenario.
    number: u64,
    event: Event,
    /// When it happens next, where that is known.
    at: Option<Duration>,
    /// How often it happened.
    times: u64,
}

impl Schedule {
    pub(super) fn new(events: &[Event], seed: u64) -> Self {
        let pending = (0..).zip(events).map(|(number, event)| Pending {
            number,
            event: event.clone(),
            at: match event.when {
                When::At(at) => Some(at),
                When::Every { from, .. } => Some(from),
                When::After(..) => None,
            },
            times: 0,
        });
        let pending = pending.collect();
        Self { seed, pending }
    }

    /// A node wrote a line.
    pub(super) fn heard(&mut self, now: Duration, node: NodeIndex, line: &Metric) {
        for pending in &mut self.pending {
            if let (When::After(condition, delay), None) = (&pending.event.when, pending.at)
                && meets(condition, node, line)
            {
                pending.at = Some(now + *delay);
            }
        }
    }

    /// What happens by `now`, in order of time. `may` says for which nodes an action makes sense at this moment; a
    /// repeating event draws one of those.
    pub(super) fn due(
        &mut self,
        now: Duration,
        may: impl Fn(&Action, NodeIndex) -> bool,
    ) -> Vec<Action> {
        let mut due = Vec::new();
        for pending in &mut self.pending {
            while let Some(at) = pending.at.filter(|at| *at <= now) {
                pending.at = None;
                let mut action = pending.event.action.clone();
                if let When::Every { until, period, .. } = pending.event.when {
                    let next = at + period;
                    pending.at = (next <= until && !period.is_zero()).then_some(next);
                    let draw = sub_seed(self.seed, pending.number << 32 | pending.times, TARGETS);
                    draw_target(&mut action, draw, &may);
                }
                pending.times += 1;
                due.push((at, action));
            }
        }
        self.pending.retain(|pending| {
            pending.at.is_some()
                || matches!(pending.event.when, When::After(..)) && pending.times == 0
        });
        due.sort_by_key(|(at, _)| *at);
        due.into_iter().map(|(_, action)| action).collect()
    }

    /// When the next event happens that has a time.
    pub(super) fn next(&self) -> Option<Duration> {
        self.pending.iter().filter_map(|pending| pending.at).min()
    }

    /// Whether an event is to come that starts a node.
    pub(super) fn starts_any(&self) -> bool {
        self.pending
            .iter()
            .any(|pending| matches!(pending.event.action, Action::Join(_) | Action::Restart(_)))
    }
}

/// Leaves one of the nodes of an action, or none where it makes sense for none.
fn draw_target(action: &mut Action, draw: u64, may: &impl Fn(&Action, NodeIndex) -> bool) {
    let Some(mut nodes) = action.nodes().map(<[_]>::to_vec) else {
        return;
    };
    nodes.retain(|node| may(action, *node));
    let drawn = match nodes.len() as u64 {
        0 => Vec::new(),
        n => vec![nodes[(draw % n) as usize]],
    };
    match action {
        Action::Kill(nodes)
        | Action::Stop(nodes)
        | Action::Continue(nodes)
        | Action::Restart(nodes)
        | Action::Leave(nodes)
        | Action::Join(nodes)
        | Action::SetLine { nodes, .. }
        | Action::SetCpu { nodes, .. } => *nodes = drawn,
        Action::Partition(_) | Action::Heal | Action::SetPair { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::scenario::Comparison;

    const S: Duration = Duration::from_secs(1);

    fn event(when: When, action: Action) -> Event {
        Event { when, action }
    }

    fn step(step: u64) -> Metric {
        let mut line = Metric {
            t: 0.0,
            event: "step".into(),
            fields: serde_json::Map::new(),
        };
        line.fields.insert("step".into(), json!(step));
        line
    }

    fn always(_: &Action, _: NodeIndex) -> bool {
        true
    }

    #[test]
    fn events_happen_once_and_in_order_of_time() {
        let events = [
            event(When::At(3 * S), Action::Heal),
            event(When::At(2 * S), Action::Partition(vec![vec![0]])),
        ];
        let mut schedule = Schedule::new(&events, 1);
        assert_eq!(schedule.next(), Some(2 * S));
        assert!(schedule.due(S, always).is_empty());
        let both = schedule.due(5 * S, always);
        assert_eq!(both, [Action::Partition(vec![vec![0]]), Action::Heal]);
        assert!(schedule.due(9 * S, always).is_empty());
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn a_condition_is_met_by_the_first_line_that_reaches_it() {
        let reached = Condition {
            nodes: vec![1],
            event: "step".into(),
            field: Some(("step".into(), Comparison::AtLeast, 10.0)),
        };
        let events = [event(When::After(reached, 2 * S), Action::Kill(vec![0]))];
        let mut schedule = Schedule::new(&events, 1);
        schedule.heard(S, 1, &step(9));
        schedule.heard(S, 0, &step(10));
        assert!(schedule.due(9 * S, always).is_empty());
        schedule.heard(10 * S, 1, &step(10));
        schedule.heard(11 * S, 1, &step(11));
        assert!(schedule.due(11 * S, always).is_empty());
        assert_eq!(schedule.due(12 * S, always), [Action::Kill(vec![0])]);
        schedule.heard(13 * S, 1, &step(12));
        assert!(schedule.due(99 * S, always).is_empty());
    }

    #[test]
    fn a_repeating_event_draws_one_node_by_seed_among_those_it_makes_sense_for() {
        let every = When::Every {
            from: S,
            until: 100 * S,
            period: S,
        };
        let events = [event(every, Action::Kill(vec![0, 1, 2, 3]))];
        let run = |seed| {
            let mut schedule = Schedule::new(&events, seed);
            schedule.due(1000 * S, |_, node| node != 2)
        };
        let drawn = run(5);
        assert_eq!(drawn.len(), 100);
        assert_eq!(drawn, run(5));
        assert_ne!(drawn, run(6));
        for node in [0, 1, 3] {
            let times = drawn.iter().filter(|of| **of == Action::Kill(vec![node]));
            assert!(times.count() > 10);
        }
        assert!(!drawn.contains(&Action::Kill(vec![2])));
    }
}

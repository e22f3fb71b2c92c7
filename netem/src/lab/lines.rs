//! Lines over time: what the scenario sets at the start, traces, and what events set instead.

use crate::link::{Fabric, Nanos, NodeIndex, Profile, Trace};
use crate::scenario::{Line, Scenario};

/// One direction of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Up(NodeIndex),
    Down(NodeIndex),
    Pair(NodeIndex, NodeIndex),
}

/// A line whose rate follows a trace.
#[derive(Debug)]
struct Traced {
    place: Place,
    line: Line,
    /// When its next point holds.
    next: Nanos,
}

/// The lines that change by themselves.
#[derive(Debug, Default)]
pub(super) struct Lines(Vec<Traced>);

impl Lines {
    /// Sets up `fabric` as the scenario begins.
    pub(super) fn start(scenario: &Scenario, fabric: &mut Fabric) -> Self {
        let mut lines = Self::default();
        let mut add = |place, line: &Line| {
            apply(fabric, place, line.profile);
            if line.trace.is_some() {
                let line = line.clone();
                let next = 0;
                lines.0.push(Traced { place, line, next });
            }
        };
        for (rank, node) in scenario.nodes.iter().enumerate() {
            add(Place::Up(rank), &node.up);
            add(Place::Down(rank), &node.down);
        }
        for pair in &scenario.pairs {
            add(Place::Pair(pair.from, pair.to), &pair.line);
        }
        lines.follow(0, fabric);
        lines
    }

    /// Applies the points of traces that hold by `now`.
    pub(super) fn follow(&mut self, now: Nanos, fabric: &mut Fabric) {
        for traced in &mut self.0 {
            let Some(trace) = traced.line.trace.as_ref() else {
                continue;
            };
            if now < traced.next {
                continue;
            }
            let (profile, next) = at(trace, &traced.line.profile, now);
            traced.next = next;
            apply(fabric, traced.place, profile);
        }
    }

    /// When a trace changes next.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.0.iter().map(|traced| traced.next).min()
    }

    /// An event sets a node's line, up to the next point of its trace. None: stays as it is.
    pub(super) fn set_node(
        &mut self,
        fabric: &mut Fabric,
        node: NodeIndex,
        up: Option<Profile>,
        down: Option<Profile>,
    ) {
        for (place, profile) in [(Place::Up(node), up), (Place::Down(node), down)] {
            if let Some(profile) = profile {
                self.set(fabric, place, profile);
            }
        }
    }

    /// An event sets a pair, up to the next point of its trace.
    pub(super) fn set_pair(
        &mut self,
        fabric: &mut Fabric,
        from: NodeIndex,
        to: NodeIndex,
        profile: Profile,
    ) {
        self.set(fabric, Place::Pair(from, to), profile);
    }

    fn set(&mut self, fabric: &mut Fabric, place: Place, profile: Profile) {
        for traced in self.0.iter_mut().filter(|traced| traced.place == place) {
            traced.line.profile = profile;
        }
        apply(fabric, place, profile);
    }
}

fn apply(fabric: &mut Fabric, place: Place, profile: Profile) {
    match place {
        Place::Up(node) => fabric.set_up(node, profile),
        Place::Down(node) => fabric.set_down(node, profile),
        Place::Pair(from, to) => fabric.set_pair(from, to, profile),
    }
}

/// What a trace says at `now`, and when it says something else. The last point holds as long as the one before it did (a
/// single one: for ever), then it starts over; before the first point the line is as the scenario sets it.
fn at(trace: &Trace, base: &Profile, now: Nanos) -> (Profile, Nanos) {
    let points = &trace.points;
    let [.., before, last] = &points[..] else {
        // The only point holds from its time on.
        return match points.first() {
            Some(point) if now < point.at => (*base, point.at),
            Some(point) => (with(base, point.rate, point.delay), Nanos::MAX),
            None => (*base, Nanos::MAX),
        };
    };
    let first = points[0].at;
    if now < first {
        return (*base, first);
    }
    let length = (last.at - first).saturating_add(last.at - before.at);
    let round = (now - first) / length * length;
    let passed = points.partition_point(|point| point.at <= now - round);
    let next = points.get(passed).map_or(first + length, |point| point.at);
    let point = points[passed.max(1) - 1];
    let profile = with(base, point.rate, point.delay);
    (profile, round.saturating_add(next))
}

fn with(base: &Profile, rate: u64, delay: Option<std::time::Duration>) -> Profile {
    Profile {
        rate: Some(rate),
        delay: delay.unwrap_or(base.delay),
        ..*base
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    const S: Nanos = 1_000_000_000;

    #[test]
    fn a_trace_is_followed_and_starts_over() {
        let trace = Trace::parse("0,1e6\n2,2e6,0.05\n3,3e6").unwrap();
        let base = Profile {
            delay: Duration::from_millis(7),
            ..Profile::rate(9_000_000)
        };
        let looks = [0, S, 2 * S, 3 * S, 4 * S - 1, 4 * S, 6 * S];
        let rates: Vec<_> = looks.map(|now| at(&trace, &base, now).0.rate).into();
        let expected = [1, 1, 2, 3, 3, 1, 2].map(|mbit| Some(mbit * 1_000_000));
        assert_eq!(rates, expected);
        let changes: Vec<_> = looks.map(|now| at(&trace, &base, now).1 / S).into();
        assert_eq!(changes, [2, 2, 3, 4, 4, 6, 7]);
        assert_eq!(at(&trace, &base, 0).0.delay, Duration::from_millis(7));
        assert_eq!(at(&trace, &base, 2 * S).0.delay, Duration::from_millis(50));
    }

    #[test]
    fn before_its_first_point_a_trace_says_nothing_and_the_first_follows_the_last() {
        let trace = Trace::parse("5,1e6").unwrap();
        let base = Profile::rate(9_000_000);
        assert_eq!(at(&trace, &base, 0), (base, 5 * S));
        let later = at(&trace, &base, 5 * S);
        assert_eq!(later, (Profile::rate(1_000_000), Nanos::MAX));
        let trace = Trace::parse("5,1e6\n6,2e6").unwrap();
        let looks = [4, 5, 6, 7, 8].map(|second| at(&trace, &base, second * S));
        let mbit = looks.map(|(profile, next)| (profile.rate.unwrap() / 1_000_000, next / S));
        assert_eq!(mbit, [(9, 5), (1, 6), (2, 7), (1, 8), (2, 9)]);
    }

    #[test]
    fn what_an_event_sets_holds_up_to_the_next_point() {
        let mut fabric = Fabric::new(1, 1);
        let line = Line {
            profile: Profile::default(),
            trace: Trace::parse("0,1e6\n1,2e6\n2,3e6").ok().map(Arc::new),
        };
        let mut lines = Lines(vec![Traced {
            place: Place::Up(0),
            line,
            next: 0,
        }]);
        lines.follow(0, &mut fabric);
        let lossy = Profile {
            loss: 0.1,
            ..Profile::rate(5_000_000)
        };
        lines.set_node(&mut fabric, 0, Some(lossy), None);
        lines.follow(S / 2, &mut fabric);
        assert_eq!(*fabric.lines(0).0, lossy);
        lines.follow(S, &mut fabric);
        let (up, _) = fabric.lines(0);
        assert_eq!((up.rate, up.loss), (Some(2_000_000), 0.1));
    }
}

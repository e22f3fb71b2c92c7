//! Tests of stages with several hosts: every sample goes through every stage once, whoever computes it.

use proptest::prelude::*;

use super::super::group::{Piece, Place};
use super::super::plan::tests::{of_groups, peer, shares};
use super::*;
use crate::ids::PeerId;

struct Host {
    peer: PeerId,
    place: Place,
    flow: Flow<Vec<u32>>,
    did: Vec<String>,
    /// Samples that went forward and backward, by global number.
    forward: Vec<u64>,
    backward: Vec<u64>,
    /// Hosts that have made their gradient.
    made: usize,
}

const ROWS: u32 = 12;
const MICRO: u32 = 3;

/// Runs all hosts, in an order that `seed` gives, until none has anything to do. With a `holder` the last host of each stage is one and
/// the same peer.
fn run(groups: &[Vec<u32>], holder: bool, n_steps: u64, mut seed: u64) -> Vec<Host> {
    let mut plan = of_groups(groups);
    let last = plan
        .stages
        .iter_mut()
        .filter_map(|stage| stage.members.last_mut());
    last.filter(|_| holder)
        .for_each(|last| last.peer = peer(200));
    let host = |(number, peer): (usize, PeerId)| {
        let place = Place::of(&plan, number, peer).unwrap();
        let shape = Shape {
            stage: place.stage,
            n_stages: place.n_stages,
            micro: MICRO,
            depth: depth(place.stage, place.n_stages, MICRO),
            asynchronous: false,
            looks: 2,
            line_every: 2,
            member: place.member,
            n_members: place.group.len(),
            pieces: Pieces::of(&place),
        };
        Host {
            peer,
            flow: Flow::new(shape, 0),
            place,
            did: Vec::new(),
            forward: Vec::new(),
            backward: Vec::new(),
            made: 0,
        }
    };
    let stages = plan.stages.iter().enumerate();
    let each = stages.flat_map(|(number, stage)| stage.hosts().map(move |peer| (number, peer)));
    let mut hosts: Vec<Host> = each.map(host).collect();
    hosts[0].flow.feed();
    hosts[0].flow.want_look();
    assert!(hosts[0].flow.set_until(n_steps));
    loop {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let n = hosts.len();
        let from = (seed >> 33) as usize;
        let next = (0..n).map(|i| (from + i) % n);
        let ops = next.filter_map(|i| Some((i, hosts[i].flow.next_op()?)));
        let Some((i, op)) = ops.into_iter().next() else {
            return hosts;
        };
        work(&mut hosts, i, op);
    }
}

/// The host of this stage on this peer.
fn find(hosts: &mut [Host], stage: usize, peer: PeerId) -> &mut Host {
    let is_it = |host: &&mut Host| host.peer == peer && host.place.stage == stage;
    hosts.iter_mut().find(is_it).unwrap()
}

fn work(hosts: &mut [Host], i: usize, op: Op<Vec<u32>>) {
    let place = hosts[i].place.clone();
    let own = place.rows.start..place.rows.end.min(ROWS);
    let marks = |hosts: &[Host], step| hosts[i].flow.marks(step);
    let send = |hosts: &mut [Host], to: &Piece, kind, step, micro, marks| {
        let rows: Vec<u32> = (to.rows.start..to.rows.end.min(ROWS)).collect();
        let at = (step, micro, to.rows.start);
        let stage = match kind {
            Kind::Backward => place.stage - 1,
            Kind::Labels | Kind::LookLabels => place.n_stages - 1,
            _ => place.stage + 1,
        };
        let host = find(hosts, stage, to.peer);
        host.flow.arrive(kind, at, step, marks, rows).unwrap();
    };
    let begin = |hosts: &mut [Host], step, micro| {
        if place.stage == 0 && place.leads() && micro == 0 {
            let marks = marks(hosts, step);
            for (_, peer) in place.fellows() {
                let at = (step, 0, 0);
                let flow = &mut find(hosts, place.stage, peer).flow;
                flow.arrive(Kind::Begin, at, 0, marks, Vec::new()).unwrap();
            }
        }
    };
    let whole = |pieces: &[Vec<u32>]| pieces.concat() == own.clone().collect::<Vec<_>>();
    let number = |step: u64, micro: u32| step * u64::from(MICRO) + u64::from(micro);
    match op {
        Op::Forward {
            step, micro, input, ..
        } => {
            begin(hosts, step, micro);
            assert!(input.is_none_or(|input| whole(&input)));
            hosts[i].forward.push(number(step, micro));
            let marks = marks(hosts, step);
            for to in &place.behind {
                send(hosts, to, Kind::Forward, step, micro, marks);
            }
            for to in place.labels.iter().filter(|_| place.stage == 0) {
                send(hosts, to, Kind::Labels, step, micro, marks);
            }
        }
        Op::Loss {
            step,
            micro,
            input,
            labels,
            ..
        } => {
            begin(hosts, step, micro);
            assert!(input.is_none_or(|input| whole(&input)));
            assert!(labels.is_none_or(|labels| whole(&labels)));
            hosts[i].forward.push(number(step, micro));
            hosts[i].backward.push(number(step, micro));
            let marks = marks(hosts, step);
            for to in &place.before {
                send(hosts, to, Kind::Backward, step, micro, marks);
            }
        }
        Op::Backward {
            step,
            micro,
            gradient,
        } => {
            assert!(whole(&gradient));
            hosts[i].backward.push(number(step, micro));
            let marks = marks(hosts, step);
            for to in &place.before {
                send(hosts, to, Kind::Backward, step, micro, marks);
            }
        }
        Op::Add { .. } => {
            for peer in &place.group {
                let host = find(hosts, place.stage, *peer);
                host.made += 1;
                if host.made == place.group.len() {
                    host.made = 0;
                    host.flow.added();
                }
            }
        }
        Op::Apply { step } => {
            hosts[i].flow.set_safe(step);
            hosts[i].did.push(format!("A{step}"));
        }
        Op::Copy { step } => hosts[i].did.push(format!("C{step}")),
        Op::Look {
            step,
            micro,
            input,
            labels,
        } => {
            assert_eq!(input.is_some(), place.stage > 0);
            let is_last = place.stage + 1 == place.n_stages;
            assert_eq!(labels.is_some(), is_last && place.stage > 0);
            hosts[i].did.push(format!("L{step}.{micro}"));
            let lead = |hosts: &[Host], stage| {
                let is_lead = |host: &&Host| host.place.stage == stage && host.place.leads();
                let rows = 0..ROWS;
                let peer = hosts.iter().find(is_lead).unwrap().peer;
                Piece { peer, rows }
            };
            let none = Marks::default();
            if !is_last {
                let to = lead(hosts, place.stage + 1);
                send(hosts, &to, Kind::LookForward, step, micro, none);
                if place.stage == 0 {
                    let to = lead(hosts, place.n_stages - 1);
                    send(hosts, &to, Kind::LookLabels, step, micro, none);
                }
            }
            if micro == 1 {
                for (_, peer) in place.fellows() {
                    let at = (step, 0, 0);
                    let flow = &mut find(hosts, place.stage, peer).flow;
                    flow.arrive(Kind::Looked, at, 0, none, Vec::new()).unwrap();
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn every_sample_goes_through_every_stage_once(groups in proptest::collection::vec(shares(ROWS), 1..4), holder: bool, seed: u64) {
        for host in run(&groups, holder, 4, seed) {
            let all: Vec<u64> = (0..4 * u64::from(MICRO)).collect();
            prop_assert_eq!(&host.forward, &all);
            prop_assert_eq!(&host.backward, &all);
            let did: Vec<&str> = host.did.iter().map(String::as_str).collect();
            // The look after the first step comes before the lines, and leads alone look.
            let looked = ["A1", "L1.0", "L1.1", "A2", "C2", "A3", "A4", "C4"];
            let expected = looked.into_iter().filter(|op| host.place.leads() || !op.starts_with('L'));
            prop_assert_eq!(did, expected.collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_fellow_makes_no_copy_before_its_lead_has_looked() {
    let place = Place::of(&of_groups(&[vec![6, 6]]), 0, peer(2)).unwrap();
    let shape = Shape {
        stage: 0,
        n_stages: 1,
        micro: 1,
        depth: 1,
        asynchronous: false,
        looks: 1,
        line_every: 9,
        member: 1,
        n_members: 2,
        pieces: Pieces::of(&place),
    };
    let mut fellow: Flow<()> = Flow::new(shape, 5);
    fellow.feed();
    assert_eq!(fellow.next_op(), None, "its lead has not begun the step");
    let marks = Marks {
        line: true,
        look: true,
    };
    fellow.arrive(Kind::Begin, (5, 0, 0), 0, marks, ()).unwrap();
    assert!(matches!(fellow.next_op(), Some(Op::Loss { step: 5, .. })));
    assert_eq!(fellow.next_op(), Some(Op::Add { step: 5 }));
    assert_eq!(fellow.next_op(), None, "the others' gradients are not here");
    fellow.added();
    assert_eq!(fellow.next_op(), Some(Op::Apply { step: 6 }));
    assert_eq!(fellow.next_op(), None, "the lead looks");
    fellow
        .arrive(Kind::Looked, (6, 0, 0), 0, marks, ())
        .unwrap();
    assert_eq!(fellow.next_op(), Some(Op::Copy { step: 6 }));
    let late = Refused::Step {
        step: 5,
        applied: 6,
    };
    let begin = fellow.arrive(Kind::Begin, (5, 0, 0), 0, marks, ());
    assert_eq!(begin, Err(late));
}

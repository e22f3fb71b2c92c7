//! Two or three exchanges wired by hand: conservation, credit, lockstep, fencing, refusal.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::sync::Arc;

use skein_gossip::exchange::{
    Amount, CREDIT, Config, Exchange, Gradient, Output, ValueChoice, Waiting,
};
use skein_gossip::gradient::layout::Layout;
use skein_gossip::gradient::values::Values;
use skein_gossip::ids::{Digest, JobId, PeerId};
use skein_gossip::time::Tick;
use skein_gossip::view::{Holding, Joiner, View};

const NOW: Tick = Tick(0);
const BATCH: u32 = 32;

fn id(n: u8) -> PeerId {
    PeerId([n; 32])
}

fn config(waiting: Waiting, fraction: f32, values: Values) -> Config {
    Config {
        waiting,
        amount: Amount::TopK {
            least: fraction,
            most: fraction,
        },
        values: ValueChoice::Fixed(values),
        full: false,
        level: 1,
    }
}

fn joiner(n: u8) -> Joiner {
    let holds = Holding {
        samples: 0,
        step: 0,
        digest: Digest([1; 32]),
    };
    Joiner {
        peer: id(n),
        instance: u64::from(n),
        batch: BATCH,
        holds,
    }
}

fn layout() -> Layout {
    Layout::new(&[40, 24]).unwrap()
}

fn own(step: u64, values: &[f32]) -> Gradient<'_> {
    Gradient {
        step,
        n_steps: 1,
        samples: 32,
        values,
        weights: &[],
    }
}

struct Mesh {
    view: View,
    peers: BTreeMap<PeerId, Exchange>,
}

impl Mesh {
    fn new(n: u8, config: Config) -> Self {
        let joiners: Vec<Joiner> = (1..=n).map(joiner).collect();
        let view = View::first(id(1), &joiners).unwrap();
        let mut mesh = Self {
            view,
            peers: BTreeMap::new(),
        };
        for n in 1..=n {
            let mut exchange = Exchange::new(JobId([9; 32]), id(n), config, &layout()).unwrap();
            exchange.set_view(NOW, Some(Arc::new(mesh.view.clone())), true);
            exchange.start_at(NOW, 0);
            mesh.peers.insert(id(n), exchange);
        }
        mesh
    }

    fn of(&mut self, n: u8) -> &mut Exchange {
        self.peers.get_mut(&id(n)).unwrap()
    }

    fn outputs(&mut self, n: u8) -> Vec<Output> {
        std::iter::from_fn(|| self.of(n).poll()).collect()
    }

    /// Delivers everything until nothing moves; returns what was refused.
    fn deliver(&mut self) -> Vec<String> {
        let mut refused = Vec::new();
        loop {
            let mut moved = false;
            for from in self.peers.keys().copied().collect::<Vec<_>>() {
                for output in self.outputs(from.0[0]) {
                    moved = true;
                    match output {
                        Output::Send { to, packet, .. } => {
                            if let Some(peer) = self.peers.get_mut(&to) {
                                peer.packet(NOW, NOW, from, &packet);
                            }
                        }
                        Output::Applied {
                            to,
                            seq,
                            arrived_us,
                        } => self.of(to.0[0]).applied(NOW, from, seq, arrived_us),
                        Output::Refused { reason, .. } => refused.push(reason),
                        Output::Ready { .. } | Output::Limit { .. } => {}
                    }
                }
            }
            if !moved {
                return refused;
            }
        }
    }

    fn take(&mut self, n: u8) -> Option<Vec<f32>> {
        let mut inbox = Vec::new();
        self.of(n).take(&mut inbox).then_some(inbox)
    }
}

fn gradient(seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state as f32 / u32::MAX as f32 - 0.5).powi(3)
    };
    (0..layout().n_values()).map(|_| next()).collect()
}

#[test]
fn a_peer_alone_applies_its_own_gradient_unchanged() {
    let mut mesh = Mesh::new(1, config(Waiting::Never, 1.0, Values::F32));
    assert_eq!(mesh.view.global_batch(), u64::from(BATCH));
    mesh.of(1).gradient(NOW, own(0, &gradient(1))).unwrap();
    assert!(mesh.outputs(1).is_empty());
    assert_eq!(mesh.take(1), None);
}

#[test]
fn dense_gradients_arrive_weighted_by_samples() {
    let mut mesh = Mesh::new(2, config(Waiting::Never, 1.0, Values::F32));
    mesh.of(1).gradient(NOW, own(0, &gradient(1))).unwrap();
    assert_eq!(mesh.deliver(), Vec::<String>::new());
    let inbox = mesh.take(2).unwrap();
    for (got, sent) in inbox.iter().zip(gradient(1)) {
        assert!(
            (got - sent / 64.0).abs() <= f32::EPSILON * sent.abs(),
            "over the global batch: {got} {sent}"
        );
    }
    assert_eq!(mesh.take(2), None, "the inbox is empty after it was taken");
}

#[test]
fn whatever_is_not_sent_now_is_sent_later() {
    let mut mesh = Mesh::new(2, config(Waiting::Never, 0.1, Values::F16));
    let mut sent = vec![0.0f64; layout().n_values()];
    let mut arrived = sent.clone();
    for step in 0..200 {
        // After some steps only zeros are trained: the residual must drain.
        let gradient = if step < 20 {
            gradient(step)
        } else {
            vec![0.0; sent.len()]
        };
        sent.iter_mut()
            .zip(&gradient)
            .for_each(|(sum, value)| *sum += f64::from(*value));
        mesh.of(1)
            .gradient(NOW, own(u64::from(step), &gradient))
            .unwrap();
        assert!(mesh.deliver().is_empty());
        if let Some(inbox) = mesh.take(2) {
            arrived
                .iter_mut()
                .zip(&inbox)
                .for_each(|(sum, value)| *sum += f64::from(*value) * 64.0);
        }
    }
    for (arrived, sent) in arrived.iter().zip(&sent) {
        assert!((arrived - sent).abs() < 1e-5, "{arrived} {sent}");
    }
}

#[test]
fn without_credit_the_sender_sends_less_often_and_loses_nothing() {
    let mut mesh = Mesh::new(2, config(Waiting::Never, 1.0, Values::F32));
    let mut kept = Vec::new();
    for step in 0..10 {
        mesh.of(1)
            .gradient(NOW, own(step, &gradient(step as u32)))
            .unwrap();
        kept.extend(mesh.outputs(1));
    }
    assert_eq!(
        kept.len(),
        CREDIT,
        "the receiver never said that it applied anything"
    );
    assert_eq!(mesh.of(1).stats()[&id(2)].held_back, 10 - CREDIT as u64);
    let Output::Send { seq, .. } = kept[0] else {
        panic!("a packet")
    };
    mesh.of(1).applied(NOW, id(2), seq, 0);
    mesh.of(1).gradient(NOW, own(10, &gradient(10))).unwrap();
    let Some(Output::Send { packet, .. }) = mesh.of(1).poll() else {
        panic!("a packet")
    };
    mesh.of(2).packet(NOW, NOW, id(1), &packet);
    let inbox = mesh.take(2).unwrap();
    let expected: f32 = (2..=10).map(|step| gradient(step)[5]).sum::<f32>() / 64.0;
    assert!(
        (inbox[5] - expected).abs() < 1e-5,
        "{} {expected}",
        inbox[5]
    );
}

#[test]
fn a_lost_answer_does_not_silence_a_link() {
    let mut mesh = Mesh::new(2, config(Waiting::Never, 1.0, Values::F32));
    for step in 0..5 {
        mesh.of(1).gradient(NOW, own(step, &gradient(1))).unwrap();
    }
    assert_eq!(mesh.outputs(1).len(), CREDIT);
    let later = Tick(16_000_000);
    mesh.of(1).gradient(later, own(5, &gradient(1))).unwrap();
    assert_eq!(mesh.outputs(1).len(), 1);
}

#[test]
fn a_packet_that_the_lane_refused_goes_first_when_there_is_room() {
    let mut mesh = Mesh::new(2, config(Waiting::Never, 0.5, Values::F16));
    mesh.of(1).gradient(NOW, own(0, &gradient(3))).unwrap();
    let Some(Output::Send { to, seq, .. }) = mesh.of(1).poll() else {
        panic!("a packet")
    };
    mesh.of(1).returned(to, seq);
    for step in 1..40 {
        mesh.of(1)
            .gradient(NOW, own(step, &vec![0.0; layout().n_values()]))
            .unwrap();
        mesh.deliver();
    }
    let arrived = mesh.take(2).unwrap();
    for (arrived, sent) in arrived.iter().zip(gradient(3)) {
        assert!((arrived * 64.0 - sent).abs() < 1e-6, "{arrived} {sent}");
    }
}

#[test]
fn in_lockstep_all_replicas_get_the_same_bits_whatever_is_left_out() {
    for (fraction, values) in [(1.0, Values::F32), (0.1, Values::F16)] {
        let mut mesh = Mesh::new(3, config(Waiting::All, fraction, values));
        for step in 0..5 {
            for n in 1..=3 {
                assert_eq!(mesh.take(n), None, "nobody passes a step alone");
                mesh.of(n)
                    .gradient(NOW, own(step, &gradient(step as u32 * 3 + u32::from(n))))
                    .unwrap();
            }
            assert!(mesh.deliver().is_empty());
            let sums: Vec<Vec<f32>> = (1..=3).map(|n| mesh.take(n).unwrap()).collect();
            assert_eq!(sums[0], sums[1]);
            assert_eq!(sums[1], sums[2]);
            if fraction == 1.0 {
                let mean: f32 = (1..=3)
                    .map(|n| gradient(step as u32 * 3 + n)[7])
                    .sum::<f32>()
                    / 3.0;
                assert!((sums[0][7] - mean).abs() < 1e-6);
            }
        }
    }
}

#[test]
fn a_member_that_vanishes_is_dropped_from_the_wait_at_once() {
    let mut mesh = Mesh::new(3, config(Waiting::All, 1.0, Values::F32));
    for n in [1, 2] {
        mesh.of(n)
            .gradient(NOW, own(0, &gradient(u32::from(n))))
            .unwrap();
    }
    mesh.peers.remove(&id(3));
    mesh.deliver();
    assert_eq!(mesh.take(1), None);
    let next = mesh
        .view
        .successor(id(1), &[(id(3), Default::default())].into(), &[], 9);
    for n in [1, 2] {
        mesh.of(n)
            .set_view(NOW, Some(Arc::new(next.clone())), false);
    }
    mesh.deliver();
    assert_eq!(mesh.take(1).unwrap(), mesh.take(2).unwrap());
}

#[test]
fn a_newcomer_is_waited_for_from_its_admission_on_and_not_before_all_know() {
    let mut mesh = Mesh::new(2, config(Waiting::All, 1.0, Values::F32));
    let next = mesh
        .view
        .successor(id(1), &BTreeMap::new(), &[joiner(3)], 1);
    let mut third = Exchange::new(
        JobId([9; 32]),
        id(3),
        config(Waiting::All, 1.0, Values::F32),
        &layout(),
    )
    .unwrap();
    third.set_view(NOW, Some(Arc::new(next.clone())), false);
    mesh.peers.insert(id(3), third);
    for n in [1, 2] {
        mesh.of(n)
            .set_view(NOW, Some(Arc::new(next.clone())), false);
        mesh.of(n).gradient(NOW, own(0, &gradient(1))).unwrap();
    }
    mesh.deliver();
    assert!(
        mesh.take(1).is_some() && mesh.take(2).is_some(),
        "step 0 is before the admission"
    );
    for n in [1, 2] {
        mesh.of(n).gradient(NOW, own(1, &gradient(1))).unwrap();
        assert!(
            mesh.outputs(n).is_empty(),
            "nothing of step 1 leaves before all know the newcomer"
        );
    }
    for n in [1, 2, 3] {
        mesh.of(n).set_view(NOW, Some(Arc::new(next.clone())), true);
    }
    mesh.deliver();
    assert_eq!(mesh.take(1), None, "the newcomer's packet is missing");
    mesh.of(3).start_at(NOW, 1);
    mesh.of(3).gradient(NOW, own(1, &gradient(4))).unwrap();
    mesh.deliver();
    let sums: Vec<_> = (1..=3).map(|n| mesh.take(n).unwrap()).collect();
    assert!(sums[0] == sums[1] && sums[1] == sums[2]);
}

#[test]
fn a_lost_packet_is_repeated() {
    let mut mesh = Mesh::new(2, config(Waiting::All, 1.0, Values::F32));
    for n in [1, 2] {
        mesh.of(n)
            .gradient(NOW, own(0, &gradient(u32::from(n))))
            .unwrap();
        mesh.outputs(n);
    }
    let later = Tick(1_500_000);
    for n in [1, 2] {
        mesh.of(n).tick(later);
    }
    mesh.deliver();
    assert!(mesh.take(1).is_some() && mesh.take(2).is_some());
}

#[test]
fn values_that_are_not_finite_are_refused_counted_and_never_applied() {
    let mut mesh = Mesh::new(2, config(Waiting::Never, 1.0, Values::F32));
    let mut bad = gradient(1);
    bad[3] = f32::NAN;
    assert!(
        mesh.of(1).gradient(NOW, own(0, &bad)).is_err(),
        "not even sent"
    );
    mesh.of(1)
        .gradient(NOW, own(0, &vec![1.0; bad.len()]))
        .unwrap();
    let Some(Output::Send { packet, .. }) = mesh.of(1).poll() else {
        panic!("a packet")
    };
    // A hostile sender puts a NaN where a value was.
    let at = packet
        .windows(4)
        .rposition(|bytes| bytes == 32f32.to_le_bytes());
    let mut hostile = packet.clone();
    match at {
        Some(at) => hostile[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes()),
        None => hostile.truncate(packet.len() - 3),
    }
    mesh.of(2).packet(NOW, NOW, id(1), &hostile);
    assert!(
        mesh.outputs(2)
            .iter()
            .any(|output| matches!(output, Output::Refused { from, .. } if *from == id(1)))
    );
    assert_eq!(mesh.of(2).stats()[&id(1)].refused, 1);
    assert_eq!(mesh.take(2), None);
}

#[test]
fn what_came_before_a_peer_fell_out_is_not_for_the_state_that_it_fetches() {
    for falls_out in [true, false] {
        let mut mesh = Mesh::new(2, config(Waiting::Never, 1.0, Values::F32));
        mesh.of(1).gradient(NOW, own(0, &gradient(1))).unwrap();
        mesh.deliver();
        if falls_out {
            mesh.of(2).set_view(NOW, None, false);
        }
        let anew = mesh
            .view
            .successor(id(1), &BTreeMap::new(), &[joiner(2)], 0);
        for n in [1, 2] {
            mesh.of(n).set_view(NOW, Some(Arc::new(anew.clone())), true);
        }
        assert_eq!(mesh.take(2), None);
        mesh.of(1).gradient(NOW, own(1, &gradient(2))).unwrap();
        assert!(mesh.deliver().is_empty());
        assert!(mesh.take(2).is_some());
    }
}

#[test]
fn packets_of_strangers_and_of_an_older_admission_are_fenced() {
    let mut mesh = Mesh::new(3, config(Waiting::Never, 1.0, Values::F32));
    mesh.of(2).gradient(NOW, own(0, &gradient(1))).unwrap();
    let packet = mesh
        .outputs(2)
        .into_iter()
        .find_map(|output| match output {
            Output::Send { to, packet, .. } if to == id(1) => Some(packet),
            _ => None,
        })
        .unwrap();
    let gone = mesh
        .view
        .successor(id(1), &[(id(2), Default::default())].into(), &[], 0);
    mesh.of(1).set_view(NOW, Some(Arc::new(gone.clone())), true);
    mesh.of(1).packet(NOW, NOW, id(2), &packet);
    assert_eq!(mesh.take(1), None, "no member");
    let back = gone.successor(id(1), &BTreeMap::new(), &[joiner(2)], 0);
    mesh.of(1).set_view(NOW, Some(Arc::new(back.clone())), true);
    mesh.of(1).packet(NOW, NOW, id(2), &packet);
    assert_eq!(mesh.take(1), None, "sent before it was admitted anew");
    for junk in [&[][..], &[200, 1, 2], &[0; 90]] {
        mesh.of(1).packet(NOW, NOW, id(2), junk);
    }
    assert_eq!(mesh.of(1).stats()[&id(2)].refused, 3);
}

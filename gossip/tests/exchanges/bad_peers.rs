//! Peers that diverged, lie, repeat themselves or say nothing: contained, and counted.

use skein_gossip::exchange::{Amount, Config, Exchange, Gradient, Output, Waiting, split};
use skein_gossip::gradient::layout::Layout;
use skein_gossip::ids::PeerId;
use skein_gossip::time::Tick;

use crate::wired::{BATCH, JOB, MS, Wired, config, gradient, id};

const LENGTHS: [usize; 2] = [200, 56];
const N_VALUES: usize = 256;

/// A packet as peer 2 would send it to peer 1, its gradient times `scale`.
fn packet_of_second(wired: &Wired, step: u64, scale: f32) -> Vec<u8> {
    let layout = Layout::new(&LENGTHS).unwrap();
    let mut liar = Exchange::new(JOB, id(2), config(Amount::Dense), &layout).unwrap();
    liar.set_view(Tick(0), Some(wired.view.clone().into()), true);
    let mut values = gradient(N_VALUES, step);
    values.iter_mut().for_each(|value| *value *= scale);
    let gradient = Gradient {
        step,
        n_steps: 1,
        samples: u64::from(BATCH),
        values: &values,
        weights: &[],
    };
    liar.gradient(Tick(0), gradient).unwrap();
    let to_first = |output| match output {
        Output::Send { to, packet, .. } if to == id(1) => Some(packet),
        _ => None,
    };
    std::iter::from_fn(|| liar.poll())
        .find_map(to_first)
        .unwrap()
}

fn deliver(wired: &mut Wired, from: PeerId, packet: &[u8]) -> u64 {
    let now = Tick(wired.now);
    let before = wired
        .of(1)
        .stats()
        .get(&from)
        .map_or(0, |stats| stats.refused);
    wired.of(1).packet(now, now, from, packet);
    wired.drain(id(1));
    wired.of(1).stats()[&from].refused - before
}

fn largest_heard(wired: &Wired, n: u8) -> f64 {
    let heard = wired.heard[&id(n)].iter();
    heard.fold(0.0, |most, value| value.abs().max(most))
}

#[test]
fn a_peer_with_a_huge_norm_is_refused_from_its_first_packet_on_and_the_rest_go_on() {
    let mut wired = Wired::new(4, &LENGTHS, config(Amount::Dense));
    for step in 0..20 {
        wired.commit_all(step, |n| {
            let mut values = gradient(N_VALUES, step * 100 + u64::from(n));
            if n == 2 {
                values.iter_mut().for_each(|value| *value *= 1e6);
            }
            values
        });
        wired.run(wired.now + 100 * MS);
    }
    for n in [1, 3, 4] {
        assert!(largest_heard(&wired, n) < 200.0, "{n} heard of it");
        let stats = &wired.of(n).stats()[&id(2)];
        assert_eq!((stats.refused, stats.packets_in), (20, 0), "peer {n}");
    }
    wired.handed_in.remove(&id(2));
    for n in [1, 3, 4] {
        assert!(wired.off(n) < 1e-2, "peer {n}: {}", wired.off(n));
    }
}

#[test]
fn neither_claims_nor_patience_make_a_huge_norm_pass() {
    let mut wired = Wired::new(3, &LENGTHS, config(Amount::Dense));
    let mut scale = 1.0;
    for step in 0..200 {
        for n in [1, 3] {
            let values = gradient(N_VALUES, step * 100 + u64::from(n));
            wired.commit(n, step, &values, &[]);
        }
        wired.run(wired.now + 100 * MS);
        scale *= 1.3;
        let packet = packet_of_second(&wired, step, scale);
        let packet = Wired::forged(&packet, |header| {
            header.seq = step;
            header.samples = u64::MAX;
        });
        deliver(&mut wired, id(2), &packet);
    }
    assert!(wired.of(1).stats()[&id(2)].refused > 100);
    // At most what the fastest of honest peers could send: 16 times the samples, 100 times the norm.
    let most = 16.0 * 100.0 * 8.0;
    assert!(
        largest_heard(&wired, 1) < most,
        "{}",
        largest_heard(&wired, 1)
    );
}

#[test]
fn packets_that_are_repeated_cut_short_or_of_an_old_view_are_not_applied() {
    let mut wired = Wired::new(3, &LENGTHS, config(Amount::Dense));
    wired.commit(1, 0, &gradient(N_VALUES, 9), &[]);
    let packet = packet_of_second(&wired, 0, 1.0);
    let old = Wired::forged(&packet, |header| header.view = 0);
    deliver(&mut wired, id(2), &old);
    assert_eq!(largest_heard(&wired, 1), 0.0, "it was not admitted then");
    let start = packet.len() - split(&packet).unwrap().1.len();
    let mut refused = 0;
    for length in 0..packet.len() {
        let mut short = packet[..length].to_vec();
        if length >= start {
            short = Wired::forged(&short, |header| header.seq = length as u64);
        }
        refused += deliver(&mut wired, id(2), &short);
    }
    // Frames have a checksum of their own: what is left may happen to be a packet of nothing.
    assert!(refused + 1 >= packet.len() as u64, "{refused}");
    let packet = Wired::forged(&packet, |header| header.seq = 5_000);
    let mut longer = packet.clone();
    longer.extend([0; 9]);
    assert_eq!(deliver(&mut wired, id(2), &longer), 1);
    assert_eq!(largest_heard(&wired, 1), 0.0);
    assert_eq!(deliver(&mut wired, id(2), &packet), 0);
    let heard = largest_heard(&wired, 1);
    assert!(heard > 0.0);
    for _ in 0..5 {
        assert_eq!(deliver(&mut wired, id(2), &packet), 1);
    }
    assert_eq!(largest_heard(&wired, 1), heard, "once is enough");
    // Packets of views that are not there yet wait, as many as there is credit for.
    let sent = wired.of(1).stats()[&id(2)].refused;
    for n in 0..10 {
        let early = Wired::forged(&packet, |header| {
            header.seq = 6_000 + n;
            header.view = 9_999;
        });
        deliver(&mut wired, id(2), &early);
    }
    assert_eq!(wired.of(1).stats()[&id(2)].refused - sent, 8);
    assert_eq!(largest_heard(&wired, 1), heard);
}

#[test]
fn values_that_are_not_finite_never_pass() {
    let mut wired = Wired::new(2, &LENGTHS, config(Amount::Dense));
    wired.commit(1, 0, &gradient(N_VALUES, 9), &[]);
    let packet = packet_of_second(&wired, 0, 1.0);
    let (_, packed) = split(&packet).unwrap();
    let start = packet.len() - packed.len();
    for at in start..packet.len().saturating_sub(4) {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut bytes = packet.clone();
            bytes[at..at + 4].copy_from_slice(&bad.to_le_bytes());
            let bytes = Wired::forged(&bytes, |header| header.seq = at as u64);
            deliver(&mut wired, id(2), &bytes);
        }
    }
    let largest = largest_heard(&wired, 1);
    assert!(largest.is_finite(), "{largest}");
    assert!(wired.heard[&id(1)].iter().all(|value| value.is_finite()));
    assert!(wired.of(1).stats()[&id(2)].refused > 100);
}

#[test]
fn a_silent_peer_and_a_stranger_change_nothing_for_the_others() {
    let mut wired = Wired::new(4, &LENGTHS, config(Amount::Dense));
    for step in 0..30 {
        for n in [1, 3, 4] {
            let values = gradient(N_VALUES, step * 100 + u64::from(n));
            wired.commit(n, step, &values, &[]);
        }
        wired.run(wired.now + 100 * MS);
    }
    let packet = packet_of_second(&wired, 0, 1.0);
    let heard = wired.heard[&id(1)].clone();
    let now = Tick(wired.now);
    wired.of(1).packet(now, now, id(77), &packet);
    wired.drain(id(1));
    assert_eq!(wired.heard[&id(1)], heard, "a stranger");
    for n in [1, 3, 4] {
        assert!(wired.off(n) < 1e-3, "{}", wired.off(n));
    }
}

/// In lockstep all judge a step's packets alike: replicas stay equal without the one that is absurd.
#[test]
fn in_lockstep_an_absurd_packet_is_left_out_by_all_alike() {
    let lockstep = Config {
        waiting: Waiting::All,
        ..config(Amount::Dense)
    };
    let mut wired = Wired::new(4, &LENGTHS, lockstep);
    for step in 0..5 {
        let before = wired.heard.clone();
        wired.commit_all(step, |n| {
            let mut values = gradient(N_VALUES, step * 100 + u64::from(n));
            if n == 3 && step % 2 == 1 {
                values.iter_mut().for_each(|value| *value *= 1e7);
            }
            values
        });
        wired.run(wired.now + 100 * MS);
        for n in 2..=4 {
            assert_eq!(wired.heard[&id(n)], wired.heard[&id(1)], "step {step}");
        }
        assert_ne!(before[&id(1)], wired.heard[&id(1)], "the step is passed");
        assert!(largest_heard(&wired, 1) < 1e4);
    }
    assert_eq!(wired.of(1).stats()[&id(3)].refused, 2);
}

/// Whoever diverged has nothing to tell, but the others must not wait for it.
#[test]
fn a_gradient_that_is_not_finite_stops_no_step_of_the_others() {
    for waiting in [
        Waiting::All,
        Waiting::Bounded {
            staleness: 1,
            backup: 0,
        },
    ] {
        let config = Config {
            waiting,
            ..config(Amount::Dense)
        };
        let mut wired = Wired::new(3, &LENGTHS, config);
        for step in 0..10 {
            for n in 1..=3 {
                let mut values = gradient(N_VALUES, step * 100 + u64::from(n));
                if n == 2 && step % 3 == 1 {
                    values[7] = f32::NAN;
                    let bad = Gradient {
                        step,
                        n_steps: 1,
                        samples: u64::from(BATCH),
                        values: &values,
                        weights: &[],
                    };
                    let now = Tick(wired.now);
                    assert!(wired.of(2).gradient(now, bad).is_err());
                    wired.drain(id(2));
                } else {
                    wired.commit(n, step, &values, &[]);
                }
            }
            let before = wired.heard[&id(1)].clone();
            wired.run(wired.now + 100 * MS);
            assert_ne!(before, wired.heard[&id(1)], "{waiting:?}, step {step}");
            let heard = wired.heard.values().flatten();
            assert!(heard.copied().all(f64::is_finite));
            if waiting != Waiting::All {
                assert_eq!(wired.limits[&id(1)], step + 3);
            }
        }
        if waiting == Waiting::All {
            assert_eq!(wired.heard[&id(1)], wired.heard[&id(3)]);
        }
    }
}

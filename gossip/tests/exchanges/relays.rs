//! More members than send directly: updates go along a tree, and each reaches everybody once.

use proptest::prelude::*;
use skein_gossip::exchange::Amount;

use crate::wired::{MS, Wired, config, gradient, id, joiner};

const LENGTHS: [usize; 2] = [100, 28];
const N_VALUES: usize = 128;

fn step_all(wired: &mut Wired, steps: std::ops::Range<u64>) {
    for step in steps {
        wired.commit_all(step, |n| gradient(N_VALUES, step * 1000 + u64::from(n)));
        wired.run(wired.now + 100 * MS);
    }
}

#[test]
fn every_gradient_reaches_every_other_member_once() {
    for n in [17, 24, 40] {
        let mut wired = Wired::new(n, &LENGTHS, config(Amount::Dense));
        step_all(&mut wired, 0..10);
        wired.settle(10, 12);
        assert!(wired.refused.is_empty(), "{:?}", wired.refused);
        assert!(wired.worst_off() < 1e-3, "{n}: {}", wired.worst_off());
        let links: usize = wired.n_sent.len();
        assert_eq!(links, 2 * (usize::from(n) - 1), "along the tree only");
    }
}

#[test]
fn what_is_sent_by_and_by_reaches_everybody_once_as_well() {
    let amount = Amount::TopK {
        least: 0.1,
        most: 0.1,
    };
    let mut wired = Wired::new(24, &LENGTHS, config(amount));
    step_all(&mut wired, 0..10);
    wired.settle(10, 150);
    assert!(wired.worst_off() < 1e-3, "{}", wired.worst_off());
}

/// One value per peer, 1 in the entry that is its own: what is heard of it is how often it was told.
fn times_told(wired: &Wired, to: u8, of: u8) -> f64 {
    wired.heard[&id(to)][usize::from(of)] / wired.handed_in[&id(of)][usize::from(of)].max(1.0)
}

fn own_entry(n: u8) -> Vec<f32> {
    let mut values = vec![0.0; N_VALUES];
    values[usize::from(n)] = 1.0;
    values
}

/// What was lost is what was under way.
fn is_all_told_from_now_on(wired: &mut Wired) {
    let sums = wired.handed_in.values_mut().chain(wired.heard.values_mut());
    sums.for_each(|sum| sum.fill(0.0));
    step_all(wired, 100..110);
    wired.settle(110, 150);
    assert!(wired.worst_off() < 1e-3, "{}", wired.worst_off());
}

/// Members leave while packets are under way, and not all hear of it at once.
#[test]
fn nothing_is_told_twice_when_members_leave_in_between() {
    let mut n_lost = 0;
    for seed in 0..6u64 {
        let n = 24 + (seed as u8 % 3) * 8;
        let mut wired = Wired::new(n, &LENGTHS, config(Amount::Dense));
        wired.delay = 40 * MS;
        for step in 0..4 {
            wired.commit_all(step, own_entry);
            wired.run(wired.now + 30 * MS);
        }
        for round in 0..4 {
            let gone = 2 + ((seed * 7 + round * 5) % u64::from(n - 2)) as u8;
            if !wired.peers.contains_key(&id(gone)) {
                continue;
            }
            wired.peers.remove(&id(gone));
            let gone = [(id(gone), Default::default())].into();
            let next = wired.view.successor(id(1), &gone, &[], 0);
            wired.adopt(&next, |n| n % 2 == 0);
            let step = 4 + round;
            wired.commit_all(step, own_entry);
            wired.run(wired.now + 20 * MS);
            wired.adopt(&next, |n| n % 2 == 1);
            wired.run(wired.now + 30 * MS);
        }
        wired.settle(20, 12);
        assert!(wired.refused.is_empty(), "{:?}", wired.refused);
        let there: Vec<u8> = wired.peers.keys().map(|peer| peer.0[0]).collect();
        let (mut told, mut most) = (0.0, 0.0);
        for to in &there {
            for of in there.iter().filter(|of| *of != to) {
                let times = times_told(&wired, *to, *of);
                // Whoever holds the view before still weighs by its larger global batch.
                assert!((0.0..=1.001).contains(&times), "{times} of {of} to {to}");
                told += times;
                most += 1.0;
                n_lost += u32::from(times < 0.9);
            }
        }
        assert!(told > 0.3 * most, "seed {seed}: {told} of {most}");
        is_all_told_from_now_on(&mut wired);
    }
    assert!(n_lost > 0, "with so many changes something must be lost");
}

#[test]
fn the_bound_between_direct_and_relayed_is_crossed_without_telling_twice() {
    let mut wired = Wired::new(17, &LENGTHS, config(Amount::Dense));
    wired.delay = 40 * MS;
    let mut step = 0;
    for round in 0..3u64 {
        for _ in 0..3 {
            wired.commit_all(step, own_entry);
            step += 1;
            wired.run(wired.now + 30 * MS);
        }
        let next = match round {
            1 => wired
                .view
                .successor(id(1), &Default::default(), &[joiner(9, 2)], 0),
            _ => {
                wired.peers.remove(&id(9));
                let gone = [(id(9), Default::default())].into();
                wired.view.successor(id(1), &gone, &[], 0)
            }
        };
        wired.adopt(&next, |n| n % 2 == 0);
        if round == 1 {
            wired.add(9, &LENGTHS, config(Amount::Dense));
        }
        wired.commit_all(step, own_entry);
        step += 1;
        wired.run(wired.now + 10 * MS);
        wired.adopt(&next, |n| n % 2 == 1);
    }
    wired.settle(step, 12);
    let there: Vec<u8> = wired.peers.keys().map(|peer| peer.0[0]).collect();
    for to in &there {
        for of in there.iter().filter(|of| *of != to) {
            let times = times_told(&wired, *to, *of);
            assert!((0.1..=1.001).contains(&times), "{times} of {of} to {to}");
        }
    }
    is_all_told_from_now_on(&mut wired);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn among_any_number_every_gradient_reaches_everybody_once(n in 2..44u8, seed: u64) {
        let mut wired = Wired::new(n, &LENGTHS, config(Amount::Dense));
        for step in 0..3 {
            wired.commit_all(step, |n| gradient(N_VALUES, seed ^ (step * 1000 + u64::from(n))));
            wired.run(wired.now + (seed % 90) * MS);
        }
        wired.settle(3, 12);
        prop_assert!(wired.worst_off() < 1e-3);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// Members leave at any moment, and each of the others hears of it at a moment of its own.
    #[test]
    fn whenever_members_leave_and_others_hear_of_it_nothing_is_told_twice(
        n in 18..34u8,
        delay in 1..80u64,
        dense: bool,
        rounds in prop::collection::vec((any::<u8>(), any::<u32>(), any::<u32>(), 1..60u64), 1..6),
    ) {
        let amount = match dense {
            true => Amount::Dense,
            false => Amount::TopK { least: 0.1, most: 0.1 },
        };
        let mut wired = Wired::new(n, &LENGTHS, config(amount));
        wired.delay = delay * MS;
        let mut step = 0;
        for (gone, early, late, wait) in rounds {
            let mut pass = |wired: &mut Wired| {
                wired.commit_all(step, own_entry);
                step += 1;
                wired.run(wired.now + wait * MS);
            };
            pass(&mut wired);
            let gone = 2 + gone % (n - 1);
            let left = match wired.peers.remove(&id(gone)) {
                Some(_) => [(id(gone), Default::default())].into(),
                // A view in which only batches might have changed.
                None => Default::default(),
            };
            pass(&mut wired);
            let next = wired.view.successor(id(1), &left, &[], 0);
            wired.adopt(&next, |n| early >> (n % 32) & 1 == 1);
            pass(&mut wired);
            wired.adopt(&next, |n| late >> (n % 32) & 1 == 1);
            pass(&mut wired);
            wired.adopt(&next, |_| true);
        }
        wired.settle(step, 100);
        prop_assert!(wired.refused.is_empty(), "{:?}", wired.refused);
        let there: Vec<u8> = wired.peers.keys().map(|peer| peer.0[0]).collect();
        for to in &there {
            for of in there.iter().filter(|of| *of != to) {
                let times = times_told(&wired, *to, *of);
                prop_assert!((0.0..=1.001).contains(&times), "{} of {} to {}", times, of, to);
            }
        }
        is_all_told_from_now_on(&mut wired);
    }
}

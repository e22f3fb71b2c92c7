//! Links of unlike rates, lanes that refuse, answers that are lost, connections that break.

use proptest::prelude::*;
use skein_gossip::exchange::{Amount, CREDIT};

use crate::wired::{MS, Wired, config, gradient, id, joiner};

const TOP: Amount = Amount::TopK {
    least: 0.02,
    most: 0.1,
};
const LENGTHS: [usize; 3] = [3000, 40, 960];
const N_VALUES: usize = 4000;

fn step_all(wired: &mut Wired, steps: std::ops::Range<u64>) {
    for step in steps {
        wired.commit_all(step, |n| gradient(N_VALUES, step * 100 + u64::from(n)));
        wired.run(wired.now + 100 * MS);
        wired.tick();
    }
}

#[test]
fn links_of_like_rate_share_a_residual_and_a_slow_one_leaves_and_everything_arrives() {
    let mut wired = Wired::new(5, &LENGTHS, config(TOP));
    for other in 2..=5 {
        wired.rates.insert((id(1), id(other)), 1e6);
    }
    wired.rates.insert((id(1), id(3)), 800.0);
    step_all(&mut wired, 0..60);
    assert_eq!(wired.of(1).n_residuals(), 2, "the slow one is by itself");
    assert_eq!(wired.of(2).n_residuals(), 1);
    let sent = |wired: &Wired, to| wired.n_sent[&(id(1), id(to))];
    assert!(sent(&wired, 2) >= 55, "{}", sent(&wired, 2));
    assert!(sent(&wired, 3) < sent(&wired, 2) / 2, "{}", sent(&wired, 3));
    wired.rates.clear();
    wired.settle(60, 400);
    assert!(wired.refused.is_empty(), "{:?}", wired.refused);
    assert!(wired.worst_off() < 1e-3, "{}", wired.worst_off());
}

#[test]
fn a_link_that_keeps_up_again_comes_back_and_nothing_is_told_twice_or_not_at_all() {
    // All at once; by and by, as it does not fit; nothing differs.
    for (amount, rate) in [(TOP, 10e6), (TOP, 1.4e5), (Amount::Dense, 10e6)] {
        let mut wired = Wired::new(4, &LENGTHS, config(amount));
        wired.rates.insert((id(1), id(3)), 3000.0);
        step_all(&mut wired, 0..30);
        assert_eq!(wired.of(1).n_residuals(), 2);
        wired.rates.insert((id(1), id(3)), rate);
        step_all(&mut wired, 30..200);
        assert_eq!(wired.of(1).n_residuals(), 1, "{amount:?}");
        wired.settle(200, 400);
        assert!(wired.refused.is_empty(), "{:?}", wired.refused);
        assert!(wired.worst_off() < 1e-3, "{}", wired.worst_off());
    }
}

/// Ten links, each slower than the one before by half: more kinds than there may be residuals.
#[test]
fn with_more_kinds_of_links_than_residuals_nobody_is_silenced() {
    let mut wired = Wired::new(11, &LENGTHS, config(TOP));
    for other in 2..=11 {
        let rate = 2e5 / 2f64.powi(i32::from(other));
        wired.rates.insert((id(1), id(other)), rate);
    }
    step_all(&mut wired, 0..150);
    assert!(wired.of(1).n_residuals() <= 4);
    let before = wired.n_sent.clone();
    step_all(&mut wired, 150..450);
    for other in 2..=11 {
        let link = (id(1), id(other));
        let sent = wired.n_sent[&link] - before[&link];
        assert!(sent > 0, "nothing to {other} within 30 s");
        if other == 2 {
            assert!(sent > 100, "the fastest is held up: {sent}");
        }
    }
    wired.rates.clear();
    wired.settle(450, 500);
    assert!(wired.worst_off() < 1e-3, "{}", wired.worst_off());
}

#[test]
fn a_lane_that_refuses_for_longer_than_answers_are_waited_for_loses_nothing() {
    let mut wired = Wired::new(3, &LENGTHS, config(TOP));
    step_all(&mut wired, 0..5);
    wired.refusing.insert((id(1), id(2)));
    step_all(&mut wired, 5..400);
    let to = (id(1), id(2));
    let (before, other) = (wired.n_sent[&to], wired.n_sent[&(id(1), id(3))]);
    assert!(before <= 5 && other > 300, "{before}, {other}");
    wired.refusing.clear();
    wired.settle(400, 400);
    assert!(wired.refused.is_empty(), "{:?}", wired.refused);
    assert!(wired.worst_off() < 1e-3, "{}", wired.worst_off());
}

#[test]
fn lost_answers_silence_nobody_for_good_and_lose_nothing() {
    let mut wired = Wired::new(3, &LENGTHS, config(TOP));
    step_all(&mut wired, 0..5);
    wired.unanswered.insert((id(1), id(2)));
    let before = wired.n_sent[&(id(1), id(2))];
    step_all(&mut wired, 5..400);
    let sent = wired.n_sent[&(id(1), id(2))] - before;
    // 40 s: twice what is forgotten after 15 s, and once more.
    let credit = CREDIT as u64;
    assert!((2 * credit..=4 * credit).contains(&sent), "{sent}");
    wired.unanswered.clear();
    wired.run(wired.now + 20_000 * MS);
    wired.settle(400, 400);
    assert!(wired.worst_off() < 1e-3, "{}", wired.worst_off());
}

#[test]
fn a_connection_that_breaks_loses_nothing_and_repeats_nothing() {
    for only_answers in [false, true] {
        let mut wired = Wired::new(3, &LENGTHS, config(TOP));
        wired.delay = 120 * MS;
        step_all(&mut wired, 0..20);
        for step in 20..40 {
            step_all(&mut wired, step..step + 1);
            if step % 3 == 0 {
                wired.reconnect(1, 2, only_answers);
            }
        }
        wired.settle(40, 400);
        // Packets that came although their answers were lost came again, and were told apart.
        assert!(!only_answers || !wired.refused.is_empty());
        assert!(
            wired.worst_off() < 1e-3,
            "{only_answers}: {}",
            wired.worst_off()
        );
    }
}

#[test]
fn what_a_member_that_left_had_told_stays_and_those_that_stay_miss_nothing() {
    let mut wired = Wired::new(5, &LENGTHS, config(TOP));
    wired.rates.insert((id(1), id(3)), 800.0);
    step_all(&mut wired, 0..30);
    // Those that go tell what they owe first. The third has not been told all by the first, and never will.
    let nothing = vec![0.0; N_VALUES];
    for step in 30..400 {
        wired.commit(5, step, &nothing, &[]);
        wired.commit(3, step, &nothing, &[]);
        wired.run(wired.now + 100 * MS);
    }
    wired.leave(5);
    step_all(&mut wired, 400..410);
    let late = wired.handed_in[&id(3)].clone();
    for step in 410..700 {
        wired.commit(3, step, &nothing, &[]);
        wired.run(wired.now + 100 * MS);
    }
    wired.leave(3);
    wired.settle(700, 400);
    assert_eq!(wired.of(1).n_residuals(), 1, "its residual went with it");
    assert!(late.iter().any(|value| value.abs() > 1.0));
    assert!(wired.worst_off() < 1e-3, "{}", wired.worst_off());
}

/// A peer that restarts is admitted anew in the same view in which its old process is dropped.
#[test]
fn a_process_that_is_admitted_anew_is_not_owed_what_the_one_before_was() {
    let mut wired = Wired::new(3, &LENGTHS, config(TOP));
    step_all(&mut wired, 0..20);
    wired.peers.remove(&id(3));
    wired.run(wired.now + 1000 * MS);
    let joiners = [joiner(3, 2)];
    let next = wired
        .view
        .successor(id(1), &Default::default(), &joiners, 0);
    wired.adopt(&next, |_| true);
    wired.add(3, &LENGTHS, config(TOP));
    for sum in wired.handed_in.values_mut() {
        sum.fill(0.0);
    }
    for sum in wired.heard.values_mut() {
        sum.fill(0.0);
    }
    step_all(&mut wired, 20..30);
    wired.settle(30, 400);
    assert!(wired.refused.is_empty(), "{:?}", wired.refused);
    assert!(wired.off(3) < 1e-3, "{}", wired.off(3));
}

/// Each way of choosing what to send, to the end.
#[test]
fn whatever_is_chosen_arrives_in_the_end() {
    for (amount, n_commits) in [
        (Amount::Dense, 5),
        (Amount::RandomK { fraction: 0.1 }, 400),
        (Amount::Parts, 80),
        (
            Amount::MaxN {
                least: 0.01,
                most: 0.5,
            },
            400,
        ),
        (
            Amount::TopK {
                least: 0.3,
                most: 0.3,
            },
            40,
        ),
        // Against weights of 1; what is left is below the threshold.
        (Amount::Significant { threshold: 0.01 }, 100),
    ] {
        let mut wired = Wired::new(3, &LENGTHS, config(amount));
        for other in 2..=3 {
            wired.rates.insert((id(1), id(other)), 1e5);
        }
        step_all(&mut wired, 0..20);
        wired.settle(20, n_commits);
        let most = match amount {
            Amount::Significant { threshold } => 2.0 * f64::from(threshold),
            _ => 1e-3,
        };
        assert!(
            wired.worst_off() < most,
            "{amount:?}: {}",
            wired.worst_off()
        );
        assert!(wired.refused.is_empty(), "{amount:?}: {:?}", wired.refused);
    }
}

/// What can happen to a link within a few seconds.
#[derive(Clone, Debug)]
enum Mishap {
    Rate(f64),
    Refuses,
    Takes,
    AnswersLost,
    AnswersHeard,
    Broken { only_answers: bool },
}

fn mishap() -> impl Strategy<Value = Mishap> {
    prop_oneof![
        // Not so slow that a packet takes longer than answers are waited for.
        (3.6..7.0f64).prop_map(|log| Mishap::Rate(10f64.powf(log))),
        Just(Mishap::Refuses),
        Just(Mishap::Takes),
        Just(Mishap::AnswersLost),
        Just(Mishap::AnswersHeard),
        any::<bool>().prop_map(|only_answers| Mishap::Broken { only_answers }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// All that is handed in is told or still owed, whatever happens to the links.
    #[test]
    fn nothing_is_lost_or_told_twice_whatever_happens_to_links(
        n in 2..6u8,
        amount in prop_oneof![Just(TOP), Just(Amount::Dense), Just(Amount::Parts)],
        mishaps in prop::collection::vec((mishap(), 1..6u8, 1..6u8, 1..4u64), 1..20),
    ) {
        let mut wired = Wired::new(n, &LENGTHS, config(amount));
        let mut step = 0;
        for (mishap, from, to, n_steps) in mishaps {
            let (from, to) = (1 + from % n, 1 + to % n);
            let link = (id(from), id(to));
            if from != to {
                match mishap {
                    Mishap::Rate(rate) => {
                        wired.rates.insert(link, rate);
                    }
                    Mishap::Refuses => {
                        wired.refusing.insert(link);
                    }
                    Mishap::Takes => {
                        wired.refusing.remove(&link);
                    }
                    Mishap::AnswersLost => {
                        wired.unanswered.insert(link);
                    }
                    Mishap::AnswersHeard => {
                        wired.unanswered.remove(&link);
                    }
                    Mishap::Broken { only_answers } => wired.reconnect(from, to, only_answers),
                }
            }
            step_all(&mut wired, step..step + n_steps);
            step += n_steps;
        }
        wired.rates.clear();
        wired.refusing.clear();
        wired.unanswered.clear();
        wired.run(wired.now + 20_000 * MS);
        wired.settle(step, 300);
        prop_assert!(wired.worst_off() < 1e-3, "{}", wired.worst_off());
        for n in 1..=n {
            prop_assert!(wired.of(n).n_residuals() <= 4);
        }
    }
}

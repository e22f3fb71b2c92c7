//! Peers that may run ahead of each other by so many steps.

use std::collections::BTreeMap;

use skein_gossip::exchange::{Amount, Config, Waiting};

use crate::wired::{MS, Wired, config, gradient, id};

const LENGTHS: [usize; 2] = [100, 28];
const N_VALUES: usize = 128;

fn bounded(staleness: u64, backup: usize, amount: Amount) -> Config {
    Config {
        waiting: Waiting::Bounded { staleness, backup },
        ..config(amount)
    }
}

struct Race {
    wired: Wired,
    /// Steps made, and milliseconds that one takes.
    steps: BTreeMap<u8, (u64, u64)>,
    most_ahead: u64,
}

impl Race {
    fn new(n: u8, config: Config, takes: impl Fn(u8) -> u64) -> Self {
        Self {
            wired: Wired::new(n, &LENGTHS, config),
            steps: (1..=n).map(|n| (n, (0, takes(n)))).collect(),
            most_ahead: 0,
        }
    }

    /// Each makes its steps at its own speed as far as it may.
    fn run(&mut self, ms: u64) {
        let until = self.wired.now + ms * MS;
        let weights = vec![1.0; N_VALUES];
        while self.wired.now < until {
            let now = self.wired.now / MS;
            for (n, (step, takes)) in &mut self.steps {
                let limit = self.wired.limits.get(&id(*n)).copied().unwrap_or(0);
                if now.is_multiple_of(*takes) && *step < limit {
                    let values = gradient(N_VALUES, *step * 100 + u64::from(*n));
                    self.wired.commit(*n, *step, &values, &weights);
                    *step += 1;
                }
            }
            let steps = || self.steps.values().map(|(step, _)| *step);
            let ahead = steps().max().unwrap() - steps().min().unwrap();
            self.most_ahead = self.most_ahead.max(ahead);
            self.wired.run((now + 1) * MS);
            if now.is_multiple_of(100) {
                self.wired.tick();
            }
        }
    }

    fn made(&self, n: u8) -> u64 {
        self.steps[&n].0
    }

    fn slowest(&self) -> u64 {
        self.steps.values().map(|(step, _)| *step).min().unwrap()
    }
}

#[test]
fn a_fast_peer_runs_ahead_by_the_bound_and_no_further() {
    for (staleness, amount) in [
        (0, Amount::Dense),
        (
            3,
            Amount::TopK {
                least: 0.1,
                most: 0.1,
            },
        ),
        (3, Amount::Significant { threshold: 0.5 }),
    ] {
        let mut race = Race::new(3, bounded(staleness, 0, amount), |n| 10 * u64::from(n * n));
        race.run(10_000);
        assert!(race.slowest() >= 80, "{} steps", race.slowest());
        assert_eq!(race.most_ahead, staleness + 1, "{amount:?}");
    }
}

#[test]
fn so_many_of_the_slowest_are_not_waited_for() {
    let mut race = Race::new(4, bounded(2, 1, Amount::Dense), |n| match n {
        4 => 5_000,
        _ => 20,
    });
    race.run(10_000);
    assert!(race.made(1) > 300, "{}", race.made(1));
    let mut race = Race::new(4, bounded(2, 0, Amount::Dense), |n| match n {
        4 => 5_000,
        _ => 20,
    });
    race.run(10_000);
    assert!(race.made(1) <= 5, "{}", race.made(1));
}

/// What a link without room was not told of the last step before a wait must be told later: all wait for each other otherwise.
#[test]
fn links_without_room_stop_nobody_for_good() {
    let mut race = Race::new(3, bounded(1, 0, Amount::Dense), |_| 10);
    for other in 2..=3 {
        race.wired.rates.insert((id(1), id(other)), 2_000.0);
        race.wired.rates.insert((id(other), id(1)), 3_000.0);
    }
    race.run(20_000);
    let before = race.slowest();
    assert!(before > 20, "{before}");
    race.wired.unanswered.insert((id(1), id(2)));
    race.run(20_000);
    race.wired.unanswered.clear();
    race.wired.refusing.insert((id(2), id(3)));
    race.run(1_000);
    race.wired.refusing.clear();
    let before = race.slowest();
    race.run(20_000);
    assert!(race.slowest() > before + 20, "{before} {}", race.slowest());
}

/// One that hears nothing of this peer is not waited for; the others hear of it as soon as ever.
#[test]
fn a_link_without_room_does_not_keep_the_step_from_the_others() {
    let mut race = Race::new(4, bounded(1, 1, Amount::Dense), |_| 10);
    race.run(1_000);
    for n in 1..=3 {
        race.wired.unanswered.insert((id(n), id(4)));
    }
    let before = race.made(1);
    race.run(5_000);
    assert!(race.made(1) >= before + 100, "{before} {}", race.made(1));
}

#[test]
fn a_member_that_stops_or_never_sends_holds_others_up_until_it_is_dropped() {
    for stops_at in [0, 50] {
        let mut race = Race::new(4, bounded(2, 0, Amount::Dense), |_| 20);
        race.run(stops_at * 20);
        // It is alive, and makes no more steps.
        race.steps.insert(4, (race.made(4), u64::MAX));
        race.run(5_000);
        let before = race.made(1);
        assert!(before <= race.made(4) + 3);
        race.wired.leave(4);
        race.steps.remove(&4);
        race.run(5_000);
        assert!(race.slowest() >= before + 200, "{}", race.slowest());
    }
}

/// Of many members each hears of its neighbours only.
#[test]
fn beyond_neighbours_nobody_is_waited_for_in_vain() {
    let mut race = Race::new(20, bounded(2, 0, Amount::Dense), |n| {
        10 + u64::from(n % 3) * 10
    });
    race.run(5_000);
    assert!(race.slowest() > 100, "{}", race.slowest());
    // The bound holds from neighbour to neighbour; the tree is not deeper than three.
    assert!(race.most_ahead <= 3 * 6, "{}", race.most_ahead);
}

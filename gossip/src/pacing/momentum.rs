//! The momentum that commits without waiting bring with them, and what is left to apply by hand.
//!
//! Updates that were computed from older parameters act like momentum. ADSP gives it as
//! `mu = 1 - 1 / (1 + (1 - 1/m) * sum_i Gamma / (dC_i * v_i))` (Hu, Wang, Wu, AAAI 2020): the seldomer the commits,
//! the more. Units: with v_i as the time that one step takes, each term is the number of steps in a commit, and m peers
//! that commit every step have 1 - 1/m, as asynchronous descent does. The authors' script takes Gamma / v_i = 0.05 for each of
//! 18 workers instead; whoever follows it scales v.

use std::time::Duration;

/// How one member commits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cadence {
    /// Commits per check period (dC_i); must be positive to count.
    pub commits: f64,
    /// v_i: seconds per step; must be positive to count.
    pub step_s: f64,
}

/// The implicit momentum of members that commit so over a check period `period`, 0 to 1. Members whose figures are not positive
/// and finite do not count.
pub fn implicit(period: Duration, members: &[Cadence]) -> f64 {
    let term = |member: &Cadence| period.as_secs_f64() / (member.commits * member.step_s);
    let sound =
        |member: &&Cadence| member.commits > 0.0 && member.step_s > 0.0 && term(member).is_finite();
    let (mut n, mut sum) = (0.0, 0.0);
    for member in members.iter().filter(sound) {
        n += 1.0;
        sum += term(member);
    }
    if n == 0.0 {
        return 0.0;
    }
    1.0 - 1.0 / (1.0 + (1.0 - 1.0 / n) * sum)
}

/// The explicit momentum to apply so that the whole comes near `total`: what the implicit one leaves, never below 0. A total
/// that is no momentum (not in 0 to 1) leaves nothing.
pub fn explicit_left(total: f64, implicit: f64) -> f64 {
    if !(0.0..1.0).contains(&total) || !implicit.is_finite() {
        return 0.0;
    }
    (total - implicit.max(0.0)).max(0.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn peers_that_commit_every_step_have_the_momentum_of_asynchronous_descent() {
        let every_step = Cadence {
            commits: 100.0,
            step_s: 0.1,
        };
        let momentum = implicit(Duration::from_secs(10), &[every_step; 4]);
        assert!((momentum - 0.75).abs() < 1e-12, "{momentum}");
    }

    #[test]
    fn the_figures_of_the_authors_script_come_out() {
        let at = |commits| {
            implicit(
                Duration::from_secs(1),
                &[Cadence {
                    commits,
                    step_s: 20.0,
                }; 18],
            )
        };
        for commits in [1.0, 5.0, 10.0] {
            let script = 1.0 - 1.0 / (1.0 + (17.0 / 18.0) * 18.0 * 0.05 / commits);
            assert!((at(commits) - script).abs() < 1e-12);
        }
        assert!(
            (at(5.0) - 0.15).abs() < 0.01,
            "their best, near five commits"
        );
    }

    #[test]
    fn a_lone_peer_has_none_and_what_is_left_is_never_negative() {
        assert_eq!(
            implicit(
                Duration::from_secs(1),
                &[Cadence {
                    commits: 1.0,
                    step_s: 0.1
                }]
            ),
            0.0
        );
        assert_eq!(explicit_left(0.9, 0.95), 0.0);
        assert!((explicit_left(0.9, 0.25) - 0.65).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn momentum_is_always_from_nothing_to_one(
            figures: Vec<(f64, f64)>, micros: u64, total: f64, other: f64
        ) {
            let members: Vec<_> = figures.into_iter().map(|(commits, step_s)| Cadence { commits, step_s }).collect();
            let momentum = implicit(Duration::from_micros(micros), &members);
            prop_assert!((0.0..=1.0).contains(&momentum), "{momentum}");
            prop_assert!((0.0..1.0).contains(&explicit_left(total, other)));
        }
    }
}

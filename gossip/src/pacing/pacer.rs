//! When one peer's next commit is due, so that over a check period all peers commit equally often and nobody waits.
//!
//! ADSP (Hu, Wang, Wu, AAAI 2020): all are to have made C_target commits by the end of a check period Gamma; peer i has made
//! c_i, so it commits `C_target - c_i` times in it, the later ones more often, and waits between two commits
//! `max(T_min, Gamma / (C_target - c_i) - O_i)`, O_i being what a commit takes. Training goes on throughout.
//!
//! In: the time, C_target from the search, how long commits took. Out: whether a commit is due. Contained: a C_target out of all
//! proportion (T_min bounds the rate, one commit per period the other side), a jump of time forwards (one commit, no burst) and
//! back (the wait begins anew), a commit that took absurdly long (counts as a check period).

use std::time::Duration;

use crate::time::Tick;

/// How many of the last commits the overhead is the mean of: enough to smooth a busy link, few enough to follow it.
const MEASURED: usize = 4;

/// The pace of one peer.
#[derive(Clone, Debug)]
pub struct Pacer {
    least: Duration,
    period: Duration,
    commits: u64,
    /// Commits wished in the present check period (dC_i).
    rate: u64,
    took: [Duration; MEASURED],
    n_took: usize,
    /// When the last commit was over.
    since: Tick,
}

impl Pacer {
    /// A peer that has made `commits` so far (a joiner begins with what the others have made, or it would commit without end to
    /// catch up), at one commit per `period` until it is told a target. `least` is T_min, the shortest wait between commits.
    pub fn new(now: Tick, commits: u64, period: Duration, least: Duration) -> Self {
        Self {
            least,
            period,
            commits,
            rate: 1,
            took: [Duration::ZERO; MEASURED],
            n_took: 0,
            since: now,
        }
    }

    /// A check period of `period` begins, by whose end all are to have made `commits` commits (C_target).
    pub fn target(&mut self, now: Tick, commits: u64, period: Duration) {
        self.since = self.since.min(now);
        self.period = period;
        self.rate = commits.saturating_sub(self.commits).max(1);
    }

    /// Whether to commit now, `steps` steps after the last commit: without a step there is nothing to hand over.
    pub fn due(&mut self, now: Tick, steps: u64) -> bool {
        self.since = self.since.min(now);
        steps > 0 && now >= self.next()
    }

    /// A commit is over that took `took`.
    pub fn committed(&mut self, now: Tick, took: Duration) {
        self.commits = self.commits.saturating_add(1);
        self.took[self.n_took % MEASURED] = took.min(self.period);
        self.n_took = self.n_took.wrapping_add(1);
        self.since = now;
    }

    /// When the next commit is due.
    pub fn next(&self) -> Tick {
        self.since + self.wait()
    }

    /// The wait between two commits.
    pub fn wait(&self) -> Duration {
        let share = self.period.div_f64(self.rate as f64);
        share.saturating_sub(self.overhead()).max(self.least)
    }

    /// What a commit takes, as the last few did (O_i).
    pub fn overhead(&self) -> Duration {
        let n = self.n_took.min(MEASURED);
        let sum: Duration = self.took[..n].iter().sum();
        sum.checked_div(n as u32).unwrap_or_default()
    }

    /// Commits made.
    pub fn commits(&self) -> u64 {
        self.commits
    }

    /// Commits wished in the present check period.
    pub fn rate(&self) -> u64 {
        self.rate
    }
}

/// C_target for the check period that begins: `per_period` more than the most that any member has made, but not beyond what the
/// slowest half have made by more than two periods' worth, so that one member's absurd count does not drive all others.
pub fn commits_wished(commits: &[u64], per_period: u32) -> u64 {
    let mut made = commits.to_vec();
    made.sort_unstable();
    let (Some(most), Some(median)) = (made.last(), made.get(made.len().saturating_sub(1) / 2))
    else {
        return u64::from(per_period);
    };
    let per_period = u64::from(per_period);
    let bound = median.saturating_add(per_period.saturating_mul(2));
    most.saturating_add(per_period).min(bound)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERIOD: Duration = Duration::from_secs(10);

    fn pacer(commits: u64) -> Pacer {
        Pacer::new(Tick(0), commits, PERIOD, Duration::from_millis(100))
    }

    /// Runs a check period with steps and commits of these lengths; returns the commits made.
    fn run(pacer: &mut Pacer, from: Tick, step: Duration, took: Duration) -> u64 {
        let before = pacer.commits();
        let (mut now, mut steps) = (from, 0);
        while now < from + PERIOD {
            now = now + step;
            steps += 1;
            if pacer.due(now, steps) {
                now = now + took;
                pacer.committed(now, took);
                steps = 0;
            }
        }
        pacer.commits() - before
    }

    #[test]
    fn fast_and_slow_peers_commit_equally_often() {
        let ms = Duration::from_millis;
        for (step, took) in [(ms(5), ms(20)), (ms(50), ms(400)), (ms(160), ms(50))] {
            let mut pacer = pacer(0);
            let mut target = 0;
            for period in 0..10u32 {
                target += 5;
                let from = Tick(0) + PERIOD * period;
                pacer.target(from, target, PERIOD);
                run(&mut pacer, from, step, took);
            }
            assert!(
                pacer.commits().abs_diff(target) <= 1,
                "{step:?}: {}",
                pacer.commits()
            );
        }
    }

    #[test]
    fn a_laggard_catches_up_and_one_that_is_ahead_still_commits_once() {
        let mut late = pacer(0);
        late.target(Tick(0), 10, PERIOD);
        assert_eq!(late.wait(), Duration::from_secs(1));
        assert!((9..=10).contains(&run(
            &mut late,
            Tick(0),
            Duration::from_millis(10),
            Duration::ZERO
        )));
        let mut ahead = pacer(50);
        ahead.target(Tick(0), 10, PERIOD);
        assert_eq!(ahead.rate(), 1);
        assert_eq!(ahead.wait(), PERIOD);
    }

    #[test]
    fn what_a_commit_takes_is_taken_off_the_wait() {
        let mut pacer = pacer(0);
        pacer.target(Tick(0), 5, PERIOD);
        pacer.committed(Tick(0), Duration::from_millis(400));
        pacer.committed(Tick(0), Duration::from_millis(600));
        assert_eq!(pacer.wait(), Duration::from_millis(1500));
        pacer.committed(Tick(0), Duration::MAX);
        assert_eq!(
            pacer.wait(),
            Duration::from_millis(100),
            "never below the least"
        );
    }

    #[test]
    fn jumps_of_time_make_one_commit_and_no_burst() {
        let mut pacer = pacer(0);
        pacer.target(Tick(0), 5, PERIOD);
        let hour = Tick(0) + Duration::from_secs(3600);
        assert!(pacer.due(hour, 9));
        pacer.committed(hour, Duration::ZERO);
        assert!(!pacer.due(hour + Duration::from_millis(1), 1));
        assert!(!pacer.due(Tick(5), 1), "back to the start");
        assert!(pacer.due(Tick(5) + PERIOD, 1));
        assert!(!pacer.due(Tick(5) + PERIOD, 0), "nothing to hand over");
    }

    #[test]
    fn one_absurd_count_does_not_drive_the_others() {
        assert_eq!(commits_wished(&[10, 9, 10], 5), 15);
        assert_eq!(commits_wished(&[10, 9, u64::MAX], 5), 20);
        assert_eq!(commits_wished(&[], 5), 5);
    }

    proptest! {
        #[test]
        fn the_wait_is_bounded_whatever_is_asked(
            calls in proptest::collection::vec((0..3u8, any::<u64>(), any::<u64>(), any::<u64>()), 0..30)
        ) {
            let mut pacer = pacer(3);
            for (call, now, a, b) in calls {
                match call {
                    0 => pacer.target(Tick(now), a, Duration::from_micros(b)),
                    1 => pacer.committed(Tick(now), Duration::from_micros(a)),
                    _ => { pacer.due(Tick(now), a); }
                }
                let most = pacer.period.max(pacer.least);
                prop_assert!(pacer.wait() >= pacer.least && pacer.wait() <= most);
            }
        }
    }
}

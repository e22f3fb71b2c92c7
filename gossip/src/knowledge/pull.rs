//! Direct knowledge transfer at one peer: whose parameters it pulls, when, and whether what came is merged.
//!
//! DLion (Hong, Chandra, HPDC 2021): every P the peer with the lowest recent training loss hands its parameters to the others,
//! who merge them, `w <- w + lambda (w_best - w)`. Here every peer decides by itself from the losses in beats:
//!
//! * its turn comes every [`Settings::period`], at a moment of its own, so that not all pull at once;
//! * at most [`Settings::uploads`] peers pull from one: the worst from the best, the next worst from the second best, and so on,
//!   by rank of loss, so that no talk is needed (beats differ a little in age, so this is a bound on the plan, not a promise);
//! * only if that peer is better by more than noise, and one pull at a time;
//! * gated: the driver evaluates the candidate and the own parameters on the same held-out samples, and only a better
//!   candidate is merged. The paper's form is `gated: false`.
//!
//! Losses are claims. One that no training loss can be never wins; a peer whose candidates were rejected or did not arrive is
//! passed over for 1, 2, 4 and so on periods, up to [`Settings::most_backoff`], so one that always claims to be best costs
//! ever less; what each peer's candidates were worth is counted to be shown ([`Pulls::dealings`]).
//!
//! | state | input | then |
//! | --- | --- | --- |
//! | `Idle` | `poll`, own turn, somebody better | `Fetching`, [`Output::Pull`] |
//! | `Fetching` | `fetched` whole, gated | `Judging`, [`Arrival::Judge`] |
//! | | `fetched` whole, not gated | `Idle`, [`Arrival::Merge`] |
//! | | `fetched` not | `Idle`, the peer backed off |
//! | `Judging` | `judged` better | `Idle`, [`Verdict::Merge`] |
//! | | `judged` no better | `Idle`, [`Verdict::Reject`], the peer backed off |
//! | either | [`Settings::patience`] is over | `Idle`, [`Output::GiveUp`], the peer backed off |
//!
//! An answer that nobody waits for is ignored.

use std::collections::BTreeMap;
use std::time::Duration;

use super::losses::Report;
use crate::ids::PeerId;
use crate::time::Tick;
use crate::view::MAX_MEMBERS;

/// How knowledge is transferred.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Time between two turns of one peer (P). The paper takes 100 steps; a copy costs a model's bytes.
    pub period: Duration,
    /// Share of the way that a merge goes towards the candidate (lambda). The paper's best is 0.75.
    pub weight: f32,
    /// Whether a candidate must be better on the receiver's held-out samples.
    pub gated: bool,
    /// Peers that pull from one in a period. 5 is the paper's best-to-all for its six.
    pub uploads: usize,
    /// The least gain in training loss, as a share of the own, that is worth a copy.
    pub least_gain_frac: f32,
    /// The gain must also be this many standard errors, the loss of one sample taken to vary as much as it is large.
    pub sure: f32,
    /// How long a fetch and its evaluation may take together.
    pub patience: Duration,
    /// The longest that a peer is passed over.
    pub most_backoff: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(20),
            weight: 0.75,
            gated: true,
            uploads: 5,
            least_gain_frac: 0.02,
            sure: 1.0,
            patience: Duration::from_secs(60),
            most_backoff: Duration::from_secs(1200),
        }
    }
}

/// What the driver is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Fetch the parameters of `from` at the lowest priority, then report `fetched`.
    Pull {
        /// Whose.
        from: PeerId,
    },
    /// Drop what was fetched or evaluated of `from`: it took too long.
    GiveUp {
        /// Whose.
        from: PeerId,
    },
}

/// What to do with parameters that have arrived.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// Evaluate them and the own ones on the same held-out samples, then report `judged`.
    Judge,
    /// Merge them with this weight.
    Merge {
        /// Share of the way, 0 to 1.
        weight: f32,
    },
    /// Drop them.
    Ignore,
}

/// What becomes of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Merge it with this weight: the setting, or 1 if the own parameters are of no use.
    Merge {
        /// Share of the way, 0 to 1.
        weight: f32,
    },
    /// Drop it.
    Reject,
}

/// What one peer's candidates were worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dealings {
    /// Candidates merged.
    pub merged: u64,
    /// Candidates no better than one's own.
    pub rejected: u64,
    /// Fetches that failed or took too long.
    pub failed: u64,
    /// Rejected or failed since the last that was merged.
    pub in_a_row: u32,
    /// Passed over until then.
    pub not_before: Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Fetching { from: PeerId, until: Tick },
    Judging { from: PeerId, until: Tick },
}

/// Why a candidate came to nothing.
enum Failure {
    Rejected,
    Failed,
}

/// The knowledge transfer of one peer.
#[derive(Clone, Debug)]
pub struct Pulls {
    settings: Settings,
    me: PeerId,
    next: Tick,
    state: State,
    dealings: BTreeMap<PeerId, Dealings>,
}

impl Pulls {
    /// The pulls of `me`; `seed` (of the job) spreads the peers' turns over the period.
    pub fn new(settings: Settings, now: Tick, me: PeerId, seed: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes());
        hasher.update(&me.0);
        let [a, b, c, d, ..] = *hasher.finalize().as_bytes();
        let turn_frac = f64::from(u32::from_le_bytes([a, b, c, d])) / f64::from(u32::MAX);
        Self {
            settings,
            me,
            next: now + settings.period.mul_f64(turn_frac),
            state: State::Idle,
            dealings: BTreeMap::new(),
        }
    }

    /// Decides with the own report and those of the other live members. To be called at every beat, or at
    /// [`Pulls::next_due`].
    pub fn poll(&mut self, now: Tick, own: Report, others: &[(PeerId, Report)]) -> Option<Output> {
        if let State::Fetching { from, until } | State::Judging { from, until } = self.state {
            if now < until {
                return None;
            }
            self.fail(now, from, Failure::Failed);
            return Some(Output::GiveUp { from });
        }
        if now < self.next {
            return None;
        }
        // Turns that were missed are not made up for; the moment within the period stays.
        let period = self.settings.period.max(Duration::from_micros(1));
        let missed = now.since(self.next).as_micros() / period.as_micros();
        let turns = u32::try_from(missed).unwrap_or(u32::MAX).saturating_add(1);
        self.next = self.next + period.saturating_mul(turns);
        let from = self.choose(now, own, others)?;
        let until = now + self.settings.patience;
        self.state = State::Fetching { from, until };
        Some(Output::Pull { from })
    }

    /// The fetch from `from` has ended; `whole`: its parameters are here, of the right length and all finite.
    pub fn fetched(&mut self, now: Tick, from: PeerId, whole: bool) -> Arrival {
        let State::Fetching {
            from: expected,
            until,
        } = self.state
        else {
            return Arrival::Ignore;
        };
        if from != expected {
            return Arrival::Ignore;
        }
        if !whole {
            self.fail(now, from, Failure::Failed);
            return Arrival::Ignore;
        }
        if self.settings.gated {
            self.state = State::Judging { from, until };
            return Arrival::Judge;
        }
        self.succeed(now, from);
        Arrival::Merge {
            weight: self.settings.weight,
        }
    }

    /// The candidate was evaluated: mean losses of the own parameters and of the candidate on the same held-out samples.
    pub fn judged(&mut self, now: Tick, own_loss: f32, candidate_loss: f32) -> Verdict {
        let State::Judging { from, .. } = self.state else {
            return Verdict::Reject;
        };
        let usable = candidate_loss.is_finite() && candidate_loss >= 0.0;
        if !usable || (own_loss.is_finite() && candidate_loss >= own_loss) {
            self.fail(now, from, Failure::Rejected);
            return Verdict::Reject;
        }
        self.succeed(now, from);
        let weight = if own_loss.is_finite() {
            self.settings.weight
        } else {
            1.0
        };
        Verdict::Merge { weight }
    }

    /// Whether a candidate is on its way, or being judged.
    pub fn is_busy(&self) -> bool {
        self.state != State::Idle
    }

    /// When `poll` has something to decide at the earliest.
    pub fn next_due(&self) -> Tick {
        match self.state {
            State::Idle => self.next,
            State::Fetching { until, .. } | State::Judging { until, .. } => until,
        }
    }

    /// What the candidates of each peer were worth, ascending by peer.
    pub fn dealings(&self) -> impl Iterator<Item = (PeerId, &Dealings)> {
        self.dealings
            .iter()
            .map(|(peer, dealings)| (*peer, dealings))
    }

    fn choose(&self, now: Tick, own: Report, others: &[(PeerId, Report)]) -> Option<PeerId> {
        let rank = |peer: PeerId, report: Report| (claimed(report), peer);
        let mine = rank(self.me, own);
        let worse = others
            .iter()
            .filter(|(peer, report)| is_below(mine, rank(*peer, *report)));
        let place = worse.count() / self.settings.uploads.max(1);
        let mut sources: Vec<(f32, PeerId)> = others
            .iter()
            .filter(|(peer, report)| {
                *peer != self.me && report.is_plausible() && !self.is_backed_off(now, *peer)
            })
            .map(|(peer, report)| rank(*peer, *report))
            .collect();
        sources.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        let (_, from) = sources.get(place)?;
        let (_, theirs) = others.iter().find(|(peer, _)| peer == from)?;
        self.is_better(*theirs, own).then_some(*from)
    }

    fn is_backed_off(&self, now: Tick, peer: PeerId) -> bool {
        self.dealings
            .get(&peer)
            .is_some_and(|dealings| now < dealings.not_before)
    }

    /// Whether a plausible report is better than the own one by more than noise.
    fn is_better(&self, theirs: Report, own: Report) -> bool {
        if !own.is_plausible() {
            return true;
        }
        let variance = 1.0 / theirs.n_samples as f32 + 1.0 / own.n_samples as f32;
        let noise = self.settings.sure * variance.sqrt();
        own.train_loss - theirs.train_loss
            > own.train_loss * noise.max(self.settings.least_gain_frac)
    }

    fn succeed(&mut self, now: Tick, from: PeerId) {
        self.state = State::Idle;
        let dealings = self.dealings_with(from);
        dealings.merged = dealings.merged.saturating_add(1);
        dealings.in_a_row = 0;
        dealings.not_before = now;
    }

    fn fail(&mut self, now: Tick, from: PeerId, failure: Failure) {
        self.state = State::Idle;
        let Settings {
            period,
            most_backoff,
            ..
        } = self.settings;
        let dealings = self.dealings_with(from);
        let count = match failure {
            Failure::Rejected => &mut dealings.rejected,
            Failure::Failed => &mut dealings.failed,
        };
        *count = count.saturating_add(1);
        let periods = 1u32.checked_shl(dealings.in_a_row).unwrap_or(u32::MAX);
        dealings.in_a_row = dealings.in_a_row.saturating_add(1);
        dealings.not_before = now + period.saturating_mul(periods).min(most_backoff);
    }

    fn dealings_with(&mut self, peer: PeerId) -> &mut Dealings {
        if self.dealings.len() >= MAX_MEMBERS && !self.dealings.contains_key(&peer) {
            // Whoever is passed over the least is forgotten first, so that leaving and coming back clears no record soon.
            let least = self
                .dealings
                .iter()
                .min_by_key(|(_, dealings)| dealings.not_before);
            if let Some(forgotten) = least.map(|(peer, _)| *peer) {
                self.dealings.remove(&forgotten);
            }
        }
        self.dealings.entry(peer).or_default()
    }
}

/// The loss to rank by: whoever says nothing plausible is worst.
fn claimed(report: Report) -> f32 {
    if report.is_plausible() {
        report.train_loss
    } else {
        f32::INFINITY
    }
}

fn is_below(mine: (f32, PeerId), other: (f32, PeerId)) -> bool {
    mine.0
        .total_cmp(&other.0)
        .then_with(|| mine.1.cmp(&other.1))
        .is_lt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer(id: u8) -> PeerId {
        PeerId([id; 32])
    }

    fn report(train_loss: f32) -> Report {
        Report {
            train_loss,
            n_samples: 10_000,
        }
    }

    fn second(second: u64) -> Tick {
        Tick(0) + Duration::from_secs(second)
    }

    /// What `me` (the id) does at its first turn in a mesh with these losses, ids from 1.
    fn first_pull(settings: Settings, me: u8, losses: &[f32]) -> Option<PeerId> {
        let others: Vec<_> = (1..)
            .zip(losses)
            .filter(|(id, _)| *id != me)
            .map(|(id, loss)| (peer(id), report(*loss)))
            .collect();
        let mut pulls = Pulls::new(settings, Tick(0), peer(me), 1);
        match pulls.poll(second(20), report(losses[usize::from(me) - 1]), &others) {
            Some(Output::Pull { from }) => Some(from),
            other => {
                assert_eq!(other, None);
                None
            }
        }
    }

    #[test]
    fn everybody_pulls_from_the_best_if_that_is_better_by_more_than_noise() {
        let losses = [0.50, 0.30, 0.303, 0.9];
        let pulls = [1, 2, 3, 4].map(|me| first_pull(Settings::default(), me, &losses));
        assert_eq!(pulls, [Some(peer(2)), None, None, Some(peer(2))]);
        let few_samples = Report {
            train_loss: 0.30,
            n_samples: 4,
        };
        let mut unsure = Pulls::new(Settings::default(), Tick(0), peer(1), 1);
        assert_eq!(
            unsure.poll(second(20), report(0.5), &[(peer(2), few_samples)]),
            None
        );
    }

    #[test]
    fn no_peer_is_pulled_from_by_more_than_its_uploads() {
        let settings = Settings {
            uploads: 2,
            ..Settings::default()
        };
        let losses: Vec<f32> = (1..=9).map(|id| id as f32 * 0.1).collect();
        let mut n_pulls = BTreeMap::new();
        for me in 1..=9 {
            if let Some(from) = first_pull(settings, me, &losses) {
                *n_pulls.entry(from).or_insert(0) += 1;
            }
        }
        assert_eq!(
            n_pulls,
            BTreeMap::from([(peer(1), 2), (peer(2), 2), (peer(3), 2)])
        );
    }

    #[test]
    fn turns_are_spread_over_the_period_and_come_once_in_it() {
        let period = Settings::default().period;
        let mut turns: Vec<Tick> = (1..=32)
            .map(|id| Pulls::new(Settings::default(), Tick(0), peer(id), 5).next_due())
            .collect();
        turns.sort();
        assert!(turns.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(
            turns[0] < Tick(0) + period / 4
                && turns[31] > Tick(0) + period * 3 / 4
                && turns[31] <= Tick(0) + period
        );
        let mut pulls = Pulls::new(Settings::default(), Tick(0), peer(1), 5);
        let mut n_pulls = 0;
        for now in 0..200 {
            if let Some(Output::Pull { from }) =
                pulls.poll(second(now), report(1.0), &[(peer(2), report(0.5))])
            {
                n_pulls += 1;
                assert_eq!(
                    pulls.poll(second(now), report(1.0), &[(peer(3), report(0.1))]),
                    None,
                    "one at a time"
                );
                assert_eq!(pulls.fetched(second(now), from, true), Arrival::Judge);
                assert_eq!(
                    pulls.judged(second(now), 1.0, 0.5),
                    Verdict::Merge { weight: 0.75 }
                );
            }
        }
        assert_eq!(n_pulls, 10);
        let hours = second(36_000);
        assert!(
            pulls
                .poll(hours, report(1.0), &[(peer(2), report(0.5))])
                .is_some()
        );
        assert!(pulls.next_due() > hours, "missed turns are not made up for");
    }

    #[test]
    fn a_liar_that_always_claims_to_be_best_costs_ever_less_and_does_not_hide_the_best() {
        let mut pulls = Pulls::new(Settings::default(), Tick(0), peer(1), 1);
        let mesh = [
            (peer(2), report(1e-9)),
            (peer(3), report(0.5)),
            (peer(4), report(0.8)),
        ];
        for now in 0..7200 {
            if let Some(Output::Pull { from }) = pulls.poll(second(now), report(1.0), &mesh) {
                assert_eq!(pulls.fetched(second(now), from, true), Arrival::Judge);
                let candidate = if from == peer(2) { 3.0 } else { 0.5 };
                pulls.judged(second(now), 1.0, candidate);
            }
        }
        let dealings: BTreeMap<PeerId, Dealings> = pulls
            .dealings()
            .map(|(peer, dealings)| (peer, *dealings))
            .collect();
        let (liar, best) = (dealings[&peer(2)], dealings[&peer(3)]);
        assert_eq!(liar.merged, 0);
        assert!((6..=13).contains(&liar.rejected), "{liar:?}");
        assert!(best.merged > 300 && best.rejected == 0, "{best:?}");
    }

    #[test]
    fn losses_that_cannot_be_never_win() {
        for absurd in [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -1.0, 1e30] {
            assert_eq!(
                first_pull(Settings::default(), 1, &[0.5, absurd]),
                None,
                "{absurd}"
            );
            assert_eq!(
                first_pull(Settings::default(), 1, &[absurd, 0.5]),
                Some(peer(2)),
                "own {absurd}"
            );
        }
        let no_samples = Report {
            train_loss: 0.1,
            n_samples: 0,
        };
        let mut pulls = Pulls::new(Settings::default(), Tick(0), peer(1), 1);
        assert_eq!(
            pulls.poll(second(20), report(0.5), &[(peer(2), no_samples)]),
            None
        );
    }

    fn judged(own: f32, candidate: f32) -> Verdict {
        let mut pulls = Pulls::new(Settings::default(), Tick(0), peer(1), 1);
        pulls.poll(second(20), report(1.0), &[(peer(2), report(0.5))]);
        pulls.fetched(second(21), peer(2), true);
        pulls.judged(second(22), own, candidate)
    }

    #[test]
    fn the_gate_lets_through_what_is_better_on_held_out_samples() {
        assert_eq!(judged(1.0, 0.9), Verdict::Merge { weight: 0.75 });
        assert_eq!(
            judged(f32::NAN, 0.9),
            Verdict::Merge { weight: 1.0 },
            "the own is of no use"
        );
        for candidate in [1.0, 1.1, f32::NAN, f32::INFINITY, -0.1] {
            assert_eq!(judged(1.0, candidate), Verdict::Reject, "{candidate}");
        }
        let mut ungated = Pulls::new(
            Settings {
                gated: false,
                ..Settings::default()
            },
            Tick(0),
            peer(1),
            1,
        );
        ungated.poll(second(20), report(1.0), &[(peer(2), report(0.5))]);
        assert_eq!(
            ungated.fetched(second(21), peer(2), true),
            Arrival::Merge { weight: 0.75 }
        );
    }

    #[test]
    fn a_fetch_that_fails_or_never_ends_is_given_up_and_late_answers_are_ignored() {
        let others = [(peer(2), report(0.5))];
        let mut pulls = Pulls::new(Settings::default(), Tick(0), peer(1), 1);
        assert_eq!(
            pulls.fetched(second(1), peer(2), true),
            Arrival::Ignore,
            "nothing was asked"
        );
        assert_eq!(pulls.judged(second(1), 1.0, 0.1), Verdict::Reject);
        pulls.poll(second(20), report(1.0), &others).unwrap();
        assert_eq!(
            pulls.fetched(second(21), peer(9), true),
            Arrival::Ignore,
            "somebody else"
        );
        assert_eq!(
            pulls.poll(second(80), report(1.0), &others),
            Some(Output::GiveUp { from: peer(2) })
        );
        assert_eq!(pulls.fetched(second(81), peer(2), true), Arrival::Ignore);
        pulls.poll(second(120), report(1.0), &others).unwrap();
        assert_eq!(pulls.fetched(second(121), peer(2), false), Arrival::Ignore);
        let (_, dealings) = pulls.dealings().next().unwrap();
        assert_eq!(
            (dealings.failed, dealings.in_a_row, dealings.rejected),
            (2, 2, 0)
        );
        assert_eq!(dealings.not_before, second(161), "two periods");
    }

    proptest! {
        #[test]
        fn whatever_comes_one_pull_is_out_at_a_time_and_never_from_oneself(
            calls in proptest::collection::vec((0..3u8, any::<u32>(), any::<f32>(), any::<f32>(), 0..4u8), 0..60),
            uploads in 0..3usize,
            period in 0..40u64,
        ) {
            let settings = Settings { uploads, period: Duration::from_secs(period), ..Settings::default() };
            let mut pulls = Pulls::new(settings, Tick(0), peer(1), 3);
            let mut now = Tick(0);
            let mut out = None;
            for (call, gap, a, b, id) in calls {
                now = now + Duration::from_micros(u64::from(gap) / 16);
                match call {
                    0 => {
                        let others = [(peer(1), report(a)), (peer(2), report(b)), (peer(3), report(a * b))];
                        match pulls.poll(now, report(a), &others) {
                            Some(Output::Pull { from }) => {
                                prop_assert!(out.is_none() && from != peer(1));
                                out = Some(from);
                            }
                            Some(Output::GiveUp { from }) => prop_assert_eq!(out.take(), Some(from)),
                            None => {}
                        }
                    }
                    1 => {
                        if pulls.fetched(now, peer(id), a > 0.0) == Arrival::Judge {
                            prop_assert_eq!(out, Some(peer(id)));
                        }
                        if matches!(pulls.state, State::Idle) { out = None; }
                    }
                    _ => {
                        let verdict = pulls.judged(now, a, b);
                        prop_assert!(verdict == Verdict::Reject || b.is_finite());
                        if matches!(pulls.state, State::Idle) { out = None; }
                    }
                }
            }
        }
    }
}

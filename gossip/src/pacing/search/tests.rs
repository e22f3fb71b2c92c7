//! The search on synthetic meshes whose best rate is known, and on states that nobody should send.

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;

/// A mesh whose loss falls at a rate that depends on the commits as a shallow U in their logarithm does.
struct Mesh {
    best: f64,
    /// How much slower a rate four times off is.
    depth: f64,
    inverse: f64,
    floor: f64,
    noise: f64,
    rng: ChaCha8Rng,
}

impl Mesh {
    fn new(best: f64, depth: f64, floor: f64, noise: f64, seed: u64) -> Self {
        Self {
            best,
            depth,
            inverse: 1.0 / (2.3 - floor),
            floor,
            noise,
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    fn slowness(&self, commits: u32) -> f64 {
        let octaves = (f64::from(commits) / self.best).log2();
        1.0 + self.depth * (octaves / 2.0).powi(2)
    }

    fn train(&mut self, commits: u32, for_s: f64) {
        self.inverse += 0.02 * for_s / self.slowness(commits);
    }

    fn train_loss(&mut self) -> f32 {
        let uniform = |rng: &mut ChaCha8Rng| f64::from(rng.next_u32()) / f64::from(u32::MAX);
        let normal = (0..12).map(|_| uniform(&mut self.rng)).sum::<f64>() - 6.0;
        ((self.floor + 1.0 / self.inverse) * (1.0 + self.noise * normal)) as f32
    }
}

const BEAT: Duration = Duration::from_millis(250);

/// Searches until the first hold; returns the rate held and the periods that took.
fn found(settings: Settings, mut mesh: Mesh) -> (u32, f64) {
    let mut search = Search::new(settings, Tick(0), 1);
    let mut now = Tick(0);
    loop {
        let loss = mesh.train_loss();
        let commits = search.advance(now, Some(loss), None);
        if matches!(search.state().phase, Phase::Hold { .. }) {
            return (commits, now.0 as f64 / micros(settings.period) as f64);
        }
        mesh.train(commits, BEAT.as_secs_f64());
        now = now + BEAT;
    }
}

/// How many of the searches end within a factor of two of the best rate, and their mean length in periods.
fn score(settings: Settings, depth: f64, floor: f64, noise: f64) -> (f64, f64) {
    let (mut n, mut within, mut periods) = (0.0, 0.0, 0.0);
    for best in [1.0, 2.0, 5.0, 12.0, 30.0] {
        for seed in 0..20 {
            let (commits, took) = found(settings, Mesh::new(best, depth, floor, noise, seed));
            let ratio = f64::from(commits) / best;
            n += 1.0;
            within += f64::from(u8::from((0.5..=2.0).contains(&ratio)));
            periods += took;
        }
    }
    (within / n, periods / n)
}

#[test]
fn the_search_ends_within_a_factor_of_two_of_the_best_rate() {
    // Measured: (1.00, 5.2), (1.00, 5.8), (0.98, 5.7), (0.87, 5.7), (1.00, 5.5).
    for (depth, floor, noise, least) in [
        (0.2, 0.0, 0.0, 1.0),
        (0.2, 0.2, 0.0, 1.0),
        (0.2, 0.0, 0.01, 0.93),
        (0.2, 0.2, 0.01, 0.8),
        (0.6, 0.2, 0.01, 0.95),
    ] {
        let (within, periods) = score(Settings::default(), depth, floor, noise);
        assert!(
            within >= least && periods < 7.0,
            "depth {depth}, floor {floor}, noise {noise}: {within} after {periods} periods"
        );
    }
}

#[test]
fn without_noise_the_papers_search_takes_longer_and_with_noise_it_goes_astray() {
    let paper = Settings {
        period: Settings::default().period,
        ..Settings::paper()
    };
    let measured = |settings, noise| score(settings, 0.2, 0.0, noise);
    let (papers, papers_periods) = measured(paper, 0.0);
    let (ours, periods) = measured(Settings::default(), 0.0);
    assert!(
        papers == 1.0 && ours == 1.0 && periods < papers_periods,
        "{periods} {papers_periods}"
    );
    let [papers, ours] = [paper, Settings::default()].map(|settings| measured(settings, 0.01).0);
    assert!(ours > papers + 0.3, "1 % of noise: {ours} {papers}");
    let doubling = Settings {
        stride: Stride::Double,
        ..paper
    };
    let fitted = measured(doubling, 0.01).0;
    let above_zero = measured(
        Settings {
            floor: Floor::At(0.0),
            ..doubling
        },
        0.01,
    )
    .0;
    assert!(
        above_zero > fitted + 0.15,
        "what the known floor is worth: {above_zero} {fitted}"
    );
}

#[test]
fn measuring_the_held_rate_again_is_worth_it_where_the_floor_is_not_known() {
    let without = Settings {
        again: false,
        ..Settings::default()
    };
    let [without, with] =
        [without, Settings::default()].map(|settings| score(settings, 0.2, 0.2, 0.01).0);
    assert!(with > without + 0.05, "{with} {without}");
}

/// Runs a mesh for so many beats; `takes_over` says before which of them the steward dies and another goes on.
fn rates(beats: u32, takes_over: impl Fn(u32) -> bool) -> Vec<u32> {
    let settings = Settings::default();
    let mut mesh = Mesh::new(5.0, 0.4, 0.1, 0.01, 3);
    let (mut clock, mut search) = (0, Search::new(settings, Tick(0), 1));
    let mut rates = Vec::new();
    for beat in 0..beats {
        let now = Tick(u64::from(beat) * micros(BEAT));
        if takes_over(beat) {
            // The successor's clock began elsewhere; it saw the last beat when it was sent.
            let bytes = crate::wire::codec::encode(search.state());
            let seen = Tick(now.0.saturating_sub(micros(BEAT)) + clock);
            clock += 777_777;
            let seen = Tick(seen.0 + 777_777);
            search = Search::resume(settings, seen, crate::wire::codec::decode(&bytes).unwrap())
                .unwrap();
        }
        let loss = mesh.train_loss();
        let commits = search.advance(Tick(now.0 + clock), Some(loss), None);
        mesh.train(commits, BEAT.as_secs_f64());
        rates.push(commits);
    }
    rates
}

#[test]
fn killing_the_steward_again_and_again_changes_nothing() {
    let undisturbed = rates(2000, |_| false);
    assert!(
        undisturbed
            .iter()
            .collect::<std::collections::BTreeSet<_>>()
            .len()
            >= 3,
        "it did search"
    );
    assert_eq!(rates(2000, |beat| beat > 0 && beat % 17 == 0), undisturbed);
}

fn held(commits: u32, loss: f32) -> Search {
    let mut state = SearchState::new(commits);
    state.phase = Phase::Hold {
        unchecked_us: 0,
        checked_loss: Some(loss),
    };
    Search::resume(Settings::default(), Tick(0), state).unwrap()
}

fn is_trying(search: &Search) -> bool {
    matches!(search.state().phase, Phase::Try { .. })
}

#[test]
fn a_loss_that_has_risen_starts_a_search_and_so_does_time() {
    let second = Duration::from_secs(1);
    let mut search = held(4, 1.0);
    for i in 1..=10 {
        search.advance(Tick(0) + second * i, Some(1.29), None);
    }
    assert!(!is_trying(&search), "not by 30 %");
    for i in 11..=20 {
        search.advance(Tick(0) + second * i, Some(1.7), None);
    }
    assert!(is_trying(&search));
    let mut search = held(4, 1.0);
    for i in 1..200 {
        assert_eq!(search.advance(Tick(0) + second * i, Some(1.0), None), 4);
        assert!(!is_trying(&search));
    }
    search.advance(Tick(0) + second * 200, Some(1.0), None);
    assert!(is_trying(&search));
}

#[test]
fn the_links_cap_the_rate_at_once() {
    let mut search = held(16, 1.0);
    assert_eq!(search.advance(Tick(1), Some(1.0), Some(5)), 5);
    search.begin();
    let mut mesh = Mesh::new(30.0, 0.6, 0.0, 0.0, 1);
    for beat in 1..400 {
        let loss = mesh.train_loss();
        let commits = search.advance(Tick(0) + BEAT * beat, Some(loss), Some(5));
        assert!(commits <= 5);
        mesh.train(commits, BEAT.as_secs_f64());
    }
    assert_eq!(search.state().held, 5);
}

#[test]
fn a_gap_begins_the_try_anew_and_a_mesh_that_says_nothing_settles() {
    let mut search = Search::new(Settings::default(), Tick(0), 3);
    search.advance(Tick(0), Some(2.0), None);
    let turn = search.state().turn;
    search.advance(Tick(0) + Duration::from_secs(3600), Some(0.1), None);
    assert!(search.state().turn > turn);
    assert!(matches!(&search.state().phase, Phase::Try { samples, .. } if samples.len() == 1));
    let mut silent = Search::new(Settings::default(), Tick(0), 3);
    for second in 0..150 {
        silent.advance(
            Tick(0) + Duration::from_secs(second),
            [None, Some(f32::NAN)][second as usize % 2],
            None,
        );
    }
    assert!(!is_trying(&silent));
    assert_eq!(silent.state().held, 3);
}

fn again(commits: u32) -> Direction {
    let reward = Reward {
        per_s: f64::from(commits) - 9.0,
        error: 0.1,
    };
    Direction::Again {
        commits: commits / 2,
        reward,
    }
}

fn any_state() -> impl Strategy<Value = SearchState> {
    let samples = proptest::collection::vec((0u64..20_000_000, any::<f32>()), 0..40);
    let phase = (any::<bool>(), any::<u32>(), 0..4u8, samples).prop_map(
        |(holds, commits, direction, mut raw)| {
            raw.sort_by_key(|(at_us, _)| *at_us);
            let samples = raw.into_iter().map(|(at_us, train_loss)| Sample {
                at_us,
                train_loss: train_loss.abs(),
            });
            match holds {
                true => Phase::Hold {
                    unchecked_us: u64::from(commits),
                    checked_loss: None,
                },
                false => Phase::Try {
                    commits: commits % 5000,
                    direction: [
                        Direction::Same,
                        Direction::Up,
                        Direction::Down,
                        again(commits),
                    ][usize::from(direction)],
                    samples: samples.collect(),
                },
            }
        },
    );
    let numbers = (
        any::<u64>(),
        0..5000u32,
        any::<Option<(f64, f64)>>(),
        any::<Option<f32>>(),
        any::<bool>(),
        any::<u64>(),
    );
    (numbers, phase).prop_map(
        |((turn, held, reward, began_at_loss, climbed, elapsed_us), phase)| SearchState {
            turn,
            held,
            reward: reward.map(|(per_s, error)| Reward { per_s, error }),
            began_at_loss,
            climbed,
            elapsed_us,
            phase,
        },
    )
}

proptest! {
    #[test]
    fn a_state_from_anybody_is_refused_or_keeps_the_rate_in_bounds(
        state in any_state(),
        beats in proptest::collection::vec((any::<u32>(), any::<Option<f32>>(), any::<Option<u32>>()), 0..60),
    ) {
        prop_assert!((1..=MAX_COMMITS).contains(&state.commits()));
        let Ok(mut search) = Search::resume(Settings::default(), Tick(0), state) else {
            return Ok(());
        };
        let mut now = Tick(0);
        for (gap, loss, cap) in beats {
            now = now + Duration::from_micros(u64::from(gap) / 512);
            let commits = search.advance(now, loss, cap);
            prop_assert!((1..=MAX_COMMITS).contains(&commits));
            prop_assert_eq!(search.state().validate(), Ok(()));
            prop_assert!(crate::wire::codec::encode(search.state()).len() < 600);
        }
    }
}

//! Peers are killed at every kind of moment.

use crate::network::{MS, SECOND};
use crate::seeds;
use crate::world::{Event, Point, World, id};

#[test]
fn peers_train_and_end_with_the_model_that_one_alone_would_have_made() {
    for seed in seeds(10) {
        for n in 1..=6 {
            let mut world = World::started(seed, n, 1, 30);
            world.line_every = 1 + seed % 3;
            world.run_to_the_end(10 * SECOND);
            world.check_exact();
            assert_eq!(world.refused, 0, "seed {seed}, {n} peers");
            assert_eq!(
                world.steps_made, 30,
                "seed {seed}, {n} peers: none is made twice"
            );
        }
    }
}

#[test]
fn a_peer_killed_at_any_time_is_not_missed_in_the_result() {
    for seed in seeds(100) {
        let n = 2 + (seed % 4) as u8;
        let mut world = World::started(seed, n, 2, 40);
        world.line_every = 1 + seed / 4 % 3;
        let victim = id(1 + (seed / 3 % u64::from(n)) as u8);
        let at = world.between(200, 2500) * MS;
        world.at(at, Event::Kill(victim));
        world.run_to_the_end(20 * SECOND);
        world.check_exact();
    }
}

/// The points that an undisturbed run passes.
fn points(seed: u64, steps: u64) -> Vec<(skein_gossip::ids::PeerId, Point, u64)> {
    let mut world = World::started(seed, 3, 2, steps);
    world.run_to_the_end(10 * SECOND);
    let mut points = Vec::new();
    for ((peer, point), times) in &world.passed {
        let few = (*times).min(6);
        points.extend((0..few).map(|i| {
            (
                *peer,
                *point,
                1 + i * (times - 1) / few.max(2).saturating_sub(1),
            )
        }));
    }
    points.sort_unstable();
    points.dedup();
    points
}

#[test]
fn a_peer_killed_after_any_transition_is_not_missed_in_the_result() {
    for seed in seeds(1) {
        let points = points(seed, 12);
        assert!(points.len() >= 50, "{}", points.len());
        for point in points {
            let mut world = World::started(seed, 3, 2, 12);
            world.kill_points.push(point);
            world.run_to_the_end(20 * SECOND);
            world.check_exact();
            assert_eq!(world.kills.len(), 1, "{point:?} of seed {seed}");
        }
    }
}

//! Tiers: one peer hosts all stages, others the first ones, and where only some hold the data one of them is the source of raw
//! samples. As in all hybrids every sample is counted once, whoever dies.

use skein_gossip::pipeline::agreement::Cutting;

use crate::network::{MS, SECOND};
use crate::seeds;
use crate::world::{Event, Point, World, id};

/// `n` peers, of which `n_data` hold the data.
fn started(seed: u64, n: u8, n_data: u8, steps: u64) -> World {
    let mut world = World::started(seed, n, n_data, steps);
    (world.rows, world.tiers) = (8, true);
    world.config.rows = 8;
    world.config.is_exact = false;
    world.line_every = 1 + seed / 4 % 3;
    world
}

#[test]
fn tiers_train_what_one_peer_trains() {
    for seed in seeds(10) {
        for (n, n_data) in [(1, 1), (2, 2), (2, 1), (3, 3), (3, 1), (4, 2), (5, 5)] {
            let mut world = started(seed, n, n_data, 30);
            world.run_to_the_end(30 * SECOND);
            world.check_exact();
            assert_eq!(world.refused, 0, "seed {seed}, {n} peers");
            assert_eq!(world.steps_made, 30, "none is made twice");
            let plan = &world.view_of(1).unwrap().plan;
            let has_source = plan.stages[0].is_source();
            assert_eq!(has_source, n_data < n.min(3), "{plan:?}");
            let n_stages = usize::from(n.min(3)) + usize::from(has_source);
            assert_eq!(plan.stages.len(), n_stages, "{plan:?}");
            let whole = plan.hosts().last().unwrap();
            assert_eq!(plan.blocks_of(whole), Some(0..8), "{plan:?}");
        }
    }
}

/// The points that an undisturbed run passes.
fn points(n_data: u8) -> Vec<(skein_gossip::ids::PeerId, Point, u64)> {
    let mut world = started(3, 4, n_data, 8);
    world.run_to_the_end(20 * SECOND);
    let each = world.passed.iter().flat_map(|((peer, point), times)| {
        let few = (*times).min(4);
        (0..few).map(move |i| {
            (
                *peer,
                *point,
                1 + i * (times - 1) / few.max(2).saturating_sub(1),
            )
        })
    });
    let mut points: Vec<_> = each.collect();
    points.sort_unstable();
    points.dedup();
    points
}

#[test]
fn whoever_is_killed_after_any_transition_is_not_missed_in_the_result() {
    for n_data in [2, 4] {
        let points = points(n_data);
        assert!(points.len() >= 100, "{}", points.len());
        for point in points {
            let mut world = started(3, 4, n_data, 8);
            world.kill_points.push(point);
            world.run_to_the_end(30 * SECOND);
            world.check_exact();
            assert_eq!(world.kills.len(), 1, "{point:?}, {n_data} with data");
        }
    }
}

#[test]
fn whoever_is_killed_at_any_time_is_not_missed_in_the_result() {
    for seed in seeds(60) {
        let n = 3 + (seed % 3) as u8;
        let mut world = started(seed, n, 2 + (seed / 2 % 2) as u8, 60);
        let victim = id(1 + (seed / 3 % u64::from(n)) as u8);
        let at = world.between(200, 2500) * MS;
        world.at(at, Event::Kill(victim));
        world.run_to_the_end(30 * SECOND);
        world.check_exact();
    }
}

#[test]
fn tiers_change_when_peers_come_and_go() {
    for seed in seeds(20) {
        let n_data = 1 + (seed % 2) as u8;
        let mut world = started(seed, 2, n_data, 400);
        world.add(9, seed % 3 == 0, 1000);
        world.at(2 * SECOND, Event::Start(id(9), false));
        world.at(9 * SECOND, Event::Kill(id(9)));
        world.run_to_the_end(90 * SECOND);
        world.check_exact();
    }
}

#[test]
fn what_a_lost_peer_hosted_its_neighbours_absorb() {
    for seed in seeds(20) {
        let mut world = started(seed, 4, 4, 80);
        world.config.cutting = Cutting::Absorb;
        let victim = id(1 + (seed % 3) as u8);
        world.at(1500 * MS, Event::Kill(victim));
        world.run_to_the_end(30 * SECOND);
        world.check_exact();
    }
}

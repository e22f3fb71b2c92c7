//! Stages that two peers host each: every sample is counted once, whoever dies.
//!
//! The numbers here add up the same in any order, so what is trained is the same in any cut; of real ones the last bits differ.

use crate::network::{MS, SECOND};
use crate::seeds;
use crate::world::{Event, Point, World, id};

fn started(seed: u64, n: u8, steps: u64) -> World {
    let mut world = World::started(seed, n, 2 + (seed % 2) as u8, steps);
    world.rows = 8;
    world.config.rows = 8;
    world.config.is_exact = false;
    world.line_every = 1 + seed / 4 % 3;
    world
}

#[test]
fn stages_with_two_hosts_train_what_one_peer_trains() {
    for seed in seeds(10) {
        for n in 2..=7 {
            let mut world = started(seed, n, 30);
            world.run_to_the_end(30 * SECOND);
            world.check_exact();
            assert_eq!(world.refused, 0, "seed {seed}, {n} peers");
            let view = world.view_of(1).unwrap();
            assert!(view.plan.stages.iter().any(|stage| stage.is_shared()));
        }
    }
}

#[test]
fn whoever_is_killed_no_sample_is_lost_or_counted_twice() {
    for seed in seeds(100) {
        let n = 3 + (seed % 4) as u8;
        let mut world = started(seed, n, 60);
        let victim = id(1 + (seed / 3 % u64::from(n)) as u8);
        let at = world.between(200, 2500) * MS;
        world.at(at, Event::Kill(victim));
        world.run_to_the_end(30 * SECOND);
        world.check_exact();
    }
}

#[test]
fn a_host_killed_in_the_middle_of_adding_up_is_not_missed_in_the_result() {
    for point in [Point::Add, Point::Apply, Point::Copy, Point::Backward] {
        for peer in 1..=5 {
            for times in [1, 4, 9] {
                let mut world = started(peer.into(), 5, 40);
                world.kill_points = vec![(id(peer), point, times)];
                world.run_to_the_end(30 * SECOND);
                world.check_exact();
            }
        }
    }
}

#[test]
fn a_peer_that_comes_or_goes_changes_the_groups() {
    for seed in seeds(20) {
        let mut world = started(seed, 4, 400);
        world.add(9, false, 3000);
        world.at(2 * SECOND, Event::Start(id(9), false));
        let victim = id(1 + (seed % 4) as u8);
        world.at(8 * SECOND, Event::Kill(victim));
        world.run_to_the_end(60 * SECOND);
        world.check_exact();
    }
}

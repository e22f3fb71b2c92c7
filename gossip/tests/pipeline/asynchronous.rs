//! The asynchronous schedule: steps overlap, and a step's gradient may be of weights that are some updates old.

use std::collections::BTreeSet;

use crate::global::{kill_with_keeper, whole};
use crate::network::{MS, SECOND};
use crate::seeds;
use crate::world::{Event, Point, World, id};

fn started(seed: u64, n: u8) -> World {
    let mut world = World::started(seed, n, 2, 200);
    world.micro = 1;
    world.asynchronous = true;
    world.config.is_exact = false;
    world.config.overlaps = true;
    world.line_every = 5;
    world
}

/// All hold the same model, whatever it is.
fn check_one(world: &World) {
    let models: BTreeSet<_> = world.peers.values().map(|peer| &peer.finished).collect();
    assert_eq!(models.len(), 1, "{models:?}");
}

#[test]
fn gradients_are_no_older_than_the_pipeline_is_deep() {
    for seed in seeds(5) {
        for n in 1..=6 {
            let mut world = started(seed, n);
            world.run_to_the_end(20 * SECOND);
            check_one(&world);
            let n_stages = world.view_of(1).unwrap().plan.stages.len() as u64;
            assert_eq!(world.refused, 0, "seed {seed}, {n} peers");
            assert!(
                world.stalest < n_stages.max(1),
                "{} of {n_stages}",
                world.stalest
            );
            assert!(n < 3 || world.stalest > 0, "steps overlap");
            if n == 1 {
                world.check_exact();
            }
        }
    }
}

#[test]
fn it_ends_with_one_model_whoever_dies() {
    for seed in seeds(60) {
        let n = 3 + (seed % 3) as u8;
        let mut world = started(seed, n);
        let at = world.between(900, 3000) * MS;
        let victim = id(1 + (seed / 3 % u64::from(n)) as u8);
        world.at(at, Event::Kill(victim));
        world.run_to_the_end(30 * SECOND);
        check_one(&world);
    }
}

#[test]
fn it_ends_with_one_model_whoever_is_killed_and_comes_back_with_its_copies() {
    for seed in seeds(60) {
        let n = 3 + (seed % 3) as u8;
        let mut world = started(seed, n);
        let at = world.between(900, 2500) * MS;
        let victim = id(1 + (seed / 3 % u64::from(n)) as u8);
        world.at(at, Event::Kill(victim));
        let back = at + world.between(1, 1500) * MS;
        world.at(back, Event::Start(victim, true));
        world.run_to_the_end(40 * SECOND);
        check_one(&world);
    }
}

#[test]
fn two_that_fall_out_one_after_the_other_and_come_back_end_with_the_model_of_the_others() {
    for seed in seeds(60) {
        let mut world = started(seed, 4);
        for victim in [1 + seed % 4, 1 + (seed / 4 + seed % 4 + 1) % 4] {
            let victim = id(victim as u8);
            let at = world.between(900, 2500) * MS;
            world.at(at, Event::Kill(victim));
            let back = at + world.between(1, 1500) * MS;
            world.at(back, Event::Start(victim, true));
        }
        world.run_to_the_end(60 * SECOND);
        check_one(&world);
    }
}

#[test]
fn it_ends_with_one_model_also_where_a_peer_dies_at_the_end() {
    let steps = 24;
    let new = |seed| {
        let mut world = started(seed, 3);
        world.config.last_step = Some(steps);
        world
    };
    for seed in seeds(2) {
        let mut undisturbed = new(seed);
        undisturbed.run_to_the_end(20 * SECOND);
        let last = |point: &Point| {
            matches!(
                point,
                Point::Apply | Point::Copy | Point::Fetched | Point::Finish | Point::Finished
            )
        };
        let points = undisturbed.passed.iter();
        let points = points.filter(|((_, point), _)| last(point));
        let points: Vec<_> = points
            .flat_map(|((peer, point), times)| {
                (times.saturating_sub(4).max(1)..=*times).map(|time| (*peer, *point, time))
            })
            .collect();
        assert!(points.len() > 20, "{points:?}");
        for point in points {
            let mut world = new(seed);
            world.kill_points.push(point);
            world.run_to_the_end(30 * SECOND);
            check_one(&world);
        }
    }
}

#[test]
fn a_new_cut_begins_at_a_line_that_the_old_one_makes_and_no_step_is_made_twice() {
    for seed in seeds(20) {
        let mut world = started(seed, 3);
        world.config.last_step = Some(1500);
        world.jitter = 2;
        let victim = id(2 + (seed % 2) as u8);
        world.at(2500 * MS, Event::Slow(victim, 3.0));
        world.run_to_the_end(120 * SECOND);
        check_one(&world);
        assert!(world.n_views() > 1, "seed {seed}: {:?}", world.views);
        assert_eq!(world.steps_made, 1500, "seed {seed}: {:?}", world.views);
    }
}

/// What was made beyond that line is made again differently: no copy of it may get into a line that is collected afterwards.
#[test]
fn a_stage_lost_with_all_its_copies_goes_on_from_a_whole_line_and_all_end_with_one_model() {
    let mut gone_back = 0;
    for seed in seeds(30) {
        let mut world = started(seed, 4);
        world.config.last_step = Some(400);
        world.config.copies = 1;
        for peer in [8, 9] {
            world.add(peer, false, 1_000_000);
            world.roomy(peer);
            world.at(700 * MS, Event::Start(id(peer), false));
        }
        let at = world.between(2500, 3500) * MS;
        world.run(at);
        let line = whole(&world);
        assert!(line > 0, "{}", world.standing());
        let made = world.steps_made;
        let dead = kill_with_keeper(&mut world, 1 + seed as usize % 2);
        if dead.contains(&id(1)) && dead.contains(&id(2)) {
            world.at(world.now + SECOND, Event::Start(id(1), false));
        }
        world.run(world.now + 3 * SECOND);
        let view = world.view_of(8).unwrap();
        assert!(view.stamp.number > 1 && view.from >= line, "{view:?}");
        gone_back += u64::from(view.from < made);
        world.run_to_the_end(60 * SECOND);
        check_one(&world);
    }
    assert!(gone_back > 0);
}

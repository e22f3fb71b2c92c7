//! The end of a job: who names the last step, and who gets the model.

use std::collections::BTreeSet;

use crate::network::{MS, SECOND};
use crate::seeds;
use crate::world::{Event, Point, World, id};

#[test]
fn the_first_stage_names_the_last_step_once_somebody_asks_for_the_end() {
    for seed in seeds(40) {
        let n = 1 + (seed % 5) as u8;
        let mut world = World::started(seed, n, 1, 0);
        world.config.last_step = None;
        world.line_every = 1 + seed / 5 % 7;
        let at = world.between(1000, 2500) * MS;
        let who = id(1 + world.between(0, u64::from(n) - 1) as u8);
        world.at(at, Event::Stop(who));
        world.run_to_the_end(10 * SECOND);
        world.check_exact();
    }
}

#[test]
fn a_first_stage_that_dies_after_it_named_the_last_step_leaves_one_end() {
    for seed in seeds(10) {
        for point in [
            Point::ChooseLastStep,
            Point::Apply,
            Point::Copy,
            Point::SendView,
            Point::Finish,
            Point::Finished,
            Point::Fetched,
        ] {
            for times in 1..=4 {
                for victim in 1..=3 {
                    let mut world = World::started(seed, 4, 2, 0);
                    world.config.last_step = None;
                    world.line_every = 1 + times % 3;
                    let at = world.between(1300, 1700) * MS;
                    // Two are asked: what only a peer knows that dies is not known.
                    let who = 1 + world.between(0, 3) as u8;
                    world.run(at);
                    world.at(at, Event::Stop(id(who)));
                    world.at(at + 5 * MS, Event::Stop(id(1 + who % 4)));
                    world.passed.clear();
                    world.kill_points.push((id(victim), point, times));
                    world.run_to_the_end(20 * SECOND);
                    world.check_exact();
                }
            }
        }
    }
}

#[test]
fn a_latecomer_to_a_finished_job_is_given_its_model() {
    for seed in seeds(40) {
        let mut world = World::started(seed, 2 + (seed % 3) as u8, 1, 20);
        if seed % 2 == 0 {
            world.config.last_step = None;
            world.at(1500 * MS, Event::Stop(id(2)));
        }
        world.run_to_the_end(10 * SECOND);
        let late = [0, 3, 9][seed as usize % 3];
        world.add(late, seed % 4 < 2, 500);
        world.kill(id(late));
        world.at(world.now, Event::Start(id(late), false));
        world.run(world.now + SECOND);
        world.run_to_the_end(5 * SECOND);
        world.check_exact();
    }
}

#[test]
fn a_recut_and_the_end_may_be_asked_for_at_once() {
    for seed in seeds(60) {
        let mut world = World::started(seed, 4, 2, 0);
        world.config.last_step = None;
        world.line_every = 5;
        world.at(1500 * MS, Event::Slow(id(1 + (seed % 4) as u8), 4.0));
        let at = world.between(2000, 7000) * MS;
        world.at(at, Event::Stop(id(1 + (seed / 4 % 4) as u8)));
        world.run_to_the_end(30 * SECOND);
        world.check_exact();
    }
}

#[test]
fn a_last_step_named_beyond_a_partition_ends_the_job_for_all_or_for_nobody() {
    for seed in seeds(60) {
        let mut world = World::started(seed, 5, 5, 0);
        world.config.last_step = None;
        let apart = BTreeSet::from([id(1 + (seed % 5) as u8), id(1 + ((seed + 2) % 5) as u8)]);
        world.at(1500 * MS, Event::Split(apart.clone(), 9 * SECOND));
        let one = *apart.first().unwrap();
        world.at(4 * SECOND, Event::Stop(one));
        world.run(9 * SECOND);
        assert!(world.peers[&one].closed, "one side has ended");
        let gone = 9 * SECOND + world.between(0, 1000) * MS;
        for peer in &apart {
            world.at(gone, Event::Kill(*peer));
        }
        let rest: Vec<_> = (1..=5)
            .map(id)
            .filter(|peer| !apart.contains(peer))
            .collect();
        world.at(12 * SECOND, Event::Stop(rest[0]));
        world.run(12 * SECOND);
        world.run_to_the_end(20 * SECOND);
        world.check_exact();
    }
}

//! The asynchronous schedule: steps overlap, and a step's gradient may be of weights that are some updates old.

use std::collections::BTreeSet;

use crate::network::{MS, SECOND};
use crate::seeds;
use crate::world::{Event, World, id};

fn started(seed: u64, n: u8) -> World {
    let mut world = World::started(seed, n, 2, 200);
    world.micro = 1;
    world.asynchronous = true;
    world.config.is_exact = false;
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

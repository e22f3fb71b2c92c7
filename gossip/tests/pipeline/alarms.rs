//! Who is taken for dead, and when.

use crate::network::{MS, SECOND};
use crate::seeds;
use crate::world::{Event, World};

#[test]
fn an_hour_of_losses_gives_no_false_alarm() {
    let mut thrice = 0;
    for seed in seeds(1) {
        for n in [2, 4] {
            let mut world = World::started(seed, n, 1, u64::MAX);
            // Slow blocks: the beats are what this is about.
            for device in world.devices.values_mut() {
                device.block_us = 50_000;
            }
            world.config.last_step = None;
            world.network.resent_of_1000 = 20;
            world.run(3600 * SECOND);
            let view = world.view_of(1).unwrap();
            assert_eq!(view.plan.stages.len(), usize::from(n));
            assert_eq!(world.n_views(), 1, "{:?}", world.views);
            assert!(world.steps_made > 3000);
            thrice += world.network.lost_thrice;
        }
    }
    println!("messages lost three times or more in a row: {thrice}");
}

#[test]
fn a_frozen_host_is_missed_within_a_second() {
    let mut took = Vec::new();
    for seed in seeds(60) {
        let n = 2 + (seed % 4) as u8;
        let mut world = World::started(seed, n, 2, 1000);
        let at = world.between(1500, 2500) * MS;
        world.run(at);
        let hosts: Vec<_> = world.view_of(1).unwrap().plan.hosts().collect();
        let victim = hosts[seed as usize / 4 % hosts.len()];
        world.at(at, Event::Freeze(victim, at + 4 * SECOND));
        let n_views = world.n_views();
        while world.n_views() == n_views && world.now < at + 4 * SECOND {
            world.run(world.now + MS);
        }
        took.push((world.now - at) / MS);
        assert!(took.iter().all(|ms| *ms < 1000), "seed {seed}: {took:?}");
    }
    took.sort_unstable();
    println!(
        "freeze to new view: median {} ms, most {} ms",
        took[took.len() / 2],
        took[took.len() - 1]
    );
}

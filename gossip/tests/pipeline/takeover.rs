//! How long it takes from the death of a host to the first step without it, in virtual time, and what of it is what.

use skein_gossip::ids::PeerId;

use crate::network::{MS, SECOND};
use crate::seeds;
use crate::world::{Event, Life, World};

/// Milliseconds: until a new view was proposed, until all were in place, and until the first step was made.
type Parts = [u64; 4];

fn takeover(seed: u64, n: u8, stop: impl Fn(&mut World, PeerId)) -> Parts {
    let mut world = World::started(seed, n, 2, 100_000);
    world.block_bytes = 1_000_000;
    let at = world.between(3000, 4000) * MS;
    world.run(at);
    let hosts: Vec<PeerId> = world.view_of(1).unwrap().plan.hosts().collect();
    let n_views = world.n_views();
    stop(&mut world, hosts[seed as usize % hosts.len()]);
    let new = |world: &World| -> Option<Life> {
        let mut lives: Vec<Life> = world.views.values().copied().collect();
        lives.sort_by_key(|life| life.adopted);
        lives[n_views..]
            .iter()
            .copied()
            .find(|life| life.stepped > 0)
    };
    while new(&world).is_none() && world.now < at + 20 * SECOND {
        world.run(world.now + MS);
    }
    if world.now > at + 3 * SECOND / 2 {
        println!("seed {seed} of {n} peers took long");
    }
    let life = new(&world).unwrap();
    [
        life.adopted - at,
        life.fed - life.adopted,
        life.stepped - life.fed,
        life.stepped - at,
    ]
}

fn report(what: &str, parts: &[Parts]) -> u64 {
    let of = |i: usize, share: f64| {
        let mut all: Vec<u64> = parts.iter().map(|parts| parts[i] / MS).collect();
        all.sort_unstable();
        all[((all.len() - 1) as f64 * share).round() as usize]
    };
    for (i, part) in [
        "seen and proposed",
        "loaded and in place",
        "first step",
        "all",
    ]
    .iter()
    .enumerate()
    {
        println!(
            "{what}, {part}: median {} ms, p95 {} ms",
            of(i, 0.5),
            of(i, 0.95)
        );
    }
    of(3, 1.0)
}

#[test]
fn a_killed_host_is_replaced_within_a_second() {
    let parts: Vec<Parts> = seeds(40)
        .map(|seed| takeover(seed, 3 + (seed % 3) as u8, World::kill))
        .collect();
    assert!(report("killed", &parts) < 1000);
}

#[test]
fn a_frozen_host_is_replaced_within_two_seconds() {
    let freeze =
        |world: &mut World, host| world.at(world.now, Event::Freeze(host, world.now + 60 * SECOND));
    let parts: Vec<Parts> = seeds(20)
        .map(|seed| takeover(seed, 3 + (seed % 3) as u8, freeze))
        .collect();
    assert!(report("frozen", &parts) < 2000);
}

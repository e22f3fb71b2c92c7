//! How much is done again when copies are lost.

use std::collections::BTreeSet;

use crate::network::{MS, SECOND};
use crate::seeds;
use crate::world::{Event, World, id};

/// What `safe` says, whoever of those that are left knows it.
fn safe(world: &World) -> u64 {
    world
        .peers
        .values()
        .map(|peer| peer.agreement.safe())
        .max()
        .unwrap()
}

#[test]
fn the_loss_of_two_peers_costs_at_most_the_steps_since_the_recovery_point() {
    let mut redone = Vec::new();
    for seed in seeds(100) {
        let n = 4 + (seed % 3) as u8;
        let mut world = World::started(seed, n, 3, 80);
        world.line_every = 1 + seed / 3 % 5;
        let at = world.between(1500, 2500) * MS;
        world.run(at);
        // A host, and any other.
        let hosts: Vec<_> = world.view_of(1).unwrap().plan.hosts().collect();
        let first = hosts[world.between(0, hosts.len() as u64 - 1) as usize].0[0];
        let second = 1 + (u64::from(first) + world.between(0, u64::from(n) - 2)) as u8 % n;
        let (safe, made) = (safe(&world), world.steps_made);
        world.kill(id(first));
        world.kill(id(second));
        world.run(world.now + 2 * SECOND);
        let view = world
            .peers
            .values()
            .next()
            .unwrap()
            .agreement
            .view()
            .unwrap()
            .clone();
        assert!(view.stamp.number > 1);
        assert!(view.from >= safe, "from {} with {safe} safe", view.from);
        let agreement = &world.peers.values().next().unwrap().agreement;
        let setback = agreement.setback().unwrap();
        assert!(setback.from == view.from && setback.safe <= setback.from);
        redone.push(made.saturating_sub(setback.from));
        world.run_to_the_end(20 * SECOND);
        world.check_exact();
    }
    redone.sort_unstable();
    println!(
        "steps done again: median {}, most {}",
        redone[redone.len() / 2],
        redone[redone.len() - 1]
    );
}

#[test]
fn where_all_copies_of_a_block_are_lost_the_newest_line_that_there_is_counts() {
    for seed in seeds(40) {
        let mut world = World::started(seed, 4, 2, 60);
        world.config.copies = 1;
        world.line_every = 1 + seed % 3;
        let at = world.between(1500, 2500) * MS;
        world.run(at);
        let before = world.view_of(1).unwrap();
        // A stage and the one behind it: its host, and who keeps its copies.
        let hosts: Vec<_> = before.plan.hosts().collect();
        let stage = 1 + seed as usize % 3;
        let other = (stage + 1) % hosts.len();
        world.kill(hosts[stage]);
        world.kill(hosts[other]);
        world.lines.clear();
        if other == 0 && hosts[other] == id(1) {
            world.at(world.now + SECOND, Event::Start(id(1), false));
        }
        world.run(world.now + 3 * SECOND);
        let view = world
            .peers
            .values()
            .next()
            .unwrap()
            .agreement
            .view()
            .unwrap()
            .clone();
        assert_eq!(view.from, 0, "no copy of it is left");
        let setbacks = world
            .peers
            .values()
            .filter_map(|peer| peer.agreement.setback());
        let mut setbacks = setbacks.filter(|setback| setback.safe > 0);
        let lost = setbacks.next().unwrap();
        assert!(!lost.lacking.is_empty(), "it says what is lost: {lost:?}");
        for block in &lost.lacking {
            let lost_hosts = [hosts[stage], hosts[other]];
            let mut of_block = before.plan.hosts_of(*block);
            assert!(of_block.all(|host| lost_hosts.contains(&host)), "{lost:?}");
        }
        world.run_to_the_end(30 * SECOND);
        world.check_exact();
        // Copies were made again all along.
        let peer = world.peers.values().next().unwrap();
        let steps: BTreeSet<u64> = peer.store.keys().map(|(_, step)| *step).collect();
        assert!(steps.iter().all(|step| *step > 50), "{steps:?}");
        assert!(world.lines.range(1..50).count() > 10, "{:?}", world.lines);
    }
}

#[test]
fn copies_are_kept_all_along() {
    for seed in seeds(20) {
        let mut world = World::started(seed, 4, 2, 100);
        world.line_every = 2;
        let at = world.between(1500, 2500) * MS;
        world.run(at);
        world.kill(id(1 + (seed % 4) as u8));
        let mut before = 0;
        for _ in 0..4 {
            world.run(world.now + 800 * MS);
            let safe = safe(&world);
            assert!(world.all_closed() || safe > before, "{before}, {safe}");
            before = safe;
        }
        for peer in world.peers.values() {
            // Two lines, and one that is coming.
            assert!(peer.store.len() <= 3 * 8, "{:?}", peer.store.keys());
        }
        world.run_to_the_end(20 * SECOND);
        world.check_exact();
    }
}

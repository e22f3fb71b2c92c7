//! Whole lines on peers with room: what is left when a stage and all who keep copies of it are lost at once.

use skein_gossip::ids::PeerId;

use crate::network::{MS, SECOND};
use crate::seeds;
use crate::world::{Event, World, id};

/// Peers 1 to 4 train, each stage kept by one other; those in `roomy` have room and are too slow for a stage.
fn started(seed: u64, roomy: &[u8], steps: u64) -> World {
    let mut world = World::started(seed, 4, 2, steps);
    world.config.copies = 1;
    world.line_every = 1 + seed % 3;
    for peer in roomy {
        world.add(*peer, false, 1_000_000);
        world.roomy(*peer);
        world.at(700 * MS, Event::Start(id(*peer), false));
    }
    world
}

/// The newest line that is known to be held whole.
fn whole(world: &World) -> u64 {
    let lines = world
        .peers
        .values()
        .map(|peer| peer.agreement.whole_line().0);
    lines.max().unwrap_or(0)
}

/// Kills the host of a stage that does not hold the data alone, and the one that keeps its copies.
fn kill_with_keeper(world: &mut World, stage: usize) -> [PeerId; 2] {
    let hosts: Vec<_> = world.view_of(1).unwrap().plan.hosts().collect();
    let both = [hosts[stage], hosts[(stage + 1) % hosts.len()]];
    both.into_iter().for_each(|host| world.kill(host));
    both
}

#[test]
fn a_stage_that_is_lost_with_all_its_copies_goes_on_from_the_newest_whole_line() {
    let mut back = Vec::new();
    for seed in seeds(40) {
        let mut world = started(seed, &[8, 9][..1 + seed as usize % 2], 80);
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
        back.push(made - view.from);
        world.run_to_the_end(40 * SECOND);
        world.check_exact();
    }
    back.sort_unstable();
    println!(
        "steps made again: median {}, most {}",
        back[back.len() / 2],
        back[back.len() - 1]
    );
}

/// One of those that collect dies, at any moment, and comes back with what its disk has.
#[test]
fn a_peer_that_collects_may_die_while_it_does() {
    for seed in seeds(40) {
        let mut world = started(seed, &[8, 9], 250);
        world.block_bytes = 1_000_000;
        let at = world.between(1500, 3500) * MS;
        world.at(at, Event::Kill(id(8)));
        let again = at + world.between(20, 1500) * MS;
        world.at(again, Event::Start(id(8), seed % 2 == 0));
        world.run(again + 1500 * MS);
        let line = whole(&world);
        kill_with_keeper(&mut world, 2);
        world.run(world.now + 3 * SECOND);
        let view = world.view_of(9).unwrap();
        assert!(
            view.stamp.number > 1 && view.from >= line,
            "{line}: {view:?}"
        );
        world.run_to_the_end(40 * SECOND);
        world.check_exact();
    }
}

#[test]
fn whole_lines_are_as_far_apart_as_the_job_says_and_only_the_newest_are_kept() {
    for seed in seeds(10) {
        let mut world = started(seed, &[8, 9], 200);
        world.line_every = 1;
        world.config.global_every = Some(20);
        let mut lines = Vec::new();
        while !world.all_closed() {
            world.run(world.now + 20 * MS);
            assert!(world.now < 60 * SECOND, "{}", world.standing());
            let line = whole(&world);
            if line < 200 && lines.last() != Some(&line) {
                lines.push(line);
            }
            for peer in [8, 9] {
                let Some(peer) = world.peers.get(&id(peer)) else {
                    continue;
                };
                let mut steps: Vec<u64> = peer.store.keys().map(|(_, step)| *step).collect();
                steps.sort_unstable();
                steps.dedup();
                assert!(steps.len() <= 5, "{steps:?}");
            }
        }
        assert!(lines.len() > 4, "{lines:?}");
        let apart = lines.windows(2).all(|pair| pair[1] >= pair[0] + 20);
        assert!(apart, "{lines:?}");
        world.check_exact();
    }
}

#[test]
fn nothing_is_collected_where_nobody_has_room_or_all_hold_all_anyhow() {
    for seed in seeds(10) {
        let mut world = World::started(seed, 3, 2, 80);
        if seed % 2 == 0 {
            (1..=3).for_each(|peer| world.roomy(peer));
        } else {
            world.config.copies = 1;
        }
        world.run_to_the_end(20 * SECOND);
        world.check_exact();
        let global = world.fetched.iter().filter(|(_, _, want)| want.is_global);
        let steps: Vec<u64> = global.map(|(_, _, want)| want.step).collect();
        assert!(steps.is_empty(), "{steps:?}");
    }
}

#[test]
fn collecting_holds_up_no_copies_along_the_chain() {
    for seed in seeds(10) {
        let safe_after = |roomy: &[u8]| {
            let mut world = started(seed, roomy, 100_000);
            world.block_bytes = 2_000_000;
            world.line_every = 1;
            world.run(8 * SECOND);
            let made = world.steps_made;
            let of = |peer: &crate::world::Peer| peer.agreement.safe();
            let safe = world.peers.values().map(of).max().unwrap();
            (made, made - safe)
        };
        let ((made, behind), (made_with, behind_with)) = (safe_after(&[]), safe_after(&[8]));
        assert!(made_with * 10 >= made * 9, "{made} {made_with}");
        assert!(behind_with <= 2 * behind + 6, "{behind} {behind_with}");
    }
}

/// Peers that train from given weights; those in `given` have them on disk.
fn continued(seed: u64, n: u8, given: &[u8]) -> World {
    let mut world = World::new(seed, n, 60);
    world.config.is_seeded = false;
    for peer in 1..=n {
        world.add(peer, peer <= 2, 3000);
        let at = world.between(0, 500) * MS;
        world.at(at, Event::Start(id(peer), true));
    }
    given.iter().for_each(|peer| world.give_weights(*peer));
    world
}

#[test]
fn a_job_on_given_weights_gets_them_from_whoever_has_them() {
    for seed in seeds(40) {
        let n = 2 + (seed % 4) as u8;
        let mut world = continued(seed, n, &[1 + (seed / 4 % u64::from(n)) as u8]);
        world.line_every = 1 + seed % 20;
        let at = world.between(1000, 2000) * MS;
        if seed % 2 == 0 {
            world.at(at, Event::Kill(id(n)));
            world.at(at + SECOND, Event::Start(id(n), true));
        }
        world.run_to_the_end(20 * SECOND);
        world.check_exact();
        let first = world.fetched.iter().filter(|(_, _, want)| want.step == 0);
        assert!(first.count() > 0, "only one peer had them");
    }
}

#[test]
fn a_job_on_given_weights_waits_for_them_and_says_so() {
    for seed in seeds(10) {
        let mut world = continued(seed, 3, &[]);
        world.run(3 * SECOND);
        let reasons: Vec<&str> = world
            .peers
            .values()
            .filter_map(|peer| peer.agreement.paused())
            .collect();
        assert!(
            reasons.len() == 1 && reasons[0].contains("the weights"),
            "{reasons:?}"
        );
        world.kill(id(3));
        world.give_weights(3);
        world.at(world.now, Event::Start(id(3), true));
        world.run_to_the_end(20 * SECOND);
        world.check_exact();
    }
}

//! Devices change their speed at run time.

use std::collections::BTreeSet;

use skein_gossip::pipeline::agreement::Cutting;

use crate::network::{MS, SECOND};
use crate::seeds;
use crate::world::{Event, World, id};

#[test]
fn a_peer_that_becomes_slower_is_given_less_within_seconds() {
    let mut took = Vec::new();
    for seed in seeds(30) {
        let mut world = World::started(seed, 3, 1, 300);
        world.jitter = 2;
        world.run(2500 * MS);
        let before = world.view_of(1).unwrap();
        let n_fetched = world.fetched.len();
        let victim = 2 + (seed % 2) as u8;
        let at = world.now;
        world.at(at, Event::Slow(id(victim), 3.0));
        while world.view_of(1).unwrap().stamp == before.stamp && world.now < at + 6 * SECOND {
            world.run(world.now + 10 * MS);
        }
        let after = world.view_of(1).unwrap();
        assert_eq!(after.after, Some(before.stamp), "a new cut within seconds");
        let n_before = before.plan.blocks_of(id(victim)).map(|blocks| blocks.len());
        let n_after = after.plan.blocks_of(id(victim)).map(|blocks| blocks.len());
        assert!(n_after < n_before, "{after:?}");
        // Steps are made under the old view until the switch.
        let key =
            |view: &skein_gossip::pipeline::message::View| (view.stamp.number, view.stamp.steward);
        let (proposed, steps) = (world.now, world.steps_made);
        while world.views[&key(&after)].stepped == 0 && world.now < at + 20 * SECOND {
            world.run(world.now + MS);
        }
        let life = world.views[&key(&after)];
        assert!(life.stepped > 0, "in effect");
        took.push((life.stepped - at) / MS);
        assert!(world.steps_made > steps + 2, "{steps} {proposed}");
        assert_eq!(world.steps_made - 1, life.from, "no step is made twice");
        // What training waited for are blocks that change hands, and each came once.
        let mut came = BTreeSet::new();
        for (_, peer, want) in &world.fetched[n_fetched..] {
            for block in want.blocks.clone() {
                if want.is_urgent {
                    assert!(!before.plan.hosts_block(*peer, block), "{want:?}");
                    assert!(after.plan.hosts_block(*peer, block), "{want:?}");
                    assert!(came.insert(block), "{want:?}");
                }
            }
        }
        world.run_to_the_end(120 * SECOND);
        world.check_exact();
    }
    took.sort_unstable();
    println!(
        "slow to new cut in effect: median {} ms, most {} ms",
        took[took.len() / 2],
        took[took.len() - 1]
    );
    assert!(took[took.len() - 1] < 8000, "{took:?}");
}

#[test]
fn a_peer_that_is_too_slow_stands_by_until_it_is_faster() {
    for seed in seeds(20) {
        let mut world = World::started(seed, 4, 4, 1500);
        world.jitter = 2;
        let slow = id(1 + (seed % 4) as u8);
        world.at(2500 * MS, Event::Slow(slow, 60.0));
        world.run(10 * SECOND);
        let view = world.view_of(1).unwrap();
        assert!(!view.plan.is_host(slow), "{view:?}");
        world.at(10 * SECOND, Event::Slow(slow, 1.0));
        world.run(25 * SECOND);
        let view = world.view_of(1).unwrap();
        assert!(view.plan.is_host(slow), "{view:?}");
        assert!(world.n_views() <= 3, "{:?}", world.views);
        world.run_to_the_end(120 * SECOND);
        world.check_exact();
        assert_eq!(world.steps_made, 1500, "none is made twice");
    }
}

#[test]
fn speeds_that_vary_a_little_change_no_cut() {
    for seed in seeds(10) {
        let mut world = World::started(seed, 4, 2, 1500);
        world.jitter = 10;
        world.run_to_the_end(200 * SECOND);
        world.check_exact();
        assert_eq!(world.n_views(), 1, "{:?}", world.views);
    }
}

#[test]
fn a_faster_peer_that_joins_is_given_a_stage() {
    for seed in seeds(20) {
        let mut world = World::started(seed, 3, 1, 400);
        world.add(0, false, 700);
        world.add(9, false, 700);
        let late = [0, 9][seed as usize % 2];
        world.at(2 * SECOND, Event::Start(id(late), false));
        world.run(8 * SECOND);
        let view = world.view_of(1).unwrap();
        assert!(view.plan.is_host(id(late)), "{view:?}");
        assert_eq!(world.n_views(), 2);
        world.run_to_the_end(60 * SECOND);
        world.check_exact();
        assert_eq!(world.steps_made, 400, "none is made twice");
    }
}

#[test]
fn peers_that_come_one_after_the_other_are_all_given_stages() {
    for seed in seeds(20) {
        let mut world = World::started(seed, 4, 1, 300);
        world.config.start_peers = 1;
        world.run(7 * SECOND);
        let view = world.view_of(1).unwrap();
        assert_eq!(view.plan.stages.len(), 4, "{view:?}");
        assert!(world.n_views() <= 6, "{:?}", world.views);
        world.run_to_the_end(60 * SECOND);
        world.check_exact();
    }
}

/// ResPipe's rule.
#[test]
fn where_neighbours_absorb_the_other_stages_stay_as_they_are() {
    for seed in seeds(30) {
        let mut world = World::started(seed, 4, 2, 60);
        world.config.cutting = Cutting::Absorb;
        world.run(2 * SECOND);
        let before = world.view_of(1).unwrap().plan.clone();
        let lost = 1 + seed as usize % 3;
        let witness = before.lead().unwrap();
        world.kill(before.stages[lost].lead().unwrap());
        world.run(3 * SECOND);
        let after = world.peers[&witness].agreement.view().unwrap().plan.clone();
        assert_eq!(after.stages.len(), 3);
        let stay = before
            .stages
            .iter()
            .filter(|stage| after.stages.contains(stage));
        assert_eq!(stay.count(), 2, "{after:?}");
        world.run_to_the_end(20 * SECOND);
        world.check_exact();
    }
}

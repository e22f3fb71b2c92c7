//! Several faults at once, peers that stop and go on, partitions, and messages that are late or lost.

use std::collections::BTreeSet;

use skein_gossip::pipeline::agreement::Cutting;

use crate::network::{MS, SECOND};
use crate::seeds;
use crate::world::{Event, Point, World, id};

const POINTS: [Point; 18] = [
    Point::Halt,
    Point::Until,
    Point::Switch,
    Point::InPlace,
    Point::Feed,
    Point::SendView,
    Point::Fetch,
    Point::Fetched,
    Point::Safe,
    Point::Forget,
    Point::ChooseLastStep,
    Point::Finish,
    Point::Finished,
    Point::Forward,
    Point::Loss,
    Point::Backward,
    Point::Apply,
    Point::Copy,
];

#[test]
fn two_peers_may_die_within_a_tenth_of_a_second() {
    for seed in seeds(150) {
        let n = 4 + (seed % 2) as u8;
        let mut world = World::started(seed, n, 3, 40);
        world.line_every = 1 + seed / 2 % 3;
        let first = 1 + (seed / 6 % u64::from(n)) as u8;
        let second = 1 + (u64::from(first) + world.between(0, u64::from(n) - 2)) as u8 % n;
        let at = world.between(900, 2500) * MS;
        world.at(at, Event::Kill(id(first)));
        let at = at + world.between(0, 100) * MS;
        world.at(at, Event::Kill(id(second)));
        world.run_to_the_end(20 * SECOND);
        world.check_exact();
    }
}

/// The proposer among them, after it has told only some.
#[test]
fn a_second_peer_may_die_at_any_moment_of_the_view_change() {
    for seed in seeds(1) {
        for (first, second) in [
            (4, 1),
            (4, 2),
            (4, 3),
            (1, 2),
            (1, 3),
            (1, 4),
            (2, 1),
            (3, 5),
        ] {
            for point in POINTS {
                for times in 1..=4 {
                    let mut world = World::started(seed, 5, 3, 20);
                    world.run((1200 + 37 * times) * MS);
                    world.kill(id(first));
                    world.passed.clear();
                    world.kill_points.push((id(second), point, times));
                    world.run_to_the_end(20 * SECOND);
                    world.check_exact();
                }
            }
        }
    }
}

#[test]
fn a_joiner_may_die_at_any_moment_of_its_coming() {
    let mut joined = 0;
    for seed in seeds(3) {
        for point in POINTS {
            for times in 1..=3 {
                let mut world = World::started(seed, 3, 2, 150);
                world.add(4, true, 200);
                world.at(1200 * MS, Event::Start(id(4), false));
                world.kill_points.push((id(4), point, times));
                world.run_to_the_end(40 * SECOND);
                world.check_exact();
                joined += usize::from(world.n_views() > 1);
            }
        }
    }
    assert!(joined > 0);
}

#[test]
fn training_pauses_without_the_owner_of_the_data_and_goes_on_when_it_is_back() {
    for seed in seeds(40) {
        let mut world = World::started(seed, 3, 1, 40);
        let at = world.between(1000, 1600) * MS;
        world.at(at, Event::Kill(id(1)));
        world.run(at + 5 * SECOND);
        let reasons: Vec<&str> = world
            .peers
            .values()
            .filter_map(|peer| peer.agreement.paused())
            .collect();
        assert!(
            reasons.len() == 1 && reasons[0].contains("data"),
            "{reasons:?}"
        );
        let step = world.steps_made;
        let kept = world.peers[&id(2)].store.len();
        assert!(kept > 0);
        world.at(world.now, Event::Start(id(1), seed % 2 == 0));
        world.run_to_the_end(20 * SECOND);
        world.check_exact();
        assert!(
            world.steps_made <= 40 + 3,
            "{step}: it went on where it was"
        );
    }
}

#[test]
fn a_peer_that_stops_for_seconds_and_goes_on_does_no_harm() {
    for seed in seeds(100) {
        let n = 2 + (seed % 4) as u8;
        let mut world = World::started(seed, n, 1 + (seed / 2 % 2) as u8, 60);
        let victim = id(1 + (seed / 4 % u64::from(n)) as u8);
        let at = world.between(300, 2000) * MS;
        let long = world.between(200, 5000) * MS;
        world.at(at, Event::Freeze(victim, at + long));
        world.run_to_the_end(30 * SECOND);
        world.check_exact();
    }
}

#[test]
fn a_partition_that_heals_ends_in_one_exact_model() {
    for seed in seeds(100) {
        let n = 3 + (seed % 4) as u8;
        let mut world = World::started(seed, n, 1 + (seed / 4 % 3) as u8, 100);
        let n_apart = world.between(1, u64::from(n) - 1);
        let mut apart = BTreeSet::new();
        for _ in 0..n_apart {
            let peer = 1 + world.between(0, u64::from(n) - 1) as u8;
            apart.insert(id(peer));
        }
        let at = world.between(500, 3000) * MS;
        let heals = at + world.between(100, 9000) * MS;
        world.at(at, Event::Split(apart, heals));
        world.run(heals + SECOND);
        world.run_to_the_end(40 * SECOND);
        world.check_exact();
    }
}

#[test]
fn lost_and_late_messages_change_nothing() {
    for seed in seeds(60) {
        let n = 2 + (seed % 4) as u8;
        let mut world = World::started(seed, n, 2, 40);
        world.network.lost_of_1000 = 30;
        world.network.resent_of_1000 = 30;
        let victim = id(1 + (seed / 4 % u64::from(n)) as u8);
        let at = world.between(500, 2500) * MS;
        world.at(at, Event::Kill(victim));
        world.run_to_the_end(30 * SECOND);
        world.check_exact();
    }
}

#[test]
fn whatever_happens_the_result_is_the_same() {
    for seed in seeds(200) {
        let n = 3 + (seed % 4) as u8;
        let mut world = World::started(seed, n, 2, 100);
        world.line_every = 1 + seed / 4 % 4;
        world.block_bytes = [10_000, 100_000, 2_000_000][(seed / 16 % 3) as usize];
        for peer in 1..=(seed / 3 % 3) as u8 {
            world.roomy(peer);
        }
        world.config.copies = 1 + (seed / 9 % 2) as usize;
        if seed % 5 == 0 {
            world.config.start_peers = 1;
        }
        world.config.cutting = match seed % 7 {
            0 => Cutting::Static,
            1 => Cutting::Absorb,
            _ => Cutting::Adaptive,
        };
        world.network.lost_of_1000 = world.between(0, 20);
        world.network.resent_of_1000 = world.between(0, 30);
        for _ in 0..world.between(1, 6) {
            let peer = id(1 + world.between(0, u64::from(n) - 1) as u8);
            let at = world.between(300, 8000) * MS;
            match world.between(0, 4) {
                0 | 1 => {
                    world.at(at, Event::Kill(peer));
                    let back = at + world.between(20, 4000) * MS;
                    let from_disk = world.between(0, 1) == 0;
                    world.at(back, Event::Start(peer, from_disk));
                }
                2 => {
                    let until = at + world.between(100, 5000) * MS;
                    world.at(at, Event::Freeze(peer, until));
                }
                3 => {
                    let heals = at + world.between(100, 5000) * MS;
                    world.at(at, Event::Split(BTreeSet::from([peer]), heals));
                }
                _ => {
                    let slowdown = world.between(5, 40) as f64 / 10.0;
                    world.at(at, Event::Slow(peer, slowdown));
                }
            }
        }
        world.run(17 * SECOND);
        world.run_to_the_end(40 * SECOND);
        world.check_exact();
    }
}

#[test]
fn a_connection_that_breaks_and_is_made_again_costs_no_more_than_a_view() {
    for seed in seeds(60) {
        let n = 3 + (seed % 3) as u8;
        let mut world = World::started(seed, n, 2, 60);
        let at = world.between(1000, 2000) * MS;
        world.run(at);
        let one = 1 + (seed / 3 % u64::from(n)) as u8;
        let other = 1 + one % n;
        let n_views = world.n_views();
        world.break_between(id(one), id(other));
        let again = at + world.between(0, 4000) * MS;
        world.at(again, Event::Connect(id(one), id(other)));
        world.run_to_the_end(20 * SECOND);
        world.check_exact();
        assert!(world.n_views() <= n_views + 5, "{:?}", world.views);
    }
}

/// The lowest peer is no member and is the steward all the same, since it has just come or has few connections.
#[test]
fn a_steward_that_takes_no_part_in_a_view_ends_it_when_a_host_of_it_is_gone() {
    for seed in seeds(60) {
        let n = 3 + (seed % 3) as u8;
        let mut world = World::started(seed, n, 3, 150);
        // Too slow to be given anything.
        world.add(0, seed % 2 == 0, 1_000_000);
        world.at(1200 * MS, Event::Start(id(0), false));
        let at = world.between(1500, 3000) * MS;
        world.run(at);
        let view = world.view_of(1).unwrap();
        assert!(!view.has(id(0)));
        let hosts: Vec<_> = view.plan.hosts().collect();
        let victim = hosts[seed as usize / 3 % hosts.len()];
        match seed % 4 {
            0 => world.at(at, Event::Freeze(victim, at + 5 * SECOND)),
            _ => world.at(at, Event::Kill(victim)),
        }
        world.run(at + 2 * SECOND);
        let after = world.peers[&id(0)].agreement.view().cloned();
        let after = after.unwrap();
        assert!(world.all_closed() || after.stamp != view.stamp, "{after:?}");
        world.run_to_the_end(20 * SECOND);
        world.check_exact();
    }
}

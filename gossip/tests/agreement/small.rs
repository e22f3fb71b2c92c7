//! A handful of peers, many seeds.

use std::collections::BTreeSet;
use std::time::Duration;

use skein_gossip::time::Tick;

use crate::network::MS;
use crate::world::{Event, World, id};

fn seconds(s: f64) -> u64 {
    Duration::from_secs_f64(s).as_micros() as u64
}

#[test]
fn peers_start_together_and_close_with_one_model() {
    for seed in 0..20 {
        let mut world = World::started(seed, 4);
        world.run(seconds(5.0));
        for peer in 1..=4 {
            assert_eq!(world.members(peer).len(), 4, "seed {seed}, peer {peer}");
            assert!(world.peers[&id(peer)].training, "seed {seed}, peer {peer}");
        }
        world.at(seconds(6.0), Event::Stop(id(3)));
        world.run(seconds(15.0));
        assert!(world.all_closed(), "seed {seed}");
        // They are silent from now on, which is no reason to drop each other.
        world.run(seconds(40.0));
        for peer in 1..=4 {
            assert_eq!(world.members(peer).len(), 4, "seed {seed}, peer {peer}");
        }
    }
}

#[test]
fn a_kill_at_any_moment_never_keeps_the_rest_from_closing() {
    for seed in 0..150 {
        let mut world = World::started(seed, 4);
        let victim = id(1 + (seed % 4) as u16);
        let at = world.between(500, 16_000) * MS;
        world.at(at, Event::Kill(victim));
        // A second one later, often in the middle of the end.
        let second = id(1 + ((seed / 4 + 1) % 4) as u16);
        let at = world.between(9_500, 14_000) * MS;
        world.at(at, Event::Kill(second));
        world.at(seconds(4.0), Event::Start(id(9)));
        world.at(seconds(10.0), Event::Stop(id(9)));
        world.run(seconds(60.0));
        assert!(world.all_closed(), "seed {seed}: {:?}", world.peers.keys());
    }
}

#[test]
fn a_joiner_is_fed_and_trains() {
    for seed in 0..20 {
        let mut world = World::started(seed, 3);
        world.at(seconds(5.0), Event::Start(id(0)));
        world.run(seconds(10.0));
        assert_eq!(world.members(0).len(), 4, "seed {seed}");
        assert!(
            world.peers[&id(0)].training && world.peers[&id(0)].step > 0,
            "seed {seed}"
        );
    }
}

/// A newcomer with the lowest name is the steward at once: it must not drop members that it has not met yet.
#[test]
fn a_joiner_that_becomes_the_steward_drops_nobody_that_it_has_not_met() {
    for seed in 0..40 {
        let mut world = World::started(seed, 4);
        world.run(seconds(4.9));
        world.slowest_connection = 2500;
        world.smallest_view = usize::MAX;
        world.at(seconds(5.0), Event::Start(id(0)));
        world.run(seconds(15.0));
        assert_eq!(world.smallest_view, 5, "seed {seed}");
        for peer in 0..=4 {
            assert_eq!(world.members(peer).len(), 5, "seed {seed}, peer {peer}");
        }
    }
}

#[test]
fn the_work_of_a_peer_that_was_restarted_counts_twice_over() {
    for seed in 0..10 {
        let mut world = World::started(seed, 3);
        world.run(seconds(5.0));
        let before = world.peers[&id(2)].samples;
        world.at(seconds(5.0), Event::Kill(id(2)));
        world.at(seconds(5.0 + seed as f64 / 5.0), Event::Start(id(2)));
        world.run(seconds(12.0));
        let after = world.peers[&id(2)].samples;
        assert!(before > 0 && after > 0, "seed {seed}");
        let late = Tick(world.now);
        // A beat may be on its way: what was trained within one and a half beats is not known to others yet.
        let unknown = 32 * 6;
        for witness in [1, 3] {
            let counted = world.peers[&id(witness)].agreement.contributions()[&id(2)].samples;
            assert!(
                counted + 2 * unknown >= before + after && counted <= before + after,
                "seed {seed}, witness {witness} at {late:?}: {counted} of {before} + {after}"
            );
        }
    }
}

#[test]
fn a_paused_peer_is_dropped_and_comes_back() {
    for seed in 0..20 {
        let mut world = World::started(seed, 4);
        let victim = id(1 + (seed % 4) as u16);
        world.at(seconds(5.0), Event::Pause(victim, seconds(15.0)));
        world.run(seconds(12.0));
        let witness = 1 + ((seed + 1) % 4) as u16;
        assert_eq!(world.members(witness).len(), 3, "seed {seed}");
        world.run(seconds(25.0));
        for peer in 1..=4 {
            assert_eq!(world.members(peer).len(), 4, "seed {seed}, peer {peer}");
            assert!(world.peers[&id(peer)].training, "seed {seed}, peer {peer}");
        }
    }
}

#[test]
fn a_healed_partition_ends_in_one_view_and_says_what_was_lost() {
    for seed in 0..40 {
        let mut world = World::started(seed, 5);
        let apart = BTreeSet::from([id(1 + (seed % 5) as u16), id(1 + ((seed + 2) % 5) as u16)]);
        world.at(seconds(5.0), Event::Split(apart));
        world.at(seconds(12.0), Event::Heal);
        world.run(seconds(11.0));
        let sides: BTreeSet<usize> = (1..=5).map(|peer| world.members(peer).len()).collect();
        assert_eq!(
            sides,
            BTreeSet::from([2, 3]),
            "seed {seed}: both sides go on"
        );
        world.run(seconds(25.0));
        for peer in 1..=5 {
            assert_eq!(world.members(peer).len(), 5, "seed {seed}, peer {peer}");
            assert!(world.peers[&id(peer)].training, "seed {seed}, peer {peer}");
        }
        assert!(world.lost_samples > 0, "seed {seed}: the loss is told");
    }
}

#[test]
fn a_job_closes_without_a_model_only_where_nobody_has_one() {
    for seed in 0..20 {
        let n_diverged = 1 + (seed % 3) as u16;
        let mut world = World::started(seed, 3);
        world.diverged = (1..=n_diverged).map(id).collect();
        world.at(seconds(6.0), Event::Stop(id(3)));
        world.run(seconds(15.0));
        let closed: BTreeSet<Option<bool>> = world
            .peers
            .values()
            .map(|peer| peer.closed.map(|decision| decision.is_some()))
            .collect();
        let expected = BTreeSet::from([Some(n_diverged < 3)]);
        assert_eq!(closed, expected, "seed {seed}, {n_diverged} diverged");
    }
}

/// The steward itself, or another.
#[test]
fn a_member_that_judges_for_long_does_not_hold_up_the_end() {
    for seed in 0..20 {
        let mut world = World::started(seed, 4);
        world.slow = BTreeSet::from([id(1 + (seed % 4) as u16)]);
        world.at(seconds(6.0), Event::Stop(id(3)));
        world.run(seconds(16.0));
        assert!(world.all_closed(), "seed {seed}");
        // What it comes to in the end changes nothing.
        world.run(seconds(80.0));
        assert!(world.all_closed(), "seed {seed}");
    }
}

#[test]
fn a_latecomer_to_a_finished_job_is_given_its_model() {
    for seed in 0..10 {
        let mut world = World::started(seed, 2);
        world.at(seconds(5.0), Event::Stop(id(2)));
        world.run(seconds(10.0));
        assert!(world.all_closed(), "seed {seed}");
        world.at(seconds(11.0), Event::Start(id(3)));
        world.run(seconds(20.0));
        assert!(world.all_closed(), "seed {seed}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let trace = |seed| {
        let mut world = World::started(seed, 4);
        world.at(seconds(6.0), Event::Kill(id(1)));
        world.at(seconds(8.0), Event::Stop(id(2)));
        world.run(seconds(20.0));
        (
            world.n_events,
            format!("{:?}", world.peers[&id(2)].agreement),
        )
    };
    assert_eq!(trace(3), trace(3));
}

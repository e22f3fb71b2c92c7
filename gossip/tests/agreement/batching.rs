//! Samples follow speed, whoever joins, leaves, slows down or lies.

use std::time::Duration;

use skein_gossip::agreement::Batching;
use skein_gossip::batching::power::Fit;

use crate::network::MS;
use crate::world::{Event, World, id};

fn seconds(s: f64) -> u64 {
    Duration::from_secs_f64(s).as_micros() as u64
}

/// Peers 1 to `n`, each of which takes 3 ms per sample.
fn world(seed: u64, n: u16, global: Option<u32>) -> World {
    let mut world = World::new(seed, n.into());
    world.batching = Batching {
        weighted: true,
        global,
        grows: false,
        even_steps: true,
    };
    world.speeds = (0..=n + 3).map(|peer| (id(peer), 3 * MS)).collect();
    for peer in 1..=n {
        let at = world.between(0, 900) * MS;
        world.at(at, Event::Start(id(peer)));
    }
    world
}

fn is_constant(world: &World, global: u64) -> bool {
    let mut views = world.shared_out.iter();
    !world.shared_out.is_empty() && views.all(|(sum, least)| *sum == global && *least > 0)
}

#[test]
fn a_peer_throttled_to_a_third_has_its_new_share_within_five_seconds() {
    for seed in 0..10 {
        let mut world = world(seed, 4, None);
        world.run(seconds(15.0));
        assert!(is_constant(&world, 4 * 32), "seed {seed}");
        let before = world.batch(1, 3);
        assert!((30..=34).contains(&before), "seed {seed}: {before}");
        world.speeds.insert(id(3), 9 * MS);
        world.run(seconds(20.0));
        for peer in 1..=4 {
            let share = world.batch(peer, 3);
            // 128 at 1 : 1 : 1 : 1/3.
            assert!((11..=15).contains(&share), "seed {seed}: {share}");
        }
        world.speeds.insert(id(3), 3 * MS);
        world.run(seconds(28.0));
        let share = world.batch(2, 3);
        assert!((29..=35).contains(&share), "seed {seed}: {share}");
        assert!(is_constant(&world, 4 * 32), "seed {seed}");
    }
}

#[test]
fn a_global_batch_of_the_users_is_the_same_at_every_view() {
    for seed in 0..20 {
        let mut world = world(seed, 4, Some(100));
        world.speeds.insert(id(2), 12 * MS);
        world.at(seconds(5.0), Event::Start(id(0)));
        world.at(seconds(7.0), Event::Kill(id(1 + (seed % 4) as u16)));
        world.at(seconds(7.5), Event::Start(id(6)));
        world.at(seconds(11.0), Event::Kill(id(0)));
        world.at(seconds(12.0), Event::Start(id(1 + (seed % 4) as u16)));
        world.run(seconds(30.0));
        assert!(
            is_constant(&world, 100),
            "seed {seed}: {:?}",
            world.shared_out
        );
        assert_eq!(world.members(6).len(), 5, "seed {seed}");
    }
}

/// More members than samples: one each.
#[test]
fn nobody_ever_has_no_samples() {
    let mut world = world(1, 6, Some(4));
    world.at(seconds(5.0), Event::Kill(id(1)));
    world.at(seconds(8.0), Event::Kill(id(2)));
    world.at(seconds(11.0), Event::Kill(id(3)));
    world.run(seconds(20.0));
    assert!(world.shared_out.iter().all(|(_, least)| *least >= 1));
    let (last, _) = world.shared_out[world.shared_out.len() - 1];
    assert_eq!((world.members(4).len(), last), (3, 4));
}

#[test]
fn whoever_lies_about_its_speed_takes_the_samples_of_nobody_else() {
    let claims = [
        (0.0, 0.0),
        (0.0, f32::NAN),
        (f32::NAN, 1.0),
        (0.0, 1e30),
        (1e30, 1e-30),
        (0.0, f32::MIN_POSITIVE),
        (0.0, 1e-9),
        (0.0, 1.0),
        (3.6e9, 3.6e9),
        (3.6e9, 1.0),
        (-5.0, -5.0),
        (f32::INFINITY, f32::NEG_INFINITY),
    ];
    for (seed, (fixed_us, per_sample_us)) in claims.into_iter().enumerate() {
        let mut world = world(seed as u64, 5, Some(250));
        let lie = Fit {
            fixed_us,
            per_sample_us,
        };
        world.lies.insert(id(2), lie);
        world.run(seconds(15.0));
        assert!(is_constant(&world, 250), "{lie:?}");
        for honest in [1, 3, 4, 5] {
            let share = world.batch(1, honest);
            assert!((5..=65).contains(&share), "{lie:?}: {share} of 250");
        }
        // Nor does it keep the others from what is theirs.
        world.speeds.insert(id(4), 9 * MS);
        world.run(seconds(21.0));
        let (slow, fast) = (world.batch(1, 4), world.batch(1, 5));
        assert!(2 * slow <= fast + 1, "{lie:?}: {slow} {fast}");
    }
}

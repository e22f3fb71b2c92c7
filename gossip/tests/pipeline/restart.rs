//! The baseline that restarts all when a host falls out.

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::agreement::Cutting;

use crate::network::{MS, SECOND};
use crate::seeds;
use crate::world::{Event, World};

#[test]
fn all_restart_from_the_checkpoint_and_make_the_steps_since_again() {
    let mut redone = 0;
    for seed in seeds(40) {
        let n = 3 + (seed % 3) as u8;
        let mut world = World::started(seed, n, 2, 150);
        world.config.cutting = Cutting::Restart;
        let at = world.between(2500, 4500) * MS;
        world.run(at);
        let hosts: Vec<PeerId> = world.view_of(1).unwrap().plan.hosts().collect();
        let (victim, n_views) = (hosts[seed as usize % hosts.len()], world.n_views());
        let witness = world.peers.keys().copied().find(|peer| *peer != victim);
        let witness = witness.unwrap();
        let reached = world.peers[&witness].agreement.step();
        assert!(
            reached < 150,
            "seed {seed}: the job is over before the kill"
        );
        world.kill(victim);
        // Should it come back, it waits for the next restart.
        if seed % 2 == 1 {
            world.at(at + 4 * SECOND, Event::Start(victim, true));
        }
        world.run_to_the_end(60 * SECOND);
        world.check_exact();
        assert_eq!(world.n_views(), n_views + 1, "seed {seed}: one more view");
        let last = world
            .views
            .values()
            .max_by_key(|life| life.adopted)
            .unwrap();
        // What a takeover would go on from is a few steps old; the checkpoint is up to twenty.
        assert!(last.from <= reached, "seed {seed}: {last:?} of {reached}");
        redone += reached - last.from;
        assert!(
            last.from + 30 > reached,
            "seed {seed}: {last:?} of {reached}"
        );
        // All had to measure themselves first.
        assert!(
            last.adopted >= at + 300 * MS,
            "seed {seed}: {last:?}, killed at {at}"
        );
        assert!(
            world.steps_made >= 150 + reached - last.from - 2,
            "seed {seed}"
        );
    }
    assert!(redone > 5 * seeds(40).count() as u64, "{redone} in all");
}

/// Whoever dies while the others restart is done without, and a second loss costs a second restart.
#[test]
fn a_kill_in_the_middle_of_a_restart_and_one_after_it_are_survived() {
    for seed in seeds(60) {
        let mut world = World::started(seed, 5, 5, 120);
        world.config.cutting = Cutting::Restart;
        let at = world.between(2500, 4000) * MS;
        world.run(at);
        let victims: Vec<PeerId> = world.peers.keys().copied().collect();
        let first = seed as usize % 5;
        world.at(at, Event::Kill(victims[first]));
        let second = at + world.between(0, 700) * MS;
        world.at(second, Event::Kill(victims[(first + 2) % 5]));
        let third = second + world.between(700, 3000) * MS;
        world.at(third, Event::Kill(victims[(first + 3) % 5]));
        world.run_to_the_end(60 * SECOND);
        world.check_exact();
    }
}

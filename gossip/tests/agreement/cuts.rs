//! Networks that fall apart for less time than their connections live, so that each side hears late what the other has long given up.

use std::collections::BTreeSet;
use std::time::Duration;

use skein_gossip::ids::PeerId;

use crate::network::MS;
use crate::world::{Event, World, id};

fn seconds(s: f64) -> u64 {
    Duration::from_secs_f64(s).as_micros() as u64
}

/// Peers 1 to `n`, a cut between some of them and the rest from `cut` on, for `cut_ms`.
fn cut_in_two(seed: u64, n: u16, cut_at: u64, cut_ms: (u64, u64)) -> World {
    let mut world = World::started(seed, n);
    world.network.in_order = true;
    let n_apart = world.between(1, u64::from(n) - 1) as usize;
    let mut apart = BTreeSet::new();
    while apart.len() < n_apart {
        apart.insert(id(world.between(1, u64::from(n)) as u16));
    }
    let mended = cut_at + world.between(cut_ms.0, cut_ms.1) * MS;
    world.at(cut_at, Event::Cut(apart));
    world.at(mended, Event::Mend);
    world
}

/// Whoever is up and has not closed.
fn open(world: &World) -> Vec<PeerId> {
    let open = world.peers.iter();
    let open = open.filter(|(_, peer)| !matches!(peer.closed, Some(Some(_))));
    open.map(|(peer, _)| *peer).collect()
}

#[test]
fn sides_that_meet_again_after_a_short_cut_train_in_one_view() {
    for seed in 0..400 {
        let n = 3 + (seed % 4) as u16;
        let mut world = cut_in_two(seed, n, seconds(5.0), (2500, 5000));
        world.run(seconds(30.0));
        for peer in 1..=n {
            let members = world.members(peer).len();
            assert_eq!(members, n.into(), "seed {seed}, peer {peer}");
            assert!(world.peers[&id(peer)].training, "seed {seed}, peer {peer}");
        }
    }
}

/// A job that needs as many peers to begin as there are goes on without the one that is lost.
#[test]
fn a_kill_and_a_cut_leave_the_rest_training_together() {
    for seed in 0..400 {
        let n = 4 + (seed % 3) as u16;
        let mut world = cut_in_two(seed, n, seconds(7.0), (2500, 5000));
        let victim = id(1 + (seed / 3 % u64::from(n)) as u16);
        let at = world.between(4_000, 13_000) * MS;
        world.at(at, Event::Kill(victim));
        world.run(seconds(35.0));
        let rest: Vec<PeerId> = world.peers.keys().copied().collect();
        for peer in &rest {
            let state = &world.peers[peer];
            let view = state.agreement.view();
            let members: Vec<PeerId> = view.map_or(Vec::new(), |view| {
                view.members.iter().map(|member| member.peer).collect()
            });
            assert_eq!(members, rest, "seed {seed}, {}", peer.short());
            assert!(state.training, "seed {seed}, {}", peer.short());
        }
    }
}

/// A cut, a kill and a restart around the end of a job, in any order.
#[test]
fn a_cut_and_a_kill_around_the_end_never_keep_the_rest_from_closing() {
    for seed in 0..1500 {
        let n = 3 + (seed % 3) as u16;
        let cut_at = seconds(4.5) + seed * 7919 % 7_500 * MS;
        let cut_ms = 500 + seed * 104_729 % 5_500;
        let mut world = cut_in_two(seed, n, cut_at, (cut_ms, cut_ms));
        let at = world.between(5_000, 14_000) * MS;
        // Both sides have enough, and each thinks that the other is gone.
        world.may_end_apart = cut_ms > 2000 && at < cut_at + cut_ms * MS;
        world.at(at, Event::Stop(id(1 + (seed / 3 % u64::from(n)) as u16)));
        let victim = id(1 + (seed / 7 % u64::from(n)) as u16);
        if seed % 4 > 0 {
            let at = world.between(5_000, 14_000) * MS;
            world.at(at, Event::Kill(victim));
            if seed % 4 == 2 {
                let at = at + world.between(100, 6_000) * MS;
                world.at(at, Event::Start(victim));
            }
        }
        // Where the one that had enough was killed or cut off before it could say so.
        for peer in 1..=n {
            world.at(seconds(40.0), Event::Stop(id(peer)));
        }
        world.run(seconds(75.0));
        let mut open = open(&world);
        // One that came back and met nobody before it was to end has nothing to end with.
        let met_nobody =
            matches!(world.peers.get(&victim), Some(peer) if peer.closed == Some(None));
        open.retain(|peer| *peer != victim || !met_nobody);
        assert!(open.is_empty(), "seed {seed}: {open:?}");
    }
}

//! Many peers in one job: they start, some die and some join, all agree on one view and close with one model.
//!
//! Three hundred, which take seconds; a thousand with
//! `SKEIN_TEST_PEERS=1000 cargo test -p skein-gossip --test agreement large -- --nocapture`, which also prints what it took.

use std::collections::BTreeSet;
use std::time::Instant;

use skein_gossip::ids::PeerId;
use skein_gossip::membership::Config;
use skein_gossip::view::Stamp;

use crate::network::{MS, Traffic};
use crate::world::{Event, Peer, Spread, World, id};

const SECOND: u64 = 1000 * MS;

/// What happens to a message now and then.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    Late,
    Lost,
}

fn n_peers() -> u16 {
    std::env::var("SKEIN_TEST_PEERS").map_or(300, |n| n.parse().unwrap())
}

struct Run {
    world: World,
    began: Instant,
    /// Time, events and traffic at the end of the phase before.
    before: (u64, u64, Traffic, f64),
}

impl Run {
    fn new(seed: u64, n_peers: u16, mishap: Mishap) -> Self {
        let mut world = World::started(seed, n_peers);
        world.step_every = 1000;
        world.network.in_order = true;
        match mishap {
            Mishap::Late => world.network.late_of_1000 = 20,
            Mishap::Lost => world.network.lost_of_1000 = 20,
        }
        let before = (0, 0, Traffic::default(), 0.0);
        Self {
            world,
            began: Instant::now(),
            before,
        }
    }

    /// Runs until `done`, looked at every 50 ms, and fails after `patience` seconds of virtual time.
    fn until(&mut self, phase: &str, patience: u64, done: impl Fn(&World) -> bool) {
        let deadline = self.world.now + patience * SECOND;
        while !done(&self.world) {
            assert!(
                self.world.now < deadline,
                "{phase} takes longer than {patience} s"
            );
            self.world.run(self.world.now + 50 * MS);
        }
        self.report(phase);
    }

    fn report(&mut self, phase: &str) {
        let (at, n_events, traffic, wall) = self.before;
        let world = &self.world;
        let seconds = (world.now - at) as f64 / SECOND as f64;
        let wall_now = self.began.elapsed().as_secs_f64();
        let events = world.n_events - n_events;
        let peers = world.peers.len() as f64;
        let sent = world.network.traffic;
        println!(
            "{phase}: {seconds:.2} s in {:.2} s, {events} events, {:.0} a second; per peer and second:",
            wall_now - wall,
            events as f64 / (wall_now - wall)
        );
        for (what, now, before) in [
            ("beats", sent.beats, traffic.beats),
            ("views", sent.views, traffic.views),
            ("changes", sent.changes, traffic.changes),
        ] {
            let messages = (now.messages - before.messages) as f64 / peers / seconds;
            let bytes = (now.bytes - before.bytes) as f64 / peers / seconds;
            println!("    {messages:.3} {what}, {bytes:.0} bytes");
        }
        self.before = (world.now, world.n_events, sent, wall_now);
    }
}

fn views(world: &World) -> BTreeSet<Option<(Stamp, usize)>> {
    let view = |peer: &Peer| {
        let view = peer.agreement.view()?;
        Some((view.stamp, view.members.len()))
    };
    world.peers.values().map(view).collect()
}

/// All hold one view, of exactly those that are up, and train.
fn all_train_together(world: &World) -> bool {
    let views = views(world);
    let whole = |view: &Option<(Stamp, usize)>| {
        view.is_some_and(|(_, n_members)| n_members == world.peers.len())
    };
    views.len() == 1 && views.iter().all(whole) && world.peers.values().all(|peer| peer.training)
}

fn a_large_job(seed: u64, n_peers: u16, mishap: Mishap) {
    let mut run = Run::new(seed, n_peers, mishap);
    run.until("start", 30, all_train_together);

    // One dies or joins every second; the first of all, who is the steward, dies too.
    let begin = run.world.now;
    for second in 0..20u16 {
        let at = begin + u64::from(second) * SECOND + run.world.between(0, 900) * MS;
        let event = match second {
            10 => Event::Kill(id(1)),
            _ if second % 2 == 0 => {
                let n = run.world.between(2, n_peers.into());
                Event::Kill(id(n as u16))
            }
            // Below all others, and above.
            11 => Event::Start(id(0)),
            _ => Event::Start(id(n_peers + second)),
        };
        run.world.at(at, event);
    }
    run.world.run(begin + 20 * SECOND);
    run.report("churn");
    run.until("settling", 30, all_train_together);

    // In the time of a beat each sends each other one, and nothing else.
    let before = run.world.network.traffic;
    let every = Config::default()
        .stretched(run.world.peers.len())
        .beat_every;
    run.world.run(run.world.now + every.as_micros() as u64 - 1);
    let beats = run.world.network.traffic.beats.messages - before.beats.messages;
    let n_peers = run.world.peers.len() as u64;
    assert!(beats <= n_peers * (n_peers - 1), "{beats} beats");
    run.report("quiet");

    let somebody = *run.world.peers.keys().nth(7).unwrap();
    run.world.at(run.world.now, Event::Stop(somebody));
    run.until("end", 60, World::all_closed);
    spread(&run.world);
}

/// How long views took from their proposal to the last member, and until all knew that all hold them.
fn spread(world: &World) {
    let after = |at: u64, view: &Spread| at.saturating_sub(view.proposed) / MS;
    let views = world.spread.values();
    let mut held: Vec<u64> = views.map(|view| after(view.last_adopted, view)).collect();
    held.sort_unstable();
    println!(
        "{} views; held by all after {} ms (median; most {} ms)",
        held.len(),
        held[held.len() / 2],
        held[held.len() - 1]
    );
    for (number, view) in &world.spread {
        if view.n_agreed > 1 {
            println!(
                "view {number} known by {} to be held by all, after {} ms",
                view.n_agreed,
                after(view.agreed_last, view)
            );
        }
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM"));
    println!("most memory so far: {}", peak.unwrap_or("unknown"));
}

/// More than few, so that what is new is told to the steward alone.
#[test]
fn both_sides_of_a_large_partition_find_each_other_again() {
    for (seed, mishap) in [(5, Mishap::Late), (6, Mishap::Lost)] {
        let mut run = Run::new(seed, 150, mishap);
        run.until("start", 30, all_train_together);
        let apart: BTreeSet<PeerId> = (1..=60).map(|n| id(2 * n)).collect();
        run.world.at(run.world.now, Event::Split(apart));
        run.until("split", 30, |world| {
            let sizes = views(world);
            let sizes: Vec<usize> = sizes.iter().flatten().map(|(_, size)| *size).collect();
            sizes == [90, 60] || sizes == [60, 90]
        });
        assert_eq!(run.world.lost_samples, 0);
        run.world.run(run.world.now + 3 * SECOND);
        run.world.at(run.world.now, Event::Heal);
        run.until("heal", 30, all_train_together);
        assert!(run.world.lost_samples > 0, "the loss is told");
    }
}

#[test]
fn many_agree_on_one_view_and_one_model_though_messages_are_late() {
    a_large_job(1, n_peers(), Mishap::Late);
}

#[test]
fn many_agree_on_one_view_and_one_model_though_messages_are_lost() {
    a_large_job(2, n_peers(), Mishap::Lost);
}

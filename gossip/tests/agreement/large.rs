//! A thousand peers in one job: they start, some die and some join, all agree on one view and close with one model.
//!
//! `cargo test -p skein-gossip --test agreement large -- --nocapture` also prints what it took.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use skein_gossip::ids::PeerId;
use skein_gossip::message::Message;
use skein_gossip::view::Stamp;

use crate::network::{MS, Traffic};
use crate::world::{Event, World, id};

const SECOND: u64 = 1000 * MS;
const N_PEERS: u16 = 1000;
/// Beats that a peer may send or hear per second beyond the regular ones: news, and those of who lags.
const N_BEATS: u64 = 160;

/// What happens to a message now and then.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    Late,
    Lost,
}

struct Run {
    world: World,
    began: Instant,
    /// Time, events and traffic at the end of the phase before.
    before: (u64, u64, Traffic, f64),
}

impl Run {
    fn new(seed: u64, mishap: Mishap) -> Self {
        let mut world = World::started(seed, N_PEERS);
        world.step_every = 1000;
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
            if self.world.now >= deadline - 50 * MS {
                println!("{:?}", views(&self.world));
                let lowest = self.world.peers.first_key_value().unwrap();
                let view = lowest.1.agreement.view().unwrap();
                for m in &view.members {
                    if !self.world.peers.contains_key(&m.peer) {
                        println!("dead {:?} {:?} of {:?}", m, lowest.1.agreement.heard().contains_key(&m.peer), lowest.0);
                    }
                }
                for (p, q) in &self.world.peers {
                    if !view.contains(*p) { println!("out {p:?} {:?}", lowest.1.agreement.heard().get(p)); }
                    if !q.training { println!("not training {p:?} {:?}", q.agreement.own_beat()); }
                }
            }
            assert!(self.world.now < deadline, "{phase} takes longer than {patience} s");
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
        let rate = |now: u64, before: u64| (now - before) as f64 / peers / seconds;
        let sent = world.network.traffic;
        println!(
            "{phase}: {seconds:.2} s in {:.2} s, {events} events, {:.0} a second; per peer and second {:.0} beats of {:.0} bytes, \
             {:.2} views of {:.0} bytes",
            wall_now - wall,
            events as f64 / (wall_now - wall),
            rate(sent.beats.messages, traffic.beats.messages),
            rate(sent.beats.bytes, traffic.beats.bytes)
                / rate(sent.beats.messages, traffic.beats.messages),
            rate(sent.views.messages, traffic.views.messages),
            rate(sent.views.bytes, traffic.views.bytes)
                / rate(sent.views.messages, traffic.views.messages),
        );
        self.before = (world.now, world.n_events, sent, wall_now);
    }
}

fn views(world: &World) -> BTreeSet<Option<(Stamp, usize)>> {
    let view = |peer: &crate::world::Peer| {
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

fn a_large_job(seed: u64, mishap: Mishap) {
    let mut run = Run::new(seed, mishap);
    run.until("start", 30, all_train_together);

    // One dies or joins every second; the first of all, who is the steward, dies too.
    let begin = run.world.now;
    for second in 0..20u16 {
        let at = begin + u64::from(second) * SECOND + run.world.between(0, 900) * MS;
        let event = match second {
            10 => Event::Kill(id(1)),
            _ if second % 2 == 0 => {
                let n = run.world.between(2, N_PEERS.into());
                Event::Kill(id(n as u16))
            }
            // Below all others, and above.
            11 => Event::Start(id(0)),
            _ => Event::Start(id(N_PEERS + second)),
        };
        run.world.at(at, event);
    }
    run.world.run(begin + 20 * SECOND);
    run.report("churn");
    let sent = run.before.2.beats;
    run.until("settling", 8, all_train_together);

    run.world.run(run.world.now + 10 * SECOND);
    let quiet = run.world.network.traffic.beats.messages - run.before.2.beats.messages;
    assert!(quiet <= N_BEATS * 11 * u64::from(N_PEERS), "{quiet} beats in 10 s");
    run.report("quiet");

    run.world.at(run.world.now, Event::Stop(id(7)));
    run.until("end", 60, World::all_closed);
    let _ = sent;
    spread(&run.world);
}

fn spread(world: &World) {
    for (number, view) in &world.spread {
        let after = |at: u64| at.saturating_sub(view.proposed) / MS;
        println!(
            "view {number}: held by all after {} ms, known to be after {} ms",
            after(view.last_adopted),
            after(view.agreed_last)
        );
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{:?}", status.lines().find(|line| line.starts_with("VmHWM")));
}

#[test]
fn late() {
    a_large_job(1, Mishap::Late);
}

#[test]
fn lost() {
    a_large_job(2, Mishap::Lost);
}

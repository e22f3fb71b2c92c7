//! The devices of a simulated run: processes that start and end, and the connections between them.

use super::event::Event;
use super::learner::Learner;
use super::peer::Peer;
use super::world::{SECOND, World};
use skein_netem::link::{Nanos, NodeIndex, sub_seed};
use skein_netem::scenario::Problem;

/// Peers hear of each other by mDNS within this time of a start: in 60 real starts 0.2 to 2 s, median 1 s.
const DISCOVERY: (Nanos, Nanos) = (200_000_000, 1_800_000_000);
/// Round trips of TCP, the mesh key, Noise and Yamux before a connection carries messages.
const HANDSHAKE: u64 = 4;

impl World<'_> {
    pub(super) fn start(&mut self, rank: NodeIndex) -> Result<(), String> {
        if self.devices[rank].peer.is_some() {
            return Ok(());
        }
        let node = &self.scenario.nodes[rank];
        self.starts += 1;
        let id = self.ids[rank];
        let learner = match (&self.scenario.sim.problem, &self.data) {
            (Problem::Toy { dimensions }, _) => {
                let seed = sub_seed(self.scenario.seed, self.starts, 12);
                Learner::toy(*dimensions, &self.job.file, seed)
            }
            (Problem::Job, Some(data)) => Learner::of_job(&self.job.file, data)?,
            (Problem::Job, None) => return Err("the job has no data".into()),
        };
        let device = &mut self.devices[rank];
        device.life += 1;
        device.is_stopped = false;
        device.lives.push([self.now as f64 / 1e9, f64::NAN]);
        let who = (id, self.starts);
        let cores = (device.share, node.threads);
        let disk = device.disk.clone();
        device.peer = Some(Peer::new(
            self.now,
            self.job.clone(),
            who,
            learner,
            cores,
            disk,
        )?);
        for other in 0..self.devices.len() {
            if other != rank && self.devices[other].peer.is_some() {
                let found = self.between(DISCOVERY);
                self.meet(rank, other, found);
            }
        }
        Ok(())
    }

    /// Two devices connect this much later, if they reach each other.
    pub(super) fn meet(&mut self, a: NodeIndex, b: NodeIndex, after: Nanos) {
        let trip = self.transport.delay(a, b) + self.transport.delay(b, a);
        let at = self.now + after + HANDSHAKE * trip;
        let ends = [a, b].map(|rank| (rank, self.devices[rank].life));
        self.queue.push(at, Event::Connected(ends));
    }

    pub(super) fn on_connected(&mut self, ends: [(NodeIndex, u32); 2]) -> Result<(), String> {
        let [(a, _), (b, _)] = ends;
        let is_current = |(rank, life): (NodeIndex, u32)| {
            self.devices[rank].life == life && self.devices[rank].peer.is_some()
        };
        if !ends.into_iter().all(is_current) || self.transport.is_connected(a, b) {
            return Ok(());
        }
        let reaches = self.transport.fabric.reaches(a, b) && self.transport.fabric.reaches(b, a);
        if !reaches || ends.iter().any(|(rank, _)| self.devices[*rank].is_stopped) {
            // Dialled again after a while.
            let pause = self.between((SECOND, 3 * SECOND));
            self.meet(a, b, pause);
            return Ok(());
        }
        self.transport.connect(a, b);
        for (rank, other) in [(a, b), (b, a)] {
            let id = self.ids[other];
            if let Some(peer) = &mut self.devices[rank].peer {
                peer.connected(self.now, id);
            }
            self.after(rank)?;
        }
        Ok(())
    }

    /// The peer's process is gone; the others learn it from their connections.
    pub(super) fn gone(&mut self, rank: NodeIndex) {
        let seconds = self.seconds();
        let device = &mut self.devices[rank];
        let Some(mut peer) = device.peer.take() else {
            return;
        };
        device.disk = peer.disk.take();
        self.checks.trained(&peer, true);
        device.used += peer.used;
        device.is_stopped = false;
        device.held.clear();
        device.inbox.clear();
        if let Some(life) = device.lives.last_mut() {
            life[1] = seconds;
        }
        let id = self.ids[rank];
        for other in 0..self.devices.len() {
            if other == rank || !self.transport.is_connected(rank, other) {
                continue;
            }
            let notice = self.transport.delay(rank, other);
            let reaches = self.transport.fabric.reaches(rank, other);
            self.transport.disconnect(rank, other);
            // Across a cut nobody says that a connection is gone; silence must do.
            if reaches {
                let end = (other, self.devices[other].life);
                self.queue.push(self.now + notice, Event::Lost(end, id));
            }
        }
        self.look_for_end();
    }
}

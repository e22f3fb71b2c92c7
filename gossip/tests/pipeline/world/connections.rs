//! Connections open and break, partitions come and go, messages are sent.

use std::collections::BTreeSet;

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::agreement::Input;

use super::{Event, Process, World};
use crate::network::{Lane, MS, SECOND};

impl World {
    pub(super) fn connect(&mut self, a: PeerId, b: PeerId) {
        let (Some(one), Some(other)) = (self.process(a), self.process(b)) else {
            return;
        };
        if !self.network.reaches(a, b) {
            return;
        }
        self.network.open(a, b);
        self.at(self.now, Event::Input(one, Input::Connected(b)));
        self.at(self.now, Event::Input(other, Input::Connected(a)));
    }

    pub(crate) fn break_between(&mut self, a: PeerId, b: PeerId) {
        if let Some(connection) = self.network.connection(a, b) {
            self.break_off(a, b, connection);
        }
    }

    pub(super) fn break_off(&mut self, a: PeerId, b: PeerId, connection: u64) {
        // Where another has been opened the driver reports nothing.
        if self.network.connection(a, b) != Some(connection) {
            return;
        }
        self.network.close(a, b);
        for (peer, other) in [(a, b), (b, a)] {
            if let Some(process) = self.process(peer) {
                self.at(self.now, Event::Input(process, Input::Disconnected(other)));
            }
        }
    }

    pub(super) fn split(&mut self, apart: BTreeSet<PeerId>, heals: u64) {
        self.network.split(apart, heals);
        // Connections across break at last, unless it heals before.
        let all: Vec<PeerId> = self.peers.keys().copied().collect();
        let breaks = self.now + self.between(1, 4) * SECOND;
        for (i, a) in all.iter().enumerate() {
            for b in &all[i + 1..] {
                if let Some(connection) = self.network.connection(*a, *b)
                    && !self.network.reaches(*a, *b)
                    && breaks < heals
                {
                    self.at(breaks, Event::Break(*a, *b, connection));
                }
            }
        }
        self.at(heals, Event::Heal);
    }

    pub(super) fn heal(&mut self) {
        self.network.heal();
        let all: Vec<PeerId> = self.peers.keys().copied().collect();
        for (i, a) in all.iter().enumerate() {
            for b in &all[i + 1..] {
                if self.network.connection(*a, *b).is_none() {
                    let at = self.now + self.between(1, 300) * MS;
                    self.at(at, Event::Connect(*a, *b));
                }
            }
        }
    }

    pub(super) fn send(
        &mut self,
        from: PeerId,
        to: PeerId,
        lane: Lane,
        event: impl FnOnce(Process, u64) -> Event,
    ) {
        if let Some(process) = self.process(to)
            && let Some(connection) = self.network.connection(from, to)
            && let Some(at) = self
                .network
                .arrival(&mut self.rng, self.now, (from, to), lane)
        {
            self.at(at, event(process, connection));
        }
    }
}

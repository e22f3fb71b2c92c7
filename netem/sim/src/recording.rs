//! What a simulated run leaves behind.

use super::event::Event;
use super::peer::Peer;
use super::world::{SECOND, World};
use skein_netem::link::Nanos;
use skein_netem::record::{NodeRecord, PairTraffic, Record, Traffic, Usage};

/// Samples of traffic and usage that a record keeps.
const MOST_SAMPLES: u64 = 600;
/// Runs of more nodes keep no traffic but that of the end.
const MANY: usize = 64;

impl World<'_> {
    pub(super) fn sample(&mut self) {
        let end = self.scenario.end.after.as_nanos() as Nanos;
        let every = (end / MOST_SAMPLES).max(SECOND);
        if self.devices.len() <= MANY {
            self.sample_now();
        }
        self.queue.push(self.now + every, Event::Sample);
    }

    fn sample_now(&mut self) {
        let t = self.seconds();
        let counters = self.transport.fabric.counters();
        let pairs = counters.map(|((from, to), counters)| PairTraffic {
            from,
            to,
            bytes: counters.bytes,
            delivered: counters.delivered_bytes,
            dropped: counters.dropped_queue + counters.dropped_line + counters.dropped_cut,
        });
        self.traffic.push(Traffic {
            t,
            pairs: pairs.collect(),
        });
        for (usage, device) in self.usage.iter_mut().zip(&self.devices) {
            let peer = device.peer.as_ref();
            usage.push(Usage {
                t,
                cpu_s: (device.used + peer.map_or(0, |peer| peer.used)) as f64 / 1e9,
                rss_bytes: peer.map_or(0, Peer::arena_bytes),
            });
        }
    }

    pub(super) fn record(mut self, speed: f64) -> Record {
        self.sample_now();
        let end = self.seconds();
        for device in &self.devices {
            if let Some(peer) = &device.peer {
                self.hash.update(&peer.step().to_le_bytes());
                self.hash.update(&peer.weights_hash());
            }
        }
        let nodes = self.scenario.nodes.iter().zip(self.devices).zip(self.usage);
        let nodes = nodes
            .zip(&self.ids)
            .map(|(((node, mut device), usage), id)| {
                for life in &mut device.lives {
                    if life[1].is_nan() {
                        life[1] = end;
                    }
                }
                NodeRecord {
                    name: node.name.clone(),
                    group: node.group.clone(),
                    cpu: node.cpu,
                    peer: Some(id.short()),
                    metrics: device.metrics,
                    usage,
                    lives: device.lives,
                }
            });
        Record {
            scenario: self.scenario.name.clone(),
            variant: self.scenario.variant.clone(),
            engine: "sim".into(),
            seed: self.scenario.seed,
            duration_s: end,
            machine: "virtual".into(),
            nodes: nodes.collect(),
            traffic: self.traffic,
            marks: self.marks,
            not_applied: Vec::new(),
            switch_cpu_s: None,
            trace_hash: Some(self.hash.finalize().to_hex().to_string()),
            speed: Some(speed),
        }
    }
}

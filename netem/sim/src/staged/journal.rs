//! What the nodes of such a run write, carry and use, for its record.

use std::collections::{BTreeMap, VecDeque};

use serde_json::json;
use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::plan::{Member, Stage};
use skein_netem::link::{Nanos, NodeIndex};
use skein_netem::record::{Mark, Metric, NodeRecord, PairTraffic, Record, Traffic, Usage};
use skein_netem::scenario::Scenario;
use skein_node::run::journal::{self, Entry, Share};

use super::posed::{Cut, Posed};
use super::recovering::Recovery;
use crate::line::line;

/// See the module's header.
#[derive(Debug)]
pub(super) struct Journal {
    metrics: Vec<Vec<Metric>>,
    /// Lines that were written since they were taken last: node and place.
    fresh: VecDeque<(NodeIndex, usize)>,
    marks: Vec<Mark>,
    bytes: BTreeMap<(NodeIndex, NodeIndex), u64>,
    cpu_s: Vec<f64>,
    /// Bytes that each node's stage takes.
    memory: Vec<u64>,
    lives: Vec<[f64; 2]>,
    traffic: Vec<Traffic>,
    usage: Vec<Vec<Usage>>,
    hash: blake3::Hasher,
}

impl Journal {
    pub(super) fn new(n_nodes: usize) -> Self {
        Self {
            metrics: vec![Vec::new(); n_nodes],
            fresh: VecDeque::new(),
            marks: Vec::new(),
            bytes: BTreeMap::new(),
            cpu_s: vec![0.0; n_nodes],
            memory: vec![0; n_nodes],
            lives: vec![[0.0, f64::NAN]; n_nodes],
            traffic: Vec::new(),
            usage: vec![Vec::new(); n_nodes],
            hash: blake3::Hasher::new(),
        }
    }

    pub(super) fn write(&mut self, now: Nanos, rank: NodeIndex, entry: &Entry<'_>) {
        if let Some(metric) = line(now, entry) {
            self.keep(rank, metric);
        }
    }

    fn keep(&mut self, rank: NodeIndex, metric: Metric) {
        self.fresh.push_back((rank, self.metrics[rank].len()));
        self.metrics[rank].push(metric);
    }

    /// The next line that nobody has looked at.
    pub(super) fn next_fresh(&mut self) -> Option<(NodeIndex, &Metric)> {
        let (rank, place) = self.fresh.pop_front()?;
        Some((rank, self.metrics[rank].get(place)?))
    }

    /// What goes into the run's hash.
    pub(super) fn take_in(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
    }

    pub(super) fn mark(&mut self, now: Nanos, nodes: &[NodeIndex], what: &str) {
        self.marks.push(Mark {
            t: now as f64 / 1e9,
            nodes: nodes.to_vec(),
            what: what.into(),
            detail: String::new(),
        });
    }

    /// All `nodes` know of a view.
    pub(super) fn told(
        &mut self,
        now: Nanos,
        posed: &Posed,
        (number, from_step, cut): (u64, u64, &Cut),
        nodes: &[NodeIndex],
    ) {
        self.hash.update(format!("{:?}", cut.plan).as_bytes());
        self.hash.update(&number.to_le_bytes());
        self.hash.update(&from_step.to_le_bytes());
        self.hash
            .update(&cut.prediction.step_seconds.to_bits().to_le_bytes());
        let short = |id: PeerId| id.short();
        let members = nodes.iter().map(|rank| short(posed.ids[*rank]));
        let members: Vec<String> = members.collect();
        let mut busy = cut.prediction.busy.iter().copied();
        let stage = |stage: &Stage| {
            let share = |member: &Member| Share {
                host: short(member.peer),
                samples: member.samples,
            };
            journal::Cut {
                host: stage.lead().map(short).unwrap_or_default(),
                first: stage.blocks.start,
                end: stage.blocks.end,
                slowdown: 1.0,
                busy: busy.by_ref().take(stage.members.len()).collect(),
                shares: match stage.is_shared() {
                    true => stage.members.iter().map(share).collect(),
                    false => Vec::new(),
                },
            }
        };
        let stages: Vec<journal::Cut> = cut.plan.stages.iter().map(stage).collect();
        for rank in nodes {
            let view = Entry::View {
                number,
                steward: members.iter().min().cloned().unwrap_or_default(),
                members: members.clone(),
                global_batch: u64::from(posed.batch),
                batches: Vec::new(),
            };
            self.write(now, *rank, &view);
            let entry = Entry::Cut {
                view: number,
                from_step,
                step_s: Some(cut.prediction.step_seconds),
                stages: stages.clone(),
            };
            self.write(now, *rank, &entry);
        }
        self.memory.fill(0);
        for (rank, bytes) in posed
            .hosts(&cut.plan)
            .into_iter()
            .zip(&cut.prediction.memory_bytes)
        {
            self.memory[rank] = *bytes;
        }
    }

    /// The hosts of a view made a step.
    pub(super) fn stepped(
        &mut self,
        now: Nanos,
        (posed, cores): (&Posed, &[f64]),
        (view, step, cut): (u64, u64, &Cut),
        sent: &BTreeMap<(NodeIndex, NodeIndex), u64>,
    ) {
        let seconds = cut.prediction.step_seconds;
        let samples = cut.plan.stages.iter().flat_map(|stage| {
            let own = |member: &Member| match stage.is_shared() {
                true => u64::from(member.samples) * posed.problem.work.n_micro as u64,
                false => u64::from(posed.batch),
            };
            stage.members.iter().map(own)
        });
        let hosts = posed.hosts(&cut.plan).into_iter().zip(samples);
        for ((rank, samples), busy) in hosts.zip(&cut.prediction.busy) {
            let computing_s = busy * seconds;
            self.cpu_s[rank] += computing_s * cores[rank];
            let entry = Entry::Step {
                step,
                train_loss: None,
                samples,
                computing_s,
                waiting_s: seconds - computing_s,
                communicating_s: 0.0,
                links: BTreeMap::new(),
                view,
                stage: None,
            };
            self.write(now, rank, &entry);
        }
        self.carried(sent);
    }

    pub(super) fn carried(&mut self, sent: &BTreeMap<(NodeIndex, NodeIndex), u64>) {
        for (pair, bytes) in sent {
            *self.bytes.entry(*pair).or_default() += bytes;
        }
    }

    /// A loss is over: the steps made before it are made again.
    pub(super) fn recovered(&mut self, now: Nanos, recovery: &Recovery, total_s: f64, redone: u64) {
        let fields = json!({
            "detection_s": recovery.detection_s,
            "planning_s": recovery.planning_s,
            "agreeing_s": recovery.agreeing_s,
            "fetching_s": recovery.fetching_s,
            "fetched_bytes": recovery.bytes,
            "redone_steps": redone,
            "redone_s": redone as f64 * recovery.cut.prediction.step_seconds,
            "total_s": total_s,
            "step_s": recovery.cut.prediction.step_seconds,
            "full_step_s": recovery.full_step_s,
        });
        if let serde_json::Value::Object(fields) = fields {
            let metric = Metric {
                t: now as f64 / 1e9,
                event: "recovered".into(),
                fields,
            };
            self.keep(recovery.steward, metric);
        }
    }

    pub(super) fn ended(&mut self, now: Nanos, rank: NodeIndex) {
        self.lives[rank][1] = now as f64 / 1e9;
        self.memory[rank] = 0;
    }

    pub(super) fn sample(&mut self, now: Nanos) {
        let t = now as f64 / 1e9;
        let pair = |(&(from, to), &bytes): (&(NodeIndex, NodeIndex), &u64)| PairTraffic {
            from,
            to,
            bytes,
            delivered: bytes,
            dropped: 0,
        };
        self.traffic.push(Traffic {
            t,
            pairs: self.bytes.iter().map(pair).collect(),
        });
        for (rank, usage) in self.usage.iter_mut().enumerate() {
            usage.push(Usage {
                t,
                cpu_s: self.cpu_s[rank],
                rss_bytes: self.memory[rank],
            });
        }
    }

    pub(super) fn record(
        mut self,
        scenario: &Scenario,
        posed: &Posed,
        (end, speed): (Nanos, f64),
    ) -> Record {
        self.sample(end);
        let end = end as f64 / 1e9;
        let parts = self.metrics.into_iter().zip(self.usage).zip(self.lives);
        let nodes = scenario.nodes.iter().zip(&posed.ids).zip(parts);
        let nodes = nodes.map(|((node, id), ((metrics, usage), mut life))| {
            if life[1].is_nan() {
                life[1] = end;
            }
            NodeRecord {
                name: node.name.clone(),
                group: node.group.clone(),
                cpu: node.cpu,
                peer: Some(id.short()),
                metrics,
                usage,
                lives: vec![life],
            }
        });
        Record {
            scenario: scenario.name.clone(),
            variant: scenario.variant.clone(),
            engine: "sim".into(),
            seed: scenario.seed,
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

//! The scenario as a planning problem, and the planners of the job's `cut` on it. Devices have the numbers of their nodes.

use std::collections::BTreeMap;

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::group::Place;
use skein_gossip::pipeline::plan::{Plan, Reduction, Stage};
use skein_model::model::Layout;
use skein_model::plan::{self, Data, Device, Group, Links, Prediction, Problem, Share, Work};
use skein_model::stage::BlockLayout;
use skein_netem::link::NodeIndex;
use skein_netem::scenario::{Node, Scenario};
use skein_node::job::JobFile;
use skein_node::job::strategy::{Kind, Pipeline};
use skein_node::planning::{self, HAND_OVER};

use super::profile::Measured;

/// Payload of a full frame: 1448 of 1514 bytes.
const PAYLOAD: f64 = 1448.0 / 1514.0;
/// Bytes per second between nodes of which no line has a limit.
const NO_LIMIT: f64 = 1e12;

/// See the module's header.
#[derive(Debug)]
pub(super) struct Posed {
    pub(super) ids: Vec<PeerId>,
    pub(super) problem: Problem,
    pub(super) layouts: Vec<BlockLayout>,
    pub(super) pipeline: Pipeline,
    /// Whether stages may have several hosts.
    is_hybrid: bool,
    /// Samples of a step.
    pub(super) batch: u32,
}

/// Who hosts what, and what that promises: figures in the order of the plan's hosts.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    pub(super) plan: Plan,
    pub(super) prediction: Prediction,
    /// Stages that may have several hosts.
    groups: Vec<Group>,
}

impl Posed {
    pub(super) fn new(
        scenario: &Scenario,
        file: &JobFile,
        ids: Vec<PeerId>,
    ) -> Result<Self, String> {
        let measured = Measured::of(scenario, file)?;
        let layouts = measured.layouts(file)?;
        let layout = Layout::new(&file.model, measured.input, measured.classes)
            .map_err(|error| error.to_string())?;
        let pipeline = file.strategy.pipeline;
        let work = planning::work(&pipeline, file.train.batch, measured.profile, &layouts);
        let least = layout.min_train_batch().unsigned_abs() as usize;
        Ok(Self {
            ids,
            problem: Problem {
                data: Data::Everywhere,
                least_samples: least.clamp(1, work.micro_batch.max(1)),
                work,
                devices: scenario.nodes.iter().map(device).collect(),
                links: links(scenario),
            },
            layouts,
            pipeline,
            is_hybrid: file.strategy.kind == Kind::Hybrid,
            batch: file.train.batch,
        })
    }

    pub(super) fn rank(&self, id: PeerId) -> Option<NodeIndex> {
        self.ids.iter().position(|other| *other == id)
    }

    /// Ranks of a plan's hosts, in its order.
    pub(super) fn hosts(&self, plan: &Plan) -> Vec<NodeIndex> {
        plan.hosts().filter_map(|host| self.rank(host)).collect()
    }

    /// Bytes of a copy of a block.
    pub(super) fn copy_bytes(&self, block: usize) -> u64 {
        self.layouts
            .get(block)
            .map_or(0, |layout| layout.encoded_len() as u64)
    }

    /// The plan of the job's planner for these nodes.
    ///
    /// # Errors
    /// In words: why there is none.
    pub(super) fn planned(&self, nodes: &[NodeIndex]) -> Result<Cut, String> {
        let problem = self.among(nodes);
        if self.is_hybrid {
            let found = planning::in_groups(self.pipeline.cut, &problem);
            let found = found.map_err(|error| error.to_string())?;
            return self.cut(nodes, found.groups);
        }
        let mut best: Option<Cut> = None;
        let mut reason = "no node is there".to_owned();
        // Each in turn as the one that has the first stage, as nodes try those that hold the data.
        for first in 0..nodes.len() {
            let mut order = nodes.to_vec();
            order.swap(0, first);
            let problem = self.among(&order);
            let found = planning::in_a_row(
                self.pipeline.cut,
                &problem.work,
                &problem.devices,
                &problem.links,
            );
            let (placements, prediction) = match found {
                Ok(found) => found,
                Err(error) => {
                    reason = error.to_string();
                    continue;
                }
            };
            let least = best
                .as_ref()
                .map_or(f64::INFINITY, |best| best.prediction.step_seconds);
            if prediction.step_seconds < least {
                let stage = |placement: &plan::Placement| {
                    let blocks = placement.blocks.start as u16..placement.blocks.end as u16;
                    Stage::alone(self.ids[order[placement.device]], blocks)
                };
                best = Some(Cut {
                    plan: Plan {
                        stages: placements.iter().map(stage).collect(),
                    },
                    prediction,
                    groups: Vec::new(),
                });
            }
        }
        best.ok_or(reason)
    }

    /// A plan near `cut` for these nodes and `lost`, without that one. None where the job's planner makes none, as nodes'.
    pub(super) fn near(&self, cut: &Cut, nodes: &[NodeIndex], lost: NodeIndex) -> Option<Cut> {
        if !self.is_hybrid || self.pipeline.cut.baseline().is_some() {
            return None;
        }
        let mut all = nodes.to_vec();
        all.push(lost);
        all.sort_unstable();
        let of = |rank: NodeIndex| all.iter().position(|other| *other == rank);
        let groups = renumbered(&cut.groups, of)?;
        let near = plan::replan(&self.among(&all), &groups, of(lost)?).ok()?;
        self.cut(&all, near.groups).ok()
    }

    /// What groups among `nodes` promise.
    fn cut(&self, nodes: &[NodeIndex], groups: Vec<Group>) -> Result<Cut, String> {
        let groups = renumbered(&groups, |device| nodes.get(device).copied());
        let groups = groups.ok_or("a device that is none")?;
        let words = |error: plan::PlanError| error.to_string();
        Ok(Cut {
            plan: planning::agreed(&self.ids, &self.problem, &groups).map_err(words)?,
            prediction: plan::price(&self.problem, &groups).map_err(words)?,
            groups,
        })
    }

    /// Bytes from node to node in a step: activations onwards, their gradients back, and those of the parameters inside of groups.
    pub(super) fn sent(&self, plan: &Plan) -> BTreeMap<(NodeIndex, NodeIndex), u64> {
        let Work {
            profile,
            micro_batch,
            n_micro,
            ..
        } = &self.problem.work;
        let mut sent: BTreeMap<(NodeIndex, NodeIndex), u64> = BTreeMap::new();
        let mut add = |from: NodeIndex, to: NodeIndex, bytes: u64| {
            *sent.entry((from, to)).or_default() += bytes;
        };
        let hosted = plan.hosts().flat_map(|host| {
            let own = self.rank(host);
            let places = Place::all(plan, host).into_iter();
            places.filter_map(move |place| Some((place, own?)))
        });
        for (place, own) in hosted {
            let stage = &plan.stages[place.stage];
            let blocks = usize::from(stage.blocks.start)..usize::from(stage.blocks.end);
            let blocks = profile.blocks.get(blocks).unwrap_or_default();
            let output = blocks.last().map_or(0, |block| block.output_bytes);
            for piece in &place.behind {
                let end = (piece.rows.end as usize).min(*micro_batch);
                let samples = end.saturating_sub(piece.rows.start as usize);
                let bytes = output * (samples * n_micro) as u64;
                if let Some(to) = self.rank(piece.peer) {
                    add(own, to, bytes);
                    add(to, own, bytes);
                }
            }
            let gradient: u64 = blocks.iter().map(|block| block.parameter_bytes).sum();
            let bytes = match stage.reduction {
                Reduction::Direct => gradient,
                Reduction::Shards => 2 * gradient / place.group.len() as u64,
            };
            for (_, fellow) in place.fellows() {
                if let Some(to) = self.rank(fellow) {
                    add(own, to, bytes);
                }
            }
        }
        sent
    }

    /// The problem of these nodes alone, in this order.
    fn among(&self, nodes: &[NodeIndex]) -> Problem {
        let Problem { devices, links, .. } = &self.problem;
        let pick = |matrix: &[Vec<f64>]| {
            let row = |from: &NodeIndex| nodes.iter().map(|to| matrix[*from][*to]).collect();
            nodes.iter().map(row).collect()
        };
        Problem {
            devices: nodes.iter().map(|rank| devices[*rank].clone()).collect(),
            links: Links {
                rate: pick(&links.rate),
                latency: pick(&links.latency),
                shared: links.shared,
            },
            ..self.problem.clone()
        }
    }
}

/// Groups with other numbers for their devices; none where one has no number.
fn renumbered(groups: &[Group], of: impl Fn(usize) -> Option<usize> + Copy) -> Option<Vec<Group>> {
    let group = |group: &Group| {
        let share = |share: &Share| {
            Some(Share {
                device: of(share.device)?,
                samples: share.samples,
            })
        };
        Some(Group {
            shares: group.shares.iter().map(share).collect::<Option<_>>()?,
            ..group.clone()
        })
    };
    groups.iter().map(group).collect()
}

/// Cores that a node computes with.
pub(super) fn cores(node: &Node) -> f64 {
    let threads = f64::from(node.threads);
    node.cpu.map_or(threads, |share| share.min(threads))
}

fn device(node: &Node) -> Device {
    Device {
        name: node.name.clone(),
        capacity: 1.0 / cores(node),
        memory_bytes: node.memory.unwrap_or(u64::MAX),
        ..Device::default()
    }
}

/// Each pair at the least of its rates, after all of its delays.
fn links(scenario: &Scenario) -> Links {
    let n = scenario.nodes.len();
    let mut links = Links::uniform(n, 0.0, 0.0);
    for (from, sender) in scenario.nodes.iter().enumerate() {
        for (to, receiver) in scenario.nodes.iter().enumerate() {
            let ends = [&sender.up.profile, &receiver.down.profile];
            let pair = scenario.pairs.iter();
            let pair = pair
                .filter(|pair| (pair.from, pair.to) == (from, to))
                .map(|pair| &pair.line.profile);
            let lines = || ends.into_iter().chain(pair.clone());
            let rate = lines().filter_map(|line| line.rate).min();
            links.rate[from][to] = rate.map_or(NO_LIMIT, |bits| PAYLOAD * bits as f64 / 8.0);
            let delays = lines().map(|line| line.delay.as_secs_f64());
            links.latency[from][to] = delays.sum::<f64>() + HAND_OVER;
        }
    }
    links
}

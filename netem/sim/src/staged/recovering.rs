//! What it takes to go on without a host: to notice it, to plan, to agree, to fetch what changes hands.
//!
//! *Replay* is what nodes do (Asteroid's lightweight pipeline replay): a plan near the last one, and only blocks that a host does not hold
//! yet are fetched, all at once, from whoever has a copy. *Redistribution* is what Asteroid compares with: the steward collects all blocks,
//! the full planner plans for who is left, and the steward sends each host all of its blocks.

use std::collections::BTreeMap;
use std::time::Instant;

use skein_netem::link::NodeIndex;
use skein_netem::scenario::Recovery as Way;

use super::copies::Copies;
use super::posed::{Cut, Posed};

/// See the module's header. Seconds follow one on the other.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    /// The new plan.
    pub(super) cut: Cut,
    /// Who plans.
    pub(super) steward: NodeIndex,
    /// Blocks of which no copy is left: training begins anew.
    pub(super) lost_blocks: Vec<u16>,
    pub(super) detection_s: f64,
    /// Of the planner in this process, by the clock, at the steward's speed.
    pub(super) planning_s: f64,
    /// The plan to all, and that all are in place to the first stage.
    pub(super) agreeing_s: f64,
    pub(super) fetching_s: f64,
    /// Bytes that were fetched.
    pub(super) bytes: u64,
    /// The same by sender and receiver.
    pub(super) carried: BTreeMap<(NodeIndex, NodeIndex), u64>,
    /// A step of the full planner's plan for those that are left; none where there is none.
    pub(super) full_step_s: Option<f64>,
}

/// What follows on the loss of a host of `before`, of whom it takes `silence` seconds until it is missed. `nodes` are left.
///
/// # Errors
/// In words: why nobody can go on.
pub(super) fn recovery(
    posed: &Posed,
    way: Way,
    (before, copies): (&Cut, &mut Copies),
    nodes: &[NodeIndex],
    (lost, silence): (NodeIndex, f64),
) -> Result<Recovery, String> {
    let by_id = nodes.iter().copied();
    let steward = by_id.min_by_key(|rank| posed.ids[*rank]);
    let steward = steward.ok_or("no node is left")?;
    let delay = |from: NodeIndex, to: NodeIndex| posed.problem.links.latency[from][to];
    let began = Instant::now();
    let near = match way {
        Way::Replay => posed.near(before, nodes, lost),
        Way::Redistribute => None,
    };
    let is_near = near.is_some();
    let cut = match near {
        Some(near) => near,
        None => posed.planned(nodes)?,
    };
    let planning_s = began.elapsed().as_secs_f64() * posed.problem.devices[steward].capacity;
    let full_step_s = match is_near {
        true => posed.planned(nodes).ok(),
        false => Some(cut.clone()),
    };
    copies.lose(lost);
    let lost_blocks = copies.lost_blocks();
    if !lost_blocks.is_empty() {
        *copies = Copies::drawn(posed.layouts.len(), nodes);
    }
    let (mut fetching_s, mut carried) = (0.0, BTreeMap::new());
    let all = match way {
        Way::Replay => vec![copies.fetch(posed, &cut.plan)],
        Way::Redistribute => vec![
            copies.collect(posed, steward),
            copies.give_out(posed, &cut.plan, steward),
        ],
    };
    let bytes = all.iter().map(|carrying| carrying.all_bytes()).sum();
    for carrying in all {
        fetching_s += carrying.seconds;
        for (pair, bytes) in carrying.bytes {
            *carried.entry(pair).or_default() += bytes;
        }
    }
    let hosts = posed.hosts(&cut.plan);
    let first = hosts.first().copied().unwrap_or(steward);
    let longest = |delays: &mut dyn Iterator<Item = f64>| delays.fold(0.0, f64::max);
    let others = || nodes.iter().copied().filter(|node| *node != steward);
    Ok(Recovery {
        steward,
        lost_blocks,
        detection_s: silence + delay(lost, steward),
        planning_s,
        agreeing_s: longest(&mut others().map(|node| delay(steward, node)))
            + longest(
                &mut hosts
                    .iter()
                    .filter(|host| **host != first)
                    .map(|host| delay(*host, first)),
            ),
        fetching_s,
        bytes,
        carried,
        full_step_s: full_step_s.map(|full| full.prediction.step_seconds),
        cut,
    })
}

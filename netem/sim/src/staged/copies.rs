//! Who holds which blocks at the step that can be gone on from: hosts, and the keepers of the replica chain.

use std::collections::BTreeSet;

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::chain;
use skein_gossip::pipeline::plan::Plan;
use skein_netem::link::NodeIndex;

use super::carrying::Carrying;
use super::posed::Posed;

/// See the module's header.
#[derive(Clone, Debug)]
pub(super) struct Copies {
    /// Steps behind them.
    pub(super) step: u64,
    /// Of each block.
    of: Vec<BTreeSet<NodeIndex>>,
}

impl Copies {
    /// Before the first step: everybody draws the same weights.
    pub(super) fn drawn(n_blocks: usize, nodes: &[NodeIndex]) -> Self {
        Self {
            step: 0,
            of: vec![nodes.iter().copied().collect(); n_blocks],
        }
    }

    /// A line at `step`: what goes to whom for it, and who holds what then.
    pub(super) fn line<'p>(
        posed: &'p Posed,
        plan: &Plan,
        nodes: &[NodeIndex],
        step: u64,
    ) -> (Self, Carrying<'p>) {
        let members: Vec<PeerId> = nodes.iter().map(|rank| posed.ids[*rank]).collect();
        let mut of = vec![BTreeSet::new(); posed.layouts.len()];
        let mut carrying = Carrying::new(&posed.problem.links);
        for (number, stage) in plan.stages.iter().enumerate() {
            let hosts: Vec<NodeIndex> = stage.hosts().filter_map(|id| posed.rank(id)).collect();
            let keepers = chain::keepers(plan, &members, number, posed.pipeline.copies as usize);
            let keepers: Vec<NodeIndex> = keepers
                .into_iter()
                .filter_map(|id| posed.rank(id))
                .collect();
            let blocks = usize::from(stage.blocks.start)..usize::from(stage.blocks.end);
            let bytes: u64 = blocks.clone().map(|block| posed.copy_bytes(block)).sum();
            for keeper in &keepers {
                carrying.fetch(hosts.iter().copied(), *keeper, bytes);
            }
            for block in blocks {
                of[block] = hosts.iter().chain(&keepers).copied().collect();
            }
        }
        (Self { step, of }, carrying)
    }

    pub(super) fn lose(&mut self, node: NodeIndex) {
        for holders in &mut self.of {
            holders.remove(&node);
        }
    }

    /// Blocks that nobody holds any more.
    pub(super) fn lost_blocks(&self) -> Vec<u16> {
        let lost = self.of.iter().enumerate();
        let lost = lost.filter(|(_, holders)| holders.is_empty());
        lost.map(|(block, _)| block as u16).collect()
    }

    /// The nodes of `plan` fetch what they have to host and do not hold, each block from whoever has it there first.
    pub(super) fn fetch<'p>(&mut self, posed: &'p Posed, plan: &Plan) -> Carrying<'p> {
        let mut carrying = Carrying::new(&posed.problem.links);
        for (host, block) in wanted(posed, plan) {
            let holders = &mut self.of[block];
            if !holders.contains(&host) {
                let bytes = posed.copy_bytes(block);
                carrying.fetch(holders.iter().copied(), host, bytes);
                holders.insert(host);
            }
        }
        carrying
    }

    /// One node fetches all blocks that it does not hold.
    pub(super) fn collect<'p>(&mut self, posed: &'p Posed, to: NodeIndex) -> Carrying<'p> {
        let mut carrying = Carrying::new(&posed.problem.links);
        for (block, holders) in self.of.iter_mut().enumerate() {
            if !holders.contains(&to) {
                carrying.fetch(holders.iter().copied(), to, posed.copy_bytes(block));
                holders.insert(to);
            }
        }
        carrying
    }

    /// It sends each host of `plan` all of its blocks, held there or not.
    pub(super) fn give_out<'p>(
        &mut self,
        posed: &'p Posed,
        plan: &Plan,
        from: NodeIndex,
    ) -> Carrying<'p> {
        let mut carrying = Carrying::new(&posed.problem.links);
        for (host, block) in wanted(posed, plan) {
            carrying.carry(from, host, posed.copy_bytes(block));
            self.of[block].insert(host);
        }
        carrying
    }
}

/// Which host needs which block.
fn wanted(posed: &Posed, plan: &Plan) -> Vec<(NodeIndex, usize)> {
    let mut all = Vec::new();
    for stage in &plan.stages {
        for host in stage.hosts().filter_map(|id| posed.rank(id)) {
            let blocks = usize::from(stage.blocks.start)..usize::from(stage.blocks.end);
            all.extend(blocks.map(|block| (host, block)));
        }
    }
    all
}

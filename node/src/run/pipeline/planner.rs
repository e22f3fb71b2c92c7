//! The planner that the agreement asks: profiles of the candidates in, a cut out.

use std::sync::Arc;

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::agreement::{Candidate, Planned, Planner};
use skein_gossip::pipeline::plan::{Blocks, Plan, Stage};

use super::facts::Facts;
use crate::job::strategy::pipeline::Cut;

/// Bytes per second that a link is reckoned with before it was measured: 100 Mbit/s.
const UNMEASURED_RATE: f64 = 12.5e6;
/// Up to so many candidates every order of stages is tried; beyond, the faster ones come first.
const ALL_ORDERS: usize = 5;

/// See the module's header.
#[derive(Debug)]
pub(super) struct CutPlanner {
    facts: Arc<Facts>,
    /// Bytes per sample behind each block.
    crossing: Vec<f64>,
}

impl CutPlanner {
    pub(super) fn new(facts: Arc<Facts>) -> Self {
        let bytes = |shape: &Vec<i64>| shape.iter().fold(4.0, |bytes, side| bytes * *side as f64);
        let crossing = facts.shapes.iter().map(bytes).collect();
        Self { facts, crossing }
    }

    /// Microseconds of blocks `start..end` for a micro-batch on `candidate`.
    fn time(&self, candidate: &Candidate, start: usize, end: usize) -> f64 {
        let Some(profile) = &candidate.profile else {
            return f64::INFINITY;
        };
        let blocks = profile.blocks.get(start..end).unwrap_or_default();
        let sum: f64 = blocks
            .iter()
            .map(|time| f64::from(time.forward_us) + f64::from(time.backward_us))
            .sum();
        sum * f64::from(candidate.slowdown)
    }

    /// Microseconds that a micro-batch's activation takes from one candidate to the next.
    fn transfer(&self, from: &Candidate, to: PeerId, behind: usize) -> f64 {
        let rates = from.profile.iter().flat_map(|profile| &profile.rates);
        let rate = rates
            .filter(|(peer, rate)| *peer == to && *rate > 0.0)
            .map(|(_, rate)| f64::from(*rate))
            .next();
        let samples = f64::from(self.facts.batch) / f64::from(self.facts.pipeline.micro_batches);
        1e6 * self.crossing[behind] * samples / rate.unwrap_or(UNMEASURED_RATE)
    }

    /// Bytes that blocks `start..end` need as a stage with `depth` micro-batches on their way.
    fn fits(&self, candidate: &Candidate, start: usize, end: usize, depth: u32) -> bool {
        let limit = candidate
            .profile
            .as_ref()
            .map_or(0, |profile| profile.memory);
        limit == 0 || self.memory(start, end, depth) <= limit
    }

    /// Weights, gradient, optimiser's vectors and the copies kept; activations of the micro-batches on their way.
    pub(super) fn memory(&self, start: usize, end: usize, depth: u32) -> u64 {
        let state: usize = self.facts.blocks[start..end]
            .iter()
            .map(|block| block.encoded_len())
            .sum();
        let samples = f64::from(self.facts.batch) / f64::from(self.facts.pipeline.micro_batches);
        let activations: f64 = self.crossing[start..end].iter().sum();
        (4 * state) as u64 + (3.0 * activations * samples * f64::from(depth)) as u64
    }

    /// The cut of this order of candidates that makes the slowest of stages and transfers fastest, by dynamic programming over
    /// blocks and devices (FTPipeHD): the time of that slowest part, and the cut.
    fn cut(&self, order: &[&Candidate]) -> Option<(f64, Plan)> {
        let n_blocks = self.facts.blocks.len();
        let n = order.len();
        // best[k][j]: blocks 0..j on the first k + 1 devices.
        let mut best = vec![vec![(f64::INFINITY, 0usize); n_blocks + 1]; n];
        for (k, device) in order.iter().enumerate() {
            let depth =
                skein_gossip::pipeline::flow::depth(k, n, self.facts.pipeline.micro_batches);
            for end in 1..=n_blocks {
                let starts = if k == 0 { 0..1 } else { k..end };
                for start in starts {
                    if !self.fits(device, start, end, depth) {
                        continue;
                    }
                    let own = self.time(device, start, end);
                    let slowest = match k.checked_sub(1) {
                        None => own,
                        Some(before) => {
                            let transfer = self.transfer(order[before], device.peer, start - 1);
                            best[before][start].0.max(transfer).max(own)
                        }
                    };
                    if slowest < best[k][end].0 {
                        best[k][end] = (slowest, start);
                    }
                }
            }
        }
        let slowest = best[n - 1][n_blocks].0;
        if !slowest.is_finite() {
            return None;
        }
        let (mut stages, mut end) = (Vec::new(), n_blocks);
        for k in (0..n).rev() {
            let start = best[k][end].1;
            stages.push(Stage {
                host: order[k].peer,
                blocks: start as u16..end as u16,
            });
            end = start;
        }
        stages.reverse();
        Some((slowest, Plan { stages }))
    }

    /// PipeDream's cut: by the times on the first device, as if all were like it.
    fn as_if_alike(&self, order: &[&Candidate]) -> Option<Plan> {
        let first = order.first()?;
        let alike = order.iter().map(|candidate| Candidate {
            peer: candidate.peer,
            slowdown: 1.0,
            ..(*first).clone()
        });
        let alike: Vec<Candidate> = alike.collect();
        let (_, plan) = self.cut(&alike.iter().collect::<Vec<_>>())?;
        Some(plan)
    }

    fn orders<'a>(&self, candidates: &'a [Candidate]) -> Vec<Vec<&'a Candidate>> {
        let usable: Vec<&Candidate> = candidates
            .iter()
            .filter(|candidate| candidate.profile.is_some())
            .collect();
        let mut orders = Vec::new();
        if usable.len() <= ALL_ORDERS {
            extend_orders(&mut orders, &mut Vec::new(), &usable);
        } else {
            let n_blocks = self.facts.blocks.len();
            let mut fastest = usable;
            fastest.sort_by(|a, b| {
                self.time(a, 0, n_blocks)
                    .total_cmp(&self.time(b, 0, n_blocks))
            });
            if let Some(owner) = fastest.iter().position(|candidate| candidate.has_data) {
                let owner = fastest.remove(owner);
                fastest.insert(0, owner);
                orders.extend((1..=fastest.len().min(n_blocks)).map(|n| fastest[..n].to_vec()));
            }
        }
        orders
    }
}

/// All orders of all subsets that begin with a holder of the data.
fn extend_orders<'a>(
    orders: &mut Vec<Vec<&'a Candidate>>,
    so_far: &mut Vec<&'a Candidate>,
    candidates: &[&'a Candidate],
) {
    for candidate in candidates {
        let is_used = so_far.iter().any(|used| used.peer == candidate.peer);
        if is_used || (so_far.is_empty() && !candidate.has_data) {
            continue;
        }
        so_far.push(candidate);
        orders.push(so_far.clone());
        extend_orders(orders, so_far, candidates);
        so_far.pop();
    }
}

/// Stages of equally many blocks for this order of candidates.
fn equal(order: &[&Candidate], n_blocks: usize) -> Option<Plan> {
    let n = order.len();
    if n == 0 || n > n_blocks {
        return None;
    }
    let stage = |(k, candidate): (usize, &&Candidate)| Stage {
        host: candidate.peer,
        blocks: (k * n_blocks / n) as u16..((k + 1) * n_blocks / n) as u16,
    };
    Some(Plan {
        stages: order.iter().enumerate().map(stage).collect(),
    })
}

/// All usable candidates, a holder of the data first.
fn all_in_order(candidates: &[Candidate]) -> Vec<&Candidate> {
    let mut order: Vec<&Candidate> = candidates
        .iter()
        .filter(|candidate| candidate.profile.is_some())
        .collect();
    order.sort_by_key(|candidate| (!candidate.has_data, candidate.peer));
    order
}

impl Planner for CutPlanner {
    fn plan(&self, candidates: &[Candidate]) -> Result<Planned, String> {
        let n_blocks = self.facts.blocks.len();
        let mut all = all_in_order(candidates);
        all.truncate(n_blocks);
        let plans: Vec<Plan> = match self.facts.pipeline.cut {
            Cut::Measured => self
                .orders(candidates)
                .iter()
                .filter_map(|order| self.cut(order))
                .map(|(_, plan)| plan)
                .collect(),
            Cut::Equal => equal(&all, n_blocks).into_iter().collect(),
            Cut::Pipedream => self.as_if_alike(&all).into_iter().collect(),
        };
        let priced = plans.into_iter().filter_map(|plan| {
            let step_us = self.step_us(&plan, candidates)?;
            Some(Planned { plan, step_us })
        });
        let best = priced.min_by(|a, b| a.step_us.total_cmp(&b.step_us));
        best.ok_or_else(|| "no cut of the model fits the memory of the peers that are here".into())
    }

    fn step_us(&self, plan: &Plan, candidates: &[Candidate]) -> Option<f64> {
        let find = |peer: PeerId| candidates.iter().find(|candidate| candidate.peer == peer);
        let (mut slowest, mut through): (f64, f64) = (0.0, 0.0);
        let mut before: Option<&Candidate> = None;
        for stage in &plan.stages {
            let host = find(stage.host)?;
            let (start, end) = (
                usize::from(stage.blocks.start),
                usize::from(stage.blocks.end),
            );
            let own = self.time(host, start, end);
            let transfer = before.map_or(0.0, |before| {
                2.0 * self.transfer(before, host.peer, start - 1)
            });
            slowest = slowest.max(own).max(transfer);
            through += own + transfer;
            before = Some(host);
        }
        let micro = f64::from(self.facts.pipeline.micro_batches);
        Some((micro - 1.0) * slowest + through).filter(|time| time.is_finite())
    }

    fn bytes(&self, blocks: Blocks) -> u64 {
        let blocks = self
            .facts
            .blocks
            .get(usize::from(blocks.start)..usize::from(blocks.end));
        blocks
            .unwrap_or_default()
            .iter()
            .map(|block| block.encoded_len() as u64)
            .sum()
    }
}

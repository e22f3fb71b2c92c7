//! Cuts for simulated peers: blocks in proportion to speed, the first stage on a holder of the data.

use skein_gossip::pipeline::agreement::{Candidate, Planned, Planner};
use skein_gossip::pipeline::plan::{Blocks, Plan, Stage};

/// All blocks weigh the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Even {
    pub(crate) n_blocks: u16,
    pub(crate) micro: u32,
    pub(crate) block_bytes: u64,
}

/// Microseconds that one block and micro-batch takes.
fn block_us(candidate: &Candidate) -> Option<f64> {
    let block = candidate.profile.as_ref()?.blocks.first()?;
    Some(f64::from(block.forward_us + block.backward_us) * f64::from(candidate.slowdown))
}

impl Even {
    fn price(&self, stages: &[(u16, f64)]) -> f64 {
        let slowest = stages
            .iter()
            .map(|(blocks, us)| f64::from(*blocks) * us)
            .fold(0.0, f64::max);
        slowest * f64::from(self.micro as u16 + stages.len() as u16 - 1)
    }

    fn cut(&self, chosen: &[(&Candidate, f64)]) -> Planned {
        let mut shares = vec![1u16; chosen.len()];
        for _ in chosen.len()..usize::from(self.n_blocks) {
            let costs = shares.iter().zip(chosen);
            let least = costs
                .map(|(blocks, (_, us))| f64::from(blocks + 1) * us)
                .enumerate()
                .min_by(|a, b| a.1.total_cmp(&b.1));
            shares[least.unwrap().0] += 1;
        }
        let mut first = 0;
        let stage = |(blocks, (candidate, _)): (&u16, &(&Candidate, f64))| {
            let stage = Stage {
                host: candidate.peer,
                blocks: first..first + blocks,
            };
            first += blocks;
            stage
        };
        let stages = shares.iter().zip(chosen).map(stage).collect();
        let priced: Vec<(u16, f64)> = shares
            .iter()
            .zip(chosen)
            .map(|(blocks, (_, us))| (*blocks, *us))
            .collect();
        Planned {
            plan: Plan { stages },
            step_us: self.price(&priced),
        }
    }
}

impl Planner for Even {
    fn plan(&self, candidates: &[Candidate]) -> Result<Planned, String> {
        let mut timed: Vec<(&Candidate, f64)> = candidates
            .iter()
            .filter_map(|candidate| Some((candidate, block_us(candidate)?)))
            .collect();
        timed.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.peer.cmp(&b.0.peer)));
        let first = timed.iter().position(|(candidate, _)| candidate.has_data);
        let first = timed.remove(first.ok_or("nobody who holds the data is measured")?);
        timed.insert(0, first);
        let most = timed.len().min(usize::from(self.n_blocks));
        let cuts = (1..=most).map(|n| self.cut(&timed[..n]));
        Ok(cuts.min_by(|a, b| a.step_us.total_cmp(&b.step_us)).unwrap())
    }

    fn step_us(&self, plan: &Plan, candidates: &[Candidate]) -> Option<f64> {
        let priced = plan.stages.iter().map(|stage| {
            let mut all = candidates.iter();
            let host = all.find(|candidate| candidate.peer == stage.host)?;
            Some((stage.blocks.end - stage.blocks.start, block_us(host)?))
        });
        Some(self.price(&priced.collect::<Option<Vec<_>>>()?))
    }

    fn bytes(&self, blocks: Blocks) -> u64 {
        u64::from(blocks.end - blocks.start) * self.block_bytes
    }
}

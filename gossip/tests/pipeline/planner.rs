//! Cuts for simulated peers: blocks in proportion to speed, the first stage on a holder of the data.

use skein_gossip::pipeline::agreement::{Candidate, Planned, Planner};
use skein_gossip::pipeline::plan::{Blocks, Member, Plan, Reduction, Stage};

/// All blocks weigh the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Even {
    pub(crate) n_blocks: u16,
    pub(crate) micro: u32,
    /// Samples of a micro-batch; two peers share a stage where there are several.
    pub(crate) rows: u32,
    /// Whether three peers divide blocks and samples as tiers do, instead.
    pub(crate) tiers: bool,
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
            let stage = Stage::alone(candidate.peer, first..first + blocks);
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

/// Two hosts that share a stage by their speed, with how long a block and micro-batch takes them together.
type Pair<'a> = (Vec<(&'a Candidate, f64)>, f64);

impl Even {
    /// Stages of two hosts each; the first one of two that hold the data, if there are two.
    fn in_pairs(&self, timed: &[(&Candidate, f64)]) -> Planned {
        let owners = timed.iter().filter(|(candidate, _)| candidate.has_data);
        let owners: Vec<_> = owners.take(2).copied().collect();
        let is_owner = |peer| owners.iter().any(|(owner, _)| owner.peer == peer);
        let rest = timed
            .iter()
            .filter(|(candidate, _)| !is_owner(candidate.peer));
        let rest: Vec<_> = rest.copied().collect();
        let groups = std::iter::once(owners.clone()).chain(rest.chunks(2).map(<[_]>::to_vec));
        let pairs: Vec<Pair<'_>> = groups
            .take(usize::from(self.n_blocks))
            .map(|hosts| {
                let speed: f64 = hosts.iter().map(|(_, us)| 1.0 / us).sum();
                (hosts, 1.0 / speed)
            })
            .collect();
        let chosen: Vec<(&Candidate, f64)> =
            pairs.iter().map(|(hosts, us)| (hosts[0].0, *us)).collect();
        let mut planned = self.cut(&chosen);
        for (stage, (hosts, us)) in planned.plan.stages.iter_mut().zip(&pairs) {
            let Some(second) = hosts.get(1) else { continue };
            let own = (f64::from(self.rows) * us / second.1).round() as u32;
            let own = own.clamp(1, self.rows - 1);
            let member = |candidate: &Candidate, samples| Member {
                peer: candidate.peer,
                samples,
            };
            stage.members = vec![member(hosts[0].0, self.rows - own), member(second.0, own)];
            stage.reduction = Reduction::Shards;
        }
        planned
    }
}

/// Samples of eight, and how many of eight blocks those train that do not hold the whole model.
const IN_TIERS: [(u32, u16); 3] = [(2, 5), (3, 2), (3, 8)];

impl Even {
    /// HierTrain's shape: the last of three peers holds all blocks, the first and the second the first ones. Where not all of them hold
    /// the data, one that does is their source.
    fn in_tiers(&self, timed: &[(&Candidate, f64)]) -> Plan {
        let owners: Vec<_> = timed.iter().filter(|(peer, _)| peer.has_data).collect();
        let chosen: Vec<&(&Candidate, f64)> = match owners.len() >= timed.len().min(3) {
            true => owners.iter().copied().take(3).collect(),
            // Of four one that holds the data hosts nothing else.
            false => timed.iter().skip(timed.len() / 4).take(3).collect(),
        };
        let chosen: Vec<&Candidate> = chosen.into_iter().map(|(peer, _)| *peer).collect();
        let n = chosen.len();
        let mut roles: Vec<(u32, u16)> = IN_TIERS[3 - n..].to_vec();
        roles[0].0 += self.rows - roles.iter().map(|(samples, _)| samples).sum::<u32>();
        let mut borders: Vec<u16> = roles.iter().map(|(_, end)| *end).collect();
        borders.sort_unstable();
        let mut stages = Vec::new();
        if chosen.iter().any(|peer| !peer.has_data) {
            stages.push(Stage::alone(owners[0].0.peer, 0..0));
        }
        let mut first = 0;
        for end in borders {
            let ends_before = roles.iter().filter(|(_, last)| *last < end);
            let passed: u32 = ends_before.map(|(samples, _)| samples).sum();
            let goes_on = chosen
                .iter()
                .zip(&roles)
                .filter(|(_, (_, last))| *last >= end);
            let member = |(peer, (samples, _)): (&&Candidate, &(u32, u16))| Member {
                peer: peer.peer,
                samples: *samples,
            };
            let mut members: Vec<Member> = goes_on.map(member).collect();
            // The samples of those whose blocks end before are the whole model's.
            if let Some(whole) = members.last_mut() {
                whole.samples += passed;
            }
            stages.push(Stage {
                members,
                reduction: [Reduction::Direct, Reduction::Shards][usize::from(end % 2)],
                ..Stage::alone(chosen[0].peer, first..end)
            });
            first = end;
        }
        Plan { stages }
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
        if self.tiers {
            let plan = self.in_tiers(&timed);
            let step_us = self.step_us(&plan, candidates).ok_or("a host is gone")?;
            return Ok(Planned { plan, step_us });
        }
        if self.rows > 1 {
            return Ok(self.in_pairs(&timed));
        }
        let most = timed.len().min(usize::from(self.n_blocks));
        let cuts = (1..=most).map(|n| self.cut(&timed[..n]));
        Ok(cuts.min_by(|a, b| a.step_us.total_cmp(&b.step_us)).unwrap())
    }

    fn step_us(&self, plan: &Plan, candidates: &[Candidate]) -> Option<f64> {
        let priced = plan.stages.iter().map(|stage| {
            let us = |host| {
                let mut all = candidates.iter();
                block_us(all.find(|candidate| candidate.peer == host)?)
            };
            let speeds = stage.hosts().map(|host| Some(1.0 / us(host)?));
            let speed: f64 = speeds.sum::<Option<f64>>()?;
            Some((stage.blocks.end - stage.blocks.start, 1.0 / speed))
        });
        Some(self.price(&priced.collect::<Option<Vec<_>>>()?))
    }

    fn bytes(&self, blocks: Blocks) -> u64 {
        u64::from(blocks.end - blocks.start) * self.block_bytes
    }
}

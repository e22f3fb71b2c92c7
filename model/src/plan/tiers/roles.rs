//! A plan over tiers device by device: blocks, samples, memory, bytes, and when it computes. The times are those of the cost
//! model, so the last of them ends with the step.

use std::ops::Range;

use super::cost::{Mesh, Way};
use super::{Tiered, way_of};
use crate::plan::costs::Costs;
use crate::plan::events::Pass;
use crate::plan::group::Reduction;
use crate::plan::schedule::Span;
use crate::plan::tier::Tier;
use crate::plan::work::Data;

/// What one device does in a step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TierRole {
    pub(crate) device: usize,
    pub(crate) blocks: Range<usize>,
    /// Samples of a step that it computes to the end of its blocks.
    pub(crate) samples: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) spans: Vec<Span>,
}

/// The devices of a plan, those of the whole model first. None if a tier of it has no devices, or its blocks and samples are not
/// those of the step.
pub(crate) fn roles(
    costs: &Costs<'_>,
    tiers: &[Tier],
    private: bool,
    plan: &Tiered,
) -> Option<Vec<TierRole>> {
    let mesh = Mesh::new(costs, tiers, private);
    let way = way_of(&mesh, plan)?;
    mesh.seconds(&way, 1.0)?;
    Some(mesh.roles(&way))
}

/// One stretch of a tier's computing.
struct Phase {
    pass: Pass,
    number: usize,
    from: f64,
    blocks: Range<usize>,
    samples: usize,
}

impl Mesh<'_> {
    fn roles(&self, way: &Way) -> Vec<TierRole> {
        let n = self.costs.n_blocks();
        let (m_s, b_s) = way.short.map_or((0, 0), |(_, blocks, n)| (blocks, n));
        let (m_l, b_l) = way.long.map_or((m_s, 0), |(_, blocks, n)| (blocks, n));
        let b_o = self.batch - b_s - b_l;
        let parts = [(0..m_s, b_o), (m_s..m_l, b_o + b_s), (m_l..n, self.batch)];
        // Forward: the whole model waits for the others at their borders.
        let arrives = |part: Option<(usize, usize, usize)>| {
            part.map_or(0.0, |part| self.begins(way, part, 1.0)[0])
        };
        let mut phases = Vec::new();
        let mut now = self.samples_to(way.whole, b_o);
        let waits = [0.0, arrives(way.short), arrives(way.long)];
        for ((number, (blocks, samples)), arrived) in parts.iter().enumerate().zip(waits) {
            now = f64::max(now, arrived);
            phases.push(Phase {
                pass: Pass::Forward,
                number,
                from: now,
                blocks: blocks.clone(),
                samples: *samples,
            });
            now += self.passes(way.whole, blocks.clone(), *samples)[0];
        }
        let mut free = [0.0; 3];
        for (number, (blocks, samples)) in parts.iter().enumerate().rev() {
            phases.push(Phase {
                pass: Pass::Backward,
                number,
                from: now,
                blocks: blocks.clone(),
                samples: *samples,
            });
            now += self.passes(way.whole, blocks.clone(), *samples)[1];
            free[number] = now;
        }
        let mut end = now;
        let mut beginners = Vec::new();
        for (part, leaves) in [(way.short, free[1]), (way.long, free[2])] {
            let Some((pool, n_blocks, samples)) = part else {
                continue;
            };
            let bytes = self.costs.bytes_into(n_blocks, samples) as f64;
            let back = leaves + self.send(way.whole, pool, bytes);
            let own = [
                (Pass::Forward, self.samples_to(pool, samples)),
                (Pass::Backward, back),
            ];
            let own = own.map(|(pass, from)| Phase {
                pass,
                number: 0,
                from,
                blocks: 0..n_blocks,
                samples,
            });
            end = end.max(back + self.passes(pool, 0..n_blocks, samples)[1]);
            beginners.push((pool, n_blocks, samples, own));
        }
        let exchange = self.exchange(way);
        let mut roles = self.of_pool(way.whole, 0..n, self.batch, (&phases, end, exchange));
        for (pool, n_blocks, samples, own) in &beginners {
            let more = self.of_pool(*pool, 0..*n_blocks, *samples, (own, end, exchange));
            roles.extend(more);
        }
        self.add_memory(way, ([m_s, m_l], [b_o, b_s, b_l]), &mut roles);
        self.add_sent(way, &mut roles);
        roles
    }

    fn of_pool(
        &self,
        number: usize,
        blocks: Range<usize>,
        samples: usize,
        (phases, end, exchange): (&[Phase], f64, f64),
    ) -> Vec<TierRole> {
        let pool = &self.pools[number];
        let slowest_update = self.update(number, blocks.end);
        let role = |(at, device): (usize, &usize)| {
            let mut spans = Vec::new();
            let mut add = |pass, micro, from: f64, seconds: f64| {
                if seconds > 0.0 {
                    spans.push(Span {
                        device: *device,
                        pass,
                        micro,
                        from,
                        to: from + seconds,
                    });
                }
            };
            for phase in phases {
                let own = pool.divided[phase.samples][at];
                let [forward, backward, _] = self.costs.seconds(*device, &phase.blocks, own);
                let seconds = match phase.pass {
                    Pass::Forward => forward,
                    _ => backward,
                };
                add(phase.pass, phase.number, phase.from, seconds);
            }
            add(Pass::Reduce, 3, end, exchange - slowest_update);
            let [_, _, update] = self.costs.seconds(*device, &blocks, 1);
            add(Pass::Update, 3, end + exchange - slowest_update, update);
            TierRole {
                device: *device,
                blocks: blocks.clone(),
                samples: pool.divided[samples][at],
                memory_bytes: 0,
                sent_bytes: 0,
                spans,
            }
        };
        pool.devices.iter().enumerate().map(role).collect()
    }

    fn add_memory(
        &self,
        way: &Way,
        (borders, samples): ([usize; 2], [usize; 3]),
        roles: &mut [TierRole],
    ) {
        self.needs(way, borders, samples, &mut |device, bytes| {
            if let Some(role) = roles.iter_mut().find(|role| role.device == device) {
                role.memory_bytes = bytes;
            }
            true
        });
    }

    /// Activations and their gradients at the borders, gradients among the devices of a tier, and between tiers by the first
    /// device of each.
    fn add_sent(&self, way: &Way, roles: &mut [TierRole]) {
        let n = self.costs.n_blocks();
        let mut add = |device: usize, bytes: u64| {
            if let Some(role) = roles.iter_mut().find(|role| role.device == device) {
                role.sent_bytes = role.sent_bytes.saturating_add(bytes);
            }
        };
        let begins = way.short.into_iter().chain(way.long);
        let pools = begins.clone().map(|(pool, n_blocks, _)| (pool, n_blocks));
        for (pool, n_blocks) in pools.chain([(way.whole, n)]) {
            let Some(others) = (self.pools[pool].devices.len() as u64).checked_sub(1) else {
                continue;
            };
            let bytes = self.costs.parameter_bytes(&(0..n_blocks));
            let reduced = match self.pools[pool].pace.reduction(bytes).0 {
                Reduction::Shards => bytes.saturating_mul(2 * others) / (others + 1),
                Reduction::Direct => bytes.saturating_mul(others),
            };
            for device in &self.pools[pool].devices {
                add(*device, reduced);
            }
        }
        let whole = &self.pools[way.whole];
        for (pool, n_blocks, samples) in begins {
            let own = self.pools[pool].devices.iter();
            for (device, samples) in own.zip(&self.pools[pool].divided[samples]) {
                add(*device, self.costs.bytes_into(n_blocks, *samples));
            }
            let back = self.costs.bytes_into(n_blocks, samples);
            for (device, own) in whole.devices.iter().zip(&whole.divided[self.batch]) {
                let share = u128::from(back) * *own as u128 / self.batch.max(1) as u128;
                add(*device, share as u64);
            }
            let gradient = self.costs.parameter_bytes(&(0..n_blocks));
            for pool in [pool, way.whole] {
                if let Some(first) = self.pools[pool].devices.first() {
                    add(*first, gradient);
                }
            }
        }
        if let Data::At(source) = self.costs.data {
            let elsewhere = |pool: usize| self.source.is_some_and(|own| own != pool);
            let begins = way.short.into_iter().chain(way.long);
            let taken: usize = begins.clone().map(|(_, _, samples)| samples).sum();
            let raw = begins.map(|(pool, _, samples)| (pool, samples));
            let raw = raw.chain([(way.whole, self.batch - taken)]);
            for (_, samples) in raw.filter(|(pool, _)| elsewhere(*pool)) {
                add(source, self.costs.bytes_into(0, samples));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::hybrid::drawn;
    use crate::plan::tiers;

    #[test]
    fn roles_fit_into_memory_and_their_last_span_ends_with_the_step() {
        let mut n_planned = 0;
        for seed in 0..40 {
            let problem = drawn(seed, 4, 5, 6, 2);
            let of = [Tier::Device, Tier::Edge, Tier::Edge, Tier::Cloud];
            let Ok(plan) = tiers(&problem, &of, false) else {
                continue;
            };
            n_planned += 1;
            let costs = problem.costs();
            let roles = roles(&costs, &of, false, &plan).unwrap();
            assert_eq!(roles[0].blocks, 0..5);
            for role in &roles {
                let device = &problem.devices[role.device];
                assert!(role.memory_bytes <= device.memory_bytes, "{seed} {role:?}");
            }
            let spans = roles.iter().flat_map(|role| &role.spans);
            let end = spans.map(|span| span.to).fold(0.0, f64::max);
            assert!(
                (end - plan.step_seconds).abs() < 1e-9 * plan.step_seconds,
                "{seed} {end} {plan:?}"
            );
        }
        assert!(n_planned > 20);
    }
}

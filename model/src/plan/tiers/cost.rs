//! What a step over tiers takes: the paper's cost model, of given roles, blocks and samples.

use std::ops::Range;

use super::Tier;
use crate::plan::costs::Costs;
use crate::plan::group::Pace;
use crate::plan::work::{Data, Held};

/// The peers of a tier, as one worker.
pub(super) struct Pool {
    pub(super) tier: Tier,
    pub(super) devices: Vec<usize>,
    /// By the number of samples, those of each device.
    pub(super) divided: Vec<Vec<usize>>,
    pub(super) pace: Pace,
}

/// Who does what: pools by number; blocks and samples of those that begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Way {
    pub(super) whole: usize,
    pub(super) short: Option<(usize, usize, usize)>,
    pub(super) long: Option<(usize, usize, usize)>,
}

impl Way {
    pub(super) fn alone(whole: usize) -> Self {
        Self {
            whole,
            short: None,
            long: None,
        }
    }
}

pub(super) struct Mesh<'a> {
    pub(super) costs: &'a Costs<'a>,
    pub(super) pools: Vec<Pool>,
    /// Samples of a step.
    pub(super) batch: usize,
    /// Who has the samples, if not everybody.
    pub(super) source: Option<usize>,
    pub(super) private: bool,
    /// Bytes per second between pools, and the delay.
    links: Vec<Vec<(f64, f64)>>,
}

impl<'a> Mesh<'a> {
    pub(super) fn new(costs: &'a Costs<'a>, tiers: &[Tier], private: bool) -> Self {
        let batch = costs.work.micro_batch * costs.work.n_micro;
        let all = [Tier::Device, Tier::Edge, Tier::Cloud];
        let pool = |tier: Tier| {
            let mut devices: Vec<usize> = (0..tiers.len())
                .filter(|device| tiers[*device] == tier)
                .collect();
            if let Data::At(source) = costs.data
                && private
                && devices.contains(&source)
            {
                // Its samples must not go to its neighbours either.
                devices = vec![source];
            }
            (!devices.is_empty()).then(|| Pool {
                tier,
                divided: divided(costs, &devices, batch),
                pace: Pace::of(costs, &devices),
                devices,
            })
        };
        let pools: Vec<Pool> = all.into_iter().filter_map(pool).collect();
        let source = match costs.data {
            Data::Everywhere => None,
            Data::At(source) => pools.iter().position(|pool| pool.tier == tiers[source]),
        };
        // As many pairs at once as the smaller pool has members, each over links like the slowest; or through a third pool.
        let direct = |from: usize, to: usize| {
            let (from, to) = (&pools[from].devices, &pools[to].devices);
            let pairs = from.iter().flat_map(|a| to.iter().map(move |b| (*a, *b)));
            let slowest = pairs.fold((f64::INFINITY, 0.0f64), |(rate, delay), (a, b)| {
                let links = costs.links;
                (rate.min(links.rate[a][b]), delay.max(links.delay(a, b)))
            });
            (slowest.0 * from.len().min(to.len()) as f64, slowest.1)
        };
        let link = |from: usize, to: usize| {
            let through = (0..pools.len()).filter(|over| *over != from && *over != to);
            let through = through.map(|over| {
                let (first, second) = (direct(from, over), direct(over, to));
                (first.0.min(second.0), first.1 + second.1)
            });
            let faster = |best: (f64, f64), other: (f64, f64)| {
                if other.0 > best.0 { other } else { best }
            };
            through.fold(direct(from, to), faster)
        };
        let n = pools.len();
        let links = (0..n)
            .map(|from| (0..n).map(|to| link(from, to)).collect())
            .collect();
        Self {
            costs,
            batch,
            source,
            private,
            links,
            pools,
        }
    }

    /// Blocks and samples divided evenly over the tiers, the last of which holds the whole model.
    pub(super) fn equal(&self) -> Way {
        let n = self.pools.len();
        let begins = |pool: usize| {
            let n_blocks = self.costs.n_blocks() * (pool + 1) / n;
            (pool, n_blocks.max(1), (self.batch / n).max(1))
        };
        Way {
            whole: n - 1,
            short: (n > 2).then(|| begins(0)),
            long: n.checked_sub(2).map(begins),
        }
    }

    /// Seconds of `samples` through `blocks`, forward and backward.
    pub(super) fn passes(&self, pool: usize, blocks: Range<usize>, samples: usize) -> [f64; 2] {
        let pool = &self.pools[pool];
        let mut most = [0.0f64; 2];
        for (device, own) in pool.devices.iter().zip(&pool.divided[samples]) {
            let [forward, backward, _] = self.costs.seconds(*device, &blocks, *own);
            most = [most[0].max(forward), most[1].max(backward)];
        }
        most
    }

    pub(super) fn update(&self, pool: usize, n_blocks: usize) -> f64 {
        let devices = self.pools[pool].devices.iter();
        let updates = devices.map(|device| self.costs.seconds(*device, &(0..n_blocks), 1)[2]);
        updates.fold(0.0, f64::max)
    }

    pub(super) fn send(&self, from: usize, to: usize, bytes: f64) -> f64 {
        if from == to || bytes == 0.0 {
            return 0.0;
        }
        let (rate, delay) = self.links[from][to];
        delay + bytes / rate
    }

    /// Seconds until so many raw samples are at a pool.
    pub(super) fn samples_to(&self, pool: usize, samples: usize) -> f64 {
        let source = self.source.unwrap_or(pool);
        self.send(source, pool, self.costs.bytes_into(0, samples) as f64)
    }

    /// A beginner's way to the border and back: until its activations are at the whole model; and from when the gradients leave
    /// there until it is through.
    pub(super) fn begins(&self, way: &Way, part: (usize, usize, usize), packed: f64) -> [f64; 2] {
        let (pool, n_blocks, samples) = part;
        let [forward, backward] = self.passes(pool, 0..n_blocks, samples);
        let bytes = packed * self.costs.bytes_into(n_blocks, samples) as f64;
        [
            self.samples_to(pool, samples) + forward + self.send(pool, way.whole, bytes),
            self.send(way.whole, pool, bytes) + backward,
        ]
    }

    /// Seconds after all backward passes: gradients among peers, to the whole model and back, updates.
    pub(super) fn exchange(&self, way: &Way) -> f64 {
        let n = self.costs.n_blocks();
        let mut exchange = 0.0f64;
        let bytes = |n_blocks: usize| self.costs.parameter_bytes(&(0..n_blocks));
        let mut reduce = self.pools[way.whole].pace.reduction(bytes(n)).1;
        let mut update = self.update(way.whole, n);
        for (pool, n_blocks, _) in way.short.into_iter().chain(way.long) {
            let gradient = bytes(n_blocks) as f64;
            let both = self.send(pool, way.whole, gradient) + self.send(way.whole, pool, gradient);
            exchange = exchange.max(both);
            reduce = reduce.max(self.pools[pool].pace.reduction(bytes(n_blocks)).1);
            update = update.max(self.update(pool, n_blocks));
        }
        reduce + exchange + update
    }

    /// Seconds of a step (section "cost model"), with activations in `packed` times their bytes. None if it does not fit into
    /// memory or if samples would leave their peer that must not.
    pub(super) fn seconds(&self, way: &Way, packed: f64) -> Option<f64> {
        let n = self.costs.n_blocks();
        let (m_s, b_s) = way
            .short
            .map_or((0, 0), |(_, blocks, samples)| (blocks, samples));
        let (m_l, b_l) = way
            .long
            .map_or((m_s, 0), |(_, blocks, samples)| (blocks, samples));
        let b_o = self.batch.checked_sub(b_s + b_l)?;
        let beginners = way.short.into_iter().chain(way.long);
        let has_raw = beginners.map(|(pool, _, samples)| (pool, samples));
        let has_raw = has_raw.chain([(way.whole, b_o)]);
        for (pool, samples) in has_raw {
            let elsewhere = self.source.is_some_and(|source| source != pool);
            if self.private && samples > 0 && elsewhere {
                return None;
            }
        }
        if !self.fits(way, [m_s, m_l], [b_o, b_s, b_l]) {
            return None;
        }
        let first = self.passes(way.whole, 0..m_s, b_o);
        let middle = self.passes(way.whole, m_s..m_l, b_o + b_s);
        let last = self.passes(way.whole, m_l..n, self.batch);
        let short = way
            .short
            .map_or([0.0; 2], |part| self.begins(way, part, packed));
        let long = way
            .long
            .map_or([0.0; 2], |part| self.begins(way, part, packed));
        let whole = self.samples_to(way.whole, b_o) + first[0];
        let forward = (whole.max(short[0]) + middle[0]).max(long[0]) + last[0];
        let until_middle = last[1] + middle[1];
        let back = [
            until_middle + first[1],
            until_middle + short[1],
            last[1] + long[1],
        ];
        let backward = back.into_iter().fold(0.0, f64::max);
        Some(forward + backward + self.exchange(way))
    }

    fn fits(&self, way: &Way, borders: [usize; 2], samples: [usize; 3]) -> bool {
        let [b_o, b_s, b_l] = samples;
        let own = [
            (way.whole, b_o),
            (way.whole, b_o + b_s),
            (way.whole, self.batch),
        ];
        let beginners = way.short.map(|(pool, ..)| (pool, b_s)).into_iter();
        let beginners = beginners.chain(way.long.map(|(pool, ..)| (pool, b_l)));
        let least = self.costs.least_samples;
        let mut divided = own.into_iter().chain(beginners);
        let are_enough = divided.all(|(pool, samples)| {
            let mut each = self.pools[pool].divided[samples].iter();
            each.all(|own| *own == 0 || *own >= least)
        });
        are_enough
            && self.needs(way, borders, samples, &mut |device, bytes| {
                bytes <= self.costs.devices[device].memory_bytes
            })
    }

    /// What each device with a role needs, in bytes, as long as `judge` holds.
    pub(super) fn needs(
        &self,
        way: &Way,
        [m_s, m_l]: [usize; 2],
        [b_o, b_s, b_l]: [usize; 3],
        judge: &mut dyn FnMut(usize, u64) -> bool,
    ) -> bool {
        let n = self.costs.n_blocks();
        let mut room = |pool: usize, parts: &[(Range<usize>, usize)]| {
            let pool = &self.pools[pool];
            let in_group = pool.devices.len() > 1;
            (0..pool.devices.len()).all(|at| {
                let needs = parts.iter().filter(|(blocks, _)| !blocks.is_empty());
                let needs = needs.map(|(blocks, samples)| {
                    self.costs
                        .memory(blocks, pool.divided[*samples][at], Held::LEAST, in_group)
                });
                judge(pool.devices[at], needs.fold(0, u64::saturating_add))
            })
        };
        room(
            way.whole,
            &[(0..m_s, b_o), (m_s..m_l, b_o + b_s), (m_l..n, self.batch)],
        ) && way
            .short
            .is_none_or(|(pool, ..)| room(pool, &[(0..m_s, b_s)]))
            && way
                .long
                .is_none_or(|(pool, ..)| room(pool, &[(0..m_l, b_l)]))
    }
}

/// For every number of samples, how they are divided: each further one goes to whoever is fastest with it, which keeps the
/// slowest as fast as can be.
fn divided(costs: &Costs<'_>, devices: &[usize], batch: usize) -> Vec<Vec<usize>> {
    let whole = 0..costs.n_blocks();
    let mut all = vec![vec![0; devices.len()]];
    for _ in 0..batch {
        let mut next = all.last().cloned().unwrap_or_default();
        let then = |at: usize| {
            let [forward, backward, _] = costs.seconds(devices[at], &whole, next[at] + 1);
            forward + backward
        };
        let fastest = (0..devices.len()).min_by(|a, b| then(*a).total_cmp(&then(*b)));
        if let Some(fastest) = fastest {
            next[fastest] += 1;
        }
        all.push(next);
    }
    all
}

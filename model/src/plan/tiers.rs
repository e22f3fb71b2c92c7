//! Layers and samples over three tiers (HierTrain: Liu, Chen, Zhou and Ling 2020, "hybrid parallelism"): one tier holds the whole
//! model, the two others only its first blocks, and each takes part of the samples.
//!
//! ```text
//! long   b_l samples: blocks 0..m_l ─────────────┐
//! short  b_s samples: blocks 0..m_s ─┐           │
//! whole  b_o samples: blocks 0..m_s ─┴ m_s..m_l ─┴ m_l..N, loss, and the same way back
//! ```
//!
//! The cost is the paper's: three phases forward, three backward, then gradients of shared blocks go to the whole model and come
//! back. It is minimised exactly over all integers: which tier has which role, `m_s <= m_l`, and the samples. Whatever is left
//! out is so because a bound on it is no shorter than what is known. Deviation: a tier may have several peers, which divide its
//! samples by speed and reduce gradients among each other; what passes between peers of one tier in a phase costs nothing. All
//! samples of a step are computed at once, as in the paper.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::costs::Costs;
use super::group::Pace;
use super::problem::Problem;
use super::work::{Data, PlanError};

/// Where a peer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Where data is born.
    Device,
    /// Near the devices.
    Edge,
    /// Far from them, and fast.
    Cloud,
}

/// What a tier does that does not hold the whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begins {
    /// Which tier.
    pub tier: Tier,
    /// It trains so many first blocks, at least one,
    pub n_blocks: usize,
    /// with so many samples of a step, at least one.
    pub samples: usize,
}

/// Roles, blocks and samples of a step, and its time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tiered {
    /// The tier that holds the whole model (worker_o).
    pub whole: Tier,
    /// Samples that begin there.
    pub samples: usize,
    /// The tier that trains fewer blocks (worker_s).
    pub short: Option<Begins>,
    /// The tier that trains more (worker_l); if only one does, this one.
    pub long: Option<Begins>,
    /// Seconds of a step.
    pub step_seconds: f64,
}

/// What plans over tiers are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierBaseline {
    /// All samples go to one tier, which trains alone.
    AllAt(Tier),
    /// First blocks where the data is, the others in the cloud (JointDNN).
    JointDnn,
    /// First blocks at the edge, the others in the cloud, activations and gradients between them in 8 bits (JALAD).
    Jalad,
}

/// The fastest step. `tiers` says where each device stands; `private` keeps raw samples on the one that has them.
///
/// # Errors
/// Figures that cannot be; tiers not of every device; no way that fits into memory.
pub fn tiers(problem: &Problem, tiers: &[Tier], private: bool) -> Result<Tiered, PlanError> {
    let costs = checked(problem, tiers)?;
    let mesh = Mesh::new(&costs, tiers, private);
    mesh.search().ok_or_else(|| nothing(problem))
}

/// The plan of a baseline, by the same cost; as fast as its family can be.
///
/// # Errors
/// As [`tiers`], or a tier that nobody is of.
pub fn tier_baseline(
    problem: &Problem,
    tiers: &[Tier],
    baseline: TierBaseline,
) -> Result<Tiered, PlanError> {
    let costs = checked(problem, tiers)?;
    let mesh = Mesh::new(&costs, tiers, false);
    let pool = |tier: Tier| mesh.pools.iter().position(|pool| pool.tier == tier);
    let cut = |from: Option<usize>, bits: f64| {
        let (from, to) = (from?, pool(Tier::Cloud)?);
        let ways = (0..=costs.n_blocks()).filter_map(|n_blocks| {
            let way = if from == to || n_blocks == 0 {
                Way::alone(to)
            } else if n_blocks == costs.n_blocks() {
                Way::alone(from)
            } else {
                let samples = mesh.batch;
                Way {
                    long: Some((from, n_blocks, samples)),
                    ..Way::alone(to)
                }
            };
            Some((mesh.seconds(&way, bits / 32.0)?, way))
        });
        ways.min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let found = match baseline {
        TierBaseline::AllAt(tier) => pool(tier)
            .map(Way::alone)
            .and_then(|way| Some((mesh.seconds(&way, 1.0)?, way))),
        TierBaseline::JointDnn => cut(mesh.source.or_else(|| pool(Tier::Device)), 32.0),
        TierBaseline::Jalad => cut(pool(Tier::Edge), 8.0),
    };
    let found = found.filter(|(seconds, _)| seconds.is_finite());
    found
        .map(|(seconds, way)| mesh.told(&way, seconds))
        .ok_or_else(|| nothing(problem))
}

fn checked<'p>(problem: &'p Problem, tiers: &[Tier]) -> Result<Costs<'p>, PlanError> {
    problem.check()?;
    if tiers.len() != problem.devices.len() {
        let what = "the tiers do not name one for every device";
        return Err(PlanError::Device {
            device: tiers.len(),
            what,
        });
    }
    Ok(problem.costs())
}

fn nothing(problem: &Problem) -> PlanError {
    let costs = problem.costs();
    let n_blocks = costs.n_blocks();
    let memory = problem.devices.iter().map(|device| device.memory_bytes);
    PlanError::ModelTooLarge {
        needs: costs.memory(&(0..n_blocks), problem.least_samples, 1, false),
        available: memory.fold(0, u64::saturating_add),
        block: n_blocks - 1,
    }
}

/// The peers of a tier, as one worker.
struct Pool {
    tier: Tier,
    devices: Vec<usize>,
    /// By the number of samples, those of each device.
    divided: Vec<Vec<usize>>,
    pace: Pace,
}

/// Who does what: pools by number; blocks and samples of those that begin.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Way {
    whole: usize,
    short: Option<(usize, usize, usize)>,
    long: Option<(usize, usize, usize)>,
}

impl Way {
    fn alone(whole: usize) -> Self {
        Self {
            whole,
            short: None,
            long: None,
        }
    }
}

struct Mesh<'a> {
    costs: &'a Costs<'a>,
    pools: Vec<Pool>,
    /// Samples of a step.
    batch: usize,
    /// Who has the samples, if not everybody.
    source: Option<usize>,
    private: bool,
    /// Bytes per second between pools.
    rates: Vec<Vec<f64>>,
}

impl<'a> Mesh<'a> {
    fn new(costs: &'a Costs<'a>, tiers: &[Tier], private: bool) -> Self {
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
        let direct = |from: &Pool, to: &Pool| {
            let pairs = from
                .devices
                .iter()
                .flat_map(|a| to.devices.iter().map(move |b| (*a, *b)));
            let slowest = pairs
                .map(|(a, b)| costs.links.rate[a][b])
                .fold(f64::INFINITY, f64::min);
            slowest * from.devices.len().min(to.devices.len()) as f64
        };
        let rate = |from: usize, to: usize| {
            let through = (0..pools.len()).filter(|over| *over != from && *over != to);
            let through = through.map(|over| {
                direct(&pools[from], &pools[over]).min(direct(&pools[over], &pools[to]))
            });
            through.fold(direct(&pools[from], &pools[to]), f64::max)
        };
        let n = pools.len();
        let rates = (0..n)
            .map(|from| (0..n).map(|to| rate(from, to)).collect())
            .collect();
        Self {
            costs,
            batch,
            source,
            private,
            rates,
            pools,
        }
    }

    /// Seconds of `samples` through `blocks`, forward and backward.
    fn passes(&self, pool: usize, blocks: Range<usize>, samples: usize) -> [f64; 2] {
        let pool = &self.pools[pool];
        let mut most = [0.0f64; 2];
        for (device, own) in pool.devices.iter().zip(&pool.divided[samples]) {
            let [forward, backward, _] = self.costs.seconds(*device, &blocks, *own);
            most = [most[0].max(forward), most[1].max(backward)];
        }
        most
    }

    fn update(&self, pool: usize, n_blocks: usize) -> f64 {
        let devices = self.pools[pool].devices.iter();
        let updates = devices.map(|device| self.costs.seconds(*device, &(0..n_blocks), 1)[2]);
        updates.fold(0.0, f64::max)
    }

    fn send(&self, from: usize, to: usize, bytes: f64) -> f64 {
        if from == to || bytes == 0.0 {
            return 0.0;
        }
        self.costs.links.latency + bytes / self.rates[from][to]
    }

    /// Seconds until so many raw samples are at a pool.
    fn samples_to(&self, pool: usize, samples: usize) -> f64 {
        let source = self.source.unwrap_or(pool);
        self.send(source, pool, self.costs.bytes_into(0, samples) as f64)
    }

    /// A beginner's way to the border and back: until its activations are at the whole model; and from when the gradients leave
    /// there until it is through.
    fn begins(&self, way: &Way, part: (usize, usize, usize), packed: f64) -> [f64; 2] {
        let (pool, n_blocks, samples) = part;
        let [forward, backward] = self.passes(pool, 0..n_blocks, samples);
        let bytes = packed * self.costs.bytes_into(n_blocks, samples) as f64;
        [
            self.samples_to(pool, samples) + forward + self.send(pool, way.whole, bytes),
            self.send(way.whole, pool, bytes) + backward,
        ]
    }

    /// Seconds after all backward passes: gradients among peers, to the whole model and back, updates.
    fn exchange(&self, way: &Way) -> f64 {
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
    fn seconds(&self, way: &Way, packed: f64) -> Option<f64> {
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

    fn fits(&self, way: &Way, [m_s, m_l]: [usize; 2], [b_o, b_s, b_l]: [usize; 3]) -> bool {
        let n = self.costs.n_blocks();
        let room = |pool: usize, parts: &[(Range<usize>, usize)]| {
            let pool = &self.pools[pool];
            let in_group = pool.devices.len() > 1;
            (0..pool.devices.len()).all(|at| {
                let needs = parts.iter().filter(|(blocks, _)| !blocks.is_empty());
                let needs = needs.map(|(blocks, samples)| {
                    self.costs
                        .memory(blocks, pool.divided[*samples][at], 1, in_group)
                });
                let needs = needs.fold(0, u64::saturating_add);
                needs <= self.costs.devices[pool.devices[at]].memory_bytes
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

    /// The best of all ways.
    fn search(&self) -> Option<Tiered> {
        let mut best: Option<(f64, Way)> = None;
        let n_pools = self.pools.len();
        for whole in 0..n_pools {
            self.take(&mut best, Way::alone(whole));
        }
        for whole in 0..n_pools {
            for long in (0..n_pools).filter(|long| *long != whole) {
                self.with_long(&mut best, whole, long);
            }
        }
        best.map(|(seconds, way)| self.told(&way, seconds))
    }

    /// All ways with these two roles, and with or without the third.
    fn with_long(&self, best: &mut Option<(f64, Way)>, whole: usize, long: usize) {
        let n = self.costs.n_blocks();
        let least = |best: &Option<(f64, Way)>| best.map_or(f64::INFINITY, |(seconds, _)| seconds);
        for m_l in 1..=n {
            let last = self.passes(whole, m_l..n, self.batch);
            for b_l in 1..=self.batch {
                let part = (long, m_l, b_l);
                let way = Way {
                    long: Some(part),
                    ..Way::alone(whole)
                };
                // No third can make this shorter; more samples only take longer.
                let begins = self.begins(&way, part, 1.0);
                let exchange = self.exchange(&way);
                let bound = begins[0] + begins[1] + last[0] + last[1] + exchange;
                if bound >= least(best) {
                    break;
                }
                self.take(best, way);
                let third = (0..self.pools.len()).find(|short| *short != whole && *short != long);
                if let Some(short) = third {
                    self.with_short(best, way, (short, m_l, b_l), last);
                }
            }
        }
    }

    /// All ways with a third tier beside those that are given.
    fn with_short(
        &self,
        best: &mut Option<(f64, Way)>,
        way: Way,
        (short, m_l, b_l): (usize, usize, usize),
        last: [f64; 2],
    ) {
        for m_s in 1..=m_l {
            let left = self.batch - b_l;
            let middle = self.passes(way.whole, m_s..m_l, left);
            let after = last[0] + last[1] + middle[0] + middle[1];
            for b_s in 1..=left {
                let part = (short, m_s, b_s);
                let way = Way {
                    short: Some(part),
                    ..way
                };
                let begins = self.begins(&way, part, 1.0);
                let bound = begins[0] + begins[1] + after + self.exchange(&way);
                if best.is_some_and(|(seconds, _)| bound >= seconds) {
                    break;
                }
                self.take(best, way);
            }
        }
    }

    fn take(&self, best: &mut Option<(f64, Way)>, way: Way) {
        if let Some(seconds) = self
            .seconds(&way, 1.0)
            .filter(|seconds| seconds.is_finite())
            && best.is_none_or(|(least, _)| seconds < least)
        {
            *best = Some((seconds, way));
        }
    }

    fn told(&self, way: &Way, step_seconds: f64) -> Tiered {
        let begins = |(pool, n_blocks, samples): (usize, usize, usize)| Begins {
            tier: self.pools[pool].tier,
            n_blocks,
            samples,
        };
        let (short, long) = (way.short.map(begins), way.long.map(begins));
        let elsewhere: usize = short.iter().chain(&long).map(|begins| begins.samples).sum();
        Tiered {
            whole: self.pools[way.whole].tier,
            samples: self.batch - elsewhere,
            short,
            long,
            step_seconds,
        }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::hybrid::drawn;

    const THREE: [Tier; 3] = [Tier::Device, Tier::Edge, Tier::Cloud];

    /// Every way there is.
    fn brute(mesh: &Mesh<'_>) -> Option<f64> {
        let (n, batch) = (mesh.costs.n_blocks(), mesh.batch);
        let pools = 0..mesh.pools.len();
        let mut best = f64::INFINITY;
        for whole in pools.clone() {
            best = best.min(
                mesh.seconds(&Way::alone(whole), 1.0)
                    .unwrap_or(f64::INFINITY),
            );
            for long in pools.clone().filter(|long| *long != whole) {
                for (m_l, b_l) in (1..=n).flat_map(|m| (1..=batch).map(move |b| (m, b))) {
                    let way = Way {
                        long: Some((long, m_l, b_l)),
                        ..Way::alone(whole)
                    };
                    best = best.min(mesh.seconds(&way, 1.0).unwrap_or(f64::INFINITY));
                    for short in pools
                        .clone()
                        .filter(|short| *short != whole && *short != long)
                    {
                        for (m_s, b_s) in
                            (1..=m_l).flat_map(|m| (1..=batch - b_l).map(move |b| (m, b)))
                        {
                            let way = Way {
                                short: Some((short, m_s, b_s)),
                                ..way
                            };
                            best = best.min(mesh.seconds(&way, 1.0).unwrap_or(f64::INFINITY));
                        }
                    }
                }
            }
        }
        best.is_finite().then_some(best)
    }

    /// A slow device with the data, an edge seven times and a cloud seventeen times as fast, `mbit` between the last two.
    fn paper(mbit: f64) -> Problem {
        let mut problem = drawn(1, 3, 6, 8, 1);
        problem.data = Data::At(0);
        problem.least_samples = 1;
        for (device, capacity) in problem.devices.iter_mut().zip([16.7, 2.5, 1.0]) {
            (device.capacity, device.times, device.memory_bytes) = (capacity, None, u64::MAX);
        }
        let (lan, wan) = (1000.0, 20.0 * mbit);
        problem.links.rate = vec![
            vec![0.0, lan, wan],
            vec![lan, 0.0, wan],
            vec![wan, wan, 0.0],
        ];
        problem.links.latency = 0.0;
        problem
    }

    #[test]
    fn no_baseline_is_ever_better() {
        for mbit in [0.1, 1.0, 5.0, 20.0, 100.0, 1000.0] {
            let problem = paper(mbit);
            let plan = tiers(&problem, &THREE, false).unwrap();
            let all = THREE.map(TierBaseline::AllAt);
            for baseline in all.into_iter().chain([TierBaseline::JointDnn]) {
                let other = tier_baseline(&problem, &THREE, baseline).unwrap();
                assert!(
                    plan.step_seconds <= other.step_seconds * 1.000001,
                    "{mbit} {baseline:?} {other:?} {plan:?}"
                );
            }
        }
        let slow = tiers(&paper(0.01), &THREE, false).unwrap();
        let uses_cloud = |plan: &Tiered| {
            let begins = plan.short.iter().chain(&plan.long);
            plan.whole == Tier::Cloud || begins.into_iter().any(|begins| begins.tier == Tier::Cloud)
        };
        assert!(!uses_cloud(&slow), "{slow:?}");
        assert!(uses_cloud(&tiers(&paper(10_000.0), &THREE, false).unwrap()));
    }

    #[test]
    fn private_samples_stay_where_they_are_and_that_costs() {
        let mut problem = paper(5.0);
        let open = tiers(&problem, &THREE, false).unwrap();
        let private = tiers(&problem, &THREE, true).unwrap();
        assert!(private.step_seconds > open.step_seconds);
        let begins: usize = [private.short, private.long]
            .into_iter()
            .flatten()
            .map(|begins| {
                assert_eq!(begins.tier, Tier::Device);
                begins.samples
            })
            .sum();
        let at_device = if private.whole == Tier::Device {
            private.samples
        } else {
            0
        };
        assert_eq!(begins + at_device, 8);
        // Nor to another peer of the same tier.
        let with_peer = [Tier::Device, Tier::Device, Tier::Cloud];
        problem.devices[1].capacity = 0.1;
        let alone = tiers(&problem, &with_peer, true).unwrap();
        let together = tiers(&problem, &with_peer, false).unwrap();
        assert!(alone.step_seconds > together.step_seconds);
    }

    #[test]
    fn tiers_that_do_not_fit_are_an_error() {
        let mut problem = paper(5.0);
        assert!(tiers(&problem, &THREE[..2], false).is_err());
        for device in &mut problem.devices {
            device.memory_bytes = 1;
        }
        let error = tiers(&problem, &THREE, false).unwrap_err();
        assert!(matches!(error, PlanError::ModelTooLarge { .. }));
        let edge = TierBaseline::AllAt(Tier::Edge);
        let nobody = [Tier::Device, Tier::Device, Tier::Cloud];
        assert!(tier_baseline(&paper(5.0), &nobody, edge).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn nothing_is_better_than_what_is_found(
            seed in 0u64..100_000,
            n_devices in 2usize..5,
            private: bool,
        ) {
            let problem = drawn(seed, n_devices, 4, 5, 1);
            let of: Vec<Tier> = (0..n_devices).map(|device| THREE[device.min(2)]).collect();
            let costs = problem.costs();
            let mesh = Mesh::new(&costs, &of, private);
            match (brute(&mesh), tiers(&problem, &of, private)) {
                (Some(best), Ok(plan)) => prop_assert!((plan.step_seconds - best).abs() < 1e-9 * best, "{} {:?}", best, plan),
                (None, Err(_)) => {}
                (best, plan) => prop_assert!(false, "{:?} {:?}", best, plan),
            }
        }
    }
}

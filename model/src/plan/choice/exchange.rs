//! Every device a replica of the whole model, and compressed updates between them: what a step takes.
//!
//! The samples of a step are divided by speed and memory (Asteroid's algorithm 1, as for a group that computes them at once). A
//! replica's step takes `t = max(forward + backward + update, packets / commit_steps)`, where `packets` is the time in which its
//! links carry one packet to, and from, every other replica, one after the other: sending overlaps computing, and where it takes
//! longer commits get rarer, down to one in `commit_steps`. Nobody waits, so replicas add up: all samples of a step `S` are made in
//! `S / sum(s_i / t_i)`. Packets have a fixed share of the parameters' bytes ([`super::ExchangeCosts`]). Beside its model a replica
//! holds `arenas` times the bytes of its parameters. Replicas whose packets cost the others more than they make are left out.

use super::offer::{Arrangement, Offer, Refusal, Role, samples_of};
use super::settings::{ExchangeCosts, Settings};
use crate::plan::costs::Costs;
use crate::plan::group::{Share, allocate};
use crate::plan::problem::Problem;
use crate::plan::work::{Data, Device, Held, Stashing, Work};

/// A better set of replicas is faster by more than this share.
const NOTICEABLE: f64 = 1e-6;

/// Most samples that are divided at once.
const MOST_SAMPLES: usize = 65_536;

/// The devices as replicas.
pub(super) fn plan(problem: &Problem, settings: &Settings) -> Result<Offer, Refusal> {
    if let Data::At(device) = problem.data {
        return Err(Refusal::DataElsewhere { device });
    }
    let step = Step::new(problem, &settings.exchange)?;
    let costs = step.costs(problem);
    let mesh = Mesh {
        costs: &costs,
        exchange: &settings.exchange,
    };
    let n = problem.devices.len();
    let best = mesh.best((0..n).collect());
    let Some((seconds, shares)) = best else {
        let alone = (0..n).any(|device| mesh.seconds(&[device]).is_some());
        return Err(if alone {
            Refusal::NoPartner
        } else {
            let needs = least_bytes(problem, settings);
            Refusal::NoRoom { needs }
        });
    };
    let devices: Vec<usize> = shares.iter().map(|share| share.device).collect();
    let role = |share: &Share| mesh.role(share, &devices);
    let roles = shares.iter().map(role).collect();
    let efficiency = settings.exchange.efficiency;
    let made = (seconds, costs.work.micro_batch);
    Offer::new(Arrangement::Replicas(shares), roles, made, efficiency).ok_or(Refusal::NoPartner)
}

/// A step with these devices as replicas, whoever is best: samples per second. `None` if they do not fit.
pub(super) fn samples_per_second(
    problem: &Problem,
    settings: &Settings,
    devices: &[usize],
) -> Option<f64> {
    let step = Step::new(problem, &settings.exchange).ok()?;
    let costs = step.costs(problem);
    let mesh = Mesh {
        costs: &costs,
        exchange: &settings.exchange,
    };
    let (seconds, shares) = mesh.seconds(devices)?;
    let all_take_part = shares.len() == devices.len();
    (all_take_part && seconds > 0.0).then(|| costs.work.micro_batch as f64 / seconds)
}

/// All samples of a step at once, on devices without the memory that arenas take.
pub(super) struct Step {
    work: Work,
    devices: Vec<Device>,
}

impl Step {
    pub(super) fn new(problem: &Problem, exchange: &ExchangeCosts) -> Result<Self, Refusal> {
        let costs = problem.costs();
        let samples = samples_of(&costs);
        if samples > MOST_SAMPLES {
            return Err(Refusal::LargeStep { samples });
        }
        let parameters = costs.parameter_bytes(&(0..costs.n_blocks()));
        let arenas = parameters.saturating_mul(u64::from(exchange.arenas));
        let smaller = |device: &Device| Device {
            memory_bytes: match device.memory_bytes {
                u64::MAX => u64::MAX,
                bytes => bytes.saturating_sub(arenas),
            },
            ..device.clone()
        };
        let mut work = Work {
            micro_batch: samples,
            n_micro: 1,
            stashing: Stashing::None,
            ..problem.work.clone()
        };
        for block in &mut work.profile.blocks {
            block.copies_bytes = 0;
        }
        Ok(Self {
            work,
            devices: problem.devices.iter().map(smaller).collect(),
        })
    }

    pub(super) fn costs<'a>(&'a self, problem: &'a Problem) -> Costs<'a> {
        let mut costs = Costs::new(&self.work, &self.devices, &problem.links);
        costs.least_samples = problem.least_samples;
        costs
    }
}

struct Mesh<'a> {
    costs: &'a Costs<'a>,
    exchange: &'a ExchangeCosts,
}

impl Mesh<'_> {
    /// The best replicas among `devices`: all of them, or without one after the other, first those that lack links, then those
    /// with the slowest.
    fn best(&self, devices: Vec<usize>) -> Option<(f64, Vec<Share>)> {
        let mut left = devices;
        let mut best: Option<(f64, Vec<Share>)> = None;
        while left.len() > 1 {
            let found = self.seconds(&left);
            if let Some((seconds, shares)) = &found
                && shares.len() > 1
                && seconds.is_finite()
                && best
                    .as_ref()
                    .is_none_or(|(least, _)| *seconds < least * (1.0 - NOTICEABLE))
            {
                best = found.clone();
            }
            let links = |at: &usize| {
                (
                    self.n_missing(left[*at], &left),
                    self.packets(left[*at], &left),
                )
            };
            let dear = (0..left.len()).max_by(|a, b| {
                let (a, b) = (links(a), links(b));
                a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
            });
            left.remove(dear.unwrap_or(left.len() - 1));
        }
        best
    }

    /// Seconds of a step with these replicas, and their samples; those that get none are not among them.
    fn seconds(&self, devices: &[usize]) -> Option<(f64, Vec<Share>)> {
        let whole = 0..self.costs.n_blocks();
        let shares = allocate(self.costs, &whole, devices, (1, 1))?.shares;
        let devices: Vec<usize> = shares.iter().map(|share| share.device).collect();
        let mut rate = 0.0;
        for share in &shares {
            let seconds = self.step(share, &devices);
            if seconds == 0.0 {
                return Some((0.0, shares));
            }
            if seconds.is_infinite() {
                return Some((f64::INFINITY, shares));
            }
            rate += share.samples as f64 / seconds;
        }
        Some((self.costs.work.micro_batch as f64 / rate, shares))
    }

    fn computing(&self, share: &Share) -> f64 {
        let whole = 0..self.costs.n_blocks();
        let seconds = self.costs.seconds(share.device, &whole, share.samples);
        seconds.into_iter().sum()
    }

    fn step(&self, share: &Share, devices: &[usize]) -> f64 {
        let commits = f64::from(self.exchange.commit_steps);
        let packets = self.packets(share.device, devices) / commits;
        self.computing(share).max(packets)
    }

    fn packet_bytes(&self) -> f64 {
        let whole = 0..self.costs.n_blocks();
        self.exchange.packet_frac * self.costs.parameter_bytes(&whole) as f64
    }

    /// Seconds that a packet takes to all the others, or from them.
    fn packets(&self, device: usize, devices: &[usize]) -> f64 {
        let bytes = self.packet_bytes().ceil() as u64;
        let others = devices.iter().filter(|other| **other != device);
        let links = self.costs.links;
        let both = others.map(|other| {
            [
                links.seconds(device, *other, bytes),
                links.seconds(*other, device, bytes),
            ]
        });
        let sum = both.fold([0.0; 2], |sum, own| [sum[0] + own[0], sum[1] + own[1]]);
        if links.shared {
            sum[0] + sum[1]
        } else {
            sum[0].max(sum[1])
        }
    }

    /// To how many of the others it has no link, there or back.
    fn n_missing(&self, device: usize, devices: &[usize]) -> usize {
        let rate = &self.costs.links.rate;
        let is_missing = |other: &&usize| {
            **other != device && rate[device][**other].min(rate[**other][device]) == 0.0
        };
        devices.iter().filter(is_missing).count()
    }

    fn role(&self, share: &Share, devices: &[usize]) -> Role {
        let whole = 0..self.costs.n_blocks();
        let step = self.step(share, devices);
        let others = devices.len().saturating_sub(1) as f64;
        let sent = others * self.packet_bytes() / f64::from(self.exchange.commit_steps);
        let parameters = self.costs.parameter_bytes(&whole);
        let arenas = parameters.saturating_mul(u64::from(self.exchange.arenas));
        let model = self.costs.memory(&whole, share.samples, Held::LEAST, true);
        Role {
            device: share.device,
            blocks: whole,
            samples: share.samples,
            busy: if step > 0.0 {
                self.computing(share) / step
            } else {
                0.0
            },
            memory_bytes: model.saturating_add(arenas),
            sent_bytes: sent as u64,
        }
    }
}

/// Bytes that a replica with the fewest samples takes on a device.
pub(super) fn least_bytes(problem: &Problem, settings: &Settings) -> u64 {
    let Ok(step) = Step::new(problem, &settings.exchange) else {
        return 0;
    };
    let costs = step.costs(problem);
    let whole = 0..costs.n_blocks();
    let parameters = costs.parameter_bytes(&whole);
    let arenas = parameters.saturating_mul(u64::from(settings.exchange.arenas));
    let model = costs.memory(&whole, problem.least_samples, Held::LEAST, true);
    model.saturating_add(arenas)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Links;
    use crate::plan::work::tests::{even, work};

    /// Devices of 1, 1 and 2 times the seconds, one block of 3 s per sample, twelve samples of a step.
    fn problem() -> Problem {
        let (mut devices, links) = even(3);
        devices[2].capacity = 2.0;
        Problem {
            data: Data::Everywhere,
            least_samples: 1,
            work: Work {
                micro_batch: 2,
                ..work(&[1.0], 6)
            },
            devices,
            links,
        }
    }

    fn samples(offer: &Offer) -> Vec<(usize, usize)> {
        let role = |role: &Role| (role.device, role.samples);
        offer.roles.iter().map(role).collect()
    }

    #[test]
    fn samples_follow_speed_and_replicas_add_up() {
        let offer = plan(&problem(), &Settings::default()).unwrap();
        assert_eq!(samples(&offer), [(0, 5), (1, 5), (2, 2)]);
        // Rates of 1/3 + 1/3 + 1/6 samples per second.
        assert!((offer.step_seconds - 12.0 / (5.0 / 6.0)).abs() < 1e-9);
        assert!((offer.seconds_per_sample - 1.2 / 0.54).abs() < 1e-9);
        assert!(offer.roles.iter().all(|role| role.busy > 0.999));
    }

    #[test]
    fn links_matter_once_the_rarest_commits_are_too_many_for_them() {
        let mut problem = problem();
        problem.work.profile.blocks[0].parameter_bytes = 10_000;
        let settings = Settings::default();
        let step = |problem: &Problem| plan(problem, &settings).unwrap();
        let free = step(&problem).step_seconds;
        // 33 bytes to two others in each of 24 steps of 15 s: at 1 byte per second no matter, at a twentieth of that one.
        problem.links = Links::uniform(3, 1.0, 0.0);
        assert_eq!(step(&problem).step_seconds, free);
        problem.links = Links::uniform(3, 0.05, 0.0);
        assert!(step(&problem).step_seconds > 1.5 * free);
        // One that is far away is left out, one without a link too.
        for rate in [1e-6, 0.0] {
            problem.links = Links::uniform(3, 1.0, 0.0);
            for other in 0..2 {
                (problem.links.rate[other][2], problem.links.rate[2][other]) = (rate, rate);
            }
            assert_eq!(samples(&step(&problem)), [(0, 6), (1, 6)]);
        }
    }

    #[test]
    fn a_replica_has_room_for_its_arenas_and_gets_no_samples_that_it_has_no_room_for() {
        let mut problem = problem();
        // 30 of state, 10 of another's gradient, three arenas of 10, 52 per sample.
        problem.devices[0].memory_bytes = 70 + 2 * 52;
        let offer = plan(&problem, &Settings::default()).unwrap();
        assert_eq!(
            (offer.roles[0].samples, offer.roles[0].memory_bytes),
            (2, 174)
        );
        // Copies are kept by stages of pipelines alone.
        problem.work.profile.blocks[0].copies_bytes = 1000;
        assert_eq!(plan(&problem, &Settings::default()), Ok(offer));
        problem.devices[0].memory_bytes -= 2 * 52;
        let offer = plan(&problem, &Settings::default()).unwrap();
        assert!(offer.roles.iter().all(|role| role.device != 0));
        problem.devices[1].memory_bytes = 0;
        let refusal = plan(&problem, &Settings::default()).unwrap_err();
        assert_eq!(refusal, Refusal::NoPartner);
        problem.devices[2].memory_bytes = 0;
        let refusal = plan(&problem, &Settings::default()).unwrap_err();
        assert!(
            matches!(refusal, Refusal::NoRoom { needs: 122 }),
            "{refusal}"
        );
        problem.data = Data::At(1);
        let refusal = plan(&problem, &Settings::default()).unwrap_err();
        assert_eq!(refusal, Refusal::DataElsewhere { device: 1 });
    }
}

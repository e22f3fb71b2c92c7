//! The planner that the agreement asks: profiles of the candidates in, a cut out. The cut itself is made by
//! [`skein_model::plan`].

use std::sync::Arc;

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::agreement::{Candidate, Planned, Planner};
use skein_gossip::pipeline::message::Profile;
use skein_gossip::pipeline::plan::{Blocks, Member, Plan, Stage};
use skein_model::plan::{self, Data, Device, Links, Placement, PlanError, Prediction, Time, Work};

use super::facts::Facts;
use super::hybrid::HybridPlanner;
use super::{links, tiers, times};
use crate::control::{Hex, Measured, PlanStatus, PlannedFellow, PlannedLink, PlannedStage};
use crate::planning;

/// Most devices whose measurements are told, and most times of blocks of them all: an answer to the command line stays below a few
/// megabytes.
const MOST_TOLD: [usize; 2] = [128, 65_536];

/// See the module's header.
#[derive(Clone, Debug)]
pub(super) struct CutPlanner {
    facts: Arc<Facts>,
    /// Sizes of the blocks, and what their updates take here; times are the candidates' own.
    measured: plan::Profile,
    /// Where stages may have several hosts.
    hybrid: Option<HybridPlanner>,
}

/// Candidates as `skein_model::plan` takes them: the one with the data first.
struct Problem<'a> {
    hosts: Vec<&'a Candidate>,
    devices: Vec<Device>,
    links: Links,
    work: Work,
}

impl CutPlanner {
    pub(super) fn new(facts: Arc<Facts>, measured: plan::Profile) -> Self {
        let hybrid = HybridPlanner::new(&facts, &measured);
        Self {
            facts,
            measured,
            hybrid,
        }
    }

    /// The problem whose first device is `owner`; times are relative to its profile.
    fn problem<'a>(
        &self,
        owner: &'a Candidate,
        candidates: &'a [Candidate],
    ) -> Option<Problem<'a>> {
        let base = owner.profile.as_ref()?;
        let others = candidates
            .iter()
            .filter(|candidate| candidate.peer != owner.peer && candidate.profile.is_some());
        let hosts: Vec<&Candidate> = [owner].into_iter().chain(others).collect();
        let sum = |profile: &Profile| -> f64 {
            let times = profile
                .blocks
                .iter()
                .map(|time| f64::from(time.forward_us) + f64::from(time.backward_us));
            times.sum()
        };
        let base_sum = sum(base).max(1.0);
        let device = |candidate: &&Candidate| {
            let profile = candidate.profile.as_deref()?;
            Some(Device {
                capacity: (sum(profile) / base_sum).max(1e-6) * f64::from(candidate.slowdown),
                memory_bytes: if profile.memory == 0 {
                    u64::MAX
                } else {
                    profile.memory
                },
                ..Device::default()
            })
        };
        let devices = hosts.iter().map(device).collect::<Option<Vec<_>>>()?;
        let links = links::matrix(&hosts);
        let mut profile = self.measured.clone();
        let samples = self.facts.pipeline.samples(self.facts.batch, 0) as usize;
        for (block, times) in profile.blocks.iter_mut().zip(&base.blocks) {
            let seconds = |us: f32| Time::measured([(samples, f64::from(us) / 1e6)]);
            (block.forward, block.backward) =
                (seconds(times.forward_us), seconds(times.backward_us));
        }
        let work = self.facts.work(profile);
        Some(Problem {
            hosts,
            devices,
            links,
            work,
        })
    }

    fn solve(&self, problem: &Problem<'_>) -> Result<(Vec<Placement>, Prediction), PlanError> {
        let Problem {
            devices,
            links,
            work,
            ..
        } = problem;
        planning::in_a_row(self.facts.pipeline.cut, work, devices, links)
    }

    /// What `plan` promises these candidates: figures of hosts in the order of the plan.
    pub(super) fn predict(&self, plan: &Plan, candidates: &[Candidate]) -> Option<Prediction> {
        if let Some(hybrid) = &self.hybrid {
            return hybrid.predict(plan, candidates);
        }
        let first = plan.hosts().next()?;
        let owner = candidates
            .iter()
            .find(|candidate| candidate.peer == first)?;
        let problem = self.problem(owner, candidates)?;
        let placement = |stage: &Stage| {
            let device = problem
                .hosts
                .iter()
                .position(|host| Some(host.peer) == stage.lead())?;
            let blocks = usize::from(stage.blocks.start)..usize::from(stage.blocks.end);
            Some(Placement { device, blocks })
        };
        let placements = plan
            .stages
            .iter()
            .map(placement)
            .collect::<Option<Vec<_>>>()?;
        plan::predict(&problem.work, &problem.devices, &problem.links, &placements).ok()
    }
}

impl CutPlanner {
    /// All that the candidates have measured, to be saved and planned with anywhere. If only some hold the data, the fastest of them
    /// sends it. Where there are too many times to be told, each device has the base times and a factor. None before anybody with
    /// data has measured itself, or of too many devices.
    pub(super) fn measured(
        &self,
        candidates: &[Candidate],
        n_connected: usize,
    ) -> Option<Measured> {
        let seconds = |candidate: &Candidate| {
            let blocks = candidate.profile.iter().flat_map(|own| &own.blocks);
            let sum: f32 = blocks.map(|time| time.forward_us + time.backward_us).sum();
            sum * candidate.slowdown
        };
        let owners = candidates
            .iter()
            .filter(|candidate| candidate.has_data && candidate.profile.is_some());
        let owner = owners.min_by(|a, b| seconds(a).total_cmp(&seconds(b)))?;
        let Problem {
            hosts,
            mut devices,
            links,
            work,
        } = self.problem(owner, candidates)?;
        let [most_devices, most_times] = MOST_TOLD;
        if hosts.len() > most_devices {
            return None;
        }
        let n_times = hosts.iter().filter_map(|host| {
            let profile = host.profile.as_ref()?;
            Some(profile.blocks.len() * (1 + profile.fewer.len()))
        });
        let has_room = n_times.sum::<usize>() <= most_times;
        // Where nobody says where peers stand, plans over tiers are not asked for.
        if hosts.iter().any(|host| tiers::named(host).is_some()) {
            for (device, tier) in devices.iter_mut().zip(tiers::standing(&hosts)) {
                device.tier = Some(tier);
            }
        }
        for (device, host) in devices.iter_mut().zip(&hosts) {
            device.name = host.peer.to_string();
            let Some(profile) = host.profile.as_ref().filter(|_| has_room) else {
                continue;
            };
            let slowdown = f64::from(host.slowdown);
            let updates = device.capacity / slowdown;
            let mut own = times::curves(profile, work.micro_batch);
            for (time, block) in own.iter_mut().zip(&work.profile.blocks) {
                time.update = block.update * updates;
            }
            device.times = Some(own);
            device.capacity = slowdown;
        }
        let least = self.facts.layout.min_train_batch().unsigned_abs() as usize;
        let problem = plan::Problem {
            data: if hosts.iter().all(|host| host.has_data) {
                Data::Everywhere
            } else {
                Data::At(0)
            },
            least_samples: least.clamp(1, work.micro_batch),
            work,
            devices,
            links,
        };
        let is_sound = problem.check_figures().is_ok();
        is_sound.then_some(Measured {
            problem,
            n_connected,
        })
    }

    /// What users are shown: `plan` if there is one, else the best for these candidates.
    pub(super) fn shown(
        &self,
        plan: Option<&Plan>,
        candidates: &[Candidate],
        n_connected: usize,
    ) -> Result<PlanStatus, String> {
        let plan = match plan {
            Some(plan) => plan.clone(),
            None => Planner::plan(self, candidates)?.plan,
        };
        let gone = || "a host of the cut is not here".to_owned();
        let prediction = self.predict(&plan, candidates).ok_or_else(gone)?;
        let mut figures = prediction.busy.iter().zip(&prediction.memory_bytes);
        let mut fellow = |member: &Member| {
            let (busy, memory) = figures.next()?;
            Some(PlannedFellow {
                host: Hex(member.peer),
                samples: member.samples,
                busy_frac: *busy,
                memory_bytes: *memory,
            })
        };
        let stages = plan.stages.iter().filter_map(|stage| {
            let mut hosts = stage.members.iter().map_while(&mut fellow);
            let lead = hosts.next()?;
            Some(PlannedStage {
                host: lead.host,
                first_block: stage.blocks.start,
                n_blocks: stage.blocks.end - stage.blocks.start,
                busy_frac: lead.busy_frac,
                memory_bytes: lead.memory_bytes,
                samples: stage.is_shared().then_some(lead.samples),
                fellows: hosts.collect(),
            })
        });
        let stages: Vec<PlannedStage> = stages.collect();
        let idle = candidates
            .iter()
            .filter(|candidate| candidate.profile.is_some() && !plan.is_host(candidate.peer));
        let candidate = |peer| candidates.iter().find(|candidate| candidate.peer == peer);
        let link = |pair: &[Stage]| {
            let (from, to) = (candidate(pair[0].lead()?)?, candidate(pair[1].lead()?)?);
            if from.peer == to.peer {
                return None;
            }
            let (there, back) = (links::link(from, to), links::link(to, from));
            let planned = |(from, to, link): (PeerId, PeerId, links::Link)| PlannedLink {
                from: Hex(from),
                to: Hex(to),
                bytes_per_s: link.rate,
                latency_s: link.latency,
                known: link.known,
            };
            Some([(from.peer, to.peer, there), (to.peer, from.peer, back)].map(planned))
        };
        Ok(PlanStatus {
            links: plan.stages.windows(2).filter_map(link).flatten().collect(),
            step_s: prediction.step_seconds,
            samples_per_s: f64::from(self.facts.batch) / prediction.step_seconds,
            stages,
            standby: idle.map(|candidate| Hex(candidate.peer)).collect(),
            n_connected,
        })
    }
}

impl Planner for CutPlanner {
    fn plan(&self, candidates: &[Candidate]) -> Result<Planned, String> {
        if let Some(hybrid) = &self.hybrid {
            return hybrid.plan(candidates);
        }
        let mut best: Option<Planned> = None;
        let mut reason = "no peer that holds the data has measured itself yet".to_owned();
        for owner in candidates.iter().filter(|candidate| candidate.has_data) {
            let Some(problem) = self.problem(owner, candidates) else {
                continue;
            };
            let (placements, prediction) = match self.solve(&problem) {
                Ok(solved) => solved,
                Err(error) => {
                    reason = error.to_string();
                    continue;
                }
            };
            let stage = |placement: &Placement| {
                let blocks = placement.blocks.start as u16..placement.blocks.end as u16;
                Stage::alone(problem.hosts[placement.device].peer, blocks)
            };
            let step_us = prediction.step_seconds * 1e6;
            if best.as_ref().is_none_or(|best| step_us < best.step_us) {
                let plan = Plan {
                    stages: placements.iter().map(stage).collect(),
                };
                best = Some(Planned { plan, step_us });
            }
        }
        best.ok_or(reason)
    }

    fn replan(&self, lost: &Plan, candidates: &[Candidate]) -> Option<Planned> {
        self.hybrid.as_ref()?.replan(lost, candidates)
    }

    fn step_us(&self, plan: &Plan, candidates: &[Candidate]) -> Option<f64> {
        self.predict(plan, candidates)
            .map(|prediction| prediction.step_seconds * 1e6)
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

#[cfg(test)]
mod tests {
    use skein_gossip::pipeline::message::{BlockTime, DataShape};

    use super::*;
    use crate::job::JobFile;

    fn planner() -> CutPlanner {
        let text = "[model]\nkind = 'mlp'\nhidden = [8, 8]\n[train]\nbatch = 32\n[stop]\nsteps = 5\n[strategy]\nkind = 'pipeline'\n";
        let shape = DataShape {
            input: [1, 4, 4],
            classes: 10,
            train: 100,
            validation: 10,
            mean: vec![0.0],
            std: vec![1.0],
            tokenizer: None,
            sample_bytes: 16,
        };
        let facts = Facts::new(&JobFile::parse(text).unwrap(), &shape).unwrap();
        let block = plan::BlockProfile {
            update: 0.5,
            output_bytes: 40,
            ..plan::BlockProfile::default()
        };
        let measured = plan::Profile {
            input_bytes: 64,
            blocks: vec![block; facts.blocks.len()],
        };
        CutPlanner::new(Arc::new(facts), measured)
    }

    fn candidate(planner: &CutPlanner, peer: u8, has_data: bool, us: f32) -> Candidate {
        let time = BlockTime {
            forward_us: us,
            backward_us: 2.0 * us,
        };
        Candidate {
            peer: PeerId([peer; 32]),
            has_data,
            profile: Some(Arc::new(Profile {
                blocks: vec![time; planner.facts.blocks.len()],
                memory: 1 << 30,
                ..Profile::default()
            })),
            slowdown: 2.0,
        }
    }

    #[test]
    fn what_candidates_measured_is_a_problem_with_times_of_their_own() {
        let planner = planner();
        let slow = candidate(&planner, 1, true, 4000.0);
        let fast = candidate(&planner, 2, true, 1000.0);
        let other = candidate(&planner, 3, false, 500.0);
        let told = |candidates: &[Candidate]| planner.measured(candidates, 2);
        let Measured {
            problem,
            n_connected,
        } = told(&[slow.clone(), fast.clone(), other.clone()]).unwrap();
        assert_eq!((n_connected, problem.data), (2, Data::At(0)));
        let names: Vec<&str> = problem.devices.iter().map(|d| &d.name[..2]).collect();
        assert_eq!(names, ["02", "01", "03"], "the fastest with data first");
        assert_eq!((problem.work.micro_batch, problem.work.n_micro), (4, 8));
        for (device, seconds) in problem.devices.iter().zip([0.001, 0.004, 0.0005]) {
            let times = &device.times.as_ref().unwrap()[0];
            assert!((times.forward.of(4) - seconds).abs() < 1e-9);
            assert!((times.backward.of(4) - 2.0 * seconds).abs() < 1e-9);
            assert!((times.update - 500.0 * seconds).abs() < 1e-6);
            assert_eq!((device.capacity, device.memory_bytes), (2.0, 1 << 30));
        }
        plan::choose(&problem, &plan::Settings::default()).unwrap();
        let all = told(&[slow, fast.clone()]).unwrap();
        assert_eq!(all.problem.data, Data::Everywhere);
        assert_eq!(told(&[other]), None);
        let many: Vec<Candidate> = (0..129)
            .map(|peer| candidate(&planner, peer, true, 1.0))
            .collect();
        assert_eq!(told(&many), None, "an answer has its bound");
    }
}

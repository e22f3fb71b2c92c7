//! Plans of stages with several hosts: the candidates as a [`Problem`], and [`skein_model::plan::hybrid`]'s groups as a plan of peers, or
//! those of [`skein_model::plan::tiers`], with a source where raw samples are sent.
//!
//! The full planner may take longer than a beat may wait, so it runs on a thread of its own; what it found last is the answer, priced
//! with the newest figures. After a loss [`skein_model::plan::replan`] finds a plan near the last one within milliseconds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::agreement::{Candidate, Planned};
use skein_gossip::pipeline::message;
use skein_gossip::pipeline::plan::{self as wire, Plan, Stage};
use skein_model::plan::{self, Data, Device, Group, PlanError, Prediction, Problem, Share};

use super::facts::Facts;
use super::times::{self, pace};
use super::{links, tiers};
use crate::planning;

/// Bytes of a sample that may not leave its owner: no plan sends it.
const NEVER_SENT: u64 = 1 << 40;

/// Times as long as a search took the next one for the same peers is put off.
const REST: u32 = 15;

/// Most holders of the data that are tried as the only host of the first stage.
const MOST_OWNERS: usize = 3;

/// See the module's header.
#[derive(Clone, Debug)]
pub(super) struct HybridPlanner {
    facts: Arc<Facts>,
    /// Sizes of the blocks; times are the candidates' own.
    measured: plan::Profile,
    found: Arc<Mutex<Found>>,
}

/// What the thread found last.
#[derive(Debug, Default)]
struct Found {
    searching: bool,
    /// Until then no other search begins for the same peers: a search takes the processor from the stage.
    rests_until: Option<Instant>,
    /// What was last known of each peer that was a candidate; as many as a job has members.
    known: BTreeMap<PeerId, Candidate>,
    /// For which peers, and what came of it.
    last: Option<(Crew, Result<Plan, String>)>,
}

/// Peers that can host, and whether they hold the data.
type Crew = Vec<(PeerId, bool)>;

/// Candidates as the planner takes them: devices in their order.
struct Posed {
    hosts: Vec<PeerId>,
    problem: Problem,
}

impl HybridPlanner {
    /// None where stages have one host each.
    pub(super) fn new(facts: &Arc<Facts>, measured: &plan::Profile) -> Option<Self> {
        (facts.rows > 0).then(|| Self {
            facts: Arc::clone(facts),
            measured: measured.clone(),
            found: Arc::default(),
        })
    }

    /// The problems among which the best plan is looked for, so that raw samples stay where they are: where only some hold the data
    /// these alone, or all of them behind one that holds it, the fastest ones in turn. Over tiers that one may send them.
    fn posed(&self, candidates: &[Candidate]) -> Vec<Posed> {
        let able = able(candidates);
        let owners = able.iter().copied().filter(|candidate| candidate.has_data);
        let owners: Vec<&Candidate> = owners.collect();
        if owners.is_empty() {
            return Vec::new();
        }
        let mut posed: Vec<Posed> = self.pose(&owners, Data::Everywhere).into_iter().collect();
        if owners.len() < able.len() {
            // What others divide over tiers is for all of them.
            if self.facts.pipeline.cut.tier_baseline().is_some() && self.facts.is_tiered {
                posed.clear();
            }
            let mut fastest: Vec<usize> = (0..able.len()).filter(|at| able[*at].has_data).collect();
            fastest.sort_by(|a, b| pace(able[*a]).total_cmp(&pace(able[*b])));
            fastest.truncate(MOST_OWNERS);
            posed.extend(
                fastest
                    .into_iter()
                    .filter_map(|at| self.pose(&able, Data::At(at))),
            );
        }
        posed
    }

    /// The problem with these candidates, all of which have measured themselves.
    fn pose(&self, able: &[&Candidate], data: Data) -> Option<Posed> {
        let rows = self.facts.rows as usize;
        let own = self.measured.seconds(0..self.measured.blocks.len(), rows);
        let own: f64 = own.iter().sum();
        let device = |candidate: &&Candidate| {
            let profile = candidate.profile.as_deref()?;
            let mut times = times::curves(profile, rows);
            let all = times
                .iter()
                .map(|block| block.forward.of(rows) + block.backward.of(rows));
            // Updates are measured here alone; others take as much longer for them as for the rest.
            let slower = all.sum::<f64>() / own.max(1e-9);
            for (block, measured) in times.iter_mut().zip(&self.measured.blocks) {
                block.update = measured.update * slower;
            }
            Some(Device {
                name: candidate.peer.short(),
                capacity: f64::from(candidate.slowdown),
                memory_bytes: match profile.memory {
                    0 => u64::MAX,
                    memory => memory,
                },
                times: Some(times),
                ..Device::default()
            })
        };
        let mut devices = able.iter().map(device).collect::<Option<Vec<_>>>()?;
        let mut profile = self.measured.clone();
        profile.input_bytes = NEVER_SENT;
        if self.facts.is_tiered {
            for (device, tier) in devices.iter_mut().zip(tiers::standing(able)) {
                device.tier = Some(tier);
            }
            if !self.facts.is_private {
                profile.input_bytes = self.facts.data.sample_bytes.into();
            }
        }
        Some(Posed {
            hosts: able.iter().map(|candidate| candidate.peer).collect(),
            problem: Problem {
                data,
                least_samples: self.facts.layout.min_train_batch().unsigned_abs() as usize,
                work: self.facts.work(profile),
                devices,
                links: links::matrix(able),
            },
        })
    }

    /// The best plan that is known for these candidates.
    ///
    /// # Errors
    /// In words for the user: why there is none, or that it is being looked for.
    pub(super) fn plan(&self, candidates: &[Candidate]) -> Result<Planned, String> {
        let posed = self.posed(candidates);
        if posed.is_empty() {
            return Err("no peer that holds the data has measured itself yet".into());
        }
        let able = able(candidates);
        let crew: Crew = able
            .iter()
            .map(|candidate| (candidate.peer, candidate.has_data))
            .collect();
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let last = found.last.clone().filter(|(of, _)| *of == crew);
        if found.known.len() > message::MAX_MEMBERS {
            found.known.clear();
        }
        let able = able.into_iter();
        found
            .known
            .extend(able.map(|candidate| (candidate.peer, candidate.clone())));
        let rests = last.is_some()
            && found
                .rests_until
                .is_some_and(|until| Instant::now() < until);
        let is_idle = !rests && !std::mem::replace(&mut found.searching, true);
        drop(found);
        if is_idle {
            self.search(posed, crew);
        }
        let (_, plan) = last.ok_or("the best plan is being looked for")?;
        let plan = plan?;
        let step_us = self.step_us(&plan, candidates);
        let step_us = step_us.ok_or("a host of the best plan is not here any more")?;
        Ok(Planned { plan, step_us })
    }

    /// Looks for the best plan on a thread of its own.
    fn search(&self, posed: Vec<Posed>, crew: Crew) {
        let (search, facts) = (Searching(Arc::clone(&self.found)), Arc::clone(&self.facts));
        let search = move || {
            let began = Instant::now();
            let best = best(&posed, &facts);
            let mut found = search.0.lock().unwrap_or_else(PoisonError::into_inner);
            found.rests_until = Some(Instant::now() + REST * began.elapsed());
            found.last = Some((crew, best));
        };
        let spawned = std::thread::Builder::new()
            .name("planner".into())
            .spawn(search);
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread for the planner: this peer proposes no plan");
        }
    }

    /// A plan near `lost` without the one of its hosts that is gone. None where several are, or nothing near it will do.
    pub(super) fn replan(&self, lost: &Plan, candidates: &[Candidate]) -> Option<Planned> {
        // Over tiers the planner is as quick.
        if self.facts.pipeline.cut.baseline().is_some() || self.facts.is_tiered {
            return None;
        }
        let gone = |host: &PeerId| candidates.iter().all(|candidate| candidate.peer != *host);
        let mut all_gone = lost.hosts().filter(gone);
        let (gone, None) = (all_gone.next()?, all_gone.next()) else {
            return None;
        };
        let known = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let last_known = known.known.get(&gone).cloned()?;
        drop(known);
        let with_gone: Vec<Candidate> = candidates.iter().cloned().chain([last_known]).collect();
        let near = |posed: Posed| {
            let gone = posed.hosts.iter().position(|host| *host == gone)?;
            let groups = groups(lost, &posed.hosts, self.facts.rows)?;
            let near = plan::replan(&posed.problem, &groups, gone).ok()?;
            plan_of(&posed, &near.groups, false).ok()
        };
        let plans = self.posed(&with_gone).into_iter().filter_map(near);
        let priced = plans.filter_map(|plan| {
            let step_us = self.step_us(&plan, candidates)?;
            Some(Planned { plan, step_us })
        });
        priced.min_by(|a, b| a.step_us.total_cmp(&b.step_us))
    }

    fn step_us(&self, plan: &Plan, candidates: &[Candidate]) -> Option<f64> {
        let prediction = self.predict(plan, candidates)?;
        Some(prediction.step_seconds * 1e6)
    }

    /// What `plan` promises these candidates; figures of hosts in the order of the plan.
    pub(super) fn predict(&self, plan: &Plan, candidates: &[Candidate]) -> Option<Prediction> {
        let able = able(candidates);
        let has_data = |host: PeerId| {
            let mut able = able.iter();
            able.any(|candidate| candidate.peer == host && candidate.has_data)
        };
        if !plan.stages.first()?.hosts().all(has_data) {
            return None;
        }
        let source = plan.stages.first().filter(|first| first.is_source());
        let data = match source.and_then(Stage::lead) {
            // Nobody sends raw samples then.
            None => Data::Everywhere,
            Some(source) => Data::At(able.iter().position(|own| own.peer == source)?),
        };
        let posed = self.pose(&able, data)?;
        let groups = groups(plan, &posed.hosts, self.facts.rows)?;
        let mut prediction = plan::price(&posed.problem, &groups).ok()?;
        if source.is_some() {
            // It computes nothing, and what it sends its device does.
            prediction.busy.insert(0, 0.0);
            prediction.memory_bytes.insert(0, 0);
            prediction.sent_bytes.insert(0, 0);
        }
        Some(prediction)
    }
}

/// Those that have measured themselves.
fn able(candidates: &[Candidate]) -> Vec<&Candidate> {
    let able = candidates.iter();
    able.filter(|candidate| candidate.profile.is_some())
        .collect()
}

/// While it is there a thread looks for the best plan.
struct Searching(Arc<Mutex<Found>>);

impl Drop for Searching {
    fn drop(&mut self) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.searching = false;
    }
}

/// The best plan of all choices of whose data is used, or another planner's.
fn best(posed: &[Posed], facts: &Facts) -> Result<Plan, String> {
    let cut = facts.pipeline.cut;
    let mut best: Option<(f64, Plan)> = None;
    let mut reason = String::new();
    for posed in posed {
        let found = match facts.is_tiered {
            true => tiers::stages(&posed.problem, cut.tier_baseline(), facts.is_private),
            false => {
                let found = planning::in_groups(cut, &posed.problem);
                let found = found.map_err(|error| error.to_string());
                found.map(|found| (found.prediction.step_seconds, found.groups))
            }
        };
        let found = found.and_then(|(seconds, groups)| {
            let plan = plan_of(posed, &groups, facts.is_tiered);
            Ok((seconds, plan.map_err(|error| error.to_string())?))
        });
        match found {
            Ok((seconds, plan)) => {
                if best.as_ref().is_none_or(|(least, _)| seconds < *least) {
                    best = Some((seconds, plan));
                }
            }
            Err(why) => reason = why,
        }
    }
    best.map(|(_, plan)| plan).ok_or(reason)
}

/// A plan of peers. Where raw samples are `sent`, the peer that has them is their source.
fn plan_of(posed: &Posed, groups: &[Group], sent: bool) -> Result<Plan, PlanError> {
    let mut plan = planning::agreed(&posed.hosts, &posed.problem, groups)?;
    let source = match posed.problem.data {
        Data::At(source) if sent && tiers::sends_samples(&posed.problem, groups) => {
            posed.hosts.get(source)
        }
        _ => None,
    };
    if let Some(source) = source {
        plan.stages.insert(0, Stage::alone(*source, 0..0));
    }
    Ok(plan)
}

/// The same with devices in the order of `hosts`, without a source; none where a host is not among them.
fn groups(plan: &Plan, hosts: &[PeerId], rows: u32) -> Option<Vec<Group>> {
    let group = |stage: &Stage| {
        let share = |member: &wire::Member| {
            Some(Share {
                device: hosts.iter().position(|host| *host == member.peer)?,
                samples: match stage.is_shared() {
                    true => member.samples as usize,
                    false => rows as usize,
                },
            })
        };
        Some(Group {
            blocks: stage.blocks.start.into()..stage.blocks.end.into(),
            shares: stage
                .members
                .iter()
                .map(share)
                .collect::<Option<Vec<_>>>()?,
            in_flight: stage.in_flight as usize,
        })
    };
    let stages = plan.stages.iter().filter(|stage| !stage.is_source());
    stages.map(group).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use skein_gossip::pipeline::message::{BlockTime, DataShape, Fewer, Profile};

    use super::*;
    use crate::job::JobFile;

    fn planner() -> HybridPlanner {
        planner_of("kind = 'hybrid'\n")
    }

    fn planner_of(strategy: &str) -> HybridPlanner {
        let text = format!(
            "[model]\nkind = 'mlp'\nhidden = [8, 8]\n[train]\nbatch = 64\n[stop]\nsteps = 5\n[strategy]\n{strategy}"
        );
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
        let facts = Arc::new(Facts::new(&JobFile::parse(&text).unwrap(), &shape).unwrap());
        let block = plan::BlockProfile {
            output_bytes: 40,
            parameter_bytes: 400,
            ..plan::BlockProfile::default()
        };
        let measured = plan::Profile {
            input_bytes: 64,
            blocks: vec![block; facts.blocks.len()],
        };
        HybridPlanner::new(&facts, &measured).unwrap()
    }

    /// A device that takes `ms` for a sample and block, and nothing beside.
    fn candidate(peer: u8, has_data: bool, ms: f32) -> Candidate {
        let blocks = |samples: u32| {
            let us = ms * 1000.0 * samples as f32;
            let time = BlockTime {
                forward_us: us,
                backward_us: 2.0 * us,
            };
            vec![time; 3]
        };
        let fewer = Fewer {
            samples: 1,
            blocks: blocks(1),
        };
        Candidate {
            peer: PeerId([peer; 32]),
            has_data,
            profile: Some(Arc::new(Profile {
                blocks: blocks(8),
                fewer: vec![fewer],
                ..Profile::default()
            })),
            slowdown: 1.0,
        }
    }

    fn found(planner: &HybridPlanner, candidates: &[Candidate]) -> Planned {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match planner.plan(candidates) {
                Ok(planned) => return planned,
                Err(reason) => assert!(Instant::now() < deadline, "{reason}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn equal_peers_with_the_data_share_the_whole_model() {
        let planner = planner();
        let candidates = [1, 2, 3, 4].map(|peer| candidate(peer, true, 1.0));
        assert!(planner.plan(&candidates).is_err(), "it is being looked for");
        let planned = found(&planner, &candidates);
        assert_eq!(planned.plan.check(3, 8), Ok(()));
        let samples: Vec<u32> = planned.plan.stages[0]
            .members
            .iter()
            .map(|member| member.samples)
            .collect();
        assert_eq!(samples, [2, 2, 2, 2]);
        // 8 micro-batches of 2 samples, 3 blocks, 3 ms each.
        assert!((planned.step_us - 144e3).abs() < 10e3, "{planned:?}");
    }

    #[test]
    fn raw_samples_stay_where_they_are() {
        let planner = planner();
        let candidates = [1, 2, 3].map(|peer| candidate(peer, peer == 2, 1.0));
        let planned = found(&planner, &candidates);
        assert!(planned.plan.hosts().count() > 1, "{planned:?}");
        let first = &planned.plan.stages[0];
        assert_eq!(first.hosts().collect::<Vec<_>>(), [PeerId([2; 32])]);
        assert_eq!(planner.predict(&planned.plan, &candidates[..1]), None);
    }

    #[test]
    fn over_tiers_one_that_has_the_data_is_the_source_for_all() {
        let planner = planner_of("kind = 'tiers'\n[strategy.pipeline]\ncut = 'equal'\n");
        let candidates = [(1, 1.0), (2, 4.0), (3, 16.0)];
        let candidates = candidates.map(|(peer, ms)| candidate(peer, peer == 3, ms));
        let planned = found(&planner, &candidates);
        assert_eq!(planned.plan.check(3, 64), Ok(()));
        let told = |stage: &Stage| {
            let members = stage.members.iter();
            let members = members.map(|member| (member.peer.0[0], member.samples));
            (stage.blocks.clone(), members.collect::<Vec<_>>())
        };
        let stages: Vec<_> = planned.plan.stages.iter().map(told).collect();
        // The device is 3, the edge 2, the cloud 1.
        let expected = [
            (0..0, vec![(3, 1)]),
            (0..1, vec![(2, 21), (3, 21), (1, 22)]),
            (1..2, vec![(2, 21), (1, 43)]),
            (2..3, vec![(1, 64)]),
        ];
        assert_eq!(stages, expected);
        let prediction = planner.predict(&planned.plan, &candidates).unwrap();
        assert_eq!(prediction.busy.len(), 7, "one for each host of each stage");
        assert!((prediction.step_seconds * 1e6 - planned.step_us).abs() < 1.0);
        let private = planner_of("kind = 'tiers'\n[data]\nsource = 'npy'\nname = 'own'\n");
        let planned = found(&private, &candidates);
        let first: Vec<PeerId> = planned.plan.stages[0].hosts().collect();
        assert_eq!(first, [PeerId([3; 32])], "{planned:?}");
        assert!(!planned.plan.stages[0].is_source());
    }

    #[test]
    fn a_newcomer_without_the_data_changes_nothing_for_those_that_share_the_model() {
        let planner = planner();
        let mut candidates = vec![1, 2, 3]
            .into_iter()
            .map(|peer| candidate(peer, true, 1.0))
            .collect::<Vec<_>>();
        let planned = found(&planner, &candidates);
        assert_eq!(planned.plan.stages[0].members.len(), 3, "{planned:?}");
        // So slow that it is of no use.
        candidates.push(candidate(9, false, 500.0));
        let priced = planner.predict(&planned.plan, &candidates).unwrap();
        assert!((priced.step_seconds * 1e6 - planned.step_us).abs() < 1.0);
        assert_eq!(found(&planner, &candidates).plan, planned.plan);
    }

    #[test]
    fn after_a_loss_the_plan_near_the_last_one_is_there_at_once() {
        let planner = planner();
        let candidates = [1, 2, 3, 4].map(|peer| candidate(peer, true, f32::from(peer)));
        let planned = found(&planner, &candidates);
        let near = planner.replan(&planned.plan, &candidates[1..]).unwrap();
        assert_eq!(near.plan.check(3, 8), Ok(()));
        assert!(!near.plan.is_host(PeerId([1; 32])));
        assert!(near.step_us > planned.step_us);
        let two_gone = planner.replan(&planned.plan, &candidates[2..]);
        assert_eq!(two_gone, None, "too far from it");
        assert_eq!(planner.replan(&planned.plan, &candidates), None);
    }
}

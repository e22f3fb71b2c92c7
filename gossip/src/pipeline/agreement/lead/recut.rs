//! When the steward looks for a better cut while all hosts live, and how the pipeline changes over without a pause.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::super::links;
use super::super::super::message::View;
use super::super::{Agreement, Candidate, Cutting, Planned};
use super::{HORIZON, Reason, UNMEASURED_RATE};
use crate::ids::PeerId;
use crate::time::Tick;

/// How often a better cut is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A new cut must have been better so often in a row, and by this much, to count: measured times vary.
const LOOKS: u32 = 2;
const GAIN: f64 = 0.15;
/// Each new cut within this time doubles what the next one must gain: profiles are not exact, and a cut that looked better may not be.
const REMEMBERED: Duration = Duration::from_secs(120);
/// A host has changed when it is this many times as slow or as fast as it was, beside the others.
const CHANGED: f32 = 1.5;
/// A link has when it carries so many times what it did, or that part of it: short transfers vary.
const LINK_CHANGED: f64 = 2.0;
/// After a new view a better cut is not looked for so long: what steps take there must be known first.
const SETTLED: Duration = Duration::from_secs(3);
/// Least time between the proposal of a new cut and its line.
const NOTICE: Duration = Duration::from_millis(700);

impl Agreement {
    pub(super) fn better_cut(&mut self, view: &View) -> Option<Reason> {
        let is_time = self
            .lead
            .looked
            .is_none_or(|at| self.now.since(at) >= LOOK_EVERY);
        if self.config.cutting != Cutting::Adaptive || !is_time {
            return None;
        }
        self.lead.looked = Some(self.now);
        let candidates = self.candidates();
        let has_newcomer = candidates
            .iter()
            .any(|candidate| candidate.profile.is_some() && !view.has(candidate.peer));
        let links_changed = self.links_changed(view, &candidates);
        if !has_newcomer && !links_changed && !self.has_changed(view, &candidates) {
            self.lead.better = 0;
            return None;
        }
        let now_us = self.planner.step_us(&view.plan, &candidates)?;
        let best = self.planner.plan(&candidates).ok()?;
        let pause = self.move_time(&view.plan, &best.plan, &candidates);
        let saved = HORIZON.as_secs_f64() * (1.0 - best.step_us / now_us.max(1.0));
        let n_recent = if has_newcomer {
            0
        } else {
            self.recent_recuts().min(8)
        };
        let gain = 1.0 + GAIN * f64::from(1u32 << n_recent);
        let pays =
            best.plan != view.plan && now_us > gain * best.step_us && saved > pause.as_secs_f64();
        self.lead.better = if pays { self.lead.better + 1 } else { 0 };
        (self.lead.better >= LOOKS).then_some(Reason::Better(best))
    }

    /// Whether a host has become slower or faster beside the others since the view settled. In one and the same state another cut is
    /// not worth a look: what a step takes depends on the cut in ways that no profile has.
    fn has_changed(&mut self, view: &View, candidates: &[Candidate]) -> bool {
        if self
            .lead
            .adopted
            .is_some_and(|at| self.now.since(at) < SETTLED)
        {
            return false;
        }
        let hosts = candidates
            .iter()
            .filter(|candidate| view.plan.stage_of(candidate.peer).is_some());
        let now: BTreeMap<PeerId, f32> = hosts.map(|host| (host.peer, host.slowdown)).collect();
        // Profiles stand behind the first cut; what it really takes stands behind the next.
        let is_first = self.recuts.is_empty();
        let then = self.lead.settled.get_or_insert_with(|| {
            let then = now
                .iter()
                .map(|(peer, slowdown)| (*peer, if is_first { 1.0 } else { *slowdown }));
            then.collect()
        });
        let ratio =
            |(peer, slowdown): (&PeerId, &f32)| slowdown / then.get(peer).copied().unwrap_or(1.0);
        let ratios: Vec<f32> = now.iter().map(ratio).collect();
        let (least, most) = ratios
            .iter()
            .fold((f32::MAX, 0.0f32), |(least, most), ratio| {
                (least.min(*ratio), most.max(*ratio))
            });
        // Of a single host there is nothing to compare with but its own past.
        most > CHANGED * if ratios.len() == 1 { 1.0 } else { least }
    }

    /// Whether a link between two stages carries another rate than when the view was adopted.
    fn links_changed(&mut self, view: &View, candidates: &[Candidate]) -> bool {
        let rate = |from: PeerId, to: PeerId| {
            let from = candidates.iter().find(|candidate| candidate.peer == from)?;
            let rate = links::measured(&from.profile.as_ref()?.rates, to);
            Some(rate.unwrap_or(UNMEASURED_RATE))
        };
        let hosts: Vec<PeerId> = view.plan.hosts().collect();
        let both_ways = hosts
            .windows(2)
            .flat_map(|pair| [rate(pair[0], pair[1]), rate(pair[1], pair[0])]);
        let now: Vec<f64> = both_ways
            .map(|rate| rate.unwrap_or(UNMEASURED_RATE))
            .collect();
        let then = self.lead.links.get_or_insert_with(|| now.clone());
        let has_changed =
            |(now, then): (&f64, &f64)| now / then > LINK_CHANGED || then / now > LINK_CHANGED;
        now.iter().zip(&*then).any(has_changed)
    }

    fn recent_recuts(&self) -> usize {
        let is_recent = |at: &&Tick| self.now.since(**at) < REMEMBERED;
        self.recuts.iter().filter(is_recent).count()
    }

    pub(in super::super) fn remember_recut(&mut self) {
        let now = self.now;
        self.recuts.retain(|at| now.since(*at) < REMEMBERED);
        self.recuts.push(now);
    }

    pub(super) fn recut(&mut self, best: Planned) {
        let Some(view) = self.view.clone() else {
            return;
        };
        let candidates = self.candidates();
        let step_us = self
            .planner
            .step_us(&view.plan, &candidates)
            .unwrap_or(best.step_us)
            .max(1.0);
        let notice = NOTICE + self.move_time(&view.plan, &best.plan, &candidates);
        let steps = (notice.as_micros() as f64 / step_us).ceil().clamp(2.0, 1e6) as u64;
        let line = self.step() + steps;
        if self.own.last_step.is_none_or(|last| line < last) {
            self.propose(best.plan, line, Some(view.stamp));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::super::links::LinkRate;
    use super::super::super::super::message::{Beat, BlockTime, Profile, Standing};
    use super::super::super::super::plan::{Blocks, Plan, Stage};
    use super::super::super::{Config, Input, Output, Planner};
    use super::*;
    use crate::view::Contribution;

    const ME: PeerId = PeerId([1; 32]);
    const OTHER: PeerId = PeerId([2; 32]);

    /// Two stages where the link between them is fast, else one.
    #[derive(Debug)]
    struct ByLink;

    fn price(plan: &Plan, candidates: &[Candidate]) -> f64 {
        let profile = candidates[0].profile.as_ref().unwrap();
        let is_slow = links::measured(&profile.rates, OTHER).is_some_and(|rate| rate < 1e6);
        match (plan.stages.len(), is_slow) {
            (1, _) => 1e5,
            (_, false) => 6e4,
            (_, true) => 1e6,
        }
    }

    impl Planner for ByLink {
        fn plan(&self, candidates: &[Candidate]) -> Result<Planned, String> {
            let stage = |host, blocks| Stage { host, blocks };
            let cuts = [
                vec![stage(ME, 0..2), stage(OTHER, 2..4)],
                vec![stage(ME, 0..4)],
            ];
            let priced = cuts.map(|stages| {
                let plan = Plan { stages };
                let step_us = price(&plan, candidates);
                Planned { plan, step_us }
            });
            let best = priced
                .into_iter()
                .min_by(|a, b| a.step_us.total_cmp(&b.step_us));
            Ok(best.unwrap())
        }

        fn step_us(&self, plan: &Plan, candidates: &[Candidate]) -> Option<f64> {
            Some(price(plan, candidates))
        }

        fn bytes(&self, _: Blocks) -> u64 {
            1
        }
    }

    fn profile() -> Profile {
        Profile {
            blocks: vec![BlockTime::default(); 4],
            ..Profile::default()
        }
    }

    /// The other one beats, in place in this view.
    fn beat(agreement: &mut Agreement, ms: u64) {
        let beat = Beat {
            instance: 1,
            standing: Standing::Ready,
            has_data: false,
            view: agreement.view().map(|view| view.stamp),
            in_place: true,
            is_broken: false,
            step: 0,
            held: Vec::new(),
            slowdown: 1.0,
            stop: None,
            last_step: None,
            judged: None,
            contribution: Contribution::default(),
        };
        agreement.handle(Tick(ms * 1000), Input::Beat(OTHER, Arc::new(beat)));
    }

    fn rate(bytes_per_s: f32) -> Input {
        Input::Rates(vec![LinkRate {
            peer: OTHER,
            bytes_per_s,
            round_trip_us: 300,
            is_bound: false,
        }])
    }

    /// Profiles sent to the other one.
    fn told(agreement: &mut Agreement) -> Vec<Arc<Profile>> {
        let outputs = std::iter::from_fn(|| agreement.poll());
        let profiles = outputs.filter_map(|output| match output {
            Output::SendProfile(_, profile) => Some(profile),
            _ => None,
        });
        profiles.collect()
    }

    #[test]
    fn a_link_that_becomes_slow_is_told_once_and_leads_to_another_cut() {
        let mut config = Config::new(4);
        config.start_peers = 2;
        let mut agreement = Agreement::new(config, ME, 1, Tick(0), Box::new(ByLink));
        agreement.handle(Tick(0), Input::Connected(OTHER));
        let prepared = Input::Prepared {
            has_data: true,
            profile: profile(),
            held: Vec::new(),
        };
        agreement.handle(Tick(0), prepared);
        beat(&mut agreement, 10);
        agreement.handle(Tick(11_000), Input::Profile(OTHER, Arc::new(profile())));
        let first = Arc::clone(agreement.view().unwrap());
        assert_eq!(first.plan.stages.len(), 2);
        agreement.handle(Tick(12_000), Input::InPlace(first.stamp));
        agreement.handle(Tick(13_000), rate(11e6));
        told(&mut agreement);
        let mut profiles = Vec::new();
        for ms in (100..6000).step_by(100) {
            beat(&mut agreement, ms);
            agreement.handle(Tick(ms * 1000), rate(11e6 + ms as f32));
            profiles.extend(
                told(&mut agreement)
                    .into_iter()
                    .filter(|told| told.rates.is_empty()),
            );
        }
        assert_eq!(agreement.view().unwrap().stamp, first.stamp);
        for ms in (6000..9500).step_by(100) {
            beat(&mut agreement, ms);
            agreement.handle(Tick(ms * 1000), rate(2e5));
            profiles.extend(told(&mut agreement));
        }
        let slow = profiles
            .iter()
            .filter(|profile| profile.rates[0].bytes_per_s == 2e5);
        assert!((1..=2).contains(&slow.count()), "{profiles:?}");
        let second = agreement.view().unwrap();
        assert_eq!(
            (second.plan.stages.len(), second.after),
            (1, Some(first.stamp))
        );
    }
}

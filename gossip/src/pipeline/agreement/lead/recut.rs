//! When the steward looks for a better cut while all hosts live, and how the pipeline changes over without a pause.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::super::links;
use super::super::super::message::View;
use super::super::{Agreement, Candidate, Cutting, Planned};
use super::{HORIZON, Reason, UNMEASURED_RATE};
use crate::ids::PeerId;

/// How often a better cut is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A new cut must be better by this much to count, and so often in a row: measured times vary.
const GAIN: f64 = 1.15;
const LOOKS: u32 = 8;
/// One that is better by so much counts after fewer looks.
const LARGE_GAIN: f64 = 1.3;
const FEW_LOOKS: u32 = 2;
/// Each new cut within this time that did not keep its promise doubles the looks that the next one takes, up to so many.
const REMEMBERED: Duration = Duration::from_secs(120);
const MOST_LOOKS: u32 = 30;
/// A device has changed when it is this many times as slow or as fast as it was, beside the others.
const CHANGED: f32 = 1.3;
/// Looks count while no device changes by more than this from one to the next: what steps take must be known in full.
const STEADY: f32 = 1.2;
/// A link has when it carries so many times what it did, or that part of it: short transfers vary.
const LINK_CHANGED: f64 = 2.0;
/// As much under a new cut is laid on its blocks, unless it is more than this: then it is the device all the same.
const MISJUDGED: f32 = 2.0;
/// From the first step under a new view on a better cut is not looked for so long, and for so many steps: what they take must be
/// known first.
const SETTLED: Duration = Duration::from_secs(3);
const SETTLED_STEPS: u64 = 3;
/// Least time between the proposal of a new cut and the last moment at which the first stage can still mark its line.
const NOTICE: Duration = Duration::from_millis(700);
/// Copies that new hosts hold by the line make what they fetch then smaller, but the old cut is slow meanwhile.
const MOST_NOTICE: Duration = Duration::from_secs(2);
/// The step in work and the one that follows it may be under way without the mark.
const UNMARKED: u64 = 2;

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
        if !self.is_settled() {
            return None;
        }
        // Each look is at another step.
        let step = self.step();
        if self.lead.looked_at.replace(step) == Some(step) {
            return None;
        }
        let candidates = self.candidates();
        let now_us = self.planner.step_us(&view.plan, &candidates)?;
        self.has_settled(view, now_us, &candidates);
        let candidates = self.candidates();
        let seen = std::mem::replace(&mut self.lead.seen, paces(&candidates));
        let has_newcomer = candidates
            .iter()
            .any(|candidate| candidate.profile.is_some() && !view.has(candidate.peer));
        let links_changed = self.links_changed(view, &candidates);
        let is_makeshift = self.lead.is_makeshift;
        if !has_newcomer && !links_changed && !is_makeshift && !self.has_changed(&candidates) {
            self.lead.better = 0;
            return None;
        }
        let best = self.planner.plan(&candidates).ok()?;
        let pause = self.move_time(&view.plan, &best.plan, &candidates);
        let saved = HORIZON.as_secs_f64() * (1.0 - best.step_us / now_us.max(1.0));
        let gain = now_us / best.step_us.max(1.0);
        let pays = best.plan != view.plan && gain > GAIN && saved > pause.as_secs_f64();
        let is_steady = has_newcomer || spread(&seen, &self.lead.seen) <= STEADY;
        // The best plan is no better than what was found near the one before.
        self.lead.is_makeshift &= pays;
        self.lead.better = match (pays, is_steady) {
            (true, true) => self.lead.better + 1,
            (true, false) => 1,
            (false, _) => 0,
        };
        let looks = match gain > LARGE_GAIN || has_newcomer {
            true => FEW_LOOKS,
            false => LOOKS,
        };
        let n_broken = self.recent_broken_promises().min(8) as u32;
        (self.lead.better >= (looks << n_broken).min(MOST_LOOKS)).then_some(Reason::Better(best))
    }

    /// Whether what steps take under the view is known by now.
    fn is_settled(&mut self) -> bool {
        let (now, step) = (self.now, self.step());
        let (since, from) = *self.lead.in_effect.get_or_insert((now, step));
        now.since(since) >= SETTLED && step >= from + SETTLED_STEPS
    }

    /// Looks once, when a view has settled, at what its cut had promised.
    fn has_settled(&mut self, view: &View, now_us: f64, candidates: &[Candidate]) {
        let Some(promised) = self.lead.promise.take() else {
            return;
        };
        if now_us > GAIN * promised && view.after.is_some() {
            self.broken_promises.push(self.now);
        }
        let now = paces(candidates);
        let off = spread(&self.lead.decided, &now);
        self.lead.misjudged = off > CHANGED;
        if off <= MISJUDGED {
            for stage in &view.plan.stages {
                let of = |host: PeerId| Some(now.get(&host)? / self.lead.decided.get(&host)?);
                // Of a shared stage all hosts say how its blocks were misjudged: their mean.
                let factors: Vec<f32> = stage.hosts().filter_map(of).collect();
                if !factors.is_empty() {
                    let mean = factors.iter().sum::<f32>() / factors.len() as f32;
                    self.lead.factors.learn(stage.blocks.clone(), mean);
                }
            }
        }
        // Hosts show what they take only under the cut; others are as they were when it was made.
        let hosts = paces(&self.candidates());
        let is_host = |peer: &PeerId| view.plan.is_host(*peer);
        let hosts = hosts.into_iter().filter(|(peer, _)| is_host(peer));
        self.lead.settled.clone_from(&self.lead.decided);
        self.lead.settled.extend(hosts);
    }

    /// Whether devices are not what the cut was made for, or one has become slower or faster beside the others since. In one and the
    /// same state another cut is not worth a look.
    fn has_changed(&self, candidates: &[Candidate]) -> bool {
        self.lead.misjudged || spread(&self.lead.settled, &paces(candidates)) > CHANGED
    }

    /// Whether a link between two stages carries another rate than when the view was adopted.
    fn links_changed(&mut self, view: &View, candidates: &[Candidate]) -> bool {
        let rate = |from: PeerId, to: PeerId| {
            let from = candidates.iter().find(|candidate| candidate.peer == from)?;
            let rate = links::measured(&from.profile.as_ref()?.rates, to);
            Some(rate.unwrap_or(UNMEASURED_RATE))
        };
        let pairs = view.plan.stages.windows(2).flat_map(|stages| {
            let (near, far) = (stages[0].hosts(), stages[1].hosts());
            near.flat_map(move |near| far.clone().map(move |far| (near, far)))
        });
        let both_ways = pairs.flat_map(|(near, far)| [rate(near, far), rate(far, near)]);
        let now: Vec<f64> = both_ways
            .map(|rate| rate.unwrap_or(UNMEASURED_RATE))
            .collect();
        let then = self.lead.links.get_or_insert_with(|| now.clone());
        let has_changed =
            |(now, then): (&f64, &f64)| now / then > LINK_CHANGED || then / now > LINK_CHANGED;
        now.iter().zip(&*then).any(has_changed)
    }

    fn recent_broken_promises(&mut self) -> usize {
        let now = self.now;
        self.broken_promises
            .retain(|at| now.since(*at) < REMEMBERED);
        self.broken_promises.len()
    }

    /// A view was adopted, and candidates were these: what its cut promises is looked at once it has settled.
    pub(in super::super) fn expect_of(&mut self, view: &View, candidates: &[Candidate]) {
        self.lead.promise = self.planner.step_us(&view.plan, candidates);
        self.lead.decided = paces(candidates);
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
        let move_time = self.move_time(&view.plan, &best.plan, &candidates);
        let notice = NOTICE + move_time.min(MOST_NOTICE);
        let steps = (notice.as_micros() as f64 / step_us).ceil().clamp(1.0, 1e6) as u64;
        // Where steps overlap the first stage is ahead of the others by what is on its way, transfers included.
        let ahead = match self.config.overlaps {
            false => 0,
            true => 2 * view.plan.stages.len() as u64,
        };
        let line = self.step() + UNMARKED + steps + ahead;
        if self.own.last_step.is_none_or(|last| line < last) {
            self.propose(best.plan, line, Some(view.stamp));
        }
    }
}

/// Microseconds that all blocks take each device, as far as known.
fn paces(candidates: &[Candidate]) -> BTreeMap<PeerId, f32> {
    let pace = |candidate: &Candidate| {
        let blocks = &candidate.profile.as_ref()?.blocks;
        let profiled: f32 = blocks
            .iter()
            .map(|time| time.forward_us + time.backward_us)
            .sum();
        Some((candidate.peer, profiled * candidate.slowdown))
    };
    candidates.iter().filter_map(pace).collect()
}

/// By how much one device changed beside another, from paces `then` to paces `now`.
fn spread(then: &BTreeMap<PeerId, f32>, now: &BTreeMap<PeerId, f32>) -> f32 {
    let ratios = now
        .iter()
        .filter_map(|(peer, pace)| Some(pace / then.get(peer)?));
    let (least, most) = ratios.fold((f32::MAX, 0.0f32), |(least, most), ratio| {
        (least.min(ratio), most.max(ratio))
    });
    most / least
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::super::links::LinkRate;
    use super::super::super::super::message::{Beat, BlockTime, Profile, Standing};
    use super::super::super::super::plan::{Blocks, Plan, Stage};
    use super::super::super::{Config, Input, Output, Planner};
    use super::*;
    use crate::time::Tick;
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
            let stage = Stage::alone;
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

    /// The other one beats, in place in this view, after so many steps.
    fn beat(agreement: &mut Agreement, ms: u64, step: u64) {
        let beat = Beat {
            instance: 1,
            standing: Standing::Ready,
            has_data: false,
            has_room: false,
            view: agreement.view().map(|view| view.stamp),
            in_place: true,
            is_broken: false,
            step,
            held: Vec::new(),
            global: None,
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
        beat(&mut agreement, 10, 0);
        agreement.handle(Tick(11_000), Input::Profile(OTHER, Arc::new(profile())));
        let first = Arc::clone(agreement.view().unwrap());
        assert_eq!(first.plan.stages.len(), 2);
        agreement.handle(Tick(12_000), Input::InPlace(first.stamp));
        agreement.handle(Tick(13_000), rate(11e6));
        told(&mut agreement);
        let mut profiles = Vec::new();
        for ms in (100..6000).step_by(100) {
            beat(&mut agreement, ms, ms / 100);
            agreement.handle(Tick(ms * 1000), rate(11e6 + ms as f32));
            profiles.extend(
                told(&mut agreement)
                    .into_iter()
                    .filter(|told| told.rates.is_empty()),
            );
        }
        assert_eq!(agreement.view().unwrap().stamp, first.stamp);
        // Looks count once per step: how much slower it is shows in full only in the next ones.
        for ms in (6000..9000).step_by(100) {
            beat(&mut agreement, ms, 60);
            agreement.handle(Tick(ms * 1000), rate(2e5));
            profiles.extend(told(&mut agreement));
        }
        assert_eq!(agreement.view().unwrap().stamp, first.stamp);
        for ms in (9000..12_500).step_by(100) {
            beat(&mut agreement, ms, ms / 100);
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

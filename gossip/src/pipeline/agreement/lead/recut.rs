//! When the steward looks for a better cut while all hosts live, and how the pipeline changes over without a pause.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::super::message::View;
use super::super::{Agreement, Candidate, Cutting, Planned};
use super::{HORIZON, Reason};
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
/// As much under a new cut is laid on its blocks, unless it is more than this: then it is the device all the same.
const MISJUDGED: f32 = 2.0;
/// From the first step under a new view on a better cut is not looked for so long, and for so many steps: what they take must be
/// known first.
const SETTLED: Duration = Duration::from_secs(3);
const SETTLED_STEPS: u64 = 3;
/// Least time between the proposal of a new cut and the last moment at which the first stage can still mark its line.
const NOTICE: Duration = Duration::from_millis(700);
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
        let candidates = self.candidates();
        let now_us = self.planner.step_us(&view.plan, &candidates)?;
        self.has_settled(view, now_us, &candidates);
        let candidates = self.candidates();
        let has_newcomer = candidates
            .iter()
            .any(|candidate| candidate.profile.is_some() && !view.has(candidate.peer));
        if !self.has_changed(&candidates) && !has_newcomer {
            self.lead.better = 0;
            return None;
        }
        let best = self.planner.plan(&candidates).ok()?;
        let pause = self.move_time(&view.plan, &best.plan, &candidates);
        let saved = HORIZON.as_secs_f64() * (1.0 - best.step_us / now_us.max(1.0));
        let gain = now_us / best.step_us.max(1.0);
        let pays = best.plan != view.plan && gain > GAIN && saved > pause.as_secs_f64();
        self.lead.better = if pays { self.lead.better + 1 } else { 0 };
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
                let host = (self.lead.decided.get(&stage.host), now.get(&stage.host));
                if let (Some(decided), Some(now)) = host {
                    self.lead.factors.learn(stage.blocks.clone(), now / decided);
                }
            }
        }
        // Hosts show what they take only under the cut; others are as they were when it was made.
        let hosts = paces(&self.candidates());
        let is_host = |peer: &PeerId| view.plan.stage_of(*peer).is_some();
        let hosts = hosts.into_iter().filter(|(peer, _)| is_host(peer));
        self.lead.settled.clone_from(&self.lead.decided);
        self.lead.settled.extend(hosts);
    }

    /// Whether devices are not what the cut was made for, or one has become slower or faster beside the others since. In one and the
    /// same state another cut is not worth a look.
    fn has_changed(&self, candidates: &[Candidate]) -> bool {
        self.lead.misjudged || spread(&self.lead.settled, &paces(candidates)) > CHANGED
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
        let notice = NOTICE + self.move_time(&view.plan, &best.plan, &candidates);
        let steps = (notice.as_micros() as f64 / step_us).ceil().clamp(1.0, 1e6) as u64;
        let line = self.step() + UNMARKED + steps;
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

//! When the steward looks for a better cut while all hosts live, and how the pipeline changes over without a pause.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::super::message::View;
use super::super::{Agreement, Candidate, Cutting, Planned};
use super::{HORIZON, Reason};
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
        if !has_newcomer && !self.has_changed(view, &candidates) {
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
        // Where steps overlap the first stage is ahead of the others by what is on its way, transfers included.
        let ahead = match self.config.is_exact {
            true => 0,
            false => 2 * view.plan.stages.len() as u64,
        };
        let line = self.step() + steps + ahead;
        if self.own.last_step.is_none_or(|last| line < last) {
            self.propose(best.plan, line, Some(view.stamp));
        }
    }
}

//! What the steward does: sees that a new view is needed, and proposes it.

mod blocks;
mod recut;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::links;
use super::super::message::{self, Standing, View};
use super::super::plan::{Member, Plan, Stage};
use super::{Agreement, Candidate, Cutting, Planned};
use crate::ids::PeerId;
use crate::time::Tick;
use crate::view::Stamp;
use blocks::BlockFactors;

/// Steps are saved for at least this long, as far as anybody knows; a move must cost less.
const HORIZON: Duration = Duration::from_secs(60);
/// Bytes per second that a move is reckoned with where no link was measured.
pub(super) const UNMEASURED_RATE: f64 = 10e6;
/// Frames were lost: a host that is dead will be missed within that time, and then one new view does for both.
const BROKEN_FOR: Duration = Duration::from_millis(300);
/// Pause before a plan is looked for again where there was none.
const PLAN_AGAIN: Duration = Duration::from_millis(300);
/// What others hold is heard of within this time; copies that nobody has named by then are lost.
const UNREACHABLE_FOR: Duration = Duration::from_secs(1);
/// Longest time without a step before the view is taken for broken, beside twenty steps.
const STALLED: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Lead {
    looked: Option<Tick>,
    /// Steps made at the last look, and the paces of the devices then.
    looked_at: Option<u64>,
    seen: BTreeMap<PeerId, f32>,
    better: u32,
    broken_since: Option<Tick>,
    progress: (u64, Option<Tick>),
    adopted: Option<Tick>,
    /// When no plan was found.
    failed: Option<Tick>,
    /// When the view came into effect, and the steps made then.
    in_effect: Option<(Tick, u64)>,
    /// Microseconds of a step that the cut promised, until they are measured.
    promise: Option<f64>,
    /// Microseconds that all blocks took each device when the cut was made,
    decided: BTreeMap<PeerId, f32>,
    /// and once it had settled,
    settled: BTreeMap<PeerId, f32>,
    /// which was something else.
    misjudged: bool,
    /// The plan was made in a hurry, after a loss.
    is_makeshift: bool,
    /// Kept over views.
    factors: BlockFactors,
    /// What the links between its stages carried then.
    links: Option<Vec<f64>>,
    /// When this peer noticed that it had been away: what it knows of the others is old.
    was_away: Option<Tick>,
}

impl Lead {
    pub(super) fn adopted(&mut self, now: Tick) {
        *self = Self {
            adopted: Some(now),
            progress: (0, Some(now)),
            factors: std::mem::take(&mut self.factors),
            was_away: self.was_away,
            ..Self::default()
        };
    }

    pub(super) fn was_away(&mut self, now: Tick) {
        self.was_away = Some(now);
    }
}

/// Why a new view is proposed.
#[derive(Clone, Debug, PartialEq)]
enum Reason {
    /// There is none, or its hosts cannot finish its steps.
    Needed,
    /// This cut is better by so much that it pays.
    Better(Planned),
}

impl Agreement {
    /// The lowest peer alive that takes part.
    pub fn steward(&self) -> Option<PeerId> {
        self.crew().first().copied()
    }

    pub(super) fn lead(&mut self) {
        self.watch();
        if self.closed
            || self.own.standing != Standing::Ready
            || self.is_trained()
            || self.steward() != Some(self.me)
            || self.is_ignorant()
        {
            return;
        }
        match self.reason() {
            Some(Reason::Needed) => self.recover(),
            Some(Reason::Better(planned)) => self.recut(planned),
            None => {}
        }
    }

    /// Whether others know what this peer cannot know yet: it was away, or has not been told the view that they hold.
    pub(super) fn is_ignorant(&self) -> bool {
        let settling = 2 * self.membership.times().beat_every;
        let was_away = self.lead.was_away;
        let others = self.heard.iter();
        let mut others = others.filter(|(peer, _)| self.is_alive(**peer));
        was_away.is_some_and(|at| self.now.since(at) < settling)
            || others.any(|(_, heard)| heard.beat.view > self.view.as_ref().map(|view| view.stamp))
    }

    fn reason(&mut self) -> Option<Reason> {
        let Some(view) = self.view.clone() else {
            let measured = self.candidates();
            let measured = measured.iter().filter(|peer| peer.profile.is_some());
            let enough = measured.count() >= self.config.start_peers.max(1);
            return enough.then_some(Reason::Needed);
        };
        if self.has_restarted(&view) {
            return self.have_all_restarted(&view).then_some(Reason::Needed);
        }
        if self.is_lost(&view)
            || self.is_broken_for_long(&view)
            || self.is_unreachable(&view)
            || self.is_behind(&view)
        {
            return Some(Reason::Needed);
        }
        if self.is_stalled(&view) {
            return Some(Reason::Needed);
        }
        if !self.is_in_effect(&view) {
            return None;
        }
        self.better_cut(&view)
    }

    /// A host is dead, or is no longer what it was.
    pub(super) fn is_lost(&self, view: &View) -> bool {
        let lost = |host: PeerId| {
            if host == self.me {
                return false;
            }
            let beat = self.heard.get(&host).map(|heard| &heard.beat);
            !self.is_alive(host)
                || beat.is_some_and(|beat| {
                    matches!(beat.standing, Standing::Preparing | Standing::Unable(_))
                })
        };
        // A peer that takes no part in a view does not end it because its own connections are bad: those in it miss each other.
        match view.has(self.me) {
            true => view.plan.hosts().any(lost),
            false => view.plan.hosts().all(lost),
        }
    }

    fn is_broken_for_long(&mut self, view: &View) -> bool {
        let says_so = |host: PeerId| match host == self.me {
            true => self.own.is_broken,
            false => self
                .heard
                .get(&host)
                .is_some_and(|heard| heard.beat.is_broken && heard.beat.view == Some(view.stamp)),
        };
        if !view.plan.hosts().any(says_so) {
            self.lead.broken_since = None;
            return false;
        }
        let since = *self.lead.broken_since.get_or_insert(self.now);
        self.now.since(since) >= BROKEN_FOR
    }

    /// The line that the view begins at can no longer be had.
    fn is_unreachable(&self, view: &View) -> bool {
        if self.is_in_effect(view) || self.copies().fewest(view.from) > 0 {
            return false;
        }
        match (view.after, &self.previous) {
            (Some(_), Some(previous)) => !self.all_alive(previous),
            // Not known here; should the line never come, no step is made.
            (Some(_), None) => false,
            (None, _) => {
                let adopted = self.lead.adopted;
                adopted.is_none_or(|at| self.now.since(at) > UNREACHABLE_FOR)
            }
        }
    }

    /// Others hold a newer line than the view has come to: the other side of a partition that healed went further.
    fn is_behind(&self, view: &View) -> bool {
        self.is_in_effect(view) && self.copies().newest_line(1) > self.reached(view)
    }

    fn is_stalled(&self, view: &View) -> bool {
        let since = self.lead.progress.1;
        let idle = since.map_or(Duration::ZERO, |since| self.now.since(since));
        if idle <= STALLED {
            return false;
        }
        let candidates = self.candidates();
        let moves = self.time_of(0..self.config.n_blocks, &candidates);
        let step_us = self.planner.step_us(&view.plan, &candidates);
        let steps = Duration::try_from_secs_f64(step_us.unwrap_or(0.0) * 20e-6);
        idle > STALLED + 2 * moves + steps.unwrap_or(HORIZON)
    }

    /// Watches whether steps are made.
    fn watch(&mut self) {
        let (step, now) = (self.step(), self.now);
        let (seen, since) = &mut self.lead.progress;
        // After a failure steps are made again.
        if step != *seen || since.is_none() || self.own.last_step.is_some_and(|last| step >= last) {
            (*seen, *since) = (step, Some(now));
        }
    }

    /// How long the blocks that change hands are on their way, at worst one after the other.
    fn move_time(&self, old: &Plan, new: &Plan, candidates: &[Candidate]) -> Duration {
        let is_moved = |block: &u16| {
            let mut hosts = new.hosts_of(*block);
            hosts.any(|host| !old.hosts_block(host, *block))
        };
        let moved = (0..self.config.n_blocks).filter(is_moved);
        self.time_of(moved, candidates)
    }

    /// How long these blocks are on their way over the slowest link.
    fn time_of(&self, moved: impl Iterator<Item = u16>, candidates: &[Candidate]) -> Duration {
        let bytes: u64 = moved
            .map(|block| self.planner.bytes(block..block + 1))
            .sum();
        let rates = candidates
            .iter()
            .filter_map(|candidate| candidate.profile.as_ref());
        let rates = rates.flat_map(|profile| {
            let to_each = profile.rates.iter().map(|rate| rate.peer);
            to_each.filter_map(|peer| links::measured(&profile.rates, peer))
        });
        let rate = rates.fold(f64::INFINITY, f64::min);
        let rate = if rate.is_finite() {
            rate
        } else {
            UNMEASURED_RATE
        };
        Duration::try_from_secs_f64(bytes as f64 / rate).unwrap_or(HORIZON)
    }

    /// The peers that a plan may use, with what steps have shown of them.
    pub fn candidates(&self) -> Vec<Candidate> {
        let candidate = |peer: PeerId| match self.heard.get(&peer) {
            Some(heard) => Candidate {
                peer,
                has_data: heard.beat.has_data,
                profile: heard.profile.clone(),
                slowdown: heard.beat.slowdown,
            },
            None => Candidate {
                peer,
                has_data: self.own.has_data,
                profile: self.own.profile.clone(),
                slowdown: self.own.slowdown,
            },
        };
        let plan = self.view.as_ref().map(|view| &view.plan);
        let corrected = |candidate: Candidate| {
            let blocks = plan.and_then(|plan| plan.blocks_of(candidate.peer));
            self.lead.factors.applied(candidate, blocks)
        };
        let crew = self.crew().into_iter();
        crew.map(candidate).map(corrected).collect()
    }

    fn recover(&mut self) {
        if self
            .lead
            .failed
            .is_some_and(|at| self.now.since(at) < PLAN_AGAIN)
        {
            return;
        }
        let candidates = self.candidates();
        let mut is_makeshift = false;
        let plan = match self.absorbed(&candidates) {
            Some(plan) => Ok(plan),
            None if !candidates.iter().any(|candidate| candidate.has_data) => {
                Err("no peer that is here holds the data: training goes on when one is back".into())
            }
            None => {
                let near = self.view.as_ref();
                let near = near.and_then(|view| self.planner.replan(&view.plan, &candidates));
                is_makeshift = near.is_some();
                let planned = near.map_or_else(|| self.planner.plan(&candidates), Ok);
                planned.map(|planned| planned.plan)
            }
        };
        let line = self.copies().newest_line(1);
        let plan = match self.copies().fewest(line) {
            0 => Err("no peer that is here holds the weights that the job starts from, or a newer copy: training goes on when one is back".into()),
            _ => plan,
        };
        match plan {
            Ok(plan) => {
                self.propose(plan, line, None);
                self.lead.is_makeshift = is_makeshift;
            }
            Err(reason) => {
                self.lead.failed = Some(self.now);
                if self.paused.as_ref() != Some(&reason) {
                    self.paused = Some(reason);
                    self.is_news = true;
                }
            }
        }
    }

    /// ResPipe's rule, where it is asked for: the next stage takes over what the lost ones hosted, the last one's goes to the
    /// stage before.
    fn absorbed(&self, candidates: &[Candidate]) -> Option<Plan> {
        let view = self
            .view
            .as_ref()
            .filter(|_| self.config.cutting == Cutting::Absorb)?;
        let lives = |host: PeerId| candidates.iter().any(|candidate| candidate.peer == host);
        let mut stages: Vec<Stage> = Vec::new();
        let mut orphaned = None;
        for stage in &view.plan.stages {
            let first = *orphaned.get_or_insert(stage.blocks.start);
            // What a lost host of a shared stage computed, its first fellow computes.
            let (mut members, lost): (Vec<Member>, Vec<Member>) =
                stage.members.iter().partition(|member| lives(member.peer));
            if let Some(lead) = members.first_mut() {
                lead.samples += lost.iter().map(|member| member.samples).sum::<u32>();
                stages.push(Stage {
                    members,
                    blocks: first..stage.blocks.end,
                    ..stage.clone()
                });
                orphaned = None;
            }
        }
        if let Some(last) = stages.last_mut() {
            last.blocks.end = self.config.n_blocks;
        }
        let has_data = |host: PeerId| {
            let mut all = candidates.iter();
            all.any(|candidate| candidate.peer == host && candidate.has_data)
        };
        let all_have_data = stages.first()?.hosts().all(has_data);
        let plan = Plan { stages };
        let is_sound = plan.check(self.config.n_blocks, self.config.rows).is_ok();
        (all_have_data && is_sound).then_some(plan)
    }

    fn propose(&mut self, plan: Plan, from: u64, after: Option<Stamp>) {
        let heard = self.heard.values().filter_map(|heard| heard.beat.view);
        let held = self.view.as_ref().map(|view| view.stamp);
        let highest = heard
            .chain(held)
            .map(|stamp| stamp.number)
            .max()
            .unwrap_or(0);
        let mut members = self.crew();
        members.truncate(message::MAX_MEMBERS);
        let stamp = Stamp {
            number: highest.saturating_add(1),
            steward: self.me,
        };
        let view = Arc::new(View {
            stamp,
            members,
            plan,
            from,
            after,
        });
        if !view.is_of(self.config.n_blocks, self.config.rows) {
            return;
        }
        self.adopt(Arc::clone(&view));
        // At once, not with the next beat that asks for it; after a beat, so that nobody takes the proposer for another.
        self.beat();
        let peers: Vec<PeerId> = self.membership.connected_peers().collect();
        for peer in peers {
            if let Some(heard) = self.heard.get_mut(&peer) {
                heard.told_view = Some(self.now);
            }
            self.outputs
                .push_back(super::Output::SendView(peer, Arc::clone(&view)));
        }
    }
}

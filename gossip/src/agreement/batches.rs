//! Samples per step of each member: what the steward proposes, from the fits in beats (DLion's weighted dynamic batching; the
//! arithmetic is in [`batching`](crate::batching)).

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Agreement, Phase};
use crate::batching::controller::{GlobalBatch, Growth};
use crate::batching::power::Fit;
use crate::batching::rebalance::rebalance;
use crate::batching::shares::shares;
use crate::ids::PeerId;
use crate::time::Tick;
use crate::view::{Change, MAX_BATCH, Member, View};

/// How samples are shared out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batching {
    /// Batches follow compute power.
    pub weighted: bool,
    /// Samples behind one step of all members, whoever joins or leaves; none: the batch of the job for each.
    pub global: Option<u32>,
    /// The global batch grows with the samples trained on.
    pub grows: bool,
    /// Steps are to take all as long, because all wait for all.
    pub even_steps: bool,
}

/// The steward looks at the fits so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Steps between two changes of batches. Members are at most one step apart in lockstep, and what a peer's exchange does is known here a
/// step or two later.
const APART: u64 = 4;

impl Agreement {
    /// The training set has so many samples, which bounds the growth of the global batch.
    pub fn set_train_samples(&mut self, n: u64) {
        self.train_samples = n;
    }

    /// What the job's learning rate is multiplied with in this view.
    pub fn rate_factor(&self, view: &View) -> f32 {
        let global = view.global_batch().min(u64::from(u32::MAX)) as u32;
        let n_members = view.members.len();
        self.global(n_members).rate_factor(global)
    }

    fn global(&self, n_members: usize) -> GlobalBatch {
        let Batching { global, grows, .. } = self.config.batching;
        let nominal = (n_members as u64).saturating_mul(u64::from(self.config.batch));
        let nominal = global.unwrap_or(nominal.min(u64::from(u32::MAX)) as u32);
        if !grows || self.train_samples == 0 {
            return GlobalBatch::Fixed(nominal);
        }
        GlobalBatch::Grows(Growth {
            initial: nominal,
            warmup_step: nominal,
            ..Growth::for_members(n_members as u32, self.train_samples)
        })
    }

    /// How long steps take all members. Where nobody waits steps need not take all as long: shares then follow the samples per
    /// second at an equal batch (DLion's relative compute power), for tiny batches would be all fixed cost.
    fn fits(&self, n_members: usize) -> BTreeMap<PeerId, Fit> {
        let heard = self.heard.iter();
        let mut fits: BTreeMap<PeerId, Fit> = heard
            .filter_map(|(peer, beat)| Some((*peer, beat.pace.fit?)))
            .collect();
        if let Some(fit) = self.pace.fit {
            fits.insert(self.me, fit);
        }
        if !self.config.batching.even_steps {
            let global = self.global(n_members).at(self.mesh_samples());
            let equal = (global / n_members.max(1) as u32).max(1);
            for fit in fits.values_mut() {
                let per_sample_us = (fit.step_us(equal) / f64::from(equal)) as f32;
                *fit = Fit {
                    fixed_us: 0.0,
                    per_sample_us,
                };
            }
        }
        fits
    }

    /// The batches of these members, who were not all together before. None: each keeps its own.
    fn batches_of(&self, members: &[Member]) -> Option<Vec<(PeerId, u32)>> {
        let Batching {
            weighted,
            global,
            grows,
            ..
        } = self.config.batching;
        if !weighted && global.is_none() && !grows {
            return None;
        }
        let fits = match weighted {
            true => self.fits(members.len()),
            false => BTreeMap::new(),
        };
        let unknown = Fit {
            fixed_us: 0.0,
            per_sample_us: f32::NAN,
        };
        let fits: Vec<(PeerId, Fit)> = members
            .iter()
            .map(|member| {
                let fit = fits.get(&member.peer).copied();
                (member.peer, fit.unwrap_or(unknown))
            })
            .collect();
        let global = self.global(members.len()).at(self.mesh_samples());
        Some(shares(global, &fits, MAX_BATCH))
    }

    /// Shares the samples out in a first view.
    pub(super) fn share_out_first(&self, view: &mut View) {
        for (peer, batch) in self.batches_of(&view.members).unwrap_or_default() {
            let entry = view.members.iter_mut().find(|member| member.peer == peer);
            if let Some(member) = entry {
                member.batch = batch;
                (member.batch_before, member.batch_earlier) = (batch, batch);
            }
        }
    }

    /// Shares the samples out anew where members come or go.
    pub(super) fn share_out(&self, view: &View, change: &mut Change) {
        let Some(after) = view.changed_by(change) else {
            return;
        };
        let batches = self.batches_of(&after.members).unwrap_or_default();
        let differs = |(peer, batch): &(PeerId, u32)| {
            after
                .member(*peer)
                .is_some_and(|member| member.batch != *batch)
        };
        change.batches = batches.into_iter().filter(differs).collect();
        change.batches_from = self.batches_from(&after);
    }

    /// From which step on new batches hold, so that all weigh all steps alike: a change that nobody can have reached is replaced,
    /// and otherwise all are past the one before it when this one comes.
    fn batches_from(&self, view: &View) -> u64 {
        let members = view.members.iter();
        let last = members.map(|member| member.batch_from).max().unwrap_or(0);
        let soon = self.progress.0.saturating_add(APART);
        match soon <= last {
            true => last,
            false => self.admission_step().max(last.saturating_add(APART)),
        }
    }

    /// The change that new shares need, if they are worth it; and when to look again.
    pub(super) fn reshare(&mut self, now: Tick, view: &View) -> (Option<Change>, Tick) {
        let batching = self.config.batching;
        if !(batching.weighted || batching.grows) || !matches!(self.phase, Phase::Training) {
            return (None, Tick::NEVER);
        }
        let look_at = self.looked_at_fits + LOOK_EVERY;
        if now < look_at {
            return (None, look_at);
        }
        self.looked_at_fits = now;
        // A view that is not agreed yet may bring batches of its own.
        if !self.agreed {
            return (None, now + LOOK_EVERY);
        }
        let current: Vec<(PeerId, u32)> = view
            .members
            .iter()
            .map(|member| (member.peer, member.batch))
            .collect();
        let global = self.global(current.len()).at(self.mesh_samples());
        let fits = match batching.weighted {
            true => self.fits(current.len()),
            false => BTreeMap::new(),
        };
        let wanted = rebalance(now, self.reshared_at, &current, &fits, global, MAX_BATCH);
        let change = wanted.map(|batches| {
            self.reshared_at = now;
            let step = self.batches_from(view);
            let mut change = view.change(self.next_stamp(view), &BTreeMap::new(), &[], step);
            let differs = |(peer, batch): &(PeerId, u32)| {
                view.member(*peer)
                    .is_some_and(|member| member.batch != *batch)
            };
            change.batches = batches.into_iter().filter(differs).collect();
            change
        });
        let change = change.filter(|change| !change.batches.is_empty());
        (change, now + LOOK_EVERY)
    }
}

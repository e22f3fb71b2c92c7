//! Hearing others, and telling them.

use std::sync::Arc;
use std::time::Duration;

use super::super::copies::Holding;
use super::super::links::{self, LinkRate};
use super::super::message::{Beat, MAX_MEMBERS, Profile, Standing, View};
use super::{Agreement, Cutting, Heard, Output};
use crate::ids::PeerId;
use crate::view::Stamp;

/// A peer that beats with an old view is told the new one at most this often.
const TELL_AGAIN: Duration = Duration::from_millis(300);
/// The steward is told the own profile again so often: the message may have been lost.
const PROFILE_AGAIN: Duration = Duration::from_secs(5);
/// The least time between two profiles that differ in the rates of links alone.
const RATES_AGAIN: Duration = Duration::from_secs(1);

impl Agreement {
    pub(super) fn on_connected(&mut self, peer: PeerId) {
        self.membership.connected(self.now, peer);
        if let Some(profile) = &self.own.profile {
            self.outputs
                .push_back(Output::SendProfile(peer, Arc::clone(profile)));
        }
        self.is_news = true;
    }

    pub(super) fn on_gone(&mut self, peer: PeerId) {
        self.membership.disconnected(peer);
        self.early.remove(&peer);
        if let Some(heard) = self.heard.get_mut(&peer) {
            heard.is_old = true;
        }
        self.lost_frames(peer);
    }

    /// Frames to or from `peer` may be lost; should it be back at once, the view is still broken.
    fn lost_frames(&mut self, peer: PeerId) {
        let both_host = |view: &Arc<View>| view.plan.is_host(self.me) && view.plan.is_host(peer);
        if self.view.as_ref().is_some_and(both_host)
            || self.previous.as_ref().is_some_and(both_host)
        {
            self.own.is_broken = true;
            self.is_news = true;
        }
    }

    /// A steward that takes part in the view sees by itself that a host is dead; another one has to be told.
    pub(super) fn miss_hosts(&mut self) {
        let Some(view) = self.view.as_ref().filter(|_| !self.own.is_broken) else {
            return;
        };
        if view.plan.is_host(self.me)
            && self.steward().is_some_and(|steward| !view.has(steward))
            && !self.all_alive(view)
        {
            self.own.is_broken = true;
            self.is_news = true;
        }
    }

    pub(super) fn on_profile(&mut self, peer: PeerId, profile: Arc<Profile>) {
        self.membership.heard(self.now, peer);
        if !profile.is_of(self.config.n_blocks) {
            return;
        }
        match self.heard.get_mut(&peer) {
            Some(heard) => heard.profile = Some(profile),
            // It came before the first beat of its sender, which does not send it again.
            None if self.early.len() < MAX_MEMBERS => drop(self.early.insert(peer, profile)),
            None => {}
        }
    }

    pub(super) fn set_profile(&mut self, profile: Profile) {
        let profile = Arc::new(profile);
        let peers: Vec<PeerId> = self.membership.connected_peers().collect();
        for peer in peers {
            self.outputs
                .push_back(Output::SendProfile(peer, Arc::clone(&profile)));
        }
        self.own.profile = Some(profile);
    }

    /// All are told a profile with these rates where they are news.
    pub(super) fn set_rates(&mut self, mut rates: Vec<LinkRate>) {
        rates.truncate(MAX_MEMBERS);
        let Some(profile) = &self.own.profile else {
            return;
        };
        if self.now >= self.next_rates && links::is_news(&profile.rates, &rates) {
            self.next_rates = self.now + RATES_AGAIN;
            let profile = Profile {
                rates,
                ..Profile::clone(profile)
            };
            self.set_profile(profile);
        }
    }

    pub(super) fn on_beat(&mut self, peer: PeerId, beat: Arc<Beat>) {
        if peer == self.me || !beat.is_sound() {
            return;
        }
        self.membership.heard(self.now, peer);
        let is_new = !self.heard.contains_key(&peer);
        if is_new && self.heard.len() >= MAX_MEMBERS && !self.forget_one_dead() {
            return;
        }
        let is_another = |heard: &Heard| heard.beat.instance != beat.instance;
        let is_restarted = self.heard.get(&peer).is_some_and(is_another);
        if is_restarted {
            self.lost_frames(peer);
        }
        // Its first beat: it does not have the own profile, which came before it could take it.
        if (is_new || is_restarted)
            && let Some(profile) = &self.own.profile
        {
            self.outputs
                .push_back(Output::SendProfile(peer, Arc::clone(profile)));
        }
        self.learn(&beat);
        let holding = Holding::from_runs(&beat.held, self.config.n_blocks);
        let mut holding = holding.seeded(self.config.is_seeded);
        let until = self.counts_until(beat.view).unwrap_or(u64::MAX);
        holding.retain(|step, _| step <= until);
        let stamp = beat.view;
        let heard = self.heard.entry(peer).or_insert_with(|| Heard {
            beat: Arc::clone(&beat),
            holding: Holding::default(),
            profile: self.early.remove(&peer),
            told_view: None,
            is_old: false,
        });
        if self.config.cutting == Cutting::Restart && beat.standing == Standing::Preparing {
            heard.profile = None;
        }
        (heard.beat, heard.holding, heard.is_old) = (beat, holding, false);
        self.tell_view(peer, stamp);
    }

    /// What goes from beat to beat until all know it.
    fn learn(&mut self, beat: &Beat) {
        if let (None, Some(reason)) = (&self.own.stop, &beat.stop) {
            self.own.stop = Some(reason.clone());
            self.is_news = true;
        }
        if self.config.last_step.is_none()
            && beat.last_step > self.own.last_step
            && !matches!(self.own.standing, Standing::Finished(_))
            && beat.last_step.is_some_and(|last| self.can_end_at(last))
        {
            self.own.last_step = beat.last_step;
            self.is_news = true;
        }
        let newer =
            |judged: &super::Judged| self.own.judged.is_none_or(|own| judged.step > own.step);
        if let Some(judged) = beat.judged.filter(newer) {
            self.own.judged = Some(judged);
        }
    }

    fn tell_view(&mut self, peer: PeerId, held: Option<Stamp>) {
        let Some(view) = &self.view else { return };
        if held >= Some(view.stamp) {
            return;
        }
        let now = self.now;
        if let Some(heard) = self.heard.get_mut(&peer)
            && heard.told_view.is_none_or(|at| now.since(at) >= TELL_AGAIN)
        {
            heard.told_view = Some(now);
            self.outputs
                .push_back(Output::SendView(peer, Arc::clone(view)));
        }
    }

    fn forget_one_dead(&mut self) -> bool {
        let dead = self
            .heard
            .keys()
            .copied()
            .find(|peer| !self.membership.is_alive(self.now, *peer));
        dead.is_some_and(|peer| self.heard.remove(&peer).is_some())
    }

    fn profile_again(&mut self) {
        if self.now < self.next_profile {
            return;
        }
        self.next_profile = self.now + PROFILE_AGAIN;
        if let Some(profile) = &self.own.profile
            && let Some(steward) = self.steward().filter(|steward| *steward != self.me)
        {
            let profile = Arc::clone(profile);
            self.outputs
                .push_back(Output::SendProfile(steward, profile));
        }
    }

    /// Beats when it is time or there is news.
    pub(super) fn beat(&mut self) {
        self.profile_again();
        if !self.is_news && self.now < self.next_beat {
            return;
        }
        self.is_news = false;
        self.next_beat = self.now + self.membership.times().beat_every;
        let peers: Vec<PeerId> = self.membership.connected_peers().collect();
        if !peers.is_empty() {
            let beat = Arc::new(self.own_beat());
            self.outputs.push_back(Output::SendBeat(peers, beat));
        }
    }

    /// What this peer says of itself.
    pub fn own_beat(&self) -> Beat {
        let own = &self.own;
        Beat {
            instance: self.instance,
            standing: own.standing.clone(),
            has_data: own.has_data,
            has_room: own.has_room,
            view: self.view.as_ref().map(|view| view.stamp),
            in_place: own.in_place && own.standing != Standing::Preparing,
            is_broken: own.is_broken,
            step: own.step,
            held: own.holding.runs(),
            global: Some(self.global.line).filter(|line| *line > 0),
            slowdown: own.slowdown,
            stop: own.stop.clone(),
            last_step: own.last_step,
            judged: own.judged,
            contribution: own.contribution,
        }
    }

    /// What others said last; only those heard of.
    pub fn beats(&self) -> impl Iterator<Item = (PeerId, &Arc<Beat>)> {
        self.heard.iter().map(|(peer, heard)| (*peer, &heard.beat))
    }
}

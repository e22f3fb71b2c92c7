//! What one peer says of itself, to whom and when, and what it takes from what others say.

use std::sync::Arc;
use std::time::Duration;

use super::works::count;
use super::{Agreement, Output, Phase, truncate};
use crate::ids::PeerId;
use crate::membership;
use crate::message::{Beat, MAX_REASON, Standing};
use crate::time::Tick;
use crate::view::Stamp;

/// How many members tell a peer that the steward did not reach.
const LOWEST: usize = 8;
/// How long a view may take to a member.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

impl Agreement {
    /// What this peer says of itself.
    pub fn own_beat(&self) -> Beat {
        let (standing, ending) = match &self.phase {
            Phase::Preparing => (Standing::Preparing, None),
            Phase::Unable(reason) => (Standing::Unable(reason.clone()), None),
            Phase::Ready(holding) if self.left.is_some() => (Standing::Again(*holding), None),
            Phase::Ready(holding) => (Standing::Ready(*holding), None),
            Phase::Syncing(_) => (Standing::Syncing, None),
            Phase::Training => (Standing::Training, None),
            Phase::Ending(state) | Phase::Closing(state) | Phase::Closed(state) => {
                (Standing::Ending, Some(state.clone()))
            }
        };
        Beat {
            instance: self.instance,
            standing,
            batch: self.own_batch(),
            view: self.view.as_ref().map(|view| view.stamp),
            contribution: self.progress.2,
            step: self.progress.0,
            train_loss: self.progress.1,
            ending,
            pace: self.pace.clone(),
        }
    }

    /// Samples of this peer per step.
    fn own_batch(&self) -> u32 {
        let member = self.view.as_ref().and_then(|view| view.member(self.me));
        member.map_or(self.config.batch, |member| member.batch)
    }

    pub(super) fn next_beat(&self) -> Tick {
        let every = self.membership.times().beat_every;
        self.last_beat.map_or(Tick(0), |last| last + every)
    }

    /// Tells everybody when a beat is due. News are told at once: to everybody among few peers or by the steward, otherwise
    /// to the steward.
    pub(super) fn beat(&mut self, now: Tick) {
        let news = std::mem::take(&mut self.news);
        let is_due = now >= self.next_beat();
        if !(news || is_due) {
            return;
        }
        let steward = self.steward;
        if !(is_due || self.membership.are_few() || steward == self.me) {
            if self.membership.is_connected(steward) && self.must_tell(steward) {
                let beat = self.say();
                self.outputs.push_back(Output::SendBeat(steward, beat));
            }
            return;
        }
        let beat = self.say();
        let mut outputs = std::mem::take(&mut self.outputs);
        let peers = self.membership.connected_peers();
        outputs.extend(
            peers
                .filter(|peer| self.must_tell(*peer))
                .map(|peer| Output::SendBeat(peer, beat.clone())),
        );
        self.outputs = outputs;
        self.told_end = matches!(self.phase, Phase::Closed(_));
        self.steps_per_beat = self.progress.0.saturating_sub(self.step_at_beat);
        self.step_at_beat = self.progress.0;
        self.last_beat = Some(now);
    }

    /// A peer was met: it hears at once, unless a beat is due anyway.
    pub(super) fn greet(&mut self, now: Tick, peer: PeerId) {
        if now < self.next_beat() && self.must_tell(peer) {
            let beat = self.say();
            self.outputs.push_back(Output::SendBeat(peer, beat));
        }
    }

    /// When the job is over only those that do not know it yet are told.
    fn must_tell(&self, peer: PeerId) -> bool {
        let knows = || {
            self.heard
                .get(&peer)
                .is_none_or(|beat| beat.ending.as_ref().is_some_and(|ending| ending.closed))
        };
        let over = matches!(self.phase, Phase::Closed(_));
        !(over && self.told_end && knows())
    }

    fn say(&mut self) -> Arc<Beat> {
        let beat = self.own_beat();
        match &self.said {
            Some(said) if **said == beat => said.clone(),
            _ => self.said.insert(Arc::new(beat)).clone(),
        }
    }

    /// Whether the beat says anything that decisions look at and that was not known.
    pub(super) fn on_beat(&mut self, now: Tick, from: PeerId, mut beat: Arc<Beat>) -> bool {
        if from == self.me {
            return false;
        }
        let was_alive = self.membership.heard(now, from);
        let too_long = |reason: &String| reason.len() > MAX_REASON;
        if beat
            .ending
            .as_ref()
            .is_some_and(|ending| too_long(&ending.reason))
            && let Some(ending) = &mut Arc::make_mut(&mut beat).ending
        {
            truncate(&mut ending.reason);
        }
        let lags = match (&self.view, beat.view) {
            // Views of two lines are compared by both sides, so each tells its own.
            (Some(mine), Some(theirs)) => mine.stamp != theirs,
            (Some(mine), None) => mine
                .member(from)
                .is_some_and(|member| member.instance == beat.instance),
            (None, _) => false,
        };
        if lags {
            self.on_lagging(now, from, beat.view);
        } else {
            self.lagging.remove(&from);
        }
        let is_news = self.remember(now, from, &beat);
        if let Some(state) = &beat.ending {
            let is_member = self.view.as_ref().is_some_and(|view| view.contains(from));
            self.on_ending(now, is_member, state);
        }
        is_news || !was_alive
    }

    /// The steward tells a peer that lags at once. Where its next beat shows that it has not moved, the lowest members tell
    /// it too (among few all do), and after one more all: else all would tell it at the same time.
    fn on_lagging(&mut self, now: Tick, peer: PeerId, holds: Option<Stamp>) {
        let Some(view) = &self.view else { return };
        let n_beats = match self.lagging.get(&peer) {
            Some((before, n_beats)) if *before == holds => n_beats.saturating_add(1),
            _ => 1,
        };
        let is_low = || view.members.iter().take(LOWEST).any(|m| m.peer == self.me);
        // Of many, some always beat while a new view is on its way to them; that is no lag yet.
        let may_hear = || {
            !self.membership.are_few()
                && now.since(self.adopted_at) < ON_ITS_WAY
                && holds.is_none_or(|stamp| view.descends_from(stamp))
        };
        let tells = match n_beats {
            1 => self.steward == self.me && !may_hear(),
            2 => self.steward == self.me || self.membership.are_few() || is_low(),
            _ => true,
        };
        if tells {
            let view = view.clone();
            self.outputs.push_back(Output::SendView(peer, view));
        }
        if self.lagging.len() < membership::MAX_PEERS || self.lagging.contains_key(&peer) {
            self.lagging.insert(peer, (holds, n_beats));
        }
    }

    /// Keeps the beat as the peer's last one. Whether it says anything new.
    fn remember(&mut self, now: Tick, from: PeerId, beat: &Arc<Beat>) -> bool {
        if self.heard.len() >= membership::MAX_PEERS
            && !self.heard.contains_key(&from)
            && !self.forget_one()
        {
            return false;
        }
        let before = self.heard.insert(from, beat.clone());
        let mut is_news = before.as_ref().is_none_or(|before| says_more(before, beat));
        if let Some(view) = &self.view {
            let names = |beat: &Arc<Beat>| beat.view == Some(view.stamp);
            let (held, holds) = (before.as_ref().is_some_and(names), names(beat));
            if held != holds && view.contains(from) {
                self.n_behind = self.n_behind + usize::from(held) - usize::from(holds);
                is_news |= self.n_behind == 0;
            }
        }
        let is_ready = beat.standing.holding().is_some();
        self.start.heard(now, from, is_ready);
        if let Some(before) = before
            && (before.instance != beat.instance
                || before.contribution.samples > beat.contribution.samples)
        {
            self.keep_work(from, &before);
        }
        is_news
    }

    /// Makes room in `heard` where it is full of peers that came and went.
    fn forget_one(&mut self) -> bool {
        let is_gone = |peer: &PeerId| {
            !self.membership.is_connected(*peer)
                && !self.view.as_ref().is_some_and(|view| view.contains(*peer))
        };
        let gone = self.heard.keys().copied().find(is_gone);
        if let Some(peer) = gone
            && let Some(beat) = self.heard.remove(&peer)
        {
            self.keep_work(peer, &beat);
        }
        gone.is_some()
    }

    fn keep_work(&mut self, peer: PeerId, beat: &Beat) {
        let who = (peer, beat.instance);
        if self.instances.contains_key(&who) || self.instances.len() < membership::MAX_PEERS {
            count(&mut self.instances, who, beat.contribution);
        }
    }
}

/// Whether `beat` differs from the one `before` in anything that decisions look at. The view of a peer that is no joiner
/// is counted instead, see `n_behind`: it changes for all with each view.
fn says_more(before: &Beat, beat: &Beat) -> bool {
    before.instance != beat.instance
        || before.standing != beat.standing
        || before.view.is_some() != beat.view.is_some()
        || before.ending != beat.ending
        || (beat.standing.holding().is_some() && before.view != beat.view)
}

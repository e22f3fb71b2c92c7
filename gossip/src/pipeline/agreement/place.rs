//! The view that holds: it is adopted, every host takes its place in it, and the first stage begins when all have.

use std::sync::Arc;

use super::super::message::{Standing, View};
use super::{Agreement, Output, Setback};
use crate::view::Stamp;

impl Agreement {
    /// Adopts a view that counts more than the one held.
    pub(super) fn adopt(&mut self, view: Arc<View>) {
        if self
            .view
            .as_ref()
            .is_some_and(|held| held.stamp >= view.stamp)
        {
            return;
        }
        self.count_setback(&view);
        let candidates = self.candidates();
        let before = self.view.replace(Arc::clone(&view));
        if let Some(before) = &before {
            self.note_undone(before.stamp, &view);
        }
        let before = before.filter(|before| view.after == Some(before.stamp));
        let must_go_on = before
            .as_ref()
            .is_some_and(|before| before.plan.is_host(self.me));
        self.previous = before.filter(|before| self.own.in_place && self.all_alive(before));
        let goes_on = self.previous.is_some();
        self.own.in_place = false;
        self.own.is_broken = must_go_on && (self.own.is_broken || !goes_on);
        if view.after.is_none() {
            self.safe = self.safe.min(view.from);
            self.safe_before = self.safe_before.min(view.from);
            self.forgotten = self.forgotten.min(view.from);
            self.forget_undone(&view);
        }
        for host in view.plan.hosts() {
            if host != self.me && !self.heard.contains_key(&host) {
                self.membership.expect(self.now, host);
            }
        }
        self.switching = None;
        self.chose_last = false;
        self.lead.adopted(self.now);
        self.expect_of(&view, &candidates);
        self.paused = None;
        self.is_news = true;
        // Who hosted no stage of the view before may still have one of an older view.
        self.outputs.push_back(if goes_on && must_go_on {
            Output::Until(view)
        } else {
            Output::Halt(view)
        });
    }

    /// Where a step made again is another one, copies beyond the line that `view` goes back to are of no use any more.
    pub(super) fn forget_undone(&mut self, view: &View) {
        if !self.config.is_exact && view.after.is_none() {
            self.own.holding.retain(|step, _| step <= view.from);
            self.undo_global(view.from);
        }
    }

    fn count_setback(&mut self, view: &View) {
        if self.view.is_none() || view.after.is_some() {
            return;
        }
        let reached = self.step();
        self.setback = Some(Setback {
            reached,
            safe: self.safe,
            from: view.from,
            lacking: match view.from < reached {
                true => self.copies().behind(view.from),
                false => Vec::new(),
            },
        });
    }

    /// Moves into the view's place once its blocks are here, and lets the first stage begin once all have.
    pub(super) fn take_place(&mut self) {
        let Some(view) = self.view.clone() else {
            return;
        };
        if !self.own.in_place
            && self.switching != Some(view.stamp)
            && !self.has_restarted(&view)
            && self.own.standing == Standing::Ready
        {
            match view.plan.blocks_of(self.me) {
                None => {
                    self.own.in_place = true;
                    if view.after.is_none() {
                        self.own.step = view.from;
                    }
                    self.is_news = true;
                }
                Some(blocks)
                    if self.own.holding.has_all(view.from, blocks.clone())
                        && self.has_made(view.from)
                        && self.has_links(&view) =>
                {
                    self.switching = Some(view.stamp);
                    self.outputs.push_back(Output::Switch(view.clone()));
                }
                Some(_) => {}
            }
        }
        let leads = view.plan.lead() == Some(self.me);
        if leads && self.fed != Some(view.stamp) && self.is_in_effect(&view) {
            self.fed = Some(view.stamp);
            let until = self.own.last_step;
            self.outputs.push_back(Output::Feed {
                stamp: view.stamp,
                until,
            });
        }
    }

    /// Whether connections are open to all whose frames come here or to whom they go.
    fn has_links(&self, view: &View) -> bool {
        let last = view.plan.stages.len() - 1;
        let is_near = |at: usize, other: usize| {
            let far = other.abs_diff(at);
            far <= 1 || far == last
        };
        view.plan.stages_of(self.me).all(|(at, _)| {
            let stages = view.plan.stages.iter().enumerate();
            let near = stages.filter(|(other, _)| is_near(at, *other));
            let mut hosts = near.flat_map(|(_, stage)| stage.hosts());
            hosts.all(|host| host == self.me || self.membership.is_connected(host))
        })
    }

    /// Whether the own stages of the view before have come to the line `from`: until then others need their work. A source makes no
    /// copies.
    fn has_made(&self, from: u64) -> bool {
        let before = self.previous.as_ref();
        let blocks = before.and_then(|before| before.plan.blocks_of(self.me));
        blocks.is_none_or(|blocks| match blocks.is_empty() {
            true => self.own.step >= from,
            false => self.own.holding.has_all(from, blocks),
        })
    }

    pub(super) fn on_in_place(&mut self, stamp: Stamp) {
        let holds = self.view.as_ref().is_some_and(|view| view.stamp == stamp);
        if holds && !self.own.in_place && self.restarted != Some(stamp) {
            self.own.in_place = true;
            self.own.step = self.view.as_ref().map_or(0, |view| view.from);
            self.previous = None;
            self.is_news = true;
        }
    }

    pub(super) fn on_broken(&mut self, stamp: Stamp) {
        if self.view.as_ref().is_some_and(|view| view.stamp == stamp) && !self.own.is_broken {
            self.own.is_broken = true;
            self.is_news = true;
        }
    }

    /// Whether every host of `view` works in it, as far as is known here.
    pub(super) fn is_in_effect(&self, view: &View) -> bool {
        view.plan.hosts().all(|host| match host == self.me {
            true => {
                self.own.in_place
                    && self
                        .view
                        .as_ref()
                        .is_some_and(|own| own.stamp == view.stamp)
            }
            false => {
                self.is_alive(host)
                    && self.heard.get(&host).is_some_and(|heard| {
                        heard.beat.in_place && heard.beat.view == Some(view.stamp)
                    })
            }
        })
    }

    pub(super) fn all_alive(&self, view: &View) -> bool {
        view.plan
            .hosts()
            .all(|host| host == self.me || self.is_alive(host))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::copies::Held;
    use super::super::super::message::{Beat, BlockTime, Profile};
    use super::super::super::plan::{Blocks, Plan, Stage};
    use super::super::{Candidate, Config, Input, Planned, Planner};
    use super::*;
    use crate::ids::PeerId;
    use crate::time::Tick;
    use crate::view::Contribution;

    /// One stage on the first who has the data.
    #[derive(Debug)]
    struct One;

    impl Planner for One {
        fn plan(&self, candidates: &[Candidate]) -> Result<Planned, String> {
            let host = candidates[0].peer;
            let stages = vec![Stage::alone(host, 0..4)];
            Ok(Planned {
                plan: Plan { stages },
                step_us: 1e5,
            })
        }

        fn step_us(&self, _: &Plan, _: &[Candidate]) -> Option<f64> {
            Some(1e5)
        }

        fn bytes(&self, _: Blocks) -> u64 {
            1
        }
    }

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    fn at(ms: u64) -> Tick {
        Tick(ms * 1000)
    }

    fn profile() -> Profile {
        Profile {
            blocks: vec![BlockTime::default(); 4],
            ..Profile::default()
        }
    }

    fn view(number: u64, cut: u16, from: u64, after: Option<Stamp>) -> Arc<View> {
        let stage = |n, blocks| Stage::alone(peer(n), blocks);
        Arc::new(View {
            stamp: Stamp {
                number,
                steward: peer(2),
            },
            members: vec![peer(2), peer(3)],
            plan: Plan {
                stages: vec![stage(2, 0..cut), stage(3, cut..4)],
            },
            from,
            after,
        })
    }

    fn beat(view: &View, held: &[Held]) -> Arc<Beat> {
        Arc::new(Beat {
            instance: 1,
            standing: Standing::Ready,
            has_data: true,
            has_room: false,
            view: Some(view.stamp),
            in_place: true,
            is_broken: false,
            step: 0,
            held: held.to_vec(),
            global: None,
            slowdown: 1.0,
            stop: None,
            last_step: None,
            judged: None,
            contribution: Contribution::default(),
        })
    }

    /// Peer `n`, ready, beside peer 2.
    fn ready(n: u8) -> Agreement {
        let mut agreement = Agreement::new(Config::new(4), peer(n), 1, at(0), Box::new(One));
        let prepared = Input::Prepared {
            has_data: true,
            profile: profile(),
            held: Vec::new(),
        };
        agreement.handle(at(0), Input::Connected(peer(2)));
        agreement.handle(at(0), Input::View(peer(2), view(1, 2, 0, None)));
        agreement.handle(at(0), Input::Beat(peer(2), beat(&view(1, 2, 0, None), &[])));
        agreement.handle(at(0), prepared);
        agreement
    }

    fn outputs(agreement: &mut Agreement) -> Vec<Output> {
        std::iter::from_fn(|| agreement.poll()).collect()
    }

    fn switches(outputs: &[Output]) -> bool {
        outputs
            .iter()
            .any(|output| matches!(output, Output::Switch(_)))
    }

    #[test]
    fn a_host_leaves_its_stage_once_it_has_made_the_line_that_others_wait_for() {
        let mut agreement = ready(3);
        assert!(switches(&outputs(&mut agreement)));
        let (first, second) = (view(1, 2, 0, None), view(2, 3, 10, None));
        let second = Arc::new(View {
            after: Some(first.stamp),
            ..(*second).clone()
        });
        agreement.handle(at(1), Input::InPlace(first.stamp));
        agreement.handle(at(2), Input::View(peer(2), Arc::clone(&second)));
        let until = Output::Until(Arc::clone(&second));
        assert!(outputs(&mut agreement).contains(&until));
        // Block 3 is all that it hosts from then on, and it may come before the own stage is through.
        let copied = |blocks| Input::Copied { step: 10, blocks };
        agreement.handle(at(3), copied(3..4));
        assert!(!switches(&outputs(&mut agreement)));
        agreement.handle(at(4), copied(2..4));
        assert!(switches(&outputs(&mut agreement)));
    }

    #[test]
    fn a_host_that_missed_the_view_before_says_that_the_line_cannot_be_made() {
        let mut agreement = ready(3);
        let after = Some(view(1, 2, 0, None).stamp);
        // Not in place yet in the view that makes the line.
        agreement.handle(at(2), Input::View(peer(2), view(2, 3, 10, after)));
        assert!(agreement.own_beat().is_broken);
    }

    #[test]
    fn a_peer_that_was_restarted_is_told_the_profile_again() {
        let mut agreement = ready(3);
        let told = |agreement: &mut Agreement| {
            let is_profile =
                |output: &Output| matches!(output, Output::SendProfile(to, _) if *to == peer(2));
            outputs(agreement).iter().any(is_profile)
        };
        assert!(told(&mut agreement));
        let restarted = Beat {
            instance: 2,
            ..(*beat(&view(1, 2, 0, None), &[])).clone()
        };
        agreement.handle(at(1), Input::Beat(peer(2), Arc::new(restarted.clone())));
        assert!(
            told(&mut agreement),
            "what was sent before its first beat came too early"
        );
        agreement.handle(at(2), Input::Beat(peer(2), Arc::new(restarted)));
        assert!(!told(&mut agreement));
    }

    #[test]
    fn a_profile_that_comes_before_the_first_beat_of_its_sender_counts() {
        let mut agreement = ready(3);
        let stranger = peer(7);
        agreement.handle(at(1), Input::Connected(stranger));
        agreement.handle(at(2), Input::Profile(stranger, Arc::new(profile())));
        let first = beat(&view(1, 2, 0, None), &[]);
        agreement.handle(at(3), Input::Beat(stranger, first));
        let candidates = agreement.candidates();
        let mut all = candidates.iter();
        assert!(all.any(|candidate| candidate.peer == stranger && candidate.profile.is_some()));
    }

    #[test]
    fn a_host_works_once_the_stages_beside_it_are_connected() {
        let mut agreement = Agreement::new(Config::new(4), peer(3), 1, at(0), Box::new(One));
        let prepared = Input::Prepared {
            has_data: true,
            profile: profile(),
            held: Vec::new(),
        };
        agreement.handle(at(1), Input::View(peer(9), view(7, 2, 0, None)));
        agreement.handle(at(2), prepared);
        assert!(!switches(&outputs(&mut agreement)));
        agreement.handle(at(3), Input::Connected(peer(2)));
        assert!(switches(&outputs(&mut agreement)));
    }

    #[test]
    fn what_a_peer_said_before_its_connection_closed_counts_when_it_beats_again() {
        let mut agreement = ready(3);
        agreement.handle(at(1), Input::InPlace(view(1, 2, 0, None).stamp));
        assert!(agreement.is_running());
        agreement.handle(at(2), Input::Disconnected(peer(2)));
        agreement.handle(at(3), Input::Connected(peer(2)));
        assert!(!agreement.is_alive(peer(2)));
        let held = agreement.view().cloned();
        let held = beat(&held.unwrap(), &[]);
        agreement.handle(at(4), Input::Beat(peer(2), held));
        assert!(agreement.is_alive(peer(2)));
    }

    #[test]
    fn a_peer_that_was_away_listens_before_it_leads() {
        let mut agreement = ready(1);
        let first = view(1, 2, 0, None);
        agreement.handle(at(10), Input::Beat(peer(2), beat(&first, &[])));
        outputs(&mut agreement);
        // Away for five seconds, in which both hosts may have been replaced.
        agreement.handle(at(5000), Input::Tick);
        agreement.handle(at(5001), Input::Disconnected(peer(2)));
        agreement.handle(at(5001), Input::Disconnected(peer(3)));
        assert_eq!(agreement.view(), Some(&first));
        let listened = at(5000) + Duration::from_millis(400);
        agreement.handle(listened, Input::Tick);
        assert_ne!(agreement.view(), Some(&first));
    }
}

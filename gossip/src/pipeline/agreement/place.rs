//! The view that holds: it is adopted, every host takes its place in it, and the first stage begins when all have.

use std::sync::Arc;

use super::super::message::{Standing, View};
use super::{Agreement, Output};
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
        let before = self.view.replace(Arc::clone(&view));
        let before = before.filter(|before| view.after == Some(before.stamp));
        let must_go_on = before
            .as_ref()
            .is_some_and(|before| before.plan.stage_of(self.me).is_some());
        self.previous = before.filter(|before| self.own.in_place && self.all_alive(before));
        let goes_on = self.previous.is_some();
        self.own.in_place = false;
        self.own.is_broken = must_go_on && (self.own.is_broken || !goes_on);
        if view.after.is_none() {
            self.safe = self.safe.min(view.from);
            self.safe_before = self.safe_before.min(view.from);
            self.forgotten = self.forgotten.min(view.from);
            if !self.config.is_exact {
                self.own.holding.retain(|step, _| step <= view.from);
            }
        }
        for host in view.plan.hosts() {
            if host != self.me && !self.heard.contains_key(&host) {
                self.membership.expect(self.now, host);
            }
        }
        self.switching = None;
        self.chose_last = false;
        self.lead.adopted(self.now);
        self.paused = None;
        self.is_news = true;
        self.outputs.push_back(if goes_on {
            Output::Until(view)
        } else {
            Output::Halt(view)
        });
    }

    /// Moves into the view's place once its blocks are here, and lets the first stage begin once all have.
    pub(super) fn take_place(&mut self) {
        let Some(view) = self.view.clone() else {
            return;
        };
        if !self.own.in_place
            && self.switching != Some(view.stamp)
            && self.own.standing == Standing::Ready
        {
            match view.plan.stage_of(self.me) {
                None => {
                    self.own.in_place = true;
                    if view.after.is_none() {
                        self.own.step = view.from;
                    }
                    self.is_news = true;
                }
                Some((_, stage))
                    if self.own.holding.has_all(view.from, stage.blocks.clone())
                        && self.has_made(view.from)
                        && self.has_links(&view) =>
                {
                    self.switching = Some(view.stamp);
                    self.outputs.push_back(Output::Switch(view.clone()));
                }
                Some(_) => {}
            }
        }
        let is_first = view
            .plan
            .stages
            .first()
            .is_some_and(|first| first.host == self.me);
        if is_first && self.fed != Some(view.stamp) && self.is_in_effect(&view) {
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
        let Some((at, _)) = view.plan.stage_of(self.me) else {
            return true;
        };
        let last = view.plan.stages.len() - 1;
        let is_near = |other: usize| other.abs_diff(at) == 1 || other.abs_diff(at) == last;
        let others = view.plan.hosts().enumerate();
        let mut near = others.filter(|(other, host)| is_near(*other) && *host != self.me);
        near.all(|(_, host)| self.membership.is_connected(host))
    }

    /// Whether the own stage of the view before has come to the line `from`: until then others need its work.
    fn has_made(&self, from: u64) -> bool {
        let before = self.previous.as_ref();
        let stage = before.and_then(|before| before.plan.stage_of(self.me));
        stage.is_none_or(|(_, stage)| self.own.holding.has_all(from, stage.blocks.clone()))
    }

    pub(super) fn on_in_place(&mut self, stamp: Stamp) {
        if self.view.as_ref().is_some_and(|view| view.stamp == stamp) && !self.own.in_place {
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

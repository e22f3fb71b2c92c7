//! Recovery by restarting: a baseline beside the takeover (FTPipeHD's own comparison is with it).
//!
//! When a host falls out, all stop. Each forgets what it holds in memory, measures its device again and reads the newest checkpoint
//! from its disk, as if the job had been started anew; then the steward plans from scratch, and all go on from the newest line
//! that is on disk. No message of its own: who restarts says that it prepares, which to all others is a host that fell out.

use super::super::copies::Holding;
use super::super::message::{Standing, View};
use super::{Agreement, Cutting, Output};

impl Agreement {
    /// Gives the view up for which a host is missing.
    pub(super) fn restart(&mut self) {
        let Some(view) = self.view.clone() else {
            return;
        };
        if self.config.cutting != Cutting::Restart
            || self.own.standing != Standing::Ready
            || self.is_trained()
            || self.has_restarted(&view)
            || !self.is_lost(&view)
        {
            return;
        }
        self.restarted = Some(view.stamp);
        self.own.standing = Standing::Preparing;
        self.own.holding = Holding::default().seeded(self.config.is_seeded);
        self.own.profile = None;
        self.own.in_place = false;
        self.own.is_broken = false;
        self.previous = None;
        (self.safe, self.safe_before, self.forgotten) = (0, 0, 0);
        self.is_news = true;
        self.outputs.push_back(Output::Restart);
    }

    /// Whether this peer has given `view` up.
    pub(super) fn has_restarted(&self, view: &View) -> bool {
        self.restarted == Some(view.stamp)
    }

    /// Whether all that are alive have restarted since, and said what they measured and hold.
    pub(super) fn have_all_restarted(&self, view: &View) -> bool {
        let alive = self.heard.iter().filter(|(peer, _)| self.is_alive(**peer));
        let mut alive = alive.map(|(_, heard)| heard);
        alive.all(|heard| {
            let works_in_it = heard.beat.in_place && heard.beat.view == Some(view.stamp);
            match heard.beat.standing {
                Standing::Ready => heard.profile.is_some() && !works_in_it,
                Standing::Preparing => false,
                Standing::Unable(_) | Standing::Finished(_) => true,
            }
        })
    }
}

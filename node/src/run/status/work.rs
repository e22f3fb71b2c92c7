//! Who contributed what, and what the links carry.

use std::collections::BTreeMap;

use skein_gossip::agreement::Agreement;
use skein_gossip::ids::PeerId;
use skein_gossip::view::{Contribution as Work, View};

use super::Figures;
use crate::control::{Contribution, Hex, LinkStatus};

impl Figures {
    pub(super) fn all_work(&self, agreement: &Agreement) -> BTreeMap<PeerId, Work> {
        // A checkpoint newer than what this run started from is of this run: its numbers are told by the others too.
        let is_of_this_run = |view: &View| view.origin.1.samples < self.past_samples;
        let mut all = match agreement.view() {
            Some(view) if is_of_this_run(view) => BTreeMap::new(),
            _ => self.past.clone(),
        };
        for (peer, work) in agreement.contributions() {
            all.entry(peer).or_default().add(&work);
        }
        all
    }

    pub(super) fn contributions(&self, agreement: &Agreement) -> Vec<Contribution> {
        let batch = |peer: PeerId| {
            let heard = agreement.heard().get(&peer).map(|beat| beat.batch);
            heard.unwrap_or_else(|| agreement.own_beat().batch)
        };
        let me = agreement.me();
        let commits = |peer: PeerId| match peer == me {
            true => self.commits,
            false => agreement
                .heard()
                .get(&peer)
                .map_or(0, |beat| beat.pace.commits),
        };
        let list = self
            .all_work(agreement)
            .into_iter()
            .map(|(peer, work)| Contribution {
                peer: Hex(peer),
                steps: work.steps,
                samples: work.samples,
                bytes_out: work.bytes_out,
                compression: (work.bytes_out > 0)
                    .then(|| work.dense_bytes_out as f64 / work.bytes_out as f64),
                seconds_waiting: work.waiting_us as f64 / 1e6,
                batch: batch(peer),
                commits: commits(peer),
            });
        list.collect()
    }

    pub(super) fn link_statuses(&self, agreement: &Agreement) -> Vec<LinkStatus> {
        let is_member = |peer| agreement.view().is_some_and(|view| view.contains(peer));
        let links = self.links.iter().filter(|(peer, _)| is_member(**peer));
        let finite = |value: f64| value.is_finite().then_some(value);
        let ms = |us: u64| us as f64 / 1e3;
        links
            .map(|(peer, link)| LinkStatus {
                peer: Hex(*peer),
                bytes_per_s: link.rate.and_then(finite),
                round_trip_ms: link.round_trip_us.map(ms),
                queueing_ms: ms(link.queueing_us),
                n_percent: 100.0 * f64::from(link.share),
                bits: link.bits,
                bytes_per_step: link.bytes_per_step,
                steps_untold: link.steps_untold,
                steps_ahead: self.step as i64 - link.step_heard as i64,
                held_back: link.held_back,
                refused: link.refused,
            })
            .collect()
    }
}

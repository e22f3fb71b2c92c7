//! Who contributed what to the job. In: the work of each process, as beats, views and the own progress say it. Out: sums.

use std::collections::BTreeMap;

use super::Agreement;
use crate::ids::PeerId;
use crate::view::Contribution;

impl Agreement {
    /// Who contributed what, those that are gone included.
    pub fn contributions(&self) -> BTreeMap<PeerId, Contribution> {
        let mut all: BTreeMap<PeerId, Contribution> = BTreeMap::new();
        for (peer, work) in self.works() {
            all.entry(peer).or_default().add(&work);
        }
        all.retain(|_, contribution| contribution.samples > 0);
        all
    }

    /// Samples that the whole mesh has trained on, those behind the state it started from included.
    pub fn mesh_samples(&self) -> u64 {
        let started_from = self.view.as_ref().map_or(0, |view| view.origin.1.samples);
        self.works().iter().fold(started_from, |sum, (_, work)| {
            sum.saturating_add(work.samples)
        })
    }

    /// The work of each process of each peer.
    fn works(&self) -> Vec<(PeerId, Contribution)> {
        let mut apart = self.instances.clone();
        let retired = self.view.iter().flat_map(|view| &view.retired);
        for gone in retired {
            count(&mut apart, (gone.peer, gone.instance), gone.work);
        }
        count(&mut apart, (self.me, self.instance), self.progress.2);
        let mut works = Vec::with_capacity(apart.len() + self.heard.len());
        for (peer, beat) in &self.heard {
            let kept = apart.remove(&(*peer, beat.instance)).unwrap_or_default();
            let more = beat.contribution.samples >= kept.samples;
            works.push((*peer, if more { beat.contribution } else { kept }));
        }
        works.extend(apart.into_iter().map(|((peer, _), work)| (peer, work)));
        works
    }
}

/// Keeps the larger of two reports of one process.
pub(super) fn count(
    instances: &mut BTreeMap<(PeerId, u64), Contribution>,
    who: (PeerId, u64),
    work: Contribution,
) {
    let known = instances.entry(who).or_default();
    if work.samples >= known.samples {
        *known = work;
    }
}

//! What must hold after every event of a simulated run, whatever fails.
//!
//! Each check looks at the peers that the event touched; checks that look at all members are made at every event of a small
//! group, and at every n-th of a group of n that is larger than 64.

use std::collections::{BTreeMap, BTreeSet};

use skein_gossip::exchange::split;
use skein_gossip::ids::{Digest, PeerId};

use super::peer::Peer;

/// Groups up to this size are checked in full after every event.
const SMALL: usize = 64;

/// What has been seen of a run.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// Samples that each peer really trained on: as processes that are gone, and as the present one.
    trained: BTreeMap<PeerId, [u64; 2]>,
    /// The models that peers closed with.
    closed: BTreeSet<Option<Digest>>,
    events: u64,
}

/// A packet that is about to be handed to a peer's exchange.
#[derive(Debug)]
pub(super) struct Incoming {
    from: PeerId,
    applied: u64,
    is_fenced: bool,
}

impl Checks {
    /// Before a packet is handed over: what may become of it.
    pub(super) fn incoming(peer: &Peer, from: PeerId, packet: &[u8]) -> Incoming {
        let stats = peer.exchange.stats();
        let header = split(packet).map(|(header, _)| header);
        let view = peer.agreement.view();
        let admits = |sent_in| view.is_some_and(|view| view.admits(from, sent_in));
        Incoming {
            from,
            applied: stats.get(&from).map_or(0, |link| link.packets_in),
            is_fenced: !header.is_ok_and(|header| admits(header.view)),
        }
    }

    /// After it: nothing of an older view was applied, and nothing twice.
    pub(super) fn handed_over(peer: &Peer, before: &Incoming) -> Result<(), String> {
        let stats = peer.exchange.stats();
        let applied = stats.get(&before.from).map_or(0, |link| link.packets_in);
        let names = (peer.id.short(), before.from.short());
        match applied.saturating_sub(before.applied) {
            0 => Ok(()),
            1 if !before.is_fenced => Ok(()),
            1 => Err(format!(
                "{} applied a packet of {} from before its admission",
                names.0, names.1
            )),
            n => Err(format!(
                "{} applied {n} packets of {} for one",
                names.0, names.1
            )),
        }
    }

    /// A peer made a step, or its process is gone.
    pub(super) fn trained(&mut self, peer: &Peer, is_gone: bool) {
        let [past, present] = self.trained.entry(peer.id).or_default();
        *present = peer.samples();
        if is_gone {
            *past += std::mem::take(present);
        }
    }

    /// After an event at `peer` in a run of `n` peers.
    pub(super) fn after(&mut self, peer: &Peer, n: usize) -> Result<(), String> {
        self.events += 1;
        if n <= SMALL || self.events.is_multiple_of(n as u64) {
            self.counted_once(peer)?;
        }
        if let Some(decision) = peer.closed {
            let digest = decision.map(|decision| decision.candidate.digest);
            if digest.is_some_and(|digest| !peer.holds(digest)) {
                return Err(format!(
                    "{} closed without the weights that were agreed",
                    peer.id.short()
                ));
            }
            self.closed.insert(digest);
            if self.closed.len() > 1 {
                return Err("two peers closed with different models".into());
            }
        }
        Ok(())
    }

    /// A lane holds no more than its bound.
    pub(super) fn lanes(waiting: [usize; 3], bounds: [usize; 3]) -> Result<(), String> {
        for (waits, bound) in waiting.iter().zip(bounds) {
            if *waits > bound {
                return Err(format!("{waits} frames wait in a lane of {bound}"));
            }
        }
        Ok(())
    }

    /// No sample is counted twice: nobody believes of a peer more than that peer trained.
    fn counted_once(&self, peer: &Peer) -> Result<(), String> {
        for (of, work) in peer.agreement.contributions() {
            let really = self.trained.get(&of).map_or(0, |parts| parts[0] + parts[1]);
            if work.samples > really {
                return Err(format!(
                    "{} counts {} samples of {}, which trained on {really}",
                    peer.id.short(),
                    work.samples,
                    of.short()
                ));
            }
        }
        Ok(())
    }

    /// At the end of a run whose last disturbance is long past: all that train hold one view.
    pub(super) fn agreed<'a>(peers: impl Iterator<Item = &'a Peer>) -> Result<(), String> {
        let mut views = BTreeSet::new();
        for peer in peers.filter(|peer| peer.closed.is_none()) {
            views.insert(peer.agreement.view().map(|view| view.stamp));
        }
        if views.len() > 1 {
            let names: Vec<String> = views
                .iter()
                .map(|stamp| match stamp {
                    Some(stamp) => format!("{} of {}", stamp.number, stamp.steward.short()),
                    None => "none".into(),
                })
                .collect();
            return Err(format!(
                "long after the last disturbance there are {} views: {}",
                views.len(),
                names.join(", ")
            ));
        }
        Ok(())
    }
}

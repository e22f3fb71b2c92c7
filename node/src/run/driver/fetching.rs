//! Fetches what the agreement wants: a replica to start from, or the decided weights.

use std::time::{Duration, Instant};

use skein_gossip::agreement::Input;
use skein_gossip::ids::Digest;
use skein_gossip::message::StateRequest;
use skein_gossip::view::View;
use skein_model::snapshot::Snapshot;

use super::super::journal::Entry;
use super::super::{fetch, start, threads};
use super::{Done, Driver, Fetching, RETRY_AFTER};

impl Driver {
    /// Peers that were given different weights do not begin together: the first view names those that count.
    pub(super) fn compare_weights(&mut self, view: &View) {
        let origin = view.origin.1;
        let is_first = view.stamp.number == 1 && origin.step == 0;
        if let Some(here) = self.given.filter(|here| is_first && *here != origin.digest) {
            self.fail(start::differ(here, origin.digest));
        }
    }

    /// The weights named `digest`, if they are offered or were fetched.
    pub(in super::super) fn weights(&self, digest: Digest) -> Option<&Snapshot> {
        let mut held = self.offered.iter().chain(&self.fetched);
        let found = held.find(|(held, _)| *held == digest);
        found.map(|(_, snapshot)| snapshot)
    }

    /// Begins a try to fetch what is wanted from whoever has it now.
    pub(super) fn try_fetch(&mut self) {
        self.retry_at = None;
        let now = self.now();
        let Some(threads) = &self.threads else { return };
        let job = self.context.id;
        let (holders, what, cap, partial) = match &mut self.fetching {
            Fetching::Nothing => return,
            Fetching::Replica { from_step, partial } => {
                let from_step = if threads.synchronous { *from_step } else { 0 };
                let what = StateRequest::Replica { job, from_step };
                (
                    self.agreement.donors(now),
                    what,
                    threads.replica_bytes,
                    partial.take(),
                )
            }
            Fetching::Weights { decision, partial } => {
                let digest = decision.candidate.digest;
                let what = StateRequest::Weights { job, digest };
                (
                    self.agreement.holders(now, digest),
                    what,
                    threads.weights_bytes,
                    partial.take(),
                )
            }
        };
        let (net, done, began) = (self.context.net.clone(), self.done.clone(), Instant::now());
        tokio::spawn(async move {
            let outcome =
                fetch::fetch(net, holders, what, cap, partial, fetch::Haste::Needed).await;
            let _ = done.send(Done::Fetched(outcome, began.elapsed())).await;
        });
    }

    pub(super) fn on_fetched(&mut self, outcome: fetch::Try, took: Duration) {
        let mut failures = outcome.failures;
        match (&mut self.fetching, outcome.done) {
            (Fetching::Nothing, _) => return,
            (Fetching::Replica { .. }, Some((manifest, bytes))) => {
                return threads::restore(self, manifest, bytes, took);
            }
            (Fetching::Weights { decision, .. }, Some((_, bytes))) => {
                let digest = decision.candidate.digest;
                let decoded = self
                    .threads
                    .as_ref()
                    .map(|threads| threads.decode_weights(&bytes));
                match decoded {
                    Some(Ok(snapshot)) if Digest(snapshot.weights_hash()) == digest => {
                        self.fetched = Some((digest, snapshot));
                        self.fetching = Fetching::Nothing;
                        return self.input(Input::Fetched(digest));
                    }
                    Some(Ok(_)) => failures.push("the weights do not have the agreed hash".into()),
                    Some(Err(error)) => failures.push(error),
                    None => return,
                }
            }
            (Fetching::Replica { partial, .. } | Fetching::Weights { partial, .. }, None) => {
                *partial = outcome.partial;
            }
        }
        if !failures.is_empty() {
            self.journal
                .write(&Entry::FetchFailed { reasons: &failures });
        }
        self.retry_at = Some(Instant::now() + RETRY_AFTER);
    }
}

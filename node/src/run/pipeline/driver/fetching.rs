//! Copies of blocks from and for other peers.

use std::ops::Range;
use std::sync::Arc;

use skein_gossip::message::{StateRequest, StateResponse};
use skein_gossip::pipeline::agreement::{Input, Want};
use skein_gossip::wire::codec;
use tokio::sync::oneshot;

use super::super::store::{self, State};
use super::{Done, Driver};
use crate::run::fetch::{self, Haste};
use crate::run::journal::Entry;

impl Driver {
    /// Fetches what the agreement wants. Copies of which nobody is in need come as fast as the link goes too: on the wire they yield to
    /// frames, and the sooner they are here the less a failure costs.
    pub(super) fn fetch(&mut self, want: Want) {
        let Some(running) = &self.running else { return };
        let facts = Arc::clone(&running.facts);
        let layouts =
            facts.blocks[usize::from(want.blocks.start)..usize::from(want.blocks.end)].to_vec();
        let undone = running.undone;
        let is_trusted = running.distrusted != Some((want.step, want.blocks.start));
        let have = is_trusted.then(|| running.copies.base(want.step, want.blocks.clone()));
        let have = have.flatten();
        let old: Vec<(u16, State)> = match have {
            Some(have) => want
                .blocks
                .clone()
                .filter_map(|block| Some((block, running.copies.get(have, block)?)))
                .collect(),
            None => Vec::new(),
        };
        let request = StateRequest::Blocks {
            job: self.context.id,
            first: want.blocks.start,
            end: want.blocks.end,
            step: want.step,
            have,
        };
        let (net, done, bound) = (
            self.context.net.clone(),
            self.done.clone(),
            store::parcel_bound(&layouts),
        );
        tokio::spawn(async move {
            let outcome = fetch::fetch(
                net,
                want.holders.clone(),
                request,
                bound,
                None,
                Haste::Needed,
            )
            .await;
            let outcome = match outcome.done {
                None => Err(outcome.failures.join("; ")),
                Some((_, parcel)) => {
                    let unpack = move || {
                        let old = |block| {
                            old.iter()
                                .find(|(held, _)| *held == block)
                                .map(|(_, state)| Arc::clone(state))
                        };
                        store::unpack(&parcel, &layouts, old).map_err(|error| error.to_string())
                    };
                    let unpacked = tokio::task::spawn_blocking(unpack).await;
                    unpacked.unwrap_or_else(|error| Err(error.to_string()))
                }
            };
            let _ = done.send(Done::Fetched(want, undone, outcome)).await;
        });
    }

    /// What was asked for when work had been undone `undone` times has come.
    pub(super) fn on_fetched(
        &mut self,
        want: Want,
        undone: u64,
        outcome: Result<Vec<(u16, State)>, String>,
    ) {
        let Some(running) = &mut self.running else {
            return;
        };
        let outcome = match undone == running.undone {
            true => outcome,
            false => Err("work was undone meanwhile".into()),
        };
        // A change against an older copy may not fit here where that step was made twice: next it comes whole.
        running.distrusted = outcome
            .is_err()
            .then_some((want.step, want.blocks.start))
            .filter(|_| !running.is_exact());
        match outcome {
            Ok(states) => {
                for (block, state) in states {
                    running.copies.put(want.step, block, state);
                }
                if want.is_urgent {
                    self.journal.write(&Entry::Fetched {
                        step: want.step,
                        first: want.blocks.start,
                        end: want.blocks.end,
                    });
                }
                self.input(Input::Copied {
                    step: want.step,
                    blocks: want.blocks,
                });
            }
            Err(reason) => {
                tracing::debug!(step = want.step, reason, "copies not fetched");
                self.journal
                    .write(&Entry::FetchFailed { reasons: &[reason] });
                self.input(Input::FetchFailed(want));
            }
        }
    }

    /// Packs the copies that a peer asks for.
    pub(super) fn give_blocks(
        &mut self,
        blocks: Range<u16>,
        step: u64,
        have: Option<u64>,
        reply: oneshot::Sender<Vec<u8>>,
    ) {
        let states: Option<Vec<(State, Option<State>)>> =
            self.running.as_ref().and_then(|running| {
                let n_blocks = running.facts.n_blocks();
                let state = |block: u16| {
                    let old = have.and_then(|have| running.copies.get(have, block));
                    Some((running.copies.get(step, block)?, old))
                };
                (blocks.start < blocks.end && blocks.end <= n_blocks)
                    .then(|| blocks.map(state).collect())?
            });
        let blobs = self.context.blobs.clone();
        tokio::task::spawn_blocking(move || {
            let answer = match states {
                Some(states) => StateResponse::Manifest(blobs.offer(store::pack(&states), step, 0)),
                None => {
                    StateResponse::Unavailable(format!("copies of step {step} are not held here"))
                }
            };
            let _ = reply.send(codec::encode(&answer));
        });
    }
}

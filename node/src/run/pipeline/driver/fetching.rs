//! Copies of blocks from and for other peers.

use std::ops::Range;
use std::sync::Arc;

use skein_gossip::ids::JobId;
use skein_gossip::message::{StateRequest, StateResponse};
use skein_gossip::pipeline::agreement::{Input, Want};
use skein_gossip::wire::codec;
use tokio::sync::{mpsc, oneshot};

use super::super::disk::{Kept, Lines, State};
use super::super::facts::Facts;
use super::super::parcel;
use super::{Done, Driver, Lack};
use crate::net::Net;
use crate::run::fetch::{self, Haste};
use crate::run::journal::Entry;

/// What is fetched, and what is known of it.
struct Errand {
    net: Net,
    job: JobId,
    facts: Arc<Facts>,
    want: Want,
    /// Copies held of an older step, that changes can be against.
    have: Option<u64>,
    old: Vec<(u16, Kept)>,
    /// How often work had been undone when it was asked for.
    undone: u64,
}

impl Errand {
    /// Fetches some blocks of what is wanted. Copies of which nobody is in need come as fast as the link goes too: on the wire they yield
    /// to frames, and the sooner they are here the less a failure costs; but whole lines take their time.
    async fn fetch(&self, blocks: Range<u16>) -> Result<Vec<(u16, State)>, Lack> {
        let range = usize::from(blocks.start)..usize::from(blocks.end);
        let layouts = self.facts.blocks.get(range).unwrap_or_default().to_vec();
        let request = StateRequest::Blocks {
            job: self.job,
            first: blocks.start,
            end: blocks.end,
            step: self.want.step,
            have: self.have,
        };
        let haste = match self.want.is_global {
            true => Haste::Background,
            false => Haste::Needed,
        };
        let bound = parcel::bound(&layouts);
        let holders = self.want.holders.clone();
        let outcome = fetch::fetch(self.net.clone(), holders, request, bound, None, haste).await;
        let Some((_, bytes)) = outcome.done else {
            return Err(Lack::Holders(outcome.failures.join("; ")));
        };
        let (old, facts) = (self.old.clone(), Arc::clone(&self.facts));
        let unpack = move || {
            let old = |block: u16| {
                let (_, kept) = old.iter().find(|(held, _)| *held == block)?;
                kept.load(facts.blocks.get(usize::from(block))?).ok()
            };
            parcel::unpack(&bytes, &layouts, old).map_err(|error| error.to_string())
        };
        let unpacked = tokio::task::spawn_blocking(unpack).await;
        unpacked
            .unwrap_or_else(|error| Err(error.to_string()))
            .map_err(Lack::Holders)
    }

    /// Fetches all that is wanted, block by block, to the disk.
    async fn fetch_to_disk(
        &self,
        lines: &Lines,
        done: &mpsc::Sender<Done>,
    ) -> Result<Vec<(u16, State)>, Lack> {
        let (step, undone) = (self.want.step, self.undone);
        for block in self.want.blocks.clone() {
            for (block, state) in self.fetch(block..block + 1).await? {
                let lines = lines.clone();
                let write = move || lines.write(step, block, &state);
                let written = tokio::task::spawn_blocking(write).await;
                let path = written
                    .map_err(|error| Lack::Disk(error.to_string()))?
                    .map_err(|error| Lack::Disk(error.to_string()))?;
                let on_disk = Done::OnDisk {
                    step,
                    block,
                    path,
                    undone,
                };
                let _ = done.send(on_disk).await;
            }
        }
        Ok(Vec::new())
    }
}

impl Driver {
    /// Fetches what the agreement wants: all at once, or, where it goes to disk, block by block.
    pub(super) fn fetch(&mut self, want: Want) {
        let to_disk = self.goes_to_disk(&want);
        let Some(running) = &mut self.running else {
            return;
        };
        if to_disk {
            running.to_disk = Some(want.step);
        }
        let running = &*running;
        // What many fetch is packed once: whole. So is what could not be had as a change.
        let is_whole = want.is_global || running.distrusted == Some((want.step, want.blocks.start));
        let have = match is_whole {
            true => None,
            false => running.copies.base(want.step, want.blocks.clone()),
        };
        let blocks = want.blocks.clone();
        let old = have.into_iter().flat_map(|have| {
            let of = move |block: u16| Some((block, running.copies.get(have, block)?));
            blocks.clone().filter_map(of)
        });
        let errand = Errand {
            net: self.context.net.clone(),
            job: self.context.id,
            facts: Arc::clone(&running.facts),
            have,
            old: old.collect(),
            undone: running.undone,
            want,
        };
        let (done, lines) = (self.done.clone(), running.lines.clone());
        let one_block = Arc::clone(&running.one_block);
        tokio::spawn(async move {
            let outcome = match to_disk {
                true => {
                    let _turn = one_block.acquire().await;
                    errand.fetch_to_disk(&lines, &done).await
                }
                false => errand.fetch(errand.want.blocks.clone()).await,
            };
            let (want, undone) = (errand.want, errand.undone);
            let _ = done.send(Done::Fetched(want, undone, outcome)).await;
        });
    }

    /// What was asked for when work had been undone `undone` times has come.
    pub(super) fn on_fetched(
        &mut self,
        want: Want,
        undone: u64,
        outcome: Result<Vec<(u16, State)>, Lack>,
    ) {
        let to_disk = outcome.as_ref().is_ok_and(Vec::is_empty);
        let Some(running) = &mut self.running else {
            return;
        };
        let outcome = match undone == running.undone {
            true => outcome,
            false => Err(Lack::Holders("work was undone meanwhile".into())),
        };
        // A change against an older copy may not fit here where that step was made twice: next it comes whole.
        running.distrusted = outcome
            .is_err()
            .then_some((want.step, want.blocks.start))
            .filter(|_| !running.is_exact());
        let reason = match outcome {
            Ok(states) => {
                for (block, state) in states {
                    running.copies.put(want.step, block, Kept::Memory(state));
                }
                if want.is_urgent {
                    self.journal.write(&Entry::Fetched {
                        step: want.step,
                        first: want.blocks.start,
                        end: want.blocks.end,
                        to_disk,
                    });
                }
                let held = want.blocks.clone();
                let is_held = |block| running.copies.get(want.step, block).is_some();
                return match held.clone().all(is_held) {
                    true => self.input(Input::Copied {
                        step: want.step,
                        blocks: want.blocks,
                    }),
                    // What came was of no use any more.
                    false => self.input(Input::FetchFailed(want)),
                };
            }
            Err(Lack::Holders(reason)) => reason,
            Err(Lack::Disk(reason)) if want.is_global => {
                self.has_no_room(&reason);
                reason
            }
            Err(Lack::Disk(reason)) => {
                return self.fail(format!(
                    "neither the memory that this peer may use nor its disk takes the finished model ({reason}): what is here is kept"
                ));
            }
        };
        tracing::debug!(step = want.step, reason, "copies not fetched");
        self.journal
            .write(&Entry::FetchFailed { reasons: &[reason] });
        self.input(Input::FetchFailed(want));
    }

    /// Packs the copies that a peer asks for.
    pub(super) fn give_blocks(
        &mut self,
        blocks: Range<u16>,
        step: u64,
        have: Option<u64>,
        reply: oneshot::Sender<Vec<u8>>,
    ) {
        let copies: Option<Vec<(Kept, Option<Kept>)>> = self.running.as_ref().and_then(|running| {
            let n_blocks = running.facts.n_blocks();
            let copy = |block: u16| {
                let old = have.and_then(|have| running.copies.get(have, block));
                Some((running.copies.get(step, block)?, old))
            };
            (blocks.start < blocks.end && blocks.end <= n_blocks)
                .then(|| blocks.clone().map(copy).collect())?
        });
        let blobs = self.context.blobs.clone();
        let facts = self
            .running
            .as_ref()
            .map(|running| Arc::clone(&running.facts));
        tokio::task::spawn_blocking(move || {
            let range = usize::from(blocks.start)..usize::from(blocks.end);
            let layouts = facts.as_ref().and_then(|facts| facts.blocks.get(range));
            let packed = match copies.zip(layouts) {
                Some((copies, layouts)) => parcel::pack(&copies, layouts),
                None => Err(format!("copies of step {step} are not held here")),
            };
            let answer = match packed {
                Ok(parcel) => StateResponse::Manifest(blobs.offer(parcel, step, 0)),
                Err(reason) => StateResponse::Unavailable(reason),
            };
            let _ = reply.send(codec::encode(&answer));
        });
    }
}

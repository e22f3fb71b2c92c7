//! Which copies are kept, and where: what is of use at any moment in memory, whole lines and the newest safe one on disk.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use skein_gossip::pipeline::agreement::{Input, Want};
use skein_gossip::pipeline::copies::Held;
use tokio::sync::oneshot;

use super::super::disk::Kept;
use super::{Done, Driver, Running};
use crate::control::Hex;
use crate::job::Every;
use crate::run::journal::Entry;

/// How long leaving waits for the newest copies to be written.
const LAST_SAVE: Duration = Duration::from_millis(1200);
/// Whole lines that the disk must take: the one kept, the one that is collected, and the safe one of every checkpoint.
const ROOM_LINES: u64 = 3;
/// Pause before a disk that had no room is looked at again.
const ROOM_AGAIN: Duration = Duration::from_secs(60);

impl Running {
    /// Steps of which something is to stay on disk, whatever else goes.
    fn kept_on_disk(&self) -> Vec<u64> {
        let longer = self.held_longer.iter().copied();
        let kept = longer.chain(self.copies.on_disk());
        kept.chain(self.to_disk).collect()
    }
}

impl Driver {
    /// Drops copies older than `before`, but for those named; these go to disk.
    pub(super) fn forget(&mut self, before: u64, but: &[Held]) {
        let Some(running) = &mut self.running else {
            return;
        };
        running.copies.forget(before, but);
        running.held_longer = but.iter().map(|held| held.step).collect();
        if std::mem::replace(&mut running.resting, true) {
            return;
        }
        let resting = running.copies.resting(before);
        let (lines, done) = (running.lines.clone(), self.done.clone());
        let (on_disk, kept) = (running.on_disk, running.kept_on_disk());
        let undone = running.undone;
        tokio::task::spawn_blocking(move || {
            let rest = || {
                for (step, block, state) in resting {
                    let path = lines.write(step, block, &state)?;
                    let _ = done.blocking_send(Done::OnDisk {
                        step,
                        block,
                        path,
                        undone,
                    });
                }
                lines.prune(on_disk, &kept)
            };
            let rested = rest().map_err(|error| error.to_string());
            let _ = done.blocking_send(Done::Rested(rested));
        });
    }

    /// A copy is on disk now. It is of no use where work was undone since it was `undone` times.
    pub(super) fn on_disk(&mut self, step: u64, block: u16, path: PathBuf, undone: u64) {
        let running = self.running.as_mut();
        let Some(running) = running.filter(|running| running.undone == undone) else {
            return;
        };
        if running.copies.get(step, block).is_some() {
            return running.copies.rests_at(step, block, path);
        }
        if running.agreement.is_of_use(step, block) {
            running.copies.put(step, block, Kept::Disk(path));
            let blocks = block..block.saturating_add(1);
            self.input(Input::Copied { step, blocks });
        }
    }

    pub(super) fn on_rested(&mut self, outcome: Result<(), String>) {
        if let Some(running) = &mut self.running {
            running.resting = false;
        }
        if let Err(reason) = outcome {
            tracing::warn!(job = %self.context.id.short(), reason, "older copies stay in memory: the disk does not take them");
        }
    }

    /// Whether copies of this want go to disk as they come: parts of whole lines, and the finished model where memory is short.
    pub(super) fn goes_to_disk(&self, want: &Want) -> bool {
        let Some(running) = &self.running else {
            return false;
        };
        want.is_global || (running.agreement.last_step() == Some(want.step) && !self.has_memory())
    }

    /// Whether all blocks of a line fit into the memory that this peer may use, beside what its stage and its copies take.
    fn has_memory(&self) -> bool {
        let (Some(running), limit) = (&self.running, self.context.memory) else {
            return false;
        };
        let me = Hex(self.context.net.local());
        let planned = self.figures.plan.as_ref().ok();
        let stages = planned.iter().flat_map(|plan| &plan.stages);
        let hosts = stages.flat_map(|stage| {
            let fellows = stage.fellows.iter();
            let fellows = fellows.map(|fellow| (fellow.host, fellow.memory_bytes));
            fellows.chain([(stage.host, stage.memory_bytes)])
        });
        let own = hosts.filter(|(host, _)| *host == me);
        let used = own.map(|(_, bytes)| bytes).fold(0, u64::saturating_add);
        let used = used.max(running.copies.bytes());
        limit == 0 || limit >= used.saturating_add(running.facts.bytes())
    }

    /// Looks whether the disk takes whole lines.
    pub(super) fn look_for_room(&mut self) {
        let Some(running) = &mut self.running else {
            return;
        };
        let is_due = |(at, has_room): (Instant, bool)| !has_room && at.elapsed() >= ROOM_AGAIN;
        if !running.room.is_none_or(is_due) || running.facts.pipeline.global_every == Some(0) {
            return;
        }
        let needed = ROOM_LINES.saturating_mul(running.facts.bytes());
        let free = fs4::available_space(self.context.folder.path());
        let has_room = free.is_ok_and(|free| free >= needed);
        running.room = Some((Instant::now(), has_room));
        self.input(Input::Room(has_room));
    }

    /// The disk refused a part of a whole line: what is there is kept, and no more is asked for.
    pub(super) fn has_no_room(&mut self, reason: &str) {
        tracing::warn!(job = %self.context.id.short(), reason, "the disk takes no whole line");
        if let Some(running) = &mut self.running {
            running.room = Some((Instant::now(), false));
        }
        self.input(Input::Room(false));
    }

    /// Writes the newest safe line to disk when it is time.
    pub(super) fn save_if_due(&mut self) {
        let every = self.context.file.checkpoint.every;
        let Some(running) = &mut self.running else {
            return;
        };
        let safe = running.agreement.safe();
        let (at, last) = running.saved;
        let is_due = match every {
            Every::Time(every) => at.elapsed() >= every,
            Every::Steps(every) => safe >= last + every,
        };
        if !is_due || running.saving || safe <= last || self.closed {
            return;
        }
        running.saving = true;
        running.saved = (Instant::now(), safe);
        let (copies, lines, done) = (
            running.copies.line(safe),
            running.lines.clone(),
            self.done.clone(),
        );
        let kept = running.kept_on_disk();
        let is_exact = running.is_exact();
        tokio::task::spawn_blocking(move || {
            let save = || {
                lines.save(safe, &copies)?;
                lines.prune(safe, &kept)?;
                if !is_exact {
                    lines.undo(safe, &kept)?;
                }
                Ok(safe)
            };
            let saved = save().map_err(|error: io::Error| error.to_string());
            let _ = done.blocking_send(Done::Saved(saved));
        });
    }

    pub(super) fn on_saved(&mut self, outcome: Result<u64, String>) {
        if let Some(running) = &mut self.running {
            running.saving = false;
            // What was undone meanwhile does not count.
            let (_, saved) = running.saved;
            if let Some(step) = outcome.as_ref().ok().filter(|step| **step <= saved) {
                running.on_disk = running.on_disk.max(*step);
            }
        }
        match outcome {
            Ok(step) => self.journal.write(&Entry::Checkpoint { step }),
            Err(reason) => {
                tracing::error!(job = %self.context.id.short(), reason, "copies not written");
                self.journal
                    .write(&Entry::CheckpointFailed { reason: &reason });
            }
        }
    }

    /// Writes the newest line that others may need, if it can be done in time.
    pub(super) async fn save_and_wait(&mut self) {
        let Some(running) = self.running.as_ref().filter(|_| !self.closed) else {
            return;
        };
        let safe = running.agreement.safe();
        if safe <= running.saved.1 {
            return;
        }
        let (copies, lines) = (running.copies.line(safe), running.lines.clone());
        let (reply, saved) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            let _ = reply.send(lines.save(safe, &copies));
        });
        match tokio::time::timeout(LAST_SAVE, saved).await {
            Ok(Ok(Ok(()))) => tracing::info!(step = safe, "copies written"),
            Ok(Ok(Err(error))) => tracing::error!(%error, "copies not written"),
            _ => tracing::warn!("no time to write copies; those of before count"),
        }
    }
}

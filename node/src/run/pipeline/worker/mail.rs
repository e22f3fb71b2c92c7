//! Frames from this peer's stages: to other peers by their queues, to each other at once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use skein_gossip::ids::PeerId;
use tokio::sync::mpsc;

use super::super::outbox::Outbox;
use super::{Command, Stop, Worker};

/// What is under way in one view. Dropping it drops what was not sent.
#[derive(Debug)]
pub(in crate::run::pipeline) struct Mail {
    outbox: Outbox,
    /// Told when frames were lost.
    pub(super) lost: mpsc::Receiver<()>,
    /// From stage to stage of this peer, not taken yet.
    pub(super) own: VecDeque<Vec<u8>>,
}

impl Mail {
    pub(super) fn new(worker: &Worker) -> Self {
        // One notice of a loss is enough.
        let (lost_sender, lost) = mpsc::channel(1);
        Self {
            outbox: Outbox::new(worker.net.clone(), worker.runtime.clone(), lost_sender),
            lost,
            own: VecDeque::new(),
        }
    }
}

impl Worker {
    /// Sends a frame; waits for room, and lets the driver interrupt that. Returns how long it waited.
    pub(super) fn send(&mut self, to: PeerId, frame: Vec<u8>) -> Result<Duration, Stop> {
        let Some(mail) = &mut self.mail else {
            return Err(Stop::Interrupted);
        };
        if to == self.me {
            mail.own.push_back(frame);
            return Ok(Duration::ZERO);
        }
        let queue = mail.outbox.queue(to);
        let began = Instant::now();
        let permit = match queue.try_reserve() {
            Ok(permit) => permit,
            Err(_) => futures::executor::block_on(self.room(&queue))?,
        };
        permit.send(frame);
        Ok(began.elapsed())
    }

    /// Waits for room in a queue.
    async fn room<'a>(
        &mut self,
        queue: &'a mpsc::Sender<Vec<u8>>,
    ) -> Result<mpsc::Permit<'a, Vec<u8>>, Stop> {
        let Some(mail) = &mut self.mail else {
            return Err(Stop::Interrupted);
        };
        loop {
            tokio::select! {
                biased;
                permit = queue.reserve() => return permit.map_err(|_| Stop::Broken),
                _ = mail.lost.recv() => return Err(Stop::Broken),
                command = self.commands.recv() => {
                    let Some(command) = command else { return Err(Stop::End) };
                    let ends = matches!(command, Command::Halt | Command::Switch { .. } | Command::End);
                    self.postponed.push_back(command);
                    if ends {
                        return Err(Stop::Interrupted);
                    }
                }
            }
        }
    }
}

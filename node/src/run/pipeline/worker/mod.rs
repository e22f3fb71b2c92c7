//! The thread of this peer's stages: the only owner of their tensors. It does what the [`Flow`] of each says as fast as micro-batches come.
//!
//! In: frames of neighbouring stages and [`Command`]s of the driver. Out: frames to neighbours, [`Event`]s to the driver.

mod rest;
mod speed;
mod hosted;
mod mail;
mod work;
mod adding;
mod samples;
mod compute;
mod look;
mod stages;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_gossip::ids::{JobId, PeerId};
use skein_gossip::pipeline::frame::Head;
use skein_gossip::pipeline::message::{Judged, Profile, View};
use skein_gossip::view::Stamp;
use skein_model::data::Splits;
use tokio::sync::mpsc;

use super::disk::{Kept, State};
use super::facts::Facts;
use super::processor::{Clocks, Processor};
use crate::net::Inbound;
use crate::net::Net;
use mail::Mail;
use stages::Stages;

/// Commands that wait for the thread; the driver sends a handful per view.
pub(super) const COMMANDS: usize = 64;
/// Frames that wait for the thread. More than the micro-batches of two steps can make, so that a stage that waits for room in
/// its own outbox holds up nobody.
pub(super) const FRAMES: usize = 1024;
/// Events that wait for the driver; when it is full, the stage waits.
pub(super) const EVENTS: usize = 256;

/// What the driver asks for.
#[derive(Debug)]
pub(super) enum Command {
    /// Work in this view, from these states (none: from the job's seed).
    Switch {
        view: Arc<View>,
        states: Option<Vec<(u16, Kept)>>,
    },
    /// The view that follows begins at this step.
    Until { next: Stamp, step: u64 },
    /// What is done is of no use any more.
    Halt,
    /// All hosts are in place.
    Feed { until: Option<u64> },
    /// The newest line with enough copies.
    Safe(u64),
    /// Say which step is the last.
    ChooseLastStep,
    /// The thread ends.
    End,
}

/// What the thread reports.
#[derive(Debug)]
pub(super) enum Event {
    InPlace(Stamp),
    /// The step at which this view begins cannot be made a line any more, or frames of it were lost.
    Broken(Stamp),
    Stepped(Step),
    /// A copy of the own blocks at a line.
    Copied {
        /// In which it was made.
        view: Stamp,
        step: u64,
        states: Vec<(u16, State)>,
    },
    Judged(Judged),
    LastStep(u64),
    Refused {
        peer: PeerId,
        reason: String,
    },
    Failed(String),
}

/// One step of the own stages.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) step: u64,
    /// Number of the view it was made in.
    pub(super) view: u64,
    /// Mean loss of its samples, where this peer hosts the last stage.
    pub(super) loss: Option<f32>,
    pub(super) samples: u64,
    pub(super) computing: Duration,
    pub(super) waiting: Duration,
    /// By how much blocks take longer than profiled.
    pub(super) slowdown: Option<f32>,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) processor: Clocks,
}

/// The thread before it runs.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) job: JobId,
    pub(super) me: PeerId,
    pub(super) facts: Arc<Facts>,
    pub(super) data: Option<Arc<Splits>>,
    /// What blocks take this device.
    pub(super) profile: Profile,
    pub(super) processor: Processor,
    /// Steps between two looks at held-out samples; none: as often as takes a twentieth of the time.
    pub(super) look_every: Option<u64>,
    pub(super) net: Net,
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) frames: mpsc::Receiver<Inbound>,
    pub(super) events: mpsc::Sender<Event>,
    /// Commands that came while the thread waited for room.
    pub(super) postponed: VecDeque<Command>,
    /// To the hosts of the view in which it works.
    pub(super) mail: Option<Mail>,
}

/// Why the thread stops what it is at.
enum Stop {
    /// The driver is gone, or says so.
    End,
    /// The view cannot be finished.
    Broken,
    /// A command ends the work at hand; it is postponed for the next turn.
    Interrupted,
    /// No view can be: training diverged, or memory is short.
    Failed(String),
}

/// What woke the thread.
enum Woken {
    Command(Option<Command>),
    Frame(Option<Inbound>),
    Lost,
}

impl Worker {
    /// Runs until the driver says so or is gone.
    pub(super) fn run(mut self) {
        let mut work: Option<Stages> = None;
        loop {
            let turn = self.turn(&mut work);
            match turn {
                Ok(()) | Err(Stop::Interrupted) => {}
                Err(Stop::End) => return,
                Err(Stop::Broken) => {
                    if let Some(work) = &mut work
                        && !std::mem::replace(&mut work.is_broken, true)
                        && self
                            .events
                            .blocking_send(Event::Broken(work.view.stamp))
                            .is_err()
                    {
                        return;
                    }
                }
                Err(Stop::Failed(reason)) => {
                    (work, self.mail) = (None, None);
                    if self.events.blocking_send(Event::Failed(reason)).is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Takes what has come, then does one thing, or waits.
    fn turn(&mut self, work: &mut Option<Stages>) -> Result<(), Stop> {
        while let Some(command) = self.postponed.pop_front() {
            self.obey(command, work)?;
        }
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.obey(command, work)?,
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => return Err(Stop::End),
            }
        }
        while let Ok(packet) = self.frames.try_recv() {
            self.take(packet.from, packet.body, work);
        }
        while let Some(frame) = self.mail.as_mut().and_then(|mail| mail.own.pop_front()) {
            self.take(self.me, frame, work);
        }
        if let Some(work) = work
            && !work.is_broken
            && work.proceed(self)?
        {
            return Ok(());
        }
        let idle = Instant::now();
        let woken = self.wait(work);
        if let Some(work) = work {
            work.waited(idle.elapsed());
        }
        match woken {
            Woken::Command(Some(command)) => self.obey(command, work),
            Woken::Command(None) | Woken::Frame(None) => Err(Stop::End),
            Woken::Frame(Some(packet)) => {
                self.take(packet.from, packet.body, work);
                Ok(())
            }
            Woken::Lost => Err(Stop::Broken),
        }
    }

    fn wait(&mut self, work: &Option<Stages>) -> Woken {
        let is_whole = work.as_ref().is_some_and(|work| !work.is_broken);
        let mail = self.mail.as_mut().filter(|_| is_whole);
        let lost = async {
            match mail {
                // Its sender lives as long as the outbox.
                Some(mail) => mail.lost.recv().await,
                None => std::future::pending().await,
            }
        };
        let (commands, frames) = (&mut self.commands, &mut self.frames);
        futures::executor::block_on(async {
            tokio::select! {
                biased;
                command = commands.recv() => Woken::Command(command),
                frame = frames.recv() => Woken::Frame(frame),
                _ = lost => Woken::Lost,
            }
        })
    }

    fn obey(&mut self, command: Command, work: &mut Option<Stages>) -> Result<(), Stop> {
        match (command, work.as_mut()) {
            (Command::Switch { view, states }, _) => {
                *work = None;
                let stamp = view.stamp;
                *work = Some(Stages::begin(self, view, states).map_err(Stop::Failed)?);
                self.mail = Some(Mail::new(self));
                self.tell(Event::InPlace(stamp))
            }
            (Command::Halt, _) => {
                (*work, self.mail) = (None, None);
                Ok(())
            }
            (Command::End, _) => Err(Stop::End),
            (Command::Until { next, step }, Some(work)) => {
                if let Some(lead) = work.lead()
                    && !lead.flow.set_until(step)
                {
                    return self.tell(Event::Broken(next));
                }
                Ok(())
            }
            (Command::Feed { until }, Some(work)) => {
                let Some(lead) = work.lead() else {
                    return Ok(());
                };
                lead.last = until;
                // A view that begins at the last step has nothing to do.
                if let Some(until) = until
                    && !lead.flow.set_until(until)
                {
                    tracing::debug!(until, "the last step is made");
                    return Ok(());
                }
                lead.flow.feed();
                Ok(())
            }
            (Command::Safe(step), Some(work)) => {
                work.copies_made(step, self);
                Ok(())
            }
            (Command::ChooseLastStep, Some(work)) => {
                let Some(lead) = work.lead() else {
                    return Ok(());
                };
                let last = lead.flow.first_free();
                if lead.flow.set_until(last) {
                    lead.last = Some(last);
                    return self.tell(Event::LastStep(last));
                }
                Ok(())
            }
            (_, None) => Ok(()),
        }
    }

    /// Sorts a frame in; what does not belong is dropped.
    fn take(&mut self, from: PeerId, bytes: Vec<u8>, work: &mut Option<Stages>) {
        let Some(work) = work else { return };
        let refused = match Head::read(&bytes) {
            Ok(head) if head.view != work.key => return,
            Ok(head) => match work.arrive(from, &head, bytes) {
                Ok(()) => return,
                Err(reason) => reason,
            },
            Err(error) => error.to_string(),
        };
        // The driver counts them; one that does not fit its queue is a count less.
        let _ = self.events.try_send(Event::Refused {
            peer: from,
            reason: refused,
        });
    }

    fn tell(&self, event: Event) -> Result<(), Stop> {
        self.events.blocking_send(event).map_err(|_| Stop::End)
    }
}

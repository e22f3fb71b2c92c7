//! A job on this peer, from the signed file to the agreed model.
//!
//! ```text
//! mesh ─ Event ─▶ driver ⇄ Agreement            trainer (own thread) ─ gradient ─▶ coder (own thread) ─▶ lanes
//!                   │  └─ Command ──────────────▶   ▲                                 │    ▲
//!                   └──── View, Applied ───────────────────────────────────────────▶ │    └── packets of others
//!                                                   └────────── merged gradients ─────┘
//! ```
//!
//! Modules in reading order, lowest first.

pub mod folder;
pub mod journal;
pub mod blobs;
pub mod fetch;
pub mod coder;
pub mod trainer;
mod start;
mod prepare;
pub mod driver;
mod status;
mod threads;
pub mod serve;
mod pipeline;

use skein_gossip::ids::JobId;
use tokio::sync::{mpsc, watch};

use crate::control::JobStatus;
use crate::net::Inbound;
use driver::{Event, JobContext};

/// How the reason of a job begins that a user stopped.
pub const STOPPED_BY: &str = "stopped by ";

/// A running job, for the mesh.
#[derive(Debug)]
pub struct JobHandle {
    /// The job.
    pub id: JobId,
    /// To its driver.
    pub events: mpsc::Sender<Event>,
    /// Where frames of the update lanes go, past the driver.
    pub packets: Packets,
    /// How it stands.
    pub status: watch::Receiver<JobStatus>,
}

/// Who takes a job's frames.
#[derive(Clone, Debug)]
pub enum Packets {
    /// The coder of a job that exchanges updates.
    Coder(mpsc::Sender<coder::Input>),
    /// The stage of a pipeline.
    Stage(mpsc::Sender<Inbound>),
}

/// Starts a job's driver.
pub fn start(context: JobContext) -> JobHandle {
    if context.file.strategy.kind.has_stages() {
        return pipeline::start(context);
    }
    let id = context.id;
    let (events, event_queue) = mpsc::channel(driver::EVENTS);
    let coder = mpsc::channel(coder::INPUTS);
    let packets = Packets::Coder(coder.0.clone());
    let (status_sender, status) = watch::channel(driver::first_status(&context));
    tokio::spawn(driver::run(context, event_queue, coder, status_sender));
    JobHandle {
        id,
        events,
        packets,
        status,
    }
}

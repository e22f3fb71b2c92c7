//! A job whose model is cut into stages: from the signed file to the finished model.
//!
//! ```text
//! mesh ─ Event ─▶ driver ⇄ Agreement        worker (own thread): Flow ⇄ Stage ─▶ outbox ─▶ next stage
//!                   │  └─ Command ─────────▶   ▲ frames of neighbours     │
//!                   └── copies of blocks ◀─────┴──────── Copied ──────────┘
//! ```
//!
//! Modules in reading order, lowest first.

mod facts;
mod disk;
mod store;
mod parcel;
mod links;
mod times;
mod tiers;
mod hybrid;
mod planner;
mod processor;
mod prepare;
mod outbox;
mod worker;
mod figures;
mod driver;
mod finish;

use tokio::sync::{mpsc, watch};

use super::driver::JobContext;
use super::{JobHandle, Packets};

/// Starts a pipeline job's driver.
pub(super) fn start(context: JobContext) -> JobHandle {
    let id = context.id;
    let (events, event_queue) = mpsc::channel(super::driver::EVENTS);
    let (frames, frame_queue) = mpsc::channel(worker::FRAMES);
    let (status_sender, status) = watch::channel(driver::first_status(&context));
    tokio::spawn(driver::run(
        context,
        event_queue,
        frame_queue,
        status_sender,
    ));
    JobHandle {
        id,
        events,
        packets: Packets::Stage(frames),
        status,
    }
}

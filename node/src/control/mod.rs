//! The control socket: how the command line of this machine talks to the `skein up` running on it.
//!
//! ```text
//! skein status ─ client ─ {"v":1,"command":"status"}\n ─▶ server ─ (Request, Reply) ─▶ driver
//!                       ◀─ {"v":1,"kind":"status",…}\n ─        ◀─ Response ─────────
//! ```
//!
//! One request per connection, one JSON object per line; `watch` answers with many lines, all others with one. The
//! socket is `control.sock` in the home folder, mode 0600: whoever may open it may do everything.

mod hex;
mod stages;
pub mod status;
mod peers;
mod report;
pub mod protocol;
pub mod lines;
pub mod socket;
pub mod server;
pub mod client;

pub use client::{Client, ClientError};
pub use protocol::{ErrorCode, Failure, Request, RequestError, Response};
pub use report::{CandidateReport, LossReport, PlanReport, StandbyReport};
pub use server::{Incoming, Reply, Server};
pub use stages::{
    LinkKnown, Measured, NO_CUT, PlanStatus, PlannedFellow, PlannedLink, PlannedStage, Recovery,
    StageStatus,
};
pub use status::{
    Best, Contribution, Hex, JobStatus, Lessons, LinkStatus, NodeFacts, PeerState, PeerStatus,
    Phase, Status,
};

#[cfg(test)]
mod tests;

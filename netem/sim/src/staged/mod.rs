//! Jobs with stages in virtual time: `kind = "pipeline"` and `"hybrid"`.
//!
//! ```text
//! profile (measured once, or a file) ─┐
//! scenario: shares, memory, lines ────┴> Posed ─> the node's planners ─> Cut: plan, seconds of a step
//!    run: steps, lines of copies, losses ─> recovering: who fetches what from whom ─> record
//! ```
//!
//! Nothing is trained and nothing is sent: a step takes what the planner's schedule says, event by event, and a loss what it takes to see
//! it, to plan, to fetch copies over the scenario's lines, and to make steps again.

mod refused;
mod profile;
mod posed;
mod carrying;
mod copies;
mod journal;
mod recovering;
mod run;

pub(super) use profile::measure;
pub(super) use run::run;

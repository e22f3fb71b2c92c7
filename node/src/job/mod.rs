//! The job: what one training run is, as a file that a user writes and as a signed text that peers pass on.
//!
//! `document` reads TOML and remembers where each key stood, `error` shows a fault beside its line, `file` and `strategy` hold the
//! keys with their meaning, `check` refuses impossible values, `signed` is what travels.

pub mod error;
mod document;
pub mod strategy;
pub mod file;
mod every;
mod check;
pub mod signed;

pub use error::{Fault, JobError};
pub use file::{Every, JobFile, Start, Stop};
pub use signed::{SignedJob, SignedJobError};

#[cfg(test)]
mod tests;

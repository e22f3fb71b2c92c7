//! The command `skein-netem`: scenarios in, verdicts and reports out, whichever engine runs them.
//!
//! Modules in reading order, lowest first.

pub mod engine;
pub mod cli;

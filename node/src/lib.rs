//! The node: what joins peers (`skein_gossip`) and training (`skein_model`) into one program.
//!
//! Modules in reading order, lowest first; a module imports only from those above it.

pub mod process;
pub mod nearest;
pub mod net;
pub mod token;
pub mod home;
pub mod job;
pub mod planning;
pub mod control;
pub mod cli;
pub mod run;
pub mod mesh;

//! The testbed: networks of limited links and unequal devices on one Linux box, for any program.
//!
//! One [`scenario`] file, two engines: the lab runs real processes in namespaces, the simulator runs the state machines of
//! `skein_gossip` under a virtual clock. Both move every frame through the one model in [`link`], and both leave a
//! [`record`] that the reports are made from.
//!
//! Modules in reading order, lowest first; a module imports only from those above it.

pub mod link;
pub mod scenario;
pub mod record;
mod priority;
pub mod probe;
pub mod lab;
pub mod report;

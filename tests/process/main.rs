//! Whole-system tests: real `skein` processes on loopback find each other, train, and lose each other. Each test waits
//! for typed events of the journals or for answers of the control sockets, with a deadline that only a fault reaches.
//!
//! The binary has to be there: `cargo build -p skein-node` (`./run test` does it). One test runs at a time, whatever the
//! number of test threads.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod away;
mod continual;
mod faults;
mod joining;
mod hybrid;
mod kills;
mod methods;
mod pipeline;
mod planning;
mod restart;
mod same_loss;
mod tiers;
mod training;
mod users;

//! Simulated peers agree on a job under delays, kills, pauses and partitions; every case prints its seed on failure.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod batching;
mod cuts;
mod large;
mod network;
mod small;
mod world;

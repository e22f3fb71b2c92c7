//! Kill points of the pipeline: simulated peers train a model of numbers in virtual time, under kills, freezes, partitions and
//! lost messages, and must end with what a computation without any network gives, bit by bit.
//!
//! `SKEIN_TEST_SEEDS=20` runs twenty times as many seeds as by default, `SKEIN_TEST_SEED=7` seed 7 alone, and
//! `SKEIN_TEST_TRACE=1` writes what happens.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod alarms;
mod asynchronous;
mod copies;
mod ending;
mod faults;
mod global;
mod kills;
mod maths;
mod network;
mod planner;
mod recut;
mod restart;
mod shared;
mod takeover;
mod tiers;
mod world;

/// The seeds of a scenario that has `default` of them.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|n| n.parse::<u64>().unwrap());
    match number("SKEIN_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..default * number("SKEIN_TEST_SEEDS").unwrap_or(1),
    }
}

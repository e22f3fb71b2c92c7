//! Weighted dynamic batching (DLion's first technique: Hong & Chandra, HPDC 2021): every peer trains on as many samples
//! per step as its device can, so that all need the same time.
//!
//! In: how long steps took, what the members said of themselves, samples trained so far. Out: a fit per peer
//! ([`power`]), the global batch and the learning rate's factor ([`controller`]), each member's micro-batch
//! ([`shares`]), and when new ones are worth proposing ([`rebalance`]). Everything is a pure function or a plain
//! struct; who proposes and how members agree is decided elsewhere.

pub mod power;
pub mod shares;
pub mod controller;
pub mod rebalance;

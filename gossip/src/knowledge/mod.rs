//! What peers know of each other's models, and how the better one spreads: direct knowledge transfer and anti-entropy.
//!
//! Beats carry losses and sketches of parameters. From them every peer decides for itself, without talk, whether to copy the best
//! peer's parameters in the background (DLion's direct knowledge transfer, gated by its own held-out samples) and whether
//! its own copy has drifted away from the others (anti-entropy). In: losses, sketches, outcomes of fetches and evaluations. Out:
//! whom to pull from, and how to merge what came.
//!
//! Source: Hong, Chandra, "DLion: Decentralized Distributed Deep Learning in Micro-Clouds", HPDC 2021, section on direct
//! knowledge transfer.

pub mod losses;
pub mod sketch;
pub mod drift;
pub mod pull;
pub mod merge;

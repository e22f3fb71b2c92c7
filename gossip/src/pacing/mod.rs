//! When a peer commits: commits that never wait (ADSP), and the pacing of its baselines.
//!
//! A fast peer goes on training between two commits, and over a check period all peers commit equally often. How often is
//! searched online from the training losses that beats carry; the steward makes the search and its whole state is in its beats,
//! so the next steward goes on with it. In: times, losses, counts. Out: how many commits per check period, whether one is due.
//!
//! Source: Hu, Wang, Wu, "Distributed Machine Learning through Heterogeneous Edge Systems", AAAI 2020 (ADSP), here without a
//! parameter server and without its barrier before each try.

pub mod curve;
pub mod search;
pub mod pacer;
pub mod rhythm;
pub mod momentum;
pub mod adacomm;
pub mod outer;

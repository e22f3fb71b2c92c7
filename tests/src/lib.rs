//! What the whole-system tests share: real `skein up` processes on loopback, watched through their journals and
//! control sockets.
//!
//! Modules in reading order, lowest first.

#![expect(
    clippy::expect_used,
    reason = "a test stops at the first surprise, and says where"
)]

mod binary;
mod job;
mod node;
mod cluster;

pub use binary::{Finished, skein};
pub use cluster::Cluster;
pub use job::{Exchange, Job};
pub use node::Node;

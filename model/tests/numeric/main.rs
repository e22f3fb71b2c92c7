//! Numbers: gradients against finite differences, the trainer against a plain libtorch loop, models against PyTorch.
//!
//! One binary, since each one links libtorch.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod golden;
mod gradient;
mod learning;
mod plain;
mod plain_loop;
mod resume;
mod shared;
mod stages;
mod stash;

//! Numbers: gradients against finite differences, the trainer against a plain libtorch loop, models against PyTorch.
//!
//! One binary, since each one links libtorch.

mod golden;
mod gradient;
mod learning;
mod plain_loop;
mod resume;

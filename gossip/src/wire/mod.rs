//! Bytes from and to a peer: frames, the coding of messages, and compression.
//!
//! Everything a peer sends passes here or through [`crate::gradient::unpack`] before anything else looks at it; each
//! decoder has its bound beside it. Modules in reading order, lowest first.

pub mod frame;
pub mod codec;
pub mod zstd;

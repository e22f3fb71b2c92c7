//! The pipeline: the model cut into stages on unequal peers, copied along a chain, taken over by any peer (FTPipeHD, without
//! its central node; its sections 2.2 to 2.5 in the order of the modules).
//!
//! ```text
//! beats, profiles ─▶ Agreement ─ View ─▶ Flow (one stage) ─ Op ─▶ tensors (model) ─ frames ─▶ Flow of the next stage
//!                        └─ Fetch ─▶ copies of blocks ◀─ Copy ──┘
//! ```
//!
//! Modules in reading order, lowest first.

pub mod plan;
pub mod copies;
pub mod chain;
pub mod frame;
pub mod group;
pub mod reduction;
pub mod values;
pub mod links;
pub mod message;
pub mod flow;
pub mod agreement;

use crate::view::Stamp;

/// Names a view in the head of a frame.
pub fn view_key(stamp: Stamp) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&stamp.number.to_le_bytes());
    hasher.update(&stamp.steward.0);
    let hash = hasher.finalize();
    u64::from_le_bytes(std::array::from_fn(|i| hash.as_bytes()[i]))
}

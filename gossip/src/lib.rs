//! What peers tell each other and how they decide: pure state machines and plain slices.
//!
//! Modules in reading order, lowest first; a module imports only from those above it.

pub mod ids;
pub mod time;
pub mod link;
pub mod overlay;
pub mod batching;
pub mod wire;
pub mod gradient;
pub mod member;
pub mod view;
pub mod transfer;
pub mod knowledge;
pub mod pacing;
pub mod membership;
pub mod pipeline;
pub mod message;
pub mod ending;
pub mod agreement;
pub mod guide;
pub mod exchange;

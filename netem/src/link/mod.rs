//! The model of a network, frame by frame, with time and randomness passed in: the same code under the lab's switch (real time)
//! and in the simulator (virtual time).
//!
//! A frame goes through three shapers: the sender's uplink, the directed pair, the receiver's downlink. `profile` holds the
//! numbers of one of them, `shaper` the state, `fabric` the whole network with its counters, `trace` rates that
//! change over time, `presets` the named ones.

mod profile;
mod presets;
mod shaper;
mod fabric;
mod trace;

pub use fabric::{Counters, Fabric, Hop, NodeIndex, sub_seed};
pub use presets::{PRESETS, Preset, preset};
pub use profile::{LinkFault, Profile};
pub use shaper::{Loss, Shaper, Verdict};
pub use trace::{Trace, TraceFault, TracePoint};

/// Time since the start of a run, in nanoseconds: a gigabit link sends a bit per nanosecond.
pub type Nanos = u64;

//! Which device trains which blocks: plain functions of measured figures, without tensors (FTPipeHD: Chen et al. 2021,
//! arXiv:2110.02781, section III-C; PipeDream: Narayanan et al. 2019, arXiv:1806.03377, section 3.1).
//!
//! ```text
//! measure (Stage, on one device) -> Profile ─┐
//! capacities, memory, links ─────────────────┴> search: orders x partition (dynamic programming) x predict -> Plan
//! ```
//!
//! [`partition`] is the paper's dynamic programming with memory limits; it minimises the slowest stage or link.
//! [`predict`] runs the synchronous one-forward-one-backward schedule event by event, with bubbles, transfers and memory.
//! [`search`] tries orders and subsets of devices, and takes the cut whose predicted step is the shortest: of all cuts where an
//! order has at most a thousand, else near it.

mod time;
mod profile;
mod work;
mod costs;
mod problem;
mod group;
mod events;
mod schedule;
mod steps;
mod partition;
mod search;
mod hybrid;
mod baselines;
mod replan;
mod tiers;
mod measure;

pub use baselines::{Baseline, baseline};
pub use events::Pass;
pub use group::{Group, Reduction, Share};
pub use hybrid::{Hybrid, MAX_HYBRID, hybrid, price, spans};
pub use measure::measure;
pub use partition::{equal, partition, pipedream};
pub use problem::Problem;
pub use profile::{BlockProfile, BlockTimes, MAX_BLOCKS, Profile, ProfileError};
pub use replan::{moved_bytes, replan};
pub use schedule::{Prediction, Span, predict};
pub use search::{MAX_PERMUTED, Plan, search};
pub use tiers::{Begins, Tier, TierBaseline, Tiered, tier_baseline, tiers};
pub use time::{MAX_POINTS, Time};
pub use work::{Data, Device, Links, MAX_DEVICES, MAX_MICRO_BATCHES, Placement, PlanError, Work};

//! Which device trains which blocks and how many samples: plain functions of measured figures, without tensors.
//!
//! ```text
//! measure (Stage, on one device) -> Profile ─┐
//! capacities or own times, memory, links ────┴> Problem, which can be saved and edited
//!    ├─> search     one device per stage: orders x partition (dynamic programming) x predict -> Plan
//!    ├─> hybrid     stages hosted by groups -> Hybrid; replan after a device is lost
//!    ├─> tiers      layers and samples over device, edge and cloud -> Tiered
//!    ├─> baseline   what hybrids are compared with -> Hybrid
//!    └─> choose     all families, ranked by one objective -> Choice
//! ```
//!
//! [`partition`] is FTPipeHD's dynamic programming with memory limits (Chen et al. 2021, arXiv:2110.02781, section III-C); it
//! minimises the slowest stage or link. [`search`] tries orders and subsets of devices, and takes the cut whose predicted step is
//! the shortest: of all cuts where an order has at most a thousand, else near it. [`hybrid`] and [`replan`] are Asteroid's (Ye et
//! al., MobiCom 2024), [`tiers`] is HierTrain's (Liu et al. 2020).
//!
//! [`predict`] and [`price`] run the one-forward-one-backward schedule event by event, with bubbles, transfers, reductions and
//! memory; where steps overlap, once it is full, which is for stages of one device alone. It is one predictor for all pipelines, so that their figures can be compared.

mod time;
mod profile;
mod tier;
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
mod choice;
mod measure;

pub use baselines::{Baseline, baseline};
pub use choice::{
    Arrangement, Candidate, Choice, ExchangeCosts, Family, Idle, Island, Left, Loss, MOST_ANEW,
    Offer, Refusal, Role, Settings, WhyIdle, choose, idle, losses, of_step,
};
pub use events::Pass;
pub use group::{Group, Reduction, Share};
pub use hybrid::{Hybrid, MAX_HYBRID, hybrid, price, reductions, spans};
pub use measure::measure;
pub use partition::{equal, partition, pipedream};
pub use problem::Problem;
pub use profile::{BlockProfile, BlockTimes, MAX_BLOCKS, Profile, ProfileError};
pub use replan::{moved_bytes, replan};
pub use schedule::{Prediction, Span, predict};
pub use search::{MAX_PERMUTED, Plan, search};
pub use tier::Tier;
pub use tiers::{Begins, TierBaseline, Tiered, tier_baseline, tier_stages, tiers};
pub use time::{MAX_POINTS, Time};
pub use work::{
    Data, Device, Links, MAX_DEVICES, MAX_MICRO_BATCHES, Placement, PlanError, Stashing, Work,
};

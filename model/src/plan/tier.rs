//! Where peers stand: plans over tiers (HierTrain) give them roles by it, and people say it of each device.

use serde::{Deserialize, Serialize};

/// Where a peer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Where data is born.
    Device,
    /// Near the devices.
    Edge,
    /// Far from them, and fast.
    Cloud,
}

//! What the choice among families is made with, beside the problem: constants, and where they come from.

use serde::{Deserialize, Serialize};

use crate::plan::work::PlanError;

/// See the module's header.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Whether raw samples must stay on the device that has them.
    pub private: bool,
    /// What replicas that exchange updates cost, and what their samples are worth.
    pub exchange: ExchangeCosts,
}

/// What exchange costs: replicas of the whole model, or islands of stages. The other families are synchronous and make the step
/// that one device would make: their samples are worth 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExchangeCosts {
    /// How much of a synchronous sample's progress a sample makes, above 0 to 1. Default 0.54: to 88 % on Fashion-MNIST one device
    /// needs 35,000 samples and the mesh of six 65,000 (docs/benchmarks.md, "Methods on unequal devices and lines").
    pub efficiency: f64,
    /// Bytes of a packet for each byte of parameters, above 0 to 2. Default 0.0033: the largest 1 % of 1.2 M values in octaves
    /// have 16 kB (docs/benchmarks.md), of 4.9 MB as f32.
    pub packet_frac: f64,
    /// Steps behind one commit where links carry little, 1 to 1000. Default 24, the most that `commit = "auto"` takes
    /// (docs/strategy.md).
    pub commit_steps: u32,
    /// Arenas as large as the parameters that a replica has beside the state of its model. Default 3: the own sum, the residual of
    /// its links and the inbox (docs/benchmarks.md, "What the machinery costs one peer").
    pub arenas: u32,
}

impl Default for ExchangeCosts {
    fn default() -> Self {
        Self {
            efficiency: 0.54,
            packet_frac: 0.0033,
            commit_steps: 24,
            arenas: 3,
        }
    }
}

impl Settings {
    /// Refuses settings outside their range.
    ///
    /// # Errors
    /// The first one.
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        let ExchangeCosts {
            efficiency,
            packet_frac,
            commit_steps,
            arenas,
        } = self.exchange;
        let above_zero = |value: f64, most: f64| value > 0.0 && value <= most;
        let rules = [
            (above_zero(efficiency, 1.0), "exchange.efficiency"),
            (above_zero(packet_frac, 2.0), "exchange.packet_frac"),
            ((1..=1000).contains(&commit_steps), "exchange.commit_steps"),
            (arenas <= 1000, "exchange.arenas"),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, name)) => Err(PlanError::Setting(name)),
            None => Ok(()),
        }
    }
}

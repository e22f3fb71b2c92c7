//! What goes into a packet: how many entries and in which format, from what the link carries until the next commit.
//!
//! In: a residual and a budget in bytes. Out: an order for the packer, or nothing where the link should rather wait.

use crate::gradient::fit::{Measure, Wanted};
use crate::gradient::pack::Packer;
use crate::gradient::selection::{Order, Selection};
use crate::gradient::values::Values;

/// Parts of a gradient at most (Ako): further apart than this, a part is too old to help.
const MAX_PARTS: u32 = 64;
/// Own steps after which Gaia's threshold is down to 1 / sqrt(2).
const GAIA_STEPS: f32 = 100.0;

/// Which entries of a residual are sent, and how many.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// The largest of each variable: the share that fits the link, from `least` to `most`.
    TopK {
        /// Least share of entries.
        least: f32,
        /// Most.
        most: f32,
    },
    /// DLion's Max N, as N / 100: what is at least `1 - share` of the variable's largest.
    MaxN {
        /// Least share.
        least: f32,
        /// Most.
        most: f32,
    },
    /// Any.
    RandomK {
        /// Share of entries.
        fraction: f32,
    },
    /// All.
    Dense,
    /// What changes its weight by `threshold / sqrt(1 + t)` or more (Gaia), t in hundreds of steps.
    Significant {
        /// Least relative change.
        threshold: f32,
    },
    /// One of so many parts that one fits the link (Ako).
    Parts,
}

/// How values are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueChoice {
    /// Always so.
    Fixed(Values),
    /// f16 where all that is wanted fits the link, int8 where it does not.
    ByBudget,
}

/// A packet's content, to be ordered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub(super) selection: Selection,
    pub(super) values: Values,
    /// Share of entries; for Max N the paper's N / 100.
    pub(super) share: f32,
}

/// Makes choices for one job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chooser {
    amount: Amount,
    values: ValueChoice,
}

/// What a choice depends on beside the residual.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Bytes that the link carries until the next commit.
    pub(super) budget: usize,
    /// Own step.
    pub(super) step: u64,
    /// Packets made of this residual so far: turns parts, seeds random choices.
    pub(super) turn: u64,
    /// How many peers' worth of updates are in the residual: as many times `most` may go.
    pub(super) updates: f32,
}

impl Chooser {
    pub(super) fn new(amount: Amount, values: ValueChoice) -> Self {
        Self { amount, values }
    }

    /// What fits `moment.budget`; where that is less than the least, the least.
    pub(super) fn choose(&self, packer: &mut Packer, residual: &[f32], moment: Moment) -> Choice {
        let values = match self.values {
            ValueChoice::Fixed(values) => values,
            ValueChoice::ByBudget => Values::F16,
        };
        let (selection, share) = match self.amount {
            Amount::TopK { least, most } => {
                let most = (most * moment.updates).min(1.0);
                return self.fit(packer, residual, moment, Measure::TopK, (least, most));
            }
            Amount::MaxN { least, most } => {
                let most = (most * moment.updates).min(1.0);
                let (least, most) = (100.0 * least, 100.0 * most);
                return self.fit(packer, residual, moment, Measure::MaxN, (least, most));
            }
            Amount::RandomK { fraction } => {
                let seed = moment.turn;
                let fraction = (fraction * moment.updates).min(1.0);
                (Selection::RandomK { fraction, seed }, fraction)
            }
            Amount::Dense => (Selection::Dense, 1.0),
            Amount::Significant { threshold } => {
                let decay = (1.0 + moment.step as f32 / GAIA_STEPS).sqrt();
                let threshold = threshold / decay;
                (Selection::Significant { threshold }, threshold)
            }
            Amount::Parts => {
                let dense = residual.len() * 4;
                let of = dense.div_ceil(moment.budget.max(1));
                let of = (of.min(MAX_PARTS as usize) as u32).max(1);
                let index = (moment.turn % u64::from(of)) as u32;
                (Selection::Part { index, of }, 1.0 / of as f32)
            }
        };
        Choice {
            selection,
            values,
            share,
        }
    }

    fn fit(
        &self,
        packer: &mut Packer,
        residual: &[f32],
        moment: Moment,
        measure: Measure,
        (least, most): (f32, f32),
    ) -> Choice {
        let fixed;
        let values = match self.values {
            ValueChoice::Fixed(values) => {
                fixed = [values];
                &fixed[..]
            }
            ValueChoice::ByBudget => &Values::AUTO[..],
        };
        let fit = packer.fit(
            residual,
            Wanted {
                bytes: moment.budget,
                measure,
                least,
                most,
                values,
            },
        );
        let share = match fit.selection {
            Selection::TopK { fraction } => fraction,
            Selection::MaxN { n } => n / 100.0,
            _ => 1.0,
        };
        Choice {
            selection: fit.selection,
            values: fit.values,
            share,
        }
    }

    /// What is always sent, whatever the link: for the synchronous rule, whose packets go to all.
    pub(super) fn most(&self, turn: u64, step: u64) -> Choice {
        let values = match self.values {
            ValueChoice::Fixed(values) => values,
            ValueChoice::ByBudget => Values::F16,
        };
        let (selection, share) = match self.amount {
            Amount::TopK { most, .. } => (Selection::TopK { fraction: most }, most),
            Amount::MaxN { most, .. } => (Selection::MaxN { n: 100.0 * most }, most),
            Amount::RandomK { fraction } => {
                let seed = turn;
                (Selection::RandomK { fraction, seed }, fraction)
            }
            Amount::Dense | Amount::Parts => (Selection::Dense, 1.0),
            Amount::Significant { threshold } => {
                let threshold = threshold / (1.0 + step as f32 / GAIA_STEPS).sqrt();
                (Selection::Significant { threshold }, threshold)
            }
        };
        Choice {
            selection,
            values,
            share,
        }
    }
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            selection: Selection::Dense,
            values: Values::F32,
            share: 1.0,
        }
    }
}

impl Choice {
    pub(super) fn order<'a>(&self, weights: &'a [f32]) -> Order<'a> {
        Order {
            selection: self.selection,
            values: self.values,
            weights: (!weights.is_empty()).then_some(weights),
        }
    }

    /// Bits per value, indices left out.
    pub(super) fn bits(&self) -> u8 {
        match self.values {
            Values::F32 => 32,
            Values::F16 | Values::BF16 => 16,
            Values::Int8 => 8,
        }
    }
}

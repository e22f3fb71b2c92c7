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
    /// Bytes that the link carries until the next commit; none: whatever it takes, for the same packet goes to all.
    pub(super) budget: Option<usize>,
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

    /// What fits `moment.budget`; where that is less than the least, the least. Without a budget the most.
    pub(super) fn choose(&self, packer: &mut Packer, residual: &[f32], moment: Moment) -> Choice {
        let values = match self.values {
            ValueChoice::Fixed(values) => values,
            ValueChoice::ByBudget => Values::F16,
        };
        let room = |most: f32| (most * moment.updates).min(1.0);
        let (selection, share) = match (self.amount, moment.budget) {
            (Amount::TopK { least, most }, Some(bytes)) => {
                let bounds = (least, room(most));
                return self.fit(packer, residual, bytes, Measure::TopK, bounds);
            }
            (Amount::MaxN { least, most }, Some(bytes)) => {
                let bounds = (100.0 * least, 100.0 * room(most));
                return self.fit(packer, residual, bytes, Measure::MaxN, bounds);
            }
            (Amount::TopK { most, .. }, None) => {
                let fraction = room(most);
                (Selection::TopK { fraction }, fraction)
            }
            (Amount::MaxN { most, .. }, None) => {
                let n = 100.0 * room(most);
                (Selection::MaxN { n }, room(most))
            }
            (Amount::RandomK { fraction }, _) => {
                let seed = moment.turn;
                let fraction = room(fraction);
                (Selection::RandomK { fraction, seed }, fraction)
            }
            (Amount::Dense, _) => (Selection::Dense, 1.0),
            (Amount::Significant { threshold }, _) => {
                let decay = (1.0 + moment.step as f32 / GAIA_STEPS).sqrt();
                let threshold = threshold / decay;
                (Selection::Significant { threshold }, threshold)
            }
            (Amount::Parts, _) => {
                let dense = residual.len() * 4;
                let of = moment
                    .budget
                    .map_or(1, |budget| dense.div_ceil(budget.max(1)));
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
        bytes: usize,
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
                bytes,
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
            Values::Octave => 3,
        }
    }
}

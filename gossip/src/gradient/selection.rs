//! Which entries of a residual go into a packet: the rule of DLion and those that it is measured against.
//!
//! Chosen by the exchange per link and commit. What is not chosen stays in the residual whatever the rule (DLion, Gaia and
//! random-k are without such memory in some accounts; with it nothing is lost and all rules compare).

use super::values::Values;

/// A rule. Zeros are never worth sending; a variable goes whole where its chosen entries would take more bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Selection {
    /// Everything.
    Dense,
    /// Of each variable the share of entries that is largest by magnitude, at least one.
    TopK {
        /// Above 0, at most 1.
        fraction: f32,
    },
    /// Of each variable the entries of at least `1 - n / 100` of its largest magnitude (Max N of DLion, Hong and Chandra,
    /// HPDC 2021).
    MaxN {
        /// Above 0, at most 100, which is everything.
        n: f32,
    },
    /// Of each variable a random share of entries, at least one: one from each of equally long pieces. Not scaled up:
    /// what is left out comes later.
    RandomK {
        /// Above 0, at most 1.
        fraction: f32,
        /// Another for each packet, or the same entries go every time.
        seed: u64,
    },
    /// Entries of at least this share of the weight they change (Gaia, Hsieh et al., NSDI 2017); of a weight of zero all.
    Significant {
        /// Above 0 and finite; Gaia starts at 0.01.
        threshold: f32,
    },
    /// One of equally long parts of the arena, in turn (Ako, Watcharapichat et al., SoCC 2016).
    Part {
        /// Below `of`.
        index: u32,
        /// At least 1.
        of: u32,
    },
}

/// What to pack.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// Which entries.
    pub selection: Selection,
    /// How they are coded.
    pub values: Values,
    /// The model's parameters as an arena; for [`Selection::Significant`] only.
    pub weights: Option<&'a [f32]>,
}

impl Selection {
    /// What is wrong with its parameters.
    pub(super) fn problem(&self) -> Option<&'static str> {
        let is_share = |fraction: f32| fraction > 0.0 && fraction <= 1.0;
        match *self {
            Self::TopK { fraction } | Self::RandomK { fraction, .. } if !is_share(fraction) => {
                Some("the fraction must be above 0 and at most 1")
            }
            Self::MaxN { n } if !is_share(n / 100.0) => Some("n must be above 0 and at most 100"),
            Self::Significant { threshold } if !(threshold > 0.0 && threshold.is_finite()) => {
                Some("the threshold must be above 0 and finite")
            }
            Self::Part { index, of } if index >= of => Some("the index must be below `of`"),
            _ => None,
        }
    }

    /// How many of a variable's `length` entries it chooses at most, zeros apart.
    pub(super) fn most_of(&self, length: usize) -> usize {
        match *self {
            Self::TopK { fraction } | Self::RandomK { fraction, .. } => n_of(fraction, length),
            _ => length,
        }
    }
}

/// How many entries of `length` a share of them is.
pub(super) fn n_of(fraction: f32, length: usize) -> usize {
    ((f64::from(fraction) * length as f64).round() as usize).clamp(1, length)
}

/// The least magnitude, as bits, that Max N chooses where `largest` is the largest.
pub(super) fn max_n_threshold(n: f32, largest: u32) -> u32 {
    let share = (1.0 - n / 100.0).clamp(0.0, 1.0);
    (share * f32::from_bits(largest)).to_bits()
}

//! The largest amount whose packet fits a budget of bytes, without packing.
//!
//! Called by the exchange before it packs for a link: the budget is what that link carries until the next commit. In: a
//! residual, bounds of the amount, kinds of values in order of preference. Out: an order for
//! [`Packer::pack`](super::pack::Packer::pack) and the bytes it will take, within some 10 % for packets of 8 KiB and more from
//! the second of a kind on. The residual's variables are surveyed (`survey.rs`), the body's shrinking is estimated from
//! coded samples (`entropy.rs`), and what zstd made of the last packets that were fitted corrects it per kind of values.

use super::{
    entropy::Contents,
    layout::Layout,
    sample,
    select::Selector,
    selection::{Order, Selection, max_n_threshold, n_of},
    survey::{self, Survey, Surveyed},
    values::Values,
};

/// The fewest sampled entries that say something about the distribution of bytes, and as many as are of use.
const SAMPLE: std::ops::RangeInclusive<f64> = 512.0..=8192.0;

/// Halvings of the range of amounts: to 0.02 % of it, on a scale of factors.
const HALVINGS: usize = 12;

/// Estimates of the ratio on the way to an amount, at most; one or two are enough mostly.
const ROUNDS: usize = 6;

/// A packet of this share of the budget is near enough to it.
const CLOSE: f64 = 0.98;

/// By how much counts of Max N may be off.
const MARGIN: f64 = 1.03;

/// Sampled entries that are coded, or left out, together.
const PIECE: usize = 64;

/// What amounts are measured by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The fraction of [`Selection::TopK`].
    TopK,
    /// The n of [`Selection::MaxN`].
    MaxN,
}

/// What is to be fitted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The most bytes of the packet.
    pub bytes: usize,
    /// The selection.
    pub measure: Measure,
    /// The least amount, sent even if it does not fit: below it an update is of no use.
    pub least: f32,
    /// The largest amount, beyond which bytes buy nothing.
    pub most: f32,
    /// Kinds of values by preference: the first with which all of `most` fits is taken, else the last. None means
    /// [`Values::AUTO`].
    pub values: &'a [Values],
}

/// The largest amount that fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The amount as a selection.
    pub selection: Selection,
    /// The kind of values.
    pub values: Values,
    /// Entries in its packet, estimated.
    pub n_entries: usize,
    /// Bytes of its packet, estimated; more than the budget only at the least amount.
    pub bytes: usize,
}

impl Fit {
    /// What to hand to [`Packer::pack`](super::pack::Packer::pack).
    pub fn order(&self) -> Order<'static> {
        Order {
            selection: self.selection,
            values: self.values,
            weights: None,
        }
    }
}

impl Measure {
    fn selection(self, amount: f32) -> Selection {
        match self {
            Self::TopK => Selection::TopK { fraction: amount },
            Self::MaxN => Selection::MaxN { n: amount },
        }
    }

    /// Amounts on a scale on which equal steps are about equal factors of entries.
    fn level(self, amount: f32) -> f64 {
        match self {
            Self::TopK => f64::from(amount).ln(),
            Self::MaxN => -(1.0 - f64::from(amount) / 100.0).max(1e-7).ln(),
        }
    }

    fn amount(self, level: f64) -> f32 {
        match self {
            Self::TopK => level.exp() as f32,
            Self::MaxN => (100.0 * (1.0 - (-level).exp())) as f32,
        }
    }
}

/// Estimates packets; holds the buffers for it and what it learnt from packets.
#[derive(Debug)]
pub(super) struct Estimator {
    survey: Survey,
    /// Sampled values, and their bytes.
    values: Vec<f32>,
    highs: Vec<u8>,
    raw: Vec<u8>,
    contents: Box<Contents>,
    /// Per kind of values, by what factor bodies were larger than estimated, once one was packed.
    corrections: [Option<f64>; Values::ALL.len()],
    /// The last estimate: for which order, and to what its body shrinks, uncorrected.
    estimated: Option<(Selection, Values, f64)>,
}

impl Estimator {
    pub(super) fn new(layout: &Layout) -> Self {
        let capacity = survey::capacity(layout);
        Self {
            survey: Survey::new(layout),
            values: Vec::with_capacity(capacity),
            highs: Vec::with_capacity(capacity + capacity / 64 + 1),
            raw: Vec::with_capacity(4 * capacity),
            contents: Box::new(Contents::new()),
            corrections: [None; Values::ALL.len()],
            estimated: None,
        }
    }

    /// See [`Packer::fit`](super::pack::Packer::fit).
    pub(super) fn fit(
        &mut self,
        layout: &Layout,
        selector: &mut Selector,
        residual: &[f32],
        wanted: Wanted<'_>,
    ) -> Fit {
        let kinds = match wanted.values {
            [] => Values::AUTO.as_slice(),
            kinds => kinds,
        };
        let Wanted {
            measure,
            least,
            most,
            ..
        } = wanted;
        let is_sane = residual.len() == layout.n_values()
            && measure.selection(least).problem().is_none()
            && measure.selection(most).problem().is_none()
            && least <= most;
        if !is_sane {
            return Fit {
                selection: measure.selection(least),
                values: kinds[0],
                n_entries: 0,
                bytes: 0,
            };
        }
        let tails = match measure {
            Measure::TopK => None,
            Measure::MaxN => Some(&mut *selector),
        };
        self.survey.read(layout, residual, tails);
        self.search(selector, wanted, kinds)
    }

    /// What became of an order's body.
    pub(super) fn learn(&mut self, order: Order<'_>, body_bytes: usize, stored_bytes: usize) {
        let Some((_, _, ratio)) = self.estimated.take_if(|(selection, values, _)| {
            *selection == order.selection && *values == order.values
        }) else {
            return;
        };
        let found = stored_bytes as f64 / body_bytes.max(1) as f64 / ratio;
        let correction = &mut self.corrections[order.values as usize];
        let halfway = correction.map_or(found, |before| 0.5 * (before + found));
        *correction = Some(halfway.clamp(0.5, 2.0));
    }

    fn search(&mut self, selector: &mut Selector, wanted: Wanted<'_>, kinds: &[Values]) -> Fit {
        let Wanted { measure, .. } = wanted;
        let budget = wanted.bytes as f64;
        let mut kind = kinds[0];
        let mut ratio = 1.0;
        for (nth, of_list) in kinds.iter().enumerate() {
            kind = *of_list;
            self.fill(measure.selection(wanted.most), kind);
            if nth + 1 < kinds.len() && self.contents.raw_bytes > budget {
                continue;
            }
            ratio = self.ratio(selector, measure.selection(wanted.most), kind);
            if self.packet_bytes(kind, ratio) <= budget {
                return self.found(measure.selection(wanted.most), kind, ratio);
            }
        }
        let mut fits = (measure.level(wanted.least), 0.0);
        fits.1 = self.ratio(selector, measure.selection(wanted.least), kind);
        let mut too_much = (measure.level(wanted.most), ratio);
        let mut fit = self.found(measure.selection(wanted.least), kind, fits.1);
        let (mut aim, mut lower) = (budget, 1.0);
        for _ in 0..ROUNDS {
            if fit.bytes as f64 >= budget * CLOSE {
                break;
            }
            let level = self.level_within(measure, kind, aim, fits, too_much);
            let amount = measure.amount(level).clamp(wanted.least, wanted.most);
            let ratio = self.ratio(selector, measure.selection(amount), kind);
            let bytes = self.packet_bytes(kind, ratio);
            if bytes <= budget {
                fits = (level, ratio);
                fit = self.found(measure.selection(amount), kind, ratio);
            } else {
                too_much = (level, ratio);
                // Further each time: where a variable goes whole, many levels take the same bytes.
                aim *= (budget / bytes).powf(lower);
                lower *= 2.0;
            }
        }
        fit
    }

    /// The largest level whose packet fits `aim`, if ratios change evenly between two levels where they are known.
    fn level_within(
        &mut self,
        measure: Measure,
        kind: Values,
        aim: f64,
        fits: (f64, f64),
        too_much: (f64, f64),
    ) -> f64 {
        let (mut below, mut above) = (fits.0, too_much.0);
        for _ in 0..HALVINGS {
            let middle = 0.5 * (below + above);
            let share = (middle - fits.0) / (too_much.0 - fits.0);
            self.fill(measure.selection(measure.amount(middle)), kind);
            if self.packet_bytes(kind, fits.1 + share * (too_much.1 - fits.1)) <= aim {
                below = middle;
            } else {
                above = middle;
            }
        }
        below
    }

    fn packet_bytes(&self, kind: Values, ratio: f64) -> f64 {
        self.contents
            .packet_bytes(ratio * self.corrections[kind as usize].unwrap_or(1.0))
    }

    /// The fit that `contents` describe.
    fn found(&mut self, selection: Selection, kind: Values, ratio: f64) -> Fit {
        self.estimated = Some((selection, kind, ratio));
        Fit {
            selection,
            values: kind,
            n_entries: self.contents.n_entries as usize,
            bytes: self.packet_bytes(kind, ratio) as usize,
        }
    }

    /// Describes in `contents` a packet of these entries.
    fn fill(&mut self, selection: Selection, kind: Values) {
        *self.contents = Contents::new();
        for variable in self.survey.variables() {
            let contents = &mut self.contents;
            let n = n_sent(&self.survey, variable, selection, kind);
            contents.n_entries += n;
            contents.heads_bytes += 1.0;
            if n == 0.0 {
                continue;
            }
            // Scales are shared: rounding them up per variable matters where variables are short.
            let scales = kind.highs_bytes(n.ceil() as usize) as f64 - n.ceil();
            contents.highs_bytes += (n + scales).max(0.0);
            contents.raw_bytes += kind.raw_bytes(1) as f64 * n;
            if n < variable.length as f64 {
                contents.heads_bytes += 8.0;
                contents.add_gaps(n, variable.length);
            }
        }
    }

    /// [`Self::fill`], and to what the body shrinks, from the bytes of a sample.
    fn ratio(&mut self, selector: &mut Selector, selection: Selection, kind: Values) -> f64 {
        self.fill(selection, kind);
        self.values.clear();
        self.highs.clear();
        self.raw.clear();
        let total = self.contents.n_entries;
        let variables = self.survey.variables();
        let coarsest = variables.iter().fold(1.0, |most: f64, v| most.max(v.scale));
        let enough = (total / coarsest).clamp(*SAMPLE.start(), *SAMPLE.end());
        for variable in variables {
            let n = n_sent(&self.survey, variable, selection, kind);
            let least = if n >= variable.length as f64 {
                0
            } else {
                match selection {
                    Selection::MaxN { n } => max_n_threshold(n, variable.largest).max(1),
                    _ => self.survey.magnitude_of(variable, n).max(1),
                }
            };
            let sampled = self.survey.sampled(variable);
            // Of each variable the same share of what is sent of it.
            let every = (total / enough / variable.scale).max(1.0) as usize;
            if every == 1 && least > 0 {
                self.values
                    .extend_from_slice(selector.collected(sampled, least));
                continue;
            }
            for piece in sampled.chunks(PIECE).step_by(every) {
                let piece = piece.iter();
                self.values
                    .extend(piece.filter(|value| sample::magnitude(**value) >= least));
            }
        }
        // Not finite: whatever is said of it, packing will refuse it.
        let coded = kind.put(&self.values, &mut self.highs, &mut self.raw);
        if coded.is_err() || self.values.is_empty() {
            return 1.0;
        }
        self.contents.ratio(&self.highs)
    }
}

/// How many entries of a variable are sent; all where that takes fewer bytes.
fn n_sent(survey: &Survey, variable: &Surveyed, selection: Selection, kind: Values) -> f64 {
    let nonzero = survey.nonzero(variable).min(variable.length as f64);
    if nonzero == 0.0 {
        return 0.0;
    }
    // What is only estimated may turn out to go whole, which takes more bytes at once.
    let (n, margin) = match selection {
        Selection::TopK { fraction } => (n_of(fraction, variable.length) as f64, 1.0),
        Selection::MaxN { n } => {
            let least = max_n_threshold(n, variable.largest).max(1);
            (survey.n_at_least(variable, least), MARGIN)
        }
        _ => (nonzero, 1.0),
    };
    let n = n.min(nonzero).max(1.0);
    if kind.is_dense((n * margin) as usize, variable.length) {
        variable.length as f64
    } else {
        n
    }
}

//! How far the body of a packet shrinks, without compressing it: zstd finds hardly any repeats in it, so that what is left is
//! its Huffman coder, which comes close to the entropy of single bytes.
//!
//! The highs' distribution comes from a sample that is coded as a packet would be; that of the gaps from the density of the
//! entries, as if they were spread at random.

use super::{format::HEADER_BYTES, indices::Width};

/// zstd starts a new code after so many bytes.
const BLOCK_BYTES: f64 = 131_072.0;

/// Bytes of a frame's and a block's headers and of a code's table.
const OVERHEAD_BYTES: f64 = 60.0;

/// Densities are told apart by steps of a sixth of an octave or so.
const CLASSES_PER_E: f64 = 8.0;
const CLASSES: usize = 192;

/// What a packet would hold: filled variable by variable.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    pub(super) n_entries: f64,
    pub(super) raw_bytes: f64,
    pub(super) highs_bytes: f64,
    pub(super) heads_bytes: f64,
    pub(super) gaps_bytes: f64,
    /// Gaps of one byte by density class, and of two.
    gaps: [[f64; CLASSES]; 2],
}

/// Of how many bytes each occurs.
pub(super) type Histogram = [f64; 256];

impl Contents {
    pub(super) fn new() -> Self {
        Self {
            n_entries: 0.0,
            raw_bytes: 0.0,
            highs_bytes: 0.0,
            heads_bytes: 0.0,
            gaps_bytes: 0.0,
            gaps: [[0.0; CLASSES]; 2],
        }
    }

    /// Adds the gaps of `n` entries, spread at random over `length`; fewer than all.
    pub(super) fn add_gaps(&mut self, n: f64, length: usize) {
        let density = n / length as f64;
        let class = ((-density.ln() * CLASSES_PER_E) as usize).min(CLASSES - 1);
        let width = Width::of(n.ceil() as usize, length);
        let escape = if width == Width::One { 255.0 } else { 65_535.0 };
        let goes_on = (1.0 - density).powf(escape);
        self.gaps_bytes += n / (1.0 - goes_on) * width.bytes() as f64;
        self.gaps[width.bytes() - 1][class] += n;
    }

    pub(super) fn body_bytes(&self) -> f64 {
        self.highs_bytes + self.heads_bytes + self.gaps_bytes
    }

    /// Bytes of the packet if its body shrinks to `ratio`.
    pub(super) fn packet_bytes(&self, ratio: f64) -> f64 {
        HEADER_BYTES as f64 + self.raw_bytes + self.body_bytes() * ratio.min(1.0)
    }

    /// How far the body shrinks, 0 to 1, if its highs are distributed like a sample of them.
    pub(super) fn ratio(&self, sampled_highs: &[u8]) -> f64 {
        let mut highs = [0.0; 256];
        for byte in sampled_highs {
            highs[usize::from(*byte)] += 1.0;
        }
        // A sample sees fewer different bytes than there are (Miller and Madow 1955).
        let n_sampled = sampled_highs.len().max(1) as f64;
        let n_seen = highs.iter().filter(|n| **n > 0.0).count() as f64;
        let unseen = (n_seen - 1.0).max(0.0) / (2.0 * n_sampled * std::f64::consts::LN_2);
        let unseen = unseen.min(1.0) * self.highs_bytes / 8.0;
        let share = self.highs_bytes / n_sampled;
        highs.iter_mut().for_each(|n| *n *= share);

        let mut rest = self.gap_bytes();
        // Two counts below 2^16 mostly, and a tag.
        rest[0] += self.heads_bytes * 0.5;
        rest[2] += self.heads_bytes * 0.1;
        let body = self.body_bytes();
        // Highs come first: the block in which they end has one code for both.
        let highs_there = self.highs_bytes % BLOCK_BYTES;
        let rest_there = (body - self.highs_bytes).min(BLOCK_BYTES - highs_there);
        let share = |part: f64, of: f64| part / of.max(1.0);
        let (highs_share, rest_share) = (
            share(highs_there, self.highs_bytes),
            share(rest_there, body - self.highs_bytes),
        );
        let mut both = [0.0; 256];
        for ((both, high), rest) in both.iter_mut().zip(&highs).zip(&rest) {
            *both = high * highs_share + rest * rest_share;
        }
        let coded = bytes_of(&highs) * (1.0 - highs_share)
            + bytes_of(&both)
            + bytes_of(&rest) * (1.0 - rest_share);
        let overhead = OVERHEAD_BYTES * (body / BLOCK_BYTES).ceil();
        let ratio = (coded + unseen + overhead) / body.max(1.0);
        // What saves less than a 64th, zstd leaves as it is.
        if ratio < 63.0 / 64.0 { ratio } else { 1.0 }
    }

    /// The distribution of the gaps' bytes.
    fn gap_bytes(&self) -> Histogram {
        let mut bytes = [0.0; 256];
        for (width, classes) in self.gaps.iter().enumerate() {
            for (class, n) in classes.iter().enumerate().filter(|(_, n)| **n > 0.0) {
                let skip = 1.0 - (-(class as f64 + 0.5) / CLASSES_PER_E).exp();
                let block = skip.powi(256);
                let mut put = |skip: f64, n: f64| {
                    let mut n = n * (1.0 - skip) / (1.0 - skip.powi(256));
                    for count in &mut bytes {
                        *count += n;
                        n *= skip;
                    }
                };
                put(skip, *n);
                if width == 1 {
                    put(block, *n);
                }
            }
        }
        bytes
    }
}

/// Bytes that a code needs which knows the distribution.
fn bytes_of(histogram: &Histogram) -> f64 {
    let total: f64 = histogram.iter().sum();
    let bits: f64 = histogram
        .iter()
        .filter(|n| **n > 0.0)
        .map(|n| n * (total / n).log2())
        .sum();
    bits / 8.0
}

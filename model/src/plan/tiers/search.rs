//! The best of all roles, blocks and samples: every one is tried, but for those that a bound rules out.

use super::cost::{Mesh, Way};
use super::{Begins, Tiered};

impl Mesh<'_> {
    /// The best of all ways.
    pub(super) fn search(&self) -> Option<Tiered> {
        let mut best: Option<(f64, Way)> = None;
        let n_pools = self.pools.len();
        for whole in 0..n_pools {
            self.take(&mut best, Way::alone(whole));
        }
        for whole in 0..n_pools {
            for long in (0..n_pools).filter(|long| *long != whole) {
                self.with_long(&mut best, whole, long);
            }
        }
        best.map(|(seconds, way)| self.told(&way, seconds))
    }

    /// All ways with these two roles, and with or without the third.
    fn with_long(&self, best: &mut Option<(f64, Way)>, whole: usize, long: usize) {
        let n = self.costs.n_blocks();
        let least = |best: &Option<(f64, Way)>| best.map_or(f64::INFINITY, |(seconds, _)| seconds);
        for m_l in 1..=n {
            let last = self.passes(whole, m_l..n, self.batch);
            for b_l in 1..=self.batch {
                let part = (long, m_l, b_l);
                let way = Way {
                    long: Some(part),
                    ..Way::alone(whole)
                };
                // No third can make this shorter; more samples only take longer.
                let begins = self.begins(&way, part, 1.0);
                let exchange = self.exchange(&way);
                let bound = begins[0] + begins[1] + last[0] + last[1] + exchange;
                if bound >= least(best) {
                    break;
                }
                self.take(best, way);
                let third = (0..self.pools.len()).find(|short| *short != whole && *short != long);
                if let Some(short) = third {
                    self.with_short(best, way, (short, m_l, b_l), last);
                }
            }
        }
    }

    /// All ways with a third tier beside those that are given.
    fn with_short(
        &self,
        best: &mut Option<(f64, Way)>,
        way: Way,
        (short, m_l, b_l): (usize, usize, usize),
        last: [f64; 2],
    ) {
        for m_s in 1..=m_l {
            let left = self.batch - b_l;
            let middle = self.passes(way.whole, m_s..m_l, left);
            let after = last[0] + last[1] + middle[0] + middle[1];
            for b_s in 1..=left {
                let part = (short, m_s, b_s);
                let way = Way {
                    short: Some(part),
                    ..way
                };
                let begins = self.begins(&way, part, 1.0);
                let bound = begins[0] + begins[1] + after + self.exchange(&way);
                if best.is_some_and(|(seconds, _)| bound >= seconds) {
                    break;
                }
                self.take(best, way);
            }
        }
    }

    fn take(&self, best: &mut Option<(f64, Way)>, way: Way) {
        if let Some(seconds) = self
            .seconds(&way, 1.0)
            .filter(|seconds| seconds.is_finite())
            && best.is_none_or(|(least, _)| seconds < least)
        {
            *best = Some((seconds, way));
        }
    }

    pub(super) fn told(&self, way: &Way, step_seconds: f64) -> Tiered {
        let begins = |(pool, n_blocks, samples): (usize, usize, usize)| Begins {
            tier: self.pools[pool].tier,
            n_blocks,
            samples,
        };
        let (short, long) = (way.short.map(begins), way.long.map(begins));
        let elsewhere: usize = short.iter().chain(&long).map(|begins| begins.samples).sum();
        Tiered {
            whole: self.pools[way.whole].tier,
            samples: self.batch - elsewhere,
            short,
            long,
            step_seconds,
        }
    }
}

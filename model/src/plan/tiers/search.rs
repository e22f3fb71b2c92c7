//! The best of all roles, blocks and samples: every one is tried, but for those that a bound rules out. Before all numbers of samples
//! come those in large strides, so that the bound is a good one early. Of large problems (sixty blocks and five hundred samples,
//! say) not everything can be tried: it ends after a number of ways, so equal problems have equal plans.

use super::cost::{Mesh, Way};
use super::{Begins, Tiered};

/// Most ways that are tried or ruled out.
const MOST_TRIED: usize = 3_000_000;

/// From one pass over the samples to the next strides shrink by this.
const FINER: usize = 8;

/// The best so far.
struct Search<'m, 'c> {
    mesh: &'m Mesh<'c>,
    best: Option<(f64, Way)>,
    n_tried: usize,
    stride: usize,
}

impl Mesh<'_> {
    /// The best of all ways.
    pub(super) fn search(&self) -> Option<Tiered> {
        let mut search = Search {
            mesh: self,
            best: None,
            n_tried: 0,
            stride: 1,
        };
        while search.stride * FINER * FINER <= self.batch {
            search.stride *= FINER;
        }
        let n_pools = self.pools.len();
        for whole in 0..n_pools {
            search.take(Way::alone(whole));
        }
        loop {
            for whole in 0..n_pools {
                for long in (0..n_pools).filter(|long| *long != whole) {
                    search.with_long(whole, long);
                }
            }
            if search.stride == 1 {
                break;
            }
            search.stride /= FINER;
        }
        let best = search.best;
        best.map(|(seconds, way)| self.told(&way, seconds))
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

impl Search<'_, '_> {
    /// Numbers of samples up to `most`, which is among them.
    fn samples(&self, most: usize) -> impl Iterator<Item = usize> + use<> {
        let strides = (self.stride..most).step_by(self.stride);
        strides.chain((most > 0).then_some(most))
    }

    /// All ways with these two roles, and with or without the third.
    fn with_long(&mut self, whole: usize, long: usize) {
        let mesh = self.mesh;
        let n = mesh.costs.n_blocks();
        let third = (0..mesh.pools.len()).find(|short| *short != whole && *short != long);
        for m_l in 1..=n {
            let last = mesh.passes(whole, m_l..n, mesh.batch);
            for b_l in self.samples(mesh.batch) {
                let part = (long, m_l, b_l);
                let way = Way {
                    long: Some(part),
                    ..Way::alone(whole)
                };
                // No third can make this shorter; more samples only take longer.
                let begins = mesh.begins(&way, part, 1.0);
                let bound = begins[0] + begins[1] + last[0] + last[1] + mesh.exchange(&way);
                if self.is_ruled_out(bound) {
                    break;
                }
                self.take(way);
                if let Some(short) = third {
                    self.with_short(way, (short, m_l, b_l), last);
                }
            }
        }
    }

    /// All ways with a third tier beside those that are given.
    fn with_short(&mut self, way: Way, (short, m_l, b_l): (usize, usize, usize), last: [f64; 2]) {
        let mesh = self.mesh;
        let left = mesh.batch - b_l;
        for m_s in 1..=m_l {
            let middle = mesh.passes(way.whole, m_s..m_l, left);
            let after = last[0] + last[1] + middle[0] + middle[1];
            for b_s in self.samples(left) {
                let part = (short, m_s, b_s);
                let way = Way {
                    short: Some(part),
                    ..way
                };
                let begins = mesh.begins(&way, part, 1.0);
                if self.is_ruled_out(begins[0] + begins[1] + after + mesh.exchange(&way)) {
                    break;
                }
                self.take(way);
            }
        }
    }

    /// Whether nothing that takes at least so long is of interest any more.
    fn is_ruled_out(&mut self, bound: f64) -> bool {
        self.n_tried += 1;
        let least = self.best.map_or(f64::INFINITY, |(seconds, _)| seconds);
        bound >= least || self.n_tried > MOST_TRIED
    }

    fn take(&mut self, way: Way) {
        let seconds = self.mesh.seconds(&way, 1.0);
        if let Some(seconds) = seconds.filter(|seconds| seconds.is_finite())
            && self.best.is_none_or(|(least, _)| seconds < least)
        {
            self.best = Some((seconds, way));
        }
    }
}

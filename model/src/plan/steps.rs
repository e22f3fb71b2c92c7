//! How long a step takes in closed form (Asteroid: Ye et al., MobiCom 2024, equations 4 to 6, 8 and 11): stages and the
//! transfers between them take turns as steps of the pipeline, and the dominant one sets the pace.
//!
//! With `x(i)` the time of pipeline step i for a micro-batch, forward and backward, `M` micro-batches and `T_a` the reduction
//! of gradients, the paper's latency is `max over s of (T_w(s) + T_e(s) + T_a(s))`. Written out, all terms but the reductions
//! come to `L = max over c of (M x(c) + sum of x(i), i < c)`, whose maximum is at the dominant step, and the latency to
//! `L + max over s of (T_a(s) - sum of backward times i < s)`. Both are known of a pipeline's tail and grow step by step towards
//! its head, so dynamic programming can carry them along: that is [`Tail`]. Deviations: where a link carries both directions at
//! once, its pace is that of the slower direction; a stage with `K` micro-batches in flight gets no more than those through in
//! the time of one way to the end and back, which the paper's K_p always hides where memory has room for it; and raw samples
//! that the first stage does not have are a transfer before it.

use super::costs::Costs;
use super::events::overlaps;
use super::group::{Group, raw};

/// What takes a micro-batch from a stage to the next, and its gradient back: how long links are busy, and the delay after that.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Transfer {
    pub(crate) seconds: [f64; 2],
    pub(crate) delay: [f64; 2],
}

/// A pipeline from some stage to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tail {
    /// Seconds from its first forward pass to its last backward pass (`L`).
    pub(crate) latency: f64,
    /// Seconds for which reductions and updates go on after that; below 0 where they are made before.
    pub(crate) reduce: f64,
    /// Seconds of one micro-batch all the way to the end and back.
    pub(crate) way: f64,
}

impl Tail {
    /// Nothing behind the last stage.
    pub(crate) const END: Self = Self {
        latency: 0.0,
        reduce: f64::NEG_INFINITY,
        way: 0.0,
    };

    /// With a stage before it, of so many seconds forward and backward and for its reduction and update, and so many
    /// micro-batches in flight.
    pub(crate) fn behind_stage(
        self,
        n_micro: usize,
        passes: [f64; 2],
        reduce: f64,
        in_flight: usize,
    ) -> Self {
        let both = passes[0] + passes[1];
        let way = both + self.way;
        let turns = n_micro.div_ceil(in_flight.max(1)) as f64;
        let latency = (n_micro as f64 * both).max(both + self.latency);
        Self {
            latency: latency.max(turns * way),
            reduce: reduce.max(self.reduce - passes[1]),
            way,
        }
    }

    /// With a transfer before it.
    pub(crate) fn behind_transfer(self, n_micro: usize, transfer: Transfer, shared: bool) -> Self {
        let Transfer { seconds, delay } = transfer;
        let [there, back] = seconds;
        let both = there + back + delay[0] + delay[1];
        let pace = if shared {
            there + back
        } else {
            there.max(back)
        };
        Self {
            latency: (n_micro as f64 * pace).max(both + self.latency),
            reduce: self.reduce - back - delay[1],
            way: both + self.way,
        }
    }

    /// With raw samples that come to the first stage, so many seconds for each micro-batch.
    pub(crate) fn behind_samples(self, n_micro: usize, seconds: f64) -> Self {
        Self {
            latency: (n_micro as f64 * seconds).max(seconds + self.latency),
            ..self
        }
    }

    /// Whether nothing is worse than of another tail.
    pub(crate) fn is_as_good_as(&self, other: &Self) -> bool {
        self.latency <= other.latency && self.reduce <= other.reduce && self.way <= other.way
    }

    /// Seconds of a step of the whole pipeline.
    pub(crate) fn seconds(&self) -> f64 {
        self.latency + self.reduce.max(0.0)
    }
}

/// Seconds for a group's reduction and the slowest update after it.
pub(crate) fn reduce_and_update(costs: &Costs<'_>, group: &Group) -> f64 {
    let reduction = group.reduction(costs).map_or(0.0, |(_, seconds)| seconds);
    let update = |device| costs.seconds(device, &group.blocks, 1)[2];
    reduction + group.devices().map(update).fold(0.0, f64::max)
}

/// Seconds that a micro-batch takes from one group to the next, and its gradient back: those of whoever sends or receives
/// longest.
pub(crate) fn transfer(costs: &Costs<'_>, from: &Group, to: &Group) -> Transfer {
    let mut delay = [0.0f64; 2];
    let mut senders = vec![[0.0; 2]; from.shares.len()];
    let mut receivers = vec![[0.0; 2]; to.shares.len()];
    for (sender, receiver, samples) in overlaps(from, to) {
        let (a, b) = (from.shares[sender].device, to.shares[receiver].device);
        let bytes = costs.bytes_into(to.blocks.start, samples);
        let [there, delay_there] = costs.links.message(a, b, bytes);
        let [back, delay_back] = costs.links.message(b, a, bytes);
        delay = [delay[0].max(delay_there), delay[1].max(delay_back)];
        for (sum, seconds) in [0, 1].into_iter().zip([there, back]) {
            senders[sender][sum] += seconds;
            receivers[receiver][sum] += seconds;
        }
    }
    let seconds = if costs.links.shared {
        // One message at a time.
        senders
            .iter()
            .fold([0.0; 2], |sum, own| [sum[0] + own[0], sum[1] + own[1]])
    } else {
        let all = senders.iter().chain(&receivers);
        all.fold([0.0f64; 2], |most, own| {
            [most[0].max(own[0]), most[1].max(own[1])]
        })
    };
    Transfer { seconds, delay }
}

/// Seconds of a step of these groups, in closed form.
pub(crate) fn estimate(costs: &Costs<'_>, groups: &[Group]) -> f64 {
    let n_micro = costs.work.n_micro;
    let mut tail = Tail::END;
    for (position, group) in groups.iter().enumerate().rev() {
        if let Some(next) = groups.get(position + 1) {
            let transfer = transfer(costs, group, next);
            tail = tail.behind_transfer(n_micro, transfer, costs.links.shared);
        }
        let reduce = reduce_and_update(costs, group);
        tail = tail.behind_stage(n_micro, group.seconds(costs), reduce, group.in_flight);
    }
    if let Some(first) = groups.first() {
        tail = tail.behind_samples(n_micro, raw(costs, &first.blocks, &first.shares));
    }
    tail.seconds()
}

/// Seconds that a step takes at least, whatever the order of events: those for which one device computes or its group reduces,
/// and those for which all its messages take in one direction.
pub(crate) fn bound(costs: &Costs<'_>, groups: &[Group]) -> f64 {
    let n_micro = costs.work.n_micro as f64;
    let first = groups.first();
    let raw = first.map_or(0.0, |first| raw(costs, &first.blocks, &first.shares));
    let mut most = n_micro * raw;
    for (position, group) in groups.iter().enumerate() {
        let reduction = group.reduction(costs).map_or(0.0, |(_, seconds)| seconds);
        for share in &group.shares {
            let [forward, backward, update] =
                costs.seconds(share.device, &group.blocks, share.samples);
            most = most.max(n_micro * (forward + backward) + reduction + update);
        }
        if let Some(next) = groups.get(position + 1) {
            let [there, back] = transfer(costs, group, next).seconds;
            let pace = if costs.links.shared {
                there + back
            } else {
                there.max(back)
            };
            most = most.max(n_micro * pace);
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Equations 4 to 6 and 11 as the paper has them, for steps of forward and backward seconds and reductions.
    fn latency_of_the_paper(n_micro: f64, steps: &[([f64; 2], f64)]) -> f64 {
        let x = |i: usize| steps[i].0[0] + steps[i].0[1];
        let before = |s: usize| (0..s).map(x).sum::<f64>();
        let dominant = (0..steps.len())
            .max_by(|a, b| {
                let value = |c: usize| n_micro * x(c) + before(c);
                value(*a).total_cmp(&value(*b))
            })
            .unwrap();
        let of = |s: usize| {
            let waiting: f64 = steps[..s].iter().map(|step| step.0[0]).sum();
            let between = |range: std::ops::Range<usize>| range.map(x).sum::<f64>();
            let execution = n_micro * x(dominant)
                + if s < dominant {
                    between(s..dominant)
                } else {
                    -between(dominant..s)
                };
            waiting + execution + steps[s].1
        };
        (0..steps.len()).map(of).fold(0.0, f64::max)
    }

    proptest! {
        #[test]
        fn the_tail_is_the_latency_of_the_paper(
            stages in proptest::collection::vec((0.1f64..3.0, 0.1f64..3.0, 0.0f64..20.0, 0.0f64..3.0, 0.0f64..3.0), 1..6),
            n_micro in 1usize..20,
        ) {
            let mut tail = Tail::END;
            let mut steps = Vec::new();
            for (position, (forward, backward, reduce, there, back)) in stages.iter().enumerate().rev() {
                if position + 1 < stages.len() {
                    let seconds = [*there, *back];
                    tail = tail.behind_transfer(n_micro, Transfer { seconds, ..Transfer::default() }, true);
                    steps.insert(0, ([*there, *back], 0.0));
                }
                tail = tail.behind_stage(n_micro, [*forward, *backward], *reduce, n_micro);
                steps.insert(0, ([*forward, *backward], *reduce));
            }
            let expected = latency_of_the_paper(n_micro as f64, &steps);
            prop_assert!((tail.seconds() - expected).abs() < 1e-9 * expected, "{} {}", tail.seconds(), expected);
        }
    }
}

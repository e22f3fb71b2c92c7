//! What a replica does with its own updates between two commits, and with what comes from others: pure arithmetic on slices,
//! for the training thread.
//!
//! *Share*: each step applies the mean gradient by the peer's share of the global batch; a commit hands on the sum over samples.
//! *Full* (local SGD; ADSP, Hu, Wang and Wu, AAAI 2020): each step applies all of its update; a commit hands on the change of
//! the parameters, of which one part in the number of members stays, as of everybody's.
//!
//! Bounds: one arena, and for an outer optimiser another.

use crate::pacing::outer::Outer;

/// What a commit holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// Steps since the last commit.
    pub n_steps: u32,
    /// Samples behind them.
    pub samples: u64,
}

/// The own updates since the last commit.
#[derive(Debug)]
pub struct Local {
    full: bool,
    outer: Option<Outer>,
    /// Share: the sum over samples of gradients. Full: the parameters at the last commit, with what was merged since.
    arena: Vec<f32>,
    owed: Owed,
    /// The arena is from before what the parameters are now.
    stale: bool,
}

impl Local {
    /// Nothing is owed. `outer`: the step on the mean change, where all commit together.
    pub fn new(full: bool, outer: Option<Outer>) -> Self {
        Self {
            full,
            outer,
            arena: Vec::new(),
            owed: Owed::default(),
            stale: true,
        }
    }

    /// Whether steps are applied in full.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// What has been summed up.
    pub fn owed(&self) -> Owed {
        self.owed
    }

    /// The parameters are others now, or nobody is owed anything: begins anew.
    pub fn forget(&mut self) {
        self.owed = Owed::default();
        self.stale = true;
    }

    /// Before a step: where the change begins is kept.
    pub fn begin_step(&mut self, parameters: &[f32]) {
        if self.full && std::mem::take(&mut self.stale) {
            self.arena.clear();
            self.arena.extend_from_slice(parameters);
            self.owed = Owed::default();
        }
    }

    /// A step was made on `samples` samples with this mean gradient.
    pub fn stepped(&mut self, gradient: &[f32], samples: u64) {
        if !self.full {
            let weight = samples as f32;
            if std::mem::take(&mut self.stale) || self.owed.n_steps == 0 {
                self.owed = Owed::default();
                self.arena.clear();
                self.arena
                    .extend(gradient.iter().map(|value| weight * value));
            } else {
                let pairs = self.arena.iter_mut().zip(gradient);
                pairs.for_each(|(sum, value)| *sum += weight * value);
            }
        }
        self.owed.n_steps += 1;
        self.owed.samples += samples;
    }

    /// Nobody waits: moves what is owed into `out`. Full: `parameters` keep one part in `members` of it.
    pub fn commit(&mut self, parameters: &mut [f32], members: usize, out: &mut Vec<f32>) -> Owed {
        if self.full {
            let keep = 1.0 / members.max(1) as f32;
            out.clear();
            out.extend(
                self.arena
                    .iter()
                    .zip(&*parameters)
                    .map(|(then, now)| then - now),
            );
            for ((value, then), change) in parameters.iter_mut().zip(&mut self.arena).zip(&*out) {
                *value = *then - keep * change;
                *then = *value;
            }
        } else {
            std::mem::swap(out, &mut self.arena);
        }
        std::mem::take(&mut self.owed)
    }

    /// Full, nobody waits: what others sent moves the parameters, and is no change of this peer's.
    pub fn merge(&mut self, parameters: &mut [f32], merged: &[f32]) {
        let both = parameters.iter_mut().zip(self.arena.iter_mut()).zip(merged);
        if self.stale {
            let pairs = parameters.iter_mut().zip(merged);
            pairs.for_each(|(value, change)| *value -= change);
        } else {
            both.for_each(|((value, then), change)| {
                *value -= change;
                *then -= change;
            });
        }
    }

    /// Full, all wait: the change since the last round.
    pub fn change(&self, parameters: &[f32], out: &mut Vec<f32>) {
        out.clear();
        out.extend(
            self.arena
                .iter()
                .zip(parameters)
                .map(|(then, now)| then - now),
        );
    }

    /// Full, all wait: the mean change of all is made, by the outer optimiser where there is one.
    pub fn adopt(&mut self, parameters: &mut [f32], mean: &mut [f32]) {
        match &mut self.outer {
            Some(outer) => {
                mean.iter_mut().for_each(|change| *change = -*change);
                // Neither length nor values can be wrong: the sum was checked. A change that is not finite is left out.
                let _ = outer.step(&mut self.arena, mean);
            }
            None => {
                let pairs = self.arena.iter_mut().zip(&*mean);
                pairs.for_each(|(then, change)| *then -= change);
            }
        }
        parameters.copy_from_slice(&self.arena);
        self.owed = Owed::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_handed_on_as_the_sum_over_samples() {
        let mut local = Local::new(false, None);
        let mut parameters = [1.0, 1.0];
        local.begin_step(&parameters);
        local.stepped(&[1.0, 2.0], 4);
        local.stepped(&[0.5, 0.0], 2);
        let mut out = Vec::new();
        let owed = local.commit(&mut parameters, 3, &mut out);
        assert_eq!(
            (out, owed),
            (
                vec![5.0, 8.0],
                Owed {
                    n_steps: 2,
                    samples: 6
                }
            )
        );
        assert_eq!(parameters, [1.0, 1.0]);
        local.stepped(&[1.0, 1.0], 1);
        let mut out = Vec::new();
        local.commit(&mut parameters, 3, &mut out);
        assert_eq!(out, [1.0, 1.0], "what was handed on is owed no more");
    }

    #[test]
    fn full_steps_keep_one_part_in_the_number_of_members() {
        let mut local = Local::new(true, None);
        let mut parameters = [10.0, 0.0];
        local.begin_step(&parameters);
        parameters = [4.0, 3.0];
        local.stepped(&[0.0, 0.0], 8);
        local.merge(&mut parameters, &[1.0, 0.0]);
        assert_eq!(parameters, [3.0, 3.0]);
        let mut out = Vec::new();
        local.commit(&mut parameters, 3, &mut out);
        assert_eq!(out, [6.0, -3.0], "what was merged is no own change");
        assert_eq!(parameters, [7.0, 1.0]);
        local.begin_step(&parameters);
        parameters = [6.0, 1.0];
        local.stepped(&[0.0, 0.0], 8);
        local.commit(&mut parameters, 1, &mut out);
        assert_eq!(out, [1.0, 0.0]);
        assert_eq!(parameters, [6.0, 1.0], "alone it keeps all");
    }

    #[test]
    fn a_round_of_all_ends_at_the_mean_for_all() {
        let mut local = Local::new(true, None);
        let mut parameters = [2.0];
        local.begin_step(&parameters);
        parameters = [0.0];
        local.stepped(&[0.0], 1);
        let mut out = Vec::new();
        local.change(&parameters, &mut out);
        assert_eq!(out, [2.0]);
        local.adopt(&mut parameters, &mut [1.5]);
        assert_eq!((parameters, local.owed()), ([0.5], Owed::default()));
    }
}

//! The outer optimiser of local SGD, a baseline: a Nesterov step on the averaged change of the parameters.
//!
//! Douillard et al., "DiLoCo", arXiv:2311.08105, algorithm 1: every peer trains on its own for many steps; the mean change of
//! all is the outer gradient (its negative, here). In: the parameters at the last outer step and that mean. Out: the new ones.

/// The outer optimiser's settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Outer learning rate; 1 with no momentum is plain averaging.
    pub lr: f32,
    /// Nesterov momentum, 0 to 1 (1 excluded).
    pub momentum: f32,
}

impl Default for Settings {
    /// The paper's best: 0.7 and 0.9.
    fn default() -> Self {
        Self {
            lr: 0.7,
            momentum: 0.9,
        }
    }
}

/// Why a change was not applied; nothing was altered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OuterError {
    /// Parameters, change and optimiser are not of one length.
    #[error("an outer step over {expected} values was given {got}")]
    Length {
        /// Values of the optimiser.
        expected: usize,
        /// Values given.
        got: usize,
    },
    /// The change would spoil the parameters and the velocity for good.
    #[error("entry {entry} of the averaged change is not finite")]
    NotFinite {
        /// The first such entry.
        entry: usize,
    },
}

/// The outer optimiser of one replica: the same on all peers, as all see the same mean.
#[derive(Clone, Debug)]
pub struct Outer {
    settings: Settings,
    velocity: Vec<f32>,
}

impl Outer {
    /// An optimiser at rest for `n_values` parameters; holds as many values itself.
    pub fn new(settings: Settings, n_values: usize) -> Self {
        Self {
            settings,
            velocity: vec![0.0; n_values],
        }
    }

    /// Moves `parameters` (as they were at the last outer step) by `change`, the mean over peers of new minus old.
    ///
    /// # Errors
    /// [`OuterError`]: nothing was altered.
    pub fn step(&mut self, parameters: &mut [f32], change: &[f32]) -> Result<(), OuterError> {
        let expected = self.velocity.len();
        for got in [parameters.len(), change.len()] {
            if got != expected {
                return Err(OuterError::Length { expected, got });
            }
        }
        if let Some(entry) = change.iter().position(|value| !value.is_finite()) {
            return Err(OuterError::NotFinite { entry });
        }
        let Settings { lr, momentum } = self.settings;
        for ((parameter, velocity), change) in
            parameters.iter_mut().zip(&mut self.velocity).zip(change)
        {
            *velocity = momentum * *velocity + change;
            *parameter += lr * (change + momentum * *velocity);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_one_without_momentum_is_plain_averaging() {
        let mut outer = Outer::new(
            Settings {
                lr: 1.0,
                momentum: 0.0,
            },
            2,
        );
        let mut parameters = [1.0, 2.0];
        outer.step(&mut parameters, &[0.5, -1.0]).unwrap();
        assert_eq!(parameters, [1.5, 1.0]);
    }

    #[test]
    fn two_steps_follow_nesterovs_rule() {
        let mut outer = Outer::new(
            Settings {
                lr: 0.5,
                momentum: 0.8,
            },
            1,
        );
        let mut parameters = [0.0];
        outer.step(&mut parameters, &[1.0]).unwrap();
        assert!((parameters[0] - 0.5 * 1.8).abs() < 1e-6, "velocity 1");
        outer.step(&mut parameters, &[1.0]).unwrap();
        assert!(
            (parameters[0] - (0.9 + 0.5 * (1.0 + 0.8 * 1.8))).abs() < 1e-6,
            "velocity 1.8"
        );
    }

    #[test]
    fn a_change_that_is_refused_alters_nothing() {
        let mut outer = Outer::new(Settings::default(), 2);
        let mut parameters = [1.0, 2.0];
        assert_eq!(
            outer.step(&mut parameters, &[1.0]),
            Err(OuterError::Length {
                expected: 2,
                got: 1
            })
        );
        assert_eq!(
            outer.step(&mut parameters, &[1.0, f32::NAN]),
            Err(OuterError::NotFinite { entry: 1 })
        );
        assert_eq!((parameters, outer.velocity), ([1.0, 2.0], vec![0.0, 0.0]));
    }
}

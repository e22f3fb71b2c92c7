//! ADACOMM, a baseline: everybody makes tau local steps, then all average; tau falls with the loss.
//!
//! Wang, Joshi, "Adaptive Communication Strategies", SysML 2019, as ADSP's authors run it: after each period
//! `tau' = ceil(tau_0 * sqrt(F / F_0))`, used if it is lower than tau, else tau is halved (rounded up). Fixed ADACOMM is a constant
//! tau and needs none of this.

/// The rule and where it stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaComm {
    first: u32,
    tau: u32,
    first_loss: Option<f64>,
}

impl AdaComm {
    /// Begins with `tau_0` local steps, at least 1.
    pub fn new(tau_0: u32) -> Self {
        Self {
            first: tau_0.max(1),
            tau: tau_0.max(1),
            first_loss: None,
        }
    }

    /// Local steps between two averages.
    pub fn tau(&self) -> u32 {
        self.tau
    }

    /// A period has ended with this mean training loss; the first one is F_0. A loss that is not positive and finite changes
    /// nothing.
    pub fn period_ended(&mut self, train_loss: f64) {
        if !(train_loss > 0.0 && train_loss.is_finite()) {
            return;
        }
        let Some(first_loss) = self.first_loss else {
            self.first_loss = Some(train_loss);
            return;
        };
        let wished = (f64::from(self.first) * (train_loss / first_loss).sqrt()).ceil();
        self.tau = if wished < f64::from(self.tau) {
            (wished as u32).max(1)
        } else {
            self.tau.div_ceil(2)
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tau_follows_the_root_of_the_loss_and_halves_when_that_does_not_fall() {
        let mut rule = AdaComm::new(40);
        let mut after = |loss| {
            rule.period_ended(loss);
            rule.tau()
        };
        assert_eq!(after(2.0), 40, "the first loss is the measure");
        assert_eq!(after(1.0), 29);
        assert_eq!(after(1.0), 15, "no lower: halved");
        assert_eq!(after(f64::NAN), 15);
        assert_eq!(after(0.005), 2);
        assert_eq!(after(9.0), 1);
        assert_eq!(after(9.0), 1);
    }

    proptest! {
        #[test]
        fn tau_never_grows_and_never_ends(tau_0: u32, losses: Vec<f64>) {
            let mut rule = AdaComm::new(tau_0);
            for loss in losses {
                let before = rule.tau();
                rule.period_ended(loss);
                prop_assert!((1..=before).contains(&rule.tau()));
            }
        }
    }
}

//! What a mesh can be planned with: the step, the devices, their links and where the data is. It can be saved, edited and read
//! again, to ask what if.

use serde::{Deserialize, Serialize};

use super::costs::Costs;
use super::work::{Data, Device, Links, PlanError, Work};

/// See the module's header. As TOML or JSON it is what `skein plan` saves and reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Problem {
    /// Where the samples are.
    #[serde(default)]
    pub data: Data,
    /// Fewest samples that a device can train with at once: more than one where it normalises over them.
    #[serde(default = "one")]
    pub least_samples: usize,
    /// The step that is planned.
    pub work: Work,
    /// Who may take part.
    pub devices: Vec<Device>,
    /// The links between them.
    pub links: Links,
}

fn one() -> usize {
    1
}

impl Problem {
    /// Refuses figures that cannot be, and steps that overlap: no planner of whole problems knows them. A link that is missing
    /// has a rate of 0.
    ///
    /// # Errors
    /// What cannot be, by device where it is one's.
    pub fn check(&self) -> Result<(), PlanError> {
        self.check_figures()?;
        if self.work.overlaps() {
            return Err(PlanError::Overlapping);
        }
        Ok(())
    }

    /// Refuses figures that cannot be; steps may overlap.
    ///
    /// # Errors
    /// What cannot be, by device where it is one's.
    pub fn check_figures(&self) -> Result<(), PlanError> {
        self.work.check(&self.devices, &self.links)?;
        if let Data::At(device) = self.data
            && device >= self.devices.len()
        {
            let what = "the data is on it, but it is none of the devices";
            return Err(PlanError::Device { device, what });
        }
        if !(1..=self.work.micro_batch).contains(&self.least_samples) {
            return Err(PlanError::Step {
                n_micro: self.work.n_micro,
                micro_batch: self.work.micro_batch,
            });
        }
        Ok(())
    }

    /// The same without the device of this number; those behind it move up. None if there is no such device, no other, it
    /// alone has the data, or figures cannot be.
    pub fn without(&self, device: usize) -> Option<Self> {
        self.check_figures().ok()?;
        let n = self.devices.len();
        let data = match self.data {
            Data::At(at) if at == device => return None,
            Data::At(at) if at > device => Data::At(at - 1),
            data => data,
        };
        if device >= n || n == 1 {
            return None;
        }
        let mut without = Self {
            data,
            ..self.clone()
        };
        without.devices.remove(device);
        without.links.rate.remove(device);
        if !without.links.latency.is_empty() {
            without.links.latency.remove(device);
        }
        let Links { rate, latency, .. } = &mut without.links;
        for row in rate.iter_mut().chain(latency) {
            row.remove(device);
        }
        Some(without)
    }

    /// The same with one more device, the last: `rates` and `delays` are those from it to each of the others, and back.
    ///
    /// # Errors
    /// Figures that cannot be, before or then.
    pub fn with(
        &self,
        device: Device,
        rates: &[[f64; 2]],
        delays: &[[f64; 2]],
    ) -> Result<Self, PlanError> {
        self.check_figures()?;
        let n = self.devices.len();
        if rates.len() != n || delays.len() != n {
            let what = "the links do not name a rate to every device";
            return Err(PlanError::Device { device: n, what });
        }
        let mut with = self.clone();
        with.devices.push(device);
        if with.links.latency.is_empty() {
            with.links.latency = vec![vec![0.0; n]; n];
        }
        for (matrix, own) in [
            (&mut with.links.rate, rates),
            (&mut with.links.latency, delays),
        ] {
            for (row, both) in matrix.iter_mut().zip(own) {
                row.push(both[1]);
            }
            let last = own.iter().map(|both| both[0]).chain([0.0]);
            matrix.push(last.collect());
        }
        with.check_figures()?;
        Ok(with)
    }

    /// Sums for planning; the figures are known to be sound.
    pub(crate) fn costs(&self) -> Costs<'_> {
        let mut costs = Costs::new(&self.work, &self.devices, &self.links);
        costs.data = self.data;
        costs.least_samples = self.least_samples;
        costs
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::Stashing;

    const EDITED: &str = r#"
        data = { at = 1 }
        [work]
        micro_batch = 8
        n_micro = 4
        [work.profile]
        input_bytes = 3072
        [[work.profile.blocks]]
        forward = [[1, 0.004], [8, 0.02]]
        backward = [[8, 0.04]]
        output_bytes = 4096
        parameter_bytes = 1000
        state_bytes = 3000
        kept_bytes = 8192
        [[devices]]
        name = "board"
        capacity = 3
        memory_bytes = 1_000_000
        [[devices]]
        name = "desk"
        [[devices.times]]
        forward = [[1, 0.001], [8, 0.002]]
        backward = [[1, 0.001], [8, 0.004]]
        [links]
        rate = [[0, 12.5e6], [12.5e6, 0]]
    "#;

    #[test]
    fn a_problem_can_be_written_by_hand() {
        let problem: Problem = toml::from_str(EDITED).unwrap();
        problem.check().unwrap();
        assert_eq!(problem.devices[1].memory_bytes, u64::MAX);
        assert_eq!((problem.data, problem.least_samples), (Data::At(1), 1));
        let costs = problem.costs();
        let [board, ..] = costs.seconds(0, &(0..1), 8);
        let [desk, ..] = costs.seconds(1, &(0..1), 8);
        assert!((board - 0.06).abs() < 1e-12 && (desk - 0.002).abs() < 1e-12);
        let misspelt = EDITED.replace("memory_bytes", "memory");
        let error = toml::from_str::<Problem>(&misspelt)
            .unwrap_err()
            .to_string();
        assert!(error.contains("memory"), "{error}");
    }

    #[test]
    fn steps_that_overlap_are_refused_before_anything_is_planned() {
        let mut problem: Problem = toml::from_str(EDITED).unwrap();
        problem.work.stashing = Stashing::Own;
        assert_eq!(problem.check(), Err(PlanError::Overlapping));
        assert_eq!(crate::plan::hybrid(&problem), Err(PlanError::Overlapping));
    }

    #[test]
    fn a_device_can_be_left_out() {
        let mut problem: Problem = toml::from_str(EDITED).unwrap();
        assert_eq!(problem.without(0).unwrap().check(), Ok(()));
        problem.links.latency = vec![vec![0.0, 0.1], vec![0.2, 0.3]];
        let rest = problem.without(0).unwrap();
        assert_eq!((rest.data, rest.devices.len()), (Data::At(0), 1));
        assert_eq!(rest.links.latency, [[0.3]]);
        rest.check().unwrap();
        assert_eq!(problem.without(1), None, "the data is on it");
        assert_eq!(problem.without(7), None);
        assert_eq!(rest.without(0), None);
    }

    #[test]
    fn a_device_can_be_added_and_left_out_again() {
        let mut problem: Problem = toml::from_str(EDITED).unwrap();
        let board = Device {
            capacity: 2.0,
            ..Device::default()
        };
        let with = problem
            .with(board.clone(), &[[1.0, 2.0], [3.0, 4.0]], &[[0.0, 0.5]; 2])
            .unwrap();
        assert_eq!(with.links.rate[2], [1.0, 3.0, 0.0]);
        assert_eq!((with.links.rate[0][2], with.links.rate[1][2]), (2.0, 4.0));
        assert_eq!(with.links.latency[0], [0.0, 0.0, 0.5]);
        problem.links.latency = vec![vec![0.0; 2]; 2];
        assert_eq!(with.without(2), Some(problem.clone()));
        assert!(
            problem
                .with(board.clone(), &[[1.0; 2]], &[[0.0; 2]])
                .is_err()
        );
        let error = problem.with(board, &[[f64::NAN; 2]; 2], &[[0.0; 2]; 2]);
        assert!(matches!(error, Err(PlanError::Device { device: 0, .. })));
    }

    proptest! {
        #[test]
        fn what_is_saved_is_what_is_read(seed in 0u64..1000) {
            let problem = crate::plan::hybrid::drawn(seed, 3, 4, 8, 4);
            let as_toml = toml::to_string(&problem).unwrap();
            prop_assert_eq!(toml::from_str::<Problem>(&as_toml).unwrap(), problem.clone());
            // JSON as it is read here may be off by the last bit.
            let as_json = serde_json::to_string(&problem).unwrap();
            let read = serde_json::from_str::<Problem>(&as_json).unwrap();
            let seconds = |problem: &Problem| problem.costs().seconds(2, &(0..4), 5);
            for (read, written) in seconds(&read).into_iter().zip(seconds(&problem)) {
                prop_assert!((read - written).abs() <= 1e-12 * written);
            }
            prop_assert_eq!(read.devices.len(), 3);
        }
    }
}

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
    /// Refuses figures that cannot be. A link that is missing has a rate of 0.
    ///
    /// # Errors
    /// What cannot be, by device where it is one's.
    pub fn check(&self) -> Result<(), PlanError> {
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
        self.check().ok()?;
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
        for row in &mut without.links.rate {
            row.remove(device);
        }
        Some(without)
    }

    /// Sums for planning; the figures are known to be sound.
    pub(crate) fn costs(&self) -> Costs<'_> {
        let mut costs = Costs::new(&self.work, &self.devices, &self.links);
        costs.data = self.data;
        costs.least_samples = self.least_samples;
        costs
    }
}

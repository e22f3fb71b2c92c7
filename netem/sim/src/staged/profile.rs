//! What the blocks of a job's model cost on one whole core: measured here, or read from a file that was measured before.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use skein_model::config::ModelConfig;
use skein_model::data;
use skein_model::plan::{self, Profile};
use skein_model::runtime;
use skein_model::stage::{BlockLayout, block_layouts};
use skein_netem::scenario::Scenario;
use skein_node::job::JobFile;

/// Passes per block and size of which the fastest counts.
const PASSES: usize = 5;
/// Most bytes of a file.
const MAX_BYTES: u64 = 4 << 20;

/// See the module's header. As TOML it is what `skein-netem profile` writes and `sim.profile` names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measured {
    /// Version of libtorch that it was measured with.
    libtorch: String,
    /// Shape of a sample.
    pub(super) input: [i64; 3],
    /// Classes, or tokens.
    pub(super) classes: i64,
    /// State vectors of the optimiser.
    optimiser: Vec<String>,
    model: ModelConfig,
    /// Seconds are those of one thread on a whole core.
    pub(super) profile: Profile,
}

/// Measures the job's model on one thread of this machine.
///
/// # Errors
/// In words: a model that cannot be cut; data whose shape is not known without reading it, and that cannot be read.
pub(crate) fn measure(file: &JobFile) -> Result<String, String> {
    let measured = Measured::here(file)?;
    let about = "# What the blocks of a model cost on one core, for `sim.profile`: written by skein-netem profile.\n\n";
    let text = toml::to_string(&measured).map_err(|error| error.to_string())?;
    Ok(format!("{about}{text}"))
}

impl Measured {
    fn here(file: &JobFile) -> Result<Self, String> {
        let (input, classes) = match data::known_shape(&file.data) {
            Some(shape) => shape,
            None => {
                let loaded = data::load(&file.data, &BTreeMap::new());
                let train = loaded.map_err(|error| error.to_string())?.train;
                (train.input_shape(), train.n_classes())
            }
        };
        runtime::set_threads(1);
        let samples = file.strategy.pipeline.samples(file.train.batch, 0) as usize;
        let optimiser = &file.train.optimiser;
        let profile = plan::measure(&file.model, input, classes, optimiser, samples, PASSES);
        Ok(Self {
            libtorch: runtime::libtorch_version().to_owned(),
            input,
            classes,
            optimiser: names(file),
            model: file.model.clone(),
            profile: profile.map_err(|error| error.to_string())?,
        })
    }

    /// The profile that the scenario names, or one that is measured now.
    ///
    /// # Errors
    /// In words: a file that cannot be read or is of another model; what [`measure`] says.
    pub(super) fn of(scenario: &Scenario, file: &JobFile) -> Result<Self, String> {
        let Some(path) = &scenario.sim.profile else {
            return Self::here(file);
        };
        let path = scenario.folder.join(path);
        let (shown, again) = (path.display(), "write it with skein-netem profile");
        let text = read(&path).map_err(|error| format!("sim.profile {shown}: {error}; {again}"))?;
        let measured: Self = toml::from_str(&text)
            .map_err(|error| format!("sim.profile {shown} is none: {error}; {again}"))?;
        let is_known = measured.profile.check();
        is_known.map_err(|error| format!("sim.profile {shown}: {error}"))?;
        let is_of_job = measured.model == file.model && measured.optimiser == names(file);
        let blocks = &measured.profile.blocks;
        match is_of_job && measured.layouts(file)?.len() == blocks.len() {
            true => Ok(measured),
            false => Err(format!(
                "sim.profile {shown} is of another model or optimiser than the job's; {again}"
            )),
        }
    }

    /// Sizes of the blocks.
    pub(super) fn layouts(&self, file: &JobFile) -> Result<Vec<BlockLayout>, String> {
        let layouts = block_layouts(&file.model, self.input, self.classes, &file.train.optimiser);
        layouts.map_err(|error| error.to_string())
    }
}

fn names(file: &JobFile) -> Vec<String> {
    let names = file.train.optimiser.state_names().iter();
    names.map(|name| (*name).to_owned()).collect()
}

fn read(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

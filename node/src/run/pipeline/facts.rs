//! What all peers of a pipeline know of the model without holding it: its blocks, their sizes, what passes between them.

use skein_gossip::ids::Digest;
use skein_gossip::pipeline::frame::MAX_MICRO;
use skein_gossip::pipeline::message::DataShape;
use skein_model::config::{ModelConfig, OptimiserConfig};
use skein_model::data::{Normalisation, Splits};
use skein_model::model::Layout;
use skein_model::plan::{self, Work};
use skein_model::stage::{BlockLayout, Depth, Stage, Stashed, block_layouts, boundary_shapes};

use crate::job::JobFile;
use crate::job::strategy::{Kind, Pipeline};
use crate::planning;

/// Most held-out samples per micro-batch of a look.
const LOOK_SAMPLES: u32 = 64;

/// See the module's header.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) config: ModelConfig,
    pub(super) optimiser: OptimiserConfig,
    pub(super) seed: u64,
    pub(super) data: DataShape,
    pub(super) pipeline: Pipeline,
    /// Samples of a step.
    pub(super) batch: u32,
    /// Whether plans are those of tiers, and raw samples may not leave the peer that has them.
    pub(super) is_tiered: bool,
    pub(super) is_private: bool,
    /// Samples of each micro-batch where stages may have several hosts, else 0.
    pub(super) rows: u32,
    /// Sizes of the whole model's state.
    pub(super) layout: Layout,
    /// One per block.
    pub(super) blocks: Vec<BlockLayout>,
    /// Shape per sample of what each block gives on.
    pub(super) shapes: Vec<Vec<i64>>,
    /// Micro-batches of a look, samples of each and in all: no more than a micro-batch of a step has, so that a look fits wherever a
    /// step does, unless that would be too many.
    pub(super) looks: u32,
    look_micro: u32,
    pub(super) look_samples: u32,
}

/// What the data looks like to those that do not hold it.
pub(super) fn shape_of(data: &Splits) -> DataShape {
    let side = |side: i64| u32::try_from(side).unwrap_or(u32::MAX);
    let Normalisation { mean, std } = data.train.normalisation().clone();
    let values: i64 = data.train.input_shape().iter().product();
    let sample_bytes = values.unsigned_abs() as usize * data.train.value_bytes();
    DataShape {
        input: data.train.input_shape().map(side),
        classes: side(data.train.n_classes()),
        train: data.train.len() as u64,
        validation: data.validation.len() as u64,
        mean,
        std,
        tokenizer: data.tokenizer.map(Digest),
        sample_bytes: u32::try_from(sample_bytes).unwrap_or(u32::MAX),
    }
}

impl Facts {
    /// What follows from the job and the shape of its data.
    pub(super) fn new(file: &JobFile, data: &DataShape) -> Result<Self, String> {
        let input = data.input.map(i64::from);
        let classes = i64::from(data.classes);
        let optimiser = file.train.optimiser.clone();
        let words = |error: skein_model::model::ModelError| error.to_string();
        let mut layout = Layout::new(&file.model, input, classes).map_err(words)?;
        layout.optimiser = optimiser
            .state_names()
            .iter()
            .map(|name| (*name).to_owned())
            .collect();
        let shapes = boundary_shapes(&file.model, input, classes).map_err(words)?;
        let blocks = block_layouts(&file.model, input, classes, &optimiser).map_err(words)?;
        let most = skein_gossip::pipeline::plan::MAX_BLOCKS;
        if blocks.len() > usize::from(most) {
            return Err(format!(
                "the model has {} blocks; a pipeline takes at most {most}",
                blocks.len()
            ));
        }
        let look_samples = file
            .evaluate
            .samples
            .min(u32::try_from(data.validation).unwrap_or(u32::MAX));
        let most = file
            .strategy
            .pipeline
            .samples(file.train.batch, 0)
            .min(LOOK_SAMPLES);
        let look_micro = most.max(look_samples.div_ceil(MAX_MICRO)).max(1);
        Ok(Self {
            config: file.model.clone(),
            optimiser,
            seed: file.seed,
            data: data.clone(),
            pipeline: file.strategy.pipeline,
            rows: match file.strategy.kind {
                Kind::Hybrid | Kind::Tiers => file.train.batch / file.strategy.pipeline.n_micro(),
                _ => 0,
            },
            is_tiered: file.strategy.kind == Kind::Tiers,
            is_private: file.data.name.is_some(),
            batch: file.train.batch,
            layout,
            blocks,
            shapes,
            looks: look_samples.div_ceil(look_micro),
            look_micro,
            look_samples,
        })
    }

    /// Bytes of a copy of every block.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = self.blocks.iter().map(|block| block.encoded_len() as u64);
        bytes.sum()
    }

    /// What is planned: a step of this job with blocks that take what `profile` says, with sizes as they travel and the copies of
    /// neighbours.
    pub(super) fn work(&self, profile: plan::Profile) -> Work {
        planning::work(&self.pipeline, self.batch, profile, &self.blocks)
    }

    /// Whether a step that is made again is the same: where the schedule is synchronous, and no gradients of groups are added up.
    pub(super) fn is_exact(&self) -> bool {
        !self.pipeline.is_asynchronous() && self.rows == 0
    }

    /// Number of blocks.
    pub(super) fn n_blocks(&self) -> u16 {
        self.blocks.len() as u16
    }

    /// A stage with the weights that the job's seed gives.
    pub(super) fn stage(&self, blocks: std::ops::Range<u16>) -> Result<Stage, String> {
        let input = self.data.input.map(i64::from);
        let range = usize::from(blocks.start)..usize::from(blocks.end);
        let stage = Stage::new(
            &self.config,
            input,
            i64::from(self.data.classes),
            self.seed,
            range,
            self.optimiser.clone(),
        );
        let mut stage = stage.map_err(|error| error.to_string())?;
        stage.set_recompute(self.pipeline.recompute);
        Ok(stage)
    }

    /// As [`Facts::stage`], one that keeps versions of its weights; with the rate that goes with gradients that old.
    pub(super) fn stashed(
        &self,
        blocks: std::ops::Range<u16>,
        depth: Depth,
    ) -> Result<Stashed, String> {
        let input = self.data.input.map(i64::from);
        let range = usize::from(blocks.start)..usize::from(blocks.end);
        let make = || {
            let mut stage = Stashed::new(
                &self.config,
                input,
                i64::from(self.data.classes),
                self.seed,
                range,
                (self.optimiser.clone(), depth),
            )?;
            if self.pipeline.scale_rate.unwrap_or(true) {
                let rate = self.optimiser.learning_rate();
                stage.set_learning_rate(rate / depth.versions as f64)?;
            }
            stage.set_recompute(self.pipeline.recompute);
            Ok(stage)
        };
        make().map_err(|error: skein_model::stage::StageError| error.to_string())
    }

    /// Rows of the validation set in micro-batch `micro` of a look.
    pub(super) fn look_rows(&self, micro: u32) -> std::ops::Range<usize> {
        let start = micro * self.look_micro;
        start as usize..(start + self.look_micro).min(self.look_samples) as usize
    }

    /// `[samples, …]` of what block `block` gives on.
    pub(super) fn shape_behind(&self, block: u16, samples: u32) -> Vec<i64> {
        let shape = self
            .shapes
            .get(usize::from(block))
            .into_iter()
            .flatten()
            .copied();
        [i64::from(samples)].into_iter().chain(shape).collect()
    }

    /// Normalisation of the data, for the finished model's file.
    pub(super) fn normalisation(&self) -> Normalisation {
        Normalisation {
            mean: self.data.mean.clone(),
            std: self.data.std.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_takes_no_more_samples_at_once_than_a_step() {
        let shape = DataShape {
            input: [1, 4, 4],
            classes: 10,
            train: 100,
            validation: 30,
            mean: vec![0.0],
            std: vec![1.0],
            tokenizer: None,
            sample_bytes: 16,
        };
        let facts = |batch: u32| {
            let text = format!(
                "[model]\nkind = 'mlp'\n[train]\nbatch = {batch}\n[stop]\nsteps = 5\n[strategy]\nkind = 'pipeline'\n"
            );
            Facts::new(&JobFile::parse(&text).unwrap(), &shape).unwrap()
        };
        let few = facts(32);
        let rows: Vec<usize> = (0..few.looks)
            .map(|micro| few.look_rows(micro).len())
            .collect();
        assert_eq!((rows.iter().max(), rows.iter().sum()), (Some(&4), 30));
        assert_eq!(facts(4096).look_rows(0).len(), 30, "no more than there are");
    }
}

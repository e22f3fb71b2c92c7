//! Measures a profile on this device: each block alone as a stage, with samples that look like data, at a few sizes of
//! micro-batch: small ones are relatively dear.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use tch::Tensor;

use super::profile::{BlockProfile, Profile};
use super::time::Time;
use crate::config::{ModelConfig, OptimiserConfig};
use crate::data::Batch;
use crate::model::{Layout, ModelError};
use crate::random::Stream;
use crate::stage::{Activation, Input, Stage, StageError, boundary_bytes, kept_bytes};

/// A block that has taken so long at one size is not timed once more: others wait for the profile of a slow device.
const ENOUGH: Duration = Duration::from_millis(200);

/// Times every block, forward and backward, with micro-batches of `micro_batch` samples, a half, a quarter and as few as can
/// be, `repetitions` times each. Blocks are told apart by the least time of the processor, which stalls do not touch and to
/// which what else runs there can only add: a device whose share of a core is limited stands still in some passes and not in
/// others. All of them are scaled by what passes took on the wall. Holds the memory of one block at a time.
///
/// # Errors
/// A model that cannot be built or cut at every block; a micro-batch too small for it.
pub fn measure(
    config: &ModelConfig,
    input_shape: [i64; 3],
    n_classes: i64,
    optimiser: &OptimiserConfig,
    micro_batch: usize,
    repetitions: usize,
) -> Result<Profile, StageError> {
    let layout = Layout::new(config, input_shape, n_classes)?;
    let least = layout.min_train_batch() as usize;
    if micro_batch < least {
        let kind = config.kind();
        return Err(ModelError::SingleSample { kind }.into());
    }
    let mut sizes = vec![
        least,
        (micro_batch / 4).max(least),
        (micro_batch / 2).max(least),
        micro_batch,
    ];
    sizes.dedup();
    let output = boundary_bytes(config, input_shape, n_classes)?;
    let kept = kept_bytes(config, input_shape, n_classes)?;
    let batches = sizes.iter().map(|size| samples(&layout, *size));
    let batches = batches.collect::<Result<Vec<_>, _>>()?;
    let mut inputs: Vec<Option<Activation>> = sizes.iter().map(|_| None).collect();
    let mut blocks = Vec::with_capacity(output.len());
    let mut passed = Passed::default();
    for (block, (output_bytes, kept_bytes)) in output.into_iter().zip(kept).enumerate() {
        let own = block..block + 1;
        let mut stage = Stage::new(config, input_shape, n_classes, 0, own, optimiser.clone())?;
        let mut measured = vec![Passes::default(); sizes.len()];
        for ((passes, input), batch) in measured.iter_mut().zip(&mut inputs).zip(&batches) {
            *passes = time_passes(&mut stage, batch, input, repetitions.max(1), &mut passed)?;
        }
        let curve = |time: fn(&Passes) -> f64| {
            Time::measured(sizes.iter().copied().zip(measured.iter().map(time)))
        };
        let update = measured.last().map_or(0.0, |passes| passes.update);
        blocks.push(BlockProfile {
            forward: curve(|passes| passes.forward),
            backward: curve(|passes| passes.backward),
            update,
            output_bytes,
            parameter_bytes: 4 * stage.n_parameters() as u64,
            state_bytes: stage.state_bytes(),
            copies_bytes: 0,
            kept_bytes,
        });
    }
    let stalls = passed.wall.as_secs_f64() / passed.processor.as_secs_f64().max(1e-9);
    for block in &mut blocks {
        block.forward = std::mem::take(&mut block.forward).times(stalls);
        block.backward = std::mem::take(&mut block.backward).times(stalls);
        block.update *= stalls;
    }
    let input_bytes = 4 * input_shape.iter().product::<i64>().unsigned_abs();
    Ok(Profile {
        input_bytes,
        blocks,
    })
}

/// Samples as the model takes them, with labels: pixels around zero, or tokens.
fn samples(layout: &Layout, n: usize) -> Result<(Batch, Vec<i64>), StageError> {
    let mut stream = Stream::new(0, "profile");
    let [channels, height, width] = layout.input_shape;
    let len = n * layout.input_shape.iter().product::<i64>() as usize;
    let value = |stream: &mut Stream| match layout.config {
        ModelConfig::Gpt { vocabulary, .. } => stream.below(vocabulary.unsigned_abs()) as f32,
        _ => 2.0 * stream.uniform() - 1.0,
    };
    let x: Vec<f32> = (0..len).map(|_| value(&mut stream)).collect();
    let n_labels = n * layout.labels_per_sample();
    let n_classes = layout.n_classes.unsigned_abs();
    let labels: Vec<i64> = (0..n_labels)
        .map(|_| stream.below(n_classes) as i64)
        .collect();
    let x = Tensor::f_from_slice(&x)?.f_view([n as i64, channels, height, width])?; // [B, C, H, W]
    Ok((Batch::new(x, Tensor::f_from_slice(&labels)?), labels))
}

/// Least seconds of the processor.
#[derive(Clone, Copy, Debug, Default)]
struct Passes {
    forward: f64,
    backward: f64,
    update: f64,
}

/// What all passes took.
#[derive(Debug, Default)]
struct Passed {
    wall: Duration,
    processor: Duration,
}

/// Both clocks. The processor's counts all threads of this process.
struct Watch(Instant, Duration);

impl Watch {
    fn start() -> Result<Self, StageError> {
        Ok(Self(Instant::now(), processor()?))
    }

    /// Seconds of the processor since the start.
    fn seconds(&self, passed: &mut Passed) -> Result<f64, StageError> {
        let spent = processor()?.saturating_sub(self.1);
        passed.processor += spent;
        passed.wall += self.0.elapsed();
        Ok(spent.as_secs_f64())
    }
}

fn processor() -> Result<Duration, StageError> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// Times one block, and leaves its output in `input`, for the next one.
fn time_passes(
    stage: &mut Stage,
    (batch, labels): &(Batch, Vec<i64>),
    input: &mut Option<Activation>,
    repetitions: usize,
    passed: &mut Passed,
) -> Result<Passes, StageError> {
    let mut all: [Vec<f64>; 3] = Default::default();
    let (mut output, began) = (None, Instant::now());
    for round in 0..=repetitions {
        let x = || match &*input {
            None => Input::from(batch),
            Some(activation) => Input::from(activation),
        };
        // The first round warms up.
        let mut warming = Passed::default();
        let passed = if round > 0 {
            &mut *passed
        } else {
            &mut warming
        };
        let watch = Watch::start()?;
        let (forward, backward) = if stage.is_last() {
            stage.evaluate(x())?;
            let forward = watch.seconds(passed)?;
            let watch = Watch::start()?;
            stage.loss(0, 1.0, x(), labels)?;
            (forward, (watch.seconds(passed)? - forward).max(0.0))
        } else {
            let made = stage.forward(0, 1.0, x())?;
            let forward = watch.seconds(passed)?;
            let watch = Watch::start()?;
            stage.backward(0, &made)?;
            output = Some(made);
            (forward, watch.seconds(passed)?)
        };
        // An update of nothing takes as long, and leaves the weights where they are.
        stage.drop_in_flight();
        let watch = Watch::start()?;
        stage.apply()?;
        let update = watch.seconds(passed)?;
        if round > 0 {
            for (all, time) in all.iter_mut().zip([forward, backward, update]) {
                all.push(time);
            }
            if began.elapsed() > ENOUGH {
                break;
            }
        }
    }
    *input = output;
    let [forward, backward, update] = all.map(least);
    Ok(Passes {
        forward,
        backward,
        update,
    })
}

fn least(values: Vec<f64>) -> f64 {
    values.into_iter().reduce(f64::min).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_of_every_model_is_measured() {
        crate::runtime::set_threads(1);
        let gpt = |tied: bool| -> ModelConfig {
            let small = "kind = 'gpt'\nlayers = 2\nheads = 2\nwidth = 16\ncontext = 8";
            toml::from_str(&format!("{small}\ntied = {tied}")).unwrap()
        };
        for (config, shape, n_classes) in [
            (ModelConfig::Cnn {}, [1, 28, 28], 10),
            (ModelConfig::MobilenetV2 { width: 0.25 }, [3, 32, 32], 10),
            (gpt(false), [1, 1, 8], 256),
        ] {
            let optimiser = OptimiserConfig::default();
            let profile = measure(&config, shape, n_classes, &optimiser, 4, 2).unwrap();
            profile.check().unwrap();
            assert_eq!(
                profile.input_bytes,
                4 * shape.iter().product::<i64>() as u64
            );
            let seconds = profile.seconds(0..profile.blocks.len(), 4);
            assert!(seconds[0] > 0.0 && seconds[1] > 0.0, "{seconds:?}");
            let layout = Layout::new(&config, shape, n_classes).unwrap();
            let parameters: u64 = profile
                .blocks
                .iter()
                .map(|block| block.parameter_bytes)
                .sum();
            assert_eq!(parameters, 4 * layout.n_parameters() as u64);
        }
        let parted = measure(
            &gpt(true),
            [1, 1, 8],
            256,
            &OptimiserConfig::default(),
            4,
            1,
        );
        assert!(matches!(parted, Err(StageError::Tied { .. })));
        let one = measure(
            &ModelConfig::MobilenetV2 { width: 1.0 },
            [3, 32, 32],
            10,
            &OptimiserConfig::default(),
            1,
            1,
        );
        assert!(
            one.unwrap_err()
                .to_string()
                .contains("at least two samples")
        );
    }
}

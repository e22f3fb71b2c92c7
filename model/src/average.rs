//! The running mean of a replica's weights, which is what is looked at and handed out while training goes on from the weights themselves.
//!
//! SGD at a rate that makes quick progress jumps to and fro across the valley; the mean of where it was lies nearer to the floor (Polyak
//! and Juditsky 1992). In: the weights after each update. Out: their mean, with polynomial decay (Shamir and Zhang 2013): it reaches
//! over the last ninth of training, about, whatever that takes, so nothing has to be known of the length of the job.
//!
//! Bounds: one more arena of parameters and one of buffers.

use crate::model::Model;
use crate::snapshot::Snapshot;

/// The n-th point counts `(DECAY + 1) / (n + DECAY)`, so the mean reaches over the last `n / (DECAY + 1)` points.
const DECAY: f32 = 8.0;
/// Updates per point: weights move little between two, and a point is a pass over them.
const EVERY: u64 = 4;

/// The mean so far.
#[derive(Debug, Default)]
pub struct Average {
    parameters: Vec<f32>,
    buffers: Vec<f32>,
    updates: u64,
}

impl Average {
    /// Training goes on from other weights: begins anew.
    pub fn forget(&mut self) {
        self.parameters.clear();
        self.buffers.clear();
        self.updates = 0;
    }

    /// An update was made of `model`.
    pub fn updated(&mut self, model: &Model) {
        let (parameters, buffers) = (model.parameters().values(), model.buffers().values());
        self.updates += 1;
        if self.parameters.len() != parameters.len() {
            self.parameters.clear();
            self.parameters.extend_from_slice(parameters);
            self.buffers.clear();
            self.buffers.extend_from_slice(buffers);
        } else if self.updates.is_multiple_of(EVERY) {
            let n = (self.updates / EVERY) as f32;
            let weight = ((DECAY + 1.0) / (n + DECAY)).min(1.0);
            toward(&mut self.parameters, parameters, weight);
            toward(&mut self.buffers, buffers, weight);
        }
    }

    /// The replica moved towards `other` by `weight`: so does the mean.
    pub fn move_towards(&mut self, other: &Snapshot, weight: f32) {
        toward(&mut self.parameters, &other.parameters, weight);
        toward(&mut self.buffers, &other.buffers, weight);
    }

    /// Exchanges the weights of `model` and their mean; a second time puts them back. Where there is no mean, or none that is finite
    /// (training diverged on the way, and recovered), all stays as it is, and the mean begins anew.
    pub fn swap(&mut self, model: &mut Model) {
        let is_usable = self.parameters.len() == model.parameters().len()
            && self.buffers.len() == model.buffers().len()
            && is_finite(&self.parameters)
            && is_finite(&self.buffers);
        if !is_usable {
            return self.forget();
        }
        let parameters = model.parameters_mut().values_mut();
        parameters.swap_with_slice(&mut self.parameters);
        let buffers = model.buffers_mut().values_mut();
        buffers.swap_with_slice(&mut self.buffers);
    }
}

fn toward(mean: &mut [f32], values: &[f32], weight: f32) {
    let pairs = mean.iter_mut().zip(values);
    pairs.for_each(|(mean, value)| *mean += weight * (value - *mean));
}

fn is_finite(values: &[f32]) -> bool {
    // Without a branch per value it is as fast as a read.
    let any = values.iter().fold(0.0, |any, value| any + 0.0 * value);
    any == 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelConfig;

    fn model() -> Model {
        Model::new(&ModelConfig::default(), [1, 8, 8], 10, 1).unwrap()
    }

    fn set(model: &mut Model, value: f32) {
        model.parameters_mut().values_mut().fill(value);
    }

    #[test]
    fn weights_that_jump_to_and_fro_are_averaged_to_the_middle_and_put_back() {
        let (mut model, mut average) = (model(), Average::default());
        set(&mut model, 100.0);
        average.updated(&model);
        for n in 0..4000 {
            // Points are every fourth update: both sides in turn.
            set(&mut model, if n / 4 % 2 == 0 { 1.0 } else { 3.0 });
            average.updated(&model);
        }
        average.swap(&mut model);
        let mean = model.parameters().values()[0];
        assert!((mean - 2.0).abs() < 0.02, "{mean}");
        average.swap(&mut model);
        assert_eq!(model.parameters().values()[0], 3.0);
    }

    #[test]
    fn the_mean_follows_what_is_learnt() {
        let (mut model, mut average) = (model(), Average::default());
        for n in 1..=2000 {
            set(&mut model, n as f32);
            average.updated(&model);
        }
        average.swap(&mut model);
        let mean = model.parameters().values()[0];
        assert!((1750.0..1850.0).contains(&mean), "{mean}");
        let other = Snapshot::of(&model);
        average.swap(&mut model);
        average.move_towards(&other, 1.0);
        average.swap(&mut model);
        assert_eq!(model.parameters().values()[0], mean);
    }

    #[test]
    fn what_is_not_finite_is_no_mean() {
        let (mut model, mut average) = (model(), Average::default());
        average.swap(&mut model);
        let before = Snapshot::of(&model);
        set(&mut model, f32::NAN);
        average.updated(&model);
        set(&mut model, 1.0);
        average.swap(&mut model);
        assert_eq!(model.parameters().values()[0], 1.0);
        set(&mut model, 2.0);
        average.updated(&model);
        set(&mut model, 5.0);
        average.swap(&mut model);
        assert_eq!(model.parameters().values()[0], 2.0, "it began anew");
        assert!(before.parameters.iter().all(|value| value.is_finite()));
    }
}

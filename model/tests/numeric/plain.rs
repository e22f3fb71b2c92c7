//! A plain libtorch loop for the cnn, beside which the trainer is tested and measured.

use skein_model::arena::Segment;
use skein_model::model::Model;
use tch::{Kind, Tensor};

/// The cnn as somebody would write it with tch: separate tensors, separate operations, no arena.
pub(crate) struct Plain {
    pub(crate) parameters: Vec<Tensor>,
    momentum: Vec<Tensor>,
}

impl Plain {
    pub(crate) fn copy_of(model: &Model) -> Self {
        let values = model.parameters().values();
        let tensor = |segment: &Segment| {
            let values = &values[segment.offset..segment.offset + segment.len];
            Tensor::from_slice(values)
                .view(segment.shape.as_slice())
                .set_requires_grad(true)
        };
        let parameters: Vec<Tensor> = model.parameters().segments().iter().map(tensor).collect();
        let momentum = parameters
            .iter()
            .map(|p| Tensor::zeros(p.size(), (Kind::Float, tch::Device::Cpu)))
            .collect();
        Self {
            parameters,
            momentum,
        }
    }

    pub(crate) fn step(&mut self, x: &Tensor, y: &Tensor, lr: f64) -> f32 {
        let [conv1, bias1, conv2, bias2, fc1, fc1_bias, fc2, fc2_bias] = &self.parameters[..]
        else {
            unreachable!()
        };
        let conv = |x: &Tensor, w: &Tensor, b: &Tensor| {
            x.conv2d(w, Some(b), [1, 1], [1, 1], [1, 1], 1)
                .max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false)
                .relu()
        };
        let x = conv(&conv(x, conv1, bias1), conv2, bias2).flatten(1, -1);
        let logits = x
            .linear(fc1, Some(fc1_bias))
            .relu()
            .linear(fc2, Some(fc2_bias));
        let loss = logits.cross_entropy_for_logits(y);
        let gradients = Tensor::run_backward(&[&loss], &self.parameters, false, false);
        tch::no_grad(|| {
            for ((w, v), g) in self
                .parameters
                .iter_mut()
                .zip(&mut self.momentum)
                .zip(&gradients)
            {
                let _ = v.g_mul_scalar_(0.9f32 as f64);
                let _ = v.g_add_(g);
                let _ = w.g_sub_(&v.g_mul_scalar(lr as f32 as f64));
            }
        });
        loss.double_value(&[]) as f32
    }
}

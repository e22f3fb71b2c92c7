//! `mlp`: fully connected layers with ReLU between; variables `fc1.weight`, `fc1.bias`, `fc2.weight`, …

use crate::block::{Builder, kaiming, lecun};
use crate::layer::Layer;

/// Declares the model for `input_shape` (C, H, W): one block per linear layer.
pub(crate) fn build(builder: &mut Builder, input_shape: [i64; 3], hidden: &[i64], n_classes: i64) {
    let mut inputs = input_shape.iter().product();
    for (i, outputs) in hidden.iter().copied().chain([n_classes]).enumerate() {
        let name = format!("fc{}", i + 1);
        let last = i == hidden.len();
        builder.block(name.clone(), |builder| {
            let bound = if last { lecun(inputs) } else { kaiming(inputs) };
            let linear = builder.linear(&name, inputs, outputs, bound);
            let flatten = (i == 0).then_some(Layer::Flatten); // [B, C H W]
            let relu = (!last).then_some(Layer::Relu);
            flatten.into_iter().chain([linear]).chain(relu).collect() // [B, outputs]
        });
        inputs = outputs;
    }
}

//! `mobilenet-v2`: inverted residual blocks (Sandler et al. 2018, arXiv:1801.04381, table 2) with the names and the layout
//! of torchvision 0.28's `mobilenet_v2`, from `features.0.0.weight` to `classifier.1.bias`.
//!
//! Deviations: the first convolution takes as many channels as the images have (torchvision: three), and initial weights
//! are uniform where torchvision's are normal, with the same variance but for [`super::convolution::fan_out`].

use super::convolution::{conv_norm, conv_norm_activation, divisible};
use crate::block::{Builder, Conv};
use crate::layer::Layer;

/// Expansion, channels, repeats and first stride of each group of blocks (table 2 of the paper).
const GROUPS: [(i64, i64, i64, i64); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];

/// Product of all strides.
pub(crate) const STRIDE: i64 = 32;

const DROPOUT: f32 = 0.2;

/// Declares the model for `channels` input channels.
pub(crate) fn build(builder: &mut Builder, channels: i64, width: f64, n_classes: i64) {
    let mut inputs = divisible(32.0 * width);
    builder.block("features.0", |builder| {
        let first = Conv {
            inputs: channels,
            outputs: inputs,
            kernel: 3,
            stride: 2,
            groups: 1,
        };
        conv_norm_activation(builder, "features.0", first, Some(Layer::Relu6))
    });
    let mut number = 1;
    for (expansion, outputs, repeats, first_stride) in GROUPS {
        let outputs = divisible(outputs as f64 * width);
        for repeat in 0..repeats {
            let stride = if repeat == 0 { first_stride } else { 1 };
            let name = format!("features.{number}");
            builder.block(name.clone(), |builder| {
                inverted_residual(builder, &name, inputs, outputs, stride, expansion)
            });
            inputs = outputs;
            number += 1;
        }
    }
    let last = divisible(1280.0 * width.max(1.0));
    let name = format!("features.{number}");
    builder.block(name.clone(), |builder| {
        let widen = Conv::pointwise(inputs, last);
        conv_norm_activation(builder, &name, widen, Some(Layer::Relu6))
    });
    builder.block("classifier", |builder| {
        let bound = 0.01 * 3f64.sqrt(); // standard deviation 0.01
        let linear = builder.linear("classifier.1", last, n_classes, bound);
        vec![
            Layer::GlobalMean,
            Layer::Flatten,
            Layer::Dropout { p: DROPOUT },
            linear,
        ]
    });
}

/// Widens by `expansion`, filters each channel alone, narrows again; added to the input where the shape stays.
fn inverted_residual(
    builder: &mut Builder,
    name: &str,
    inputs: i64,
    outputs: i64,
    stride: i64,
    expansion: i64,
) -> Vec<Layer> {
    let hidden = inputs * expansion;
    let mut layers = Vec::new();
    let mut number = 0;
    let mut filtered = |builder: &mut Builder, conv| {
        let name = format!("{name}.conv.{number}");
        layers.extend(conv_norm_activation(
            builder,
            &name,
            conv,
            Some(Layer::Relu6),
        ));
        number += 1;
    };
    if expansion != 1 {
        filtered(builder, Conv::pointwise(inputs, hidden));
    }
    filtered(builder, Conv::depthwise(hidden, 3, stride));
    let [conv, norm] = [number, number + 1].map(|number| format!("{name}.conv.{number}"));
    layers.extend(conv_norm(
        builder,
        &conv,
        &norm,
        Conv::pointwise(hidden, outputs),
    ));
    if stride == 1 && inputs == outputs {
        vec![Layer::residual(layers)]
    } else {
        layers
    }
}

//! `mobilenet-v2`: inverted residual blocks (Sandler et al. 2018, arXiv:1801.04381, table 2) with the names and the layout
//! of torchvision 0.28's `mobilenet_v2`, from `features.0.0.weight` to `classifier.1.bias`.
//!
//! Deviations: the first convolution takes as many channels as the images have (torchvision: three), and initial weights
//! are uniform with the same variance where torchvision's are normal.

use crate::block::{Builder, Conv, kaiming};
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

/// Smallest height and width; below it most of the network sees a single pixel.
pub(crate) const MIN_SIDE: i64 = 8;

const DROPOUT: f32 = 0.2;

/// Declares the model for `channels` input channels.
pub(crate) fn build(builder: &mut Builder, channels: i64, width: f64, n_classes: i64) {
    let mut inputs = divisible(32.0 * width);
    builder.block("features.0", |builder| {
        conv_norm(
            builder,
            "features.0",
            Conv {
                inputs: channels,
                outputs: inputs,
                kernel: 3,
                stride: 2,
                groups: 1,
            },
        )
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
        conv_norm(
            builder,
            &name,
            Conv {
                inputs,
                outputs: last,
                kernel: 1,
                stride: 1,
                groups: 1,
            },
        )
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

/// Convolution `name.0`, batch norm `name.1`, ReLU6.
fn conv_norm(builder: &mut Builder, name: &str, conv: Conv) -> Vec<Layer> {
    vec![
        builder.conv(&format!("{name}.0"), conv, fan_out(conv), false),
        builder.batch_norm(&format!("{name}.1"), conv.outputs),
        Layer::Relu6,
    ]
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
    if expansion != 1 {
        let widen = Conv {
            inputs,
            outputs: hidden,
            kernel: 1,
            stride: 1,
            groups: 1,
        };
        layers.extend(conv_norm(builder, &format!("{name}.conv.{number}"), widen));
        number += 1;
    }
    let filter = Conv {
        inputs: hidden,
        outputs: hidden,
        kernel: 3,
        stride,
        groups: hidden,
    };
    layers.extend(conv_norm(builder, &format!("{name}.conv.{number}"), filter));
    let narrow = Conv {
        inputs: hidden,
        outputs,
        kernel: 1,
        stride: 1,
        groups: 1,
    };
    layers.push(builder.conv(
        &format!("{name}.conv.{}", number + 1),
        narrow,
        fan_out(narrow),
        false,
    ));
    layers.push(builder.batch_norm(&format!("{name}.conv.{}", number + 2), outputs));
    if stride == 1 && inputs == outputs {
        vec![Layer::Residual(layers)]
    } else {
        layers
    }
}

/// Kaiming's bound over the outputs each input feeds, as torchvision chooses it.
fn fan_out(conv: Conv) -> f64 {
    kaiming(conv.outputs / conv.groups * conv.kernel * conv.kernel)
}

/// The multiple of 8 next to `channels`, never more than a tenth below it.
fn divisible(channels: f64) -> i64 {
    let rounded = ((channels + 4.0) as i64 / 8 * 8).max(8);
    if (rounded as f64) < 0.9 * channels {
        rounded + 8
    } else {
        rounded
    }
}

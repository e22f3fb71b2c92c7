//! `resnet-50`: bottleneck blocks (He et al. 2016, arXiv:1512.03385, table 1) with the names and the layout of torchvision
//! 0.28's `resnet50`, from `conv1.weight` to `fc.bias`; as there, the 3x3 convolution of a block is the one with the stride.
//!
//! The stem for small images is that of the paper's section 4.2: a 3x3 convolution that keeps the size, and no pooling.
//!
//! Deviations: the first convolution takes as many channels as the images have (torchvision: three), initial weights of
//! convolutions are uniform with the same variance where torchvision's are normal, and the last layer's bias starts at zero.

use super::convolution::{conv_norm, divisible};
use crate::block::{Builder, Conv};
use crate::config::Stem;
use crate::layer::Layer;

/// Channels inside the blocks, number of blocks and first stride of `layer1` to `layer4`.
const LAYERS: [(i64, i64, i64); 4] = [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)];

/// Channels that leave a block for each one inside.
const EXPANSION: i64 = 4;

/// Product of all strides.
pub(crate) fn stride(stem: Stem) -> i64 {
    match stem {
        Stem::Imagenet => 32,
        Stem::Cifar => 8,
    }
}

/// Declares the model for `channels` input channels: one block for the stem, for each bottleneck, and for the classifier.
pub(crate) fn build(
    builder: &mut Builder,
    channels: i64,
    (width, stem): (f64, Stem),
    n_classes: i64,
) {
    let mut inputs = divisible(64.0 * width);
    builder.block("conv1", |builder| {
        let (kernel, stride) = match stem {
            Stem::Imagenet => (7, 2),
            Stem::Cifar => (3, 1),
        };
        let first = Conv {
            inputs: channels,
            outputs: inputs,
            kernel,
            stride,
            groups: 1,
        };
        let pool = Layer::MaxPool {
            kernel: 3,
            stride: 2,
            padding: 1,
        };
        let mut layers = conv_norm(builder, "conv1", "bn1", first).to_vec();
        layers.push(Layer::Relu);
        layers.extend((stem == Stem::Imagenet).then_some(pool));
        layers
    });
    for ((hidden, n_blocks, first_stride), number) in LAYERS.into_iter().zip(1..) {
        let hidden = divisible(hidden as f64 * width);
        for repeat in 0..n_blocks {
            let stride = if repeat == 0 { first_stride } else { 1 };
            let name = format!("layer{number}.{repeat}");
            builder.block(name.clone(), |builder| {
                bottleneck(builder, &name, inputs, hidden, stride)
            });
            inputs = EXPANSION * hidden;
        }
    }
    builder.block("fc", |builder| {
        let bound = 1.0 / (inputs as f64).sqrt();
        let linear = builder.linear("fc", inputs, n_classes, bound);
        vec![Layer::GlobalMean, Layer::Flatten, linear]
    });
}

/// Narrows to `hidden` channels, filters, widens; added to the input, or to a convolution of it where the shape changes.
fn bottleneck(
    builder: &mut Builder,
    name: &str,
    inputs: i64,
    hidden: i64,
    stride: i64,
) -> Vec<Layer> {
    let outputs = EXPANSION * hidden;
    let filter = Conv {
        inputs: hidden,
        outputs: hidden,
        kernel: 3,
        stride,
        groups: 1,
    };
    let convs = [
        Conv::pointwise(inputs, hidden),
        filter,
        Conv::pointwise(hidden, outputs),
    ];
    let mut branch = Vec::new();
    for (conv, number) in convs.into_iter().zip(1..) {
        let [conv_name, norm_name] = ["conv", "bn"].map(|kind| format!("{name}.{kind}{number}"));
        if number > 1 {
            branch.push(Layer::Relu);
        }
        branch.extend(conv_norm(builder, &conv_name, &norm_name, conv));
    }
    let mut shortcut = Vec::new();
    if stride != 1 || inputs != outputs {
        let conv = Conv {
            stride,
            ..Conv::pointwise(inputs, outputs)
        };
        let [conv_name, norm_name] = [0, 1].map(|number| format!("{name}.downsample.{number}"));
        shortcut.extend(conv_norm(builder, &conv_name, &norm_name, conv));
    }
    vec![Layer::Residual { branch, shortcut }, Layer::Relu]
}

//! `efficientnet-b1`: inverted residual blocks with squeeze-and-excitation (Tan and Le 2019, arXiv:1905.11946, table 1,
//! with the depth of B1) with the names and the layout of torchvision 0.28's `efficientnet_b1`, from `features.0.0.weight`
//! to `classifier.1.bias`.
//!
//! Stochastic depth and dropout draw from the job's seed, per block and batch, so that a model that is cut or goes on from
//! a checkpoint drops the same samples.
//!
//! Deviations: the first convolution takes as many channels as the images have (torchvision: three), and initial weights
//! of convolutions are uniform where torchvision's are normal, with the same variance but for
//! [`super::convolution::fan_out`].

use super::convolution::{conv_norm_activation, divisible, fan_out};
use crate::block::{Builder, Conv};
use crate::layer::Layer;

/// Blocks of one kind: table 1 of the paper, `blocks` a tenth more than there and rounded up, as B1 has it.
struct Stage {
    expansion: i64,
    kernel: i64,
    /// Of the first block; the others keep the size.
    stride: i64,
    channels: i64,
    blocks: i64,
}

const fn stage(expansion: i64, kernel: i64, stride: i64, channels: i64, blocks: i64) -> Stage {
    Stage {
        expansion,
        kernel,
        stride,
        channels,
        blocks,
    }
}

const STAGES: [Stage; 7] = [
    stage(1, 3, 1, 16, 2),
    stage(6, 3, 2, 24, 3),
    stage(6, 5, 2, 40, 3),
    stage(6, 3, 2, 80, 4),
    stage(6, 5, 1, 112, 4),
    stage(6, 5, 2, 192, 5),
    stage(6, 3, 1, 320, 2),
];

/// Product of all strides.
pub(crate) const STRIDE: i64 = 32;

const DROPOUT: f32 = 0.2;

/// Declares the model for `channels` input channels: one block for the first convolution, for each inverted residual
/// block, for the last convolution, and for the classifier.
pub(crate) fn build(
    builder: &mut Builder,
    channels: i64,
    (width, stochastic_depth): (f64, f32),
    n_classes: i64,
) {
    let mut inputs = divisible(32.0 * width);
    builder.block("features.0", |builder| {
        let first = Conv {
            inputs: channels,
            outputs: inputs,
            kernel: 3,
            stride: 2,
            groups: 1,
        };
        conv_norm_activation(builder, "features.0", first, Some(Layer::Silu))
    });
    let n_blocks: i64 = STAGES.iter().map(|stage| stage.blocks).sum();
    let mut depth = 0;
    for (stage, number) in STAGES.iter().zip(1..) {
        let outputs = divisible(stage.channels as f64 * width);
        for repeat in 0..stage.blocks {
            let name = format!("features.{number}.{repeat}");
            let stride = if repeat == 0 { stage.stride } else { 1 };
            // Rises from nothing, as in Huang et al. 2016, section 3.
            let drop = f64::from(stochastic_depth) * depth as f64 / n_blocks as f64;
            builder.block(name.clone(), |builder| {
                let branch = branch(builder, &name, stage, stride, [inputs, outputs]);
                inverted_residual(branch, stride == 1 && inputs == outputs, drop as f32)
            });
            inputs = outputs;
            depth += 1;
        }
    }
    let last = 4 * inputs;
    let name = format!("features.{}", STAGES.len() + 1);
    builder.block(name.clone(), |builder| {
        let widen = Conv::pointwise(inputs, last);
        conv_norm_activation(builder, &name, widen, Some(Layer::Silu))
    });
    builder.block("classifier", |builder| {
        let bound = 1.0 / (n_classes as f64).sqrt();
        let linear = builder.linear("classifier.1", last, n_classes, bound);
        vec![
            Layer::GlobalMean,
            Layer::Flatten,
            Layer::Dropout { p: DROPOUT },
            linear,
        ]
    });
}

/// The branch alone, or added to the input where the shape stays, but for samples that it is dropped for.
fn inverted_residual(mut branch: Vec<Layer>, keeps_shape: bool, drop: f32) -> Vec<Layer> {
    if !keeps_shape {
        return branch;
    }
    if drop > 0.0 {
        branch.push(Layer::StochasticDepth { p: drop });
    }
    vec![Layer::residual(branch)]
}

/// Widens, filters each channel alone, weighs the channels against each other, narrows again.
fn branch(
    builder: &mut Builder,
    name: &str,
    stage: &Stage,
    stride: i64,
    [inputs, outputs]: [i64; 2],
) -> Vec<Layer> {
    let hidden = inputs * stage.expansion;
    let widen = (stage.expansion != 1).then(|| Conv::pointwise(inputs, hidden));
    let filter = Conv::depthwise(hidden, stage.kernel, stride);
    let mut layers = Vec::new();
    let mut number = 0..;
    let mut next = || format!("{name}.block.{}", number.next().unwrap_or(0));
    for conv in widen.into_iter().chain([filter]) {
        layers.extend(conv_norm_activation(
            builder,
            &next(),
            conv,
            Some(Layer::Silu),
        ));
    }
    layers.push(squeeze_and_excitation(builder, &next(), hidden, inputs / 4));
    let narrow = Conv::pointwise(hidden, outputs);
    layers.extend(conv_norm_activation(builder, &next(), narrow, None));
    layers
}

/// Scales each channel by a number between 0 and 1 that two layers, `squeezed` wide in between, make of all their means.
fn squeeze_and_excitation(
    builder: &mut Builder,
    name: &str,
    channels: i64,
    squeezed: i64,
) -> Layer {
    let mut linear = |number: i64, conv: Conv| {
        builder.conv(&format!("{name}.fc{number}"), conv, fan_out(conv), true)
    };
    Layer::Scaled(vec![
        Layer::GlobalMean,
        linear(1, Conv::pointwise(channels, squeezed)),
        Layer::Silu,
        linear(2, Conv::pointwise(squeezed, channels)),
        Layer::Sigmoid,
    ])
}

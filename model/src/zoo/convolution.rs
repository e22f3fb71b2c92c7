//! What the models of torchvision share: convolutions with batch norm, numbers of channels, initial weights.

use crate::block::{Builder, Conv, kaiming};
use crate::layer::Layer;

/// Smallest height and width; below it most of a network sees a single pixel.
pub(crate) const MIN_SIDE: i64 = 8;

/// A convolution and the batch norm behind it.
pub(crate) fn conv_norm(builder: &mut Builder, conv: &str, norm: &str, shape: Conv) -> [Layer; 2] {
    [
        builder.conv(conv, shape, fan_out(shape), false),
        builder.batch_norm(norm, shape.outputs),
    ]
}

/// Torchvision's `Conv2dNormActivation`: convolution `name.0`, batch norm `name.1`, and an activation or none.
pub(crate) fn conv_norm_activation(
    builder: &mut Builder,
    name: &str,
    shape: Conv,
    activation: Option<Layer>,
) -> Vec<Layer> {
    let layers = conv_norm(builder, &format!("{name}.0"), &format!("{name}.1"), shape);
    layers.into_iter().chain(activation).collect()
}

/// Kaiming's bound over the outputs that each input feeds. Torchvision counts those of all groups, which makes depthwise
/// weights small; batch norm follows, so that the outputs are the same.
pub(crate) fn fan_out(conv: Conv) -> f64 {
    kaiming(conv.outputs / conv.groups * conv.kernel * conv.kernel)
}

/// The multiple of 8 next to `channels`, never more than a tenth below it.
pub(crate) fn divisible(channels: f64) -> i64 {
    let rounded = ((channels + 4.0) as i64 / 8 * 8).max(8);
    if (rounded as f64) < 0.9 * channels {
        rounded + 8
    } else {
        rounded
    }
}

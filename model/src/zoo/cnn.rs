//! `cnn`: two 3x3 convolutions with 2x2 max pooling, then two linear layers; variables `conv1`, `conv2`, `fc1`, `fc2`.
//!
//! 1.23 M parameters on 28x28x1 and 1.6 M on 32x32x3: the size of the "Cipher" network of DLion (Hong and Chandra 2021),
//! which names the size but not the layers.

use crate::block::{Builder, Conv, kaiming, lecun};
use crate::layer::Layer;

const CHANNELS: [i64; 2] = [32, 64];
const HIDDEN: i64 = 384;
/// The last layer starts small: the first gradients are then gentle, and twice the learning rate is stable.
const SMALL: f64 = 0.1;

/// Smallest height and width: two poolings must leave a pixel.
pub(crate) const MIN_SIDE: i64 = 4;

/// Declares the model for `input_shape` (C, H, W): one block per convolution or linear layer.
pub(crate) fn build(builder: &mut Builder, input_shape: [i64; 3], n_classes: i64) {
    let [mut inputs, height, width] = input_shape;
    for (i, outputs) in CHANNELS.into_iter().enumerate() {
        let name = format!("conv{}", i + 1);
        builder.block(name.clone(), |builder| {
            let conv = Conv {
                inputs,
                outputs,
                kernel: 3,
                stride: 1,
                groups: 1,
            };
            vec![
                builder.conv(&name, conv, kaiming(inputs * 9), true),
                Layer::MaxPool {
                    kernel: 2,
                    stride: 2,
                    padding: 0,
                },
                Layer::Relu,
            ]
        });
        inputs = outputs;
    }
    let features = inputs * (height / 4) * (width / 4);
    builder.block("fc1", |builder| {
        vec![
            Layer::Flatten,
            builder.linear("fc1", features, HIDDEN, kaiming(features)),
            Layer::Relu,
        ]
    });
    builder.block("fc2", |builder| {
        vec![builder.linear("fc2", HIDDEN, n_classes, SMALL * lecun(HIDDEN))]
    });
}

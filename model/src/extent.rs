//! How large things get in a pass, per sample and without running it: shapes behind layers, and what a forward pass keeps
//! for the backward pass.

use crate::arena::Segment;
use crate::layer::Layer;

/// What a run of layers makes of one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Shape of the output.
    pub(crate) shape: Vec<i64>,
    /// Bytes kept until the backward pass.
    pub(crate) kept_bytes: u64,
}

/// Through `layers`, from samples of the shape `input`; `segments` are the parameters of the whole model.
pub(crate) fn through(layers: &[Layer], input: Vec<i64>, segments: &[Segment]) -> Extent {
    let start = Extent {
        shape: input,
        kept_bytes: 0,
    };
    let next = |before: Extent, layer: &Layer| {
        let (shape, kept) = behind(layer, &before.shape, segments);
        Extent {
            shape,
            kept_bytes: before.kept_bytes.saturating_add(kept),
        }
    };
    layers.iter().fold(start, next)
}

/// Shape of a layer's output, and the bytes libtorch keeps for its backward pass beyond the parameters.
fn behind(layer: &Layer, input: &[i64], segments: &[Segment]) -> (Vec<i64>, u64) {
    let with_last = |last: i64| {
        let rest = input.split_last().map_or(&[][..], |(_, rest)| rest);
        rest.iter().copied().chain([last]).collect::<Vec<_>>()
    };
    let (n, last) = (elements(input), input.last().copied().unwrap_or(1));
    match (layer, input) {
        (
            Layer::Conv {
                weight,
                stride,
                padding,
                ..
            },
            [_, sides @ ..],
        ) => {
            let weight = &segments[*weight].shape; // [C', C/groups, K, K]
            (
                slid(weight[0], sides, [weight[3], *stride, *padding]),
                4 * n,
            )
        }
        (
            Layer::MaxPool {
                kernel,
                stride,
                padding,
            },
            [channels, sides @ ..],
        ) => {
            let shape = slid(*channels, sides, [*kernel, *stride, *padding]);
            let places = 8 * elements(&shape);
            (shape, 4 * n + places)
        }
        (Layer::GlobalMean, [channels, ..]) => (vec![*channels, 1, 1], 0),
        (Layer::Flatten, _) => (vec![input.iter().product()], 0),
        (Layer::Linear { weight, .. }, _) => (with_last(segments[*weight].shape[0]), 4 * n),
        (Layer::Projection { weight, .. }, _) => (with_last(segments[*weight].shape[1]), 4 * n),
        (Layer::Embedding { tokens, .. }, _) => (
            vec![last, segments[*tokens].shape[1]],
            8 * last.unsigned_abs(),
        ),
        // Queries, keys and values, and the result, of which the layer behind keeps a copy.
        (Layer::Attention { .. }, _) => (with_last(last / 3), 4 * n + 4 * n / 3),
        // The input and the factors, which are the output of the last of the layers and are counted there.
        (Layer::Scaled(layers), _) => {
            let factors = through(layers, input.to_vec(), segments);
            (input.to_vec(), 4 * n + factors.kept_bytes)
        }
        (Layer::Residual { branch, shortcut }, _) => {
            let branch = through(branch, input.to_vec(), segments);
            let kept = through(shortcut, input.to_vec(), segments).kept_bytes;
            // The first layers of both keep the input, which is there once.
            (branch.shape, branch.kept_bytes + kept.saturating_sub(4 * n))
        }
        // In place, but libtorch keeps a copy of what was there.
        (Layer::Relu6, _) => (input.to_vec(), 4 * n),
        (Layer::BatchNorm { .. } | Layer::RowNorm { .. } | Layer::Gelu | Layer::Silu, _) => {
            (input.to_vec(), 4 * n)
        }
        // The output.
        (Layer::Sigmoid, _) => (input.to_vec(), 4 * n),
        // The mask.
        (Layer::Dropout { .. }, _) => (input.to_vec(), 4 * n),
        (Layer::StochasticDepth { .. }, _) => (input.to_vec(), 4),
        // ReLU keeps its output, which the layer behind it keeps too. Other shapes than a layer takes do not occur.
        _ => (input.to_vec(), 0),
    }
}

/// Shape behind a window of `kernel` pixels that moves by `stride` over `sides` with `padding` around them.
fn slid(channels: i64, sides: &[i64], [kernel, stride, padding]: [i64; 3]) -> Vec<i64> {
    let side = |side: &i64| (side + 2 * padding - kernel) / stride + 1;
    let sides = sides.iter().map(side);
    [channels].into_iter().chain(sides).collect()
}

/// Elements of a shape.
pub(crate) fn elements(shape: &[i64]) -> u64 {
    let sides = shape.iter().map(|side| side.unsigned_abs());
    sides.fold(1, u64::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelConfig;
    use crate::stage::kept_bytes;

    #[test]
    fn what_is_kept_is_counted_operation_by_operation() {
        // mlp: the input of each linear layer.
        let mlp = ModelConfig::Mlp { hidden: vec![5, 7] };
        assert_eq!(
            kept_bytes(&mlp, [1, 2, 3], 4).unwrap(),
            [4 * 6, 4 * 5, 4 * 7]
        );
        // cnn: the input of the convolution; input of the pooling, and the place of each maximum in eight bytes.
        let cnn = kept_bytes(&ModelConfig::Cnn {}, [1, 8, 8], 10).unwrap();
        assert_eq!(cnn[0], 4 * 64 + 4 * 32 * 64 + 8 * 32 * 16);
        // The first block of mobilenet-v2: convolution, batch norm, clamped in place.
        let mobile = kept_bytes(&ModelConfig::MobilenetV2 { width: 1.0 }, [3, 32, 32], 10).unwrap();
        assert_eq!(mobile[0], 4 * 3 * 32 * 32 + 2 * 4 * 32 * 16 * 16);
        let of = |text: &str| kept_bytes(&toml::from_str(text).unwrap(), [3, 32, 32], 10).unwrap();
        // The second block of efficientnet-b1: convolution, batch norm, SiLU; the input of the scaling, and inside it those
        // of a convolution, SiLU and a convolution, and the factors; convolution, batch norm.
        let efficient = of("kind = 'efficientnet-b1'");
        let pixels = 16 * 16;
        let scaling = 32 + 8 + 8 + 32;
        assert_eq!(
            efficient[1],
            4 * ((3 + 1 + 1) * 32 * pixels + 16 * pixels + scaling)
        );
        // The third has a mask behind that, one number per sample.
        assert_eq!(
            efficient[2],
            4 * ((3 + 1 + 1 + 1) * 16 * pixels + (16 + 4 + 4 + 16) + 1)
        );
        // The second block of resnet-50: three convolutions and batch norms, a batch norm on the shortcut.
        let resnet = of("kind = 'resnet-50'\nstem = 'cifar'");
        assert_eq!(resnet[1], 4 * 32 * 32 * (5 * 64 + 2 * 256));
        let pooled = of("kind = 'resnet-50'");
        assert_eq!(
            pooled[0],
            4 * (3 * 32 * 32 + 2 * 64 * pixels + 2 * 64 * pixels / 4)
        );
    }

    #[test]
    fn sizes_saturate() {
        assert_eq!(elements(&[i64::MAX, i64::MAX]), u64::MAX);
        assert_eq!(elements(&[]), 1);
    }
}

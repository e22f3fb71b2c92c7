//! What crosses each cut: shapes and sizes behind every block, without memory for the weights.

use crate::block::Block;
use crate::config::ModelConfig;
use crate::model::{Layout, ModelError, build, layout_of};

/// Shape per sample (without the batch) of the output of each block, first to last; the last one is the logits'.
///
/// # Errors
/// As [`crate::model::Model::new`], but for want of memory.
pub fn boundary_shapes(
    config: &ModelConfig,
    input_shape: [i64; 3],
    n_classes: i64,
) -> Result<Vec<Vec<i64>>, ModelError> {
    let builder = build(config, input_shape, n_classes)?;
    let layout = layout_of(config, input_shape, n_classes, &builder);
    Ok(shapes_behind(&builder.blocks, &layout))
}

/// Bytes per sample of the output of each block, first to last.
///
/// # Errors
/// As [`boundary_shapes`].
pub fn boundary_bytes(
    config: &ModelConfig,
    input_shape: [i64; 3],
    n_classes: i64,
) -> Result<Vec<u64>, ModelError> {
    let bytes = |shape: Vec<i64>| {
        let sides = shape.iter().map(|side| side.unsigned_abs());
        sides.fold(4, u64::saturating_mul)
    };
    let shapes = boundary_shapes(config, input_shape, n_classes)?;
    Ok(shapes.into_iter().map(bytes).collect())
}

pub(crate) fn shapes_behind(blocks: &[Block], layout: &Layout) -> Vec<Vec<i64>> {
    let mut shape = layout.input_shape.to_vec();
    let after = |block: &Block| {
        for layer in block.layers() {
            shape = layer.output_shape(&shape, &layout.parameters);
        }
        shape.clone()
    };
    blocks.iter().map(after).collect()
}

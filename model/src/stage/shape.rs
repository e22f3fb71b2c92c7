//! What crosses each cut, and what each block keeps in between: sizes per sample, without memory for the weights.

use crate::block::Block;
use crate::config::ModelConfig;
use crate::extent::{Extent, elements, through};
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
    let extents = extents(config, input_shape, n_classes)?;
    Ok(extents.into_iter().map(|extent| extent.shape).collect())
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
    let extents = extents(config, input_shape, n_classes)?;
    let bytes = |extent: Extent| elements(&extent.shape).saturating_mul(4);
    Ok(extents.into_iter().map(bytes).collect())
}

/// Bytes per sample that the forward pass of each block keeps for its backward pass, first to last: what libtorch's
/// operations save beyond the parameters, without what its allocator adds.
///
/// # Errors
/// As [`boundary_shapes`].
pub fn kept_bytes(
    config: &ModelConfig,
    input_shape: [i64; 3],
    n_classes: i64,
) -> Result<Vec<u64>, ModelError> {
    let extents = extents(config, input_shape, n_classes)?;
    Ok(extents
        .into_iter()
        .map(|extent| extent.kept_bytes)
        .collect())
}

fn extents(
    config: &ModelConfig,
    input_shape: [i64; 3],
    n_classes: i64,
) -> Result<Vec<Extent>, ModelError> {
    let builder = build(config, input_shape, n_classes)?;
    let layout = layout_of(config, input_shape, n_classes, &builder);
    Ok(extents_of(&builder.blocks, &layout))
}

pub(crate) fn extents_of(blocks: &[Block], layout: &Layout) -> Vec<Extent> {
    let mut shape = layout.input_shape.to_vec();
    let after = |block: &Block| {
        let extent = through(block.layers(), shape.clone(), &layout.parameters);
        shape.clone_from(&extent.shape);
        extent
    };
    blocks.iter().map(after).collect()
}

//! Between the states of all blocks and the snapshot of the whole model, where it fits into memory: at the end of a job,
//! for a checkpoint, and to begin from one.

use std::ops::Range;

use super::state::{BlockLayout, BlockState, StateError, size};
use crate::model::Layout;
use crate::snapshot::Snapshot;

/// The whole model's snapshot of the states of all its blocks, in any order.
///
/// # Errors
/// A block that is missing, given twice, of another size, or from another step than the others.
pub fn assemble(
    layouts: &[BlockLayout],
    states: impl IntoIterator<Item = BlockState>,
) -> Result<Snapshot, StateError> {
    let last = layouts.last();
    let n_parameters = last.map_or(0, |last| last.parameters.end);
    let n_vectors = last.map_or(0, |last| last.n_vectors);
    let mut snapshot = Snapshot {
        parameters: vec![0.0; n_parameters],
        buffers: vec![0.0; last.map_or(0, |last| last.buffers.end)],
        batches_tracked: 0,
        optimiser: vec![vec![0.0; n_parameters]; n_vectors],
        optimiser_steps: 0,
    };
    let mut seen = vec![false; layouts.len()];
    for state in states {
        let block = state.block;
        let Some(layout) = layouts.get(block) else {
            let expected = layouts.len().saturating_sub(1);
            return Err(StateError::Block {
                expected,
                got: block,
            });
        };
        state.check(layout)?;
        if !seen.contains(&true) {
            snapshot.batches_tracked = state.batches_tracked;
            snapshot.optimiser_steps = state.optimiser_steps;
        }
        let (steps, batches) = (snapshot.optimiser_steps, snapshot.batches_tracked);
        if (steps, batches) != (state.optimiser_steps, state.batches_tracked) {
            return Err(StateError::Uneven {
                block,
                steps,
                batches,
                got_steps: state.optimiser_steps,
                got_batches: state.batches_tracked,
            });
        }
        if std::mem::replace(&mut seen[block], true) {
            return Err(StateError::Twice { block });
        }
        snapshot.parameters[layout.parameters.clone()].copy_from_slice(&state.parameters);
        snapshot.buffers[layout.buffers.clone()].copy_from_slice(&state.buffers);
        for (whole, own) in snapshot.optimiser.iter_mut().zip(&state.optimiser) {
            whole[layout.parameters.clone()].copy_from_slice(own);
        }
    }
    match seen.iter().position(|seen| !seen) {
        Some(block) => Err(StateError::Missing { block }),
        None => Ok(snapshot),
    }
}

/// The state of one block of a whole snapshot, such as a checkpoint's, which `whole` describes.
///
/// # Errors
/// A snapshot of another model or optimiser.
pub fn dissect(
    whole: &Layout,
    snapshot: &Snapshot,
    layout: &BlockLayout,
) -> Result<BlockState, StateError> {
    let block = layout.index;
    for (part, expected, got) in [
        (
            "parameters",
            whole.n_parameters(),
            snapshot.parameters.len(),
        ),
        ("buffers", whole.n_buffers(), snapshot.buffers.len()),
        (
            "optimiser vectors",
            layout.n_vectors,
            snapshot.optimiser.len(),
        ),
    ] {
        size(block, part, expected, got as u64)?;
    }
    let part = |values: &[f32], range: &Range<usize>| {
        values
            .get(range.clone())
            .map_or_else(Vec::new, <[f32]>::to_vec)
    };
    let vectors = snapshot.optimiser.iter();
    let state = BlockState {
        block,
        parameters: part(&snapshot.parameters, &layout.parameters),
        optimiser: vectors
            .map(|vector| part(vector, &layout.parameters))
            .collect(),
        buffers: part(&snapshot.buffers, &layout.buffers),
        batches_tracked: snapshot.batches_tracked,
        optimiser_steps: snapshot.optimiser_steps,
    };
    state.check(layout)?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_other_steps_or_too_few_make_no_model() {
        let layouts = |n| -> Vec<BlockLayout> {
            let block = |index| BlockLayout {
                index,
                name: format!("features.{index}"),
                parameters: 6 * index..6 * index + 6,
                buffers: 2 * index..2 * index + 2,
                n_vectors: 1,
            };
            (0..n).map(block).collect()
        };
        let at = |block, optimiser_steps| BlockState {
            block,
            parameters: vec![0.5; 6],
            optimiser: vec![vec![-0.5; 6]],
            buffers: vec![1.0; 2],
            batches_tracked: 12,
            optimiser_steps,
        };
        let whole = assemble(&layouts(2), [at(1, 3), at(0, 3)]).unwrap();
        assert_eq!((whole.parameters.len(), whole.buffers.len()), (12, 4));
        let refused = |states: Vec<BlockState>| assemble(&layouts(2), states).unwrap_err();
        assert_eq!(refused(vec![at(0, 3)]), StateError::Missing { block: 1 });
        assert_eq!(
            refused(vec![at(0, 3), at(0, 3)]),
            StateError::Twice { block: 0 }
        );
        assert!(matches!(
            refused(vec![at(0, 3), at(1, 4)]),
            StateError::Uneven { block: 1, .. }
        ));
        assert!(matches!(
            refused(vec![at(7, 3)]),
            StateError::Block { got: 7, .. }
        ));
    }
}

//! Block by block out of a stage that stashes, and all at once into it.

use super::Stashed;
use crate::stage::error::StageError;
use crate::stage::state::{BlockState, Values, write};

impl Stashed {
    /// The state of one block at the newest version.
    ///
    /// # Errors
    /// A block of another stage.
    pub fn block_state(&self, block: usize) -> Result<BlockState, StageError> {
        let parameters = self.versions.last().values();
        let (optimiser, counters) = (&self.optimiser.state, (self.boundary.1, self.newest()));
        self.chain
            .cut_out(block, parameters, optimiser, &self.boundary.0, counters)
    }

    /// Appends the encoded state of one block to `bytes`, whose memory may be that of an older one.
    ///
    /// # Errors
    /// A block of another stage.
    pub fn encode_block(&self, block: usize, bytes: &mut Vec<u8>) -> Result<(), StageError> {
        let [own, own_buffers] = self.chain.spans(self.chain.block_layout(block)?);
        let vectors = self.optimiser.state.iter();
        let optimiser: Vec<&[f32]> = vectors.map(|vector| &vector[own.clone()]).collect();
        let values = Values {
            parameters: &self.versions.last().values()[own],
            optimiser: &optimiser,
            buffers: &self.boundary.0[own_buffers],
        };
        write(bytes, block, (self.boundary.1, self.newest()), &values);
        Ok(())
    }

    /// Goes on from the states of all its blocks, whose weights become the only version; its number is that of the updates
    /// they have had.
    ///
    /// # Errors
    /// Micro-batches in flight; states that are not those of the stage's blocks, in order and from one step.
    pub fn load(&mut self, states: &[BlockState]) -> Result<(), StageError> {
        if !self.kept.is_empty() {
            return Err(StageError::Busy { n: self.kept.len() });
        }
        let counters = |state: &BlockState| (state.batches_tracked, state.optimiser_steps);
        let Some(first) = states.first().map(counters) else {
            return Err(StageError::Uneven);
        };
        let in_order = states
            .iter()
            .map(|state| state.block)
            .eq(self.chain.range.clone());
        if !in_order || states.iter().any(|state| counters(state) != first) {
            return Err(StageError::Uneven);
        }
        for state in states {
            state.check(self.chain.block_layout(state.block)?)?;
        }
        let (batches_tracked, version) = first;
        let values = self.versions.reset(version);
        for state in states {
            let [own, own_buffers] = self.chain.spans(self.chain.block_layout(state.block)?);
            values[own.clone()].copy_from_slice(&state.parameters);
            self.buffers.values_mut()[own_buffers].copy_from_slice(&state.buffers);
            for (vector, saved) in self.optimiser.state.iter_mut().zip(&state.optimiser) {
                vector[own.clone()].copy_from_slice(saved);
            }
        }
        self.boundary = (self.buffers.values().to_vec(), batches_tracked);
        self.batches_tracked = batches_tracked;
        Ok(())
    }
}

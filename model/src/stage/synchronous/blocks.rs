//! Block by block out of a stage and into it: the states that replicas hold and that move when the model is cut anew.

use super::Stage;
use crate::stage::error::StageError;
use crate::stage::state::{BlockState, Values, write};

impl Stage {
    /// The state of one block at the last step boundary, whatever is in flight.
    ///
    /// # Errors
    /// A block of another stage.
    pub fn block_state(&self, block: usize) -> Result<BlockState, StageError> {
        self.chain.block_layout(block)?;
        let counters = self.counters[block - self.chain.range.start];
        let (parameters, optimiser) = (self.parameters.values(), &self.optimiser.state);
        self.chain
            .cut_out(block, parameters, optimiser, &self.boundary, counters)
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
            parameters: &self.parameters.values()[own],
            optimiser: &optimiser,
            buffers: &self.boundary[own_buffers],
        };
        let counters = self.counters[block - self.chain.range.start];
        write(bytes, block, counters, &values);
        Ok(())
    }

    /// Goes on from `state` with one block. Once all blocks are loaded, what follows is bit-identical to what followed
    /// when the states were taken.
    ///
    /// # Errors
    /// A state of another block or size or with values that are not finite; a step under way (drop it first).
    pub fn load_block(&mut self, state: &BlockState) -> Result<(), StageError> {
        self.check_idle()?;
        if self.seen > 0 {
            return Err(StageError::Busy {
                n: self.seen.unsigned_abs() as usize,
            });
        }
        let layout = self.chain.block_layout(state.block)?;
        state.check(layout)?;
        let [own, own_buffers] = self.chain.spans(layout);
        self.parameters.values_mut()[own.clone()].copy_from_slice(&state.parameters);
        self.buffers.values_mut()[own_buffers.clone()].copy_from_slice(&state.buffers);
        self.boundary[own_buffers].copy_from_slice(&state.buffers);
        for (vector, saved) in self.optimiser.state.iter_mut().zip(&state.optimiser) {
            vector[own.clone()].copy_from_slice(saved);
        }
        let at = state.block - self.chain.range.start;
        self.counters[at] = (state.batches_tracked, state.optimiser_steps);
        Ok(())
    }
}

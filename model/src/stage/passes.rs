//! A forward pass that is kept for its backward pass: with the graph behind it, or with the input alone, to be made once
//! more.

use tch::Tensor;

use super::activation::Activation;
use super::chain::Chain;
use super::error::StageError;
use crate::arena::Arena;
use crate::layer::Mode;

/// What a forward pass leaves for the backward pass.
#[derive(Debug)]
pub(crate) struct Forward {
    leaf: Tensor,
    output: Output,
}

#[derive(Debug)]
enum Output {
    /// With the graph behind it.
    Graph(Tensor),
    /// To be computed once more: its shape, and the number of batches seen before.
    Again { shape: Vec<i64>, number: i64 },
}

impl Forward {
    /// Shape of the output, `[B, output…]`.
    pub(crate) fn shape(&self) -> Vec<i64> {
        match &self.output {
            Output::Graph(y) => y.size(),
            Output::Again { shape, .. } => shape.clone(),
        }
    }

    /// The input as a leaf and the output with the graph between them, on the weights that the pass used.
    pub(crate) fn graph(
        self,
        chain: &Chain,
        parameters: &Arena,
        buffers: &Arena,
    ) -> Result<(Tensor, Tensor), StageError> {
        match self.output {
            Output::Graph(y) => Ok((self.leaf, y)),
            Output::Again { number, .. } => {
                let leaf = chain.leaf(self.leaf)?;
                let y = chain.run(&leaf, parameters, buffers, Mode::Again, number)?;
                Ok((leaf, y))
            }
        }
    }
}

impl Chain {
    /// A training pass of `x`, of which with `recompute` the input alone is kept. The output is put into the memory that is lent for it,
    /// behind so much room.
    pub(crate) fn forward(
        &self,
        x: Tensor,
        (parameters, buffers): (&Arena, &Arena),
        number: i64,
        recompute: bool,
        (memory, room): (Vec<u8>, usize),
    ) -> Result<(Forward, Activation), StageError> {
        let run = |x: &Tensor| self.run(x, parameters, buffers, Mode::Train, number);
        if recompute {
            let y = tch::no_grad(|| run(&x))?;
            let output = Output::Again {
                shape: y.size(),
                number,
            };
            return Ok((
                Forward { leaf: x, output },
                Activation::put(&y, memory, room)?,
            ));
        }
        let leaf = self.leaf(x)?;
        let y = run(&leaf)?;
        let activation = Activation::put(&y, memory, room)?;
        let output = Output::Graph(y);
        Ok((Forward { leaf, output }, activation))
    }
}

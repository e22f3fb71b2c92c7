//! What a flow says is to be done next, with what has arrived for it.

/// What a stage does. `P` is a frame's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op<P> {
    /// Goes forward with a micro-batch and sends the result on; the first stage draws it (`input` is none) and sends the labels
    /// to the last.
    Forward {
        /// Steps made before the one it belongs to.
        step: u64,
        /// Its number.
        micro: u32,
        /// Updates that the first stage's weights held for it.
        version: u64,
        /// What came from the stage before: pieces, in the order of their samples.
        input: Option<Vec<P>>,
    },
    /// The last stage: forward, loss and backward at once; sends the gradient back.
    Loss {
        /// As above.
        step: u64,
        /// As above.
        micro: u32,
        /// As above.
        version: u64,
        /// As above.
        input: Option<Vec<P>>,
        /// From the first stage, in pieces; none where that is this one.
        labels: Option<Vec<P>>,
    },
    /// Goes backward and sends the gradient back, unless it is the first stage.
    Backward {
        /// As above.
        step: u64,
        /// As above.
        micro: u32,
        /// From the stage behind, in pieces.
        gradient: Vec<P>,
    },
    /// Adds the gradients of all hosts of the stage up, and says so with [`Flow::added`](super::Flow::added).
    Add {
        /// Steps made before the one it belongs to.
        step: u64,
    },
    /// Makes the update; then `step` steps are made.
    Apply {
        /// Steps made then.
        step: u64,
    },
    /// Keeps a copy of the state: a line.
    Copy {
        /// Steps made.
        step: u64,
    },
    /// Goes forward with held-out samples; the last stage judges them.
    Look {
        /// Steps made.
        step: u64,
        /// Its number among those of the look.
        micro: u32,
        /// What came from the stage before.
        input: Option<P>,
        /// From the first stage.
        labels: Option<P>,
    },
}

//! A model of numbers: every result depends on each input and on the order in which they came, so equal results mean that
//! every micro-batch was counted once and in its place.

/// Mixes `b` into `a`.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut z = a
        .rotate_left(23)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(b ^ 0xd1b5_4a32_d192_ed03);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 29)
}

/// A block as it is drawn from the job's seed.
pub(crate) fn initial(seed: u64, block: u16) -> u64 {
    mix(seed, u64::from(block) + 1)
}

/// What the first stage draws.
pub(crate) fn sample(seed: u64, step: u64, micro: u32) -> u64 {
    mix(mix(seed, step), u64::from(micro))
}

/// The label that belongs to it.
pub(crate) fn label(seed: u64, step: u64, micro: u32) -> u64 {
    mix(sample(seed, step, micro), 77)
}

/// The gradient of the loss.
pub(crate) fn loss(output: u64, label: u64) -> u64 {
    mix(output, label)
}

/// One stage's blocks while a step is in work.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    pub(crate) states: Vec<u64>,
    gradients: Vec<u64>,
}

/// What backward needs of a forward: each block's input, and the states that it went through.
pub(crate) type Kept = Vec<(u64, u64)>;

impl Blocks {
    pub(crate) fn new(states: Vec<u64>) -> Self {
        let gradients = vec![0; states.len()];
        Self { states, gradients }
    }

    pub(crate) fn forward(&self, mut value: u64) -> (u64, Kept) {
        let mut kept = Vec::new();
        for state in &self.states {
            kept.push((value, *state));
            value = mix(*state, value);
        }
        (value, kept)
    }

    pub(crate) fn backward(&mut self, kept: &Kept, mut gradient: u64) -> u64 {
        for (sum, (input, state)) in self.gradients.iter_mut().zip(kept).rev() {
            *sum = mix(*sum, mix(*input, gradient));
            gradient = mix(*state, gradient);
        }
        gradient
    }

    pub(crate) fn apply(&mut self) {
        for (state, sum) in self.states.iter_mut().zip(&mut self.gradients) {
            *state = mix(*state, std::mem::take(sum));
        }
    }
}

/// The blocks after `steps` steps, computed in one place.
pub(crate) fn alone(seed: u64, n_blocks: u16, micro: u32, steps: u64) -> Vec<u64> {
    let mut blocks = Blocks::new((0..n_blocks).map(|block| initial(seed, block)).collect());
    for step in 0..steps {
        for micro in 0..micro {
            let (output, kept) = blocks.forward(sample(seed, step, micro));
            blocks.backward(&kept, loss(output, label(seed, step, micro)));
        }
        blocks.apply();
    }
    blocks.states
}

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

/// The same of a micro-batch with several samples: its sample number `row`.
pub(crate) fn sample_in(seed: u64, step: u64, micro: u32, row: u32) -> u64 {
    match row {
        0 => sample(seed, step, micro),
        _ => mix(sample(seed, step, micro), u64::from(row)),
    }
}

/// The label that belongs to a sample.
pub(crate) fn label(sample: u64) -> u64 {
    mix(sample, 77)
}

/// The gradient of the loss.
pub(crate) fn loss(output: u64, label: u64) -> u64 {
    mix(output, label)
}

/// One stage's blocks while a step is in work.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    pub(crate) states: Vec<u64>,
    pub(crate) gradients: Vec<u64>,
    /// Whether gradients are summed without regard to their order, so that hosts of a stage can sum theirs apart.
    sums: bool,
}

/// What backward needs of a forward: each block's input, and the states that it went through.
pub(crate) type Kept = Vec<(u64, u64)>;

impl Blocks {
    pub(crate) fn new(states: Vec<u64>, sums: bool) -> Self {
        let gradients = vec![0; states.len()];
        Self {
            states,
            gradients,
            sums,
        }
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
            let own = mix(*input, gradient);
            *sum = match self.sums {
                true => sum.wrapping_add(own),
                false => mix(*sum, own),
            };
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

/// The blocks after `steps` steps of `micro` micro-batches of `rows` samples, computed in one place.
pub(crate) fn alone(seed: u64, n_blocks: u16, (micro, rows): (u32, u32), steps: u64) -> Vec<u64> {
    let initial = (0..n_blocks).map(|block| initial(seed, block));
    let mut blocks = Blocks::new(initial.collect(), rows > 1);
    for step in 0..steps {
        let all = (0..micro).flat_map(|micro| (0..rows).map(move |row| (micro, row)));
        for (micro, row) in all {
            let sample = sample_in(seed, step, micro, row);
            let (output, kept) = blocks.forward(sample);
            blocks.backward(&kept, loss(output, label(sample)));
        }
        blocks.apply();
    }
    blocks.states
}

//! What kind of pipeline a flow is in, and how many micro-batches are on their way at once.

/// What kind of pipeline, seen from one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of the stage, from 0.
    pub stage: usize,
    /// Number of stages.
    pub n_stages: usize,
    /// Micro-batches per step; 1 where `asynchronous`.
    pub micro: u32,
    /// Micro-batches that may be on their way between this stage's forward and backward.
    pub depth: u32,
    /// Whether steps overlap.
    pub asynchronous: bool,
    /// Micro-batches per look at held-out samples.
    pub looks: u32,
    /// Steps between two lines.
    pub line_every: u64,
}

impl Shape {
    /// Micro-batches whose frames are taken at once, per kind.
    pub fn window(&self) -> u64 {
        let stages = 2 * self.n_stages.min(1 << 16) as u32;
        2 * u64::from(self.micro.max(self.depth).max(stages))
    }

    pub(super) fn is_first(&self) -> bool {
        self.stage == 0
    }

    pub(super) fn is_last(&self) -> bool {
        self.stage + 1 == self.n_stages
    }
}

/// Micro-batches on their way that hide the time of the transfers: `2 (n - i) - 1` at stage i of n, of which one is in work
/// (Asteroid, section on 1F1B; FTPipeHD and PipeDream keep `n - i`, which leaves bubbles where transfers take time).
pub fn depth(stage: usize, n_stages: usize, micro: u32) -> u32 {
    let hiding = 2 * n_stages.saturating_sub(stage).min(1 << 16) as u32;
    hiding.saturating_sub(1).clamp(1, micro.max(1))
}

/// Batches on their way at stage `stage` of `n_stages` where steps overlap: `n - i` at stage i of n (PipeDream, FTPipeHD), or as
/// [`depth`] has it, which hides the time of the transfers. A gradient is at most so many updates old, less one.
pub fn asynchronous_depth(stage: usize, n_stages: usize, hides_transfers: bool) -> u32 {
    match hides_transfers {
        true => depth(stage, n_stages, u32::MAX),
        false => (n_stages.saturating_sub(stage).min(1 << 16) as u32).max(1),
    }
}

//! What kind of pipeline a flow is in, and how many micro-batches are on their way at once.

use super::super::group::{Piece, Place};

/// What kind of pipeline, seen from one host of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Number of this host in its stage's group; the first one leads.
    pub member: usize,
    /// Hosts of the stage.
    pub n_members: usize,
    /// In which pieces micro-batches come.
    pub pieces: Pieces,
}

/// First samples of the pieces in which a micro-batch comes, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// From the stage before.
    pub forward: Vec<u32>,
    /// From the stage behind.
    pub backward: Vec<u32>,
    /// Of labels, from the first stage.
    pub labels: Vec<u32>,
}

impl Default for Pieces {
    /// Whole ones.
    fn default() -> Self {
        Self {
            forward: vec![0],
            backward: vec![0],
            labels: vec![0],
        }
    }
}

impl Pieces {
    /// Of a host that stands there.
    pub fn of(place: &Place) -> Self {
        let first = |pieces: &[Piece]| pieces.iter().map(|piece| piece.rows.start).collect();
        Self {
            forward: first(&place.before),
            backward: first(&place.behind),
            labels: first(&place.labels),
        }
    }
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

    /// Whether this host decides for its stage.
    pub(super) fn leads(&self) -> bool {
        self.member == 0
    }

    pub(super) fn is_shared(&self) -> bool {
        self.n_members > 1
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

//! How a job's stages are planned from what was measured: the job file's words as [`skein_model::plan`] takes them. Nodes plan with it,
//! and so does whoever simulates them.

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::plan::{self as wire, Member, Plan, Stage};
use skein_model::plan::{
    self, Device, Group, Hybrid, Links, Placement, PlanError, Prediction, Problem, Profile,
    Reduction, Share, Stashing, Work,
};
use skein_model::stage::BlockLayout;

use crate::job::strategy::Pipeline;
use crate::job::strategy::pipeline::Cut;

/// Seconds of a message beside the link: the hand-over between two threads on each side.
pub const HAND_OVER: f64 = 0.5e-3;

/// Lines of each block that are held at once: the newest safe one, the one before it, and one under way.
const LINES: u64 = 3;

/// A step of `batch` samples with blocks that take what `profile` says, with sizes as they travel and the copies of neighbours.
pub fn work(
    pipeline: &Pipeline,
    batch: u32,
    mut profile: Profile,
    layouts: &[BlockLayout],
) -> Work {
    let copies = LINES * u64::from(1 + pipeline.copies);
    for (block, layout) in profile.blocks.iter_mut().zip(layouts) {
        block.output_bytes = pipeline.values.wire_bytes(block.output_bytes);
        block.copies_bytes = copies * layout.encoded_len() as u64;
    }
    Work {
        profile,
        micro_batch: pipeline.samples(batch, 0) as usize,
        n_micro: pipeline.n_micro() as usize,
        recompute: pipeline.recompute,
        hides_transfers: pipeline.hides_transfers(),
        stashing: match (pipeline.is_asynchronous(), pipeline.syncs_versions()) {
            (false, _) => Stashing::None,
            (true, false) => Stashing::Own,
            (true, true) => Stashing::VerticalSync,
        },
    }
}

/// `kind = "pipeline"`: stages of one device each. The first device has the data, and the first stage.
///
/// # Errors
/// Figures that cannot be; nothing that fits; a cut for stages with several hosts.
pub fn in_a_row(
    cut: Cut,
    work: &Work,
    devices: &[Device],
    links: &Links,
) -> Result<(Vec<Placement>, Prediction), PlanError> {
    let n = devices.len().min(work.profile.blocks.len());
    let order: Vec<usize> = (0..n).collect();
    let placements = match cut {
        Cut::Measured => {
            let found = plan::search(work, devices, links)?;
            return Ok((found.placements, found.prediction));
        }
        Cut::Equal => plan::equal(work, devices, links, &order)?,
        Cut::Pipedream => plan::pipedream(work, devices, links, &order)?,
        // Job files with these have stages with several hosts.
        Cut::DataParallel
        | Cut::Gpipe
        | Cut::Dapple
        | Cut::Hetpipe
        | Cut::AllDevice
        | Cut::AllEdge
        | Cut::AllCloud
        | Cut::Jointdnn
        | Cut::Jalad => {
            return Err(PlanError::Overlapping);
        }
    };
    let prediction = plan::predict(work, devices, links, &placements)?;
    Ok((placements, prediction))
}

/// `kind = "hybrid"`: stages that may have several hosts.
///
/// # Errors
/// Figures that cannot be; nothing that fits.
pub fn in_groups(cut: Cut, problem: &Problem) -> Result<Hybrid, PlanError> {
    match cut.baseline() {
        None => plan::hybrid(problem),
        Some(other) => plan::baseline(problem, other),
    }
}

/// Groups as peers agree on them; `hosts` has the peer of each device.
///
/// # Errors
/// Figures that cannot be; groups that are not all blocks in order on devices that there are.
pub fn agreed(hosts: &[PeerId], problem: &Problem, groups: &[Group]) -> Result<Plan, PlanError> {
    let ways = plan::reductions(problem, groups)?;
    let member = |share: &Share| Member {
        peer: hosts[share.device],
        samples: u32::try_from(share.samples).unwrap_or(u32::MAX),
    };
    let stage = |(group, way): (&Group, Option<Reduction>)| Stage {
        in_flight: u32::try_from(group.in_flight).unwrap_or(u32::MAX),
        members: group.shares.iter().map(member).collect(),
        blocks: group.blocks.start as u16..group.blocks.end as u16,
        reduction: match way {
            Some(Reduction::Shards) => wire::Reduction::Shards,
            Some(Reduction::Direct) | None => wire::Reduction::Direct,
        },
    };
    Ok(Plan {
        stages: groups.iter().zip(ways).map(stage).collect(),
    })
}

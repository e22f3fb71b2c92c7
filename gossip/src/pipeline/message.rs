//! What the peers of a pipeline tell each other on the control lane: beats with the sender's whole standing, views, and the
//! profile of its device. A lost message is mended by the next one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::copies::Held;
use super::links::LinkRate;
use super::plan::Plan;
use crate::ids::{Digest, PeerId};
use crate::view::{Contribution, Stamp};

/// Longest reason that is sent; the receiver refuses longer ones.
pub const MAX_REASON: usize = 300;
/// Most members of one pipeline job.
pub const MAX_MEMBERS: usize = 256;

/// One message of a pipeline job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// How the sender stands.
    Beat(Arc<Beat>),
    /// The newest view that the sender holds.
    View(Arc<View>),
    /// How fast the sender is.
    Profile(Arc<Profile>),
    /// To a peer that does not know it: the job is over.
    Over(Arc<Over>),
}

/// How a job ended, for a peer that was not there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Over {
    /// Why.
    pub reason: String,
    /// The finished model, which the sender gives; none where nothing was trained.
    pub model: Option<Final>,
    /// Samples of all peers.
    pub samples: u64,
}

/// A finished model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Final {
    /// Hash of its weights.
    pub digest: Digest,
    /// Its last judgement, if there was one: share of held-out samples labelled right, 0 to 1, and mean loss, nats per sample.
    pub judged: Option<(f64, f64)>,
}

/// How far a peer is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Standing {
    /// Loads data and measures itself.
    Preparing,
    /// Cannot take part, and why.
    Unable(String),
    /// Takes part.
    Ready,
    /// Holds the finished model of this hash.
    Finished(Digest),
}

/// The whole standing of the sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// The process that speaks: a restarted peer has another one.
    pub instance: u64,
    /// How far it is.
    pub standing: Standing,
    /// Whether it holds the data, and so can host the first stage.
    pub has_data: bool,
    /// Whether it has room for the whole model, and so keeps whole lines.
    pub has_room: bool,
    /// The newest view it holds.
    pub view: Option<Stamp>,
    /// Whether it holds all it needs for that view, and works in it.
    pub in_place: bool,
    /// Frames of that view were lost, so its steps cannot be finished: the steward is to propose the next.
    pub is_broken: bool,
    /// Steps its stage has made.
    pub step: u64,
    /// Copies of blocks that it holds; those of step 0 need not be said.
    pub held: Vec<Held>,
    /// The line that peers with room collect; the steward's word counts.
    pub global: Option<u64>,
    /// What a step takes its stage, by what its profile says: 2.0 is twice as slow as profiled. 1.0 if it hosts none.
    pub slowdown: f32,
    /// Why the job is to end, as far as it knows.
    pub stop: Option<String>,
    /// The step that is the job's last.
    pub last_step: Option<u64>,
    /// The newest judgement of the model that it knows.
    pub judged: Option<Judged>,
    /// Its own work so far.
    pub contribution: Contribution,
}

/// A judgement of the model after a step, on held-out samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Steps made.
    pub step: u64,
    /// Share of samples labelled right, 0 to 1.
    pub accuracy: f32,
    /// Mean loss, nats per sample.
    pub loss: f32,
    /// Samples looked at.
    pub samples: u32,
}

/// What a device can do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Microseconds of each block for a micro-batch of the job.
    pub blocks: Vec<BlockTime>,
    /// The same for fewer samples, most samples last: small micro-batches are relatively dear.
    pub fewer: Vec<Fewer>,
    /// Bytes that it may use for the job; 0: no limit was set.
    pub memory: u64,
    /// What its links to other peers carry, where anything was sent there.
    pub rates: Vec<LinkRate>,
    /// What its data looks like, if it holds the data.
    pub data: Option<DataShape>,
    /// Hash of the weights that the job starts from, if it holds them.
    pub weights: Option<Digest>,
    /// Where it stands, if anybody said so.
    pub tier: Option<Tier>,
}

/// Where a peer stands, for plans over tiers (HierTrain).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Tier {
    /// Where data is born.
    Device,
    /// Near the devices.
    Edge,
    /// Far from them, and fast.
    Cloud,
}

/// What those need to know of the data that do not hold it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataShape {
    /// Channels, height, width.
    pub input: [u32; 3],
    /// Number of classes.
    pub classes: u32,
    /// Training samples.
    pub train: u64,
    /// Held-out samples.
    pub validation: u64,
    /// Mean per channel, for the finished model's file.
    pub mean: Vec<f32>,
    /// Standard deviation per channel.
    pub std: Vec<f32>,
    /// Hash of the tokenizer that made the tokens, of text that has one.
    pub tokenizer: Option<Digest>,
    /// Bytes of a sample as it travels from a source: values as the data has them, without the label.
    pub sample_bytes: u32,
}

/// Most channels of a data set that is described.
const MAX_CHANNELS: usize = 1024;

/// What one block takes a device for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockTime {
    /// Forward, microseconds.
    pub forward_us: f32,
    /// Backward, microseconds.
    pub backward_us: f32,
}

/// What all blocks take for fewer samples than a micro-batch has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fewer {
    /// How many.
    pub samples: u32,
    /// Microseconds of each block.
    pub blocks: Vec<BlockTime>,
}

/// Most sizes of micro-batches in a profile beside the whole one.
pub const MAX_FEWER: usize = 4;

impl Profile {
    /// Whether it can be of a model of `n_blocks` blocks: every number finite and none below zero.
    pub fn is_of(&self, n_blocks: u16) -> bool {
        let time = |us: f32| us.is_finite() && (0.0..=1e9).contains(&us);
        let are_sound = |blocks: &[BlockTime]| {
            let mut all = blocks.iter();
            blocks.len() == usize::from(n_blocks)
                && all.all(|block| time(block.forward_us) && time(block.backward_us))
        };
        are_sound(&self.blocks)
            && self.fewer.len() <= MAX_FEWER
            && self.fewer.is_sorted_by(|a, b| a.samples < b.samples)
            && self
                .fewer
                .iter()
                .all(|fewer| fewer.samples > 0 && are_sound(&fewer.blocks))
            && self.rates.len() <= MAX_MEMBERS
            && self
                .data
                .as_ref()
                .is_none_or(|data| data.mean.len().max(data.std.len()) <= MAX_CHANNELS)
            && self.rates.iter().all(LinkRate::is_sound)
    }
}

/// An agreed membership with its plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Its number and proposer; the higher one counts.
    pub stamp: Stamp,
    /// Who takes part, ascending: the hosts, and standbys that keep copies.
    pub members: Vec<PeerId>,
    /// Who hosts what.
    pub plan: Plan,
    /// The line that it goes on from: a step of the past after a failure, of the near future where the cut changes.
    pub from: u64,
    /// The view that makes this line, where it is still to be made.
    pub after: Option<Stamp>,
}

impl View {
    /// Whether it is one for a model of `n_blocks` blocks and micro-batches of `rows` samples, 0 if they differ.
    pub fn is_of(&self, n_blocks: u16, rows: u32) -> bool {
        self.plan.check(n_blocks, rows).is_ok()
            && self.members.len() <= MAX_MEMBERS
            && self.members.is_sorted_by(|a, b| a < b)
            && self.plan.hosts().all(|host| self.has(host))
    }

    /// Whether `peer` takes part.
    pub fn has(&self, peer: PeerId) -> bool {
        self.members.binary_search(&peer).is_ok()
    }
}

impl Beat {
    /// Whether it holds what its bounds allow.
    pub fn is_sound(&self) -> bool {
        let short = |reason: &str| reason.len() <= MAX_REASON;
        let standing = match &self.standing {
            Standing::Unable(reason) => short(reason),
            _ => true,
        };
        standing
            && self.stop.as_deref().is_none_or(short)
            && self.held.len() <= super::copies::MAX_HELD
            && self.slowdown.is_finite()
            && self.slowdown > 0.0
            && self
                .judged
                .is_none_or(|judged| judged.loss.is_finite() && judged.accuracy.is_finite())
    }
}

impl Over {
    /// Whether it holds what its bounds allow.
    pub fn is_sound(&self) -> bool {
        let judged = self.model.and_then(|model| model.judged);
        self.reason.len() <= MAX_REASON
            && judged.is_none_or(|(accuracy, loss)| accuracy.is_finite() && loss.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_end_with_a_judgement_that_is_none_or_an_endless_reason_is_refused() {
        let over = |reason: &str, loss: f64| Over {
            reason: reason.into(),
            model: Some(Final {
                digest: Digest([1; 32]),
                judged: Some((0.5, loss)),
            }),
            samples: 1,
        };
        assert!(over("stop.steps = 4 reached", 0.25).is_sound());
        assert!(!over("stop.steps = 4 reached", f64::NAN).is_sound());
        assert!(!over(&"x".repeat(MAX_REASON + 1), 0.25).is_sound());
    }

    proptest! {
        #[test]
        fn a_profile_with_a_rate_that_no_link_has_is_refused(bytes_per_s: f32, round_trip_us: u32, is_bound: bool, n in 0usize..400) {
            let rate = LinkRate { peer: PeerId([1; 32]), bytes_per_s, round_trip_us, is_bound };
            let profile = Profile {
                blocks: vec![BlockTime::default(); 3],
                rates: vec![rate; n],
                ..Profile::default()
            };
            let can_be = (1.0..=1e12).contains(&bytes_per_s) && round_trip_us <= 60_000_000;
            prop_assert_eq!(profile.is_of(3), n == 0 || (can_be && n <= MAX_MEMBERS));
            prop_assert!(!profile.is_of(4));
        }
    }
}

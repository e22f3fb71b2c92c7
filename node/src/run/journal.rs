//! The journal of a job: typed events and one line of numbers per step, as JSON lines in `metrics.jsonl`.
//!
//! The testbed and the dashboard read it, never the log. Each line has `t_ms` (milliseconds since 1970) and `event`.
//! A disk that is full costs lines, not the training: the first failure is logged, and counted in the next line that fits.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use skein_gossip::exchange::LinkStats;
use skein_gossip::ids::PeerId;

/// One line's content.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Entry<'a> {
    /// The process took the job up.
    Opened {
        /// This peer.
        peer: String,
        /// The job's label.
        name: &'a str,
        /// Step and samples of the state it holds.
        step: u64,
        /// See `step`.
        samples: u64,
        /// Hash of the weights held.
        digest: String,
        /// Damaged checkpoints that were left out, with the reasons.
        skipped_checkpoints: &'a [String],
    },
    /// A new view.
    View {
        /// Its number.
        number: u64,
        /// Its steward.
        steward: String,
        /// Its members.
        members: Vec<String>,
        /// Samples behind a step of all.
        global_batch: u64,
        /// Samples of each member, in the order of `members`.
        batches: Vec<u32>,
    },
    /// A step.
    Step {
        /// The replica's step.
        step: u64,
        /// Mean training loss of the own batch, none where not finite.
        train_loss: Option<f32>,
        /// Samples of the own batch.
        samples: u64,
        /// Seconds of the step.
        computing_s: f64,
        /// Seconds waiting for others.
        waiting_s: f64,
        /// Seconds handing over and merging.
        communicating_s: f64,
        /// Bytes of this job so far per link: `[in, out]`.
        links: BTreeMap<String, [u64; 2]>,
        /// Number of the view.
        view: u64,
        /// Where this is a stage: what it took of the processor and of the links.
        #[serde(flatten)]
        stage: Option<StageStep>,
    },
    /// A look at the validation set.
    Evaluated {
        /// The replica's step.
        step: u64,
        /// Accuracy, 0 to 1.
        val_accuracy: f64,
        /// Mean loss, nats per sample, none where not finite.
        val_loss: Option<f64>,
        /// Rows looked at.
        samples: usize,
        /// Samples of the mesh by then.
        samples_mesh: u64,
    },
    /// A new view of a pipeline: who hosts what, from which step on.
    Cut {
        /// Number of the view.
        view: u64,
        /// The line it goes on from.
        from_step: u64,
        /// Seconds of a step that the plan promises.
        step_s: Option<f64>,
        /// First stage to last.
        stages: Vec<Cut>,
    },
    /// A new view of a pipeline goes back: steps are made again.
    Setback {
        /// Steps that had been made.
        reached: u64,
        /// The recovery point until then.
        recoverable: u64,
        /// The line that it goes on from.
        from_step: u64,
        /// Blocks of which no newer copy is left; empty where nothing was lost.
        lost_blocks: &'a [u16],
    },
    /// The own stage holds all it needs for a view and works in it.
    InPlace {
        /// Number of the view.
        view: u64,
    },
    /// All stages are in place; the first one, here, draws micro-batches.
    Fed {
        /// Number of the view.
        view: u64,
    },
    /// The own stage was copied: a line.
    Line {
        /// Steps made.
        step: u64,
    },
    /// A line has enough copies: what a failure costs are the steps since.
    Recoverable {
        /// The line's step.
        step: u64,
    },
    /// Copies that training waited for have come.
    Fetched {
        /// Of which step.
        step: u64,
        /// First block.
        first: u16,
        /// One past the last.
        end: u16,
        /// Whether they went to disk one by one, for want of memory.
        to_disk: bool,
    },
    /// A step or an update that was not finite or malformed was left out.
    Refused {
        /// Whose.
        peer: String,
        /// Why.
        reason: &'a str,
    },
    /// The state of another peer is being loaded, or was.
    Synced {
        /// Whose.
        donors: Vec<String>,
        /// Step now.
        step: u64,
        /// Bytes copied.
        bytes: u64,
        /// How long it took.
        seconds: f64,
    },
    /// How the peer keeps pace with the others, every two seconds of training.
    Pace {
        /// Its part of the samples of a step of all, 0 to 1.
        share_frac: f64,
        /// Commits so far.
        commits: u64,
        /// Seconds waited for others so far.
        waited_s: f64,
        /// Mean over its links of N, the share of a gradient's values in a packet, percent.
        n_percent: Option<f64>,
        /// Per link.
        links: BTreeMap<String, LinkPace>,
    },
    /// The replica of another peer was tried on held-out samples, and this one moved towards it or not.
    Learnt {
        /// Whose.
        from: String,
        /// Loss of the own replica, nats per sample, none where not finite.
        own_loss: Option<f64>,
        /// Loss with the move that was tried.
        merged_loss: Option<f64>,
        /// How far it moved, 0 to 1.
        moved: f32,
    },
    /// The two sides of a healed partition were put together here.
    Merged {
        /// Samples of this side since the sides parted.
        samples: u64,
        /// How much this side's parameters count in what goes on, 0 to 1.
        share: f32,
    },
    /// A try to fetch a state failed; it is tried again.
    FetchFailed {
        /// Why, per holder.
        reasons: &'a [String],
    },
    /// Training stopped here for a while.
    Paused {
        /// Samples of this side of a partition that do not go into the model.
        lost_samples: u64,
    },
    /// A host of the pipeline fell out, and all restart from their disks.
    Restarting {},
    /// A checkpoint was written.
    Checkpoint {
        /// Its step.
        step: u64,
    },
    /// A checkpoint could not be written.
    CheckpointFailed {
        /// Why.
        reason: &'a str,
    },
    /// This peer cannot go on with the job.
    Failed {
        /// Why.
        reason: &'a str,
    },
    /// The end began.
    Ending {
        /// Why.
        reason: &'a str,
    },
    /// The job is closed.
    Closed {
        /// Why it ended.
        reason: &'a str,
        /// Hash of the agreed weights.
        digest: Option<String>,
        /// Whose replica they were.
        winner: Option<String>,
        /// Their accuracy on the whole validation set.
        val_accuracy: Option<f32>,
    },
}

/// One stage of a cut.
#[derive(Clone, Debug, Serialize)]
pub struct Cut {
    /// Its host.
    pub host: String,
    /// Its first block.
    pub first: u16,
    /// One past its last block.
    pub end: u16,
    /// What its host takes by what it had measured before the job, as far as known then.
    pub slowdown: f32,
    /// Part of a step that each of its hosts is to compute, its lead first.
    pub busy: Vec<f64>,
    /// Where it has several hosts: all of them, its lead first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<Share>,
}

/// What a step of a stage took.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StageStep {
    /// Seconds of the processor, all threads of the process together.
    pub processor_s: f64,
    /// Those of the stage's own thread among them.
    pub stage_processor_s: f64,
    /// Bytes of frames that came.
    pub bytes_in: u64,
    /// Bytes of frames that went.
    pub bytes_out: u64,
}

/// One of several hosts of a stage.
#[derive(Clone, Debug, Serialize)]
pub struct Share {
    /// Who.
    pub host: String,
    /// Its samples of each micro-batch.
    pub samples: u32,
}

/// What one link carries.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LinkPace {
    /// Bytes per second, where it is known.
    pub bytes_per_s: Option<f64>,
    /// From sending a packet to hearing that it was applied, milliseconds.
    pub round_trip_ms: Option<f64>,
    /// How long the last packets stood in a queue, milliseconds.
    pub queueing_ms: f64,
    /// N of the last packet, percent.
    pub n_percent: f64,
    /// Bits per value in it.
    pub bits: u8,
    /// Bytes of it over the steps in it.
    pub bytes_per_step: f64,
    /// Steps that the other has not been told of.
    pub steps_untold: u32,
}

/// The line on the pace of a peer. `share_frac`: its part of a step's samples.
pub fn pace<'a>(
    stats: &BTreeMap<PeerId, LinkStats>,
    share_frac: f64,
    commits: u64,
    waiting_us: u64,
) -> Entry<'a> {
    let finite = |value: f64| value.is_finite().then_some(value);
    let ms = |us: u64| us as f64 / 1e3;
    let used = || stats.iter().filter(|(_, link)| link.packets_out > 0);
    let links: BTreeMap<String, LinkPace> = used()
        .map(|(peer, link)| {
            let pace = LinkPace {
                bytes_per_s: link.rate.and_then(finite),
                round_trip_ms: link.round_trip_us.map(ms),
                queueing_ms: ms(link.queueing_us),
                n_percent: 100.0 * f64::from(link.share),
                bits: link.bits,
                bytes_per_step: link.bytes_per_step,
                steps_untold: link.steps_untold,
            };
            (peer.short(), pace)
        })
        .collect();
    let sum: f64 = links.values().map(|link| link.n_percent).sum();
    Entry::Pace {
        share_frac,
        commits,
        waited_s: waiting_us as f64 / 1e6,
        n_percent: finite(sum / links.len() as f64),
        links,
    }
}

#[derive(Serialize)]
struct Line<'a> {
    t_ms: u64,
    #[serde(skip_serializing_if = "is_zero")]
    lost_lines: u64,
    #[serde(flatten)]
    entry: &'a Entry<'a>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Appends to one journal.
#[derive(Debug)]
pub struct Journal {
    file: Option<BufWriter<File>>,
    lost_lines: u64,
}

impl Journal {
    /// Opens the journal at `path` for appending. Without it the job runs on, and says so in the log.
    pub fn open(path: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file
            .map_err(|error| tracing::error!(path = %path.display(), %error, "no journal is kept"));
        Self {
            file: file.ok().map(BufWriter::new),
            lost_lines: 0,
        }
    }

    /// Appends an entry.
    pub fn write(&mut self, entry: &Entry<'_>) {
        let Some(file) = &mut self.file else { return };
        let line = Line {
            t_ms: now_ms(),
            lost_lines: self.lost_lines,
            entry,
        };
        let written = serde_json::to_vec(&line)
            .map_err(std::io::Error::from)
            .and_then(|mut line| {
                line.push(b'\n');
                file.write_all(&line)
            });
        self.note(written);
        if !matches!(entry, Entry::Step { .. }) {
            self.flush();
        }
    }

    /// Hands everything to the operating system.
    pub fn flush(&mut self) {
        if let Some(file) = &mut self.file {
            let flushed = file.flush();
            self.note(flushed);
        }
    }

    fn note(&mut self, outcome: std::io::Result<()>) {
        match outcome {
            Ok(()) => {}
            Err(error) => {
                if self.lost_lines == 0 {
                    tracing::error!(%error, "journal lines are lost");
                }
                self.lost_lines += 1;
            }
        }
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_millis() as u64)
}

/// The per-link counters of a line.
pub fn links(stats: &BTreeMap<PeerId, LinkStats>) -> BTreeMap<String, [u64; 2]> {
    stats
        .iter()
        .map(|(peer, link)| (peer.short(), [link.bytes_in, link.bytes_out]))
        .collect()
}

//! `[strategy]`: how the peers of a job work together. `[strategy.exchange]` says what neighbours send each other and who waits
//! for whom, `[strategy.batching]` how samples are shared out, `[strategy.knowledge]` how the best replica helps the others.
//!
//! `kind = "pipeline"` cuts the model into stages instead, see [`Pipeline`].
//!
//! A user writes none of it: `skein train` has the mesh measure the model and chooses the kind. `like` names a known method whose settings stand in for the keys that are not written, so that
//! methods can be compared under one coder and transport: `methods` has them, `settings` tells the machines of `skein_gossip`.

mod methods;
pub mod pipeline;
mod settings;
mod written;

use serde::{Deserialize, Serialize};

pub use pipeline::Pipeline;

/// `[strategy]`, or `strategy = "KIND"`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Strategy {
    /// What the peers share out. Default `auto`; where settings of an exchange are written, `exchange`.
    pub kind: Kind,
    /// How the model is cut into stages, where `kind` is `pipeline`.
    pub pipeline: Pipeline,
    /// What neighbours send each other.
    pub exchange: Exchange,
    /// How samples are shared out.
    pub batching: Batching,
    /// How the best replica helps the others.
    pub knowledge: Knowledge,
}

impl Strategy {
    /// With what follows from it: over tiers a step has one micro-batch, and JALAD packs what it sends.
    pub fn settled(mut self) -> Self {
        if self.kind == Kind::Tiers {
            self.pipeline.micro_batches.get_or_insert(1);
            if self.pipeline.cut == pipeline::Cut::Jalad {
                self.pipeline.values = pipeline::Precision::Int8;
            }
        }
        self
    }
}

/// What the peers share out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Samples: every peer holds the whole model, and neighbours exchange updates.
    Exchange,
    /// The model: every peer hosts a run of its blocks.
    Pipeline,
    /// Both: the model is cut into stages, and a stage may have several hosts that share out its samples. Every peer may then
    /// hold the whole model, or none may. The settings are those of `[strategy.pipeline]`.
    Hybrid,
    /// Both, over tiers: one peer holds the whole model, others train its first blocks, all on samples of their own (HierTrain). Peers
    /// say where they stand with `skein up --tier`. The settings are those of `[strategy.pipeline]`.
    Tiers,
    /// What is the fastest of these: `skein train` lets the peers that are there measure the model, and hands in the job with what it
    /// has chosen.
    #[default]
    Auto,
}

impl Kind {
    /// Whether the model is cut into stages.
    pub fn has_stages(self) -> bool {
        matches!(self, Self::Pipeline | Self::Hybrid | Self::Tiers)
    }
}

/// `[strategy.exchange]`: what neighbours send each other, and who waits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written")]
pub struct Exchange {
    /// The method whose settings are the defaults of the other keys. Default `skein`.
    pub like: Method,
    /// Who waits for whom. Default `never`: a slow peer slows nobody.
    pub waiting: Waiting,
    /// Which entries of a gradient are sent. Default `top-k`, the largest of each variable.
    pub select: Select,
    /// Most of each variable's entries in a packet, above 0 to 1; for `max-n` the paper's N / 100. Default 0.01: with
    /// twice as many, late as they come, 18 peers train worse (docs/benchmarks.md).
    pub most: f64,
    /// Fewest, where a link carries little: then it sends less often instead. Default 0.001.
    pub least: f64,
    /// Gaia: least change relative to the weight that is sent, above 0 to 1. Default 0.01, the paper's.
    pub threshold: f64,
    /// Number format of sent values. Default `octave`: twice the entries for the bytes of f16, and what rounding leaves goes later.
    pub values: ValueFormat,
    /// When a peer hands on what it has summed up. Default `auto`.
    pub commit: Commit,
    /// How much of its own update a peer applies before the others know of it. Default `share`.
    pub local: Local,
    /// Synchronous and `local = "full"`: the outer step on the mean change. Default: the mean itself.
    pub outer: Option<Outer>,
    /// zstd level of packets, 1 to 19. Default 1: higher levels cost more time than a LAN saves.
    pub level: i32,
}

/// A method to start from: the product's own, those of papers, and what is common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// What measured best here: see docs/strategy.md.
    #[default]
    Skein,
    /// DLion (HPDC 2021): Max N by the link's budget at every step, nobody waits.
    Dlion,
    /// Whole gradients in f32, all wait for all at every step.
    Dense,
    /// Gaia (NSDI 2017): what changes a weight by 1 % or more; nobody runs far ahead.
    Gaia,
    /// Ako (SoCC 2016): a part of the gradient per round, in turn, nobody waits.
    Ako,
    /// Hop (ASPLOS 2019): whole gradients, bounded staleness with one backup worker.
    Hop,
    /// Stale synchronous parallel: whole gradients, at most 40 steps ahead of the slowest.
    Ssp,
    /// Asynchronous: whole gradients at every step, nobody waits.
    Asp,
    /// ADSP (AAAI 2020): nobody waits, commit rates are searched.
    Adsp,
    /// ADACOMM (SysML 2019): all wait after tau local steps, tau falls with the loss.
    Adacomm,
    /// ADACOMM with tau fixed.
    FixedAdacomm,
    /// Local SGD: all wait after 32 local steps and average.
    LocalSgd,
    /// DiLoCo (2023): local SGD with an outer Nesterov step.
    Diloco,
}

/// Who waits for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Waiting {
    /// Nobody; what others sent is applied as it arrives.
    Never,
    /// All for all, at every commit.
    All,
    /// Nobody runs further ahead than so many steps of the slowest but `backup` peers.
    Bounded {
        /// Steps ahead, 0 to 100000.
        staleness: u64,
        /// Slowest peers that are not waited for, 0 to 1024.
        #[serde(default)]
        backup: u32,
    },
}

/// Which entries are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Select {
    /// The largest of each variable, as many as the link carries.
    TopK,
    /// DLion's Max N: all that are near the variable's largest, N by what the link carries.
    MaxN,
    /// Any, `most` of them.
    RandomK,
    /// All.
    Dense,
    /// Gaia's significance.
    Gaia,
    /// Ako's parts, as many as make one fit the link.
    Ako,
}

/// Number format of sent values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueFormat {
    /// f16 where the link carries all of `most`, int8 where it does not.
    Auto,
    /// IEEE single precision, 4 bytes.
    F32,
    /// IEEE half precision, 2 bytes.
    F16,
    /// bfloat16, 2 bytes.
    Bf16,
    /// 8 bits with a scale per block.
    Int8,
    /// Sign and nearer power of two, 3 bits or so.
    Octave,
}

/// When a peer hands on what it has summed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Commit {
    /// As often as costs 3 % of the processor time of training, by measurement, and not more often than every 24 steps.
    Auto,
    /// After so many steps, 1 to 1000.
    Steps(u32),
    /// ADSP: so often that the loss falls fastest, by an online search.
    Search,
    /// ADACOMM: after this many steps at first, fewer as the loss falls.
    Adacomm(u32),
}

/// How much of its own update a peer applies at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Local {
    /// Its share of the global batch: a replica is where large-batch SGD would be, but for what is under way.
    Share,
    /// All of it; a commit hands on the change of the parameters, which counts by the number of peers (local SGD, ADSP).
    Full,
}

/// The outer step of DiLoCo.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outer {
    /// Its learning rate, above 0 to 10.
    pub lr: f64,
    /// Its Nesterov momentum, 0 to below 1.
    pub momentum: f64,
}

/// `[strategy.batching]`: how samples are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Batching {
    /// Whether batches follow compute power. Default `weighted`.
    pub kind: BatchingKind,
    /// Samples behind one step of all peers, 1 to 2^30; then it stays so whoever joins or leaves. Default: `train.batch` times
    /// the number of peers.
    pub global: Option<u32>,
    /// Whether the global batch grows while the job runs, up to a tenth of the data (DLion). Default false: in `examples/` it
    /// needed more samples.
    pub growth: bool,
}

/// How batches are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BatchingKind {
    /// So that a step takes all peers as long.
    Weighted,
    /// `train.batch` for each.
    Equal,
}

/// `[strategy.knowledge]`: how the best replica helps the others.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Knowledge {
    /// Seconds between two copies of a better replica's parameters, 0 (never) or 1 to 86400. Default 60: where all data is alike it
    /// gains little, and a copy costs a model's bytes.
    pub every: f64,
    /// How far a peer moves towards the better replica, above 0 to 1 (a copy). Default 0.75, the paper's.
    pub weight: f64,
    /// Whether a peer first tries the copy on samples of its own. Default true: a peer that claims to be best without being so is
    /// found out.
    pub gated: bool,
    /// Whether a replica that has drifted away from the others is refreshed. Default true.
    pub refresh: bool,
}

/// The section as a user writes it.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    like: Method,
    waiting: Option<Waiting>,
    select: Option<Select>,
    most: Option<f64>,
    least: Option<f64>,
    threshold: Option<f64>,
    values: Option<ValueFormat>,
    commit: Option<Commit>,
    local: Option<Local>,
    outer: Option<Outer>,
    level: Option<i32>,
}

impl From<Written> for Exchange {
    fn from(written: Written) -> Self {
        let base = Self::like(written.like);
        Self {
            like: written.like,
            waiting: written.waiting.unwrap_or(base.waiting),
            select: written.select.unwrap_or(base.select),
            most: written.most.unwrap_or(base.most),
            least: written.least.unwrap_or(base.least),
            threshold: written.threshold.unwrap_or(base.threshold),
            values: written.values.unwrap_or(base.values),
            commit: written.commit.unwrap_or(base.commit),
            local: written.local.unwrap_or(base.local),
            outer: written.outer.or(base.outer),
            level: written.level.unwrap_or(base.level),
        }
    }
}

impl Default for Exchange {
    fn default() -> Self {
        Self::like(Method::Skein)
    }
}

impl Default for Batching {
    fn default() -> Self {
        Self {
            kind: BatchingKind::Weighted,
            global: None,
            growth: false,
        }
    }
}

impl Default for Knowledge {
    fn default() -> Self {
        Self {
            every: 60.0,
            weight: 0.75,
            gated: true,
            refresh: true,
        }
    }
}

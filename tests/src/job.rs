//! Job files for tests: small, and without what varies from machine to machine.

/// A job file in parts. [`Job::default`] is an endless asynchronous one on the digits.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its label.
    pub name: &'static str,
    /// Widths of the hidden layers of its mlp. `&[2048, 1024]` makes a state of 30 MB.
    pub hidden: &'static [u32],
    /// The lines of `[data]`.
    pub data: &'static str,
    /// Samples per step and peer.
    pub batch: u32,
    /// The optimiser, as an inline table.
    pub optimiser: &'static str,
    /// The lines of `[stop]`. One that a test ends itself has a number of steps that nobody reaches.
    pub stop: &'static str,
    /// `start.peers`.
    pub peers: u32,
    /// What is exchanged, and how.
    pub exchange: Exchange,
    /// Steps between two looks at the validation set.
    pub evaluate_every: u64,
    /// The lines of `[checkpoint]`.
    pub checkpoint: &'static str,
}

/// What neighbours send each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Nobody waits, 5 % of each gradient.
    Async,
    /// Nobody waits, everything in full precision.
    AsyncDense,
    /// Every step waits for all, 5 % of each gradient.
    Sync,
    /// Every step waits for all, everything in full precision, the same batch for all.
    SyncDense,
    /// A known method with its settings.
    Like(&'static str),
}

/// Beyond what any test reaches.
const NEVER: u64 = 1_000_000_000;

impl Default for Job {
    fn default() -> Self {
        Self {
            name: "test",
            hidden: &[32],
            data: "source = \"digits\"",
            batch: 16,
            optimiser: "{ kind = \"sgd\", lr = 0.02, momentum = 0.9 }",
            stop: "steps = 1000000000",
            peers: 1,
            exchange: Exchange::Async,
            evaluate_every: NEVER,
            checkpoint: "every = \"30d\"",
        }
    }
}

impl Job {
    /// The seed of every test's job.
    pub const SEED: u64 = 7;

    /// The file.
    pub fn toml(&self) -> String {
        let (waiting, select, values, batching) = match self.exchange {
            Exchange::Like(_) => ("", "", "", "weighted"),
            Exchange::Async => ("never", "top-k", "f16", "weighted"),
            Exchange::AsyncDense => ("never", "dense", "f32", "weighted"),
            Exchange::Sync => ("all", "top-k", "f16", "weighted"),
            Exchange::SyncDense => ("all", "dense", "f32", "equal"),
        };
        let Self {
            name,
            hidden,
            data,
            batch,
            optimiser,
            stop,
            peers,
            evaluate_every,
            checkpoint,
            ..
        } = self;
        let exchange = match self.exchange {
            Exchange::Like(method) => format!("like = \"{method}\""),
            _ => format!(
                "waiting = \"{waiting}\"\nselect = \"{select}\"\nmost = 0.05\nvalues = \"{values}\""
            ),
        };
        let seed = Self::SEED;
        // Where replicas are to be equal, to each other or to a plain loop's, it is they that are looked at: the mean of a joiner's weights begins when it joins.
        let average = matches!(self.exchange, Exchange::Async | Exchange::Like(_));
        format!(
            "name = \"{name}\"\nseed = {seed}\n\
             [model]\nkind = \"mlp\"\nhidden = {hidden:?}\n\
             [data]\n{data}\n\
             [train]\nbatch = {batch}\noptimiser = {optimiser}\n\
             [stop]\n{stop}\n\
             [start]\npeers = {peers}\n\
             [strategy.exchange]\n{exchange}\n\
             [strategy.batching]\nkind = \"{batching}\"\n\
             [evaluate]\nevery = {evaluate_every}\naverage = {average}\n\
             [checkpoint]\n{checkpoint}\n"
        )
    }

    /// The same as a job of `kind` whose model is cut into stages, with `lines` in its `[strategy.pipeline]`.
    ///
    /// # Panics
    /// `toml` is none of [`Job::toml`].
    pub fn staged(toml: &str, kind: &str, lines: &str) -> String {
        let (before, after) = toml
            .split_once("[strategy.exchange]")
            .expect("it exchanges");
        let (_, after) = after.split_once("[evaluate]").expect("it is evaluated");
        format!(
            "{before}[strategy]\nkind = \"{kind}\"\n[strategy.pipeline]\nmicro_batches = 4\n{lines}[evaluate]{after}"
        )
    }
}

//! The keys as the machines of `skein_gossip` take them.

use std::time::Duration;

use skein_gossip::agreement;
use skein_gossip::exchange::{self, Amount, ValueChoice};
use skein_gossip::gradient::values::Values;
use skein_gossip::guide;
use skein_gossip::knowledge::{drift, pull};
use skein_gossip::pacing::adacomm::AdaComm;
use skein_gossip::pacing::pacer::Pacer;
use skein_gossip::pacing::rhythm::Rhythm;
use skein_gossip::pacing::{outer, search};
use skein_gossip::time::Tick;

use super::{
    Batching, BatchingKind, Commit, Exchange, Knowledge, Local, Select, Strategy, ValueFormat,
    Waiting,
};

/// Processor time that commits may take by default, as a share of what training takes.
const COST: f32 = 0.03;
/// Steps between two commits by default, where they could be made more often: with batches that follow compute power all peers
/// then commit equally often.
const LEAST_STEPS: u32 = 24;
/// ADSP's least time between two commits; the paper's 10 s for steps of seconds, scaled to ours.
const LEAST_WAIT: Duration = Duration::from_millis(50);

impl Strategy {
    /// What the guide is to do; where all wait for all, replicas are equal and there is nothing to learn.
    pub fn guide(&self) -> guide::Config {
        if self.exchange.is_synchronous() {
            return guide::Config::default();
        }
        let refresh = self.knowledge.refresh.then(drift::Settings::default);
        let searches = self.exchange.commit == Commit::Search;
        guide::Config {
            pulls: self.knowledge.pulls(),
            refresh,
            search: searches.then(search::Settings::default),
        }
    }
}

impl Exchange {
    /// Whether every commit waits for all.
    pub fn is_synchronous(&self) -> bool {
        self.waiting == Waiting::All
    }

    /// Whether the exchange has to see the parameters.
    pub fn needs_weights(&self) -> bool {
        self.select == Select::Gaia
    }

    /// Steps between two commits, where that is fixed; 1 otherwise.
    pub fn steps_per_commit(&self) -> u32 {
        match self.commit {
            Commit::Steps(steps) => steps,
            _ => 1,
        }
    }

    /// When a peer commits.
    pub fn rhythm(&self, now: Tick) -> Rhythm {
        match self.commit {
            Commit::Auto => Rhythm::Cost {
                share: COST,
                least_steps: LEAST_STEPS,
            },
            Commit::Steps(steps) | Commit::Adacomm(steps) => Rhythm::Steps(steps),
            Commit::Search => {
                let period = search::Settings::default().period;
                Rhythm::Paced(Pacer::new(now, 0, period, LEAST_WAIT))
            }
        }
    }

    /// The rule by which local steps per round fall with the loss.
    pub fn adacomm(&self) -> Option<AdaComm> {
        match self.commit {
            Commit::Adacomm(steps) => Some(AdaComm::new(steps)),
            _ => None,
        }
    }

    /// The outer optimiser's settings.
    pub fn outer(&self) -> Option<outer::Settings> {
        let settings = self.outer?;
        Some(outer::Settings {
            lr: settings.lr as f32,
            momentum: settings.momentum as f32,
        })
    }

    /// The settings as the exchange takes them.
    pub fn config(&self) -> exchange::Config {
        let most = self.most as f32;
        let least = (self.least as f32).min(most);
        exchange::Config {
            waiting: match self.waiting {
                Waiting::Never => exchange::Waiting::Never,
                Waiting::All => exchange::Waiting::All,
                Waiting::Bounded { staleness, backup } => exchange::Waiting::Bounded {
                    staleness,
                    backup: backup as usize,
                },
            },
            amount: match self.select {
                Select::TopK => Amount::TopK { least, most },
                Select::MaxN => Amount::MaxN { least, most },
                Select::RandomK => Amount::RandomK { fraction: most },
                Select::Dense => Amount::Dense,
                Select::Gaia => Amount::Significant {
                    threshold: self.threshold as f32,
                },
                Select::Ako => Amount::Parts,
            },
            values: match self.values {
                ValueFormat::Auto => ValueChoice::ByBudget,
                ValueFormat::F32 => ValueChoice::Fixed(Values::F32),
                ValueFormat::F16 => ValueChoice::Fixed(Values::F16),
                ValueFormat::Bf16 => ValueChoice::Fixed(Values::BF16),
                ValueFormat::Int8 => ValueChoice::Fixed(Values::Int8),
                ValueFormat::Octave => ValueChoice::Fixed(Values::Octave),
            },
            full: self.local == Local::Full,
            level: self.level,
        }
    }
}

impl Batching {
    /// The settings as the agreement takes them.
    pub fn config(&self, waiting: Waiting) -> agreement::Batching {
        agreement::Batching {
            weighted: self.kind == BatchingKind::Weighted,
            global: self.global,
            grows: self.growth,
            even_steps: waiting != Waiting::Never,
        }
    }
}

impl Knowledge {
    /// When and how far a peer moves towards the best; none: never.
    pub fn pulls(&self) -> Option<pull::Settings> {
        (self.every > 0.0).then(|| pull::Settings {
            period: Duration::from_secs_f64(self.every),
            weight: self.weight as f32,
            gated: self.gated,
            ..pull::Settings::default()
        })
    }
}

//! Refuses values that no job can have, each with its key and what to write instead. What a model, an optimiser or a
//! source of data can be is checked by the model crate; here its verdict gets its line.

use skein_model::config::{ConfigError, ModelConfig};

use super::document::Document;
use super::error::JobError;
use super::file::JobFile;
use super::strategy::{Commit, Kind, Local, Waiting};

/// Longest label.
const MAX_NAME_CHARS: usize = 64;
/// Most micro-batches of a step.
const MAX_MICRO_BATCHES: u32 = 256;

/// Checks the whole job; the first fault in the order below is reported.
pub(super) fn job(job: &JobFile, document: &Document<'_>) -> Result<(), JobError> {
    let refuse = |path: &str, value: &dyn std::fmt::Display, fix: &str| {
        Err(document.fault(path, format!("is {value}"), fix))
    };
    if !is_label(&job.name) {
        let fix =
            "write 1 to 64 letters, digits, `-`, `_` or `.`, beginning with a letter or digit";
        return Err(document.fault("name", "is not a label", fix));
    }
    if i64::try_from(job.seed).is_err() {
        return refuse(
            "seed",
            &job.seed,
            "write a whole number from 0 to 9223372036854775807",
        );
    }
    let verdict = |checked: Result<(), ConfigError>, section: &str| {
        checked.map_err(|error| {
            let path = format!("{section}{}", error.key);
            // The model crate shows values as Rust does; a user wrote no `Some`.
            let given = error
                .given
                .strip_prefix("Some(")
                .and_then(|given| given.strip_suffix(')'))
                .unwrap_or(&error.given);
            let problem = if given == "\"missing\"" {
                "is missing".into()
            } else {
                format!("cannot be {given}")
            };
            document.fault(&path, problem, error.fix)
        })
    };
    verdict(job.model.validate(), "")?;
    verdict(job.data.validate(), "")?;
    if !(1..=65_536).contains(&job.train.batch) {
        return refuse(
            "train.batch",
            &job.train.batch,
            "write the samples per peer and step, 1 to 65536, such as 32",
        );
    }
    verdict(job.train.optimiser.validate(), "train.")?;
    stop(job, document)?;
    if !(1..=1024).contains(&job.start.peers) {
        return refuse(
            "start.peers",
            &job.start.peers,
            "write how many peers must be ready, 1 to 1024",
        );
    }
    if let Some(hash) = &job.start.hash
        && job.start.digest().is_none()
    {
        let fix = "write the 64 hexadecimal digits that `skein status` shows as the model's hash";
        return refuse("start.hash", hash, fix);
    }
    strategy(job, document)?;
    pipeline(job, document)?;
    if job.evaluate.every == Some(0) {
        return refuse(
            "evaluate.every",
            &0,
            "write the steps between two evaluations, such as 50",
        );
    }
    if job.evaluate.samples == 0 {
        return refuse(
            "evaluate.samples",
            &0,
            "write the validation rows per evaluation, such as 2000",
        );
    }
    Ok(())
}

/// `[strategy.pipeline]`: every number in its range, and nothing that a pipeline cannot do.
fn pipeline(job: &JobFile, document: &Document<'_>) -> Result<(), JobError> {
    let pipeline = &job.strategy.pipeline;
    let most = job.train.batch.min(MAX_MICRO_BATCHES);
    let is_pipeline = job.strategy.kind.has_stages();
    let kind = job.strategy.kind;
    let is_hybrid = kind == Kind::Hybrid;
    let is_tiered = kind == Kind::Tiers;
    let is_tied = matches!(job.model, ModelConfig::Gpt { tied: true, .. });
    let is_async = pipeline.is_asynchronous();
    let micro_batches = pipeline.n_micro();
    let given = pipeline.micro_batches.unwrap_or(micro_batches);
    let only_async = "leave it out, or write schedule = \"async\": in the others all stages have the same weights";
    let rules: [(bool, &str, &dyn std::fmt::Display, &str); 15] = [
        (
            !(is_hybrid || is_tiered) || !is_async,
            "strategy.pipeline.schedule",
            &"async",
            "leave it out: the hosts of a stage add their gradients up before each update",
        ),
        (
            pipeline.cut.is_of(kind),
            "strategy.pipeline.cut",
            &"for another kind",
            "leave it out, or write kind = \"hybrid\" or kind = \"tiers\" in [strategy], as the cut asks for",
        ),
        (
            !is_tiered || micro_batches == 1,
            "strategy.pipeline.micro_batches",
            &given,
            "leave it out: over tiers all samples of a step are computed at once",
        ),
        (
            !is_hybrid || job.train.batch.is_multiple_of(micro_batches),
            "train.batch",
            &job.train.batch,
            "write a multiple of strategy.pipeline.micro_batches (8 by default): hosts of a stage share out equal micro-batches",
        ),
        (
            !is_pipeline || !is_tied,
            "model.tied",
            &true,
            "write tied = false: in a pipeline the embeddings and the head may lie on different peers",
        ),
        (
            !is_async || pipeline.micro_batches.is_none(),
            "strategy.pipeline.micro_batches",
            &given,
            "leave it out: with schedule = \"async\" the samples of a step go through the stages at once",
        ),
        (
            (1..=MAX_MICRO_BATCHES).contains(&given) && (!is_pipeline || micro_batches <= most),
            "strategy.pipeline.micro_batches",
            &given,
            "write 1 to 256, and at most the samples of a step (train.batch), such as 8",
        ),
        (
            is_async || pipeline.vertical_sync.is_none(),
            "strategy.pipeline.vertical_sync",
            &pipeline.vertical_sync.unwrap_or_default(),
            only_async,
        ),
        (
            is_async || pipeline.aggregate_every.is_none(),
            "strategy.pipeline.aggregate_every",
            &pipeline.aggregate_every.unwrap_or_default(),
            only_async,
        ),
        (
            pipeline.aggregate_every != Some(0),
            "strategy.pipeline.aggregate_every",
            &0,
            "write the steps between two means, 1 or more, such as 5, or leave it out for none",
        ),
        (
            is_async || pipeline.hide_transfers.is_none(),
            "strategy.pipeline.hide_transfers",
            &pipeline.hide_transfers.unwrap_or_default(),
            "leave it out: \"1f1b\" hides transfers, \"gpipe\" does not",
        ),
        (
            is_async || pipeline.scale_rate.is_none(),
            "strategy.pipeline.scale_rate",
            &pipeline.scale_rate.unwrap_or_default(),
            only_async,
        ),
        (
            pipeline.copies <= 16,
            "strategy.pipeline.copies",
            &pipeline.copies,
            "write how many other peers keep a copy of each stage, 0 to 16, such as 2",
        ),
        (
            pipeline.copy_every != Some(0),
            "strategy.pipeline.copy_every",
            &0,
            "write the steps between two copies, 1 or more",
        ),
        (
            !is_pipeline || matches!(job.data.split, skein_model::config::Split::All {}),
            "data.split",
            &"not `all`",
            "leave it out: one peer at a time draws the samples of a pipeline",
        ),
    ];
    for (holds, path, value, fix) in rules {
        if !holds {
            return Err(document.fault(path, format!("is {value}"), fix));
        }
    }
    Ok(())
}

/// `[strategy]`: every number in its range.
fn strategy(job: &JobFile, document: &Document<'_>) -> Result<(), JobError> {
    let strategy = &job.strategy;
    let exchange = &strategy.exchange;
    let share = |value: f64| value > 0.0 && value <= 1.0;
    let (staleness, backup) = match exchange.waiting {
        Waiting::Bounded { staleness, backup } => (staleness, backup),
        _ => (0, 0),
    };
    let steps = match exchange.commit {
        Commit::Steps(steps) | Commit::Adacomm(steps) => steps,
        _ => 1,
    };
    let outer = exchange
        .outer
        .map_or((1.0, 0.0), |outer| (outer.lr, outer.momentum));
    let knowledge = &strategy.knowledge;
    let rules: [(bool, &str, &dyn std::fmt::Display, &str); 12] = [
        (
            share(exchange.most),
            "strategy.exchange.most",
            &exchange.most,
            "write a share above 0 and at most 1: 0.01 sends the largest 1 %, 1.0 sends all",
        ),
        (
            share(exchange.least) && exchange.least <= exchange.most,
            "strategy.exchange.least",
            &exchange.least,
            "write a share above 0 and at most that of `most`, such as 0.001",
        ),
        (
            share(exchange.threshold),
            "strategy.exchange.threshold",
            &exchange.threshold,
            "write a share above 0 and at most 1, such as 0.01",
        ),
        (
            (1..=19).contains(&exchange.level),
            "strategy.exchange.level",
            &exchange.level,
            "write a zstd level, 1 (fast) to 19",
        ),
        (
            (1..=1000).contains(&steps),
            "strategy.exchange.commit",
            &steps,
            "write how many steps go into one commit, { steps = 1 } to { steps = 1000 }, or \"auto\"",
        ),
        (
            staleness <= 100_000 && backup <= 1024,
            "strategy.exchange.waiting",
            &staleness,
            "write { bounded = { staleness = 5, backup = 1 } }: at most 100000 steps and 1024 peers",
        ),
        (
            outer.0 > 0.0 && outer.0 <= 10.0,
            "strategy.exchange.outer.lr",
            &outer.0,
            "write a number above 0 and at most 10, such as 0.7",
        ),
        (
            (0.0..1.0).contains(&outer.1),
            "strategy.exchange.outer.momentum",
            &outer.1,
            "write a number from 0 to below 1, such as 0.9",
        ),
        (
            (1..=1 << 30).contains(&strategy.batching.global.unwrap_or(1)),
            "strategy.batching.global",
            &strategy.batching.global.unwrap_or(1),
            "write the samples of all peers per step, 1 to 1073741824",
        ),
        (
            share(knowledge.weight),
            "strategy.knowledge.weight",
            &knowledge.weight,
            "write a share above 0 and at most 1, such as 0.75",
        ),
        (
            knowledge.every == 0.0 || (1.0..=86_400.0).contains(&knowledge.every),
            "strategy.knowledge.every",
            &knowledge.every,
            "write seconds, 1 to 86400, or 0 for never",
        ),
        (
            exchange.outer.is_none()
                || (exchange.is_synchronous() && exchange.local == Local::Full),
            "strategy.exchange.outer",
            &"given",
            "add waiting = \"all\" and local = \"full\", or leave it out: nobody else makes an outer step",
        ),
    ];
    for (holds, path, value, fix) in rules {
        if !holds {
            return Err(document.fault(path, format!("is {value}"), fix));
        }
    }
    let sums_up = matches!(exchange.commit, Commit::Steps(steps) if steps > 1);
    if sums_up && exchange.is_synchronous() && exchange.local == Local::Share {
        let fix = "add local = \"full\" for rounds of local steps, or raise train.batch";
        return Err(document.fault(
            "strategy.exchange.commit",
            "does not go with `waiting`",
            fix,
        ));
    }
    let needs_round = matches!(exchange.commit, Commit::Adacomm(_)) && !exchange.is_synchronous();
    if needs_round || (exchange.commit == Commit::Search && exchange.waiting != Waiting::Never) {
        let fix = "search goes with waiting = \"never\", adacomm with waiting = \"all\"";
        return Err(document.fault(
            "strategy.exchange.commit",
            "does not go with `waiting`",
            fix,
        ));
    }
    Ok(())
}

/// `[stop]` must hold at least one condition, and each must be one that can come true.
fn stop(job: &JobFile, document: &Document<'_>) -> Result<(), JobError> {
    let stop = &job.stop;
    if let Some(accuracy) = stop.accuracy
        && !(accuracy > 0.0 && accuracy <= 1.0)
    {
        let fix = if accuracy > 1.0 && accuracy <= 100.0 {
            format!(
                "accuracy is a share, not percent: write {}",
                accuracy / 100.0
            )
        } else {
            "write a share above 0 and at most 1, such as 0.97".into()
        };
        return Err(document.fault("stop.accuracy", format!("is {accuracy}"), fix));
    }
    for (path, value) in [
        ("stop.loss", stop.loss),
        ("stop.epochs", stop.epochs),
        ("stop.seconds", stop.seconds),
    ] {
        if let Some(value) = value
            && !(value > 0.0 && value <= MAX_STOP)
        {
            return Err(document.fault(
                path,
                format!("is {value}"),
                "write a number above 0 and at most 1000000000",
            ));
        }
    }
    if stop.steps == Some(0) {
        return Err(document.fault("stop.steps", "is 0", "write 1 or more, such as 5000"));
    }
    let endless = [stop.accuracy, stop.loss, stop.epochs, stop.seconds]
        .iter()
        .all(Option::is_none);
    if endless && stop.steps.is_none() {
        let fix = "add a section [stop] with accuracy, loss, steps, epochs or seconds, such as accuracy = 0.97";
        return Err(document.fault(
            "stop",
            "holds no condition, so the job would never end",
            fix,
        ));
    }
    Ok(())
}

/// Thirty years of seconds; beyond it the number is a slip of the pen and durations would overflow.
const MAX_STOP: f64 = 1e9;

fn is_label(name: &str) -> bool {
    name.len() <= MAX_NAME_CHARS
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

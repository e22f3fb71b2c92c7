//! `strategy = "auto"`, the default: before a job is handed in the peers that are there measure its model, all families are ranked by
//! [`skein_model::plan::choose`], and the first one that nodes can run is written into the job.

use std::path::Path;

use skein_model::plan::{Arrangement, Choice, Family, Offer};

use super::exit::CliError;
use super::output::Output;
use super::plan;
use crate::job::JobFile;
use crate::job::strategy::Kind;

/// The text of the job with the chosen kind.
///
/// # Errors
/// No node, a model that cannot be measured, nothing that fits.
pub(super) async fn chosen(
    home: &Path,
    (name, text): (&str, &str),
    job: &JobFile,
    output: &Output,
) -> Result<String, CliError> {
    if !can_be_staged(text) {
        if !output.is_json() {
            output.line("auto: by exchange; nothing else trains this model on this data")?;
        }
        let written = with(text, Kind::Exchange, 1);
        return written.map_err(|reason| CliError::usage(format!("{name}: {reason}")));
    }
    if !output.is_json() {
        output.line("auto: the peers that are here measure the model")?;
    }
    let choice = plan::choice(home, (name, text), job).await?;
    let (family, offer) = runnable(&choice).ok_or_else(|| {
        CliError::usage(format!(
            "{name}: no peer can train this model; `skein plan {name} --explain` says why"
        ))
    })?;
    let kind = kind_of(family, job);
    let written = with(text, kind, replicas(offer));
    let written = written.map_err(|reason| CliError::usage(format!("{name}: {reason}")))?;
    JobFile::parse(&written).map_err(|error| CliError::job(name, &error))?;
    if !output.is_json() {
        output.line(&said(&choice, family, offer))?;
    }
    Ok(written)
}

/// Whether a job file may say that its model is cut into stages.
fn can_be_staged(text: &str) -> bool {
    let mut kinds = [Kind::Hybrid, Kind::Pipeline].into_iter();
    kinds.any(|kind| with(text, kind, 1).is_ok_and(|text| JobFile::parse(&text).is_ok()))
}

/// The best family that nodes run.
fn runnable(choice: &Choice) -> Option<(Family, &Offer)> {
    let runs = |family| family != Family::Islands;
    let mut ranked = choice
        .ranked
        .iter()
        .filter(|candidate| runs(candidate.family));
    ranked.find_map(|candidate| Some((candidate.family, candidate.outcome.as_ref().ok()?)))
}

/// Stages of one host where several are not possible: with steps that overlap, or uneven micro-batches.
fn kind_of(family: Family, job: &JobFile) -> Kind {
    let pipeline = &job.strategy.pipeline;
    let is_even = job.train.batch.is_multiple_of(pipeline.n_micro());
    match family {
        Family::Exchange => Kind::Exchange,
        Family::Tiers => Kind::Tiers,
        _ if is_even && !pipeline.is_asynchronous() => Kind::Hybrid,
        _ => Kind::Pipeline,
    }
}

/// Replicas among which the samples of a step are divided.
fn replicas(offer: &Offer) -> u32 {
    match &offer.arrangement {
        Arrangement::Replicas(shares) => u32::try_from(shares.len()).unwrap_or(u32::MAX),
        _ => 1,
    }
}

/// The job with this kind. The samples of a step are `train.batch`; where updates are exchanged that is the batch of each replica.
fn with(text: &str, kind: Kind, replicas: u32) -> Result<String, String> {
    let mut job: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| error.to_string())?;
    let word = match kind {
        Kind::Exchange => "exchange",
        Kind::Pipeline => "pipeline",
        Kind::Hybrid | Kind::Auto => "hybrid",
        Kind::Tiers => "tiers",
    };
    match job.get_mut("strategy").and_then(toml::Value::as_table_mut) {
        Some(strategy) => {
            strategy.insert("kind".into(), word.into());
            let pipeline = strategy.get_mut("pipeline");
            if let Some(pipeline) = pipeline.and_then(toml::Value::as_table_mut)
                && kind == Kind::Tiers
            {
                // All samples of a step are computed at once.
                pipeline.remove("micro_batches");
            }
        }
        None => drop(job.insert("strategy".into(), word.into())),
    }
    let batch = job
        .get_mut("train")
        .and_then(|train| train.get_mut("batch"));
    if let Some(batch) = batch
        && let Some(samples) = batch.as_integer().filter(|_| kind == Kind::Exchange)
    {
        let each = samples.max(1).div_euclid(i64::from(replicas.max(1)));
        *batch = each.max(1).into();
    }
    toml::to_string(&job).map_err(|error| error.to_string())
}

/// What was chosen, and what came next.
fn said(choice: &Choice, family: Family, offer: &Offer) -> String {
    let rate = |offer: &Offer| offer.efficiency * offer.samples_per_second;
    let others = choice
        .ranked
        .iter()
        .filter(|candidate| candidate.family != family);
    let next = others.filter_map(|candidate| {
        let offer = candidate.outcome.as_ref().ok()?;
        Some(format!("{} {:.0}", candidate.family.name(), rate(offer)))
    });
    let next: Vec<String> = next.collect();
    let next = match next.as_slice() {
        [] => String::new(),
        next => format!("; {}", next.join(", ")),
    };
    format!(
        "auto: {} on {} peers, worth {:.0} samples/s{next} (skein plan says more)",
        family.name(),
        offer.roles.len(),
        rate(offer)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "[model]\nkind = 'cnn'\n[train]\nbatch = 96\n[stop]\nsteps = 5\n[strategy]\nkind = 'auto'\n";

    #[test]
    fn the_choice_is_written_into_the_job() {
        assert_eq!(JobFile::parse(JOB).unwrap().strategy.kind, Kind::Auto);
        let parsed = |kind, replicas| JobFile::parse(&with(JOB, kind, replicas).unwrap()).unwrap();
        let exchange = parsed(Kind::Exchange, 5);
        assert_eq!(
            (exchange.strategy.kind, exchange.train.batch),
            (Kind::Exchange, 19)
        );
        let hybrid = parsed(Kind::Hybrid, 1);
        assert_eq!(
            (hybrid.strategy.kind, hybrid.train.batch),
            (Kind::Hybrid, 96)
        );
        let in_micro = format!("{JOB}[strategy.pipeline]\nmicro_batches = 4\n");
        let tiers = JobFile::parse(&with(&in_micro, Kind::Tiers, 1).unwrap()).unwrap();
        assert_eq!((tiers.strategy.kind, tiers.train.batch), (Kind::Tiers, 96));
        assert_eq!(tiers.strategy.pipeline.n_micro(), 1);
        let crowded = parsed(Kind::Exchange, 1000);
        assert_eq!(crowded.train.batch, 1);
    }

    #[test]
    fn a_model_that_cannot_be_cut_is_exchanged() {
        let whole = JOB.replace("[strategy]\nkind = 'auto'\n", "");
        assert!(can_be_staged(JOB) && can_be_staged(&whole));
        let word = JobFile::parse(&with(&whole, Kind::Hybrid, 1).unwrap()).unwrap();
        assert_eq!(word.strategy.kind, Kind::Hybrid);
        let shards =
            "[data]\nsource = 'digits'\nsplit = { kind = 'dirichlet', alpha = 0.5, shards = 4 }\n";
        assert!(!can_be_staged(&format!("{whole}{shards}")));
    }

    #[test]
    fn uneven_micro_batches_have_stages_of_one_host() {
        let job = |text: &str| JobFile::parse(text).unwrap();
        assert_eq!(kind_of(Family::Single, &job(JOB)), Kind::Hybrid);
        assert_eq!(kind_of(Family::Exchange, &job(JOB)), Kind::Exchange);
        let uneven = job(&JOB.replace("96", "97"));
        assert_eq!(kind_of(Family::Hybrid, &uneven), Kind::Pipeline);
        let overlapping = job(&format!("{JOB}[strategy.pipeline]\nschedule = 'async'\n"));
        assert_eq!(kind_of(Family::Hybrid, &overlapping), Kind::Pipeline);
    }
}

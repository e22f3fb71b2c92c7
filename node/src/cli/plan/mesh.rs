//! What the peers that are here have measured.
//!
//! The job goes to the mesh as a pipeline that never begins: every peer measures itself for it, the node tells what they say, and the
//! job is ended again.

use std::path::Path;
use std::time::{Duration, Instant};

use skein_gossip::ids::JobId;
use skein_model::plan::Problem;

use super::super::exit::{CliError, Exit};
use super::super::find::unexpected;
use crate::control::{Client, Hex, NO_CUT, PlanStatus, Request, Response};
use crate::job::JobFile;

/// How often the node is asked.
const ASK_EVERY: Duration = Duration::from_millis(300);
/// How long peers may take to measure themselves after the last one was ready.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the first one may take: data is loaded first.
const FIRST: Duration = Duration::from_secs(120);
/// More peers than a job can have: it never begins.
const NEVER: i64 = 1024;
/// Micro-batches of a step by default.
const MICRO_BATCHES: i64 = 8;

/// Has all peers measure themselves for the job in `text`; what comes of it, and how they would cut its model today.
///
/// # Errors
/// No node, a job that no pipeline can train, nobody who can measure it.
pub(super) async fn measured(
    home: &Path,
    name: &str,
    text: &str,
) -> Result<(Problem, Option<PlanStatus>), CliError> {
    let usage = |reason: String| CliError::usage(format!("{name}: {reason}"));
    let text = that_never_begins(text).map_err(usage)?;
    JobFile::parse(&text).map_err(|error| {
        usage(format!(
            "it cannot be measured as a pipeline, block by block: {error}"
        ))
    })?;
    let response = Client::ask(home, &Request::Train { job: text }).await?;
    let Response::Accepted { job, .. } = &response else {
        return Err(unexpected("train", &response));
    };
    let measured = wait(home, job.0).await;
    // Whatever came of it, the others are not left with a job that waits.
    Client::ask(home, &Request::Stop { job: job.0 }).await?;
    measured
}

/// The job as a pipeline for more peers than there can be.
fn that_never_begins(text: &str) -> Result<String, String> {
    let mut job: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| error.to_string())?;
    let table = |job: &toml::Table, key: &str| {
        let table = job.get(key).and_then(toml::Value::as_table);
        table.cloned().unwrap_or_default()
    };
    let mut strategy = table(&job, "strategy");
    let mut pipeline = table(&strategy, "pipeline");
    let is_asynchronous = pipeline.get("schedule").and_then(toml::Value::as_str) == Some("async");
    let batch = table(&job, "train")
        .get("batch")
        .and_then(toml::Value::as_integer);
    if let Some(batch) = batch.filter(|batch| *batch < MICRO_BATCHES)
        && !is_asynchronous
        && !pipeline.contains_key("micro_batches")
    {
        pipeline.insert("micro_batches".into(), batch.max(1).into());
    }
    strategy.retain(|key, _| key == "pipeline");
    strategy.insert("kind".into(), "pipeline".into());
    strategy.insert("pipeline".into(), pipeline.into());
    job.insert("strategy".into(), strategy.into());
    // Who has which samples changes no time.
    if let Some(data) = job.get_mut("data").and_then(toml::Value::as_table_mut) {
        data.remove("split");
    }
    let mut start = table(&job, "start");
    start.insert("peers".into(), NEVER.into());
    job.insert("start".into(), start.into());
    toml::to_string(&job).map_err(|error| error.to_string())
}

fn refused(message: String) -> CliError {
    CliError {
        exit: Exit::Refused,
        message,
    }
}

/// Asks until every connected peer has measured itself, or no more do.
async fn wait(home: &Path, job: JobId) -> Result<(Problem, Option<PlanStatus>), CliError> {
    let began = Instant::now();
    let mut newest: Option<(Instant, usize)> = None;
    loop {
        tokio::time::sleep(ASK_EVERY).await;
        let response = Client::ask(home, &Request::Jobs).await?;
        let Response::Jobs { jobs } = response else {
            return Err(unexpected("jobs", &response));
        };
        let Some(status) = jobs.into_iter().find(|status| status.id == Hex(job)) else {
            continue;
        };
        let reason = status.reason.unwrap_or_default();
        if status.phase.is_final() {
            return Err(refused(reason));
        }
        if let Some(measured) = status.measured {
            let n_ready = measured.problem.devices.len();
            let since = match newest {
                Some((since, n)) if n == n_ready => since,
                _ => newest.insert((Instant::now(), n_ready)).0,
            };
            if n_ready > measured.n_connected || since.elapsed() > PATIENCE {
                return Ok((measured.problem, status.plan));
            }
        } else if reason.starts_with(NO_CUT) && began.elapsed() > PATIENCE {
            return Err(refused(reason));
        } else if began.elapsed() > FIRST {
            let reason = match reason.as_str() {
                "" => "no peer has measured itself",
                reason => reason,
            };
            return Err(refused(format!("there is no plan: {reason}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::strategy::Kind;

    #[test]
    fn a_job_that_is_only_planned_never_begins() {
        let text = "[model]\nkind = 'cnn'\n[stop]\nsteps = 5\n[start]\npeers = 2\n[strategy]\nkind = 'pipeline'\n";
        let job = JobFile::parse(&that_never_begins(text).unwrap()).unwrap();
        assert_eq!(job.start.peers, 1024);
        assert_eq!(job.strategy.kind, Kind::Pipeline);
    }

    #[test]
    fn a_job_of_another_kind_is_measured_as_a_pipeline() {
        let text = "[model]\nkind = 'cnn'\n[stop]\nsteps = 5\n[train]\nbatch = 4\n[strategy.exchange]\nlike = 'dense'\n\
                    [data]\nsplit = { kind = 'iid', shards = 3 }\n";
        JobFile::parse(text).unwrap();
        let job = JobFile::parse(&that_never_begins(text).unwrap()).unwrap();
        assert_eq!(job.strategy.kind, Kind::Pipeline);
        assert_eq!(job.strategy.pipeline.micro_batches, Some(4));
        let tied = text.replace("'cnn'", "'gpt'\ntied = true");
        assert!(JobFile::parse(&that_never_begins(&tied).unwrap()).is_err());
    }
}

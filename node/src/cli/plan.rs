//! `skein plan`: how the peers that are here would cut a model, without training it.
//!
//! The job goes to the mesh as one that never begins: every peer measures itself for it, the node plans with what they say, and
//! the job is ended again.

use std::path::Path;
use std::time::{Duration, Instant};

use skein_gossip::ids::JobId;

use super::args::PlanArgs;
use super::exit::{CliError, Exit};
use super::find::unexpected;
use super::output::Output;
use super::{show, train};
use crate::control::{Client, Hex, JobStatus, NO_CUT, PlanStatus, Request, Response};
use crate::job::JobFile;
use crate::job::strategy::Kind;

/// How often the node is asked.
const ASK_EVERY: Duration = Duration::from_millis(300);
/// How long peers may take to measure themselves after the last one was ready.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the first one may take: data is loaded first.
const FIRST: Duration = Duration::from_secs(120);
/// More peers than a job can have: it never begins.
const NEVER: i64 = 1024;

/// Runs the command.
pub(super) async fn plan(home: &Path, args: PlanArgs, output: &Output) -> Result<Exit, CliError> {
    let name = args.file.display().to_string();
    let text = train::read(&args.file)?;
    let job = JobFile::parse(&text).map_err(|error| CliError::job(&name, &error))?;
    if job.strategy.kind != Kind::Pipeline {
        return Err(CliError::usage(format!(
            "{name} is no pipeline: every peer would hold the whole model, and there is nothing to cut. Write kind = \"pipeline\" in \
             [strategy]"
        )));
    }
    let text =
        that_never_begins(&text).map_err(|reason| CliError::usage(format!("{name}: {reason}")))?;
    let response = Client::ask(home, &Request::Train { job: text }).await?;
    let Response::Accepted { job, .. } = &response else {
        return Err(unexpected("train", &response));
    };
    let planned = wait(home, job.0).await;
    // Whatever came of it, the others are not left with a job that waits.
    Client::ask(home, &Request::Stop { job: job.0 }).await?;
    let (status, plan) = planned?;
    let shown = || show::plan(&status.name, &plan);
    output.response(&Response::Plan(Box::new(plan.clone())), shown)?;
    Ok(Exit::Ok)
}

fn that_never_begins(text: &str) -> Result<String, String> {
    let mut table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| error.to_string())?;
    let mut start = toml::Table::new();
    start.insert("peers".into(), NEVER.into());
    table.insert("start".into(), start.into());
    toml::to_string(&table).map_err(|error| error.to_string())
}

fn refused(message: String) -> CliError {
    CliError {
        exit: Exit::Refused,
        message,
    }
}

/// Asks until every connected peer has measured itself, or no more do.
async fn wait(home: &Path, job: JobId) -> Result<(JobStatus, PlanStatus), CliError> {
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
        if status.phase.is_final() {
            return Err(refused(status.reason.unwrap_or_default()));
        }
        let cannot = status
            .reason
            .as_deref()
            .is_some_and(|reason| reason.starts_with(NO_CUT));
        if cannot && began.elapsed() > PATIENCE {
            return Err(refused(status.reason.unwrap_or_default()));
        }
        if let Some(plan) = status.plan.clone() {
            let n_ready = plan.stages.len() + plan.standby.len();
            let since = match newest {
                Some((since, n)) if n == n_ready => since,
                _ => newest.insert((Instant::now(), n_ready)).0,
            };
            if n_ready > plan.n_connected || since.elapsed() > PATIENCE {
                return Ok((status, plan));
            }
        } else if began.elapsed() > FIRST {
            let reason = status
                .reason
                .unwrap_or_else(|| "no peer has measured itself".into());
            return Err(refused(format!("there is no plan: {reason}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_is_only_planned_never_begins() {
        let text = "[model]\nkind = 'cnn'\n[stop]\nsteps = 5\n[start]\npeers = 2\n[strategy]\nkind = 'pipeline'\n";
        let job = JobFile::parse(&that_never_begins(text).unwrap()).unwrap();
        assert_eq!(job.start.peers, 1024);
        assert_eq!(job.strategy.kind, Kind::Pipeline);
    }
}

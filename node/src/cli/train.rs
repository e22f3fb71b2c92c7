//! `skein train` and `skein watch`: hand a job to the node, then show what the mesh makes of it. Watching has no part in
//! the job: Ctrl-C ends the watching only.

use std::path::Path;

use skein_gossip::ids::JobId;

use super::args::TrainArgs;
use super::auto;
use super::exit::{CliError, Exit};
use super::find::{self, unexpected};
use super::job_text;
use super::output::Output;
use super::progress::Progress;
use crate::control::{Client, ClientError, JobStatus, Phase, Request, Response};
use crate::job::JobFile;
use crate::job::strategy::Kind;

/// `skein train`.
pub(super) async fn train(home: &Path, args: TrainArgs, output: &Output) -> Result<Exit, CliError> {
    let name = args.file.display().to_string();
    let mut text = job_text::read(&args.file)?;
    // The node checks again; here the file's name can be said, and no node is needed to find a mistake.
    let job = JobFile::parse(&text).map_err(|error| CliError::job(&name, &error))?;
    if job.strategy.kind == Kind::Auto {
        text = auto::chosen(home, (&name, &text), &job, output).await?;
    }
    let response = Client::ask(home, &Request::Train { job: text }).await?;
    let Response::Accepted { job, name } = &response else {
        return Err(unexpected("train", &response));
    };
    output.response(&response, || format!("job {name} has the id {job}"))?;
    if args.detach {
        Ok(Exit::Ok)
    } else {
        follow(home, job.0, output).await
    }
}

/// `skein watch`.
pub(super) async fn watch(home: &Path, word: &str, output: &Output) -> Result<Exit, CliError> {
    let job = find::job(home, word).await?;
    follow(home, job, output).await
}

/// Shows a job until it ends, the node ends, or Ctrl-C.
async fn follow(home: &Path, job: JobId, output: &Output) -> Result<Exit, CliError> {
    let mut client = Client::open(home, &Request::Watch { job }).await?;
    let mut progress = Progress::new(output);
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(interrupt);
    let last = loop {
        let response = tokio::select! {
            response = client.next() => response,
            _ = &mut interrupt => {
                progress.clear();
                if !output.is_json() {
                    output.line(&format!(
                        "no longer watching; the job goes on. Watch again: skein watch {0}   End it: skein stop {0}",
                        job.short()
                    ))?;
                }
                return Ok(Exit::Interrupted);
            }
        };
        match response {
            Ok(Some(Response::Progress(status))) => {
                progress.show(&status)?;
                if status.phase.is_final() {
                    break status;
                }
            }
            Ok(Some(other)) => return Err(unexpected("watch", &other)),
            Ok(None) | Err(ClientError::Io { .. }) => {
                progress.clear();
                return Err(ClientError::Ended {
                    home: home.to_owned(),
                }
                .into())
                .map_err(|error: CliError| CliError {
                    message: format!("{error}; the job goes on where other peers train it"),
                    ..error
                });
            }
            Err(error) => return Err(error.into()),
        }
    };
    progress.end(&last)?;
    Ok(exit_of(&last))
}

/// A job that a user stopped did what was asked.
fn exit_of(status: &JobStatus) -> Exit {
    if status.phase == Phase::Failed {
        Exit::Failed
    } else {
        Exit::Ok
    }
}

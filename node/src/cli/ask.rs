//! The commands that ask the running node one question and print its answer.

use std::path::Path;

use super::args::ExportArgs;
use super::exit::{CliError, Exit};
use super::find::{self, unexpected};
use super::output::Output;
use super::show;
use crate::control::{Client, Request, Response};

/// `skein status`.
pub(super) async fn status(home: &Path, output: &Output) -> Result<Exit, CliError> {
    let response = Client::ask(home, &Request::Status).await?;
    let Response::Status(status) = &response else {
        return Err(unexpected("status", &response));
    };
    output.response(&response, || show::status(status))?;
    Ok(Exit::Ok)
}

/// `skein peers`.
pub(super) async fn peers(home: &Path, output: &Output) -> Result<Exit, CliError> {
    let response = Client::ask(home, &Request::Peers).await?;
    let Response::Peers { peers } = &response else {
        return Err(unexpected("peers", &response));
    };
    output.response(&response, || show::peers(peers))?;
    Ok(Exit::Ok)
}

/// `skein jobs`.
pub(super) async fn jobs(home: &Path, output: &Output) -> Result<Exit, CliError> {
    let response = Client::ask(home, &Request::Jobs).await?;
    let Response::Jobs { jobs } = &response else {
        return Err(unexpected("jobs", &response));
    };
    output.response(&response, || show::jobs(jobs))?;
    Ok(Exit::Ok)
}

/// `skein stop`.
pub(super) async fn stop(home: &Path, word: &str, output: &Output) -> Result<Exit, CliError> {
    let job = find::job(home, word).await?;
    let response = Client::ask(home, &Request::Stop { job }).await?;
    let Response::Stopped { job } = &response else {
        return Err(unexpected("stop", &response));
    };
    output.response(&response, || {
        format!("job {} is ending on all peers", job.0.short())
    })?;
    Ok(Exit::Ok)
}

/// `skein export`.
pub(super) async fn export(
    home: &Path,
    args: ExportArgs,
    output: &Output,
) -> Result<Exit, CliError> {
    let path = std::path::absolute(&args.output).map_err(|error| {
        CliError::usage(format!(
            "cannot use the path {}: {error}",
            args.output.display()
        ))
    })?;
    // The node would say it too, but after it gathered the model.
    if let Some(folder) = path.parent().filter(|folder| !folder.is_dir()) {
        return Err(CliError::not_found(format!(
            "there is no folder {} to write to: make it first",
            folder.display()
        )));
    }
    let job = find::job(home, &args.job).await?;
    let response = Client::ask(home, &Request::Export { job, path }).await?;
    let Response::Exported(exported) = &response else {
        return Err(unexpected("export", &response));
    };
    output.response(&response, || {
        format!(
            "wrote {} ({}): accuracy {}, model hash {}",
            exported.path.display(),
            show::bytes(exported.bytes),
            show::percent(exported.best.accuracy),
            exported.best.hash,
        )
    })?;
    Ok(Exit::Ok)
}

/// `skein leave`.
pub(super) async fn leave(home: &Path, output: &Output) -> Result<Exit, CliError> {
    let response = Client::ask(home, &Request::Leave).await?;
    let Response::Leaving = &response else {
        return Err(unexpected("leave", &response));
    };
    output.response(&response, || "the peer is leaving its mesh".into())?;
    Ok(Exit::Ok)
}

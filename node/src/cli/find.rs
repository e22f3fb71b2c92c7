//! Which job a user means by the beginning of an id or by a name.

use std::path::Path;

use skein_gossip::ids::JobId;

use super::exit::CliError;
use crate::control::{Client, ClientError, JobStatus, Request, Response};

/// Asks the node of `home` for the job meant by `word`.
///
/// # Errors
/// No node, no such job, or several.
pub(super) async fn job(home: &Path, word: &str) -> Result<JobId, CliError> {
    // A whole id needs no list; it may also be of a job that the list no longer shows.
    if let Ok(id) = word.parse() {
        return Ok(id);
    }
    match Client::ask(home, &Request::Jobs).await? {
        Response::Jobs { jobs } => among(&jobs, word),
        other => Err(unexpected("jobs", &other)),
    }
}

/// The job meant by `word`: a name (the newest of that name) before the beginning of an id.
pub(super) fn among(jobs: &[JobStatus], word: &str) -> Result<JobId, CliError> {
    if let Some(named) = jobs
        .iter()
        .filter(|job| job.name == word)
        .max_by_key(|job| job.started_ms)
    {
        return Ok(named.id.0);
    }
    let lower = word.to_ascii_lowercase();
    let begins: Vec<&JobStatus> = jobs
        .iter()
        .filter(|job| !lower.is_empty() && job.id.to_string().starts_with(&lower))
        .collect();
    match begins[..] {
        [job] => Ok(job.id.0),
        [] => {
            let known: Vec<String> = jobs
                .iter()
                .take(10)
                .map(|job| format!("{} ({})", job.name, job.id.0.short()))
                .collect();
            let known = if known.is_empty() {
                "there are none".into()
            } else {
                format!("there are {}", known.join(", "))
            };
            Err(CliError::not_found(format!(
                "no job has the name or the id {word:?}: {known}"
            )))
        }
        _ => {
            let ids: Vec<String> = begins
                .iter()
                .take(10)
                .map(|job| job.id.to_string()[..16].to_owned())
                .collect();
            Err(CliError::usage(format!(
                "the id {word:?} fits several jobs: write more of {}",
                ids.join(", ")
            )))
        }
    }
}

/// The error for a response to another question.
pub(super) fn unexpected(asked: &'static str, response: &Response) -> CliError {
    let got = response.encode().chars().take(60).collect();
    ClientError::Unexpected { asked, got }.into()
}

#[cfg(test)]
mod tests {
    use super::super::exit::Exit;
    use super::*;
    use crate::control::status::tests::job_status;

    fn jobs() -> Vec<JobStatus> {
        let job = |first: u8, second: u8, name: &str, started_ms| {
            let mut id = [0; 32];
            (id[0], id[1]) = (first, second);
            JobStatus {
                id: JobId(id).into(),
                name: name.into(),
                started_ms,
                ..job_status()
            }
        };
        vec![
            job(0xab, 0xc1, "digits", 1),
            job(0xab, 0xc2, "digits", 3),
            job(0xff, 0, "abc1", 2),
        ]
    }

    #[test]
    fn a_name_means_the_newest_and_an_id_may_be_short() {
        assert_eq!(among(&jobs(), "digits").unwrap().0[1], 0xc2);
        assert_eq!(among(&jobs(), "ff").unwrap().0[0], 0xff);
        assert_eq!(among(&jobs(), "ABC2").unwrap().0[1], 0xc2);
        assert_eq!(
            among(&jobs(), "abc1").unwrap().0[0],
            0xff,
            "a name comes before an id"
        );
    }

    #[test]
    fn what_fits_none_or_several_is_an_error_that_lists_them() {
        let error = among(&jobs(), "abc").unwrap_err();
        assert_eq!(error.exit, Exit::Usage);
        assert!(
            error.message.contains("abc1000000000000, abc2000000000000"),
            "{error}"
        );
        let error = among(&jobs(), "mnist").unwrap_err();
        assert_eq!(error.exit, Exit::NotFound);
        assert!(error.message.contains("digits (abc10000)"), "{error}");
        assert_eq!(among(&[], "").unwrap_err().exit, Exit::NotFound);
    }
}

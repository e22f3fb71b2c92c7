//! `skein doctor`: looks at everything a mesh needs and says how to mend what is wrong. Works without a running node;
//! with one, it also shows what that node knows about its peers.

mod finding;
mod machine;
mod multicast;
mod network;
mod node;

use std::path::Path;
use std::time::Duration;

use super::exit::{CliError, Exit};
use super::output::Output;
use crate::control::{Client, ClientError, Request, Response};
use finding::{Finding, Grade};

/// How long multicast is listened for. Answers to a question are due within 120 ms (RFC 6762, section 6); the rest is
/// for sleepy radios.
const LISTEN: Duration = Duration::from_secs(2);

/// `skein doctor`.
pub(super) async fn doctor(home: &Path, output: &Output) -> Result<Exit, CliError> {
    // Listening blocks; the node can be asked meanwhile.
    let network = tokio::task::spawn_blocking(|| network::findings(LISTEN));
    let mut findings = match Client::ask(home, &Request::Doctor).await {
        Ok(Response::Doctor(facts)) => node::findings(&facts),
        Ok(other) => return Err(super::find::unexpected("doctor", &other)),
        Err(error @ ClientError::NoNode { .. }) => {
            vec![Finding::note(
                "node",
                error.to_string(),
                "with one running, doctor also checks its peers",
            )]
        }
        Err(error) => vec![Finding::bad(
            "node",
            error.to_string(),
            "restart it: Ctrl-C where `skein up` runs, then again",
        )],
    };
    findings.splice(0..0, machine::findings(home));
    let network = network
        .await
        .map_err(|error| CliError::internal(format!("the network check failed: {error}")))?;
    findings.extend(network);
    print(&findings, output)?;
    let broken = findings.iter().any(|finding| finding.grade == Grade::Bad);
    Ok(if broken { Exit::Failed } else { Exit::Ok })
}

fn print(findings: &[Finding], output: &Output) -> Result<(), CliError> {
    if output.is_json() {
        let report = serde_json::json!({ "v": 1, "kind": "doctor_report", "findings": findings });
        return output.line(&report.to_string());
    }
    for finding in findings {
        output.line(&finding.to_string())?;
    }
    Ok(())
}

//! How a command ends: the exit codes, and errors that carry one.

use crate::control::{ClientError, ErrorCode, Failure};
use crate::job::JobError;

/// Exit codes. Scripts rely on them; numbers are only added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It worked.
    Ok = 0,
    /// The job failed, the model missed what `--at-least` asks for, or `doctor` found something broken.
    Failed = 1,
    /// The command line, the environment or the job file is wrong.
    Usage = 2,
    /// No node runs for this home folder, or it ended meanwhile.
    NoNode = 3,
    /// There is no such job, file or model.
    NotFound = 4,
    /// The node refuses, another process holds the home folder, or peers that are needed cannot be reached.
    Refused = 5,
    /// A file cannot be read or written, or skein itself is at fault.
    Internal = 6,
    /// Ctrl-C ended the command; what it watched goes on.
    Interrupted = 130,
}

/// The table in `--help`.
pub(super) const HELP: &str = "\
Exit codes:
    0  it worked
    1  the job failed, the model missed --at-least, or doctor found something broken
    2  the command line, the environment or the job file is wrong
    3  no node runs for this home folder
    4  there is no such job, file or model
    5  the node refuses, the home folder is in use, or peers that are needed cannot be reached
    6  a file cannot be read or written, or skein itself is at fault
  130  Ctrl-C while watching; the job goes on

Every option can be given as an environment variable too (shown in brackets). SKEIN_LOG sets what is logged, such as
SKEIN_LOG=skein_node=debug; without it RUST_LOG counts.";

/// Why a command ended without doing what it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CliError {
    /// With which code the process ends.
    pub exit: Exit,
    /// What is wrong, where, and what to do; empty if there is nobody to tell.
    pub message: String,
}

impl CliError {
    /// The command line, the environment or a file given is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::Usage,
            message: message.into(),
        }
    }

    /// Something named is not there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::NotFound,
            message: message.into(),
        }
    }

    /// The system or skein itself is at fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::Internal,
            message: message.into(),
        }
    }

    /// A job file that cannot be used; `name` is where it came from.
    pub(super) fn job(name: &str, error: &JobError) -> Self {
        Self::usage(format!("{name}: {error}"))
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        let exit = match &error {
            ClientError::NoNode { .. } | ClientError::Ended { .. } => Exit::NoNode,
            ClientError::Socket(_) => Exit::Usage,
            ClientError::Failed(Failure { code, .. }) => match code {
                ErrorCode::BadJob | ErrorCode::BadRequest => Exit::Usage,
                ErrorCode::NotFound => Exit::NotFound,
                ErrorCode::Refused | ErrorCode::Unreachable | ErrorCode::Version => Exit::Refused,
                ErrorCode::Internal => Exit::Internal,
            },
            ClientError::Io { .. } | ClientError::Protocol(_) | ClientError::Unexpected { .. } => {
                Exit::Internal
            }
        };
        Self {
            exit,
            message: error.to_string(),
        }
    }
}

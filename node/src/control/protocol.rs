//! The messages of the control socket, version 1: one JSON object per line.
//!
//! A request is `{"v":1,"command":NAME, …}` with the fields of that command and no others. It is read into flat optional
//! fields first, so reading allocates no more than the line has bytes, whatever it holds.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use skein_gossip::ids::JobId;

use super::report::PlanReport;
use super::status::{Best, Hex, JobStatus, NodeFacts, PeerStatus, Status};
use crate::nearest::nearest;

/// Version of this protocol. A node and a command line of different versions refuse each other.
pub const VERSION: u32 = 1;

/// Longest request line: a job file of 64 KiB with every character escaped fits several times.
pub const MAX_REQUEST_BYTES: usize = 1 << 20;

/// Longest response line: about a thousand jobs with a hundred peers each.
pub const MAX_RESPONSE_BYTES: usize = 16 << 20;

/// What a command line asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The node: answered by [`Response::Status`].
    Status,
    /// Its peers: [`Response::Peers`].
    Peers,
    /// Its jobs: [`Response::Jobs`].
    Jobs,
    /// Start a job: [`Response::Accepted`].
    Train {
        /// The job file.
        job: String,
    },
    /// Follow a job: many [`Response::Progress`], the last with a final phase.
    Watch {
        /// The job.
        job: JobId,
    },
    /// End a job on all peers: [`Response::Stopped`].
    Stop {
        /// The job.
        job: JobId,
    },
    /// Write the model to a file: [`Response::Exported`].
    Export {
        /// The job.
        job: JobId,
        /// Absolute path.
        path: PathBuf,
    },
    /// Judge the model on the whole validation set: [`Response::Evaluated`].
    EvalJob {
        /// The job.
        job: JobId,
    },
    /// What only the node knows: [`Response::Doctor`].
    Doctor,
    /// Leave the mesh and end: [`Response::Leaving`].
    Leave,
}

/// The commands by their names on the wire.
const COMMANDS: [&str; 10] = [
    "status", "peers", "jobs", "train", "watch", "stop", "export", "eval_job", "doctor", "leave",
];

/// Why a line is not a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No JSON object with these fields.
    #[error("the request is not a JSON object of this protocol: {reason}")]
    Malformed {
        /// What the JSON reader says.
        reason: String,
    },
    /// Another version of the protocol.
    #[error(
        "the request has version {got}, this node speaks version {VERSION}: use the same skein for both"
    )]
    Version {
        /// What was asked for.
        got: u64,
    },
    /// No such command.
    #[error("there is no command {command:?}{}", .hint.map(|near| format!(", did you mean {near:?}?")).unwrap_or_default())]
    Command {
        /// What was asked for, at most 80 characters of it.
        command: String,
        /// The nearest command.
        hint: Option<&'static str>,
    },
    /// A field is missing, does not belong, or cannot be read.
    #[error("command {command:?}: field {field:?} {problem}")]
    Field {
        /// The command.
        command: &'static str,
        /// The field.
        field: &'static str,
        /// What is wrong.
        problem: &'static str,
    },
}

/// Just the version, read first: a later version may have any other fields.
#[derive(Deserialize)]
struct Version {
    v: u64,
}

/// A request as it stands on the line.
#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Line {
    v: u64,
    command: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
}

impl Request {
    /// Reads one line without its newline.
    ///
    /// # Errors
    /// See [`RequestError`]; never panics, allocates at most a few times the line.
    pub fn decode(line: &[u8]) -> Result<Self, RequestError> {
        let malformed = |error: serde_json::Error| RequestError::Malformed {
            reason: error.to_string(),
        };
        if line.len() > MAX_REQUEST_BYTES {
            return Err(RequestError::Malformed {
                reason: format!("it has more than {MAX_REQUEST_BYTES} bytes"),
            });
        }
        let Version { v } = serde_json::from_slice(line).map_err(malformed)?;
        if v != u64::from(VERSION) {
            return Err(RequestError::Version { got: v });
        }
        let line: Line = serde_json::from_slice(line).map_err(malformed)?;
        let Some(command) = COMMANDS.into_iter().find(|known| *known == line.command) else {
            let hint = nearest(&line.command, COMMANDS);
            let hint = hint.and_then(|near| COMMANDS.into_iter().find(|known| *known == near));
            return Err(RequestError::Command {
                command: line.command.chars().take(80).collect(),
                hint,
            });
        };
        let field = |field, problem| RequestError::Field {
            command,
            field,
            problem,
        };
        let takes_job = matches!(command, "train" | "watch" | "stop" | "export" | "eval_job");
        if line.job.is_some() && !takes_job {
            return Err(field("job", "does not belong"));
        }
        if line.path.is_some() && command != "export" {
            return Err(field("path", "does not belong"));
        }
        let text = line.job;
        let job = || {
            let text = text.as_deref().ok_or_else(|| field("job", "is missing"))?;
            text.parse::<JobId>()
                .map_err(|_| field("job", "is not a job id of 64 hex digits"))
        };
        Ok(match command {
            "status" => Self::Status,
            "peers" => Self::Peers,
            "jobs" => Self::Jobs,
            "train" => Self::Train {
                job: text.ok_or_else(|| field("job", "is missing"))?,
            },
            "watch" => Self::Watch { job: job()? },
            "stop" => Self::Stop { job: job()? },
            "export" => {
                let job = job()?;
                let path = line.path.ok_or_else(|| field("path", "is missing"))?;
                if !path.is_absolute() {
                    return Err(field("path", "is not absolute"));
                }
                Self::Export { job, path }
            }
            "eval_job" => Self::EvalJob { job: job()? },
            "doctor" => Self::Doctor,
            _ => Self::Leave,
        })
    }

    /// The request as one line, without its newline.
    ///
    /// # Errors
    /// A path that is not UTF-8, or more bytes than a node accepts.
    pub fn encode(&self) -> Result<String, RequestError> {
        let (command, job, path) = match self {
            Self::Status => ("status", None, None),
            Self::Peers => ("peers", None, None),
            Self::Jobs => ("jobs", None, None),
            Self::Train { job } => ("train", Some(job.clone()), None),
            Self::Watch { job } => ("watch", Some(job.to_string()), None),
            Self::Stop { job } => ("stop", Some(job.to_string()), None),
            Self::Export { job, path } => ("export", Some(job.to_string()), Some(path.clone())),
            Self::EvalJob { job } => ("eval_job", Some(job.to_string()), None),
            Self::Doctor => ("doctor", None, None),
            Self::Leave => ("leave", None, None),
        };
        let line = Line {
            v: VERSION.into(),
            command: command.into(),
            job,
            path,
        };
        let line = serde_json::to_string(&line).map_err(|error| RequestError::Malformed {
            reason: error.to_string(),
        })?;
        if line.len() > MAX_REQUEST_BYTES {
            return Err(RequestError::Malformed {
                reason: format!("it has more than {MAX_REQUEST_BYTES} bytes"),
            });
        }
        Ok(line)
    }
}

/// What a node answers. On the line each has `"v":1` and `"kind"` beside its fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Response {
    /// The node.
    Status(Box<Status>),
    /// Its peers.
    Peers {
        /// Connected ones first.
        peers: Vec<PeerStatus>,
    },
    /// Its jobs.
    Jobs {
        /// Newest first.
        jobs: Vec<JobStatus>,
    },
    /// The job was taken, signed and passed on.
    Accepted {
        /// Its id.
        job: Hex<JobId>,
        /// Its label.
        name: String,
    },
    /// One line of a watch.
    Progress(Box<JobStatus>),
    /// The job is being stopped on all peers.
    Stopped {
        /// Its id.
        job: Hex<JobId>,
    },
    /// The model was written.
    Exported(Exported),
    /// The model was judged.
    Evaluated(Evaluated),
    /// How devices would train together; made by the command line of what the node or a file says of them.
    Plan(Box<PlanReport>),
    /// What only the node knows.
    Doctor(NodeFacts),
    /// The node says goodbye to its peers and ends.
    Leaving,
    /// The request was not fulfilled.
    Error(Failure),
}

/// A model file that was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exported {
    /// The job.
    pub job: Hex<JobId>,
    /// Where.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// The model it holds.
    pub best: Best,
}

/// A model judged on the whole validation set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// Share of rows whose class was found, 0 to 1.
    pub accuracy: f64,
    /// Mean loss, nats per sample; none where it is not finite.
    pub loss: Option<f64>,
    /// Rows looked at.
    pub samples: u64,
    /// Hash of the weights.
    pub model_hash: Hex<skein_gossip::ids::Digest>,
}

/// Why a request was not fulfilled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}{}", if .fix.is_empty() { String::new() } else { format!("\nfix: {}", .fix) })]
pub struct Failure {
    /// The kind, which also chooses the exit code.
    pub code: ErrorCode,
    /// What went wrong, naming what and where.
    pub message: String,
    /// What to do next; may be empty.
    pub fix: String,
}

/// Kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request itself cannot be understood.
    BadRequest,
    /// The node speaks another version.
    Version,
    /// The job file is wrong.
    BadJob,
    /// No such job, peer or model.
    NotFound,
    /// Understood and not possible now.
    Refused,
    /// Peers that are needed cannot be reached.
    Unreachable,
    /// A file could not be read or written, or the node is at fault.
    Internal,
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        let code = match error {
            RequestError::Version { .. } => ErrorCode::Version,
            _ => ErrorCode::BadRequest,
        };
        Self {
            code,
            message: error.to_string(),
            fix: String::new(),
        }
    }
}

/// A response with its version.
#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    v: u32,
    #[serde(flatten)]
    body: T,
}

impl Response {
    /// The response as one line, without its newline. One too long for the client becomes an error that says so.
    pub fn encode(&self) -> String {
        let too_long = Failure {
            code: ErrorCode::Internal,
            message: "the answer is too long for the control socket".into(),
            fix: "look at the files below the home folder instead".into(),
        };
        match serde_json::to_string(&Versioned {
            v: VERSION,
            body: self,
        }) {
            Ok(line) if line.len() <= MAX_RESPONSE_BYTES => line,
            Ok(_) => Self::Error(too_long).encode(),
            Err(error) => Self::Error(Failure {
                message: error.to_string(),
                ..too_long
            })
            .encode(),
        }
    }

    /// Reads one line without its newline.
    ///
    /// # Errors
    /// What the JSON reader says, or another version.
    pub fn decode(line: &[u8]) -> Result<Self, RequestError> {
        let malformed = |error: serde_json::Error| RequestError::Malformed {
            reason: error.to_string(),
        };
        let Version { v } = serde_json::from_slice(line).map_err(malformed)?;
        if v != u64::from(VERSION) {
            return Err(RequestError::Version { got: v });
        }
        serde_json::from_slice::<Versioned<Self>>(line)
            .map(|line| line.body)
            .map_err(malformed)
    }
}

//! Prints results: text for people, JSON lines for programs. A reader that closed the pipe ends the command quietly.

use std::cell::RefCell;
use std::io::{self, Write};

use super::exit::{CliError, Exit};
use crate::control::{ErrorCode, Failure, Response};

/// Standard output, or what stands for it in a test, in the form the user chose.
pub(super) struct Output {
    json: bool,
    to: RefCell<Box<dyn Write>>,
}

impl Output {
    /// Prints to standard output.
    pub(super) fn new(json: bool) -> Self {
        Self::to(json, io::stdout())
    }

    /// Prints to `to`.
    pub(super) fn to(json: bool, to: impl Write + 'static) -> Self {
        Self {
            json,
            to: RefCell::new(Box::new(to)),
        }
    }

    /// Whether JSON is wanted.
    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints the response itself as JSON, or what `text` makes of it for people.
    pub(super) fn response(
        &self,
        response: &Response,
        text: impl FnOnce() -> String,
    ) -> Result<(), CliError> {
        if self.json {
            self.line(&response.encode())
        } else {
            self.line(&text())
        }
    }

    /// Prints one or more lines.
    pub(super) fn line(&self, text: &str) -> Result<(), CliError> {
        let mut to = self.to.borrow_mut();
        match writeln!(to, "{text}").and_then(|()| to.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(CliError {
                exit: Exit::Ok,
                message: String::new(),
            }),
            Err(error) => Err(CliError::internal(format!("cannot print: {error}"))),
        }
    }

    /// Prints an error: to stderr for people, as a response for programs.
    pub(super) fn error(&self, error: &CliError) {
        if error.message.is_empty() {
            return;
        }
        if self.json {
            let code = match error.exit {
                Exit::Usage => ErrorCode::BadRequest,
                Exit::NotFound | Exit::NoNode => ErrorCode::NotFound,
                Exit::Refused => ErrorCode::Refused,
                _ => ErrorCode::Internal,
            };
            let failure = Failure {
                code,
                message: error.message.clone(),
                fix: String::new(),
            };
            // Nobody is left to tell if this fails; the exit code still says it.
            let _ = self.line(&Response::Error(failure).encode());
        } else {
            let _ = writeln!(io::stderr(), "skein: {}", error.message);
        }
    }
}

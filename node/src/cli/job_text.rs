//! The text of a job file, with an error that says what is wrong with its path.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::exit::CliError;
use crate::job::file::MAX_JOB_BYTES;

/// Reads a job file, at most one byte more than the longest.
pub(super) fn read(path: &Path) -> Result<String, CliError> {
    let name = path.display();
    let file = File::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => CliError::not_found(format!(
            "there is no job file {name}: `skein init {name}` writes one"
        )),
        _ => CliError::internal(format!("cannot read {name}: {error}")),
    })?;
    let mut bytes = vec![];
    file.take(MAX_JOB_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| match error.kind() {
            // Opening a folder works; reading it does not.
            std::io::ErrorKind::IsADirectory => is_a_folder(&name),
            _ => CliError::internal(format!("cannot read {name}: {error}")),
        })?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        CliError::usage(format!(
            "{name}: line {line} is not UTF-8 text: give the path of a job file"
        ))
    })
}

fn is_a_folder(name: &std::path::Display<'_>) -> CliError {
    CliError::usage(format!("{name} is a folder: give the path of a job file"))
}

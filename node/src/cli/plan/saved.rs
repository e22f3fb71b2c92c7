//! Planning problems in files: TOML or JSON, by the end of the name.

use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;
use skein_model::plan::Problem;

use super::super::exit::CliError;
use super::what_if::Added;

/// Largest file that is read.
const MAX_BYTES: u64 = 64 << 20;

enum Format {
    Toml,
    Json,
}

fn format(file: &Path) -> Result<Format, CliError> {
    match file.extension().and_then(|end| end.to_str()) {
        Some("toml") => Ok(Format::Toml),
        Some("json") => Ok(Format::Json),
        _ => Err(CliError::usage(format!(
            "{} is neither .toml nor .json: give it a name that says what it is",
            file.display()
        ))),
    }
}

/// The problem in a file, as it stands there; its figures are not checked.
///
/// # Errors
/// No such file, not of this format, a key that is not known.
pub(super) fn read(file: &Path) -> Result<Problem, CliError> {
    parsed(file)
}

/// A further device.
///
/// # Errors
/// As [`read`].
pub(super) fn read_added(file: &Path) -> Result<Added, CliError> {
    parsed(file)
}

fn parsed<T: DeserializeOwned>(file: &Path) -> Result<T, CliError> {
    let name = file.display();
    let format = format(file)?;
    let opened = std::fs::File::open(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => CliError::not_found(format!(
            "there is no file {name}: `skein plan job.toml --save {name}` writes one where a node runs"
        )),
        _ => CliError::internal(format!("cannot read {name}: {error}")),
    })?;
    let mut text = String::new();
    let read = opened.take(MAX_BYTES + 1).read_to_string(&mut text);
    read.map_err(|error| CliError::usage(format!("{name} cannot be read as text: {error}")))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(CliError::usage(format!(
            "{name} has more than {MAX_BYTES} bytes: that is no profile"
        )));
    }
    let wrong = |error: &dyn std::fmt::Display| CliError::usage(format!("{name}: {error}"));
    match format {
        Format::Toml => toml::from_str(&text).map_err(|error| wrong(&error)),
        Format::Json => serde_json::from_str(&text).map_err(|error| wrong(&error)),
    }
}

/// Writes a problem to a file.
///
/// # Errors
/// A name that says no format, a disk that refuses.
pub(super) fn write(file: &Path, problem: &Problem) -> Result<(), CliError> {
    let wrong = |error: &dyn std::fmt::Display| {
        CliError::internal(format!("cannot write {}: {error}", file.display()))
    };
    let text = match format(file)? {
        Format::Toml => toml::to_string(problem).map_err(|error| wrong(&error))?,
        Format::Json => serde_json::to_string_pretty(problem).map_err(|error| wrong(&error))?,
    };
    std::fs::write(file, text).map_err(|error| cannot_write(file, &error))
}

pub(super) fn cannot_write(file: &Path, error: &std::io::Error) -> CliError {
    let name = file.display();
    match error.kind() {
        std::io::ErrorKind::NotFound => CliError::not_found(format!(
            "cannot write {name}: there is no such folder; make it first"
        )),
        _ => CliError::internal(format!("cannot write {name}: {error}")),
    }
}

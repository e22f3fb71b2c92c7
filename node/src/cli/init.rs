//! `skein init`: writes one of the annotated job files in `examples/jobs`.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};

use super::args::{Example, InitArgs};
use super::exit::{CliError, Exit};
use super::output::Output;

impl Example {
    /// Its text.
    fn text(self) -> &'static str {
        match self {
            Self::Digits => include_str!("../../../examples/jobs/digits.toml"),
            Self::FashionMnist => include_str!("../../../examples/jobs/fashion-mnist.toml"),
            Self::MlpPrivate => include_str!("../../../examples/jobs/mlp-private.toml"),
            Self::SyncDense => include_str!("../../../examples/jobs/sync-dense.toml"),
        }
    }
}

/// `skein init`.
pub(super) fn init(args: &InitArgs, output: &Output) -> Result<Exit, CliError> {
    let name = args.file.display();
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create(true)
        .truncate(true)
        .create_new(!args.force);
    let mut file = options
        .open(&args.file)
        .map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => CliError::usage(format!(
                "{name} is there already: give another name, or --force"
            )),
            ErrorKind::NotFound => CliError::not_found(format!(
                "cannot write {name}: there is no such folder; make it first"
            )),
            _ => CliError::internal(format!("cannot write {name}: {error}")),
        })?;
    file.write_all(args.example.text().as_bytes())
        .map_err(|error| CliError::internal(format!("cannot write {name}: {error}")))?;
    if output.is_json() {
        output.line(
            &serde_json::json!({ "v": 1, "kind": "written", "path": args.file }).to_string(),
        )?;
    } else {
        output.line(&format!("wrote {name}; start it with `skein train {name}`"))?;
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobFile;
    use clap::ValueEnum;

    #[test]
    fn each_example_is_written_as_a_job_and_nothing_is_overwritten_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let output = Output::to(true, std::io::sink());
        for &example in Example::value_variants() {
            let mut args = InitArgs {
                file: folder.path().join("job.toml"),
                example,
                force: true,
            };
            init(&args, &output).unwrap();
            JobFile::parse(&std::fs::read_to_string(&args.file).unwrap()).unwrap();
            args.force = false;
            assert_eq!(init(&args, &output).unwrap_err().exit, Exit::Usage);
        }
    }
}

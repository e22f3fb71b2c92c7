//! Refuses mistyped SKEIN_ variables: one that nobody reads is a setting that silently does not hold.

use std::ffi::OsString;

use clap::CommandFactory;

use super::args::Cli;
use super::exit::CliError;
use crate::nearest::nearest;

/// Variables that are read elsewhere: the log filter here, the others by the scripts that set up, build and test.
const OTHERS: [&str; 4] = [
    "SKEIN_LOG",
    "SKEIN_TORCH_INDEX",
    "SKEIN_BINARY",
    "SKEIN_LIBTORCH_VERSION",
];

/// Checks the names of all variables in `env`.
///
/// # Errors
/// The first unknown one, with the nearest known.
pub(super) fn check(env: impl IntoIterator<Item = (OsString, OsString)>) -> Result<(), CliError> {
    let cli = Cli::command();
    let commands = std::iter::once(&cli).chain(cli.get_subcommands());
    let mut known: Vec<String> = commands
        .flat_map(|command| command.get_arguments())
        .filter_map(|arg| Some(arg.get_env()?.to_string_lossy().into_owned()))
        .collect();
    known.extend(OTHERS.map(String::from));
    for (name, _) in env {
        let name = name.to_string_lossy();
        if name.starts_with("SKEIN_") && !known.iter().any(|known| *known == name) {
            let hint = match nearest(&name, known.iter().map(String::as_str)) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("known are {}", known.join(", ")),
            };
            return Err(CliError::usage(format!(
                "nothing reads the environment variable {name}: {hint}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::exit::Exit;
    use super::*;

    fn check_names(names: &[&str]) -> Result<(), CliError> {
        check(names.iter().map(|name| (name.into(), "1".into())))
    }

    #[test]
    fn known_variables_and_those_of_others_pass() {
        check_names(&[
            "SKEIN_HOME",
            "SKEIN_JOIN",
            "SKEIN_LOG",
            "SKEIN_TORCH_INDEX",
            "PATH",
            "SKEINY",
        ])
        .unwrap();
    }

    #[test]
    fn a_mistyped_variable_is_an_error_with_the_nearest() {
        let error = check_names(&["SKEIN_HOEM"]).unwrap_err();
        assert_eq!(error.exit, Exit::Usage);
        assert!(
            error.message.ends_with("did you mean SKEIN_HOME?"),
            "{error}"
        );
        let error = check_names(&["SKEIN_COLOUR_OF_THE_SKY"]).unwrap_err();
        assert!(error.message.contains("known are SKEIN_HOME"), "{error}");
    }
}

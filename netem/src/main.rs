//! The binary `skein-netem`: hands the command line over and turns the result into an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    // The lab starts this very executable inside of its namespaces.
    skein_netem::lab::hidden_main(std::env::args_os())
        .unwrap_or_else(|| skein_netem::cli::main(std::env::args_os()))
}

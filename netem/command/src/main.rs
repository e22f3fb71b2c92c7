//! The binary `skein-netem`: hands the command line over and turns the result into an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    skein_netem_command::cli::main(std::env::args_os())
}

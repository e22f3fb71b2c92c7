//! The binary `skein`: hands the command line over and turns the result into an exit code.

use std::process::ExitCode;

use skein_node::{cli, mesh};

fn main() -> ExitCode {
    cli::main(std::env::args_os(), std::env::vars_os(), mesh::run_up).into()
}

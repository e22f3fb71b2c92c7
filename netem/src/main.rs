//! The command `skein-netem`.

use std::process::ExitCode;

fn main() -> ExitCode {
    match skein_netem::lab::hidden_main(std::env::args_os()) {
        Some(code) => code,
        None => ExitCode::from(2),
    }
}

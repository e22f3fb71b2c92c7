//! The command `skein-netem`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match skein_netem::lab::hidden_main(&args) {
        Some(code) => code,
        None => ExitCode::from(2),
    }
}

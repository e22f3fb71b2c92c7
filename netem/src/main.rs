//! What the lab starts inside of its namespaces: a node's first process, the janitor, and the probes. A program of its own, for
//! the testbed's has libtorch in it, which would cost every node memory and time to start.

use std::process::ExitCode;

fn main() -> ExitCode {
    let code = skein_netem::lab::hidden_main(std::env::args_os());
    code.unwrap_or_else(|| {
        eprintln!("skein-netem-node: the lab of skein-netem starts this program");
        ExitCode::from(2)
    })
}
